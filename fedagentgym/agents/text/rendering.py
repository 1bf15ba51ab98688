"""Episodes to token ids, turn by turn: what a row is given before it speaks, in either context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.agents.text.tokens import TokenizerSeam
from fedagentgym.base.errors import DataError, OptionError

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, TextEnv


class Context(NamedTuple):
    """What a row is given before it speaks. ``fresh``: the row starts over with these ids."""

    ids: tuple[int, ...]
    fresh: bool


@dataclass
class Seat:
    """One row of players: what the renderer must remember of its episode."""

    stream: Stream
    start: str
    past: list[PastTurn] = field(default_factory=list)
    stopped: bool = True
    held: int = 0


@dataclass(frozen=True)
class Renderer:
    """Turns the episodes of an environment into token ids, turn by turn.

    ``context``: one growing dialogue per episode, or a fresh prompt with the last ``history`` turns at every step. A prompt
    leaves room for a reply of ``max_new_tokens`` in ``context_length``.
    """

    env: TextEnv
    tokenizer: TokenizerSeam
    template: Template
    context: Literal["session", "window"]
    history: int
    chat: bool
    context_length: int
    max_new_tokens: int

    def __post_init__(self) -> None:
        if self.room < 1:
            raise OptionError(
                f"max_new_tokens {self.max_new_tokens} fills the whole context of {self.context_length} tokens"
            )

    @property
    def room(self) -> int:
        """Tokens that may stand before a reply."""
        return self.context_length - self.max_new_tokens

    def seat(self, episode: Episode, stream: Stream) -> Seat:
        return Seat(stream, episode.view.observation)

    def render(self, seat: Seat, episode: Episode) -> Context | None:
        """Return what the row is given this turn; None where no room is left for a reply."""
        if episode.turn == 0 or self.context == "window" or not seat.held:
            found = self._whole(seat, episode)
            if found is None and episode.turn == 0:
                raise self._too_long(seat, episode)
            return found
        text = self.template.following(self.env, episode.view, self.env.goal(episode.task))
        encoded = self.tokenizer.encode_next(text, stopped=seat.stopped) if self.chat else self.tokenizer.encode(text)
        return Context(encoded, False) if seat.held + len(encoded) <= self.room else None

    def _whole(self, seat: Seat, episode: Episode) -> Context | None:
        """Render the window; the oldest turns go first when it is too long."""
        shown = seat.past[-self.history :] if self.history else []
        for skipped in range(len(shown) + 1):
            ids = self._prompt(seat, shown[skipped:], episode)
            if len(ids) <= self.room:
                return Context(ids, True)
        return None

    def _prompt(self, seat: Seat, past: Sequence[PastTurn], episode: Episode) -> tuple[int, ...]:
        goal = self.env.goal(episode.task)
        text = self.template.window(self.env, seat.start, past, episode.turn, episode.view, goal)
        return self.tokenizer.encode_chat(text) if self.chat else self.tokenizer.encode(text)

    def _too_long(self, seat: Seat, episode: Episode) -> DataError:
        length = len(self._prompt(seat, (), episode))
        return DataError(
            f"{episode.task.id}: the first prompt has {length} tokens, but the context of {self.context_length} "
            f"leaves room for {self.room} beside a reply of {self.max_new_tokens}"
        )

    def note(self, seat: Seat, episode: Episode, context: Context, move: Move) -> None:
        """Remember a turn."""
        seat.past.append(PastTurn(episode.view.observation, move.action))
        seat.stopped = move.finish == "stop"
        seat.held = (0 if context.fresh else seat.held) + len(context.ids) + len(move.token_ids)
