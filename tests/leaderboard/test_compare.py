"""Comparisons: paired differences, the correction for many, and the page."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.compare import (
    Comparison,
    Played,
    average_curves,
    compare,
    load_played,
)
from fedagentgym.leaderboard.comparison import describe_best, write_comparison
from fedagentgym.leaderboard.rank import has_collapsed
from fedagentgym.leaderboard.results import Result
from fedagentgym.learning.trajectory import Trajectory, Turn
from fedagentgym.runs.record import CurvePoint, Spent
from tests.committed import RESULTS
from tests.leaderboard.samples import METHODS_SUITE, write_agents_sample, write_methods_sample
from tests.pages.runs import ROUNDS, write_run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for agent in ("expert", "random"):
        write_agents_sample(folder / agent, agent)
    return folder


def test_results_are_compared(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare([load_played(results / "random"), load_played(results / "expert")])
    more = found.differences["expert"]
    assert more.mean > 0.3 and more.low > 0 and more.adjusted < 0.01
    assert found.pairing == "paired on 16 tasks; intervals are about other tasks"
    assert "<table>" in write_comparison(found)
    page = tmp_path / "page.html"
    assert main(["compare", str(results / "random"), str(results / "expert"), "--out", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"]["expert"]["mean"] == pytest.approx(more.mean) and page.is_file()
    assert set(told["scenarios"]) == {"guess", "other"} and set(told["categories"]) == set(found.categories) != set()
    parts = told["scenarios"].values()
    assert np.mean([one["differences"]["expert"]["mean"] for one in parts]) == pytest.approx(more.mean)


def test_the_folder_in_which_one_is_has_a_name(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_run(tmp_path / "mine")
    monkeypatch.chdir(place)
    assert load_played(Path()).name == "mine"


# ---- the page ---------------------------------------------------------------------------------------------------------

Outcomes = dict[str, list[float]]
"""The outcome of every task of a category."""
SURE = {"a": [0.0] * 12, "b": [1.0] * 4}


def make_played(name: str, *seeds: Outcomes, turns: int = 1) -> Played:
    """An entry with these outcomes, one dictionary for each seed; every episode has this many turns."""
    turn = Turn("", "", ("",), 0.0, True, True)
    episodes = {}
    for seed, outcomes in enumerate(seeds):
        played = [
            Trajectory(f"{category}/{number}", 0, (turn,) * turns, (), category, 0, value, value > 0.5, True)
            for category, values in outcomes.items()
            for number, value in enumerate(values)
        ]
        episodes["", seed] = {one.task: (one,) for one in played}
    return Played(name, episodes)


def read_sentence(found: Comparison) -> str:
    return "".join(describe_best(found)).replace("\u00a0", " ")


def test_the_first_sentence_names_the_best() -> None:
    better = make_played("better", {"a": [1.0] * 12, "b": [1.0] * 4})
    usual = make_played("usual", SURE)
    told = read_sentence(compare([usual, better]))
    assert re.fullmatch(
        r"better is 75 points above usual \[\d+, \d+\]: success 100.0 % against 25.0 %\."
        r" The difference is significant \(p < 0.001\)\.",
        told,
    ), told
    assert read_sentence(compare([better, usual])).startswith("usual is 75 points below better [−")
    third = make_played("third", {"a": [0.0] * 12, "b": [1.0, 1.0, 1.0, 0.0]})
    assert read_sentence(compare([usual, third, better])).startswith("better is best of 3: 75 points above usual [")
    told = read_sentence(compare([better, third, usual]))
    assert told.startswith("better is best of 3: the next, usual, is 75 points below better [")
    assert "corrected for 2 comparisons" in told
    told = read_sentence(compare([usual, third]))
    assert told.startswith("third is 6 points below usual ["), told
    assert "not significant (p = " in told
    assert read_sentence(compare([usual, make_played("same", SURE)])).startswith("same is level with usual [−")
    told = read_sentence(compare([usual, make_played("same", SURE), third]))
    assert told.startswith("same is level with usual [−"), told


@pytest.mark.parametrize(("first", "second"), [(1, 5), (2, 6), (4, 1), (3, 3)])
def test_a_difference_is_that_of_the_numbers_beside_it(first: int, second: int) -> None:
    """Of sevenths: 1/7 - 4/7 is -42.86 points, but of 14.3 % and 57.1 % readers expect -42.8."""
    played = [
        make_played(name, {"a": [1.0] * solved + [0.0] * (7 - solved)})
        for name, solved in (("x", first), ("y", second))
    ]
    page = html.unescape(write_comparison(compare(played)))
    values = [float(part) for part in re.findall(r'<td class="n">([\d.]+) %', page)[:2]]
    (shown,) = re.findall(r'<td class="n">([+−]?[\d.]+) <small>[+−]?[\d.]+ to ', page)[:1]
    assert float(shown.replace("−", "-")) == pytest.approx(values[1] - values[0]), page


def test_less_is_better_for_turns() -> None:
    long, short = make_played("long", SURE, turns=4), make_played("short", SURE, turns=2)
    told = read_sentence(compare([long, short, make_played("longest", SURE, turns=9)], "turns"))
    assert told.startswith("short is best of 3: 2 below long [−2, −2]: turns 2 against 4 (less is better)."), told


def make_runs(name: str, *seeds: Outcomes) -> Played:
    return replace(make_played(name, *seeds), trained=True)


def test_runs_are_the_unit_of_methods() -> None:
    """Two runs of each have no p, however many tasks they played; eight that agree have one."""
    solved, unsolved = {"a": [1.0] * 40, "b": [0.0] * 40}, {"a": [0.0] * 40, "b": [0.0] * 40}
    few = compare([make_runs("x", unsolved, unsolved), make_runs("y", solved, solved)])
    found = few.differences["y"]
    assert (few.runs, found.ends, found.p, found.values) == (2, None, None, (0.5, 0.5))
    assert "y is 50 points above x: success 50.0 % against 0.0 %. 2 runs of each are too few" in read_sentence(few)
    assert "+50.0 <small>+50.0, +50.0</small>" in write_comparison(few)
    some = {"a": [1.0] * 20 + [0.0] * 20, "b": [0.0] * 40}
    many = compare([make_runs("x", *[unsolved] * 8), make_runs("y", *[solved, some] * 4)])
    found = many.differences["y"]
    assert many.runs == 8 and found.p is not None and found.p < 0.001 and found.mean == pytest.approx(0.375)
    one = compare([make_runs("x", unsolved), make_runs("y", solved)])
    assert one.runs == 1 and one.differences["y"].ends is not None and one.differences["y"].p is None


@pytest.mark.parametrize("suite", sorted(path.name for path in RESULTS.iterdir() if "methods" in path.name))
def test_committed_results_are_compared(suite: str) -> None:
    """The tasks of most suites differ from seed to seed, and are the same for all entries under a seed."""
    found = compare([load_played(path) for path in sorted((RESULTS / suite).glob("*.zip"))[:2]])
    (name,) = found.differences
    first, other = (
        Result(path).numbers.overall["success"].mean for path in sorted((RESULTS / suite).glob("*.zip"))[:2]
    )
    assert found.differences[name].mean == pytest.approx(other - first)


def test_tasks_need_to_agree_under_a_seed() -> None:
    """Tasks of a seed's own have categories of their own, so categories are left out where a task id changes its category."""
    outcomes: list[Outcomes] = [{"a": [1.0, 0.0], "b": [1.0]}, {"a": [0.0, 0.0], "b": [0.0]}]
    worlds = {("", seed): {"env": "fedagentgym/Guess-v0", "pool": f"sha256:{seed}"} for seed in (0, 1)}
    first, second = (replace(make_runs(name, *outcomes), worlds=worlds) for name in "xy")
    assert list(compare([first, second]).categories) == ["a", "b"]
    moved = {
        key: {task: tuple(replace(one, category=f"of {key[1]}") for one in group) for task, group in own.items()}
        for key, own in first.episodes.items()
    }
    assert not compare([replace(first, episodes=moved), replace(second, episodes=moved)]).categories
    exchanged = {("", 0): worlds["", 1], ("", 1): worlds["", 0]}
    with pytest.raises(DataError, match="tasks with the same ids differ between these pools"):
        compare([first, replace(second, worlds=exchanged)])
    with pytest.raises(DataError, match="tasks with the same ids differ between these pools"):
        compare([replace(one, trained=False) for one in (first, second)])


