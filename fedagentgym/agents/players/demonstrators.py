"""Demonstrations: the expert's episodes in an agent's prompts and tokens, for supervised warm starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedagentgym.agents.protocols import Move
from fedagentgym.agents.text.rendering import RowState, TurnInput
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.scripted import NoisyExpert, check_noise

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import Episode, Expert, TextEnv
    from fedagentgym.envs.task import Task


@dataclass(frozen=True)
class Demonstrator:
    """An agent that plays the environment's expert and expresses it in the prompts and tokens of another agent.

    With ``noise``, that share of the actions is a random admissible one (``Move.learn`` is False), so that a model
    sees how the expert recovers. ``choose_expert`` may give tasks other experts than the environment's own.
    """

    agent: TokenAgent
    noise: float = 0.0
    choose_expert: Callable[[Task], Expert] | None = None

    def __post_init__(self) -> None:
        check_noise(self.noise)

    @property
    def name(self) -> str:
        return f"{self.agent.name} imitating"

    def play(self, env: TextEnv) -> DemonstratorPlayers:
        return DemonstratorPlayers(self.agent, env, self.noise, self.choose_expert)


class _ExpertRow(NamedTuple):
    seat: RowState
    expert: NoisyExpert


class DemonstratorPlayers:
    """``Players`` that play the environment's expert in an agent's tokens; no model is called."""

    def __init__(
        self, agent: TokenAgent, env: TextEnv, noise: float, choose_expert: Callable[[Task], Expert] | None = None
    ) -> None:
        self.agent, self.env, self.noise = agent, env, noise
        self._choose_expert = choose_expert or (lambda task: env.expert())
        self._renderer = agent.renderer(env)
        self._places: dict[int, _ExpertRow] = {}
        self._next = 0
        self._end = min(agent.tokenizer.stop_ids)

    def __enter__(self) -> DemonstratorPlayers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._places.clear()

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        first = self._next + 1
        for episode, stream in zip(episodes, streams, strict=True):
            self._next += 1
            seat = self._renderer.start_row(episode, stream)
            expert = NoisyExpert(self._choose_expert(episode.task), self.noise, seat.slot_text, seat.stream)
            self._places[self._next] = _ExpertRow(seat, expert)
        return list(range(first, self._next + 1))

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._places[row]

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        return [self._act(self._places[row], episode) for row, episode in zip(rows, episodes, strict=True)]

    def _act(self, place: _ExpertRow, episode: Episode) -> Move:
        seat = place.seat
        context = self._renderer.render(seat, episode)
        if context is None:
            return Move("", "", fresh=False, finish="context")
        action, at_random = place.expert.act(episode)
        move = self._make_move(context, action, learn=not at_random)
        self._renderer.record_turn(seat, episode, context, move)
        return move

    def _make_move(self, context: TurnInput, action: str, learn: bool) -> Move:
        reply = self.agent.template.render_reply(self.env, action)
        ids = self.agent.tokenizer.encode(reply)
        if not ids or ids[-1] not in self.agent.tokenizer.stop_ids:
            ids = (*ids, self._end)
        if len(ids) > self.agent.decoding.max_new_tokens:
            raise OptionError(
                f"the expert's reply {reply[:60]!r} has {len(ids)} tokens, more than max_new_tokens "
                f"{self.agent.decoding.max_new_tokens}: raise it"
            )
        parsed = self.agent.parse(self.env, reply)
        return Move(reply, parsed.action, parsed.format, context.ids, ids, fresh=context.fresh, learn=learn)
