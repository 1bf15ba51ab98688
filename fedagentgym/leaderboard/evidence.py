"""Verification of the cells of a packed result: complete, every episode replayed, every configuration the suite's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.files import read_json_line_texts, read_text
from fedagentgym.base.streams import derive
from fedagentgym.base.yaml_text import parse_yaml
from fedagentgym.envs import open_env
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.leaderboard.aggregate import CellData, choose_round, make_point
from fedagentgym.leaderboard.clients import describe_clients
from fedagentgym.leaderboard.entries import describe_learner, describe_plugins
from fedagentgym.leaderboard.pack import group_by_task
from fedagentgym.leaderboard.record import (
    CONFIGS,
    EPISODES,
    SELECTION,
    CellRecord,
    CurvePoint,
    Manifest,
    Spent,
    read_curves,
)
from fedagentgym.leaderboard.replay import (
    Expected,
    Speaker,
    describe_speaker,
    find_difference,
    find_gap,
    find_odd_line,
    is_cut_short,
)
from fedagentgym.leaderboard.scenarios import FREE, OpenedScenario, make_config
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.trajectory import Trajectory, from_plain

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

Line = tuple[Mapping[str, Any], Trajectory, str]


class RefutedError(DataError):
    """A claim of a result is false: `claim` names it, the text gives the place."""

    def __init__(self, claim: str, where: str) -> None:
        super().__init__(f"{claim}: {where}")
        self.claim = claim


@dataclass(frozen=True)
class Examined:
    """A cell whose episodes were replayed; `cut_short` counts those that may have ended because the context was full."""

    data: CellData
    episodes: int
    cut_short: int


@dataclass(frozen=True)
class Folder:
    """A result with the suite against which it is checked."""

    place: Path
    manifest: Manifest
    suite: Suite
    opened: Mapping[str, OpenedScenario]
    plugins: tuple[str, ...] = ()
    """Plugins with the method's code that the verifier has loaded."""

    @property
    def is_method(self) -> bool:
        return self.suite.track == "methods"


def read_lines(place: Path) -> list[Line]:
    """The lines of a file of episodes: as JSON, as episodes, and as they are written."""
    found: list[Line] = []
    for where, plain, text in read_json_line_texts(place):
        if not isinstance(plain, dict):
            raise RefutedError("schema", f"{where}: an episode is a JSON object")
        try:
            found.append((plain, from_plain(plain), text))
        except FedAgentGymError as error:
            raise RefutedError("schema", f"{where}: {error}") from None
    return found


def check_episodes(
    place: str, lines: Sequence[Line], env: TextEnv, expected: Expected, about: Mapping[str, Any], speaker: Speaker
) -> int:
    """Raise unless these are exactly the expected episodes, in the written form, with replays that agree. Returns how
    many ended without the environment's doing."""
    if (gap := find_gap(expected, [trajectory for _, trajectory, _ in lines])) is not None:
        raise RefutedError("complete", f"{place}, {gap}")
    for number, (plain, trajectory, text) in enumerate(lines, start=1):
        where = f"{place}, episode {number} ({trajectory.task}, copy {trajectory.sample})"
        if (odd := find_odd_line(plain, trajectory, about, text)) is not None:
            raise RefutedError("schema", f"{where}: {odd}")
        if (difference := find_difference(env, trajectory, speaker)) is not None:
            raise RefutedError("replayed", f"{where}: {difference}")
    return sum(is_cut_short(env, trajectory) for _, trajectory, _ in lines)


def describe_about(env: TextEnv, agent: str, **more: Any) -> dict[str, Any]:
    """The fields of every line of a file besides its episode, in the written order."""
    verifier = env.get_verifier_version()
    return {"env": env.id, "agent": agent, **({} if verifier is None else {"verifier": verifier}), **more}


# ---- agents track -----------------------------------------------------------------------------------------------------


def examine_agent_cell(folder: Folder, record: CellRecord) -> Examined:
    """A cell of the agents track."""
    opened, agent = folder.opened[record.scenario], folder.manifest.entry.agent
    place = f"{EPISODES}/{record.key}.jsonl.gz"
    lines = read_lines(folder.place / place)
    ranking = folder.suite.get_ranking(record.scenario)
    speaker = describe_speaker(AgentSettings.load(agent.settings, "agent"), agent.kind)
    about = describe_about(opened.env, str(agent.settings.get("name")), split=ranking.split)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    cut_short = check_episodes(place, lines, opened.env, expected, about, speaker)
    turns = sum(len(trajectory.turns) for _, trajectory, _ in lines)
    _check_usage(record, agent.kind == "hosted", turns)
    data = CellData(
        record.scenario,
        record.seed,
        group_by_task(trajectory for _, trajectory, _ in lines),
        Spent(episodes=len(lines), env_steps=turns),
        usage=record.usage,
    )
    return Examined(data, len(lines), cut_short)


