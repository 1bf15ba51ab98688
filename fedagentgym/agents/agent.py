"""A language model as an agent: policy, template, parser and decoding behind the text-level protocol.

It takes rows of episodes and returns moves, with the tokens that a trainer needs. The history is a list of token ids and never
text that is encoded again: re-encoding would change ids, and the recorded log-probs would belong to another text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedagentgym.agents.protocols import Completion, Decoding, Move, Policy, RowPlayers
from fedagentgym.agents.text.constraints import ActionTrie, TrieCache
from fedagentgym.agents.text.parsing import ParsedReply, parse
from fedagentgym.agents.text.prompts import Template
from fedagentgym.agents.text.rendering import Renderer, RowState, TurnInput
from fedagentgym.agents.text.tokens import TextTokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.protocols import get_action_tail

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


@dataclass(frozen=True)
class TokenAgent:
    """A language model as an agent: its policy, with everything between it and an environment.

    Attributes:
        name: Name in results.
        policy: What generates tokens, such as a `TorchPolicy`.
        template: The prompts.
        decoding: How tokens are drawn.
        context: `session` for one growing dialogue, `window` for a fresh prompt with the last turns at every step.
        history: How many past turns a `window` shows.
        parser: How an action is extracted from a reply: `strict`, or as `published` agent code does it.
        chat: Whether prompts are wrapped in the tokenizer's chat template.

    Raises:
        OptionError: If thoughts are asked for with constrained decoding, or a chat template without there being one.
    """

    name: str
    policy: Policy
    template: Template = field(default_factory=Template)
    decoding: Decoding = field(default_factory=Decoding)
    context: Literal["session", "window"] = "session"
    history: int = 2
    parser: Literal["strict", "published"] = "strict"
    chat: bool = False

    def __post_init__(self) -> None:
        if self.decoding.constrained and self.template.think:
            raise OptionError("constrained generation cannot contain thoughts: set think: false")
        if self.chat and not self.tokenizer.has_chat_template:
            raise OptionError(f"{self.name}: the tokenizer has no chat template: set chat: false")

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the policy."""
        tokenizer = self.policy.tokenizer
        assert isinstance(tokenizer, TextTokenizer)
        return tokenizer

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
        return Renderer(
            env,
            self.tokenizer,
            self.template,
            self.context,
            self.history,
            self.chat,
            self.policy.context_length,
            self.decoding.max_new_tokens,
        )

    def parse(self, env: TextEnv, reply: str) -> ParsedReply:
        """Extract the action from a reply.

        Args:
            env: The environment; one that takes replies gets them whole.
            reply: The reply.

        Returns:
            `action`, and `format`: whether the reply has the form that was asked for.
        """
        if env.takes == "reply":
            return ParsedReply(reply, True)
        return parse(reply, self.parser, self.template.think, get_action_tail(env))

    def close(self) -> None:
        """Close the policy."""
        self.policy.close()


class TokenPlayers(RowPlayers[RowState]):
    """``Players`` of a language model: one session, one row per episode."""

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
        moves = [Move("", "", fresh=False, finish="context")] * len(rows)
        speaking = [index for index, context in enumerate(contexts) if context is not None]
        self._feed_tokens([(rows[index], context) for index, context in enumerate(contexts) if context is not None])
        tries = self._tries
        answers = self._session.generate(
            [self._opened[rows[index]] for index in speaking],
            [states[index].stream for index in speaking],
            self.agent.decoding,
            None
            if tries is None
            else [self._make_constraint(tries, states[index], episodes[index]) for index in speaking],
        )
        for index, answer in zip(speaking, answers, strict=True):
            context = contexts[index]
            assert context is not None
            moves[index] = self._make_move(context, answer)
            self._renderer.record_turn(states[index], episodes[index], context, moves[index])
        return moves

    def _feed_tokens(self, turn_inputs: Sequence[tuple[int, TurnInput]]) -> None:
        """Pass every row its new tokens; rows that start over are opened together, so that they share prompts."""
        fresh = [(row, context.ids) for row, context in turn_inputs if context.fresh]
        self._session.drop([self._opened.pop(row) for row, _ in fresh if row in self._opened])
        self._opened.update(zip([row for row, _ in fresh], self._session.open([ids for _, ids in fresh]), strict=True))
        grown = [(self._opened[row], context.ids) for row, context in turn_inputs if not context.fresh]
        self._session.append([row for row, _ in grown], [ids for _, ids in grown])

    def _make_constraint(self, tries: TrieCache, state: RowState, episode: Episode) -> ActionTrie | None:
        admissible = episode.view.admissible
        if not admissible:
            return None
        replies = tuple(self.agent.template.render_reply(self.env, action) for action in admissible)
        return tries.get_trie(replies, state.slot_text)

    def _make_move(self, context: TurnInput, answer: Completion) -> Move:
        reply = self.agent.tokenizer.decode(answer.token_ids)
        parsed = self.agent.parse(self.env, reply)
        return Move(
            reply,
            parsed.action,
            parsed.format,
            context.ids,
            answer.token_ids,
            answer.logprobs,
            answer.allowed,
            context.fresh,
            answer.finish,
        )
