"""Files that others wrote choose no code, no server, no key and no missing protection.

Every reader gets every choice that only the user makes; the neighbours of each are in the same tables.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import SAFE_AGENTS, check_foreign_agent, find_agents
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.agent_file import read_agent_file
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import train
from fedagentgym.experiment.stored import check_foreign_config
from fedagentgym.leaderboard.entries import Entry, make_baseline
from fedagentgym.leaderboard.play import load_entry
from fedagentgym.leaderboard.suite import count_tasks, make_config, open_scenario, parse_suite, to_yaml
from fedagentgym.runs.folder import format_document
from fedagentgym.testing.runs import SMALL_CONFIG

AGENTS_OF_OTHERS: dict[str, dict[str, Any]] = {
    "a server and a key": {"name": "endpoint", "options": {"url": "http://x.test", "key_variable": "AWS_SECRET"}},
    "a server": {"name": "endpoint"},
    "the keyboard": {"name": "human"},
    "code of the model's folder": {"name": "vllm", "options": {"engine": {"trust_remote_code": True}}},
    "another tokenizer": {"name": "tiny", "rollouts": "vllm", "options": {"engine": {"tokenizer": "evil/one"}}},
    "a key alone": {"name": "transformers", "options": {"key_variable": "AWS_SECRET"}},
    "a place alone": {"name": "transformers", "options": {"url": "http://x.test"}},
}
OPTIONS_OF_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a missing protection": ("fedagentgym/Code-v0", {"sandbox": {"accept": ["other user"]}}),
    "one of a mixture": ("fedagentgym/Mixture-v0", {"kinds": ["code"], "sandbox": {"accept": ["other user"]}}),
    "one of a member": (
        "fedagentgym/Mixture-v0",
        {"members": [{"name": "c", "env": "Code", "options": {"size": "tiny", "sandbox": {"accept": ["files"]}}}]},
    ),
}
PATHS_OF_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a file": ("fedagentgym/Math-v0", {"source": "gsm8k", "data": "/etc/passwd"}),
    "a folder": ("fedagentgym/ALFWorld-v0", {"games": "/root"}),
    "a shop": ("fedagentgym/WebShop-v0", {"data": "/root"}),
    "a member's": (
        "fedagentgym/Mixture-v0",
        {"members": [{"name": "q", "env": "QA", "options": {"source": "musique", "data": "/x"}}]},
    ),
}


def test_every_agent_of_the_package_is_decided_upon() -> None:
    """A new agent is for the user alone until it is listed."""
    own = {name for name in AGENTS.names() if not AGENTS.is_added(name)}
    assert own - set(SAFE_AGENTS) == {"endpoint", "human"} and set(SAFE_AGENTS) <= own


@pytest.mark.parametrize("what", AGENTS_OF_OTHERS)
def test_agents_that_only_the_user_chooses(what: str) -> None:
    settings = AgentSettings.load(AGENTS_OF_OTHERS[what])
    with pytest.raises(FedAgentGymError, match="cannot be chosen by others"):
        check_foreign_agent(settings, "here")


def test_agents_that_anybody_may_name() -> None:
    for name in SAFE_AGENTS:
        check_foreign_agent(AgentSettings(name=name), "here")
    check_foreign_agent(AgentSettings.load({"name": "expert", "options": {"noise": 0.3}}), "here")


# ---- exported folders ----------------------------------------------------------------------------------------------


def write_exported(folder: Path, changes: Mapping[str, Any]) -> Path:
    plain = {"format": "fedagentgym/agent-1", "agent": {"name": "tiny"}, "env": {"id": "fedagentgym/Guess-v0"}}
    folder.mkdir()
    (folder / "agent.yaml").write_text(yaml.safe_dump(merge(plain, changes)))
    return folder


@pytest.mark.parametrize("what", [*AGENTS_OF_OTHERS, "a program"])
def test_an_exported_folder_chooses_no_agent(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_exported(tmp_path / "agent", {"agent": AGENTS_OF_OTHERS.get(what, {"name": "expert"})})
    with pytest.raises(FedAgentGymError, match="cannot be chosen by others"):
        fedagentgym.load_agent(folder)
    for command in (["eval", "--agent"], ["eval", "--suite", "agents-tiny-v1", "--agent"]):
        assert main([*command, str(folder)]) == 2
        assert "cannot be chosen by others" in capsys.readouterr().err


@pytest.mark.parametrize("what", [*OPTIONS_OF_OTHERS, *PATHS_OF_OTHERS])
@pytest.mark.parametrize("place", ["env", "set"])
def test_an_exported_folder_opens_nothing_of_this_machine(what: str, place: str, tmp_path: Path) -> None:
    env_id, options = {**OPTIONS_OF_OTHERS, **PATHS_OF_OTHERS}[what]
    changes: dict[str, Any] = {"env": {"id": env_id, "options": options}}
    if place == "set":
        changes = {"evaluation": {"sets": [{"name": "x", "env": env_id, "options": options}]}}
    with pytest.raises(FedAgentGymError, match="which only its user decides"):
        read_agent_file(write_exported(tmp_path / "agent", changes))


# ---- run folders ---------------------------------------------------------------------------------------------------

EVIL = """from pathlib import Path
Path({mark!r}).write_text("imported")
"""
CHANGES: dict[str, dict[str, Any]] = {
    **{f"agent: {what}": {"agent": agent} for what, agent in AGENTS_OF_OTHERS.items()},
    **{
        f"scoring by {what}": {"algorithm": {"name": "fedgrpo", "expert_agent": one}}
        for what, one in AGENTS_OF_OTHERS.items()
    },
    **{f"env: {what}": {"env": {"id": name, "options": one}} for what, (name, one) in OPTIONS_OF_OTHERS.items()},
    **{
        f"set: {what}": {"evaluation": {"sets": [{"name": "x", "env": name, "options": one}]}}
        for what, (name, one) in OPTIONS_OF_OTHERS.items()
    },
    "a tracker with a place": {"output": {"trackers": [{"name": "tensorboard", "url": "http://x.test"}]}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_configuration_of_others(what: str) -> None:
    """A configuration that is the user's own holds the same; one of others is refused."""
    plain = {**SMALL_CONFIG, **CHANGES[what]}
    if "algorithm" in CHANGES[what]:
        plain["partition"] = {"clients": 3, "tasks_per_client": 8, "roles": {"auxiliary": 4, "server": 4}}
    config = load_config(plain)
    with pytest.raises(FedAgentGymError, match="--trust-plugins"):
        check_foreign_config(config, "here")
    check_foreign_config(load_config(SMALL_CONFIG), "here")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a plugin of its own."""
    place = tmp_path_factory.mktemp("made")
    (place / "mine.py").write_text("MINE = 1\n")
    plain = {**SMALL_CONFIG, "plugins": [str(place / "mine.py")]}
    train(plain, [f"output.folder={place / 'run'}", "federation.rounds=1", "output.sampled_episodes=1"])
    return place


@pytest.fixture
def foreign(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The run of another person, whose plugin leaves a mark, and the file that would be the mark."""
    mark = tmp_path / "mark"
    shutil.copytree(made, tmp_path / "made")
    evil = tmp_path / "made" / "mine.py"
    evil.write_text(EVIL.format(mark=str(mark)))
    return tmp_path / "made" / "run", mark