def _check_usage(record: CellRecord, is_hosted: bool, turns: int) -> None:
    usage = record.usage
    if (usage is not None) != is_hosted:
        raise RefutedError(
            "recomputed", f"cell {record.key}: only a hosted model has a count of requests, and every one has"
        )
    if usage is not None and usage.requests != turns:
        raise RefutedError("recomputed", f"cell {record.key}: {usage.requests} answers were counted for {turns} turns")


# ---- methods track ----------------------------------------------------------------------------------------------------


def examine_method_cell(folder: Folder, record: CellRecord) -> Examined:
    """A cell of the methods track: its configuration, the choice of its round, and both files of episodes."""
    config = check_config(folder, record)
    opened = folder.opened[record.scenario]
    speaker = describe_speaker(config.agent, "model")
    points, policies, judged, cut_selection = examine_selection(folder, record, config, speaker)
    chosen = choose_round(points)
    if record.chosen_round != chosen:
        raise RefutedError(
            "selection", f"cell {record.key}: round {chosen} did best on `val`, ranked is round {record.chosen_round}"
        )
    if record.policy is None or record.policy != policies[chosen]:
        raise RefutedError("selection", f"cell {record.key}: the ranked policy is not that of round {chosen}")
    place = f"{EPISODES}/{record.key}.jsonl.gz"
    lines = read_lines(folder.place / place)
    ranking = folder.suite.get_ranking(record.scenario)
    about = describe_about(opened.env, config.agent.name, split=ranking.split, round=chosen, policy=record.policy)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    cut_short = check_episodes(place, lines, opened.env, expected, about, speaker)
    assert opened.client_split is not None
    groups = group_by_task(trajectory for _, trajectory, _ in lines)
    _check_spent(folder.suite, record, points, config)
    data = CellData(
        record.scenario,
        record.seed,
        groups,
        record.spent,
        points,
        describe_clients(opened.client_split, groups),
        policy=record.policy,
        config=record.config,
        epsilon=record.epsilon,
    )
    return Examined(data, len(lines) + judged, cut_short + cut_selection)


def examine_selection(
    folder: Folder, record: CellRecord, config: RunConfig, speaker: Speaker
) -> tuple[tuple[CurvePoint, ...], dict[int, str], int, int]:
    """The learning curve from the episodes on `val`, the policy of each round, the number of episodes, and how many of
    them ended without the environment's doing."""
    suite, opened = folder.suite, folder.opened[record.scenario]
    place = f"{SELECTION}/{record.key}.jsonl.gz"
    split = suite.selection.split
    env = open_env(opened.env.id, **{**opened.options, "split": split})
    ids = list(env.pool.ids[: suite.selection.tasks])
    lines = read_lines(folder.place / place)
    rounds, spent = list_rounds(config), read_spent(folder, record)
    size, points, policies, cut_short = len(ids) * suite.selection.repeats, [], {}, 0
    if sorted(spent) != rounds or len(lines) != size * len(rounds):
        raise RefutedError("complete", f"{place}: rounds {rounds} were to be evaluated with {size} episodes each")
    for number, due in enumerate(rounds):
        part = lines[number * size : (number + 1) * size]
        policy = str(part[0][0].get("policy"))
        about = describe_about(env, config.agent.name, round=due, policy=policy, split=split)
        expected = Expected(ids, suite.selection.repeats, derive(record.seed, "evaluation"))
        cut_short += check_episodes(f"{place}, round {due}", part, env, expected, about, speaker)
        points.append(make_point(due, group_by_task(trajectory for _, trajectory, _ in part), spent[due]))
        policies[due] = policy
    return tuple(points), policies, len(lines), cut_short


def list_rounds(config: RunConfig) -> list[int]:
    """The rounds of a run that are evaluated."""
    assert config.evaluation is not None
    last = config.federation.rounds
    return [number for number in range(last + 1) if config.evaluation.is_due(number, last)]


