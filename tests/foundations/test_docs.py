"""What the pages show works: every python block of README and docs is run, and every doctest of the library."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^ *>>> (?!.*doctest: \+SKIP)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")  # a real module, so that classes defined on a page can be pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(BLOCK.findall(page.read_text()), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), vars(module))


def test_an_example_of_each_kind_of_extension_is_short() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    assert [len(block.splitlines()) for block in BLOCK.findall(page) if len(block.splitlines()) >= 40] == []
    for kind in ("env", "sampler", "variant", "agent", "aggregation", "advantage", "objective", "algorithm", "backend"):
        assert f"fedagentgym.register_{kind}(" in page


def list_modules_with_examples() -> list[str]:
    files = [path for path in (ROOT / "fedagentgym").rglob("*.py") if EXAMPLE.search(path.read_text("utf-8"))]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(files))
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", list_modules_with_examples())
def test_doctests(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
