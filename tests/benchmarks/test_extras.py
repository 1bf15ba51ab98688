"""The table of extras under the constraints files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks import extras
from benchmarks.extras import SEPARATE, Resolution, explain
from fedagentgym.base.errors import OptionError

SAID = """error: No solution found when resolving dependencies
  cause: Because trackio>=0.40.0 depends on pillow<13.0.0 and pillow==13.0.0, we can conclude that trackio>=0.40.0 cannot be
         used.
         And because fedagentgym depends on trackio>=0.40, we can conclude that your requirements are unsatisfiable.
"""


def test_the_reason_is_the_first_cause_in_one_line() -> None:
    assert explain(SAID) == "trackio>=0.40.0 depends on pillow<13.0.0 and pillow==13.0.0"
    assert explain("error: no network\n  at all") == "error: no network at all"


def test_every_extra_has_a_row_under_its_own_constraints(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(project: Path, names: list[str], constraints: Path) -> Resolution:
        asked.append((tuple(names), constraints.name))
        return Resolution(0, "they exclude each other") if names == ["verifiers"] else Resolution(7)

    monkeypatch.setattr(extras, "resolve", resolve)
    rows = extras.run()
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [names[-1] for names, _ in asked] == list(declared) and len(rows) == len(declared)
    assert (("train", "vllm"), "constraints-vllm.txt") in asked
    assert [row.bar for row in rows if not row.value] == ["they exclude each other"]
    for _, file in SEPARATE.values():
        assert (root / file).is_file()


def test_without_uv_it_is_one_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.shutil, "which", lambda *_, **__: None)
    with pytest.raises(OptionError, match="pip install uv"):
        extras.resolve(root, ["train"], root / "constraints.txt")


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-vllm.txt"])
def test_a_constraints_file_pins_every_package_once(file: str, root: Path) -> None:
    lines = [line for line in (root / file).read_text().splitlines() if line and not line.startswith("#")]
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert all("==" in line for line in lines) and len(set(names)) == len(names)