@pytest.mark.parametrize("trained", [True, False])
def test_scenarios_without_a_common_seed_are_refused(trained: bool) -> None:
    """An unfinished result may have finished one scenario under one seed, and another one under another."""
    whole = make_runs("x", {"a": [1.0]}, {"a": [1.0]})
    episodes = {("first", seed): own for (_, seed), own in whole.episodes.items()}
    episodes |= {("second", seed + 10): own for (_, seed), own in whole.episodes.items()}
    apart = replace(whole, episodes=episodes, trained=trained)
    with pytest.raises(DataError, match="no seed in common"):
        compare([apart, replace(apart, name="y")])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("abc")), min_size=1, max_size=20))
def test_categories_make_up_the_whole(drawn: list[tuple[bool, bool, str]]) -> None:
    """The differences of the categories, weighted by tasks, are that of all tasks; intervals contain their means."""
    outcomes: list[Outcomes] = [{}, {}]
    for first, second, category in drawn:
        for place, value in enumerate((first, second)):
            outcomes[place].setdefault(category, []).append(float(value))
    found = compare([make_played("x", outcomes[0]), make_played("y", outcomes[1])])
    parts = found.categories
    assert list(parts) == (sorted(outcomes[0]) if len(outcomes[0]) > 1 else [])
    for category, part in parts.items():
        one, other = (np.mean(each[category]) for each in outcomes)
        assert part.measured["x"].mean == pytest.approx(one) and part.measured["y"].mean == pytest.approx(other)
        more = part.differences["y"]
        assert (
            more.mean == pytest.approx(other - one) and more.low <= more.mean + 1e-9 and more.high >= more.mean - 1e-9
        )
        assert more.adjusted >= more.p
    if parts:
        total = sum(part.tasks * part.differences["y"].mean for part in parts.values()) / len(drawn)
        assert total == pytest.approx(found.differences["y"].mean)


