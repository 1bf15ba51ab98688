"""A language model as an agent: policy, template, parser and decoding behind the text-level protocol.

It takes rows of episodes and returns moves, with the tokens that a trainer needs. The history of an episode is kept as token
ids and is never encoded again: re-encoding could change ids, and the recorded log-probs would no longer match them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedagentgym.agents.protocols import Decoding, Move, PlaysEpisodes, Policy, RowPlayers
from fedagentgym.agents.text.constraints import ActionTrie, TrieCache
from fedagentgym.agents.text.prompts import ParsedReply, PastTurn, Template, parse
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.shorten import show_fields
from fedagentgym.envs.protocols import get_action_tail
from fedagentgym.envs.scripted import get_slot_text

if TYPE_CHECKING:
    from fedagentgym.agents.text.tokens import TextTokenizer
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


@dataclass(frozen=True)
class TokenAgent:
    """A language model as an agent: a policy and everything between the policy and an environment.

    Attributes:
        name: Name in results.
        policy: The engine that generates tokens, such as a `TorchPolicy`.
        template: The prompts.
        decoding: How tokens are drawn.
        context: `session` for one growing dialogue, `window` for a new prompt at every turn, which shows the last turns.
        history: Number of past turns that a `window` shows.
        parser: How an action is extracted from a reply: `strict`, or as `published` agent code does it.
        chat: Whether prompts are wrapped in the tokenizer's chat template.
        longest_prompt: With `window`, a prompt of more characters than this shows no past turns.
        harness: The program that plays in place of `play`, if there is one.

    Raises:
        OptionError: If `template` asks for thoughts and decoding is constrained, or `chat` is set and the tokenizer has no chat
            template.
    """

    name: str
    policy: Policy
    template: Template = field(default_factory=Template)
    decoding: Decoding = field(default_factory=Decoding)
    context: Literal["session", "window"] = "session"
    history: int = 2
    parser: Literal["strict", "published"] = "strict"
    chat: bool = False
    longest_prompt: int | None = None
    harness: PlaysEpisodes | None = None

    def __repr__(self) -> str:
        return show_fields(self)

    def __post_init__(self) -> None:
        if self.decoding.constrained and self.template.think:
            raise OptionError("constrained generation cannot contain thoughts: set think: false")
        if self.chat and not self.tokenizer.has_chat_template:
            raise OptionError(f"{self.name}: the tokenizer has no chat template: set chat: false")

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the policy."""
        return self.policy.tokenizer

    def play(self, env: TextEnv) -> TokenPlayers:
        """Start playing with the policy's present weights, which must not change until the players are closed.

        Args:
            env: The environment.

        Returns:
            The players, a context manager.
        """
        return TokenPlayers(self, env)

    def renderer(self, env: TextEnv) -> Renderer:
        """Return what converts the episodes of an environment to this agent's tokens.

        Args:
            env: The environment.

        Returns:
            The renderer.
        """
        return Renderer(self, env)

    def parse(self, env: TextEnv, reply: str) -> ParsedReply:
        """Extract the action from a reply.

        Args:
            env: The environment. If it takes replies, the action is the whole reply.
            reply: The reply.

        Returns:
            The action, and whether the reply has the required format.
        """
        if env.takes == "reply":
            return ParsedReply(reply, True)
        return parse(reply, self.parser, self.template.think, get_action_tail(env))

    def close(self) -> None:
        """Close the policy, and end the programs of `harness`."""
        if self.harness is not None:
            self.harness.close()
        self.policy.close()


class TurnInput(NamedTuple):
    """The tokens to add to a row before its reply. With `fresh`, they replace all earlier tokens of the row."""

    ids: tuple[int, ...]
    fresh: bool


