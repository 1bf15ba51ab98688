"""The notebook and the Dockerfile do what they say, run as without this checkout's environment."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .environments import NEEDS_UV, create, make_clean_environment, pin_cpu_torch, run_in
from .test_installs import TORCH

pytestmark = pytest.mark.slow


def test_the_notebook_trains_and_shows_its_table(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells but the one that installs."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    cells = [
        cell for cell in json.loads((root / "examples/demo.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    sources = ["".join(cell["source"]) for cell in cells]
    assert sources[0] == '%pip install -q "fedagentgym[train]"' and not any(cell["outputs"] for cell in cells)
    shown, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(shown):
        for source in sources[1:]:
            exec(compile(source, "demo.ipynb", "exec"), names)
    table = shown.getvalue().splitlines()[-7:]
    assert table[0].split()[0] == "all" and names["together"].success > names["alone"].success


def test_the_lines_of_the_dockerfile_run_in_an_empty_folder(root: Path, tmp_path: Path) -> None:
    """COPY is the files that git knows; CMD is run as a plan, since the demo has tests of its own."""
    lines = [line for line in (root / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    words = [line.split(maxsplit=1) for line in lines]
    assert [word for word, _ in words] == ["FROM", "WORKDIR", "COPY", "RUN", "ENV", "CMD"]
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], input=packed, cwd=tmp_path, check=True)
    surroundings = make_clean_environment() | {"HOME": str(tmp_path)}
    (run,) = (rest for word, rest in words if word == "RUN")
    done = subprocess.run(run, shell=True, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    command = json.loads(words[-1][1])
    planned = subprocess.run(
        [*command, "-n"], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True
    )
    assert "fedagentgym demo" in planned.stdout, shlex.join(command)


def test_the_first_hour_after_make_demo(root: Path, tmp_path: Path) -> None:
    """`make demo` in a fresh folder, the line that it ends with, and then the commands and loops of a newcomer."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
    checkout, work = tmp_path / "fedagentgym", tmp_path / "work"
    checkout.mkdir()
    work.mkdir()
    subprocess.run(["tar", "x"], input=packed, cwd=checkout, check=True)
    kept = ("FEDAGENTGYM_CACHE", "MAKEFLAGS", "MAKELEVEL")
    surroundings = {name: value for name, value in make_clean_environment().items() if name not in kept}
    done = subprocess.run(["make", "demo"], cwd=checkout, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    activate = done.stdout.splitlines()[-1].rpartition(": ")[2]
    assert activate == "source .venv/bin/activate"
    install = "pip install -q -c constraints.txt -e '.[trl]'"
    play = f"cd {work} && python {checkout}/tests/installs/newcomer.py hour {root}"
    typed = ["bash", "-c", f"{activate} && fedagentgym doctor && {install} && {play}"]
    surroundings["FEDAGENTGYM_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(typed, cwd=checkout, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@NEEDS_UV
@pytest.mark.parametrize("extra", ["", "[train]"])
def test_the_demo_of_the_built_wheel_in_an_empty_environment(
    extra: str, root: Path, wheel: Path, tmp_path: Path
) -> None:
    """As `pipx run` has it: nothing but the package, in a folder of its own."""
    requirements = [
        f"fedagentgym{extra} @ {wheel.as_uri()}",
        *([pin_cpu_torch(sys.executable, TORCH)] if extra else []),
    ]
    inside = create(tmp_path / "env", sys.executable, requirements, "-c", root / "constraints.txt")
    (tmp_path / "work").mkdir()
    small = ["--set", "learning.tasks_per_step=1", "--set", "evaluation.tasks=8"] if extra else []
    said = run_in(inside, inside.with_name("fedagentgym"), "demo", *small, cwd=tmp_path / "work")
    chores = (
        ("Clean", "Cool", "Heat", "Pick") if small else ("Clean", "Cool", "Heat", "Look", "Pick", "Pick2")
    )  # of 8 tasks, of all
    assert all(chore in said for chore in chores)
    assert (
        ("open demo-report/index.html" in said) == (tmp_path / "work/demo-report/index.html").is_file() == bool(extra)
    )
