"""Membership inference: whether a task is a client's own, inferred from updates of parameters.

The attacker knows the model before and after, the method, and a candidate task with its worked solution; it plays the candidate
itself where it needs episodes. Three scores, each greater for tasks that look like members:

    loss       how much more likely the worked solution has become
    gradient   cosine between the update and the step that the candidate alone would have caused
    audit the surrogate objective's gain on the episodes that the client played (which no server sees): an upper bound
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.algorithms.runtime import Runtime, copy_arrays
from fedagentgym.base.streams import Stream, derive, stream
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Message
from fedagentgym.learning import forward
from fedagentgym.learning.forward import find_choices
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.state import SiteState, get_trainable_policy
from fedagentgym.learning.supervised import collect_demonstrations
from fedagentgym.learning.trajectory import Group, PerTurn, Row, build_rows

Floats = NDArray[np.float64]
Arrays = Mapping[str, Any]
ATTACKER = -1
RESAMPLES = 1000


@dataclass(frozen=True)
class ClientUpdate:
    """One client's round as the server sees it: parameters sent and received, and the reported reward weights."""

    round: int
    client: int
    step: int
    before: Arrays
    after: Arrays
    objectives: Mapping[str, float] | None = None


@dataclass(frozen=True)
class AttackResult:
    """An area under the ROC curve with its bootstrap interval: 0.5 is guessing, 1 is certainty."""

    area: float
    low: float
    high: float


Evidence = dict[int, tuple[dict[str, list[float]], dict[str, list[float]]]]
"""For each client, the scores of its tasks and of tasks that no client holds, one score for every update."""


class Attacker:
    """An attacker with the public model, the environment, and a list of tasks of which some are members."""

    def __init__(self, runtime: Runtime, members: Mapping[int, Sequence[str]], outsiders: Sequence[str]) -> None:
        self.runtime, self.members, self.outsiders = runtime, members, list(outsiders)
        held = dict.fromkeys(task for own in members.values() for task in own)
        self.env = runtime.open_env(pool=runtime.client_split.pool.subset([*held, *self.outsiders]))
        shown = collect_demonstrations(
            runtime.agent, self.env, len(self.env.pool), seed=derive(runtime.seed, "attacker")
        )
        self._solutions = {trajectory.task: (trajectory,) for trajectory in shown}

    def collect_evidence(self, updates: Sequence[ClientUpdate], imitation: bool) -> dict[str, Evidence]:
        """All scores of all candidates against each update; a method that imitates has no episodes to audit."""
        found: dict[str, Evidence] = {name: {} for name in (("loss", "gradient") if imitation else ATTACKS)}
        for number in sorted({update.round for update in updates}):
            together = [update for update in updates if update.round == number]
            self._score_round(found, together, imitation)
        return found

    def _score_round(self, found: dict[str, Evidence], updates: Sequence[ClientUpdate], imitation: bool) -> None:
        """Score the updates of one round. Its clients started from the same parameters, whose episodes and likelihoods are
        shared."""
        start = updates[0]
        local = self._prepare_training(start.before)
        groups = {} if imitation else self._play_candidates(local, start.round)
        before = self._compute_likelihoods(local, self.env.pool.ids)
        for update in updates:
            local = self._prepare_training(start.before)
            candidates = [*self.members[update.client], *self.outsiders]
            moved = flatten_arrays(update.after) - flatten_arrays(update.before)
            steps = self._compute_steps(local, candidates, groups, update, imitation)
            _add_scores(
                found["gradient"], update.client, self.members, {k: cosine(steps[k], moved) for k in candidates}
            )
            own = {} if imitation else self._replay_client(update)
            local = self._prepare_training(update.after)
            after = self._compute_likelihoods(local, candidates)
            _add_scores(found["loss"], update.client, self.members, {k: after[k] - before[k] for k in candidates})
            if not imitation:
                audited = {**{k: groups[k] for k in self.outsiders}, **own}
                gains = {k: self._compute_gain(local, group, update) for k, group in audited.items()}
                _add_scores(found["audit"], update.client, self.members, gains)

    def _prepare_training(self, weights: Arrays) -> LocalTraining:
        return self.runtime.get_site(ATTACKER, env=self.env).open_learner(SiteState(copy_arrays(weights)))

    def _play_candidates(self, local: LocalTraining, number: int) -> dict[str, Group]:
        """The attacker's own episodes of every candidate, by the policy that was sent."""
        ids = self.env.pool.ids
        groups = local.collect_groups(derive(self.runtime.seed, "attacker", number), tasks=ids)
        return dict(zip(ids, groups, strict=True))

    def _replay_client(self, update: ClientUpdate) -> dict[str, Group]:
        """The client's first step, played again: the random streams follow from the run's seed, so its episodes are the same."""
        site = self.runtime.get_site(update.client)
        local = site.open_learner(SiteState(copy_arrays(update.before), step=update.step))
        context = ClientContext(update.client, update.round, self.runtime.seed, update.client, site)
        return {group[0].task: group for group in local.collect_groups(context.derive("train"))}

    def _compute_likelihoods(self, local: LocalTraining, tasks: Sequence[str]) -> dict[str, float]:
        """Mean log-prob per token of the worked solutions under the present parameters."""
        scored = local.recompute_logprobs([self._solutions[task] for task in tasks])
        return {task: float(np.mean(_collect_logprobs(group)[0])) for task, group in zip(tasks, scored, strict=True)}

    def _compute_steps(
        self,
        local: LocalTraining,
        candidates: Sequence[str],
        groups: Mapping[str, Group],
        update: ClientUpdate,
        imitation: bool,
    ) -> dict[str, Floats]:
        """The direction in which each candidate alone would have moved the parameters."""
        result = {}
        for task in candidates:
            group = self._solutions[task] if imitation else groups[task]
            given = _make_unit_advantages(group) if imitation else self._compute_advantages(local, group, update)
            result[task] = self._compute_gradient(local, build_rows([group], [given]))
        return result

    def _compute_advantages(self, local: LocalTraining, group: Group, update: ClientUpdate) -> PerTurn:
        return local.compute_advantages(group, update.objectives)

    def _compute_gradient(self, local: LocalTraining, rows: Sequence[Row]) -> Floats:
        """The gradient of the sum of advantage times log-prob."""
        policy = get_trainable_policy(local.agent)
        parameters = policy.parameters()
        live = [row for row in rows if row.active and len(find_choices(row))]
        if not live:
            return np.zeros(sum(value.numel() for value in parameters.values()))
        scores = forward.compute_logprobs(policy.model, live, policy.device, self.runtime.agent.decoding.temperature)
        advantages = torch.from_numpy(np.concatenate([row.advantages for row in live])).to(scores.logprobs)
        gradients = torch.autograd.grad((advantages * scores.logprobs).sum(), list(parameters.values()))
        return flatten_arrays({name: value.cpu().numpy() for name, value in zip(parameters, gradients, strict=True)})

    def _compute_gain(self, local: LocalTraining, group: Group, update: ClientUpdate) -> float:
        """Return how far an update followed these episodes' advantages: the sum of advantage times change of log-prob."""
        given = self._compute_advantages(local, group, update)
        (after,) = local.recompute_logprobs([group])
        rows = zip(build_rows([group], [given]), build_rows([after], [given]), strict=True)
        return float(sum(float(old.advantages @ (new.behaviour - old.behaviour)) for old, new in rows))


