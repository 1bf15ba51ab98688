"""Tested recipes of environment, agent, warm start and learning, one YAML file each; and the agent that a run starts from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import Field

from fedagentgym.agents.model.pretrained import compute_weights_digest
from fedagentgym.agents.model.store import find_model
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.settings import Settings, merge
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, WarmStartSettings

RECIPES: Any = files("fedagentgym.learning") / "recipes"


class RecipeEnv(Settings):
    """An environment and its options."""

    id: str = Field(description="environment id")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the environment, such as size: tiny")


class Recipe(Settings):
    """Everything that a single-site run needs, from an untrained model to a trained agent."""

    env: RecipeEnv
    agent: AgentSettings = Field(default=AgentSettings(), description="who learns, and how it is prompted and decoded")
    warm_start: WarmStartSettings = Field(default=WarmStartSettings(), description="imitation before learning")
    learning: LearningSettings = Field(default=LearningSettings(), description="the policy step")
    steps: int = Field(default=100, ge=1, description="policy steps")
    evaluation: EvaluationSettings = Field(default=EvaluationSettings(), description="how progress is evaluated")


def list_recipes() -> list[str]:
    """The names of the recipes in this package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in RECIPES.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """Load a recipe of the package: all settings for training one agent from an untrained model, without a federation.

    Args:
        name: Name of the recipe, such as `tiny-guess`.

    Returns:
        The recipe, with `env`, `agent`, `warm_start`, `learning`, `steps` and `evaluation`.

    Raises:
        UnknownNameError: If there is no such recipe.

    Examples:
        >>> load_recipe("tiny-guess").env.id
        'fedagentgym/Guess-v0'
    """
    import yaml

    if name not in list_recipes():
        raise unknown_name_error("recipe", name, list_recipes())
    return Recipe.load(yaml.safe_load((RECIPES / f"{name}.yaml").read_text("utf-8")), f"recipe {name}")


def find_recipe(env_id: str) -> Recipe | None:
    """The recipe for the tiny agent of an environment, if there is one."""
    found = (load_recipe(name) for name in list_recipes() if name.startswith("tiny-"))
    return next((recipe for recipe in found if recipe.env.id == env_id), None)


def complete_tiny(agent: AgentSettings, env_id: str, warm_start: WarmStartSettings | None) -> AgentSettings:
    """Complete the settings of a tiny agent by the recipe of its environment. If a warm start is given, no recipe is used."""
    recipe = find_recipe(env_id) if warm_start is None else None
    if recipe is None:
        return agent
    given, usual = (one.model_dump(mode="json", exclude_unset=True) for one in (agent, recipe.agent))
    return AgentSettings.load(merge(usual, given), "agent")


def prepare_agent(
    agent: AgentSettings, env_id: str, options: Mapping[str, Any], warm_start: WarmStartSettings | None
) -> tuple[AgentSettings, dict[str, Any]]:
    """Return the settings from which the agent is loaded, and a note of its origin; a missing model is made first.

    The same settings give bit-identical weights on the same kind of processor; `weights` in the note is their digest.
    Imitation is done once and shared by all runs with the same settings; the models of some recipes come with the package.
    """
    from fedagentgym.learning.pretrain import pretrain_model, start_tiny

    learner = agent.model_copy(update={"harness": None})  # a harness has no part in imitation
    if starts_from_nothing(agent):
        recipe = find_recipe(env_id)
        settings = warm_start or (recipe.warm_start if recipe is not None else WarmStartSettings())
        made = start_tiny(env_id, options, settings, learner.model_copy(update={"adapter": None}))
    elif warm_start is not None:
        settings = warm_start
        made = pretrain_model(learner, env_id, options, settings)
    else:
        model = get_model(agent)
        if model is None:
            return agent, {}
        stored = find_model(model)  # a name may refer to another model later, so the files have a digest
        return agent, {"model": model} | ({} if stored is None else {"source": stored.source, "files": stored.digest})
    note: dict[str, Any] = {
        "warm_start": settings.model_dump(mode="json"),
        "success": made.note.get("success"),
        **{key: value for key, value in made.note.items() if key in ("misconceptions", "beliefs")},
        "weights": compute_weights_digest(made.folder),
    }
    return agent.model_copy(update={"model": str(made.folder)}), note
