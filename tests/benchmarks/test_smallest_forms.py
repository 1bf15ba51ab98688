"""Benchmarks that train or play for long, each in its smallest form: it ends, and its figures can be true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import learning, misconceptions, small_model, tables, webshop
from benchmarks.__main__ import BENCHMARKS
from benchmarks.kept_results import load_results
from benchmarks.measurement import Measurement
from benchmarks.tables import Row
from fedagentgym.envs.make import open_pool
from fedagentgym.learning.recipe import Recipe


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RUNS", tmp_path / "runs")
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "data"))


def by_name(figures: Sequence[Measurement]) -> dict[str, float]:
    named = {figure.name: figure.value for figure in figures}
    assert len(named) == len(figures)
    return named


def test_a_learning_curve_has_its_points_and_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    recipe = Recipe.load(
        {
            "env": {"id": "fedagentgym/Guess-v0"},
            "agent": {"name": "tiny", "decoding": {"max_new_tokens": 8}},
            "warm_start": {"context_length": 256},
            "learning": {"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
            "evaluation": {"tasks": 5},
        }
    )
    monkeypatch.setattr(learning, "load_recipe", lambda _: recipe)
    monkeypatch.setattr(learning, "QUICK_WARM_START", {"steps": 2, "episodes": 8})
    figures = by_name(BENCHMARKS.get("learning-tiny")(True))
    curve = {figure: value for figure, value in figures.items() if " step " in figure}
    assert [figure.split(" step ")[1][0] for figure in curve] == ["0", "0", "2", "2"]
    for measure in ("success", "score"):
        points = [value for figure, value in curve.items() if figure.endswith(measure)]
        assert figures[f"tiny-math {measure} before"] == points[0]
        assert figures[f"tiny-math {measure} after (mean of 1 seeds)"] == points[-1]
        assert figures[f"tiny-math {measure} spread over seeds"] == 0.0
        assert all(0.0 <= value <= 1.0 for value in points)
    assert 0.0 < figures["tiny-math environment's share of rollouts"] < 1.0
    assert figures["tiny-math longest run"] > 0.0


def test_a_real_model_in_small_has_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an agent that nobody has to download; everything else is the benchmark's own."""
    pytest.importorskip("torch")
    smaller = (
        "agent={name: untrained-tiny, decoding: {max_new_tokens: 4}}",
        "warm_start=null",
        "learning.group_size=2",
        "evaluation.tasks=2",
    )
    kept = [one for one in small_model.QUICK_CHANGES if not one.startswith("warm_start.")]
    monkeypatch.setattr(small_model, "QUICK_CHANGES", (*kept, *smaller))
    figures = by_name(BENCHMARKS.get("small-math")(True))
    assert list(figures) == ["fedagent: held-out success", "fedagent: at the start"]
    assert all(0.0 <= value <= 1.0 for value in figures.values())
    results = load_results(tables.RUNS / "small-math-quick" / "results.json")
    told = small_model.describe(small_model.MATH, results)
    assert "| fedagent |" in told and told.startswith("`small-math`, seeds 0\n")


def test_a_shops_figures_are_shares_and_the_expert_beats_itself_with_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webshop, "ATTACKS", ("price",))
    figures = by_name(BENCHMARKS.get("webshop-figures")(True))
    assert all(name.startswith("tiny: ") for name in figures)
    goals = [value for name, value in figures.items() if "goals in " in name]
    assert len(goals) == 5 and sum(goals) == pytest.approx(100.0)
    shares = [value for name, value in figures.items() if "first" in name or "success" in name or "look-alikes" in name]
    assert len(shares) == 6 and all(0.0 <= value <= 100.0 for value in shares)
    assert (
        figures["tiny: expert: mean score"] > figures["tiny: expert with a random action in 30% of turns: mean score"]
    )
    assert 2.0 < figures["tiny: expert: turns"] < 20.0


@pytest.mark.parametrize(
    "world", [misconceptions.HOUSES, misconceptions.MATH, misconceptions.SHOP], ids=lambda world: world.name
)
def test_clients_that_practise_alone_are_those_of_the_preset(world: misconceptions.MisledPreset) -> None:
    """Categories in the order in which `by_source` numbers the clients, and misled as the warm start of the preset draws them."""
    pytest.importorskip("torch")
    from fedagentgym.envs import open_env
    from fedagentgym.experiment.config import load_config
    from fedagentgym.learning.misconceptions import draw_misconceptions

    table = world.make_table()
    configs = {row: load_config(source, table.row_changes[row]) for row, source in table.rows.items()}
    config = configs["start"]
    env = open_env(config.env.id, **config.plain()["env"]["options"])
    assert tuple(sorted(open_pool(env, "train").categories)) == world.categories
    assert config.plain()["partition"]["sampler"] == "by_source"
    assert config.plain()["partition"]["clients"] == len(world.categories)
    assert config.warm_start is not None and config.warm_start.misconceptions is not None
    shown = draw_misconceptions(env, config.warm_start.misconceptions)
    assert tuple(sorted(category for category, about in shown.items() if about.misled)) == world.misled
    for client, category in enumerate(world.categories):
        assert configs[f"practice in {category}"].plain()["algorithm"]["client"] == client


def test_a_cure_is_what_practice_adds_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    smaller = replace(
        misconceptions.MATH,
        quick=(
            "agent={name: untrained-tiny, decoding: {max_new_tokens: 4}}",
            "warm_start=null",
            "evaluation.tasks=24",
        ),
    )
    monkeypatch.setattr(misconceptions, "MATH", smaller)
    figures = by_name(BENCHMARKS.get("misconceptions-math")(True))
    assert list(figures)[:2] == ["start: all", "start: arithmetic"]
    assert (
        list(figures)[-1] == "number theory: own practice adds"
        and -1.0 <= figures["number theory: own practice adds"] <= 1.0
    )
    assert (tables.RUNS / "misconceptions-math-quick" / "table.md").is_file()


def test_practice_elsewhere_is_a_mean_over_the_other_categories() -> None:
    world = misconceptions.MisledPreset("made", "none", ("a", "b", "c"), ("b",), 1, 1, 1, ())
    rows = [
        Row("start", {"all": (0.5, 0.5), "a": (0.9, 0.9), "b": (0.1, 0.2), "c": (0.5, 0.4)}, 0, 0),
        Row("practice in a", {"all": (0.5, 0.5), "a": (1.0, 1.0), "b": (0.2, 0.2), "c": (0.5, 0.4)}, 0, 0),
        Row("practice in b", {"all": (0.5, 0.5), "a": (0.7, 0.7), "b": (0.8, 0.9), "c": (0.5, 0.4)}, 0, 0),
        Row("practice in c", {"all": (0.5, 0.5), "a": (0.9, 0.9), "b": (0.0, 0.0), "c": (0.6, 0.4)}, 0, 0),
    ]
    figures = by_name(misconceptions.summarize_cures(world, rows))
    assert figures["b: own practice adds"] == pytest.approx(0.7)
    assert figures["b: practice elsewhere adds"] == pytest.approx((0.0 - 0.1) / 2)
