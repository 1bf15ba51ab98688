from __future__ import annotations

from importlib.resources import files

import pytest
import yaml

from fedagentgym.agents.model.pretrained import get_tiny_folder
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.experiment.config import list_presets, load_config
from fedagentgym.learning.curve import learning_curve
from fedagentgym.learning.recipe import Recipe, find_recipe, list_recipes, load_recipe
from fedagentgym.learning.settings import EvaluationSettings, LearningSettings


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_valid_and_belongs_to_a_world(name: str) -> None:
    recipe = load_recipe(name)
    own = find_recipe(recipe.env.id)
    assert own is not None and recipe.env.id in ENVIRONMENTS
    size = {"size": recipe.env.options.get("size")}
    assert {**own.env.options, **size} == {**recipe.env.options, **size}, (
        "a second recipe of a world differs in size alone"
    )
    assert recipe.evaluation.split in ENVIRONMENTS.get(recipe.env.id).evaluation_splits


@pytest.mark.parametrize("name", sorted({*list_recipes()} & {*list_presets()}))
def test_the_preset_of_that_name_plays_in_the_recipes_world_with_its_agent_and_step(name: str) -> None:
    texts = [
        files(package) / f"{name}.yaml"
        for package in ("fedagentgym.learning.recipes", "fedagentgym.experiment.presets")
    ]
    recipe, preset = (yaml.safe_load(text.read_text("utf-8")) for text in texts)
    assert preset["env"] == recipe["env"] and preset["agent"] == recipe["agent"]
    chosen_per_run = {"tasks_per_step", "learning_rate", "schedule"}
    shared = [{key: part["learning"].get(key) for key in recipe["learning"]} for part in (recipe, preset)]
    assert {key for key in shared[0] if shared[0][key] != shared[1][key]} <= chosen_per_run


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo", "tiny-alfworld-misconceptions"),
        ("demo:alone", "tiny-alfworld-misconceptions"),
        ("tiny-alfworld:misconceptions", "tiny-alfworld-misconceptions"),
        ("tiny-webshop:misconceptions", "tiny-webshop-misconceptions"),
    ],
)
def test_runs_with_misconceptions_start_from_the_agent_of_a_recipe(source: str, name: str) -> None:
    config, recipe = load_config(source), load_recipe(name)
    assert (config.env.options, config.agent, config.warm_start) == (
        recipe.env.options,
        recipe.agent,
        recipe.warm_start,
    )


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(UnknownNameError, match="tiny-math"):
        load_recipe("tiny-maths")
    assert find_recipe("fedagentgym/QA-v0") is None


def test_a_curve_begins_before_the_first_step_and_ends_after_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: str
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path))
    recipe = Recipe.load(
        {
            "env": {"id": "fedagentgym/Guess-v0"},
            "agent": {"name": "tiny", "decoding": {"max_new_tokens": 8}},
            "warm_start": {"steps": 10, "episodes": 30, "context_length": 256},
            "learning": {"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
            "steps": 3,
            "evaluation": {"tasks": 5, "every": 2},
        }
    )
    points = list(learning_curve(recipe))
    assert [point.step for point in points] == [0, 2, 3]
    assert points[0].seconds == 0 < points[1].seconds < points[2].seconds
    assert list(learning_curve(recipe))[-1].success == points[-1].success
    assert not get_tiny_folder(open_env("fedagentgym/Guess-v0")).exists(), "the agent of `pretrain tiny` is the user's"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"clip": [0.2]}, "learning.clip"),
        ({"clip": [1.5, 0.2]}, "clip is"),
        ({"cilp": [0.2, 0.2]}, "did you mean 'clip'"),
        ({"advantage": "ppo"}, "learning.advantage: unknown advantage estimator 'ppo'"),
        ({"advantage": {"name": "gigpoo"}}, "did you mean 'gigpo'"),
        (
            {"advantage": {"name": "grpo", "omega": 0.5}},
            "'learning.advantage.omega': known keys are name, std, baseline",
        ),
        ({"advantage": {"name": "dr_grpo", "std": "sample"}}, "unknown key 'learning.advantage.std'"),
        ({"advantage": {"name": "gigpo", "omga": 0.5}}, "did you mean 'omega'"),
        ({"advantage": {"omega": 0.5}}, "unknown key 'learning.advantage.omega'"),
        ({"kl": -1}, "learning.kl"),
        ({"kl": True}, "learning.kl"),
        ({"objectives": []}, "learning.objectives"),
        ({"objectives": ["reward", "reward"]}, "twice"),
        ({"betas": [0.9, 1.0]}, "betas"),
        ({"learning_rate": float("nan")}, "learning.learning_rate"),
        ({"learning_rate": "fast"}, "learning.learning_rate"),
        ({"schedule": {"name": "cosine", "floor": 2}}, "learning.schedule.floor"),
    ],
)
def test_wrong_settings_are_explained(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        LearningSettings.load(wrong, "learning")


def test_short_forms() -> None:
    settings = LearningSettings.load(
        {
            "kl": 0.01,
            "advantage": "gigpo",
            "loss": "sequence",
            "schedule": "cosine",
            "objectives": ["accuracy/math", "length"],
        }
    )
    assert settings.kl.coefficient == 0.01 and settings.kl.reference == "round"
    assert (settings.advantage.name, settings.loss.name, settings.schedule.name) == ("gigpo", "sequence", "cosine")
    assert [objective.weight for objective in settings.objectives] == [1.0, 1.0]
    assert LearningSettings.load(settings.model_dump(mode="json")) == settings
    assert EvaluationSettings.load({"split": "test"}).temperature == 0.4
