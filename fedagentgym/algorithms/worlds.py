"""Evaluation in the clients' own environments: held-out tasks, played in each client's variant by the client's policy.

All clients play the same tasks under the same seeds as in the unchanged environment; only the world and the policy differ.
Clients with equal variants and one policy are played once. Without variants every world is the unchanged environment, and every
client's policy is also measured on its own mixture of categories. Worlds of *newcomers* are drawn from the same variant and
belong to no client; the exported policy plays in them, as in the unchanged environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.algorithms.reports import PERCENTILE, count_categories, measure_mixture
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.statistics import mean
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import read_options
from fedagentgym.envs.variants import Plain, draw_newcomers
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.message import Message
from fedagentgym.learning.evaluation import evaluate, format_episodes
from fedagentgym.learning.settings import OWN_WORLD, EvaluationSettings
from fedagentgym.learning.trajectory import Group
from fedagentgym.partitions.client_split import ClientSplit

ReadKept = Callable[[int], Message]
"""Reads a client's state, by the client's number."""


@dataclass(frozen=True)
class World:
    """A world with its variant and the clients that live in it; a newcomer's world has none."""

    name: str
    clients: tuple[int, ...]
    variant: Plain | None
    client_split: ClientSplit

    def describe(self) -> dict[str, Any]:
        """The fields of an episode's line by which it can be played again."""
        options = read_options(self.client_split.record.env_id, self.client_split.options).portable
        return {"set": f"{OWN_WORLD}-{self.name}", "clients": list(self.clients), "options": options, **self._keywords}

    def open_env(self, split: str) -> TextEnv:
        """The environment over all tasks of an evaluation split."""
        return open_env(
            self.client_split.record.env_id, **{**self.client_split.options, "split": split, **self._keywords}
        )

    @property
    def _keywords(self) -> dict[str, Any]:
        return {} if self.variant is None else {"variant": dict(self.variant)}


PlayedWorld = tuple[World, float, Mapping[str, float]]
"""A world, the success in it, and the success in every category there."""


def list_worlds(client_split: ClientSplit, *, apart: bool, newcomers: int = 0) -> tuple[World, ...]:
    """The worlds of all clients, and of newcomers. Clients with equal variants share one, unless they are to stay `apart`."""
    variants = client_split.record.variants
    grouped: dict[str, list[int]] = {}
    for client in range(len(client_split)):
        key = str(client) if apart else canonical_json(variants[client])
        grouped.setdefault(key, []).append(client)
    own = [World(str(members[0]), tuple(members), variants[members[0]], client_split) for members in grouped.values()]
    if not newcomers:
        return tuple(own)
    record, cls = client_split.record, client_split.env_class
    drawn = draw_newcomers(cls.id, cls.variants, record.variant, record.seed, [*variants], newcomers)
    fresh = (World(f"newcomer-{number}", (), variant, client_split) for number, variant in enumerate(drawn))
    return (*own, *fresh)


def play_worlds(
    algorithm: BaseAlgorithm[Any],
    state: ServerState,
    read_kept: ReadKept,
    settings: EvaluationSettings,
    seed: int,
    about: Mapping[str, Any],
) -> tuple[str, dict[str, Any]]:
    """Play the held-out tasks in every world, one after the other; returns the episodes as lines, and the success."""
    runtime, lines, success = algorithm.runtime, list[str](), list[PlayedWorld]()
    for world in list_worlds(runtime.client_split, apart=algorithm.card.keeps_policies, newcomers=settings.newcomers):
        if algorithm.card.keeps_policies and world.clients:
            (client,) = world.clients
            player = algorithm.load_client(state, client, read_kept(client))
        else:
            player = runtime.load_weights(algorithm.policy_parameters(state))
        env = world.open_env(settings.split)
        found = evaluate(player, env, settings, seed=seed)
        success.append((world, found.overall["success"].mean, measure_categories(found.groups)))
        lines.append(format_episodes(found.groups, player, env, {**about, **world.describe()}))
    return "".join(lines), summarise_worlds(success)


def measure_categories(groups: Sequence[Group]) -> dict[str, float]:
    """The success in every category."""
    solved: dict[str, list[float]] = {}
    for group in groups:
        solved.setdefault(group[0].category, []).extend(float(one.success) for one in group)
    return {category: mean(each) for category, each in solved.items()}


def summarise_worlds(found: Sequence[PlayedWorld]) -> dict[str, Any]:
    """The success of every client in its own world: mean, worst, 10th percentile, and the mean over newcomers' worlds. Where no
    client has a variant, also that in its own mixture of categories."""
    by_client = {client: success for world, success, _ in found for client in world.clients}
    own = [by_client[client] for client in sorted(by_client)]
    worst = int(np.argmin(own))
    fresh = [success for world, success, _ in found if not world.clients]
    mixed = _measure_mixtures(found)
    return {
        "clients": len(own),
        "mean": mean(own),
        "worst": own[worst],
        "worst_client": sorted(by_client)[worst],
        f"p{PERCENTILE}": float(np.percentile(own, PERCENTILE)),
        "by_client": own,
        **({"newcomers": mean(fresh)} if fresh else {}),
        **({"mixture": mean(mixed), "mixture_worst": min(mixed)} if mixed else {}),
    }


def _measure_mixtures(found: Sequence[PlayedWorld]) -> list[float]:
    """The success of each client's policy in its own mixture, if a category of it was played; empty if clients have variants."""
    client_split = found[0][0].client_split
    if client_split.record.variant is not None:
        return []
    names, counts = client_split.table.names, count_categories(client_split)
    played = [(client, categories) for world, _, categories in found for client in world.clients]
    measured = [
        measure_mixture(dict(zip(names, counts[client].tolist(), strict=True)), categories)
        for client, categories in sorted(played, key=lambda one: one[0])
    ]
    return [success for success, covered in measured if covered]


def measure_matrix(
    algorithm: BaseAlgorithm[Any], state: ServerState, read_kept: ReadKept, settings: EvaluationSettings, seed: int
) -> list[list[float]]:
    """The success of every client's policy (columns) in every client's world (rows)."""
    runtime = algorithm.runtime
    clients = range(len(runtime.client_split))
    kept = [read_kept(client) for client in clients]
    rows: dict[int, list[float]] = {}
    for world in list_worlds(runtime.client_split, apart=False):
        env = world.open_env(settings.split)
        row = []
        for client in clients:
            player = algorithm.load_client(state, client, kept[client])
            row.append(evaluate(player, env, settings, seed=seed).overall["success"].mean)
        rows |= dict.fromkeys(world.clients, row)
    return [rows[client] for client in clients]
