"""Verification of a method: its configuration is the one that the suite and its changes give, and its costs make sense.

A method's own code comes with a submission. It is loaded only if the verifier names it, and the settings in a result cannot make
the verifier load anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import read_text
from fedagentgym.base.parsing import parse_yaml
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.leaderboard.cells import format_config
from fedagentgym.leaderboard.claims import Folder, RefutedError
from fedagentgym.leaderboard.entries import describe_learner, describe_plugins
from fedagentgym.leaderboard.record import CONFIGS, CellRecord, CurvePoint, Spent
from fedagentgym.leaderboard.scenarios import FREE, check_budget, make_config
from fedagentgym.leaderboard.suite import Suite

MOST_ROUNDS = 1_000_000


def check_config(folder: Folder, record: CellRecord) -> RunConfig:
    """Check that the packed configuration is the one that the suite and the method's changes give.

    A method from a plugin is not loaded: then the suite's part is compared, and the rest is accepted.
    """
    method, place = folder.manifest.entry.method, f"{CONFIGS}/{record.key}.yaml"
    if method is None:
        raise RefutedError("schema", "an entry on the methods track has a method")
    text = read_text(folder.place / place)
    packed = parse_yaml(text, place)
    if not isinstance(packed, dict):
        raise RefutedError("configuration", f"{place}: a configuration is a mapping of settings")
    known = is_known(folder)
    changes, plugins = (method.changes, folder.plugins) if known else ((), ())
    try:
        made = make_config(folder.suite, record.scenario, changes, seed=record.seed, plugins=plugins)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"{place}: the method's changes cannot be applied: {error}") from None
    expected = made.model_copy(update={"plugins": _find_plugin_paths(packed, made.plugins)})
    wanted = expected.plain()
    for key in sorted({*wanted, *packed} - {"output"}):
        if (known or key not in (*FREE, "name")) and canonical_json(packed.get(key)) != canonical_json(wanted.get(key)):
            raise RefutedError("configuration", f"{place}: {key!r} is not what the suite and the method's changes say")
    if known:
        _check_known(record, place, text, expected, method.algorithm)
    if describe_learner(expected.agent) != folder.manifest.entry.agent:
        raise RefutedError("configuration", "the agent of the entry is not that of the suite")
    found = expected if known else _read_rounds(expected, packed, place)
    try:
        check_budget(folder.suite, found)
    except FedAgentGymError as error:
        raise RefutedError("budget", f"cell {record.key}: {error}") from None
    if found.federation.rounds > MOST_ROUNDS:
        raise RefutedError("configuration", f"{place}: federation.rounds is above {MOST_ROUNDS:,}")
    return found


def _find_plugin_paths(packed: Mapping[str, Any], plugins: Sequence[str]) -> tuple[str, ...]:
    """The verifier's plugins under the paths that they had where the method was run, which its digest depends on."""
    named = packed.get("plugins")
    if isinstance(named, list) and [Path(str(one)).name for one in named] == [Path(one).name for one in plugins]:
        return tuple(map(str, named))
    return tuple(plugins)


def _check_known(record: CellRecord, place: str, text: str, expected: RunConfig, algorithm: str) -> None:
    """What can be checked where the method's code is at hand: the whole file, its digest, and the method's name."""
    if text != format_config(expected):
        raise RefutedError("configuration", f"{place}: not written as this package writes it")
    if record.config != expected.digest:
        raise RefutedError(
            "configuration", f"cell {record.key}: the digest of its configuration is not that of {place}"
        )
    if algorithm != expected.algorithm["name"]:
        raise RefutedError("configuration", f"the method is called {algorithm!r}, it is {expected.algorithm['name']!r}")


def is_known(folder: Folder) -> bool:
    """Whether the method belongs to this package, or to plugins that the verifier has loaded."""
    method = folder.manifest.entry.method
    return method is not None and method.plugins == describe_plugins(folder.plugins)


def _read_rounds(expected: RunConfig, packed: Mapping[str, Any], place: str) -> RunConfig:
    """The suite's configuration with the rounds of a method that is not loaded."""
    rounds = (packed.get("federation") or {}).get("rounds")
    if not isinstance(rounds, int) or not 0 <= rounds <= MOST_ROUNDS:
        raise RefutedError("configuration", f"{place}: federation.rounds is no number of rounds")
    federation = expected.federation.model_copy(update={"rounds": rounds})
    return expected.model_copy(update={"federation": federation})


def check_spent(suite: Suite, record: CellRecord, points: Sequence[CurvePoint], config: RunConfig) -> None:
    """Check that the usage begins at nothing, grows, ends where the run ends, and stays within the budget."""
    where = f"cell {record.key}"
    if points[0].round == 0 and points[0].spent.episodes:
        raise RefutedError(
            "budget", f"{where}: {points[0].spent.episodes:,} episodes are said to be spent before round 1"
        )
    steps = [*(point.spent for point in points), record.spent]
    for before, after in pairwise(steps):
        if any(getattr(before, name) > getattr(after, name) for name in Spent.model_fields):
            raise RefutedError(
                "budget", f"{where}: less is said to be spent at round {after.rounds} than at round {before.rounds}"
            )
    if any(point.spent.rounds != point.round for point in points) or record.spent.rounds != config.federation.rounds:
        raise RefutedError("budget", f"{where}: the rounds that were spent are not those that were played")
    if points[-1].round == record.spent.rounds and points[-1].spent != record.spent:
        raise RefutedError("budget", f"{where}: its curve ends with other numbers than what it is said to have spent")
    budget = suite.budget
    taken = {"rounds": record.spent.rounds, "episodes": record.spent.episodes}
    taken["bytes"] = record.spent.bytes_down + record.spent.bytes_up
    for name, value in taken.items():
        most = getattr(budget, name)
        if most is not None and value > most:
            raise RefutedError("budget", f"{where}: {value:,} {name} were spent, the suite admits {most:,}")
    accounts = config.algorithm.get("privacy") is not None or {"epsilon", "delta"} <= set(config.algorithm)
    if record.epsilon is not None and not accounts:
        raise RefutedError("budget", f"{where}: an epsilon is written, but this method keeps nothing private")
    if record.epsilon is None and accounts and config.federation.rounds:
        raise RefutedError("budget", f"{where}: the privacy that this method spends is missing")
