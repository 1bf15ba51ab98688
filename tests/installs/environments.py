"""Fresh virtual environments for tests that need other packages than the ones that are installed here. Made with uv, which
keeps what it downloaded; the package index and folders of wheels are those that pip is set up to use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS_UV = pytest.mark.skipif(find_spec("uv") is None, reason="`make installs` installs uv and runs these tests")
MINORS = (11, 12, 13, 14)
_PIP_TO_UV = {
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}


def make_clean_environment() -> dict[str, str]:
    """The variables of this process without what would let a checkout or this interpreter's packages shine through."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for of_pip, of_uv in _PIP_TO_UV.items():
        if of_pip in kept:
            kept.setdefault(of_uv, kept[of_pip])
    return kept


def find_pythons() -> list[str]:
    """Every interpreter from 3.11 on: this one, those on the path, and those of pyenv; one of each minor version."""
    candidates = [sys.executable, *(f"python3.{minor}" for minor in MINORS)]
    if pyenv := shutil.which("pyenv"):
        root = Path(subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip())
        candidates += [str(path) for path in sorted(root.glob("versions/3.1[1-9]*/bin/python"))]
    found: dict[str, str] = {}
    for candidate in candidates:
        version = _ask_version(candidate)
        if version is not None:
            found.setdefault(version, candidate)
    return [found[version] for version in sorted(found)]


def _ask_version(python: str) -> str | None:
    if shutil.which(python) is None:
        return None
    asked = [
        python,
        "-c",
        "import sys, venv; print('3.%d' % sys.version_info[1] if sys.version_info >= (3, 11) else '')",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def run_uv(*arguments: str | Path) -> str:
    """The output of uv; what it says against a request fails the test."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=make_clean_environment())
    assert done.returncode == 0, f"uv {' '.join(map(str, arguments))}\n{done.stderr[-3000:]}"
    return done.stdout


def create(folder: Path, python: str, requirements: Sequence[str | Path], *options: str | Path) -> Path:
    """A virtual environment with these requirements; returns its interpreter."""
    run_uv("venv", "-q", "--python", python, folder)
    inside = folder / "bin" / "python"
    run_uv("pip", "install", "-q", "--python", inside, *options, *requirements)
    return inside


def run_in(python: Path, *arguments: str | Path, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    """The output of a program of that environment, away from the checkout; its failure fails the test."""
    variables = {**make_clean_environment(), "FEDAGENTGYM_CACHE": str(cwd / "cache"), **(variables or {})}
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=variables, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def pin_cpu_torch(python: str, pin: str) -> str:
    """The pin of torch's CPU build. Skips where only the CUDA build of several gigabytes is to be had for this interpreter."""
    version = _ask_version(python)
    assert version is not None
    asked = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--no-index", "--ignore-installed"]
    target = ["--only-binary=:all:", "--python-version", version, "--target", "nowhere", "--report", "-", pin]
    done = subprocess.run([*asked, *target], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no CPU build of {pin} for Python {version} in the folders of wheels that pip knows")
    return f"torch=={json.loads(done.stdout)['install'][0]['metadata']['version']}"
