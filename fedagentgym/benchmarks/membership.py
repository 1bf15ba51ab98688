"""Was this task among a client's own? What a curious server can tell from an update of parameters.

The attacker knows the model before and after, the method, and a candidate task with its worked solution; it plays the candidate
itself where it needs episodes. Three scores, each greater for tasks that look like members:

    loss       how much more likely the worked solution has become
    gradient   cosine between the update and the step that the candidate alone would have caused
    audit      the surrogate objective's gain on the very episodes that the client played (which no server sees): an upper end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.algorithms.support.runtime import Runtime
from fedagentgym.algorithms.support.state_arrays import copy_arrays
from fedagentgym.base.streams import Stream, derive, stream
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import ClientContext
from fedagentgym.learning import forward
from fedagentgym.learning.advantages import group_advantages
from fedagentgym.learning.local import LocalTraining, SiteState, trainable_policy
from fedagentgym.learning.objectives import PerTurn
from fedagentgym.learning.rows import Row, loss_rows
from fedagentgym.learning.trajectory import Group
from fedagentgym.learning.warm_start import demonstrations

Floats = NDArray[np.float64]
Arrays = Mapping[str, Any]
ATTACKER = -1
RESAMPLES = 1000


@dataclass(frozen=True)
class Update:
    """One client's round as the server saw it: parameters sent and received, and the reward weights that were told."""

    round: int
    client: int
    step: int
    before: Arrays
    after: Arrays
    objectives: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Guess:
    """An area under the curve with its bootstrap interval: 0.5 is a coin, 1 is certainty."""

    area: float
    low: float
    high: float


Evidence = dict[int, tuple[dict[str, list[float]], dict[str, list[float]]]]
"""For each client, the scores of its own tasks and of those that nobody holds, one for every update."""


class Attacker:
    """Somebody with the public model, the world, and a list of tasks of which some are members."""

    def __init__(self, runtime: Runtime, members: Mapping[int, Sequence[str]], outsiders: Sequence[str]) -> None:
        self.runtime, self.members, self.outsiders = runtime, members, list(outsiders)
        held = dict.fromkeys(task for own in members.values() for task in own)
        self.env = runtime.open_env(pool=runtime.client_split.pool.subset([*held, *self.outsiders]))
        shown = demonstrations(runtime.agent, self.env, len(self.env.pool), seed=derive(runtime.seed, "attacker"))
        self._solutions = {trajectory.task: (trajectory,) for trajectory in shown}

    def evidence(self, updates: Sequence[Update], imitation: bool) -> dict[str, Evidence]:
        """All scores of all candidates against each update; a method that imitates has no episodes to audit."""
        found: dict[str, Evidence] = {name: {} for name in (("loss", "gradient") if imitation else ATTACKS)}
        for number in sorted({update.round for update in updates}):
            together = [update for update in updates if update.round == number]
            self._round(found, together, imitation)
        return found

    def _round(self, found: dict[str, Evidence], updates: Sequence[Update], imitation: bool) -> None:
        """The clients of one round started from the same parameters: what depends on those alone is computed once."""
        start = updates[0]
        local = self._seated(start.before)
        groups = {} if imitation else self._played(local, start.round)
        before = self._likelihoods(local, self.env.pool.ids)
        for update in updates:
            local = self._seated(start.before)
            candidates = [*self.members[update.client], *self.outsiders]
            moved = flat(update.after) - flat(update.before)
            steps = self._steps(local, candidates, groups, update, imitation)
            _note(found["gradient"], update.client, self.members, {k: cosine(steps[k], moved) for k in candidates})
            own = {} if imitation else self._client_groups(update)
            local = self._seated(update.after)
            after = self._likelihoods(local, candidates)
            _note(found["loss"], update.client, self.members, {k: after[k] - before[k] for k in candidates})
            if not imitation:
                audited = {**{k: groups[k] for k in self.outsiders}, **own}
                gains = {k: self._gain(local, group, update) for k, group in audited.items()}
                _note(found["audit"], update.client, self.members, gains)

    def _seated(self, weights: Arrays) -> LocalTraining:
        return self.runtime.training(self.runtime.seat(ATTACKER, self.env), SiteState(copy_arrays(weights)))

    def _played(self, local: LocalTraining, number: int) -> dict[str, Group]:
        """The attacker's own episodes of every candidate, by the policy that was sent."""
        ids = self.env.pool.ids
        groups = local.collect(derive(self.runtime.seed, "attacker", number), tasks=ids)
        return dict(zip(ids, groups, strict=True))

    def _client_groups(self, update: Update) -> dict[str, Group]:
        """The client's first step as it really was: its streams are the run's, so its episodes can be played again."""
        site = self.runtime.site(update.client)
        local = self.runtime.training(site, SiteState(copy_arrays(update.before), step=update.step))
        context = ClientContext(update.client, update.round, self.runtime.seed, update.client, site)
        return {group[0].task: group for group in local.collect(context.derive("train"))}

    def _likelihoods(self, local: LocalTraining, tasks: Sequence[str]) -> dict[str, float]:
        """Mean log-prob per token of the worked solutions under the present parameters."""
        scored = local.rescored([self._solutions[task] for task in tasks])
        return {task: float(np.mean(_own(group)[0])) for task, group in zip(tasks, scored, strict=True)}

    def _steps(
        self,
        local: LocalTraining,
        candidates: Sequence[str],
        groups: Mapping[str, Group],
        update: Update,
        imitation: bool,
    ) -> dict[str, Floats]:
        """The direction in which each candidate alone would have moved the parameters."""
        result = {}
        for task in candidates:
            group = self._solutions[task] if imitation else groups[task]
            given = _ones(group) if imitation else self._advantages(local, group, update)
            result[task] = self._ascent(loss_rows([group], [given]))
        return result

    def _advantages(self, local: LocalTraining, group: Group, update: Update) -> PerTurn:
        return group_advantages(group, local.rewards_of(group, update.objectives), local.settings.advantage)

    def _ascent(self, rows: Sequence[Row]) -> Floats:
        """The gradient of the sum of advantage times log-prob."""
        policy = trainable_policy(self.runtime.agent)
        parameters = policy.parameters()
        live = [row for row in rows if len(row.own) and row.active]
        if not live:
            return np.zeros(sum(value.numel() for value in parameters.values()))
        scores = forward.score(policy.model, live, policy.device, self.runtime.agent.decoding.temperature)
        advantages = torch.from_numpy(np.concatenate([row.advantages for row in live])).to(scores.logprobs)
        gradients = torch.autograd.grad((advantages * scores.logprobs).sum(), list(parameters.values()))
        return flat({name: value.cpu().numpy() for name, value in zip(parameters, gradients, strict=True)})

    def _gain(self, local: LocalTraining, group: Group, update: Update) -> float:
        """How much of what these episodes' advantages ask for has happened: the sum of advantage times change of log-prob."""
        given = self._advantages(local, group, update)
        (after,) = local.rescored([group])
        rows = zip(loss_rows([group], [given]), loss_rows([after], [given]), strict=True)
        return float(sum(float(old.advantages @ (new.behaviour - old.behaviour)) for old, new in rows))


