"""A trained agent is one thing: the run, the exported folder and plain `transformers` play the same episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fedagentgym import load_agent
from fedagentgym.agents.agent import TokenAgent
from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.agent_file import AgentFile, read_agent_file
from fedagentgym.experiment.export import write_model_card
from fedagentgym.experiment.run import train
from fedagentgym.runs.folder import RANKED
from fedagentgym.testing.runs import SMALL_CONFIG

PROMPTED: dict[str, Any] = {
    "name": "untrained-tiny",
    "context": "window",
    "history": 1,
    "template": "standard",
    "system": "Answer in one line: 1 + 1 = 2.",
    "parser": "published",
    "decoding": {"temperature": 0.7, "max_new_tokens": 6, "constrained": False},
}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"agent": PROMPTED},
    "adapter": {"agent": {"name": "untrained-tiny", "adapter": {"rank": 2}}},
}
COMMON = {
    "algorithm": {"name": "fedagent", "local_steps": 1},
    "partition": {"clients": 2, "tasks_per_client": 4, "roles": None},
    "evaluation": {"tasks": 5, "repeats": 2, "temperature": 0.9, "split": "val", "parallel_episodes": 7},
    "federation": {"rounds": 1},
    "seed": 3,
}


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / f"run-{request.param}"
    config = merge({**SMALL_CONFIG, "partition": {}}, merge(COMMON, KINDS[request.param]))
    config["partition"] = {"clients": 2, "tasks_per_client": 4}
    train(config, [f"output.folder={folder}"], force=True)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    folder = run.with_name(f"{run.name}-model")
    assert main(["-q", "export", str(run), "--out", str(folder)]) == 0
    return folder


def read_episodes(file: Path) -> list[dict[str, Any]]:
    """Observations, replies, actions and rewards; not by whom and where that was written."""
    own = ("task", "seed", "sample", "turns", "success", "score", "terminated", "truncated")
    return [{name: line[name] for name in own} for line in map(json.loads, file.read_text().splitlines())]


def judge(*words: str, output: Path) -> list[dict[str, Any]]:
    assert main(["-q", "eval", *words, "--out", str(output), "--json"]) == 0
    return read_episodes(output / RANKED)


def test_the_run_its_folder_and_transformers_play_equal_episodes(run: Path, exported: Path, tmp_path: Path) -> None:
    recorded = read_episodes(run / "evaluation" / "0001.jsonl")
    assert len(recorded) == 10
    assert judge("--run", str(run), output=tmp_path / "run") == recorded
    assert judge("--run", str(run), "--best", output=tmp_path / "best") != []
    assert judge("--agent", str(exported), output=tmp_path / "folder") == recorded
    assert play_with_transformers(exported) == recorded


def play_with_transformers(folder: Path) -> list[dict[str, Any]]:
    """The folder's own settings around what `transformers` loads by itself."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.agents.presets import make_token_agent
    from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
    from fedagentgym.envs import open_env
    from fedagentgym.learning.evaluation import evaluate
    from fedagentgym.learning.trajectory import format_line

    file = read_agent_file(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = HuggingFaceTokenizer(AutoTokenizer.from_pretrained(folder), model.generation_config.eos_token_id)
    agent = make_token_agent(file.agent, TorchPolicy(model, tokenizer), tokenizer)
    env = open_env(file.env.id, **file.env.options, split=file.evaluation.split)
    found = evaluate(agent, env, file.evaluation, seed=file.seed)
    lines = [format_line(trajectory) for group in found.groups for trajectory in group]
    own = ("task", "seed", "sample", "turns", "success", "score", "terminated", "truncated")
    return [{name: line[name] for name in own} for line in map(json.loads, lines)]


def test_transformers_reads_the_same_tokens_and_computes_the_same_logits(exported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    agent = load_agent(exported)
    assert isinstance(agent, TokenAgent)
    plain, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported)
    trusted = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    for text in ("Which one is it? It is one of 12!", "<action>guess 7</action>", "  naïve – 3.14\n\n\tend "):
        ids = list(agent.tokenizer.encode(text))
        assert plain(text)["input_ids"] == ids == trusted(text)["input_ids"]
        assert plain.decode(ids) == agent.tokenizer.decode(ids) == text
        with torch.no_grad():
            asked = torch.tensor([ids])
            assert torch.equal(model(asked).logits, agent.policy.model(asked).logits)  # type: ignore[attr-defined]


def test_the_file_leaves_nothing_to_a_preset(run: Path, exported: Path) -> None:
    file = yaml.safe_load((exported / "agent.yaml").read_text())
    assert file["env"]["id"] == "fedagentgym/Guess-v0" and file["run"]["round"] == 1
    kept = file["agent"]
    assert {"context", "history", "template", "think", "chat", "parser", "decoding", "dtype"} <= set(kept)
    assert (
        file["result"]["success"]
        == json.loads((run / "result.json").read_text())["final"]["overall"]["success"]["mean"]
    )
    if run.name == "run-whole":
        assert kept["system"] == PROMPTED["system"] and kept["decoding"]["max_new_tokens"] == 6


def test_what_is_said_on_top_replaces_what_the_folder_says(exported: Path, tmp_path: Path) -> None:
    file = read_agent_file(exported)
    fewer = judge("--agent", str(exported), "--tasks", "2", "--repeats", "1", output=tmp_path / "few")
    assert len(fewer) == 2
    line = json.loads((tmp_path / "few" / RANKED).read_text().splitlines()[0])
    assert line["split"] == file.evaluation.split and line["temperature"] == file.evaluation.temperature
    greedy = judge(
        "--agent", str(exported), "--split", "val", "--seed", "1", "--temperature", "0", output=tmp_path / "g"
    )
    assert len(greedy) == 10 and greedy[0]["task"].startswith("guess/val/")
    assert main(["-q", "eval", "--check", str(tmp_path / "g")]) == 0


def test_the_card_says_what_it_is(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers" and "fedagentgym/Guess-v0" in card and "agent.yaml" in card
    assert "Success " in card and "val" in card and "model-index" not in head


def test_it_claims_no_place_on_a_benchmark_of_the_hub(exported: Path) -> None:
    """An environment is not a data set of the hub, and the hub reads `.eval_results` as numbers on such a data set."""
    assert not [path for path in exported.rglob("*") if path.name.startswith(".")]


def test_a_folder_that_was_changed_or_is_an_adapter_alone_says_so(run: Path, tmp_path: Path) -> None:
    if run.name == "run-whole":
        with pytest.raises(DataError, match=r"agent\.yaml"):
            load_agent(tmp_path)
        return
    adapter = tmp_path / "adapter"
    assert main(["-q", "export", str(run), "--out", str(adapter), "--adapter"]) == 0
    with pytest.raises(DataError, match="export the whole model"):
        load_agent(adapter)
    (adapter / "agent.yaml").write_text("agent: {name: tiny, contxt: session}\nenv: {id: fedagentgym/Guess-v0}\n")
    with pytest.raises(DataError, match="did you mean 'context'"):
        load_agent(adapter)


@pytest.mark.parametrize("base", [None, "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_the_card_says_of_a_model_made_from_nothing_that_it_knows_nothing_else(base: str | None) -> None:
    plain = {"agent": {"name": "tiny"}, "env": {"id": "fedagentgym/Guess-v0"}}
    run = {"name": "a", "algorithm": "fedagent", "round": 1, "rounds": 2, "clients": 3, "version": "0"}
    card = write_model_card(AgentFile.load({**plain, "run": run}), base=base, licence=None, parameters=5)
    for said in ("replies to other texts are meaningless", "knows no other"):
        assert (said in card) == (base is None)
    assert ("may be worse than those of HuggingFaceTB/SmolLM2-135M-Instruct" in card) == (base is not None)
