"""Tested recipes: environment, agent, warm start, learning - one YAML file each in `recipes/`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pydantic import Field

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import unknown_name_error
from fedagentgym.base.settings import Settings
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, WarmStartSettings


class RecipeEnv(Settings):
    """An environment and its options."""

    id: str = Field(description="environment id")
    options: dict[str, Any] = Field(default_factory=dict, description="keywords of the environment, such as size: tiny")


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
    return sorted(
        entry.name.removesuffix(".yaml") for entry in _get_recipe_folder().iterdir() if entry.name.endswith(".yaml")
    )


def load_recipe(name: str) -> Recipe:
    """A recipe by name."""
    import yaml

    if name not in list_recipes():
        raise unknown_name_error("recipe", name, list_recipes())
    return Recipe.load(yaml.safe_load((_get_recipe_folder() / f"{name}.yaml").read_text("utf-8")), f"recipe {name}")


def find_recipe(env_id: str) -> Recipe | None:
    """The recipe for the tiny agent of an environment, if there is one."""
    found = (load_recipe(name) for name in list_recipes() if name.startswith("tiny-"))
    return next((recipe for recipe in found if recipe.env.id == env_id), None)


def _get_recipe_folder() -> Any:
    return files("fedagentgym.learning") / "recipes"
