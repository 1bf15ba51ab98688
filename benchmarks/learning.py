"""Learning curves of the tiny agents: each recipe of `learning/recipes`, from its warm start to its end, on held-out tasks.

`learning-tiny` follows all recipes, `learning-tiny-math` and the like one of them. `learning-ppo` has a value head instead of
groups of episodes, with as many episodes a step. `quick` takes a few steps with one seed; it shows that the benchmark runs, not
that agents learn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.kept_curves import save_curves
from benchmarks.measurement import Measurement
from fedagentgym.base.progress import show_progress
from fedagentgym.base.settings import merge
from fedagentgym.learning.curve import CurvePoint, learning_curve
from fedagentgym.learning.recipe import Recipe, list_recipes, load_recipe

SEEDS = (0, 1, 2)
QUICK_RECIPE = "tiny-math"
QUICK_WARM_START = {"steps": 50, "episodes": 200}
TARGETS = {"tiny-alfworld": "from 0.20-0.45 to at least 0.75 in under 600 s on two quiet cores"}


def run(quick: bool) -> list[Measurement]:
    """Success (and score) before and after, per recipe and seed, with the curve between."""
    return [figure for name in ([QUICK_RECIPE] if quick else list_recipes()) for figure in _run_recipe(name, quick)[0]]


def run_alfworld(quick: bool) -> list[Measurement]:
    """The curve of one recipe: houses."""
    return _run_recipe("tiny-alfworld", quick)[0]


def run_math(quick: bool) -> list[Measurement]:
    """The curve of one recipe: mathematics."""
    return _run_recipe("tiny-math", quick)[0]


def run_records(quick: bool) -> list[Measurement]:
    """The curve of one recipe: questions about databases."""
    return _run_recipe("tiny-records", quick)[0]


def run_skills(quick: bool) -> list[Measurement]:
    """The curve of one recipe: categories of different skills."""
    return _run_recipe("tiny-skills", quick)[0]


def run_webshop(quick: bool) -> list[Measurement]:
    """The curve of one recipe: the shop."""
    return _run_recipe("tiny-webshop", quick)[0]


PPO: Mapping[str, Mapping[str, Any]] = {
    "tiny-guess": {
        "steps": 120,
        "learning": {"tasks_per_step": 256, "learning_rate": 1e-3},
        "evaluation": {"every": 20, "repeats": 4},
    },
    "tiny-alfworld": {"learning": {"tasks_per_step": 128}},
}
"""The changes to a recipe for the runs with a value head, besides the advantage and groups of one episode."""
PPO_CURVES = "learning-ppo"
"""The name of the kept curves of PPO, success by policy step."""


def run_ppo(quick: bool) -> list[Measurement]:
    """The curves of two recipes by PPO: a hidden number, and houses."""
    figures = []
    kept = {}
    for name, changes in PPO.items():
        plain = load_recipe(name).model_dump(mode="json")
        plain["learning"] |= {"advantage": "gae", "group_size": 1}
        recipe = Recipe.load(merge(plain, changes), name)
        measured, curves = _run_recipe(name, quick, recipe)
        figures += measured
        kept[name] = [[(point.step, point.success) for point in curve] for curve in curves]
        if quick:
            break
    if not quick:
        save_curves(PPO_CURVES, kept)
    return figures


def _run_recipe(
    name: str, quick: bool, recipe: Recipe | None = None
) -> tuple[list[Measurement], list[list[CurvePoint]]]:
    figures: list[Measurement] = []
    recipe = recipe or load_recipe(name)
    if quick:
        shorter = recipe.evaluation.model_copy(update={"tasks": 20, "every": 2})
        warm = recipe.warm_start.model_copy(update=QUICK_WARM_START)
        recipe = recipe.model_copy(update={"steps": 2, "warm_start": warm, "evaluation": shorter})
    curves = [_run_seed(name, recipe, seed, figures) for seed in (SEEDS[:1] if quick else SEEDS)]
    return figures + _summarize_curves(name, curves), curves


def _run_seed(name: str, recipe: Recipe, seed: int, figures: list[Measurement]) -> list[CurvePoint]:
    points: list[CurvePoint] = []
    with show_progress(f"{name} seed {seed}", total=recipe.steps) as bar:
        for point in learning_curve(recipe, seed):
            bar.advance(point.step - (points[-1].step if points else 0), success=point.success, score=point.score)
            points.append(point)
            label = f"{name} seed {seed} step {point.step} ({point.seconds:.0f} s)"
            figures.append(Measurement(f"{label} success", point.success, ""))
            figures.append(Measurement(f"{label} score", point.score, ""))
    return points


def _summarize_curves(name: str, curves: list[list[CurvePoint]]) -> list[Measurement]:
    bar = TARGETS.get(name, "after clearly above before, beyond the spread over seeds")
    figures = []
    for measure in ("success", "score"):
        before = statistics.mean(getattr(curve[0], measure) for curve in curves)
        after = [float(getattr(curve[-1], measure)) for curve in curves]
        spread = statistics.stdev(after) if len(after) > 1 else 0.0
        figures.append(Measurement(f"{name} {measure} before", before, ""))
        figures.append(
            Measurement(f"{name} {measure} after (mean of {len(after)} seeds)", statistics.mean(after), "", bar)
        )
        figures.append(Measurement(f"{name} {measure} spread over seeds", spread, ""))
    figures.append(Measurement(f"{name} longest run", max(curve[-1].seconds for curve in curves), "s"))
    figures.append(Measurement(f"{name} environment's share of rollouts", curves[0][-1].env_share, ""))
    return figures