def test_drawings_are_where_the_numbers_are() -> None:
    """Places on both axes, read back through the labels of their ticks, are the means and the ends of the intervals."""
    entries = [make_played("x", SURE), make_played("y", {"a": [1.0] * 6 + [0.0] * 6, "b": [1.0, 1.0, 0.0, 0.0]})]
    found = compare(entries)
    table = re.search('class="card compared">(.*?)</table>', write_comparison(found), re.DOTALL)[1]
    cells = re.findall("<td.*?</td>", table, re.DOTALL)
    columns = len(cells) // 3
    x, y, ticks = cells[:columns], cells[columns : 2 * columns], cells[2 * columns :]
    more = found.differences["y"]
    expected = [(2, x, found.measured["x"]["success"]), (2, y, found.measured["y"]["success"]), (4, y, more)]
    for column, row, value in expected:
        labels = re.findall(r'left:([\d.]+)%">([^<]*)</span>', ticks[column])
        places = np.array([float(place) for place, _ in labels])
        values = np.array([float(text.replace("−", "-").removesuffix(" %")) for _, text in labels])
        slope, start = np.polyfit(places, values, 1)
        left, width = map(float, re.search(r'interval" style="left:([\d.]+)%;width:([\d.]+)%', row[column]).groups())
        middle = float(re.search(r'after" style="left:([\d.]+)%', row[column])[1])
        drawn = [slope * place + start for place in (left, middle, left + width)]
        assert drawn == pytest.approx([100 * value.low, 100 * value.mean, 100 * value.high], abs=0.1)
    zero = float(re.search(r'zero" style="left:([\d.]+)%', y[4])[1])
    assert slope * zero + start == pytest.approx(0.0, abs=0.1)


def test_two_are_drawn_as_dumbbells_and_more_as_a_table() -> None:
    first, second = make_played("x", SURE), make_played("y", {"a": [1.0] * 12, "b": [1.0] * 4})
    page = write_comparison(compare([first, second]))
    assert re.findall('class="label">([^<]*)<', page) == ["a"] and "The same in both: b 100 %." in page
    assert "0 % → 100 % <small>+100 [" in page
    page = write_comparison(compare([first, second, make_played("z", SURE)]))
    assert 'class="label"' not in page and '<b class="good">+100.0*</b>' in page