@dataclass
class RowState:
    """The memory of one row's episode. `start` is the first observation; the slots of an action take words of `slot_text`."""

    stream: Stream
    start: str
    slot_text: str
    past: list[PastTurn] = field(default_factory=list)
    stopped: bool = True
    held: int = 0
    listed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Renderer:
    """Turns the episodes of an environment into an agent's token ids, turn by turn, for both values of `context`.

    Every prompt leaves room for a reply of `max_new_tokens`.
    """

    agent: TokenAgent
    env: TextEnv

    def __post_init__(self) -> None:
        if self.room < 1:
            most, context = self.agent.decoding.max_new_tokens, self.agent.policy.context_length
            raise OptionError(
                f"max_new_tokens {most} fills the whole context of {context} tokens: lower agent.decoding.max_new_tokens"
            )

    @property
    def room(self) -> int:
        """The most tokens that a row may hold before a reply."""
        return self.agent.policy.context_length - self.agent.decoding.max_new_tokens

    def start_row(self, episode: Episode, stream: Stream) -> RowState:
        return RowState(stream, episode.view.observation, get_slot_text(self.env, episode))

    def render(self, row: RowState, episode: Episode) -> TurnInput | None:
        """Return the tokens to add for this turn; None if there is no room left for a reply."""
        agent, template, tokenizer = self.agent, self.agent.template, self.agent.tokenizer
        goal, env, system = self.env.goal(episode.task), self.env.find_member(episode.task), template.system
        if episode.turn and agent.context == "session" and row.held:
            text = template.render_next(env, episode.view, goal, row.listed)
            ids = tokenizer.encode_next(text, stopped=row.stopped) if agent.chat else tokenizer.encode(text)
            return TurnInput(ids, False) if row.held + len(ids) <= self.room else None
        # a new prompt; if it is too long, the oldest turns are left out first
        shown = row.past[-agent.history :] if agent.history else []
        for skipped in range(len(shown) + 1):
            past = shown[skipped:]
            text = template.render_bounded(env, row.start, past, episode.turn, episode.view, goal, agent.longest_prompt)
            if agent.chat:
                ids = tokenizer.encode_chat(text, system)
            else:
                ids = tokenizer.encode(text if system is None else f"{system}\n\n{text}")
            if len(ids) <= self.room:
                return TurnInput(ids, True)
        if episode.turn:
            return None
        raise DataError(
            f"{episode.task.id}: the first prompt has {len(ids)} tokens, but the context of {agent.policy.context_length} "
            f"leaves room for {self.room} beside a reply of {agent.decoding.max_new_tokens}: lower"
            " agent.decoding.max_new_tokens, or use a model with a longer context"
        )

    def record_turn(self, row: RowState, episode: Episode, context: TurnInput, move: Move) -> None:
        """Add a turn to the memory of a row."""
        row.past.append(PastTurn(episode.view.observation, move.action))
        row.listed = episode.view.admissible
        row.stopped = move.finish == "stop"
        row.held = (0 if context.fresh else row.held) + len(context.ids) + len(move.token_ids)


class TokenPlayers(RowPlayers[RowState]):
    """`Players` of a language model: one session with one row per episode."""

    def __init__(self, agent: TokenAgent, env: TextEnv) -> None:
        super().__init__(env)
        self.agent = agent
        self._renderer = agent.renderer(env)
        self._session = agent.policy.open_session()
        self._opened: dict[int, int] = {}
        constrained = agent.decoding.constrained and env.takes == "command"
        self._tries = TrieCache(agent.tokenizer, agent.decoding.max_new_tokens) if constrained else None

    def close(self) -> None:
        self._session.close()

    def start_row(self, episode: Episode, stream: Stream) -> RowState:
        return self._renderer.start_row(episode, stream)

    def leave(self, rows: Sequence[int]) -> None:
        super().leave(rows)
        self._session.drop([self._opened.pop(row) for row in rows if row in self._opened])

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        states = [self._rows[row] for row in rows]
        contexts = [self._renderer.render(state, episode) for state, episode in zip(states, episodes, strict=True)]
        turns = [(index, context) for index, context in enumerate(contexts) if context is not None]
        # rows that start over are opened in one call, so that equal prompts are computed once
        fresh = [(rows[index], context.ids) for index, context in turns if context.fresh]
        self._session.drop([self._opened.pop(row) for row, _ in fresh if row in self._opened])
        self._opened.update(zip([row for row, _ in fresh], self._session.open([ids for _, ids in fresh]), strict=True))
        grown = [(self._opened[rows[index]], context.ids) for index, context in turns if not context.fresh]
        self._session.append([row for row, _ in grown], [ids for _, ids in grown])

        rules: list[ActionTrie | None] = []
        for index, _ in turns:
            admissible = episodes[index].view.admissible
            if self._tries is None or not admissible:
                rules.append(None)
                continue
            replies = tuple(self.agent.template.render_reply(self.env, action) for action in admissible)
            rules.append(self._tries.get_trie(replies, states[index].slot_text))
        answers = self._session.generate(
            [self._opened[rows[index]] for index, _ in turns],
            [states[index].stream for index, _ in turns],
            self.agent.decoding,
            rules,
        )
        moves = [Move("", "", fresh=False, finish="context")] * len(rows)
        for (index, context), answer in zip(turns, answers, strict=True):
            reply = self.agent.tokenizer.decode(answer.token_ids)
            action, form = self.agent.parse(self.env, reply)
            moves[index] = Move(
                reply,
                action,
                form,
                context.ids,
                answer.token_ids,
                answer.logprobs,
                answer.allowed,
                context.fresh,
                answer.finish,
            )
            self._renderer.record_turn(states[index], episodes[index], context, moves[index])
        return moves
