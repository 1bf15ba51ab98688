"""No option is accepted and then ignored: what a mode of a command does not use is refused in one sentence."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fedagentgym.cli.application import load_application
from fedagentgym.cli.main import main
from fedagentgym.cli.options import Command
from fedagentgym.envs.options import RESERVED

MODES = {
    "eval --suite": "agent agent_set scenarios output plugins as_json",
    "eval --check": "env env_set split only plugins as_json",
    "pretrain --check": "env as_json",
    "pretrain --ship": "env as_json",
}
"""What each mode uses; every other option of the command is refused beside it."""
VALUES = {
    "--env": "Guess", "--agent": "random", "--agent-set": "options={}", "--env-set": "size=tiny", "--set": "steps=2",
    "--sweep": "seed=0,1", "--gpu": "h100", "--prices": ("1", "2"), "--temperature": "0.5", "--out": "written",
    "--plugin": "json", "--role": "server=2",
}  # fmt: skip


def list_commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from list_commands(one, (*before, name))
        elif isinstance(one, Command):
            yield (*before, name), one


COMMANDS = dict(list_commands(load_application()))


@pytest.mark.parametrize("name", sorted(RESERVED))
@pytest.mark.parametrize(
    "line", ["envs Guess", "eval --env Guess --agent random", "label Guess --out labels.jsonl", "play Guess"]
)
def test_arguments_of_make_are_no_options_of_an_environment(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of the options would not hold them."""
    monkeypatch.chdir(tmp_path)
    if line.startswith("envs") and name == "split":
        return
    assert main([*line.split(), "--env-set", f"{name}=val"]) == 2
    assert f"--env-set {name}" in capsys.readouterr().err and not list(tmp_path.iterdir())


def has_both(command: Command) -> bool:
    options = {word for one in command.params for word in one.opts}
    return {"--split", "--env-set"} <= options


def write(command: Command, name: str) -> list[str]:
    """The words that give an option, or an argument."""
    parameter = next(one for one in command.params if one.name == name)
    if isinstance(parameter, click.Argument):
        return ["given"]
    flag = parameter.opts[0]
    assert isinstance(parameter, click.Option)
    if parameter.is_flag:
        return [flag]
    value = VALUES.get(flag, "1")
    return [flag, *([value] if isinstance(value, str) else value)]


def list_vain_lines() -> Iterator[tuple[str, ...]]:
    """Every pair of a mode and an option that it does not use, every option without what it needs, every pair that excludes."""
    for words, command in COMMANDS.items():
        required = [one for one in command.params if one.required and isinstance(one, click.Argument)]
        begin = (*words, *("tiny" for _ in required))
        options = {str(one.name) for one in command.params if isinstance(one, click.Option)} - {"quiet"}
        for mode, used in command.modes.items():
            for name in sorted(options - {mode, *used}):
                yield (*begin, *write(command, mode), *write(command, name))
        for name in command.needs:
            yield (*begin, *write(command, name))
        for first, second in command.excludes:
            yield (*begin, *write(command, first), *write(command, second))


def test_the_table_of_modes_is_the_one_that_was_thought_through() -> None:
    found = {
        " ".join((*words, *write(command, mode)[:1])): set(used)
        for words, command in COMMANDS.items()
        for mode, used in command.modes.items()
    }
    assert found == {mode: set(used.split()) for mode, used in MODES.items()}
    for command in COMMANDS.values():  # each names parameters that exist
        names = {str(one.name) for one in command.params}
        named = {*command.modes, *command.needs, *(one for pair in command.excludes for one in pair)}
        named.update(one for each in (*command.modes.values(), *command.needs.values()) for one in each)
        assert named <= names


def test_what_a_mode_does_not_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = list(list_vain_lines())
    assert len(lines) > 60
    for line in lines:
        assert main(list(line)) == 2, line
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and ("does nothing" in said or "exclude each other" in said), line
    assert list(tmp_path.iterdir()) == []


