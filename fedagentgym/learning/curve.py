"""A learning curve without a federation: a warm-started agent, its steps, and evaluations on held-out tasks between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fedagentgym.agents.presets import starts_from_nothing
from fedagentgym.base.errors import require_type
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.pretrain import pretrain_model, start_tiny
from fedagentgym.learning.recipe import Recipe

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent


class CurvePoint(NamedTuple):
    """The result after `step` steps and `seconds` of playing and learning (evaluations not counted)."""

    step: int
    seconds: float
    success: float
    score: float
    format_broken: float
    env_share: float


def learning_curve(recipe: Recipe, seed: int = 0) -> Iterator[CurvePoint]:
    """Train one agent by a recipe, without a federation, and evaluate it on held-out tasks in between.

    The agent starts from a warm start that is made once and shared by all seeds, as a pretrained model would be.

    Args:
        recipe: Settings of the environment, agent, warm start, learning and evaluation; see `load_recipe`.
        seed: Seed of the drawn tasks, the episodes and the sampling.

    Yields:
        After the warm start and after every `recipe.evaluation.every` steps: `step`, `seconds` of playing and learning,
        `success`, `score`, `format_broken`, and `env_share`, the environment's share of the time.
    """
    from fedagentgym.agents.presets import make_agent
    from fedagentgym.learning.learner import LocalTraining

    require_type("learning_curve takes a Recipe", recipe, Recipe)
    if starts_from_nothing(recipe.agent):
        made = start_tiny(recipe.env.id, recipe.env.options, recipe.warm_start, recipe.agent)
    else:
        warm_start = recipe.warm_start.for_pretrained(recipe.agent.adapter is not None)
        made = pretrain_model(recipe.agent, recipe.env.id, recipe.env.options, warm_start)
    agent: TokenAgent = make_agent(recipe.agent.model_copy(update={"model": str(made.folder)}))  # type: ignore[assignment]
    local = LocalTraining(
        agent,
        open_env(recipe.env.id, **{**recipe.env.options, "split": "train"}),
        recipe.learning,
        run_steps=recipe.steps,
    )
    unseen = open_env(recipe.env.id, **{**recipe.env.options, "split": recipe.evaluation.split})
    seconds, agent_seconds, env_seconds = 0.0, 0.0, 0.0
    while True:
        found = evaluate(local.agent, unseen, recipe.evaluation, seed=derive(0, "judged"))
        share = env_seconds / (agent_seconds + env_seconds) if env_seconds else found.stats.env_share
        means = {name: estimate.mean for name, estimate in found.overall.items()}
        yield CurvePoint(local.step, seconds, means["success"], means["score"], means["format_broken"], share)
        steps = min(recipe.evaluation.every, recipe.steps - local.step)
        if steps <= 0:
            return
        clock = time.perf_counter()
        report = local.run(steps, seed=derive(seed, "curve"))
        seconds += time.perf_counter() - clock
        agent_seconds += report.metrics["seconds/agent"] * steps
        env_seconds += report.metrics["seconds/env"] * steps
