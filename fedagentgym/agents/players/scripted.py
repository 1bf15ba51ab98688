"""Agents without a model: the environment's expert, with or without noise, and an agent that takes random actions.

A `Demonstrator` plays the expert's episodes in the prompts and tokens of another agent, for supervised warm starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from fedagentgym.agents.protocols import Move, RowPlayers
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.envs.scripted import NoisyExpert, check_noise, get_slot_text, open_expert

if TYPE_CHECKING:
    from fedagentgym.agents.agent import RowState, TokenAgent
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.protocols import Expert
    from fedagentgym.envs.tasks import Task
    from fedagentgym.envs.view import Episode


class ScriptedPlayers(RowPlayers[NoisyExpert]):
    """`Players` of a `ScriptedAgent`."""

    def __init__(self, env: TextEnv, *, expert: bool, noise: float) -> None:
        super().__init__(env)
        self.expert, self.noise = expert, noise

    def start_row(self, episode: Episode, stream: Stream) -> NoisyExpert:
        expert = open_expert(self.env) if self.expert else None
        return NoisyExpert(expert, self.noise, get_slot_text(self.env, episode), stream)

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        actions = [self._rows[row].act(episode).action for row, episode in zip(rows, episodes, strict=True)]
        return [Move(action, action) for action in actions]


class ScriptedAgent:
    """The environment's expert, with a share `noise` of random actions, or an agent that takes only random actions."""

    def __init__(self, name: str, *, expert: bool, noise: float = 0.0) -> None:
        check_noise(noise)
        self.name, self.expert, self.noise = name, expert, noise

    def play(self, env: TextEnv) -> ScriptedPlayers:
        return ScriptedPlayers(env, expert=self.expert, noise=self.noise)

    def close(self) -> None:
        """Do nothing, since the agent holds nothing."""


class ExpertOptions(Settings):
    """Options of the scripted expert."""

    noise: float = Field(default=0.0, ge=0.0, le=1.0, description="share of the actions that are random instead")


def make_expert_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make an agent that plays the environment's expert, with the option `noise`."""
    options = ExpertOptions.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=True, noise=options.noise)


def make_random_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> ScriptedAgent:
    """Make an agent that takes random actions."""
    Settings.load(settings.options, "agent.options")
    return ScriptedAgent(settings.name, expert=False)


@dataclass(frozen=True)
class Demonstrator:
    """Plays the environment's expert, and writes its episodes in the prompts and tokens of another agent.

    A share `noise` of the actions is random (with `Move.learn` False), so that a model sees how the expert recovers.
    `choose_expert` may return another expert than the environment's own for a task.
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
        return DemonstratorPlayers(self, env)

    def close(self) -> None:
        """Do nothing, since the agent belongs to the caller."""


class _ExpertRow(NamedTuple):
    row_state: RowState
    expert: NoisyExpert


class DemonstratorPlayers(RowPlayers[_ExpertRow]):
    """`Players` of a `Demonstrator`. No model is called."""

    def __init__(self, demonstrator: Demonstrator, env: TextEnv) -> None:
        super().__init__(env)
        self.agent, self.noise = demonstrator.agent, demonstrator.noise
        self._choose_expert = demonstrator.choose_expert or (lambda task: open_expert(env))
        self._renderer = self.agent.renderer(env)

    def start_row(self, episode: Episode, stream: Stream) -> _ExpertRow:
        row_state = self._renderer.start_row(episode, stream)
        expert = NoisyExpert(self._choose_expert(episode.task), self.noise, row_state.slot_text, row_state.stream)
        return _ExpertRow(row_state, expert)

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        moves = []
        for row, episode in zip(rows, episodes, strict=True):
            row_state, expert = self._rows[row]
            context = self._renderer.render(row_state, episode)
            if context is None:
                moves.append(Move("", "", fresh=False, finish="context"))
                continue
            action, at_random = expert.act(episode)
            reply = self.agent.template.render_reply(self.env, action)
            ids = self.agent.tokenizer.end_reply(self.agent.tokenizer.encode(reply))
            most = self.agent.decoding.max_new_tokens
            if len(ids) > most:
                limit = f"agent.decoding.max_new_tokens {most}"
                raise OptionError(
                    f"the expert's reply {reply[:60]!r} has {len(ids)} tokens, more than {limit}: raise this limit"
                )
            action, form = self.agent.parse(self.env, reply)
            move = Move(reply, action, form, context.ids, ids, fresh=context.fresh, learn=not at_random)
            self._renderer.record_turn(row_state, episode, context, move)
            moves.append(move)
        return moves