def make_point(number: int, mean: float) -> CurvePoint:
    spent = Spent(
        rounds=number,
        episodes=100 * number,
        bytes_down=10**6 * number,
        bytes_up=10**6 * number,
        optimizer_steps=7 * number,
    )
    estimate = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}
    return CurvePoint(
        round=number, spent=spent, overall=dict.fromkeys(("success", "score", "turns"), estimate), categories={}
    )


def test_the_spread_of_runs_and_the_collapsed_ones_stand_beside_the_mean() -> None:
    """Of five runs one falls to nothing, which the mean hides."""
    shares = (0.9, 0.8, 0.0, 0.7, 0.6)
    outcomes = [{"a": [1.0] * round(10 * share) + [0.0] * round(10 - 10 * share)} for share in shares]
    curves = [[make_point(0, 0.5), make_point(1, 0.9), make_point(2, share)] for share in shares]
    uncompared = {("", 7): [make_point(0, 0.5), make_point(2, 0.5)], ("other", 0): [make_point(0, 0.5)]}
    named = {("", seed): curve for seed, curve in enumerate(curves)}
    first = replace(make_runs("x", *outcomes), curves={**named, **uncompared})
    found = compare([first, make_runs("y", *outcomes)])
    one, other = found.spreads["x"], found.spreads["y"]
    assert one.quartiles == pytest.approx((0.0, 0.6, 0.7, 0.8, 0.9)) and (one.collapsed, one.curves) == (1, 5)
    assert other.quartiles == one.quartiles and other.curves == 0 and other.list_cells()[-1] == ""
    page = write_comparison(found)
    assert ">three quarters</th>" in page and ">1 of 5</td>" in page
    assert has_collapsed([make_point(0, 0.5)]) is None and has_collapsed(curves[0]) is False
    same = [make_point(number, 0.5).model_copy(update={"policy": "sha256:" + 64 * "0"}) for number in (0, 2)]
    assert has_collapsed(same) is None  # clients that train policies of their own leave the shared one as it is
    few = compare([make_runs("x", *outcomes[:4]), make_runs("y", *outcomes[:4])])
    assert few.spreads == {} and ">three quarters</th>" not in write_comparison(few)


def test_the_optimizer_steps_of_a_run_stand_beside_its_success() -> None:
    outcomes = [{"a": [1.0, 0.0]}, {"a": [0.0, 0.0]}]
    curves = [[make_point(0, 0.5), make_point(2, 0.5)], [make_point(0, 0.5), make_point(1, 0.5)]]
    trained = replace(make_runs("x", *outcomes), curves={("", seed): curve for seed, curve in enumerate(curves)})
    bare = make_runs("y", *outcomes)
    found = compare([trained, bare])
    assert found.steps == {"x": (14 + 7) / 2}
    assert compare([trained, make_runs("y", outcomes[0])]).steps == {"x": 14}  # only the run that is compared
    page = write_comparison(found)
    assert ">optimizer steps</th>" in page and '<td class="n">10.5</td>' in page
    assert compare([bare, make_runs("z", *outcomes)]).steps == {}
    assert "optimizer steps" not in write_comparison(compare([bare, make_runs("z", *outcomes)]))


def test_curves_are_means_over_seeds() -> None:
    first, second = (
        [make_point(0, 0.2), make_point(1, 0.4), make_point(2, 0.9)],
        [make_point(0, 0.4), make_point(2, 0.5)],
    )
    assert average_curves([first]) == [
        (0, 0.0, 0.0, 0.2, pytest.approx(0.1), pytest.approx(0.3)),
        (1, 100.0, 2e6, 0.4, pytest.approx(0.3), pytest.approx(0.5)),
        (2, 200.0, 4e6, 0.9, pytest.approx(0.8), pytest.approx(1.0)),
    ]
    assert [point[3:] for point in average_curves([first, second])] == [
        pytest.approx((0.3, 0.2, 0.4)),
        pytest.approx((0.7, 0.5, 0.9)),
    ]
    assert average_curves([first], "reward/format") == [] and average_curves([]) == []
    played = [make_played("x", SURE, SURE), make_played("y", SURE, SURE), make_played("z", SURE)]
    page = write_comparison(compare([replace(played[0], curves={("", 0): first, ("", 1): second}), *played[1:]]))
    assert "x, round 2: 70.0 % (50.0 % to 90.0 %)" in page and "round 1:" not in page
    assert "No learning curve of success is recorded for y, z." in page and "MB sent and received" in page
    assert "seeds 0, 1</small>" in page and "seed 0</small>" in page


