"""The start of a run: a warm start of any language model, all weights or an adapter, found again by what it was made from."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.model.store import add_model
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import resume, train
from fedagentgym.learning.pretrain import init_weights, pretrain_model
from fedagentgym.learning.recipe import prepare_agent
from fedagentgym.learning.settings import PRETRAINED, EvaluationSettings, WarmStartSettings

GUESS = "fedagentgym/Guess-v0"
SHORT = WarmStartSettings(episodes=40, steps=12, batch_size=8, learning_rate=5e-3)
LOOK = EvaluationSettings(tasks=6)
COMPACT = {"template": "compact", "think": False, "chat": False, "decoding": {"max_new_tokens": 16}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that knows Guess's words and nothing else."""
    target = tmp_path_factory.mktemp("base") / "model"
    model, tokenizer = make_tiny_model(open_env(GUESS).vocabulary(), context_length=512)
    init_weights(model, 3)
    TorchPolicy(model, tokenizer).save(target)
    return target


@pytest.fixture(autouse=True)
def in_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def make_player(base: Path | str, **more: Any) -> AgentSettings:
    return AgentSettings.load({"name": "transformers", "model": str(base), "device": "cpu", **COMPACT, **more})


def read_weights(folder: Path) -> dict[str, Any]:
    return TorchPolicy.load(folder, device="cpu").get_weights()


@pytest.mark.parametrize("adapter", [None, {"rank": 4}])
def test_any_model_imitates_and_is_saved_whole(base: Path, adapter: Any) -> None:
    player = make_player(base, **({} if adapter is None else {"adapter": adapter, "dtype": "bfloat16"}))
    made = pretrain_model(player, GUESS, {}, SHORT, evaluation=LOOK)
    before, after = read_weights(base), read_weights(made.folder)
    assert before.keys() == after.keys(), "an adapter is added into the base"
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == (set(before) if adapter is None else {name for name in before if "_proj.weight" in name})
    assert made.note["model"] == str(base) and made.note["loss"] < (2.0 if adapter is None else 4.5)
    again = pretrain_model(player, GUESS, {}, SHORT, evaluation=LOOK)
    assert again.reused and again.folder == made.folder
    forced = pretrain_model(player, GUESS, {}, SHORT, evaluation=LOOK, force=True)
    remade = read_weights(forced.folder)
    assert not forced.reused and all(np.array_equal(after[name], remade[name]) for name in after)


def test_a_model_counts_by_its_files_and_not_by_its_place(base: Path, tmp_path: Path) -> None:
    made = pretrain_model(make_player(base), GUESS, {}, SHORT, evaluation=LOOK)
    moved = Path(shutil.copytree(base, tmp_path / "elsewhere" / "model"))
    assert pretrain_model(make_player(moved), GUESS, {}, SHORT, evaluation=LOOK).reused
    config = json.loads((moved / "config.json").read_text("utf-8"))
    (moved / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}), "utf-8")
    other = pretrain_model(make_player(moved), GUESS, {}, SHORT, evaluation=LOOK)
    assert not other.reused and other.folder != made.folder


def test_what_is_not_said_suits_a_pretrained_model() -> None:
    chosen = WarmStartSettings(steps=7).for_pretrained(adapter=False)
    assert (chosen.steps, chosen.learning_rate, chosen.noise) == (7, PRETRAINED["learning_rate"], 0.0)
    assert WarmStartSettings().for_pretrained(adapter=True).learning_rate > chosen.learning_rate
    assert chosen.for_pretrained(adapter=True) == chosen, "what is settled stays as it is"


@pytest.mark.parametrize("agent", [{"name": "random"}, {"name": "expert"}, {"name": "human"}, {"name": "transformers"}])
def test_an_agent_without_a_model_cannot_imitate(agent: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"warm_start trains a language model, and agent .* has none"):
        pretrain_model(AgentSettings.load(agent), GUESS, {}, SHORT)


def test_a_hosted_model_cannot_imitate(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"name": "endpoint", "model": "somebodys", "options": {"url": "http://127.0.0.1:9"}}
    with pytest.raises(OptionError, match="cannot be trained"):
        pretrain_model(AgentSettings.load(settings), GUESS, {}, SHORT)


def make_run(base: str, **agent: Any) -> dict[str, Any]:
    return {
        "env": {"id": GUESS},
        "partition": {"clients": 2, "tasks_per_client": 8},
        "agent": {"name": "transformers", "model": base, "device": "cpu", **COMPACT, **agent},
        "warm_start": {"episodes": 20, "steps": 4},
        "learning": {"tasks_per_step": 1, "group_size": 2, "learning_rate": 1e-4},
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "federation": {"rounds": 1},
        "evaluation": {"tasks": 4, "every": 1},
        "output": {"report": "none"},
    }


@pytest.mark.parametrize("adapter", [False, True])
def test_a_run_starts_from_a_model_that_has_imitated(base: Path, adapter: bool) -> None:
    add_model(str(base), "mine")
    plain = make_run("mine", **({"adapter": {"rank": 2}} if adapter else {}))
    config = load_config(plain)
    assert config.warm_start is not None and config.warm_start.learning_rate == (1e-3 if adapter else 1e-4)
    assert load_config(config.plain()).digest == config.digest, "what is written down is what was run"
    result = train(config, force=True)
    note = result.record["agent"]["note"]
    assert note["warm_start"]["steps"] == 4 and Path(config.output.folder).is_dir()
    assert resume(result.folder).digest == result.digest
    settings, _ = prepare_agent(config.agent, GUESS, {}, config.warm_start)
    again, _ = prepare_agent(config.agent, GUESS, {}, config.warm_start)
    assert settings == again and settings.adapter == config.agent.adapter


def test_a_model_by_name_is_noted_with_its_files(base: Path) -> None:
    added = add_model(str(base), "mine")
    _, note = prepare_agent(make_player("mine"), GUESS, {}, None)
    assert note == {"model": "mine", "source": added.source, "files": added.digest}
    assert prepare_agent(make_player(base), GUESS, {}, None)[1] == {"model": str(base)}
    assert prepare_agent(AgentSettings(name="random"), GUESS, {}, None)[1] == {}


def test_pretrain_and_eval_take_a_model_by_name(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(str(base), "mine")
    words = [
        "--agent-set",
        "template=compact",
        "--agent-set",
        "think=false",
        "--agent-set",
        "decoding.max_new_tokens=16",
    ]
    chosen = ["--set", "steps=3", "--set", "episodes=10", "--agent-set", "adapter.rank=2", "--out", "made"]
    assert main(["--quiet", "pretrain", "mine", "--env", "Guess", *words, *chosen]) == 0
    assert "made made" in capsys.readouterr().out and Path("made/config.json").is_file()
    assert main(["--quiet", "eval", "--env", "Guess", "--agent", "mine", "--tasks", "2", *words]) == 0
    capsys.readouterr()
    with contextlib.chdir("made"):
        again = ["pretrain", str(base), "--env", "Guess", *words, *chosen[:-2], "--out", ".", "--force"]
        assert main(["--quiet", *again]) == 2
        assert "cannot be replaced, since you are in it" in capsys.readouterr().err
    for wrong, told in (
        ("nobodys", "unknown agent 'nobodys'"),
        ("smollm", "did you mean 'smollm2'"),
        ("random", "has none"),
    ):
        assert main(["--quiet", "pretrain", wrong, "--env", "Guess"]) == 2
        assert told in capsys.readouterr().err
    assert main(["--quiet", "pretrain", "tiny", "--env", "Guess", "--agent-set", "model=mine"]) == 2
    assert "'tiny' is made from scratch" in capsys.readouterr().err
