"""Every command that prints a table prints it for programs too, with `--json`."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagentgym.cli.main import main
from fedagentgym.experiment.result import RunResult
from tests.cli.test_width import RUN
from tests.committed import RESULTS
from tests.fuzz.test_commands import FOUND

TABLES = {"make_table", "Table", "write_top", "Column", "_print_entry"}
"""What a command calls that prints rows."""
READ = {
    "envs": ("", "Guess"),
    "presets": ("", "tiny-skills:iid"),
    "plan": ("paper-webshop",),
    "settings": ("learning.kl",),
    "bench list": ("",),
    "bench show": ("agents-tiny-v1",),
    "bench plan": ("methods-tiny-skills-v2",),
    "leaderboard top": (f"{RESULTS / 'agents-tiny-v1'} --suite agents-tiny-v1",),
    "split make": ("uniform --env Guess --clients 3 --tasks-per-client 5 --out other.json",),
    "split presets": ("",),
    "split show": ("other.json",),
    "split verify": ("other.json",),
    "split diff": ("other.json other.json",),
    "split compare": ("other.json uniform,tasks_per_client=5 --env Guess --clients 3",),
    "client check": ("client.yaml", "client.yaml --run run.yaml"),
    "data list": ("",),
    "data check": ("gsm8k --from gsm8k.jsonl",),
    "model list": ("",),
    "doctor": ("",),
}
"""Lines that take no time; the others are those of the test of widths."""
ROW = '{"question": "How much is 1 + 1?", "answer": "It is 2. #### 2"}\n'


def list_calls(command: str) -> set[str]:
    """The names that a command calls, with those that functions of its module call for it."""
    callback = FOUND[command].callback
    assert callback is not None
    inner = inspect.unwrap(callback)
    module = ast.parse(inspect.getsource(sys.modules[inner.__module__]))
    functions = {one.name: one for one in ast.walk(module) if isinstance(one, ast.FunctionDef)}
    open_, found = [inner.__name__], set[str]()
    while open_:
        for node in ast.walk(functions[open_.pop()]):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name and name not in found:
                found.add(name)
                open_ += [name] if name in functions else []
    return found


def has_json(command: str) -> bool:
    return any("--json" in one.opts for one in FOUND[command].params)


@pytest.mark.parametrize("command", FOUND)
def test_a_command_with_a_table_has_json(command: str) -> None:
    assert has_json(command) or not TABLES & list_calls(command)


def read_json(line: str, capsys: pytest.CaptureFixture[str]) -> object:
    capsys.readouterr()
    assert main([*line.split(), "--json"]) in (0, 3), line
    return json.loads(capsys.readouterr().out)


def test_several_results_are_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = [RunResult(tmp_path / str(seed), {"seed": seed}) for seed in (1, 2)]
    monkeypatch.setattr("fedagentgym.experiment.run.train", lambda *given, **named: made)
    assert read_json("train demo --seeds 1,2", capsys) == [{"seed": 1}, {"seed": 2}]
    archive = RESULTS / "agents-tiny-v1" / "random.zip"
    checked = SimpleNamespace(model_dump=lambda mode: {"result": mode})
    monkeypatch.setattr("fedagentgym.leaderboard.verify.verify", lambda folder, **named: checked)
    for count in (1, 3):
        assert read_json(f"bench verify{f' {archive}' * count}", capsys) == [{"result": "json"}] * count
    shipped = {name: SimpleNamespace(folder=name, note={"success": 1.0}) for name in "ab"}
    monkeypatch.setattr("fedagentgym.learning.shipped.list_shipped_recipes", lambda env: dict.fromkeys(shipped))
    monkeypatch.setattr("fedagentgym.learning.shipped.ship", lambda name, recipe: shipped[name])
    assert read_json("pretrain tiny --ship", capsys) == [{"folder": name, "success": 1.0} for name in "ab"]


def test_what_is_printed_is_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    Path("gsm8k.jsonl").write_text(ROW)
    assert main(["client", "init", "client.yaml", "--client", "1", "--env", "Guess"]) == 0
    found = {line: read_json(f"{name} {line}", capsys) for name, lines in READ.items() for line in lines}
    assert all(found.values())
