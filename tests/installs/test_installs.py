"""The built package works for whoever installs it: with the tested versions, the newest and the lowest that it admits."""

from __future__ import annotations

from pathlib import Path

import pytest

from .environments import NEEDS_UV, create, find_pythons, pin_cpu_torch, run_in, run_uv

TORCH = "torch==2.13.0"
WAYS = ("constraints", "newest", "lowest")

pytestmark = [pytest.mark.slow, NEEDS_UV]


def choose_versions(way: str, requirements: list[str], python: str, root: Path, scratch: Path) -> Path:
    """A file of pins: the tested versions, or what uv takes when it prefers the newest or the lowest."""
    if way == "constraints":
        return root / "constraints.txt"
    asked, pins = scratch / "requirements.in", scratch / "pins.txt"
    asked.write_text("\n".join(requirements))
    resolution = {"newest": "highest", "lowest": "lowest-direct"}[way]
    run_uv("pip", "compile", "-q", "--python", python, "--resolution", resolution, "-o", pins, asked)
    return pins


@pytest.mark.parametrize("python", find_pythons(), ids=lambda path: Path(path).resolve().name)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["core", "train"])
def test_a_newcomer_can_use_it(kind: str, way: str, python: str, wheel: Path, root: Path, tmp_path: Path) -> None:
    requirements = [f"fedagentgym @ {wheel.as_uri()}"]
    if kind == "train":
        requirements = [f"fedagentgym[train] @ {wheel.as_uri()}", pin_cpu_torch(python, TORCH)]
    pins = choose_versions(way, requirements, python, root, tmp_path)
    inside = create(tmp_path / "env", python, requirements, "-c", pins)
    script = Path(__file__).with_name("newcomer.py")
    said = run_in(inside, script, kind, root, cwd=tmp_path)
    assert "fedagentgym/Guess-v0" in said and "paper-alfworld" in said