ATTACKS = ("loss", "gradient", "audit")


def collect_updates(seen: Sequence[tuple[int, int, Message, Message]]) -> list[ClientUpdate]:
    """Return what each client was first sent and last returned in each round, from (round, client, request, reply) in order."""
    sent: dict[tuple[int, int], Message] = {}
    back: dict[tuple[int, int], Message] = {}
    for number, client, request, reply in seen:
        if request.weights:
            sent.setdefault((number, client), request)
        if reply.weights:
            back[number, client] = reply
    return [
        ClientUpdate(
            number,
            client,
            int(sent[number, client].control["step"]),
            sent[number, client].weights,
            reply.weights,
            reply.control.get("objectives"),
        )
        for (number, client), reply in sorted(back.items())
    ]


def evaluate_evidence(evidence: Evidence, seed: int) -> AttackResult | None:
    """The mean over clients of the area under the curve, with every task's scores averaged over updates; None if no client has
    tasks on both sides."""
    sides = [
        (np.array([np.mean(row) for row in inside.values()]), np.array([np.mean(row) for row in outside.values()]))
        for inside, outside in evidence.values()
        if inside and outside
    ]
    return bootstrap_auc(sides, seed) if sides else None


def bootstrap_auc(sides: Sequence[tuple[Floats, Floats]], seed: int) -> AttackResult:
    """The mean area over clients; for the interval, every client's members and other tasks are redrawn separately."""
    draws = stream(seed, "membership")
    whole = np.mean([compute_auc(inside, outside) for inside, outside in sides])
    redrawn = np.mean([_resample_auc(inside, outside, draws) for inside, outside in sides], axis=0)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return AttackResult(float(whole), float(low), float(high))


def _resample_auc(inside: Floats, outside: Floats, draws: Stream) -> Floats:
    """The area of every resample: the wins of all pairs, averaged with the numbers of times that both tasks were drawn."""
    wins = compare_pairs(inside, outside)
    counts = []
    for size in wins.shape:
        drawn = np.asarray(draws.integers(size, RESAMPLES * size)).reshape(RESAMPLES, size)
        counts.append(np.stack([np.bincount(row, minlength=size) for row in drawn]).astype(np.float64))
    return np.asarray(np.einsum("ri,ij,rj->r", counts[0], wins, counts[1], optimize=True) / wins.size, dtype=np.float64)


def compare_pairs(inside: Floats, outside: Floats) -> Floats:
    """1 where a member scores higher than an outsider, one half for a tie."""
    return np.asarray((inside[:, None] > outside) + 0.5 * (inside[:, None] == outside), dtype=np.float64)


def compute_auc(inside: Floats, outside: Floats) -> float:
    """The probability that a member scores higher than an outsider; ties count half.

    >>> compute_auc(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    0.625
    """
    return float(compare_pairs(inside, outside).mean())


def cosine(first: Floats, second: Floats) -> float:
    """The cosine between two vectors; 0 if either is zero."""
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / size if size > 0 else 0.0


def flatten_arrays(arrays: Arrays) -> Floats:
    """All parameters in one vector, by name."""
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in sorted(arrays)])


def _make_unit_advantages(group: Group) -> PerTurn:
    return tuple(np.ones(len(trajectory.turns)) for trajectory in group)


def _collect_logprobs(group: Group) -> list[Floats]:
    """The log-probs of each trajectory's own tokens."""
    return [
        np.concatenate([segment.logprobs[segment.mask].astype(np.float64) for segment in trajectory.segments])
        for trajectory in group
    ]


def _add_scores(
    evidence: Evidence, client: int, members: Mapping[int, Sequence[str]], scores: Mapping[str, float]
) -> None:
    inside, outside = evidence.setdefault(client, ({}, {}))
    for task, value in scores.items():
        (inside if task in members[client] else outside).setdefault(task, []).append(value)
