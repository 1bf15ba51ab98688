"""Verification of the cells of a packed result: complete, every episode replayed, every configuration the suite's.

A method's own code comes with a submission. It is loaded only if the verifier names it, and the settings in a result cannot make
the verifier load anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.base import count_labelled
from fedagentgym.algorithms.worlds import list_worlds
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.files import read_json_line_texts
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.plan import WorkPlan, plan_work
from fedagentgym.leaderboard.aggregate import CellData, WorldGroups, choose_round, describe_clients, make_point
from fedagentgym.leaderboard.cells import publish_config
from fedagentgym.leaderboard.entries import describe_plugins, find_packaged, is_learner
from fedagentgym.leaderboard.record import CellRecord, CurvePoint, Manifest, Spent, Usage
from fedagentgym.leaderboard.replay import (
    Expected,
    Speaker,
    describe_speaker,
    find_difference,
    find_gap,
    find_odd_line,
    is_cut_short,
)
from fedagentgym.leaderboard.results import CONFIGS, CURVES, EPISODES, SELECTION, WORLDS, ResultFolder, group_by_task
from fedagentgym.leaderboard.suite import FREE, MOST_ROUNDS, OpenedScenario, Suite, check_budget, make_config
from fedagentgym.learning.trajectory import Group, Trajectory, from_plain

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

Line = tuple[Mapping[str, Any], Trajectory, str]
MOST_CHARACTERS = 1 << 30
"""Maximum length of a file of episodes, unpacked; its episodes are held in memory."""
TOLERANCE = 1e-9
"""Relative tolerance: sums of the same numbers differ in their last digits from machine to machine."""


class RefutedError(DataError):
    """A claim of a result is false: `claim` names it, the text gives the place."""

    def __init__(self, claim: str, where: str) -> None:
        super().__init__(f"{claim}: {where}")
        self.claim = claim


@dataclass(frozen=True)
class Examined:
    """A cell whose episodes were replayed; `cut_short` counts those that may have ended because the context was full.

    On the methods track `selection` holds the episodes on val of the ranked round, and `rivals` counts the other evaluated
    rounds. `is_counted` says whether what it took is all that its configuration takes.
    """

    data: CellData
    cut_short: int
    selection: tuple[Group, ...] = ()
    rivals: int = 0
    is_counted: bool = False

    @property
    def ranked(self) -> int:
        """The number of ranked episodes."""
        return sum(map(len, self.data.groups))

    @property
    def compared(self) -> int:
        """The number of episodes on val of the rounds that were not ranked."""
        return self.rivals * sum(map(len, self.selection))


@dataclass(frozen=True)
class Checked:
    """A result with the suite against which it is checked."""

    result: ResultFolder
    suite: Suite
    opened: Mapping[str, OpenedScenario]
    plugins: tuple[str, ...] = ()
    """Plugins with the method's code that the verifier has loaded."""

    @property
    def place(self) -> Path:
        return self.result.path

    @property
    def manifest(self) -> Manifest:
        return self.result.manifest

    @property
    def is_method(self) -> bool:
        return self.suite.track == "methods"


# ---- episodes ---------------------------------------------------------------------------------------------------------


def read_lines(place: Path, *, brief: bool = False) -> Iterator[Line]:
    """The lines of a file of episodes: as JSON, as episodes, and as they are written. One is held at a time: a compressed
    file may hold far more than belongs into it."""
    total = 0
    for where, plain, text in read_json_line_texts(place):
        if not isinstance(plain, dict):
            raise RefutedError("schema", f"{where}: an episode is a JSON object")
        total += len(text)
        if total > MOST_CHARACTERS:
            raise RefutedError("schema", f"{where}: the file has more than {MOST_CHARACTERS:,} characters")
        try:
            yield plain, from_plain(plain, brief=brief), text
        except FedAgentGymError as error:
            raise RefutedError("schema", f"{where}: {error}") from None


