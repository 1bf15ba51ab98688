"""Swarm sampling: clients learn from questions of their own and from others' questions with their answers (arXiv:2509.08721).

    server   draw public tasks for every client separately
    server   for every client: leave out others' questions whose answers all earned the same; draw `external` of the rest
    server   draw `local` of the client's own questions
    client   put the others' answers into its own tokens, with their log-probs under its own policy
    client   one GRPO step on the own questions and those of others

The paper calls it SAPO, a name that policy losses use for something else (`learning.loss: sapo`). In the paper, nodes have
questions of their own and no server; here the questions are the run's public tasks, and the server sends them on and grades them.
The paper draws uniformly, and found half own and half external answers best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.card import Scale
from fedagentgym.algorithms.sharing import Answers, Chosen, Sharing, SharingSettings
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream
from fedagentgym.learning.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining


class SwarmSettings(SharingSettings):
    """`algorithm: {name: swarm, public_tasks: 8, local: 4, external: 4}`."""

    name: Literal["swarm"] = "swarm"
    local: int = Field(default=4, ge=0, description="own questions that a client learns from in a public step, at most")
    external: int = Field(default=4, ge=0, description="questions of others that it learns from, at most")


class Swarm(Sharing[SwarmSettings]):
    """Every client learns from some of its own questions and some of the others'."""

    settings_class: ClassVar[type[Settings]] = SwarmSettings

    def draw_tasks(self, clients: Sequence[int], draw: Stream) -> dict[int, list[str]]:
        """Draw tasks for every client separately."""
        return {client: self.draw_public_tasks(draw) for client in clients}

    def choose(
        self, answers: Answers, memory: dict[str, Any], draw: Stream
    ) -> tuple[dict[int, list[Chosen]], dict[int, dict[str, Any]]]:
        """Choose for every client others' questions whose answers differ in reward, and some of its own questions."""
        chosen: dict[int, list[Chosen]] = {}
        controls: dict[int, dict[str, Any]] = {}
        for client, own in answers.items():
            teaching = [
                (author, group)
                for author, theirs in answers.items()
                if author != client
                for group in theirs
                if len({one.graded.reward for one in group}) > 1
            ]
            drawn = draw.choice(len(teaching), min(self.settings.external, len(teaching)))
            taken = [teaching[int(place)] for place in drawn]
            chosen[client] = [
                Chosen(number, author, one) for number, (author, group) in enumerate(taken) for one in group
            ]
            used = draw.choice(len(own), min(self.settings.local, len(own)))
            controls[client] = {"local": sorted(int(place) for place in used)}
        return chosen, controls

    def learn_from(
        self,
        local: LocalTraining,
        own: Sequence[Group],
        others: Sequence[tuple[Trajectory, Mapping[str, Any]]],
        control: Mapping[str, Any],
    ) -> dict[str, float]:
        """One step, in which each question has the baseline of its own answers."""
        foreign: dict[int, list[Trajectory]] = {}
        for episode, plain in others:
            foreign.setdefault(int(plain["group"]), []).append(episode)
        read = local.recompute_logprobs([tuple(group) for _, group in sorted(foreign.items())])
        return local.update([*(own[int(place)] for place in control["local"]), *read]).metrics

    @classmethod
    def count_shared(cls, settings: SwarmSettings, scale: Scale) -> int:
        return settings.external * scale.learning.group_size if scale.asked > 1 else 0