def test_curves_of_a_run_are_those_of_its_record(tmp_path: Path) -> None:
    result = write_methods_sample(tmp_path / "method", "method")
    (((scenario, _), curve),) = load_played(tmp_path / "method" / "uniform-seed0").curves.items()
    assert curve == result.records["uniform", 0].curve and [one.round for one in curve] == [0, 1, 2] and not scenario
    found = load_played(tmp_path / "method").curves
    assert found.keys() == {(name, seed) for name in METHODS_SUITE.scenarios for seed in (0, 1)}
    assert load_played(tmp_path / "method" / "uniform-seed0" / "evaluation" / "0000.jsonl").curves == {}


def test_the_page_shows_how_to_make_it_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a run")
    file = run / "evaluation" / "0000.jsonl"
    found = compare([load_played(file), load_played(run / "evaluation" / f"{ROUNDS:04d}.jsonl")])
    page = html.unescape(write_comparison(found, page=Path("out.html")))
    assert f"fedagentgym compare '{file}' '" in page and "--measure success --out out.html" in page
    assert f"fedagentgym episodes '{file}'" in page and "file of episodes" in page


def test_settings_that_differ_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [write_run(tmp_path / name) for name in ("one", "other")]
    same = "env: {id: fedagentgym/Guess-v0}, partition: {sampler: uniform, clients: 2}, seed: 0"
    for place, rounds in zip(places, (4, 2), strict=True):
        algorithm = "{name: feddyn, alpha: 0.1}" if rounds == 2 else "{name: fedagent}"
        own = f"federation: {{rounds: {rounds}}}, algorithm: {algorithm}, output: {{folder: {rounds}}}, name: n{rounds}"
        (place / "config.yaml").write_text(f"{{{same}, {own}}}")
    page = tmp_path / "out.html"
    line = ["compare", *map(str, places), "--out", str(page)]
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"]
    assert found == {
        "federation.rounds": ["4", "2"],
        "algorithm.name": ["fedagent", "feddyn"],
        "algorithm.alpha": ["", "0.1"],
    }
    assert main(line) == 0
    assert re.search(r"settings that differ\s+one\s+other\s+federation.rounds\s+4\s+2\s", capsys.readouterr().out)
    assert "Settings that differ" in page.read_text() and "<code>federation.rounds</code>" in page.read_text()
    file = places[0] / "evaluation" / "0000.jsonl"
    assert compare([load_played(file), load_played(places[1])]).settings == {}


