"""Commands that are printed: whoever pastes one of them names the plugins without which it is refused."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.cli.options import parse_agent_settings
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.stored import Trust
from fedagentgym.leaderboard.play import describe_resumption, load_entry
from fedagentgym.leaderboard.results import ENTRY
from tests.leaderboard import forger
from tests.leaderboard.samples import write_methods_sample

PACKAGE = Path(fedagentgym.__file__).parent
PLUGIN = """
import fedagentgym
from fedagentgym.envs.guess import GuessEnv

fedagentgym.register_env("me/Mine-v0", type("MineEnv", (GuessEnv,), {"id": "me/Mine-v0"}))
"""
RUN: dict[str, Any] = {
    "name": "printed",
    "env": {"id": "me/Mine-v0"},
    "partition": {"clients": 2, "tasks_per_client": 4},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 1, "group_size": 2},
    "algorithm": {"name": "fedagent", "local_steps": 1},
    "federation": {"rounds": 1},
    "evaluation": {"tasks": 2},
}


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """A run in runs/mine whose environment is a plugin's; what was printed."""
    monkeypatch.chdir(tmp_path)
    known = dict(ENVIRONMENTS._entries)
    Path("my code.py").write_text(PLUGIN)
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, "output": {"folder": "runs/mine"}}))
    assert main(["train", "run.yaml", "--plugin", "my code.py", "--force"]) == 0
    yield capsys.readouterr().out
    ENVIRONMENTS._entries.clear()
    ENVIRONMENTS._entries.update(known)


def test_every_command_about_a_run_names_its_plugins(printed: str) -> None:
    named = " --plugin 'my code.py'"
    assert f"fedagentgym eval --run runs/mine{named}\n" in printed
    page = html.unescape(Path("runs/mine/report.html").read_text())
    for command in ("export runs/mine --out exported-policy", "--agent ./exported-policy"):
        assert f"{command}{named}<" in page, command
    Path("runs/mine/result.json").rename("result.json")
    assert main(["report", "runs/mine"]) == 0
    assert f"resume runs/mine{named}<" in html.unescape(Path("runs/mine/report.html").read_text())
    with pytest.raises(OptionError, match=f"fedagentgym resume runs/mine{named}"):
        fedagentgym.train("run.yaml", plugins=["my code.py"])
    with pytest.raises(OptionError, match=f"fedagentgym resume runs/mine{named}"):
        load_config("runs/mine")
    with pytest.raises(OptionError, match=f"fedagentgym export runs/mine --out FOLDER{named}"):
        parse_agent_settings("runs/mine")
    Path("result.json").rename("runs/mine/result.json")
    export_policy("runs/mine", "exported", trust=Trust(("my code.py",)))
    assert f"\nfedagentgym eval --agent FOLDER{named}\n" in Path("exported/README.md").read_text()
    played = ["eval", "--env", "me/Mine-v0", "--agent", "random", "--tasks", "2", "--plugin", "my code.py"]
    assert main([*played, "--out", "a"]) == main([*played, "--out", "b"]) == 0
    assert main(["compare", "a", "b", "--out", "page.html"]) == 0
    assert f"fedagentgym eval --check a{named}<" in html.unescape(Path("page.html").read_text())


def test_commands_about_an_entry_of_a_suite_name_its_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_methods_sample(folder := tmp_path / "sample-methods-v1" / "learns", "learns")
    named = [{"name": "careful.py", "digest": "sha256:" + "0" * 64, "path": "/mine/careful.py"}]
    forger.edit_json(folder / ENTRY, lambda plain: plain.update(baseline=False, plugins=named))
    resumption = f"fedagentgym bench resume {folder} --plugin /mine/careful.py"
    assert describe_resumption([load_entry(folder)]) == resumption
    assert main(["bench", "pack", str(folder)]) == 0
    assert "bench verify results/sample-methods-v1/learns.zip --plugin /mine/careful.py\n" in capsys.readouterr().out


def test_no_command_about_a_run_is_printed_without_its_plugins() -> None:
    """A new place that prints one adds them: a run's own, or with `--trust-plugins` all that its folder needs."""
    about = r"fedagentgym (?:resume|export|eval --run|eval --check|bench resume|bench verify|bench pack)(?: \{| FOLDER)"
    for file in PACKAGE.rglob("*.py"):
        for found in re.finditer(about, text := file.read_text("utf-8")):
            before = text[max(0, found.start() - 40) : found.start()]
            line = text[text.rfind("\n", 0, found.start()) : text.find("\n", found.end())]
            assert "add_plugins(" in before or "pack = " in line, f"{file}: {line.strip()}"