def check_episodes(
    place: str,
    lines: Iterator[Line],
    env: TextEnv,
    expected: Expected,
    about: Mapping[str, Any],
    speaker: Speaker,
    *,
    brief: bool = False,
) -> list[Trajectory]:
    """Take the expected episodes from the lines, and raise unless they are in the written form, with replays that agree."""
    found: list[Trajectory] = []
    for number, due in enumerate(expected, start=1):
        line = next(lines, None)
        if line is None:
            raise RefutedError("complete", f"{place}: {len(expected)} episodes belong here, found {len(found)}")
        plain, trajectory, text = line
        trajectory = replace(trajectory, seed=due[1]) if brief else trajectory
        if (gap := find_gap(due, trajectory)) is not None:
            raise RefutedError("complete", f"{place}, episode {number}: {gap}")
        where = f"{place}, episode {number} ({trajectory.task}, copy {trajectory.sample})"
        if (odd := find_odd_line(plain, trajectory, about, text, brief=brief)) is not None:
            raise RefutedError("schema", f"{where}: {odd}")
        if (difference := find_difference(env, trajectory, speaker, brief=brief)) is not None:
            raise RefutedError("replayed", f"{where}: {difference}")
        found.append(trajectory)
    return found


def check_end(place: str, lines: Iterator[Line]) -> None:
    """Raise if there are more episodes than those that were taken."""
    if next(lines, None) is not None:
        raise RefutedError("complete", f"{place}: there are more episodes than belong here")


def describe_about(env: TextEnv, agent: str, **more: Any) -> dict[str, Any]:
    """The fields of every line of a file besides its episode, in the written order."""
    verifier = env.get_verifier_version()
    verified_by = {} if verifier is None else {"verifier": verifier}
    return {"env": env.id, "pool": env.task_set.pool, "agent": agent, **verified_by, **more}


def check_ranked(folder: Checked, record: CellRecord, agent: str, speaker: Speaker, **more: Any) -> list[Trajectory]:
    """Check the ranked episodes of a cell, and return them."""
    opened, ranking = folder.opened[record.scenario].at(record.seed), folder.suite.get_ranking(record.scenario)
    place = f"{EPISODES}/{record.key}.jsonl.xz"
    about = describe_about(opened.env, agent, split=ranking.split, **more)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    lines = read_lines(folder.place / place)
    episodes = check_episodes(place, lines, opened.env, expected, about, speaker)
    check_end(place, lines)
    return episodes


# ---- agents track -----------------------------------------------------------------------------------------------------


def examine_agent_cell(folder: Checked, record: CellRecord) -> Examined:
    """A cell of the agents track."""
    env, agent = folder.opened[record.scenario].at(record.seed).env, folder.manifest.entry.agent
    settings = AgentSettings.load(agent.settings, "agent")
    speaker = describe_speaker(find_packaged(settings, env) or settings, agent.kind)
    episodes = check_ranked(folder, record, settings.name, speaker)
    turns = sum(len(trajectory.turns) for trajectory in episodes)
    if (odd := _find_odd_usage(record.usage, agent.kind == "hosted", turns)) is not None:
        raise RefutedError("recomputed", f"cell {record.key}: {odd}")
    groups, spent = group_by_task(episodes), Spent(episodes=len(episodes), env_steps=turns)
    data = CellData(record.scenario, record.seed, groups, spent, policy=record.policy, usage=record.usage)
    return Examined(data, sum(is_cut_short(env, one) for one in episodes))


def _find_odd_usage(usage: Usage | None, is_hosted: bool, turns: int) -> str | None:
    if (usage is not None) != is_hosted:
        return "only a hosted model has a count of requests, and every one has"
    if usage is not None and usage.requests != turns:
        return f"{usage.requests} answers were counted for {turns} turns"
    if usage is not None and usage.uncounted > usage.requests:
        return "more answers without numbers of tokens than answers"
    return None


# ---- methods track ----------------------------------------------------------------------------------------------------


