"""A run from configuration to result, through the command line, on a world of numbers with an untrained agent."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.opened import open_data, resolve_agent
from fedagentgym.experiment.record import read_result
from fedagentgym.experiment.run import resume, sweep, train
from fedagentgym.testing.runs import SMALL_CONFIG

CONFIG: dict[str, Any] = merge(
    SMALL_CONFIG, {"algorithm": {"name": "fedagent", "local_steps": 1}, "output": {"report": "html"}}
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(CONFIG, [f"output.folder={folder}"])
    return folder


def test_a_run_leaves_what_the_page_promises(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {
        "config.yaml",
        "metrics.jsonl",
        "rounds",
        "evaluation",
        "trajectories",
        "result.json",
        "background.json",
        "report.html",
    } <= names
    record = json.loads((finished / "result.json").read_text())
    assert (record["format"], record["kind"]) == (1, "training")
    assert record["rounds"] == 2
    assert record["spent"]["env_steps"] > 0
    assert record["config_digest"].startswith("sha256:")
    assert record["made"]["versions"]["torch"]
    assert {path.name for path in (finished / "evaluation").iterdir()} == {f"000{n}.jsonl" for n in range(3)}


def test_seconds_are_those_of_the_start_the_rounds_and_the_evaluations(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_result(finished)
    rounds = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    evaluating = sum(row["evaluation"]["seconds"] for row in rounds)
    assert record.made.seconds == pytest.approx(sum(row["seconds"] for row in rounds) + evaluating, abs=1e-3)
    assert record.model_dump(mode="json") == json.loads((finished / "result.json").read_text())

    def resolve_slowly(config: RunConfig) -> Any:
        time.sleep(0.5)
        return resolve_agent(config)

    monkeypatch.setattr("fedagentgym.experiment.opened.resolve_agent", resolve_slowly)
    slow = train(CONFIG, [f"output.folder={tmp_path / 'slow'}", "federation.rounds=1", "output.report=none"])
    first, second = (json.loads(line) for line in (slow.folder / "metrics.jsonl").read_text().splitlines())
    assert first["seconds"] > 0.5 and second["seconds_total"] == first["seconds"] + second["seconds"]


def test_every_evaluation_episode_can_be_played_again(finished: Path) -> None:
    from fedagentgym.experiment.evaluation import check_episodes

    record = json.loads((finished / "result.json").read_text())
    assert check_episodes(finished) == []
    last = json.loads((finished / "evaluation" / "0002.jsonl").read_text().splitlines()[0])
    assert last["policy"] == record["final"]["policy"]
    assert last["round"] == 2


def test_a_natural_split_has_as_many_clients_as_there_are_values() -> None:
    config = load_config({**CONFIG, "partition": {"sampler": "natural", "by": "category"}})
    client_split, _ = open_data(config)
    assert len(client_split) == len(client_split.table.names) == 3
    with pytest.raises(FedAgentGymError, match="clients_per_round is 9, but there are 3 clients"):
        open_data(load_config(config, ["federation.clients_per_round=9"]))


def test_the_same_configuration_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    stored = yaml.safe_load((finished / "config.yaml").read_text())
    again = train(stored, [f"output.folder={tmp_path / 'again'}"])
    assert again.digest == json.loads((finished / "result.json").read_text())["state"]


def test_a_sweep_is_a_run_for_each_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"output.folder={tmp_path}"
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    rates, rounds = "learning.learning_rate", "federation.rounds"
    line = ["-q", "train", str(file), "--set", place, "--sweep", f"{rates}=1e-3,0.01", "--sweep", f"{rounds}=1,2"]
    assert main(line) == 0
    told = capsys.readouterr().out
    found = sweep(CONFIG, {rates: ["1e-3", 0.01], rounds: [1, 2]}, [place])  # what is finished is read
    assert next(iter(found)) == (f"{rates}=1e-3", f"{rounds}=1") and len(found) == 4
    assert len({one.digest for one in found.values()}) == 4
    for given, one in found.items():
        assert one.folder.is_relative_to(tmp_path) and str(one.folder) in told and one.success is not None
        alone = train(CONFIG, [*given, f"output.folder={tmp_path / 'alone' / one.folder.name}"])
        assert alone.digest == one.digest
    before = sorted(tmp_path.rglob("*"))
    for wrong, message in (
        ({rates: [1, 1]}, "different ones"),
        ({rates: [0.001, "1e-3"]}, "are the same run"),
        ({"seed": [1, 2], rates: [1, 1.0]}, "are the same run"),
        ({rates: []}, "at least one"),
        ({}, "at least one key"),
        ({rates: "12"}, "must be a list"),
        ({rates: 0.1}, "must be a list"),
        ({rates: [{1, 2}]}, "are plain ones"),
        ({"seed": range(1_001)}, "at most 1,000 runs"),
        ({"name": ["a b", "a-b"]}, "the same name of a folder"),
        ({rates: [0.1, -1]}, "learning_rate"),
        ({"learning.learnin_rate": [1]}, "did you mean"),
        ({"output.folder": ["a", "b"]}, "output.folder is set for all runs"),
    ):
        with pytest.raises(OptionError, match=message):
            sweep(CONFIG, wrong, [place])
    for wrong_line in (
        ["--sweep", rates],
        ["--sweep", f"{rates}=1", "--sweep", f"{rates}=2"],
        ["--sweep", "seed=0", "--seeds", "0"],
        ["--set", f"{rates}=1", "--sweep", f"{rates}=1,2"],
    ):
        assert main(["train", str(file), "--set", place, *wrong_line]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_finished_run_can_be_resumed_and_a_new_one_never_overwrites(finished: Path) -> None:
    before = json.loads((finished / "result.json").read_text())
    assert resume(finished).digest == before["state"]
    with pytest.raises(FedAgentGymError, match="there is a run in"):
        train(CONFIG, [f"output.folder={finished}"])
    with pytest.raises(FedAgentGymError, match="cannot be changed when a run is resumed"):
        resume(finished, ["learning.learning_rate=1"])
    with pytest.raises(DataError, match=r"config\.yaml is missing"):
        resume(finished / "nowhere")


def test_the_policy_is_exported_as_a_folder_that_transformers_loads(finished: Path, tmp_path: Path) -> None:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.base.encoding import bytes_digest, encode
    from fedagentgym.experiment.export import export_policy

    assert export_policy(finished, tmp_path / "model") == 2
    weights = TorchPolicy.load(tmp_path / "model").get_weights()
    assert bytes_digest(encode(weights)) == json.loads((finished / "result.json").read_text())["final"]["policy"]
    with pytest.raises(DataError, match="exists already"):
        export_policy(finished, tmp_path / "model")
    with pytest.raises(DataError, match="round 9"):
        export_policy(finished, tmp_path / "other", number=9)
    with pytest.raises(FedAgentGymError, match="no adapter"):
        export_policy(finished, tmp_path / "other", adapter_only=True)


def test_episodes_of_a_run_are_exported_as_conversations(finished: Path, tmp_path: Path) -> None:
    assert main(["-q", "chats", str(finished), "--out", str(tmp_path / "judged.jsonl")]) == 0
    assert main(["-q", "chats", str(finished), "--out", str(tmp_path / "played.jsonl"), "--training"]) == 0
    assert main(["-q", "chats", str(finished), "--out", str(tmp_path / "none.jsonl"), "--only", "none"]) == 2
    judged = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    played = [json.loads(line) for line in (tmp_path / "played.jsonl").read_text().splitlines()]
    assert len(judged) == 4 and {line["round"] for line in judged} == {2}
    assert len(played) == sum(
        len(file.read_text().splitlines()) for file in (finished / "trajectories").glob("*.jsonl")
    )
    assert all([one["role"] for one in line["messages"]][:2] == ["system", "user"] for line in judged + played)


def test_an_adapter_is_exported_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedagentgym.agents.model.vllm import TorchVllmPolicy
    from fedagentgym.experiment import export
    from fedagentgym.experiment.export import export_policy

    adapter = {
        "agent": {"name": "untrained-tiny", "adapter": {"rank": 2}},
        "federation": {"rounds": 1},
        "evaluation": None,
    }
    train(merge(CONFIG, adapter), [f"output.folder={tmp_path / 'run'}"])
    export_policy(tmp_path / "run", tmp_path / "adapter", adapter_only=True)
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names

    def open_as_vllm(*given: Any, **named: Any) -> Any:
        opened = open_policy(*given, **named)
        own: Any = opened.agent.policy
        engine: Any = SimpleNamespace(context_length=own.context_length, tokenizer=own.tokenizer)
        return replace(opened, agent=replace(opened.agent, policy=TorchVllmPolicy(own, engine, adapter=True)))

    open_policy = export.open_policy
    monkeypatch.setattr(export, "open_policy", open_as_vllm)
    export_policy(tmp_path / "run", tmp_path / "played by vllm", adapter_only=True)
    assert {path.name for path in (tmp_path / "played by vllm").iterdir()} == names


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    folder = tmp_path / "run"
    assert main(["-q", "train", str(file), "--out", str(folder), "--set", "federation.rounds=1"]) == 0
    shown = capsys.readouterr().out
    assert "held-out" in shown
    assert "success on held-out tasks" in shown
    assert main(["resume", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 1
    assert main(["-q", "export", str(folder), "--out", str(tmp_path / "model"), "--best"]) == 0
    assert main(["presets"]) == 0
    assert "centralized, local-3" in capsys.readouterr().out
    assert main(["presets", "tiny-skills:iid"]) == 0
    assert "\n#   experts-2:\n#     algorithm: {experts: 2}\n" in capsys.readouterr().out
    assert main(["presets", str(file)]) == 0
    assert "variants" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "Missing argument 'CONFIG'"),
        (["train", "demoo"], "did you mean 'demo'"),
        (["train", "demo", "--set", "seed"], "key.key=value"),
        (["train", "demo", "--set", "federation.backend=flour"], "flower"),
        (["train", "demo:nothing"], "unknown variant"),
        (["resume", "nowhere"], "config.yaml is missing"),
        (["export", "nowhere", "--out", "out"], "config.yaml is missing"),
        (["export", "nowhere", "--out", "out", "--best", "--round", "3"], "exclude each other"),
        (["flower", "init", "app", "--config", "nowhere.yaml"], "no such file"),
        (["train", "demo", "--resume", "run"], "It is a command: fedagentgym resume"),
        (["train", "demo", "--plan"], "It is a command: fedagentgym plan"),
        (["train", "demo", "--set", "federation.options={wait: 9}"], "which backend 'flower' takes"),
        (["leaderboard", "build", "nowhere", "--out", "site", "--verified", "gone"], "there is no folder gone"),
        (["settings", "--json", "--markdown"], "exclude each other"),
        (["envs", "--json", "--markdown"], "exclude each other"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_flower_app_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(merge(CONFIG, {"output": {"folder": str(tmp_path / "run")}})))
    assert main(["flower", "init", str(tmp_path / "app"), "--config", str(file)]) == 0
    assert str(file) in (tmp_path / "app" / "pyproject.toml").read_text()
    told = capsys.readouterr().out
    assert "flower-supernode" in told and "in Flower's simulation:" in told
    options = {"federation": {"options": {"wait": 600, "nodes": {"1": [0], "2": [1]}}}}  # those of the app's backend
    file.write_text(yaml.safe_dump(merge(yaml.safe_load(file.read_text()), options)))
    assert main(["flower", "init", str(tmp_path / "waits"), "--config", str(file)]) == 0
    capsys.readouterr()
    held = {**CONFIG, "partition": {"sampler": "held", "clients": 2}, "output": {"folder": str(tmp_path / "run")}}
    file.write_text(yaml.safe_dump({**held, "evaluation": None}))
    assert main(["flower", "init", str(tmp_path / "held"), "--config", str(file)]) == 0
    told = capsys.readouterr().out
    assert "simulation" not in told and 'tasks="/the/owner/client.yaml"' in told
    file.write_text(yaml.safe_dump(merge(CONFIG, {"output": {"folder": "relative"}})))
    assert main(["flower", "init", str(tmp_path / "other"), "--config", str(file)]) == 2
    assert not (tmp_path / "other").exists()


def test_a_saved_split_and_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from fedagentgym import federate

    federate("fedagentgym/Guess-v0", partition="uniform", clients=3, tasks_per_client=8).save(tmp_path / "split.json")
    plain = {**CONFIG, "partition": {"file": str(tmp_path / "split.json")}, "evaluation": None}
    result = train(plain, [f"output.folder={tmp_path / 'run'}", "output.trackers=[tensorboard]", "federation.rounds=1"])
    assert result.record["client_split"]["clients"] == 3
    assert result.record["curve"] == []
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    worked = train(plain, [f"output.folder={tmp_path / 'pool'}", "federation.workers=1", "federation.rounds=1"])
    assert worked.digest == result.digest


class Killed(Exception):
    pass


class Killer:
    """Ends a run after its third round."""

    def begin(self, rounds: int) -> None: ...

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 3:
            raise Killed


@pytest.mark.parametrize("back", [1, 2])
def test_a_run_goes_back_rounds_after_a_resume(back: int, tmp_path: Path) -> None:
    """States of clients are kept as long as the global states of the rounds that refer to them."""
    method = {"algorithm": {"name": "scaffold", "local_steps": 1}, "federation": {"rounds": 4}}
    plain = merge(merge(SMALL_CONFIG, method), {"output": {"folder": str(tmp_path / "run"), "keep_rounds": 3}})
    with pytest.raises(Killed):
        train(plain, observers=[Killer()])
    finished = resume(tmp_path / "run")
    kept = sorted(path.parent.name for path in (tmp_path / "run" / "rounds").glob("*/global.bin"))
    for number in kept[-back:]:
        shutil.rmtree(tmp_path / "run" / "rounds" / number)
    (tmp_path / "run" / "result.json").unlink()
    assert resume(tmp_path / "run").digest == finished.digest


def test_data_that_changed_under_a_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the run nor its client split was edited: the questions of the file are others."""
    monkeypatch.chdir(tmp_path)
    questions = [{"question": f"What is {number}+1?", "answer": str(number + 1)} for number in range(40)]
    write = Path("own.jsonl").write_text
    write("".join(json.dumps(one) + "\n" for one in questions))
    plain = {
        "name": "mine",
        "env": {"id": "Math", "options": {"data": "own.jsonl", "holdout": {"val": 10}}},
        "agent": "untrained-tiny",
        "partition": {"clients": 2, "tasks_per_client": 10},
        "learning": {"tasks_per_step": 1, "group_size": 2},
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "federation": {"rounds": 1},
        "evaluation": {"tasks": 2},
        "output": {"folder": "run", "report": "none"},
    }
    train(plain, force=True)
    write("".join(json.dumps({**one, "question": one["question"].replace("+", " + ")}) + "\n" for one in questions))
    said = "fedagentgym: the tasks of fedagentgym/Math-v0 are others than those of the run (data: own.jsonl)\n"
    for command in (["eval", "--run", "run"], ["resume", "run"], ["export", "run", "--out", "model"]):
        assert main(["-q", *command]) == 2
        assert capsys.readouterr().err == said
    Path("run/result.json").unlink()
    assert main(["-q", "resume", "run"]) == 2
    assert capsys.readouterr().err == said
