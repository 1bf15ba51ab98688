"""Verification of the cells of a packed result: complete, every episode replayed, every configuration the suite's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import read_json_line_texts
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.leaderboard.aggregate import CellData, choose_round, describe_clients, make_point
from fedagentgym.leaderboard.claims import Examined, Folder, RefutedError
from fedagentgym.leaderboard.entries import find_packaged
from fedagentgym.leaderboard.method_checks import check_config, check_spent
from fedagentgym.leaderboard.pack import group_by_task
from fedagentgym.leaderboard.record import EPISODES, SELECTION, CellRecord, CurvePoint, Spent, read_curves
from fedagentgym.leaderboard.replay import (
    Expected,
    Speaker,
    describe_speaker,
    find_difference,
    find_gap,
    find_odd_line,
    is_cut_short,
)
from fedagentgym.learning.trajectory import Trajectory, from_plain

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

Line = tuple[Mapping[str, Any], Trajectory, str]
MOST_CHARACTERS = 1 << 30
"""Maximum length of a file of episodes, unpacked; its episodes are held in memory."""


def read_lines(place: Path) -> Iterator[Line]:
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
            yield plain, from_plain(plain), text
        except FedAgentGymError as error:
            raise RefutedError("schema", f"{where}: {error}") from None


def check_episodes(
    place: str, lines: Iterator[Line], env: TextEnv, expected: Expected, about: Mapping[str, Any], speaker: Speaker
) -> list[Trajectory]:
    """Take the expected episodes from the lines, and raise unless they are in the written form, with replays that agree."""
    found: list[Trajectory] = []
    for number, due in enumerate(expected, start=1):
        line = next(lines, None)
        if line is None:
            raise RefutedError("complete", f"{place}: {len(expected)} episodes belong here, found {len(found)}")
        plain, trajectory, text = line
        if (gap := find_gap(due, trajectory)) is not None:
            raise RefutedError("complete", f"{place}, episode {number}: {gap}")
        where = f"{place}, episode {number} ({trajectory.task}, copy {trajectory.sample})"
        if (odd := find_odd_line(plain, trajectory, about, text)) is not None:
            raise RefutedError("schema", f"{where}: {odd}")
        if (difference := find_difference(env, trajectory, speaker)) is not None:
            raise RefutedError("replayed", f"{where}: {difference}")
        found.append(trajectory)
    return found


def check_end(place: str, lines: Iterator[Line]) -> None:
    """Raise if there are more episodes than those that were taken."""
    if next(lines, None) is not None:
        raise RefutedError("complete", f"{place}: there are more episodes than belong here")


def count_cut_short(env: TextEnv, episodes: Sequence[Trajectory]) -> int:
    """How many ended without the environment's doing."""
    return sum(is_cut_short(env, one) for one in episodes)


def describe_about(env: TextEnv, agent: str, **more: Any) -> dict[str, Any]:
    """The fields of every line of a file besides its episode, in the written order."""
    verifier = env.get_verifier_version()
    judged = {} if verifier is None else {"verifier": verifier}
    return {"env": env.id, "pool": env.task_set.pool, "agent": agent, **judged, **more}


# ---- agents track -----------------------------------------------------------------------------------------------------


def examine_agent_cell(folder: Folder, record: CellRecord) -> Examined:
    """A cell of the agents track."""
    opened, agent = folder.opened[record.scenario], folder.manifest.entry.agent
    place = f"{EPISODES}/{record.key}.jsonl.gz"
    ranking = folder.suite.get_ranking(record.scenario)
    settings = AgentSettings.load(agent.settings, "agent")
    speaker = describe_speaker(find_packaged(settings, opened.env) or settings, agent.kind)
    about = describe_about(opened.env, settings.name, split=ranking.split)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    lines = read_lines(folder.place / place)
    episodes = check_episodes(place, lines, opened.env, expected, about, speaker)
    check_end(place, lines)
    turns = sum(len(trajectory.turns) for trajectory in episodes)
    _check_usage(record, agent.kind == "hosted", turns)
    data = CellData(
        record.scenario,
        record.seed,
        group_by_task(episodes),
        Spent(episodes=len(episodes), env_steps=turns),
        policy=record.policy,
        usage=record.usage,
    )
    return Examined(data, len(episodes), count_cut_short(opened.env, episodes))


def _check_usage(record: CellRecord, is_hosted: bool, turns: int) -> None:
    usage = record.usage
    if (usage is not None) != is_hosted:
        raise RefutedError(
            "recomputed", f"cell {record.key}: only a hosted model has a count of requests, and every one has"
        )
    if usage is not None and usage.requests != turns:
        raise RefutedError("recomputed", f"cell {record.key}: {usage.requests} answers were counted for {turns} turns")
    if usage is not None and usage.uncounted > usage.requests:
        raise RefutedError("recomputed", f"cell {record.key}: more answers without numbers of tokens than answers")


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
    ranking = folder.suite.get_ranking(record.scenario)
    about = describe_about(opened.env, config.agent.name, split=ranking.split, round=chosen, policy=record.policy)
    expected = Expected(opened.ids, ranking.repeats, derive(record.seed, "ranked"))
    lines = read_lines(folder.place / place)
    episodes = check_episodes(place, lines, opened.env, expected, about, speaker)
    check_end(place, lines)
    assert opened.client_split is not None
    groups = group_by_task(episodes)
    check_spent(folder.suite, record, points, config)
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
    return Examined(data, len(episodes) + judged, count_cut_short(opened.env, episodes) + cut_selection)


def examine_selection(
    folder: Folder, record: CellRecord, config: RunConfig, speaker: Speaker
) -> tuple[tuple[CurvePoint, ...], dict[int, str], int, int]:
    """The learning curve from the episodes on `val`, the policy of each round, the number of episodes, and how many of
    them ended without the environment's doing."""
    suite, opened = folder.suite, folder.opened[record.scenario]
    place = f"{SELECTION}/{record.key}.jsonl.gz"
    split = suite.selection.split
    env = open_env(opened.env.id, **{**opened.options, "split": split})
    expected = Expected(
        env.pool.ids[: suite.selection.tasks], suite.selection.repeats, derive(record.seed, "evaluation")
    )
    rounds, spent = list_rounds(config), read_spent(folder, record)
    if sorted(spent) != rounds:
        raise RefutedError("complete", f"curves.json, {record.key}: rounds {rounds} were to be evaluated")
    lines = read_lines(folder.place / place)
    points, policies, cut_short = [], {}, 0
    for due in rounds:
        first = next(lines, None)
        policy = None if first is None else str(first[0].get("policy"))
        about = describe_about(env, config.agent.name, round=due, policy=policy, split=split)
        rest = lines if first is None else chain([first], lines)
        episodes = check_episodes(f"{place}, round {due}", rest, env, expected, about, speaker)
        cut_short += count_cut_short(env, episodes)
        points.append(make_point(due, group_by_task(episodes), spent[due]))
        policies[due] = str(policy)
    check_end(place, lines)
    return tuple(points), policies, len(expected) * len(rounds), cut_short


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


def examine_cells(folder: Folder) -> Iterator[Examined]:
    """Every cell, in the order of the manifest."""
    for record in folder.manifest.cells:
        yield examine_method_cell(folder, record) if folder.is_method else examine_agent_cell(folder, record)
