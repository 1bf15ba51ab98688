"""Runs in which a program plays: federated, in workers, resumed after a kill, recorded, checked again; and who may name
a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.recipe import Owner, admit_recipe, build_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec
from fedagentgym.base.errors import DataError, OptionError, RefusedError
from fedagentgym.base.settings import merge
from fedagentgym.cli.gateway_programs import compose_program
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.evaluation import check_episodes
from fedagentgym.experiment.run import train
from fedagentgym.federation.backends.resident import NodeConfig
from fedagentgym.leaderboard.entries import Entry, load_settings
from fedagentgym.partitions import federate
from fedagentgym.runs.record import publish_settings
from tests.agents.gateway.clients import LOOP

SMALL: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"sampler": "uniform", "clients": 2},
    "learning": {"tasks_per_step": 2, "group_size": 4, "learning_rate": 0.005},
    "algorithm": {"name": "fedagent", "local_steps": 1},
    "federation": {"rounds": 2},
    "evaluation": {"tasks": 4},
    "output": {"report": "none"},
}


def configure(folder: Path, run: str, **changes: Any) -> dict[str, Any]:
    program = folder / "loop.py"
    program.write_text(LOOP)
    agent = {"name": "tiny", "harness": {"command": [sys.executable, str(program)], "processes": 2}}
    return merge(merge(SMALL, {"agent": agent, "output": {"folder": str(folder / run)}}), changes)


@pytest.mark.slow
def test_a_federation_of_programs_learns_alike_in_a_process_and_in_workers(tmp_path: Path) -> None:
    one = train(configure(tmp_path, "one"), force=True)
    two = train(configure(tmp_path, "two", federation={"workers": 2}), force=True)
    assert one.digest == two.digest and one.record["spent"]["rounds"] == 2
    rounds = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert "program/calls" in json.dumps(rounds)
    # what was played replays, and one changed reward is found
    assert check_episodes(tmp_path / "one") == []
    file = sorted((tmp_path / "one" / "evaluation").glob("*.jsonl"))[0]
    lines = file.read_text().splitlines()
    episode = json.loads(lines[0])
    episode["turns"][0]["reward"] += 1.0
    file.write_text("\n".join([json.dumps(episode), *lines[1:]]) + "\n")
    (told,) = check_episodes(tmp_path / "one")
    assert "reward is written as" in told


REPORTS = """
def play(episode):
    messages = [{"role": "user", "content": " ".join(episode["task"]["data"]["words"])}]
    answer = post("/v1/chat/completions", {"messages": messages}, episode["key"])
    reward = len(answer["choices"][0]["message"]["content"]) % 5 / 4
    post("/v1/reward", {"reward": reward}, episode["key"])
"""


def test_two_sites_with_worlds_of_their_own(tmp_path: Path) -> None:
    """The program reports one number; the record says so."""
    config = configure(
        tmp_path, "own", env={"id": "fedagentgym/Own-v0"}, federation={"rounds": 1}, evaluation={"tasks": 3}
    )
    (tmp_path / "loop.py").write_text(compose_program("one number", "", REPORTS))
    config["agent"] = {**config["agent"], "name": "untrained-tiny", "decoding": {"constrained": False}}
    config["agent"]["harness"]["world"] = "own"
    found = train(config, force=True)
    assert found.record["env"]["verifier"] == "reported"
    assert check_episodes(tmp_path / "own") == []
    # nothing that was played leaves a site unless it is asked for, also when the run is read again
    chosen = load_config(config)
    assert chosen.output.sampled_episodes == load_config(chosen.plain()).output.sampled_episodes == 0
    assert load_config(merge(config, {"output": {"sampled_episodes": 1}})).output.sampled_episodes == 1


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_each_client_has_the_program_that_is_named_for_it(tmp_path: Path, workers: int | None) -> None:
    """Programs that say where they play: each client's episodes are its own program's, in a process and in workers."""
    commands = []
    for name in ("first", "second"):
        told = f"open({str(tmp_path / name)!r}, 'a').write(episode['task']['id'] + '\\n')"
        program = tmp_path / f"{name}.py"
        program.write_text(LOOP.replace("    messages, over =", f"    {told}\n    messages, over ="))
        commands.append([sys.executable, str(program)])
    harness = {"command": commands[0], "clients": {1: commands[1]}, "evaluate": False}
    changes = {"agent": {"harness": harness}, "federation": {"rounds": 1}}
    one = train(configure(tmp_path, "one", **changes), force=True)
    split = federate("fedagentgym/Guess-v0", partition="uniform", clients=2, seed=0, split="train")
    for client, name in zip(split, ("first", "second"), strict=True):
        played = (tmp_path / name).read_text().split()
        assert len(played) == 8 and set(played) <= {task.id for task in client.pool}
    if workers is not None:
        two = train(configure(tmp_path, "two", **merge(changes, {"federation": {"workers": workers}})), force=True)
        assert one.digest == two.digest


RUN = """
import json, sys
from fedagentgym.experiment.run import train
train(json.loads(sys.argv[1]), force=True)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_resumes_to_the_same_bits_and_leaves_no_program(tmp_path: Path) -> None:
    from fedagentgym.experiment.run import resume

    whole = train(configure(tmp_path, "whole", federation={"rounds": 3}), force=True)
    config = configure(tmp_path, "killed", federation={"rounds": 3})
    running = subprocess.Popen([sys.executable, "-c", RUN, json.dumps(config)], cwd=Path.cwd())
    while not (tmp_path / "killed" / "rounds" / "0001").exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    limit = time.monotonic() + 20
    while (left := find_processes(str(tmp_path / "loop.py"))) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not left
    assert resume(tmp_path / "killed", trust_plugins=True).digest == whole.digest