def reseal(run: Path, plugin: str) -> None:
    """Put another plugin into the configuration of a run whose rounds are gone: there is nothing that it could contradict."""
    text = (run / "config.yaml").read_text()
    before = yaml.safe_load(text)["plugins"][-1]
    (run / "config.yaml").write_text(text.replace(before, plugin))
    shutil.rmtree(run / "rounds")


READING: dict[str, Callable[[Path], list[str]]] = {
    "compare": lambda run: ["compare", str(run), str(run)],
    "chats": lambda run: ["chats", str(run), "--out", str(run.parent / "chats.jsonl")],
    "episodes": lambda run: ["episodes", str(run)],
    "replay": lambda run: ["eval", "--check", str(run / "evaluation" / "0001.jsonl")],
}
RUNNING: dict[str, Callable[[Path], list[str]]] = {
    "export": lambda run: ["export", str(run), "--out", str(run.parent / "exported")],
    "eval": lambda run: ["eval", "--run", str(run), "--tasks", "1", "--out", str(run.parent / "played.jsonl")],
    "resume": lambda run: ["resume", str(run)],
}


@pytest.mark.parametrize("command", READING)
def test_reading_imports_nothing(
    command: str, foreign: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, mark = foreign
    reseal(run, str(run.parent / "mine.py"))
    assert main(["-q", *READING[command](run)]) == 0
    assert not mark.exists()


@pytest.mark.parametrize("command", RUNNING)
def test_running_asks(command: str, foreign: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The code of a run runs if the user names it, or trusts the folder; what the user names is what runs."""
    run, mark = foreign
    line = ["-q", *RUNNING[command](run)]
    assert main(line) == 2
    assert "--trust-plugins" in capsys.readouterr().err and not mark.exists()
    own = run.parent.parent / "own"
    own.mkdir()
    (own / "mine.py").write_text("MINE = 1\n")
    assert main([*line, "--plugin", str(own / "other.py")]) == 2 and not mark.exists()
    assert main([*line, "--plugin", str(own / "mine.py")]) == 0 and not mark.exists()


@pytest.mark.parametrize("command", RUNNING)
def test_digests_come_before_code(command: str, foreign: tuple[Path, Path]) -> None:
    """A configuration that was changed is refused before its plugins are looked at, trusted or not."""
    run, mark = foreign
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        text.replace("'", "").replace(str(yaml.safe_load(text)["plugins"][-1]), str(run.parent / "mine.py"))
    )
    assert main(["-q", *RUNNING[command](run), "--trust-plugins"]) == 2
    assert not mark.exists()


def test_modules_that_are_installed_are_not_imported_either(foreign: tuple[Path, Path]) -> None:
    run, _ = foreign
    for name in ("antigravity", "fedagentgym.cli.main.x", "this"):
        shutil.copytree(run, run.parent / name)
        reseal(run.parent / name, name)
        assert main(["-q", "export", str(run.parent / name), "--out", str(run.parent / "out")]) == 2
        assert name not in sys.modules


# ---- suites and their runs -----------------------------------------------------------------------------------------

AGENTS_TRACK = {
    "name": "theirs",
    "track": "agents",
    "title": "theirs",
    "scenarios": {"one": {"env": "fedagentgym/Guess-v0"}},
}
METHODS_TRACK = {
    "name": "theirs",
    "track": "methods",
    "title": "theirs",
    "config": {**SMALL_CONFIG, "partition": {"clients": 2, "tasks_per_client": 4}},
    "scenarios": {"one": {}},
}


@pytest.mark.parametrize("what", AGENTS_OF_OTHERS)
def test_a_suites_baseline_is_a_safe_agent(what: str) -> None:
    suite = parse_suite(json.dumps({**AGENTS_TRACK, "baselines": {"x": {"agent": AGENTS_OF_OTHERS[what]}}}), "theirs")
    with pytest.raises(FedAgentGymError, match="cannot be chosen by others"):
        make_baseline(suite, "x")


@pytest.mark.parametrize("what", OPTIONS_OF_OTHERS)
def test_a_suite_lowers_no_protection(what: str) -> None:
    env_id, options = OPTIONS_OF_OTHERS[what]
    suite = parse_suite(
        json.dumps({**AGENTS_TRACK, "scenarios": {"one": {"env": env_id, "options": options}}}), "theirs"
    )
    for function in (open_scenario, count_tasks):
        with pytest.raises(FedAgentGymError, match="which only its user decides"):
            function(suite, "one")


SUITES: dict[str, dict[str, Any]] = {
    "plugins": {"config": {"plugins": ["evil"]}},
    "a change of them": {"changes": ["plugins=[evil]"]},
    "a scenario's": {"scenarios": {"one": {"changes": ["plugins=[evil]"]}}},
    "a file with them": {"config": "theirs.yaml"},
    "a run with them": {"config": "runs/theirs/config.yaml"},
    "an agent that is a server": {"changes": ["agent={name: endpoint}"]},
    "a model on a server scores": {"changes": ["algorithm={name: fedgrpo, expert_agent: {name: endpoint}}"]},
}


@pytest.mark.parametrize("what", SUITES)
def test_a_suite_names_no_code_and_no_server(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump({**SMALL_CONFIG, "plugins": ["evil"]}))
    suite = parse_suite(json.dumps(merge(METHODS_TRACK, SUITES[what])), "theirs")
    with pytest.raises(FedAgentGymError) as caught:
        make_config(suite, "one")
    assert "No module" not in str(caught.value)


ENTRIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"agent: {what}": (AGENTS_TRACK, {"agent": one}) for what, one in AGENTS_OF_OTHERS.items()},
    "a plugin": (AGENTS_TRACK, {"agent": {"name": "random"}, "plugins": ["evil"]}),
    "a method's plugin": (METHODS_TRACK, {"plugins": ["evil"]}),
    "a method's change": (METHODS_TRACK, {"changes": ["plugins=[evil]"]}),
    "a method's scorers": (METHODS_TRACK, {"changes": ["algorithm={name: fedgrpo, expert_agent: {name: endpoint}}"]}),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_a_run_of_a_suite_is_not_resumed_for_others(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track, entry = ENTRIES[what]
    suite = parse_suite(json.dumps(track), "theirs")
    folder = tmp_path / "theirs" / "x"
    folder.mkdir(parents=True)
    (folder / "suite.yaml").write_text(to_yaml(suite))
    (folder / "entry.json").write_text(format_document(Entry.load({"name": "x", **entry})))
    assert main(["bench", "resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "No module" not in said and said.count("\n") == 1, said
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == ["entry.json", "suite.yaml"]
    if track is METHODS_TRACK and "plugins" in entry:
        assert main(["bench", "status", str(tmp_path)]) == 0
        assert [one.name for one in load_entry(folder).missing] == ["one-seed0"]


def test_a_search_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedagentgym.base.files.MAX_FOLDERS", 20)
    for number in range(30):
        (tmp_path / f"folder{number}").mkdir()
    deep = tmp_path / "a" / "b" / "c" / "d" / "e" / "f"
    deep.mkdir(parents=True)
    (deep / "entry.json").write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path)
    for command in (
        ["bench", "status"],
        ["bench", "resume"],
        ["bench", "pack"],
        ["leaderboard", "build", "--out", "site"],
    ):
        assert main([*command, str(tmp_path)]) == 2
        assert "holds more than 20 folders" in capsys.readouterr().err
        assert main([*command, str(tmp_path / "a")]) == 2, "too far below"


def test_agents_are_found_wherever_they_stand() -> None:
    config = load_config(SMALL_CONFIG)
    assert [where for where, _ in find_agents(config, "x")] == ["x.agent"]
