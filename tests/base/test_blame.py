"""Errors in a user's own code: one sentence with the file and line of that code, and what the hook expects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.base.blame import find_blame
from fedagentgym.base.rounding import format_fixed
from fedagentgym.cli.main import main
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.testing.conditions import call_hook

PLUGIN = """
from dataclasses import replace
from typing import Literal

import fedagentgym
from fedagentgym.algorithms import Averaging, AveragingSettings
from fedagentgym.envs import TaskPool, TextEnv, View
from fedagentgym.federation import AggregationRule


class Lamp(TextEnv):
    id = "mine/Lamp-v0"
    role = "You switch a lamp on."
    action_help = "on or off"

    def load_pool(self, split):
        LOAD_POOL
        return TaskPool.from_records([{"category": "lamp", "payload": [split, i]} for i in range(9)], env=self.id, split=split)

    def begin(self, task, seed):
        BEGIN
        return 0, View(observation="It is dark.", admissible=("on", "off"))

    def advance(self, state, action):
        ADVANCE
        return 1, View("It is light.", ("on", "off"), 1.0, 1.0, True, True)


class MineSettings(AveragingSettings):
    name: Literal["mine"] = "mine"


class Mine(Averaging[MineSettings]):
    settings_class = MineSettings

    def train_client(self, state, message, client):
        TRAIN_CLIENT
        after, answer = super().train_client(state, message, client)
        ANSWER
        return after, answer

    def combine(self, state, used, updates, this_round):
        found = super().combine(state, used, updates, this_round)
        COMBINE
        return found

    def client_weights(self, replies, this_round):
        weights = [1.0 for reply in replies]
        CLIENT_WEIGHTS
        return weights

    def run_round(self, state, this_round):
        result = super().run_round(state, this_round)
        RUN_ROUND
        return result


class Sum:
    def __init__(self, state):
        self.state, self.last = state, None

    def add(self, update, weight):
        ADD
        self.last = update

    def finish(self):
        parameters = dict(self.last)
        FINISH
        return replace(self.state, parameters=parameters)


class Last(AggregationRule):
    uses_weights = True

    def begin(self, state):
        return Sum(state)


