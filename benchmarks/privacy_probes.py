"""The messages that a curious server receives under each method, and its inferences about the tasks of each client.

Every method runs for a few rounds on generated mathematics with a tiny agent. Clients have iid tasks, so only the tasks
themselves can distinguish members from outsiders. The server follows the protocol and keeps every message. Then it has to tell,
for each client, the client's own tasks from tasks that no client holds.

    parameters (fedagent, fedmoa, pubswap, fedpetuning)   `membership.py`: loss, gradient, audit
    scores (fedgrpo)              does a row of scores look as if the expert held the answer? (the server knows the answers)
    noisy histograms (dpsda-fl)   votes for the candidate that is nearest to the task

An area under the curve of 0.5 is guessing; the intervals are bootstraps over tasks. The experiment is one small world and a few
rounds. A probe that succeeds shows that messages reveal tasks; a probe that fails shows only that this attack failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.experts import score_by_replay
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.files import cache_folder
from fedagentgym.base.progress import show_progress
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import stream
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.exchange import Reply, Request
from fedagentgym.federation.message import KINDS, Message
from fedagentgym.federation.round import ServerConfig, run_rounds

if TYPE_CHECKING:
    from benchmarks.membership import AttackResult

ENV_ID = "fedagentgym/Math-v0"
ENV_OPTIONS = {"size": "tiny"}
SEED = 0
ADAPTER_CHANGES = {"agent": {"adapter": {"rank": 8, "alpha": 16.0}}, "learning": {"learning_rate": 2e-3}}


@dataclass(frozen=True)
class Probe:
    """A method that is probed: its settings, other changes that it needs, and the attack that its messages allow."""

    name: str
    algorithm: Mapping[str, Any]
    attack: str = "update"
    changes: Mapping[str, Any] = field(default_factory=dict)


PROBES = (
    Probe("fedagent", {"name": "fedagent", "local_steps": 2}),
    Probe(
        "fedmoa",
        {
            "name": "fedmoa",
            "local_steps": 2,
            "objectives": [["accuracy", "length"]],
            "hypergradient": "cosine",
        },
    ),
    Probe("fedpetuning, grpo", {"name": "fedpetuning", "local_steps": 2}, changes=ADAPTER_CHANGES),
    Probe(
        "pubswap", {"name": "pubswap", "local_steps": 4, "swap_period": 2, "public_tasks": 8}, changes=ADAPTER_CHANGES
    ),
    Probe(
        "fedpetuning, sft", {"name": "fedpetuning", "local_steps": 2, "objective": "sft"}, "imitation", ADAPTER_CHANGES
    ),
    Probe("fedgrpo, self_answer", {"name": "fedgrpo", "scorer": "self_answer"}, "scores"),
    Probe("fedgrpo, reward_model", {"name": "fedgrpo", "scorer": "reward_model"}, "scores"),
    *(
        Probe(f"dpsda-fl, epsilon {epsilon:g}", {"name": "dpsda-fl", "epsilon": epsilon, "secret": False}, "votes")
        for epsilon in (1e6, 8.0, 1.0)
    ),
)


@dataclass(frozen=True)
class Scale:
    """The size of the experiment: clients, tasks of each, tasks of no client, rounds, episodes of a task, the agent."""

    clients: int
    tasks: int
    outsiders: int
    rounds: int
    group: int
    warm_start: int
    candidates: int


FULL = Scale(clients=4, tasks=16, outsiders=64, rounds=3, group=6, warm_start=400, candidates=64)
QUICK = Scale(clients=2, tasks=8, outsiders=12, rounds=1, group=3, warm_start=60, candidates=24)


class RecordingBackend(SequentialBackend):
    """The sequential backend, which also records (round, client, request, reply)."""

    def __init__(self, application: Any) -> None:
        super().__init__(application)
        self.seen: list[tuple[int, int, str, Message, Message]] = []

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        replies = list(super().run(requests, deadline))
        for request, reply in ((a, b) for a, b in zip(requests, replies, strict=True) if b.status == "ok"):
            asked, answered = Message.decode(request.message), Message.decode(reply.message)
            self.seen.append((request.name.round, request.client, request.operation, asked, answered))
        return iter(replies)


def run(quick: bool) -> list[Measurement]:
    """The bytes that reach the server by kind, and the areas under the curve of its guesses."""
    scale = QUICK if quick else FULL
    agent = pretrain_probe_agent(scale)
    figures: list[Measurement] = []
    with show_progress("probing", total=len(PROBES)) as bar:
        for probe in PROBES:
            figures += run_probe(probe, scale, agent)
            bar.advance(method=probe.name)
    return figures


def pretrain_probe_agent(scale: Scale) -> dict[str, Any]:
    """An agent that solves some of the tasks; all probes start from it."""
    from fedagentgym.agents.settings import AgentSettings
    from fedagentgym.learning.pretrain import pretrain_tiny
    from fedagentgym.learning.settings import WarmStartSettings

    plain = {"name": "tiny", "decoding": {"temperature": 1.0, "max_new_tokens": 64}}
    settings = WarmStartSettings(
        steps=scale.warm_start, batch_size=32, learning_rate=3e-3, noise=0.0, context_length=256
    )
    folder = cache_folder("tiny", f"probes-{scale.warm_start}")
    made = pretrain_tiny(ENV_ID, ENV_OPTIONS, settings, agent=AgentSettings.load(plain), folder=folder)
    return {**plain, "model": str(made.folder)}


def run_probe(probe: Probe, scale: Scale, agent: Mapping[str, Any]) -> list[Measurement]:
    """All figures of one method."""
    runtime = Runtime(spec_of(probe, scale, agent))
    built = make_algorithm(runtime.spec, runtime)
    backend = RecordingBackend(built)
    rounds = 0 if probe.attack == "votes" else scale.rounds
    with tempfile.TemporaryDirectory() as scratch:
        plan = ServerConfig(Path(scratch), SEED, FederationSettings(rounds=rounds, quorum=1.0))
        commit = run_rounds(built, backend, plan).commit
    counts = commit.record["bytes_total"]["up"]
    figures = [Measurement(f"{probe.name}: sees {kind}", counts[kind] / 1e3, "kB") for kind in KINDS if counts[kind]]
    return [*figures, *ATTACKS[probe.attack](probe, runtime, backend, scale)]


def spec_of(probe: Probe, scale: Scale, agent: Mapping[str, Any]) -> ExperimentSpec:
    """The same small experiment for every method; roles that only some methods need do not change the clients' tasks."""
    held = scale.clients * scale.tasks
    plain: dict[str, Any] = {
        "seed": SEED,
        "rounds": scale.rounds,
        "env": {"id": ENV_ID, "options": ENV_OPTIONS},
        "agent": agent,
        "learning": {"tasks_per_step": scale.tasks, "group_size": scale.group, "learning_rate": 3e-4},
        "partition": {
            "clients": scale.clients,
            "tasks_per_client": scale.tasks,
            "roles": {"public": 32, "auxiliary": 32, "server": held},
            "server_overlap": 0.5,
        },
        "sampled_episodes": 0,
    }
    sizes: dict[str, dict[str, Any]] = {
        "scores": {"experts": scale.clients},
        "votes": {"candidates": scale.candidates, "synthetic_tasks": scale.candidates // 2, "iterations": 2},
    }
    own = {**probe.algorithm, **sizes.get(probe.attack, {})}
    return ExperimentSpec.load({**merge(plain, probe.changes), "algorithm": own})


# ---- attacks ------------------------------------------------------------------------------------------------------


def attack_update(probe: Probe, runtime: Runtime, backend: RecordingBackend, scale: Scale) -> Iterator[Measurement]:
    """The areas of the attacks on updates of parameters."""
    from benchmarks.membership import Attacker, collect_updates, evaluate_evidence

    members, outsiders = split_members(runtime, scale)
    updates = collect_updates([(number, client, asked, answer) for number, client, _, asked, answer in backend.seen])
    found = Attacker(runtime, members, outsiders).collect_evidence(updates, imitation=probe.attack == "imitation")
    for name, evidence in found.items():
        yield from to_measurements(f"{probe.name}: members by {name}", evaluate_evidence(evidence, SEED))


def attack_scores(probe: Probe, runtime: Runtime, backend: RecordingBackend, scale: Scale) -> Iterator[Measurement]:
    """The areas of two guesses which expert holds a question: by the truth of its scores, and by their form."""
    from benchmarks.membership import Evidence, evaluate_evidence

    truth: Evidence = {}
    form: Evidence = {}
    held = {client: set(runtime.client_split.client(client).tasks) for client in range(scale.clients)}
    for _, client, operation, asked, answer in backend.seen:
        if operation != "score":
            continue
        for question, row in zip(asked.text["questions"], answer.scores["scores"], strict=True):
            task = str(question["task"]["id"])
            right = [
                score_by_replay(runtime.env, runtime.client_split.pool[task], one) for one in question["candidates"]
            ]
            side = 0 if task in held[client] else 1
            agreed = float(np.mean(np.asarray(right) == row))
            truth.setdefault(client, ({}, {}))[side].setdefault(task, []).append(agreed)
            whole = float(np.all((row == 0.0) | (row == 1.0)))
            form.setdefault(client, ({}, {}))[side].setdefault(task, []).append(whole)
    yield from to_measurements(f"{probe.name}: holders by truth of scores", evaluate_evidence(truth, SEED))
    yield from to_measurements(f"{probe.name}: holders by form of scores", evaluate_evidence(form, SEED))


def attack_votes(probe: Probe, runtime: Runtime, backend: RecordingBackend, scale: Scale) -> Iterator[Measurement]:
    """The area of guesses by noisy histograms: the votes for the candidate that is nearest to a task, over all iterations."""
    from benchmarks.membership import Evidence, evaluate_evidence

    members, outsiders = split_members(runtime, scale)
    evidence: Evidence = {client: ({}, {}) for client in members}
    for _, client, _, asked, answer in backend.seen:
        wanted = [*members[client], *outsiders]
        places = find_nearest_candidates(runtime, wanted, [str(text) for text in asked.text["candidates"]])
        for task, place in zip(wanted, places.tolist(), strict=True):
            side = 0 if task in members[client] else 1
            evidence[client][side].setdefault(task, []).append(float(answer.scores["votes"][place]))
    yield from to_measurements(f"{probe.name}: members by votes", evaluate_evidence(evidence, SEED))


ATTACKS = {"update": attack_update, "imitation": attack_update, "scores": attack_scores, "votes": attack_votes}


def to_measurements(name: str, found: AttackResult | None) -> list[Measurement]:
    return [] if found is None else [Measurement(name, found.area, "area", f"{found.low:.2f} to {found.high:.2f}")]


def split_members(runtime: Runtime, scale: Scale) -> tuple[dict[int, list[str]], list[str]]:
    """Every client's own tasks, and tasks of the same pool that no client holds and no role has."""
    client_split = runtime.client_split
    members = {client: list(client_split.client(client).tasks) for client in range(scale.clients)}
    taken = {task for own in members.values() for task in own}
    for role in ("public", "auxiliary", "server"):
        taken.update(client_split.role(role).ids)
    free = [task for task in client_split.pool.ids if task not in taken]
    chosen = stream(SEED, "outsiders").choice(len(free), scale.outsiders)
    return members, [free[int(place)] for place in chosen]


def find_nearest_candidates(runtime: Runtime, tasks: Sequence[str], candidates: Sequence[str]) -> NDArray[np.int64]:
    """For each task, the number of the candidate for which a client with this task votes."""
    from fedagentgym.learning.forward import embed
    from fedagentgym.learning.state import get_trainable_policy

    policy = get_trainable_policy(runtime.load_weights(runtime.initial_weights))
    episodes = runtime.env.reset_many(list(tasks), [0] * len(tasks))
    texts = [episode.view.observation for episode in episodes]
    return np.asarray(np.argmax(embed(policy, texts) @ embed(policy, candidates).T, axis=1), dtype=np.int64)
