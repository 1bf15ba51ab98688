"""`kill -9` before every single change of the disk: what is made is whole or not there, and the same command ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kills import KILLED, kill_everywhere
from fedagentgym.cli.main import main


@pytest.mark.parametrize("name", ["data add", "split make", pytest.param("pretrain", marks=pytest.mark.slow)])
def test_a_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path))
    if name == "pretrain":
        pytest.importorskip("torch")
    line, made, ignored = KILLED[name]
    assert kill_everywhere(line, made, tmp_path, ignored) >= (3 if name == "split make" else 5)


@pytest.mark.slow
def test_pack(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert main(["-q", "bench", "run", "agents-v1", "--agent", "random", "--scenario", "shop", "--out", str(runs)]) == 0

    def line(here: Path) -> list[str]:
        return ["bench", "pack", str(runs), "--out", str(here)]

    assert kill_everywhere(line, "agents-v1/random.zip", tmp_path) >= 3
