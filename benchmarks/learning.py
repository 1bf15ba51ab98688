"""Does the tiny agent learn? Each recipe of `learning/recipes`, from its warm start to its end, on unseen tasks.

`learning-tiny` follows all recipes, `learning-tiny-math` and its like one of them. `quick` takes a few steps with one seed: it
shows that the machinery runs, not that it learns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measurement import Measurement
from benchmarks.tables import ExperimentTable, run_folder, run_table, to_measurements
from fedagentgym.base.progress import show_progress
from fedagentgym.learning.curve import CurvePoint, learning_curve
from fedagentgym.learning.recipe import Recipe, list_recipes, load_recipe

SEEDS = (0, 1, 2)
QUICK_RECIPE = "tiny-math"
QUICK_WARM_START = {"steps": 50, "episodes": 200}
TARGETS = {"tiny-alfworld": "from 0.20-0.45 to at least 0.75 in under 600 s on two quiet cores"}


def run(quick: bool) -> list[Measurement]:
    """Success (and score) before and after, per recipe and seed, with the curve between."""
    return [figure for name in ([QUICK_RECIPE] if quick else list_recipes()) for figure in _run_recipe(name, quick)]


def run_alfworld(quick: bool) -> list[Measurement]:
    """The curve of one recipe: houses."""
    return _run_recipe("tiny-alfworld", quick)


def run_math(quick: bool) -> list[Measurement]:
    """The curve of one recipe: mathematics."""
    return _run_recipe("tiny-math", quick)


def run_skills(quick: bool) -> list[Measurement]:
    """The curve of one recipe: towns of different skills."""
    return _run_recipe("tiny-skills", quick)


def run_webshop(quick: bool) -> list[Measurement]:
    """The curve of one recipe: the shop."""
    return _run_recipe("tiny-webshop", quick)


def _run_recipe(name: str, quick: bool) -> list[Measurement]:
    figures: list[Measurement] = []
    recipe = load_recipe(name)
    if quick:
        shorter = recipe.evaluation.model_copy(update={"tasks": 20, "every": 2})
        warm = recipe.warm_start.model_copy(update=QUICK_WARM_START)
        recipe = recipe.model_copy(update={"steps": 2, "warm_start": warm, "evaluation": shorter})
    curves = [_run_seed(name, recipe, seed, figures) for seed in (SEEDS[:1] if quick else SEEDS)]
    return figures + _summarize_curves(name, curves)


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


# ---- a real model in small -----------------------------------------------------------------------------------------

SMALL_MATH = ExperimentTable(
    "small-math",
    {"imitation alone": "small-math:imitation", "fedagent": "small-math"},
    pairs=[("fedagent", "imitation alone")],
    seeds=2,
    processes=1,
)
QUICK = SMALL_MATH.make_quick(
    SMALL_MATH.rows,
    [
        "warm_start.episodes=32",
        "warm_start.steps=4",
        "federation.rounds=1",
        "learning.tasks_per_step=1",
        "evaluation.tasks=8",
    ],
    seeds=1,
)


def run_small_math(quick: bool = False) -> list[Measurement]:
    """Success on unseen tasks after imitation, and after the clients' practice."""
    table = QUICK if quick else SMALL_MATH
    return to_measurements(run_table(table, run_folder(table.name)))


TUNING_SEEDS = 100
"""The suite `methods-small-skills-v1` reports seeds from 0 on."""


def _make_small_world(seed: int, source: str) -> Sequence[str]:
    """Every seed has procedures, misconceptions, tasks and a split of its own, as in the suite."""
    return (f"env.options.seed={seed}", f"warm_start.misconceptions.seed={seed}", f"partition.seed={seed}")


SMALL_SKILLS = ExperimentTable(
    "small-skills-factors",
    {
        "as it is": "small-skills",
        "no bonus": "small-skills:no-bonus",
        "named once": "small-skills:named-once",
        "8 x 8": "small-skills:wide",
        "rate 3e-4": "small-skills:slow",
    },
    pairs=[(row, "as it is") for row in ("no bonus", "named once", "8 x 8", "rate 3e-4")],
    seeds=2,
    changes=("federation.workers=0", "evaluation={every: 8, tasks: 128}"),
    row_changes={
        **dict.fromkeys(("as it is", "no bonus", "named once", "rate 3e-4"), ("federation.rounds=8",)),
        "8 x 8": ("federation.rounds=4",),
    },
    processes=1,
    first_seed=TUNING_SEEDS,
    world=_make_small_world,
)
QUICK_SKILLS = replace(
    SMALL_SKILLS.make_quick(
        {"as it is": "small-skills"},
        [
            "warm_start.episodes=32",
            "warm_start.steps=2",
            "federation={rounds: 1, workers: 0}",
            "learning.tasks_per_step=1",
            "evaluation.tasks=8",
        ],
        seeds=1,
    ),
    row_changes={},
)


def run_small_skills(quick: bool = False) -> list[Measurement]:
    """What decides whether small-skills learns: each setting changed by itself."""
    table = QUICK_SKILLS if quick else SMALL_SKILLS
    return to_measurements(run_table(table, run_folder(table.name)))
