"""An agent of your own: a class with one method.

    class Middle(Agent):
        def reply(self, observation, info):
            return "guess 5"

    fedagentgym.evaluate(Middle(), "Guess", tasks=50)

Such an agent has no tokens, so it cannot be trained. To play all episodes of a turn at once, write a `Player` instead.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from fedagentgym.agents.protocols import Move, RowPlayers
from fedagentgym.agents.text.prompts import Dialogue, ParsedReply, Template, parse
from fedagentgym.base.blame import find_blame
from fedagentgym.base.errors import FedAgentGymError, OptionError, describe_error, show_value
from fedagentgym.envs.protocols import get_action_tail

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


class Agent:
    """Base class of an agent of your own: derive a class and write `reply`.

    Every episode is played by a shallow copy of the agent, on which `reset` is called first. Attributes that `reset` and `reply`
    assign belong to this episode. Attributes that `__init__` made, such as a client of a server, are shared by all episodes.

    Attributes:
        name: Name in results; by default the name of the class, or the name under which the class is registered.
        parser: How the action is extracted from a reply: `strict` or `published`, as for language models. By default the reply
            is the action.
        think: Whether `info["messages"]` ask for a thought before the action, and the parser requires it.
        stream: The random stream of the episode; draws from it are the same for the same seed.

    Examples:
        >>> from fedagentgym.learning import evaluate
        >>> class Searcher(Agent):
        ...     def reset(self):
        ...         self.low = 1
        ...     def reply(self, observation, info):
        ...         if "higher" in observation:
        ...             self.low = self.guess + 1
        ...         elif "lower" in observation:
        ...             self.high = self.guess - 1
        ...         else:
        ...             self.high = len(info["admissible"])
        ...         self.guess = (self.low + self.high) // 2
        ...         return f"guess {self.guess}"
        >>> evaluate(Searcher(), "Guess", tasks=20).overall["success"].mean
        1.0
    """

    name: str = "Agent"
    parser: Literal["strict", "published"] | None = None
    think: bool = False
    stream: Stream

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def reset(self) -> None:
        """Begin an episode. By default this does nothing."""

    def reply(self, observation: str, info: dict[str, Any]) -> str:
        """Return the reply to the present observation. This is the only method that must be written.

        Args:
            observation: The text that the environment shows.
            info: `task`, `category`, `turn`, `prompt`, `admissible` actions (None if they are not listed) and `valid` (whether
                the last action was understood), as in Gymnasium's `info` but without scores. Also `messages`, the dialogue so
                far in the standard prompt, as messages for a chat API.

        Returns:
            The action, or, with a `parser`, a text that contains it.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release resources of the agent. By default this does nothing."""

    def play(self, env: TextEnv) -> OwnPlayers:
        """Start playing many episodes at once. Do not override this method.

        Args:
            env: The environment.

        Returns:
            The players of its episodes, a context manager.

        Raises:
            OptionError: If the class has no `reply`, or its name or parser is invalid.
        """
        return OwnPlayers(self, env)


class OwnRow(NamedTuple):
    """One episode: the copy of the agent that plays it, and its dialogue."""

    agent: Agent
    dialogue: Dialogue


class OwnPlayers(RowPlayers[OwnRow]):
    """`Players` of an `Agent`: each row has a copy of the agent, and rows are asked one after another."""

    parsers: ClassVar = ("strict", "published", None)

    def __init__(self, agent: Agent, env: TextEnv) -> None:
        super().__init__(env)
        kind = type(agent).__name__
        if type(agent).reply is Agent.reply:
            raise OptionError(f"agent {kind} has no method reply(self, observation, info)")
        if not isinstance(agent.name, str) or not agent.name:
            raise OptionError(f"agent {kind}: name must be a non-empty text, got {show_value(agent.name)}")
        if agent.parser not in self.parsers:
            raise OptionError(f"agent {kind}: parser is 'strict', 'published' or None, got {show_value(agent.parser)}")
        self.agent = agent
        self._template = Template(think=bool(agent.think))

    def start_row(self, episode: Episode, stream: Stream) -> OwnRow:
        with errors_of(self.agent, "reset", episode):
            agent = copy.copy(self.agent)
            agent.stream = stream
            agent.reset()
        return OwnRow(agent, Dialogue(self.env, self._template, "session", 0, episode.view.observation))

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        moves = []
        for row, episode in zip(rows, episodes, strict=True):
            (agent, dialogue), view, parser = self._rows[row], episode.view, self.agent.parser
            asked = dialogue.build_messages(episode)
            info = {
                "task": episode.task.id,
                "category": episode.task.category,
                "turn": episode.turn,
                "prompt": asked[-1]["content"],
                "admissible": None if view.admissible is None else list(view.admissible),
                "valid": bool(view.valid),
                "messages": [dict(message) for message in asked],
            }
            with errors_of(self.agent, "reply", episode):
                reply = agent.reply(view.observation, info)
            if not isinstance(reply, str):
                raise OptionError(f"agent {self.agent.name!r}: reply returned {show_value(reply)}, which is not a text")
            if parser is None or self.env.takes == "reply":
                action, form = ParsedReply(reply, True)
            else:
                action, form = parse(reply, parser, self._template.think, get_action_tail(self.env))
            dialogue.record_turn(episode, asked, reply, action)
            moves.append(Move(reply, action, form))
        return moves


@contextmanager
def errors_of(agent: Agent, method: str, episode: Episode) -> Iterator[None]:
    """Turn an error in a method of the user's class into an `OptionError` that says where it happened."""
    try:
        yield
    except FedAgentGymError:
        raise
    except Exception as error:
        where, blame = f"turn {episode.turn + 1} of {episode.task.id}", find_blame(error)
        line = "" if blame is None else f" ({blame.file}, line {blame.line})"
        if blame is not None and blame.signature:
            raise OptionError(f"agent {agent.name!r}: {blame.describe(error)}") from error
        raise OptionError(f"agent {agent.name!r}: {method} failed at {where}: {describe_error(error)}{line}") from error