def examine_method_cell(folder: Checked, record: CellRecord) -> Examined:
    """A cell of the methods track: its configuration, the choice of its round, and both files of episodes."""
    config = check_config(folder, record)
    opened = folder.opened[record.scenario].at(record.seed)
    speaker = describe_speaker(config.agent, "model")
    points, policies, selection, cut_selection = examine_selection(folder, record, config, speaker)
    chosen = choose_round(folder.suite, points)
    if record.chosen_round != chosen:
        problem = f"round {chosen} is to be ranked, ranked is round {record.chosen_round}"
        raise RefutedError("selection", f"cell {record.key}: {problem}")
    if record.policy is None or record.policy != policies[chosen]:
        raise RefutedError("selection", f"cell {record.key}: the ranked policy is not that of round {chosen}")
    episodes = check_ranked(folder, record, config.agent.name, speaker, round=chosen, policy=record.policy)
    assert opened.client_split is not None
    groups = group_by_task(episodes)
    plan = plan_work(config) if is_known(folder) else None
    labelled = None if plan is None else count_labelled(config.algorithm, opened.client_split)
    odd = _find_odd_cost(folder.suite, record, points, config) or _find_odd_work(plan, record, points, labelled)
    if odd is not None:
        raise RefutedError("budget", f"cell {record.key}: {odd}")
    worlds, cut_worlds = check_worlds(folder, record, config, speaker, chosen)
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
        revision=record.revision,
        worlds=worlds,
    )
    cut_short = sum(is_cut_short(opened.env, one) for one in episodes)
    is_counted = plan is not None and all(_is_all(plan, one) for one in _list_spent(record, points))
    return Examined(data, cut_short + cut_selection + cut_worlds, selection, len(points) - 1, is_counted)


def check_worlds(
    folder: Checked, record: CellRecord, config: RunConfig, speaker: Speaker, chosen: int
) -> tuple[tuple[WorldGroups, ...], int]:
    """Check the ranked episodes in the clients' own worlds, and return them, with the number of those cut short. Clients whose
    worlds are equal are played once, or each with a policy of its own: the first line states which."""
    if not folder.suite.in_own_worlds:
        return (), 0
    opened, ranking = folder.opened[record.scenario].at(record.seed), folder.suite.get_ranking(record.scenario)
    assert opened.client_split is not None
    place, found, cut_short = f"{WORLDS}/{record.key}.jsonl.xz", [], 0
    lines = read_lines(folder.place / place, brief=True)
    first = next(lines, None)
    rest = lines if first is None else chain([first], lines)
    together = list_worlds(opened.client_split, apart=False)
    apart = first is not None and first[0].get("clients") != list(together[0].clients)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    for world in list_worlds(opened.client_split, apart=True) if apart else together:
        env = world.open_env(ranking.split)
        about = describe_about(env, config.agent.name, round=chosen, split=ranking.split, **world.describe())
        where = f"{place}, {world.name}"
        episodes = check_episodes(where, rest, env, expected, about, speaker, brief=True)
        cut_short += sum(is_cut_short(env, one) for one in episodes)
        found.append((world.clients, group_by_task(episodes)))
    check_end(place, rest)
    return tuple(found), cut_short


def examine_selection(
    folder: Checked, record: CellRecord, config: RunConfig, speaker: Speaker
) -> tuple[tuple[CurvePoint, ...], dict[int, str], tuple[Group, ...], int]:
    """The learning curve from the episodes on `val`, the policy of each round, the episodes of the ranked one, and how many of
    all of them ended without the environment's doing."""
    suite, env = folder.suite, open_selection(folder, record.scenario, record.seed)
    place, split = f"{SELECTION}/{record.key}.jsonl.xz", folder.suite.selection.split
    ids, seed = env.pool.ids[: suite.selection.tasks], derive(config.seed, "evaluation")
    expected = Expected(ids, suite.selection.repeats, seed)
    rounds, spent = list_rounds(config), read_spent(folder, record)
    if sorted(spent) != rounds:
        raise RefutedError("complete", f"{CURVES}, {record.key}: rounds {rounds} were to be evaluated")
    lines = read_lines(folder.place / place, brief=True)
    points, policies, cut_short = [], {}, 0
    selection: tuple[Group, ...] = ()
    for due in rounds:
        first = next(lines, None)
        policy = None if first is None else str(first[0].get("policy"))
        about = describe_about(env, config.agent.name, round=due, policy=policy, split=split)
        rest = lines if first is None else chain([first], lines)
        episodes = check_episodes(f"{place}, round {due}", rest, env, expected, about, speaker, brief=True)
        cut_short += sum(is_cut_short(env, one) for one in episodes)
        groups = group_by_task(episodes)
        points.append(make_point(due, groups, spent[due]))
        policies[due] = str(policy)
        selection = groups if due == record.chosen_round else selection
    check_end(place, lines)
    return tuple(points), policies, selection, cut_short


