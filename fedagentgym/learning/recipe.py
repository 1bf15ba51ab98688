"""Recipes that are known to work: world, agent, warm start, learning - one YAML file each in `recipes/`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pydantic import Field

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import unknown
from fedagentgym.base.settings import Settings
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings, WarmStartSettings


class World(Settings):
    """An environment and its options."""

    id: str = Field(description="environment id")
    options: dict[str, Any] = Field(default_factory=dict, description="keywords of the environment, such as size: tiny")


class Recipe(Settings):
    """Everything that a single-site run from nothing to a trained agent needs."""

    env: World
    agent: AgentSettings = Field(default=AgentSettings(), description="who learns, and how it is prompted and decoded")
    warm_start: WarmStartSettings = Field(default=WarmStartSettings(), description="imitation before learning")
    learning: LearningSettings = Field(default=LearningSettings(), description="the policy step")
    steps: int = Field(default=100, ge=1, description="policy steps")
    evaluation: EvaluationSettings = Field(default=EvaluationSettings(), description="how progress is judged")


def recipe_names() -> list[str]:
    """The names of the recipes in this package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """A recipe by name."""
    import yaml

    if name not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    return Recipe.load(yaml.safe_load((_folder() / f"{name}.yaml").read_text("utf-8")), f"recipe {name}")


def recipe_for(env_id: str) -> Recipe | None:
    """The recipe of a world, if there is one."""
    return next((recipe for recipe in map(load_recipe, recipe_names()) if recipe.env.id == env_id), None)


def _folder() -> Any:
    return files("fedagentgym.learning") / "recipes"
