"""The tables of the world of skills: equal budgets, settings that load, and pages that say beforehand what is expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.skills_tables import (
    EXPERIMENTS,
    HETEROGENEITIES,
    METHODS,
    SHARED,
    Experiment,
    list_categories,
    make_own_rewards_column,
    make_weight_column,
    read_success_elsewhere,
)
from benchmarks.skills_worlds import make_world
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.leaderboard.suite import load_suite
from fedagentgym.learning.misconceptions import draw_misconceptions

by_name = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.table.name)


@by_name
def test_every_row_plays_as_much_and_pairs_are_rows(experiment: Experiment) -> None:
    table = experiment.table
    assert len(table.rows) <= (15 if experiment is METHODS else 9)
    assert {row for pair in table.pairs for row in pair} <= set(table.rows)
    for row, source in table.rows.items():
        config = load_config(source)
        expected = 0 if row == "zero-shot" else experiment.episodes
        assert plan_run(config).total.episodes == expected, row
        assert config.partition.clients == 8 and config.env.options["skills"] == 32
        shown = config.warm_start.misconceptions if config.warm_start is not None else None
        assert shown is not None and (shown.share == 0.5) == (not row.startswith("favoured"))


@by_name
def test_clients_hold_four_categories_two_of_them_misled(experiment: Experiment) -> None:
    config = load_config(list(experiment.table.rows.values())[1])
    split = Runtime(config.spec()).client_split
    assert len(split) == 8 and config.warm_start is not None and config.warm_start.misconceptions is not None
    env = split.client(0).open_env()
    shown = draw_misconceptions(env, config.warm_start.misconceptions)
    named = list_categories({"config": config.plain(), "final": {}})
    for client in range(8):
        towns = split.client(client).open_env().pool.categories
        assert sorted(towns) == sorted(named[client]) and sum(towns.values()) == 512
        assert sorted((shown[town].own, shown[town].misled) for town in towns) == [
            ("+", False),
            ("+", True),
            ("-", False),
            ("-", True),
        ]
    assert len(split.role("auxiliary")) == 640 and len(split.role("auxiliary").categories) == 32


def test_clients_of_three_kinds() -> None:
    def count_skills(variants: str) -> list[tuple[int, int]]:
        config = load_config(f"tiny-skills:skills-32,{variants}fedavg-grpo")
        split = Runtime(config.spec()).client_split
        found = []
        for client in range(len(split)):
            env = split.client(client).open_env()
            own = env.list_procedures()
            towns = env.pool.categories
            found.append((len(towns), len({own[town].own for town in towns})))
        return found

    assert {kind: set(count_skills(how)) for kind, how in HETEROGENEITIES.items()} == {
        "alike": {(32, 2)},
        "four towns": {(4, 2)},  # codespell:ignore towns
        "one procedure": {(4, 1)},
    }


def describe_protocol(experiment: Experiment) -> str:
    """The protocol on a page, below its hypotheses."""
    table = experiment.table
    lines = [
        "The protocol:",
        "",
        f"- Metric: {experiment.metric}.",
        f"- Budget: {experiment.episodes:,} episodes to learn from in every row but zero-shot.",
        f"- Seeds: 0 to {table.seeds - 1}, each a world of its own; settings are chosen on 100 to 107.",
        f"- The smallest difference that counts: {experiment.smallest}; differences are paired by seed, with 95 % intervals; the "
        "tests of difference and of equality are corrected together, for all comparisons of the page.",
        "",
        "| row | run alone |",
        "|---|---|",
        *(f"| {row} | `fedagentgym train {source}` |" for row, source in table.rows.items()),
    ]
    return "\n".join(lines) + "\n"


@by_name
def test_the_page_says_what_is_expected_and_what_is_run(experiment: Experiment, root: Path) -> None:
    page = (root / "docs" / "experiments" / f"{experiment.table.name.removeprefix('skills-')}.md").read_text()
    assert describe_protocol(experiment) in page and "\n3. " in page.partition("The protocol:")[0]


@by_name
def test_quick_tables(experiment: Experiment) -> None:
    quick = experiment.make_quick_table()
    assert experiment.table.first_seed == 0 and experiment.table.seeds == 12
    for source in quick.rows.values():
        config = load_config(source, quick.changes)
        assert config.partition.clients == 8 and config.federation.rounds == 1
    assert len(Runtime(config.spec()).client_split.role("server")) == 400


def test_every_seed_has_a_world_in_which_clients_are_of_the_same_kinds() -> None:
    for variants, kinds in (
        ("", {("+", False), ("+", True), ("-", False), ("-", True)}),
        ("one-procedure,", {("+",), ("-",)}),
    ):
        source = f"tiny-skills:skills-32,{variants}fedavg-grpo"
        config = load_config(source, make_world(3, source))
        assert config.warm_start is not None and config.warm_start.misconceptions is not None
        split = Runtime(config.spec()).client_split
        shown = draw_misconceptions(split.client(0).open_env(), config.warm_start.misconceptions)
        for client in range(8):
            towns = split.client(client).open_env().pool.categories
            own, misled = [shown[town].own for town in towns], [shown[town].misled for town in towns]
            assert len(towns) == 4 and sum(misled) == 2
            assert set(zip(own, misled, strict=True)) == kinds or {(one,) for one in own} < kinds
    assert make_world(3, "tiny-skills:fedavg-grpo") == make_world(3, "tiny-skills:skills-32,iid,fedavg-grpo")


@pytest.mark.parametrize(("variant", "count"), [("procedures-2", 4), ("procedures-3", 8)])
def test_with_more_procedures_a_client_holds_four_of_them(variant: str, count: int) -> None:
    source = f"tiny-skills:skills-32,{variant}"
    for seed in (0, 7):
        config = load_config(source, make_world(seed, source))
        assert config.warm_start is not None and config.warm_start.misconceptions is not None
        split = Runtime(config.spec()).client_split
        shown = draw_misconceptions(split.client(0).open_env(), config.warm_start.misconceptions)
        assert len({about.own for about in shown.values()}) == count
        held = [split.client(client).open_env().pool.categories for client in range(8)]
        assert sorted(town for towns in held for town in towns) == sorted(shown)
        for towns in held:
            assert len({shown[town].own for town in towns}) == 4 and sum(shown[town].misled for town in towns) == 2


@pytest.mark.parametrize("name", ["skills-fedagent-v1", "skills-pubswap-v1", "skills-more-v1"])
@pytest.mark.parametrize("seed", [0, 9, 101])
def test_a_suites_worlds_are_drawn_likewise(name: str, seed: int) -> None:
    suite = load_suite(name)
    for scenario, own in suite.scenarios.items():
        source = f"tiny-skills:skills-32,{scenario}" if name == "skills-more-v1" else "tiny-skills:skills-32"
        assert own.worlds[seed] == make_world(seed, source)[-1:]


def test_own_rewards_are_of_each_clients_category_and_style() -> None:
    def town(bare: float, unit: float) -> dict[str, dict[str, float]]:
        paid = {**dict.fromkeys((*SHARED, "thought", "brevity"), 0.5), "style/bare": bare, "style/unit": unit}
        return {f"reward/{name}": {"mean": value} for name, value in paid.items()}

    judged = {"categories": {"Arle": town(1.0, 0.0), "Bost": town(1.0, 0.0)}}
    record = {"final": judged, "config": {"partition": {}}}
    assert make_own_rewards_column()(Path(), record) == pytest.approx((2.5 / 4 + 1.5 / 4) / 2)
    assert make_own_rewards_column(worst=True)(Path(), record) == pytest.approx(1.5 / 4)
    unequal = {"partition": {}, "algorithm": {"objectives": [["accuracy", "format"], ["accuracy", "style/unit"]]}}
    assert make_own_rewards_column()(Path(), {"final": judged, "config": unequal}) == pytest.approx((0.5 + 0.25) / 2)
    together = {"partition": {"sources": {"Dorn+Arle": 1, "Bost+Cray": 1}}}
    assert list_categories({"final": judged, "config": together}) == [["Bost", "Cray"], ["Dorn", "Arle"]]


def test_success_elsewhere_leaves_the_first_client_out() -> None:
    judged = {town: {"success": {"mean": value}} for town, value in (("Arle", 1.0), ("Bost", 0.2), ("Cray", 0.4))}
    record = {"final": {"categories": judged}, "config": {"partition": {"sources": {"Bost+Cray": 1, "Arle": 1}}}}
    assert read_success_elsewhere(Path(), record) == pytest.approx(0.3)


def test_weights_are_those_after_the_last_round(tmp_path: Path) -> None:
    rounds = [
        {"round": 0, "metrics": {}, "clients": {}},
        {"round": 1, "metrics": {}, "clients": {"0": {"weight/format": 0.25}, "1": {"weight/format": 0.25}}},
        {"round": 2, "metrics": {}, "clients": {"0": {"weight/format": 0.1}, "1": {"weight/format": 0.2}}},
    ]
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in rounds))
    assert make_weight_column("format")(tmp_path, {}) == pytest.approx(0.15)
    log.write_text(json.dumps(rounds[0]) + "\n")
    assert make_weight_column("format")(tmp_path, {}) == 0.25
