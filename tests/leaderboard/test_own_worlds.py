"""A suite that ranks every client's policy in the client's own world: played, packed, verified, refuted if changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.leaderboard.entries import list_baselines
from fedagentgym.leaderboard.rank import measure_run
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import Suite, open_scenario
from fedagentgym.leaderboard.verify import verify
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.runs.claims import RefutedError
from fedagentgym.runs.folder import WORLDS
from tests.leaderboard import forger
from tests.leaderboard.conftest import play_and_pack

PLAIN = {
    "name": "sample-worlds-v1",
    "track": "methods",
    "title": "Skills in two worlds",
    "config": {
        "name": "worlds",
        "env": {"id": "fedagentgym/Skills-v0", "options": {"skills": 4, "wording": "short"}},
        "partition": {"clients": 4, "tasks_per_client": 4, "seed": 0, "variant": {"kind": "swapped_procedures"}},
        "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}},
        "learning": {"tasks_per_step": 1, "group_size": 2},
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "federation": {"rounds": 2},
    },
    "scenarios": {"worlds": {}},
    "seeds": [0],
    "selection": {"split": "val", "every": 100, "tasks": 2},
    "ranking": {"split": "test", "tasks": 3, "temperature": 1.0},
    "rank_by": "own_world",
    "ranked_round": "last",
    "baselines": {
        "fedagent": {"title": "shared"},
        "personal-head": {"title": "own", "changes": ["algorithm={name: personal-head, local_steps: 1}"]},
    },
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.load(PLAIN)


@pytest.fixture(scope="module")
def packed(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("worlds")
    for entry in list_baselines(suite, []):
        play_and_pack(suite, entry, root, root / "packed" / f"{entry.name}.zip")
    return root / "packed"


@pytest.mark.parametrize(("name", "apart"), [("fedagent", False), ("personal-head", True)])
def test_own_worlds_rank_and_are_proven(name: str, apart: bool, packed: Path, suite: Suite) -> None:
    result = Result(packed / f"{name}.zip")
    assert verify(result.path, suite=suite).replayed
    (key,) = result.keys
    ranked = result.records[key].ranked
    assert ranked is not None and ranked.round == 2, "the last round is ranked"
    solved: dict[tuple[int, ...], list[bool]] = {}
    with result.open_run(key) as run:
        for line in read_lines(run.path / WORLDS):
            solved.setdefault(tuple(line.about["clients"]), []).append(line.trajectory.success)
    assert list(solved) == ([(0,), (1,), (2,), (3,)] if apart else [(0, 2), (1, 3)])
    own = [sum(found) / len(found) for clients, found in solved.items() for _ in clients]
    assert result.numbers.overall["own_world"].mean == pytest.approx(sum(own) / len(own))
    assert result.numbers.runs["worlds"][0].means["own_world_worst"] == min(own)
    assert set(result.numbers.tabulate("own_world") or ()) == {"worlds"}


ALIKE = {
    **PLAIN,
    "name": "sample-alike-v1",
    "config": {
        **PLAIN["config"],
        "env": {"id": "fedagentgym/Skills-v0", "options": {"wording": "short", "naming": "repeated"}},
        "partition": {
            "sampler": "by_source",
            "clients": 2,
            "tasks_per_client": 4,
            "sources": {"Arle+Bost+Cray+Dorn": 1, "Fenn+Holm+Garth+Elde": 1},
        },
        "agent": {"name": "tiny", "decoding": {"max_new_tokens": 64}},
        "learning": {"tasks_per_step": 1, "group_size": 2},
    },
    "ranking": {"split": "test", "tasks": 12, "temperature": 1.0},
    "row_adapters": True,
    "baselines": {
        "fedsa": {"changes": ["agent.adapter={rank: 2}", "algorithm={name: fedsa-lora, local_steps: 1}"]},
        "shared": {"changes": ["algorithm={name: fedagent, local_steps: 1}"]},
    },
}
"""Without variants: every client's policy on all tasks and on its own mixture; one row trains an adapter, one does not."""