def find_processes(word: str) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if word in words:
                found.append(int(place.name))
    return found


# ---- who may name a program ---------------------------------------------------------------------------------------------

COMMAND = {"name": "tiny", "harness": {"command": ["python", "x.py"]}}
NAMED = {"name": "tiny", "harness": {"name": "owner", "history": "template"}}


def test_only_the_user_of_a_machine_names_a_program() -> None:
    others = {"command": ["python", "x.py"], "clients": {1: ["python", "y.py"]}}
    for harness in (COMMAND["harness"], others, {"env": {"A": "b"}}, {"keep": ["SECRET"]}):
        with pytest.raises(DataError, match="others cannot choose"):
            check_foreign_agent(AgentSettings.load({"name": "tiny", "harness": harness}), "a suite")
    check_foreign_agent(AgentSettings.load(NAMED), "a suite")
    spec = {"env": {"id": "fedagentgym/Guess-v0"}, "partition": {"clients": 2}, "algorithm": {"name": "fedagent"}}
    with pytest.raises(RefusedError, match="others cannot choose"):
        admit_recipe(ExperimentSpec.load({**spec, "agent": COMMAND}), Owner(harness=("mine",)))
    recipe = ExperimentSpec.load({**spec, "agent": NAMED})
    with pytest.raises(RefusedError, match="names none"):
        admit_recipe(recipe, Owner())
    admitted = admit_recipe(recipe, Owner(harness=("python", "mine.py"), processes=3)).agent.harness
    assert admitted is not None and admitted.command == ("python", "mine.py") and admitted.processes == 3
    assert admitted.history == "template" and admitted.name is None
    built = build_algorithm(recipe, owner={"harness": ("python", "mine.py"), "processes": 3})
    assert built.runtime.agent.harness.settings == admitted
    with pytest.raises(OptionError, match="must play through the same program"):
        load_settings(Entry.model_construct(agent=COMMAND), 1.0)


def test_a_node_names_its_program(tmp_path: Path) -> None:
    about = {"clients": "0", "workplace": str(tmp_path), "harness": "python '/srv/my agent.py' --fast", "processes": 3}
    node = NodeConfig.from_node_config(about)
    assert node.owner["harness"] == ("python", "/srv/my agent.py", "--fast") and node.owner["processes"] == 3
    assert NodeConfig.from_node_config(node.to_plain()) == node
    for wrong in ({"processes": "0"}, {"processes": "many"}, {"processes": "65"}, {"harness": "python 'open"}):
        with pytest.raises(DataError, match="--node-config"):
            NodeConfig.from_node_config({**about, **wrong})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning": {"advantage": "gigpo"}}, "gigpo compares equal observations"),
        ({"agent": {"decoding": {"constrained": True}}}, "is not constrained"),
        ({"federation": {"backend": "flower"}}, "only the owner of a node chooses"),
        ({"agent": {"harness": {"command": []}}}, "names no program"),
        (
            {"federation": {"backend": "flower"}, "agent": {"harness": {"command": [], "name": "owner"}}},
            "evaluate=false",
        ),
        ({"agent": {"harness": {"name": "owner"}}}, "leave out command"),
        ({"agent": {"harness": {"command": [], "clients": {0: ["x"]}}}}, "names programs that replace command"),
        ({"agent": {"harness": {"clients": {0: []}}}}, "at least one word"),
        ({"agent": {"harness": {"clients": {2: ["x"]}}}}, "no client 2"),
        ({"agent": {"harness": {"clients": {-1: ["x"]}}}}, "no client -1"),
        ({"agent": {"harness": {"reward_range": [1, 0]}}}, "reward_range"),
        ({"agent": {"harness": {"env": {"A=B": "c"}}}}, "must not be empty or contain '='"),
        ({"agent": {"harness": {"tools": "guess"}}}, "harness.tools"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        load_config(merge(configure(tmp_path, "x"), changes))


def test_an_agent_without_a_model_has_no_program() -> None:
    from fedagentgym.agents import make_agent

    with pytest.raises(OptionError, match="needs a language model in this process"):
        make_agent({"name": "random", "harness": {"command": ["x"]}})


def test_a_record_names_a_program_by_its_digest(tmp_path: Path) -> None:
    """Neither command nor variables are published; another program has another digest."""
    file = tmp_path / "agent.py"
    digests = []
    for text in ("one", "two"):
        file.write_text(text)
        settings = {
            "command": ["/usr/bin/python3", str(file)],
            "env": {"KEY": "hidden"},
            "keep": ["TOKEN"],
            "history": "template",
        }
        plain = publish_settings(AgentSettings.load({"name": "tiny", "harness": settings}))["harness"]
        assert set(plain) == {"program", "history"}
        AgentSettings.load({"name": "tiny", "harness": plain})
        digests.append(plain["program"])
    others = {**settings, "clients": {"1": ["/usr/bin/python3", str(file)]}}
    plain = publish_settings(AgentSettings.load({"name": "tiny", "harness": others}))["harness"]
    assert set(plain) == {"program", "history"}
    assert len({*digests, plain["program"]}) == 3