ATTACKS = ("loss", "gradient", "audit")


def updates_of(seen: Sequence[tuple[int, int, Message, Message]]) -> list[Update]:
    """What each client was sent first and gave back last in each round, from (round, client, request, reply) in order."""
    sent: dict[tuple[int, int], Message] = {}
    back: dict[tuple[int, int], Message] = {}
    for number, client, request, reply in seen:
        if request.weights:
            sent.setdefault((number, client), request)
        if reply.weights:
            back[number, client] = reply
    return [
        Update(
            number,
            client,
            int(sent[number, client].control["step"]),
            sent[number, client].weights,
            reply.weights,
            reply.control.get("objectives"),
        )
        for (number, client), reply in sorted(back.items())
    ]


def judged(evidence: Evidence, seed: int) -> Guess | None:
    """The mean over clients of the area under the curve, every task's score averaged over the updates that concern it; nothing
    where no client has tasks on both sides."""
    sides = [
        (np.array([np.mean(row) for row in inside.values()]), np.array([np.mean(row) for row in outside.values()]))
        for inside, outside in evidence.values()
        if inside and outside
    ]
    return guess(sides, seed) if sides else None


def guess(sides: Sequence[tuple[Floats, Floats]], seed: int) -> Guess:
    """Mean area over clients; the interval redraws every client's tasks, members and others apart."""
    draws = stream(seed, "membership")
    whole = np.mean([area(inside, outside) for inside, outside in sides])
    redrawn = np.mean([_redrawn(inside, outside, draws) for inside, outside in sides], axis=0)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return Guess(float(whole), float(low), float(high))


def _redrawn(inside: Floats, outside: Floats, draws: Stream) -> Floats:
    """The area of every resample: who wins each pair, averaged over pairs by how often both were drawn."""
    wins = won(inside, outside)
    counts = []
    for size in wins.shape:
        drawn = np.asarray(draws.integers(size, RESAMPLES * size)).reshape(RESAMPLES, size)
        counts.append(np.stack([np.bincount(row, minlength=size) for row in drawn]).astype(np.float64))
    return np.asarray(np.einsum("ri,ij,rj->r", counts[0], wins, counts[1], optimize=True) / wins.size, dtype=np.float64)


def won(inside: Floats, outside: Floats) -> Floats:
    """1 where a member scores higher than an outsider, one half for a tie."""
    return np.asarray((inside[:, None] > outside) + 0.5 * (inside[:, None] == outside), dtype=np.float64)


def area(inside: Floats, outside: Floats) -> float:
    """The probability that a member scores higher than an outsider; ties count half.

    >>> area(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    0.625
    """
    return float(won(inside, outside).mean())


def cosine(first: Floats, second: Floats) -> float:
    """0 if either has no direction."""
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / size if size > 0 else 0.0


def flat(arrays: Arrays) -> Floats:
    """All parameters in one vector, by name."""
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in sorted(arrays)])


def _ones(group: Group) -> PerTurn:
    return tuple(np.ones(len(trajectory.turns)) for trajectory in group)


def _own(group: Group) -> list[Floats]:
    """The log-probs of each trajectory's own tokens."""
    return [
        np.concatenate([segment.logprobs[segment.mask].astype(np.float64) for segment in trajectory.segments])
        for trajectory in group
    ]


def _note(evidence: Evidence, client: int, members: Mapping[int, Sequence[str]], scores: Mapping[str, float]) -> None:
    inside, outside = evidence.setdefault(client, ({}, {}))
    for task, value in scores.items():
        (inside if task in members[client] else outside).setdefault(task, []).append(value)