def test_an_empty_text_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a shell makes of `--out "$UNSET"` would be the folder of the shell, which a run then fills."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for words, command in COMMANDS.items():
        paths = [one for one in command.params if isinstance(one.type, click.Path)]
        required = [one for one in command.params if one.required]
        for path in paths:
            line = [*words]
            partners = [one for one in command.params if one.name in command.needs.get(str(path.name), ())[:1]]
            for one in dict.fromkeys((*required, path, *partners)):
                given = write(command, str(one.name))
                line += [*given[:-1], ""] if one is path else given
            assert main(line) == 2, line
            assert "a path is expected, and this is an empty text" in capsys.readouterr().err, line
            tried += 1
    assert tried > 40
    assert main(["train", "demo", "--set", 'output.folder=""']) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train demo --out here --set output.folder=there", "--out and --set output.folder are the same setting"),
        ("eval --env Guess --agent random --agent-set model=x", "agent 'random' does not use model"),
        ("eval --env Guess --agent expert --agent-set decoding.top_p=0.5", "agent 'expert' does not use decoding"),
        ("eval --env Guess --agent human --agent-set template=compact", "agent 'human' does not use template"),
        ("eval --env Guess --agent endpoint --agent-set model=m --agent-set dtype=float32", "does not use dtype"),
        ("bench run agents-tiny-v1 --agent random --agent-set model=x", "agent 'random' does not use model"),
        ("bench run agents-tiny-v1 --agent random --set learning.learning_rate=1", "exclude each other"),
        ("bench run smoke --baseline fedagent --set learning.learning_rate=1 --name x", "exclude each other"),
        ("bench run smoke --baseline fedagent --title x", "--title is for an entry of your own"),
        ("bench plan smoke --price 2", "does nothing without --agent"),
        ("bench plan agents-tiny-v1 --details", "no --details"),
        ("hub push split.json me/x --license Apache-2.0", "the hub's name of a licence"),
        ("plan tiny-skills --gpu h200", "--gpu is for runs on a GPU"),
        ("plan paper-webshop:lora --reply-tokens 100000", "a reply has at most 512"),
        ("train tiny-skills --sweep seed=1,2 --seeds 1,2", "--sweep and --seeds"),
        ("label Guess --agent random --error 0.5", "--error does nothing to the agent 'random'"),
        ("label Guess --temperature 0.5", "--temperature does nothing to the agent 'handicapped'"),
        ("label Guess --agent tiny --turns 3", "--turns does nothing to the agent 'tiny'"),
        ("model add smollm2 --revision main", "--revision is for a model of the hub"),
        ("data add math --subset en", "subset"),
        ("split compare split.json --env Guess", "leave it out"),
        ("split make uniform --env Guess --clients 3 --tasks-per-client 5 --omega 1", "has no parameter 'omega'"),
        ("play Guess --client 1", "--client-split is missing"),
        ("pretrain smollm2 --check", "for the tiny agents"),
        ("pretrain tiny --env Guess --env-set split=val", "--env-set split does nothing here"),
        ("eval --env Guess --agent random --agent-set name=expert", "the agent is already named 'random'"),
        ("bench run agents-tiny-v1 --agent random --agent-set name=expert", "the agent is already named 'random'"),
        ("gateway check --agent untrained-tiny --agent-set name=tiny -- true", "the agent is already named"),
        ("gateway check --agent-set harness.processes=3 -- true", "--processes says how many"),
        ("gateway check --agent-set 'harness={command: [true]}' -- true", "the program stands after --"),
        ("gateway serve --agent-set harness.command=[true]", "you start the programs yourself"),
        ("gateway serve --env Guess --agent untrained-tiny --out .", "it is a folder, a file is expected"),
        ("gateway serve --env Guess --agent untrained-tiny --out ..", "it is a folder, a file is expected"),
        ("eval --env Guess --agent random --trust-plugins", "--trust-plugins does nothing without --run"),
        ("eval --env Guess --agent tiny --agent-set decoding.temperature=1", "evaluations sample at --temperature"),
        (
            "eval --env Guess --agent tiny --agent-set 'decoding={temperature: 1}'",
            "evaluations sample at --temperature",
        ),
        ("bench run agents-tiny-v1 --agent tiny --agent-set decoding.temperature=1", "its own temperature"),
        ("eval --env Guess --agent expert --temperature 0.5", "--temperature does nothing to the agent 'expert'"),
        ("eval --env Guess --agent random --temperature 0.5", "--temperature does nothing to the agent 'random'"),
        ("train tiny-skills --seeds 1,2 --set seed=3", "--seeds and --set seed are the same setting"),
        ("train tiny-skills --out a --set 'output={folder: b}'", "--out and --set output.folder are the same setting"),
        ("demo --seed 1 --set seed=2", "--seed and --set seed are the same setting"),
        ("demo --out a --set output.folder=b", "--out and --set output.folder are the same setting"),
        ("demo --set output.folder=b", "the demo has two runs"),
        ("split make uniform --env Guess --clients 2 --role public=3 --role public=5", "--role public is given twice"),
        ("split make uniform --env Guess --clients 2 --set clients=3", "--clients and --set clients are the same"),
        ("split make preference --env Guess --omega 0.9 --set omega=1", "--omega and --set omega are the same"),
        ("split make uniform --env Guess --tasks-per-client 5 --set tasks_per_client=6", "are the same setting"),
        ("split make uniform --env Guess --seed 1 --set seed=2", "--seed and --set seed are the same setting"),
        ("split compare uniform,overlap=2,overlap=3 --env Guess --clients 2", "overlap is given twice"),
    ],
)
def test_what_only_the_values_tell_is_refused_too(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "split.json" in line:
        made = "split make uniform --env Guess --clients 2 --tasks-per-client 3 --out split.json"
        assert main(made.split()) == 0
        capsys.readouterr()
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == (["split.json"] if "split.json" in line else [])


@pytest.mark.parametrize("words", [words for words, command in COMMANDS.items() if has_both(command)], ids=" ".join)
def test_a_split_is_given_by_its_option(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--env-set split=test` beside `--split val` would play one of the two."""
    monkeypatch.chdir(tmp_path)
    more = {
        ("split", "make"): ["uniform"],
        ("client", "init"): ["client.yaml", "--client", "0"],
        ("gateway", "check"): ["--agent", "untrained-tiny"],
        ("eval",): ["--agent", "random"],
    }
    env = (
        ["Guess"]
        if any(one.name == "env" and isinstance(one, click.Argument) for one in COMMANDS[words].params)
        else []
    )
    env = env or ["--env", "Guess"]
    end = ["--", "true"] if words == ("gateway", "check") else []
    for split in ([], ["--split", "val"]):
        assert main([*words, *more.get(words, []), *env, *split, "--env-set", "split=test", *end]) == 2
        assert "--env-set split does nothing here: give --split test" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("seed=1", " seed =2", "seed"),
        ("federation={rounds: 3}", "federation.rounds=4", "federation.rounds"),
        ("federation.rounds=4", "federation={rounds: 3, workers: 2}", "federation.rounds"),
        ("learning={kl: 1, loss: {clip: 1}}", "learning.loss.clip=2", "learning.loss.clip"),
        ("algorithm=fedprox", "algorithm.name=scaffold", "algorithm"),
        ("algorithm={name: fedprox}", "algorithm=scaffold", "algorithm"),
    ],
)
def test_a_key_within_a_mapping_is_given_once_too(
    first: str, second: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["train", "demo"],
        ["plan", "demo"],
        ["presets", "demo"],
        ["resume", "run"],
        ["bench", "run", "smoke"],
    ):
        assert main([*command, "--set", first, "--set", second]) == 2
        assert f"--set {named} is given 2 times: give it once" in capsys.readouterr().err
    assert main(["train", "demo", "--sweep", "seed=1,2", "--sweep", " seed=3"]) == 2
    assert main(["train", "demo", "--sweep", "seed=1,2", "--set", " seed=3"]) == 2
    capsys.readouterr()
    assert main(["presets", "tiny-skills", "--set", "algorithm=fedprox", "--set", "algorithm.proximal=0.1"]) == 0