def open_selection(folder: Checked, scenario: str, seed: int) -> TextEnv:
    """The environment on whose tasks the ranked round is chosen."""
    opened = folder.opened[scenario].at(seed)
    return open_env(opened.env.id, **{**opened.options, "split": folder.suite.selection.split})


def list_rounds(config: RunConfig) -> list[int]:
    """The rounds of a run that are evaluated."""
    assert config.evaluation is not None
    last = config.federation.rounds
    return [number for number in range(last + 1) if config.evaluation.is_due(number, last)]


def read_spent(folder: Checked, record: CellRecord) -> dict[int, Spent]:
    """The recorded usage up to each evaluated round, which cannot be recomputed."""
    key = (record.scenario, record.seed)
    curves = [one for one in folder.result.curves.cells if (one.scenario, one.seed) == key]
    if len(curves) != 1:
        raise RefutedError("complete", f"{CURVES}: there are {len(curves)} curves of {record.key}")
    return {point.round: point.spent for point in curves[0].points}


def examine_cells(folder: Checked) -> list[Examined]:
    """Every cell, in the order of the manifest."""
    examine = examine_method_cell if folder.is_method else examine_agent_cell
    return [examine(folder, record) for record in folder.manifest.cells]


# ---- the configuration and the cost of a method ----------------------------------------------------------------------


def check_config(folder: Checked, record: CellRecord) -> RunConfig:
    """Check that the packed configuration is the one that the suite and the method's changes give.

    A method from a plugin is not loaded: then the suite's part is compared, and the rest is accepted.
    """
    method, place = folder.manifest.entry.method, f"{CONFIGS}, cell {record.key}"
    if method is None:
        raise RefutedError("schema", "an entry on the methods track has a method")
    cell = (record.scenario, record.seed)
    packed = next(one.config for one in folder.result.configs.cells if (one.scenario, one.seed) == cell)
    known = is_known(folder)
    changes, plugins = (method.changes, folder.plugins) if known else ((), ())
    seed, stream = record.seed, method.stream
    try:
        made = make_config(folder.suite, record.scenario, changes, seed=seed, plugins=plugins, stream=stream)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"{place}: the method's changes cannot be applied: {error}") from None
    expected = made.model_copy(update={"plugins": _find_plugin_paths(packed, made.plugins)})
    wanted = expected.plain()
    for key in sorted({*wanted, *packed} - {"output"}):
        if (known or key not in (*FREE, "name")) and canonical_json(packed.get(key)) != canonical_json(wanted.get(key)):
            raise RefutedError("configuration", f"{place}: {key!r} is not what the suite and the method's changes say")
    if known:
        _check_known(record, place, packed, expected, method.algorithm)
    if not is_learner(folder.manifest.entry.agent, expected.agent):
        raise RefutedError("configuration", "the agent of the entry is not that of the suite")
    found = expected if known else _read_rounds(expected, packed, place)
    try:
        check_budget(folder.suite, found, known=known)
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


def _check_known(
    record: CellRecord, place: str, packed: Mapping[str, Any], expected: RunConfig, algorithm: str
) -> None:
    """Check what can be where the method's code is at hand: the whole configuration, its digest, and the method's name."""
    if canonical_json(packed) != canonical_json(publish_config(expected.plain())):
        raise RefutedError("configuration", f"{place}: not as this package publishes it")
    if record.config != expected.digest:
        problem = f"the digest of its configuration is not that of {place}"
        raise RefutedError("configuration", f"cell {record.key}: {problem}")
    if algorithm != expected.algorithm["name"]:
        raise RefutedError("configuration", f"the method is called {algorithm!r}, it is {expected.algorithm['name']!r}")


def is_known(folder: Checked) -> bool:
    """Return whether the method belongs to this package, or to plugins that the verifier has loaded."""
    method = folder.manifest.entry.method
    return method is not None and method.plugins == describe_plugins(folder.plugins)


