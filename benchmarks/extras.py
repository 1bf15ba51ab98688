"""The extras that resolve under the constraints files, and why the others do not: by `uv pip compile`, which installs nothing.

One set of pins cannot serve every library: requirements may conflict with each other, or with a version that the tests need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from fedagentgym.base.errors import OptionError

SEPARATE = {"vllm": ("train,vllm", "constraints-vllm.txt")}
"""Extras with a constraints file of their own: the extras that are resolved together, and that file."""
_CAUSE = re.compile(r"[Bb]ecause (.+?),? we can conclude", re.DOTALL)


class Resolution(NamedTuple):
    """The resolution of an extra: the number of packages, or the reason why there is none."""

    packages: int
    reason: str = ""


def run(quick: bool = False) -> list[Measurement]:
    """The number of packages of every extra under its constraints file; 0, with the reason, if it does not resolve."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = ("train",) if quick else tuple(project["optional-dependencies"])
    found = []
    for extra in extras:
        together, constraints = SEPARATE.get(extra, (extra, "constraints.txt"))
        resolution = resolve(ROOT, together.split(","), ROOT / constraints)
        name = f"[{together}] under {constraints}"
        found.append(Measurement(name, float(resolution.packages), "packages", resolution.reason))
    return found


def resolve(project: Path, extras: list[str], constraints: Path) -> Resolution:
    """Resolve extras of the project in a folder under a constraints file, for this Python."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise OptionError("extras are resolved by uv, which is not installed: pip install uv")
    command = [
        uv,
        "pip",
        "compile",
        "pyproject.toml",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "-c",
        str(constraints),
    ]
    command += ["--python", sys.executable, *(part for extra in extras for part in ("--extra", extra))]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return Resolution(sum("==" in line for line in ran.stdout.splitlines()))
    return Resolution(0, explain(ran.stderr))


def explain(said: str) -> str:
    """The first cause that uv names, in one line of at most 200 characters."""
    flat = " ".join(said.split())
    cause = _CAUSE.search(flat)
    return (cause.group(1) if cause else flat)[:200]