def test_what_cannot_be_compared_is_told(results: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run, a folder"):
        load_played(tmp_path)
    assert main(["compare", str(results / "expert")]) == 2
    (tmp_path / "begun").mkdir()
    for name in ("suite.yaml", "entry.json"):
        (tmp_path / "begun" / name).write_bytes((results / "expert" / name).read_bytes())
    with pytest.raises(DataError, match="has no finished run"):
        load_played(tmp_path / "begun")
    assert main(["compare", str(results / "expert"), str(results / "random"), "--measure", "beauty"]) == 2


def test_runs_are_compared_in_a_table_and_described_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run by itself, and a folder of two runs, of which the one with its seed counts, and of it the last evaluation."""
    alone, several = write_run(tmp_path / "alone"), tmp_path / "several"
    (alone / "evaluation" / f"{ROUNDS:04d}.jsonl").unlink()
    for seed, place in ((0, alone), (0, write_run(several / "seed0")), (1, write_run(several / "seed1"))):
        (place / "config.yaml").write_text(
            f"{{env: {{id: fedagentgym/Guess-v0}}, partition: {{sampler: uniform, clients: 2}}, federation: {{}}, seed: {seed}}}"
        )
    page = tmp_path / "out.html"
    assert main(["compare", str(alone), str(several), "--out", str(page)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "0.500" in told and "0.750" in told and "+0.250 [" in told and "difference to alone" in told
    text = html.unescape(page.read_text("utf-8"))
    assert "its evaluation of round 0" in text and f"its evaluation of round {ROUNDS}" in text
    assert f"fedagentgym train {alone}/config.yaml" in text and "the first of its 2 runs again" in text
    assert "One run of each does not show whether other runs would differ" in text
    (alone / "config.yaml").write_text((alone / "config.yaml").read_text().replace("seed: 0", "seed: 7"))
    assert main(["compare", str(alone), str(several), "--out", str(page)]) == 2
    assert "no seed in common" in " ".join(capsys.readouterr().err.split())
    (alone / "config.yaml").write_text((alone / "config.yaml").read_text().replace("seed: 7", "seed: 0"))
    (alone / "result.json").write_text("[3]")
    assert main(["compare", str(alone), str(several), "--out", str(page)]) == 2
    assert "result.json: malformed, not what this version reads" in " ".join(capsys.readouterr().err.split())


# ---- other tasks with the same ids ------------------------------------------------------------------------------------


def play_guess(folder: Path, *options: str, tasks: int = 4) -> Path:
    agent = ["eval", "--agent", "random", "--tasks", str(tasks), "--env", "Guess"]
    assert main([*agent, *options, "--out", str(folder)]) == 0
    return folder


def test_other_tasks_with_the_same_ids_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, other = play_guess(tmp_path / "usual"), play_guess(tmp_path / "other", "--env-set", "seed=1")
    page = tmp_path / "page.html"
    assert main(["compare", str(usual), str(other), "--out", str(page)]) == 2
    assert "other was played on the pool sha256:" in (told := capsys.readouterr().err)
    assert "usual on the pool sha256:" in told and "tasks with the same ids differ between these pools" in told
    assert not page.exists()
    file = next(other.glob("evaluation/*.jsonl"))
    with pytest.raises(DataError, match="tasks with the same ids differ"):
        compare([load_played(usual), load_played(file)])


def test_pools_that_hold_the_same_tasks_are_compared(tmp_path: Path) -> None:
    usual = play_guess(tmp_path / "usual")
    whole = play_guess(tmp_path / "whole", "--split", "all", tasks=2000)
    found = compare([load_played(usual), load_played(whole)])
    assert {world["pool"] for world in load_played(whole).worlds.values()}.isdisjoint(
        {world["pool"] for world in load_played(usual).worlds.values()}
    )
    told = r"paired on 4 tasks; .*\. Left out, because not every entry has them: \d+ tasks of whole"
    assert re.fullmatch(told, found.pairing)


def test_what_is_left_out_is_said() -> None:
    runs = [{"a": [1.0, 0.0, 1.0]}, {"a": [0.0, 0.0, 1.0]}, {"a": [1.0, 1.0, 0.0]}]
    whole, part = make_runs("x", *runs), make_runs("y", *({"a": one["a"][:2]} for one in runs[:2]))
    more = replace(whole, episodes={**whole.episodes, ("other", 0): whole.episodes["", 0]})
    found = compare([more, part])
    assert found.runs == 2 and found.pairing.endswith(
        ". Left out, because not every entry has them: 1 scenario, 1 run, 1 task of x"
    )
    assert "Left out" not in compare([whole, make_runs("z", *runs)]).pairing
    both = compare([part, more, replace(whole, name="z")])
    assert both.pairing.endswith("them: 1 scenario, 1 run, 1 task of x; 1 run, 1 task of z")


def test_a_pool_that_cannot_be_opened_here_is_not_compared_with_another() -> None:
    """Of files of others nothing is taken on trust: two digests differ, so the tasks may."""
    world = {"env": "someone/Other-v0", "split": "val", "options": {}}
    first, second = (
        replace(make_played(name, SURE), worlds={("", 0): {**world, "pool": f"sha256:{name * 64}"}}) for name in "ab"
    )
    with pytest.raises(DataError, match="b was played on the pool sha256:b"):
        compare([first, second])
    assert compare([first, replace(first, name="c")]).differences