def _read_rounds(expected: RunConfig, packed: Mapping[str, Any], place: str) -> RunConfig:
    """The suite's configuration with the rounds of a method that is not loaded."""
    rounds = (packed.get("federation") or {}).get("rounds")
    if not isinstance(rounds, int) or not 0 <= rounds <= MOST_ROUNDS:
        raise RefutedError("configuration", f"{place}: federation.rounds is no number of rounds")
    federation = expected.federation.model_copy(update={"rounds": rounds})
    return expected.model_copy(update={"federation": federation})


def _list_spent(record: CellRecord, points: Sequence[CurvePoint]) -> list[Spent]:
    """Return the recorded costs up to every evaluated round, and in all."""
    return [*(point.spent for point in points), record.spent]


def _find_odd_work(
    plan: WorkPlan | None, record: CellRecord, points: Sequence[CurvePoint], labelled: int | None
) -> str | None:
    """Return whether the recorded costs exceed what the configuration takes, or other counts that follow from it are wrong."""
    for number, spent in enumerate(_list_spent(record, points), start=1):
        if spent.looks not in (None, min(number, len(points))):
            return f"{spent.looks} evaluations are recorded until round {spent.rounds}, there are {number}"
        work = None if plan is None else plan.count_until(spent.rounds)
        if work is not None and spent.episodes > (most := work.episodes + work.scored):
            return f"{spent.episodes:,} episodes are recorded until round {spent.rounds}, it takes {most:,}"
        if work is not None and (spent.optimizer_steps or 0) > (most := work.optimizer_steps):
            return f"{spent.optimizer_steps:,} optimizer steps are recorded until round {spent.rounds}, of {most:,}"
    if labelled is not None and record.spent.labelled not in (None, labelled):
        return f"it may use the answers of {labelled:,} tasks, not of {record.spent.labelled:,}"
    return None


def _is_all(plan: WorkPlan, spent: Spent) -> bool:
    """Return whether all episodes to prepare and to learn from are counted; where clients fail there are fewer. An expert that is
    asked a question twice in a round answers it once, so those that are played to score in a round may be fewer."""
    answered = plan.preparation.scored * plan.count_preparations(spent.rounds)
    return spent.episodes >= plan.count_until(spent.rounds).episodes + answered


def _is_private(algorithm: Mapping[str, Any]) -> bool:
    """Return whether a method's noise is secret, so that it has an epsilon."""
    privacy = algorithm.get("privacy")
    settings = (
        privacy if isinstance(privacy, Mapping) else algorithm if {"epsilon", "delta"} <= set(algorithm) else None
    )
    return settings is not None and bool(settings.get("secret", True))


def _find_odd_cost(suite: Suite, record: CellRecord, points: Sequence[CurvePoint], config: RunConfig) -> str | None:
    """Return whether the usage does not grow, end where the run ends, and stay within the budget."""
    spent = record.spent
    for before, after in pairwise(_list_spent(record, points)):
        if any((getattr(before, name) or 0) > (getattr(after, name) or 0) for name in Spent.model_fields):
            return f"less is recorded as spent at round {after.rounds} than at round {before.rounds}"
    if any(point.spent.rounds != point.round for point in points) or spent.rounds != config.federation.rounds:
        return "the rounds that were spent are not those that were played"
    if points[-1].round == spent.rounds and points[-1].spent != spent.model_copy(update={"labelled": None}):
        return "its curve ends with other numbers than its recorded costs"
    taken = {"rounds": spent.rounds, "episodes": spent.episodes, "bytes": spent.bytes_down + spent.bytes_up}
    for name, value in taken.items():
        most = getattr(suite.budget, name)
        if most is not None and value > most:
            return f"{value:,} {name} were spent, the suite admits {most:,}"
    accounts = _is_private(config.algorithm)
    if record.epsilon is not None and not accounts:
        return "an epsilon is written, but this method keeps nothing private, or draws its noise from the seed"
    if record.epsilon is None and accounts and config.federation.rounds:
        return "the privacy that this method spends is missing"
    return None