fedagentgym.register_env("mine/Lamp-v0", Lamp, replace=True)
fedagentgym.register_algorithm("mine", Mine, replace=True)
fedagentgym.register_aggregation("last", Last, replace=True)
"""
HOOKS = re.findall(r"^ +([A-Z_]{3,})$", PLUGIN, re.MULTILINE)
RUN = {
    "name": "mine",
    "env": {"id": "mine/Lamp-v0"},
    "agent": "untrained-tiny",
    "partition": {"clients": 2, "tasks_per_client": 3},
    "learning": {"tasks_per_step": 1, "group_size": 2},
    "algorithm": {"name": "mine", "local_steps": 1, "aggregation": "last"},
    "federation": {"rounds": 1},
    "evaluation": {"tasks": 1},
}


def write_plugin(folder: Path, **lines: str) -> Path:
    text = PLUGIN
    for hook in HOOKS:
        text = text.replace(f" {hook}\n", f" {lines.get(hook, 'pass')}\n")
    file = folder / "mine.py"
    file.write_text(text)
    return file


def train_plugin(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `fedagentgym train` says of a run with this plugin, which must fail as a mistake of the user does."""
    config = file.with_name("run.yaml")
    config.write_text(yaml.safe_dump({**RUN, "output": {"folder": str(file.with_name("run"))}}))
    assert main(["train", str(config), "--plugin", str(file), "--force"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("fedagentgym: ") and "report it" not in said
    return said


@pytest.mark.parametrize("hook", HOOKS)
def test_the_line_of_a_users_hook_that_fails_is_named(
    hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_plugin(tmp_path, **{hook: "typo.lower()"})
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if "typo" in text)
    said = train_plugin(file, capsys)
    assert f"{file}, line {line}" in said and "name 'typo' is not defined" in said and hook.lower() in said


@pytest.mark.parametrize(
    ("hook", "line", "told"),
    [
        ("CLIENT_WEIGHTS", "weights = weights[:-1]", r"client_weights of mine .* each of 2 replies, got .\[1.0\]"),
        ("CLIENT_WEIGHTS", "weights[0] = float('nan')", "client_weights of mine .*nan"),
        ("CLIENT_WEIGHTS", "replies[0].metrics['succes']", "unknown metric 'succes': did you mean 'success'"),
        (
            "FINISH",
            "parameters = {name: 3.0 for name in parameters}",
            "rule last gave '3.0' for '.*', which is an array",
        ),
        (
            "FINISH",
            "parameters = {name: value.astype('float64') for name, value in parameters.items()}",
            "run_round of Mine gave an array of float64 for '.*', which is an array of float32",
        ),
        ("FINISH", "parameters.popitem()", "the aggregation rule last left out the parameter"),
        ("FINISH", "return 3", "the aggregation rule last is to give a ServerState, got '3'"),
        ("COMBINE", "return None", "run_round of Mine gave 'None' as the state, which must be a ServerState"),
        ("COMBINE", "found = replace(found, optimizer={'m': 3.0})", "gave '3.0' for 'm' of the optimizer"),
        (
            "COMBINE",
            "found = replace(found, memory={'seen': object()})",
            "Mine gave a state that cannot be stored: .*object",
        ),
        ("COMBINE", "found = replace(found, memory={'seen': {3: 4}})", "Mine gave a state that cannot be stored: "),
        ("RUN_ROUND", "result = replace(result, metrics={'mine': 'many'})", "gave 'many' for the metric 'mine'"),
        ("RUN_ROUND", "result = replace(result, clients={0: {'mine': None}})", "gave 'None' for the metric 'mine'"),
        ("RUN_ROUND", "result = replace(result, metrics=None)", "gave 'None' as metrics, which must be a mapping"),
        ("RUN_ROUND", "result = replace(result, clients={0: 3})", "gave '3' as metrics, which must be a mapping"),
        ("RUN_ROUND", "result = replace(result, clients=[3])", "as the clients' metrics, which must be a mapping"),
        ("RUN_ROUND", "result = replace(result, clients={'first': {}})", "gave 'first' as the number of a client"),
        ("RUN_ROUND", "result = replace(result, episodes=[3])", "gave '3' as an episode, which must be"),
        ("RUN_ROUND", "result = replace(result, episodes=3)", "gave '3' as the episodes, which must be"),
        ("RUN_ROUND", "result = replace(result, episodes='{}')", "as the episodes, which must be"),
        ("COMBINE", "found = replace(found, parameters=None)", "gave 'None' as the parameters, which must be"),
        ("COMBINE", "found = replace(found, optimizer=None)", "gave 'None' as the optimizer, which must be"),
        ("ANSWER", "return after", "'train' must return two messages, its state and its answer, got"),
        ("ANSWER", "return None, answer", "'train' must return two messages"),
        ("ANSWER", "return after, None", "'train' must return two messages"),
        ("ANSWER", "return after, {'weights': 3}", "'train' must return two messages"),
        ("RUN_ROUND", "return None", "run_round of Mine must return a RoundResult, got 'None'"),
        (
            "RUN_ROUND",
            "result = replace(result, state=replace(state, parameters={}))",
            "Mine left out the parameter",
        ),
        (
            "RUN_ROUND",
            "result = replace(result, state=replace(state, parameters={name: value.astype('float64')"
            " for name, value in state.parameters.items()}))",
            "Mine gave an array of float64 for '.*', which is an array of float32",
        ),
    ],
)
def test_a_wrong_answer_of_a_hook_is_one_sentence(
    hook: str, line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(told, train_plugin(write_plugin(tmp_path, **{hook: line}), capsys))


MISFITS = {
    "def train_client(self, state, message, client):": ("def train_client(self, state):", "Averaging asks for"),
    "def client_weights(self, replies, this_round):": ("def client_weights(self):", "client_weights(self, replies"),
    "def begin(self, task, seed):": ("def begin(self, task):", "TextEnv asks for"),
    "def begin(self, state):": ("def begin(self):", "AggregationRule asks for"),
    "def add(self, update, weight):": ("def add(self, update, *, strength):", "Sum.add(self, update, *, strength) at"),
    "def load_pool(self, split):": ("def load_pool(self, split, more):", "TextEnv asks for"),
}


@pytest.mark.parametrize("written", MISFITS)
def test_a_hook_with_other_parameters_is_named_with_them(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, expected = MISFITS[written]
    file = write_plugin(tmp_path)
    file.write_text(file.read_text().replace(written, wrong, 1))
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if wrong in text)
    said = train_plugin(file, capsys)
    assert f"{wrong.removeprefix('def ').removesuffix(':')} at {file}, line {line}, does not fit its call" in said
    assert expected in said and re.search("takes|missing", said)


def test_a_function_with_other_parameters_is_named_and_a_mistake_of_this_package_is_not(tmp_path: Path) -> None:
    file = tmp_path / "deal.py"
    file.write_text("def deal(table, clients):\n    return []\n\n\nother = lambda table: []\n")
    module: dict[str, Any] = {"__name__": "deal"}
    exec(compile(file.read_text(), str(file), "exec"), module)
    for name, shown in (("deal", "deal(table, clients)"), ("other", "<lambda>(table)")):
        fedagentgym.register_sampler("deal-misfit", module[name], replace=True)
        with pytest.raises(TypeError) as caught:
            fedagentgym.federate("Guess", partition="deal-misfit", clients=2)
        blame = find_blame(caught.value)
        assert blame is not None and f"{shown} at {file}, line {blame.line}, does not" in blame.describe(caught.value)
    SAMPLERS._entries.pop("deal-misfit")
    with pytest.raises(TypeError, match="takes") as caught:
        format_fixed(1.0, 2, 3, 4)  # type: ignore[call-arg]
    assert find_blame(caught.value) is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("lambda self, size: []", "lambda self, other: 1"),
        ("lambda: None", "lambda self, one: 1"),
        ("lambda self, a, b: 1", "lambda: 1"),
    ],
)
def test_functions_without_a_name_are_told_apart(tmp_path: Path, ours: str, theirs: str) -> None:
    """Others of the same name are alive, one of them in a base class."""
    found: dict[str, Any] = {}
    for name, source in (
        ("other", f"class Base:\n    more = {theirs}"),
        ("mine", f"class Mine(Base):\n    hook = {ours}"),
    ):
        (tmp_path / f"{name}.py").write_text(source)
        exec(compile(source, str(tmp_path / f"{name}.py"), "exec"), found)
    with pytest.raises(TypeError) as caught:
        call_hook(found["Mine"](), "hook")
    blame = find_blame(caught.value)
    assert blame is not None and blame.file.name == "mine.py"


def test_the_sentence_says_what_the_hook_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = train_plugin(write_plugin(tmp_path, BEGIN="typo"), capsys)
    assert "begin(self, task" in said and "TextEnv asks for" in said


def test_the_first_client_that_fails_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_plugin(tmp_path, TRAIN_CLIENT="if client.id: raise KeyError('oops')")
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if "oops" in text)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**RUN, "federation": {"rounds": 2}, "output": {"folder": str(tmp_path / "run")}}))
    assert main(["train", str(config), "--plugin", str(file), "--force"]) == 0
    (said,) = [record.getMessage() for record in caplog.records if "oops" in record.getMessage()]
    assert "round 1 goes on without client 1 (error; " in said
    assert f"Mine.train_client failed at {file}, line {line}: KeyError: 'oops'" in said


def test_clients_that_all_fail_by_an_error_are_not_called_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = train_plugin(write_plugin(tmp_path, TRAIN_CLIENT="typo"), capsys)
    assert "resume when this is mended" in said and "available" not in said


def test_code_of_this_package_alone_is_blamed_on_no_plugin() -> None:
    from fedagentgym.base.encoding import canonical_json

    with pytest.raises(Exception) as caught:
        canonical_json(object())  # type: ignore[arg-type]
    assert find_blame(caught.value) is None