def read_spent(folder: Folder, record: CellRecord) -> dict[int, Spent]:
    """The recorded usage up to each evaluated round, which cannot be recomputed."""
    curves = [
        one for one in read_curves(folder.place).cells if (one.scenario, one.seed) == (record.scenario, record.seed)
    ]
    if len(curves) != 1:
        raise RefutedError("complete", f"curves.json: there are {len(curves)} curves of {record.key}")
    return {point.round: point.spent for point in curves[0].points}


def _check_spent(suite: Suite, record: CellRecord, points: Sequence[CurvePoint], config: RunConfig) -> None:
    """Check that the usage grows, ends where the run ends, and stays within the budget."""
    where = f"cell {record.key}"
    steps = [*(point.spent for point in points), record.spent]
    for before, after in pairwise(steps):
        if any(getattr(before, name) > getattr(after, name) for name in Spent.model_fields):
            raise RefutedError(
                "budget", f"{where}: less is said to be spent at round {after.rounds} than at round {before.rounds}"
            )
    if any(point.spent.rounds != point.round for point in points) or record.spent.rounds != config.federation.rounds:
        raise RefutedError("budget", f"{where}: the rounds that were spent are not those that were played")
    budget = suite.budget
    taken = {"rounds": record.spent.rounds, "episodes": record.spent.episodes}
    taken["bytes"] = record.spent.bytes_down + record.spent.bytes_up
    for name, value in taken.items():
        most = getattr(budget, name)
        if most is not None and value > most:
            raise RefutedError("budget", f"{where}: {value:,} {name} were spent, the suite admits {most:,}")


def check_config(folder: Folder, record: CellRecord) -> RunConfig:
    """Check that the packed configuration is the one that the suite and the method's changes give.

    A method from a plugin is not loaded: then the suite's part is compared, and the rest is accepted.
    """
    method, place = folder.manifest.entry.method, f"{CONFIGS}/{record.key}.yaml"
    if method is None:
        raise RefutedError("schema", "an entry on the methods track has a method")
    packed = parse_yaml(read_text(folder.place / place), place)
    if not isinstance(packed, dict):
        raise RefutedError("configuration", f"{place}: a configuration is a mapping of settings")
    known = is_known(folder)
    changes, plugins = (method.changes, folder.plugins) if known else ((), ())
    try:
        expected = make_config(folder.suite, record.scenario, changes, seed=record.seed, plugins=plugins)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"{place}: the method's changes cannot be applied: {error}") from None
    wanted = expected.plain()
    for key in sorted({*wanted, *packed} - {"name", "output"}):
        if (known or key not in FREE) and canonical_json(packed.get(key)) != canonical_json(wanted.get(key)):
            raise RefutedError("configuration", f"{place}: {key!r} is not what the suite and the method's changes say")
    if known and record.config != expected.digest:
        raise RefutedError(
            "configuration", f"cell {record.key}: the digest of its configuration is not that of {place}"
        )
    if known and method.algorithm != expected.algorithm["name"]:
        raise RefutedError(
            "configuration", f"the method is called {method.algorithm!r}, it is {expected.algorithm['name']!r}"
        )
    if describe_learner(expected.agent) != folder.manifest.entry.agent:
        raise RefutedError("configuration", "the agent of the entry is not that of the suite")
    return expected if known else _read_rounds(expected, packed, place)


def is_known(folder: Folder) -> bool:
    """Whether the method belongs to this package, or to plugins that the verifier has loaded."""
    method = folder.manifest.entry.method
    return method is not None and method.plugins == describe_plugins(folder.plugins)


def _read_rounds(expected: RunConfig, packed: Mapping[str, Any], place: str) -> RunConfig:
    """The suite's configuration with the rounds of a method that is not loaded."""
    rounds = (packed.get("federation") or {}).get("rounds")
    if not isinstance(rounds, int) or not 0 <= rounds <= 1_000_000:
        raise RefutedError("configuration", f"{place}: federation.rounds is no number of rounds")
    federation = expected.federation.model_copy(update={"rounds": rounds})
    return expected.model_copy(update={"federation": federation})


def examine_cells(folder: Folder) -> Iterator[Examined]:
    """Every cell, in the order of the manifest."""
    for record in folder.manifest.cells:
        yield examine_method_cell(folder, record) if folder.is_method else examine_agent_cell(folder, record)
