"""Any library that turns chat messages into text at play: as an agent made of one function, or in a loop of your own.

    agent = FunctionAgent(lambda messages: client.ask(messages))
    fedagentgym.evaluate(agent, env, {"tasks": 50})

    chat = Conversation(env, task)
    while not chat.reply(client.ask(chat.messages)):
        pass

There are no tokens, so nothing can be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.protocols import Move, RowPlayers
from fedagentgym.agents.text.parsing import ParsedReply, parse_strict
from fedagentgym.agents.text.prompts import Dialogue, Message, Template
from fedagentgym.base.errors import OptionError, show_value

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, TextEnv

Answer = Callable[[list[Message]], str]


class FunctionAgent:
    """An agent made of a function from the messages of a dialogue to the next reply.

    Use it to evaluate any library that turns chat messages into text. It has no tokens, so it cannot be trained. The action is
    what the reply has between `<action>` tags; a reply without tags is the action.

    Args:
        answer: The function. It gets a list of dictionaries with `role` and `content`, and returns a text.
        name: Name of the agent in results.
        template: Name of the prompt template.
        think: Whether thoughts are asked for before the action.
        context: `session` for one growing dialogue, `window` for a single message that contains the last turns.
        history: How many past turns a `window` contains.

    Raises:
        OptionError: If `answer` is no function; while playing, if it returns something other than a text.

    Examples:
        >>> from fedagentgym.envs import open_env
        >>> from fedagentgym.learning import collect
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> played = collect(FunctionAgent(lambda messages: "guess 4"), env, env.pool.ids[:1])
        >>> played.trajectories[0].actions[0]
        'guess 4'
    """

    def __init__(
        self,
        answer: Answer,
        name: str = "function",
        *,
        template: str = "standard",
        think: bool = False,
        context: Literal["session", "window"] = "session",
        history: int = 2,
    ) -> None:
        if not callable(answer):
            raise OptionError(f"FunctionAgent takes a function of messages, got {show_value(answer)}")
        self.name, self.answer = name, answer
        self.template = Template(template, think)
        self.context: Literal["session", "window"] = context
        self.history = history

    def play(self, env: TextEnv) -> FunctionPlayers:
        """Start playing.

        Args:
            env: The environment.

        Returns:
            The `Players`, a context manager.
        """
        return FunctionPlayers(self, env)

    def close(self) -> None:
        """Release nothing: a function holds no resources."""


class FunctionPlayers(RowPlayers[Dialogue]):
    """``Players`` of one function, which is called row after row."""

    def __init__(self, agent: FunctionAgent, env: TextEnv) -> None:
        super().__init__(env)
        self.agent = agent

    def start_row(self, episode: Episode, stream: Stream) -> Dialogue:
        agent = self.agent
        return Dialogue(self.env, agent.template, agent.context, agent.history, episode.view.observation)

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        return [self._act(self._rows[row], episode) for row, episode in zip(rows, episodes, strict=True)]

    def _act(self, dialogue: Dialogue, episode: Episode) -> Move:
        asked = dialogue.build_messages(episode)
        reply = self.agent.answer([dict(message) for message in asked])
        if not isinstance(reply, str):
            raise OptionError(f"the function of agent {self.agent.name!r} returned {show_value(reply)}, not a text")
        found = parse_free_reply(self.env, self.agent.template, reply)
        dialogue.record_turn(episode, asked, reply, found.action)
        return Move(reply, found.action, found.format)


class Conversation:
    """One episode as chat messages, for a loop of your own around any model: send `messages`, give the reply to `reply`.

    Args:
        env: The environment, without gymnasium's wrappers.
        task: The id of its task.
        seed: Seed of the episode.
        template: The prompt template; by default the standard one without thoughts.

    Attributes:
        episode: The present `Episode`; `episode.over`, `episode.view.score` and `episode.view.success` tell how it went.

    Raises:
        UnknownNameError: If the environment has no such task.

    Examples:
        >>> from fedagentgym.envs import open_env
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> chat = Conversation(env, env.pool.ids[0])
        >>> chat.messages[-1]["role"], chat.reply("guess 4"), len(chat.messages)
        ('user', False, 3)
    """

    def __init__(self, env: TextEnv, task: str, seed: int = 0, template: Template | None = None) -> None:
        self.env, self.template = env, template or Template(think=False)
        (self.episode,) = env.reset_many([task], [seed])
        self._dialogue = Dialogue(env, self.template, "session", 0, self.episode.view.observation)

    @property
    def messages(self) -> list[Message]:
        """The messages that the model answers next, each with `role` and `content`; the last one is the newest observation."""
        return [dict(message) for message in self._dialogue.build_messages(self.episode)]

    def reply(self, text: str) -> bool:
        """Play a reply of the model.

        Args:
            text: The reply; the action is what it has between `<action>` tags, without tags the whole reply.

        Returns:
            Whether the episode is over.

        Raises:
            OptionError: If the reply is no text, or the episode was over before.
        """
        if not isinstance(text, str):
            raise OptionError(f"a reply is a text, got {show_value(text)}")
        if self.episode.over:
            raise OptionError("the episode is over: make a new Conversation")
        action = parse_free_reply(self.env, self.template, text).action
        self._dialogue.record_turn(self.episode, self._dialogue.build_messages(self.episode), text, action)
        (self.episode,) = self.env.step_many([self.episode], [action])
        return self.episode.over


def parse_free_reply(env: TextEnv, template: Template, reply: str) -> ParsedReply:
    """The action of a model that need not keep a form: what stands between the tags, or the whole reply."""
    if env.takes == "reply":
        return ParsedReply(reply, True)
    if "<action>" in reply:
        return parse_strict(reply, template.think)
    return ParsedReply(reply.strip(), True)
