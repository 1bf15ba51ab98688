"""The gap of generalisation: success on `test` less success on `unseen`, whose templates no other split has.

    python -m benchmarks generalisation

Played are the expert of every environment with such a split, at every size, and each tiny agent in the package: as it starts, and
after the policy steps of its recipe. The expert knows every template, so that its success is 1 and its gap 0. The table goes to
`docs/experiments/generalisation.md`; `quick` plays few tasks and one policy step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import ROOT
from benchmarks.findings import Findings, write_place
from benchmarks.fixed_replies import list_audited, list_sizes, name_env
from benchmarks.measurement import Measurement
from fedagentgym.agents.protocols import Player
from fedagentgym.base.streams import derive
from fedagentgym.envs.make import env_class, open_env
from fedagentgym.envs.tasks import UNSEEN
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.recipe import Recipe, load_recipe
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.shipped import SHIPPED

PAGE = ROOT / "docs" / "experiments" / "generalisation.md"
PLACE, EXPERT = "generalisation", "expert"
SEEDS = (0, 1, 2)
TASKS, EXPERT_TASKS, QUICK_TASKS = 400, 100, 6
"""The tasks of each split that an agent plays, an expert, and either in the quick form."""
COLUMNS = {"test, %": ".1f", "unseen, %": ".1f", "gap, points": ".1f", "tasks of each": "d", "trainings": "d"}
Pair = tuple[float, float]


def run(quick: bool = False) -> list[Measurement]:
    """Return the success of experts and tiny agents on test and on unseen templates."""
    rows: dict[str, tuple[float | str, ...]] = {}
    for name, pairs in _measure_all(quick):
        test, unseen = (100 * statistics.mean(side) for side in zip(*pairs, strict=True))
        tasks = QUICK_TASKS if quick else EXPERT_TASKS if name.startswith(EXPERT) else TASKS
        rows[name] = (test, unseen, test - unseen, tasks, len(pairs))
    found = Findings("player", COLUMNS, rows)
    if not quick:
        write_place(PAGE, PLACE, found.to_markdown())
    return [
        Measurement(f"{name}: {part}", float(value), unit)
        for name, cells in rows.items()
        for part, value, unit in zip(
            ("test", "unseen", "distance of the two"), (*cells[:2], abs(float(cells[2]))), "%%%", strict=True
        )
    ]


def _measure_all(quick: bool) -> Iterator[tuple[str, list[Pair]]]:
    """Every player's name, with its success on both splits once for each training."""
    held_out = [env_id for env_id in list_audited() if UNSEEN in env_class(env_id).splits]
    for env_id in held_out:
        for size in list_sizes(env_id):
            options = {"size": size} if size else {}
            found = _play_both(EXPERT, env_id, options, QUICK_TASKS if quick else EXPERT_TASKS)
            yield f"{EXPERT}, {name_env(env_id)} {size}".strip(), [found]
    for name in SHIPPED:
        recipe = load_recipe(name)
        if recipe.env.id in held_out:
            yield from _measure_recipe(name, recipe, quick)


def _measure_recipe(name: str, recipe: Recipe, quick: bool) -> Iterator[tuple[str, list[Pair]]]:
    """The shipped agent of a recipe, as it is and after its policy steps with some seeds."""
    from fedagentgym.agents.presets import make_agent
    from fedagentgym.learning.learner import LocalTraining
    from fedagentgym.learning.pretrain import start_tiny

    env_id, options = recipe.env.id, recipe.env.options
    made = start_tiny(env_id, options, recipe.warm_start, recipe.agent)
    settings = recipe.agent.model_copy(update={"model": str(made.folder)})
    tasks, steps = (QUICK_TASKS, 1) if quick else (TASKS, recipe.steps)
    yield f"{name}, as it starts", [_play_both(make_agent(settings), env_id, options, tasks, recipe.evaluation)]
    trained = []
    for seed in SEEDS[:1] if quick else SEEDS:
        train = open_env(env_id, **{**options, "split": "train"})
        local = LocalTraining(make_agent(settings), train, recipe.learning, run_steps=steps)
        local.run(steps, seed=derive(seed, "curve"))
        trained.append(_play_both(local.agent, env_id, options, tasks, recipe.evaluation))
    yield f"{name}, after {steps} policy steps", trained


def _play_both(
    player: Player | str, env_id: str, options: dict[str, Any], tasks: int, usual: EvaluationSettings | None = None
) -> Pair:
    """The success of a player on the first tasks of both splits."""
    settings = EvaluationSettings() if usual is None else usual
    settings = settings.model_copy(update={"tasks": tasks})
    found: Sequence[float] = [
        evaluate(player, open_env(env_id, **{**options, "split": split}), settings).overall["success"].mean
        for split in ("test", UNSEEN)
    ]
    return found[0], found[1]
