"""The tiny agents of the package: they are what today's recipes make, runs and people find them, and a check notices if not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents.model.pretrained import compute_weights_digest, get_shipped_folder, list_shipped
from fedagentgym.agents.presets import make_agent
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.opened import resolve_agent
from fedagentgym.learning import pretrain, shipped
from fedagentgym.learning.pretrain import PretrainResult, compute_recipe, pretrain_tiny
from fedagentgym.learning.recipe import load_recipe
from fedagentgym.learning.settings import WarmStartSettings

GUESS = "tiny-guess"


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OptionError("this would be trained")

    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrain, "warm_start", refuse)


def test_the_package_holds_what_todays_recipes_make() -> None:
    recipes = shipped.list_shipped_recipes()
    assert [one.folder.name for one in list_shipped()] == sorted(recipes)
    for one in list_shipped():
        recipe = recipes[one.folder.name]
        made = compute_recipe(recipe.env.id, recipe.env.options, recipe.warm_start, recipe.agent)
        assert one.note["recipe"] == made, "made by an older recipe: fedagentgym pretrain tiny --ship"
        assert WarmStartSettings.load(one.note["warm_start"]) == recipe.warm_start
        low, high = one.note["interval"]
        assert low <= one.note["success"] <= high and one.is_misled == bool(recipe.warm_start.misconceptions)
        assert sum(file.stat().st_size for file in one.folder.iterdir()) < 900_000


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo", "tiny-alfworld-misconceptions"),
        ("demo:alone", "tiny-alfworld-misconceptions"),
        ("tiny-alfworld", "tiny-alfworld"),
        ("tiny-alfworld:centralized", "tiny-alfworld"),
        ("tiny-alfworld:lora", "tiny-alfworld"),
        ("tiny-alfworld:misconceptions", "tiny-alfworld-misconceptions"),
        ("tiny-records", "tiny-records"),
        ("tiny-records:rules,personal-head", "tiny-records"),
        ("tiny-skills:fedavg-grpo", "tiny-skills"),
        ("tiny-webshop:misconceptions", "tiny-webshop-misconceptions"),
    ],
)
def test_runs_start_from_it_and_say_from_which_weights(source: str, name: str) -> None:
    settings, note = resolve_agent(load_config(source))
    folder = get_shipped_folder() / name
    assert settings.model == str(folder) and note["weights"] == compute_weights_digest(folder)
    assert note["success"] == json.loads((folder / "pretrain.json").read_text())["success"]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"id": "ALFWorld", "options": {"size": "tiny"}}, "tiny-alfworld"),
        ({"id": "Math", "options": {"size": "tiny"}}, "tiny-math"),
        ({"id": "Skills", "options": {"wording": "short", "naming": "repeated"}}, "tiny-skills"),
        ({"id": "Records", "options": {"size": "tiny", "categories": "kind"}}, "tiny-records"),
        ({"id": "Guess"}, "tiny-guess"),
    ],
)
@pytest.mark.parametrize("agent", ["tiny", {"name": "tiny", "decoding": {"max_new_tokens": 40}, "threads": 2}])
def test_a_configuration_of_ones_own_starts_from_it(env: dict[str, Any], name: str, agent: Any) -> None:
    config = load_config({"env": env, "agent": agent, "partition": {"clients": 2}})
    settings, note = resolve_agent(config)
    assert settings.model == str(get_shipped_folder() / name) and note["weights"]
    usual = load_recipe(name).agent.decoding
    wanted = 40 if isinstance(agent, dict) else None if usual is None else usual.max_new_tokens
    assert (None if settings.decoding is None else settings.decoding.max_new_tokens) == wanted
    assert load_config(config.plain()).digest == config.digest


@pytest.mark.parametrize(
    ("source", "change", "said"),
    [
        ("demo", "warm_start.steps=499", "has other settings"),
        ("tiny-alfworld", "agent.template=standard", r"has other settings \(agent.template\)"),
        (
            "tiny-alfworld",
            "env.options.size=small",
            "other options only; the one for fedagentgym/ALFWorld-v0 --env-set size=tiny comes with",
        ),
        ("tiny-mixture", "seed=0", "the package has none for this environment"),
    ],
)
def test_another_recipe_is_another_agent(source: str, change: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OptionError, match="would be trained"):
        resolve_agent(load_config(source, [change]))
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.search(f"making a tiny agent for .*since.*{said}", line) and "steps of imitation, once" in line


@pytest.mark.parametrize("name", [name for name in shipped.SHIPPED if not name.endswith("-misconceptions")])
def test_the_agent_of_a_world_is_there_at_once(name: str) -> None:
    recipe = load_recipe(name)
    env = open_env(recipe.env.id, **recipe.env.options)
    agent: Any = make_agent("tiny", env)
    goal, _ = env.reset(seed=0)
    assert agent.policy.tokenizer.decode(agent.policy.tokenizer.encode(str(goal))) == str(goal)


def test_it_is_prompted_and_decoded_as_when_it_was_made_unless_one_says_otherwise() -> None:
    recipe = load_recipe("tiny-webshop-misconceptions")
    env = open_env(recipe.env.id, **recipe.env.options)
    agent: Any = make_agent("tiny", env)
    assert (agent.context, agent.history) == ("window", 0)
    assert agent.decoding.constrained and agent.decoding.max_new_tokens == 64
    agent = make_agent({"name": "tiny", "history": 1, "decoding": {"max_new_tokens": 7}}, env)
    assert (agent.context, agent.history) == ("window", 1)
    assert agent.decoding.constrained and agent.decoding.max_new_tokens == 7


def test_transformers_loads_every_one_of_them() -> None:
    transformers = pytest.importorskip("transformers")
    for one in list_shipped():
        plain = transformers.AutoTokenizer.from_pretrained(one.folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(one.folder)
        ids = plain("12 + 5").input_ids
        assert len(ids) == 4 and plain.decode(ids) == "12 + 5" and model.config.vocab_size == len(plain)


def test_pretrain_copies_it_and_replaces_another_one(tmp_path: Path) -> None:
    recipe, there = load_recipe(GUESS), get_shipped_folder() / GUESS
    place = tmp_path / "mine"
    place.mkdir()
    (place / "pretrain.json").write_text('{"recipe": "sha256:another"}')
    arguments = (recipe.env.id, recipe.env.options, recipe.warm_start)
    made = pretrain_tiny(*arguments, agent=recipe.agent, folder=place)
    assert made.reused and compute_weights_digest(place) == compute_weights_digest(there)
    (place / "model.safetensors").write_bytes(b"of my own")
    assert pretrain_tiny(*arguments, agent=recipe.agent, folder=place).folder == place
    assert (place / "model.safetensors").read_bytes() == b"of my own", "what is there with this recipe is kept"
    with pytest.raises(OptionError, match="would be trained"):
        pretrain_tiny(*arguments, agent=recipe.agent, folder=place, force=True)
    assert (place / "model.safetensors").is_file()


# ---- --check and --ship ---------------------------------------------------------------------------------------------


def pretend(monkeypatch: pytest.MonkeyPatch, weights: bytes | None = None, **changes: Any) -> None:
    """Whatever is made anew is a copy of what is shipped, with other weights or another note."""

    def make(env_id: str, *_: Any, folder: Path, force: bool, **__: Any) -> PretrainResult:
        assert force
        shutil.copytree(get_shipped_folder() / folder.name, folder)
        note = {**json.loads((folder / "pretrain.json").read_text()), **changes}
        (folder / "pretrain.json").write_text(json.dumps(note))
        if weights is not None:
            (folder / "model.safetensors").write_bytes(weights)
        return PretrainResult(folder, False, note)

    monkeypatch.setattr(pretrain, "pretrain_tiny", make)


ELSEWHERE = {"torch": "0", "processor": "another", "threads": 1}


@pytest.mark.parametrize(
    ("weights", "changes", "agrees"),
    [
        (None, {}, True),
        (None, {"machine": ELSEWHERE, "success": 0.0}, True),
        (b"other", {}, False),
        (b"other", {"machine": ELSEWHERE}, True),
        (b"other", {"machine": ELSEWHERE, "success": 0.0}, False),
        (b"other", {"machine": ELSEWHERE, "success": 1.0}, False),
    ],
)
def test_a_check_wants_the_bits_here_and_the_success_elsewhere(
    weights: bytes | None,
    changes: dict[str, Any],
    agrees: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, weights, **changes)
    assert shipped.compare(GUESS, load_recipe(GUESS)).agrees is agrees
    assert main(["pretrain", "tiny", "--check", "--env", "Guess"]) == (0 if agrees else 2)
    told = capsys.readouterr()
    assert ("bit by bit" in told.out) is (weights is None) and ("differ from those" in told.err) is not agrees
    assert main(["pretrain", "tiny", "--check", "--env", "Guess", "--json"]) == (0 if agrees else 2)
    assert json.loads(capsys.readouterr().out)[0]["agrees"] is agrees


def test_an_agent_of_an_older_recipe_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(GUESS)
    changed = recipe.model_copy(update={"warm_start": recipe.warm_start.model_copy(update={"steps": 7})})
    with pytest.raises(DataError, match="another recipe than today's"):
        shipped.compare(GUESS, changed)


def test_shipping_replaces_the_folder_by_what_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, b"new")
    package = Path(shutil.copytree(get_shipped_folder(), tmp_path / "shipped"))
    (package / GUESS / "left-over.json").write_text("{}")
    monkeypatch.setattr(shipped, "get_shipped_folder", lambda: package)
    assert main(["pretrain", "tiny", "--ship", "--env", "Guess"]) == 0
    assert f"made {package / GUESS}" in capsys.readouterr().out.replace("\n", "")
    assert (package / GUESS / "model.safetensors").read_bytes() == b"new"
    assert sorted(file.suffix for file in (package / GUESS).iterdir()) == [*([".json"] * 5), ".safetensors"]
    assert not (package / GUESS / "left-over.json").exists()