@pytest.mark.parametrize(
    "name", [pytest.param("fedsa", marks=pytest.mark.slow(reason="loads a model with an adapter")), "shared"]
)
def test_without_variants_own_mixtures_are_measured_too(name: str, tmp_path: Path) -> None:
    suite = Suite.load(ALIKE)
    (entry,) = list_baselines(suite, [name])
    result = play_and_pack(suite, entry, tmp_path, tmp_path / f"{name}.zip")
    assert verify(result.path, suite=suite).replayed
    (key,) = result.keys
    made = open_scenario(suite, "worlds").client_split
    assert made is not None
    mixtures = []
    with result.open_run(key) as run:
        lines = list(read_lines(run.path / WORLDS))
    for client in range(2):
        mine = [one.trajectory for one in lines if client in one.about["clients"]]
        assert len(mine) == 12
        tried = {one.category: [each.success for each in mine if each.category == one.category] for one in mine}
        held = [made.pool.get_category(task) for task in made[client].tasks]
        solved = [sum(tried[category]) / len(tried[category]) for category in held if category in tried]
        mixtures.append(sum(solved) / len(solved))
    numbers = result.numbers.runs["worlds"][0].means
    assert numbers["own_mixture"] == pytest.approx(sum(mixtures) / 2)
    assert numbers["own_mixture_worst"] == pytest.approx(min(mixtures))


def test_changed_worlds_are_refuted(packed: Path, suite: Suite, tmp_path: Path) -> None:
    place = forger.unpack(packed / "personal-head.zip", tmp_path / "changed")
    file = place / "worlds-seed0" / WORLDS
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["clients"] == [0]
    for number, (changed, said) in enumerate((
        (lines[1:], "complete"),
        ([lines[0].replace('"success": false', '"success": true'), *lines[1:]], "schema|replayed"),
        ([lines[0].replace('"clients": [0]', '"clients": [1]'), *lines[1:]], "schema|complete"),
        ([*lines, lines[-1]], "complete"),
    )):  # fmt: skip
        file.write_text("\n".join(changed) + "\n")
        for forged in (place, forger.pack(place, tmp_path / f"{number}.zip")):
            with pytest.raises(RefutedError, match=said):
                verify(forged, suite=suite)
    shutil.rmtree(place)


def test_a_suite_of_worlds_ranks_the_last_round() -> None:
    with pytest.raises(OptionError, match="kept of the last round: set ranked_round"):
        Suite.load({**PLAIN, "ranked_round": "best"})


WISHES = [["accuracy/skills", "format"], ["brevity"]]


def test_what_clients_ask_for_is_measured_on_their_own_mixtures(tmp_path: Path) -> None:
    """Against a plain loop over the ranked episodes; the numbers of an entry that others write are computed again."""
    config = {**PLAIN["config"], "partition": {"sampler": "by_source", "clients": 4, "tasks_per_client": 4}}
    config["env"] = {**config["env"], "options": {**config["env"]["options"], "manners": "several"}}
    suite = Suite.load(
        {
            **PLAIN,
            "name": "wishes-v1",
            "config": config,
            "scenarios": {"two": {"objectives": WISHES}},
            "ranking": {"split": "test", "tasks": 12, "temperature": 1.0},
            "rank_by": "own_rewards",
            "baselines": {"fedagent": {"title": "FedAgent"}},
        }
    )
    (entry,) = list_baselines(suite, [])
    packed = tmp_path / "fedagent.zip"
    play_and_pack(suite, entry, tmp_path, packed)
    result = Result(packed)
    paid: dict[str, list[dict[str, float]]] = {}
    for (episode,) in result.read_groups(("two", 0)):
        totals: dict[str, float] = {}
        for turn in episode.turns:
            for name, value in turn.rewards.items():
                totals[name] = totals.get(name, 0.0) + value
        paid.setdefault(episode.category, []).append(totals)
    clients = result.records["two", 0].clients
    own = []
    for client in clients:
        (category,) = client.mixture
        wishes = WISHES[client.client % 2]
        own.append(
            sum(sum(one.get(name, 0.0) for one in paid[category]) / len(paid[category]) for name in wishes)
            / len(wishes)
        )
    numbers = result.numbers.runs["two"][0].means
    assert len(own) == 4 and numbers["own_rewards"] == pytest.approx(sum(own) / 4)
    assert numbers["own_rewards_worst"] == pytest.approx(min((own[0] + own[2]) / 2, (own[1] + own[3]) / 2))
    assert verify(packed, suite=suite).replayed
    for change, message in (
        ({"scenarios": {"two": {}}}, "rank_by: own_rewards needs `objectives` in every scenario"),
        ({"scenarios": {"two": {"objectives": [[]]}}}, "lists of one component or more, each named once"),
        ({"scenarios": {"two": {"objectives": [["format", "format"]]}}}, "each named once"),
        ({"rank_by": "success", "scenarios": {"two": {"objectives": [["shine"]]}}}, "'shine' is no component"),
    ):
        with pytest.raises((OptionError, DataError), match=message):
            changed = Suite.load({**suite.model_dump(mode="json", exclude_unset=True), **change})
            measure_run(changed, "two", result.records["two", 0])
