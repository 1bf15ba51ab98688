"""The generalisation gap: success on `test` minus success on `unseen`, whose templates no other split has.

    python -m benchmarks generalisation

The players are the expert of every environment with such a split, at every size, and the tiny agents of the package. The expert
knows every template, so its success is 1 and its gap 0. The table goes to `docs/experiments/generalisation.md`; `quick` plays few
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import ROOT
from benchmarks.findings import Findings, write_place
from benchmarks.fixed_replies import list_audited, list_sizes, name_env
from benchmarks.measurement import Measurement
from fedagentgym.agents.model.pretrained import get_shipped_folder
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.envs.make import env_class, open_env
from fedagentgym.envs.tasks import UNSEEN
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.recipe import RecipeEnv, load_recipe
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.shipped import SHIPPED

PAGE = ROOT / "docs" / "experiments" / "generalisation.md"
PLACE = "generalisation"
COLUMNS = {"test, %": ".1f", "unseen, %": ".1f", "gap, points": ".1f", "tasks of each": "d"}
AGENT_TASKS, EXPERT_TASKS, QUICK_TASKS = 400, 24, 6
"""Numbers of tasks of each split: for an agent, for an expert, and for both in the quick form."""


def run(quick: bool = False) -> list[Measurement]:
    """Return the success of experts and tiny agents on new tasks of known and of unseen templates."""
    rows: dict[str, tuple[float | str, ...]] = {}
    figures: list[Measurement] = []
    for name, player, env, usual in _list_players():
        most = QUICK_TASKS if quick else EXPERT_TASKS if player.name == "expert" else AGENT_TASKS
        settings = usual.model_copy(update={"tasks": most})
        worlds = [open_env(env.id, **{**env.options, "split": split}) for split in ("test", UNSEEN)]
        found = [evaluate(player, world, settings) for world in worlds]
        test, unseen = (100 * one.overall["success"].mean for one in found)
        rows[name] = test, unseen, test - unseen, min(one.tasks for one in found)
        figures += [Measurement(f"{name}: test", test, "%"), Measurement(f"{name}: unseen", unseen, "%")]
    if not quick:
        write_place(PAGE, PLACE, Findings("player", COLUMNS, rows).to_markdown())
    return figures


def _list_players() -> Iterator[tuple[str, AgentSettings, RecipeEnv, EvaluationSettings]]:
    """The name of every player, its agent, its environment, and the settings of its evaluation."""
    held_out = [env_id for env_id in list_audited() if UNSEEN in env_class(env_id).splits]
    for env_id in held_out:
        for size in list_sizes(env_id):
            env = RecipeEnv(id=env_id, options={"size": size} if size else {})
            name = f"expert, {name_env(env_id)} {size}".strip()
            yield name, AgentSettings(name="expert"), env, EvaluationSettings()
    for name in SHIPPED:
        recipe = load_recipe(name)
        if recipe.env.id in held_out:
            agent = recipe.agent.model_copy(update={"model": str(get_shipped_folder() / name)})
            yield name, agent, recipe.env, recipe.evaluation
