"""Episodes to token ids, turn by turn: the tokens that a row is given before each reply, in either context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.agents.text.tokens import TextTokenizer
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs.scripted import get_slot_text

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


class TurnInput(NamedTuple):
    """The tokens of a row before its reply. ``fresh``: the row starts over with these ids."""

    ids: tuple[int, ...]
    fresh: bool


@dataclass
class RowState:
    """One row of players: the memory of its episode. ``start`` is the first view; slots take words of ``slot_text``."""

    stream: Stream
    start: str
    slot_text: str
    past: list[PastTurn] = field(default_factory=list)
    stopped: bool = True
    held: int = 0
    listed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Renderer:
    """Turns the episodes of an environment into token ids, turn by turn.

    ``context``: one growing dialogue per episode, or a fresh prompt with the last ``history`` turns at every step. A prompt
    leaves room for a reply of ``max_new_tokens`` in ``context_length``.
    """

    env: TextEnv
    tokenizer: TextTokenizer
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
        """Tokens that may come before a reply."""
        return self.context_length - self.max_new_tokens

    def start_row(self, episode: Episode, stream: Stream) -> RowState:
        return RowState(stream, episode.view.observation, get_slot_text(self.env, episode))

    def render(self, row: RowState, episode: Episode) -> TurnInput | None:
        """Return the tokens of the row for this turn; None if a reply does not fit."""
        if episode.turn == 0 or self.context == "window" or not row.held:
            found = self._render_window(row, episode)
            if found is None and episode.turn == 0:
                raise self._make_too_long_error(row, episode)
            return found
        text = self.template.render_next(self.env, episode.view, self.env.goal(episode.task), row.listed)
        encoded = self.tokenizer.encode_next(text, stopped=row.stopped) if self.chat else self.tokenizer.encode(text)
        return TurnInput(encoded, False) if row.held + len(encoded) <= self.room else None

    def _render_window(self, row: RowState, episode: Episode) -> TurnInput | None:
        """Render the window; the oldest turns go first when it is too long."""
        shown = row.past[-self.history :] if self.history else []
        for skipped in range(len(shown) + 1):
            ids = self._encode_prompt(row, shown[skipped:], episode)
            if len(ids) <= self.room:
                return TurnInput(ids, True)
        return None

    def _encode_prompt(self, row: RowState, past: Sequence[PastTurn], episode: Episode) -> tuple[int, ...]:
        goal = self.env.goal(episode.task)
        text = self.template.render_window(self.env, row.start, past, episode.turn, episode.view, goal)
        system = self.template.system
        if self.chat:
            return self.tokenizer.encode_chat(text, system)
        return self.tokenizer.encode(text if system is None else f"{system}\n\n{text}")

    def _make_too_long_error(self, row: RowState, episode: Episode) -> DataError:
        length = len(self._encode_prompt(row, (), episode))
        return DataError(
            f"{episode.task.id}: the first prompt has {length} tokens, but the context of {self.context_length} "
            f"leaves room for {self.room} beside a reply of {self.max_new_tokens}"
        )

    def record_turn(self, row: RowState, episode: Episode, context: TurnInput, move: Move) -> None:
        """Remember a turn."""
        row.past.append(PastTurn(episode.view.observation, move.action))
        row.listed = episode.view.admissible
        row.stopped = move.finish == "stop"
        row.held = (0 if context.fresh else row.held) + len(context.ids) + len(move.token_ids)
