"""List the tests that `make test` leaves out, or may, with the reason of each: `python tests/list_skipped.py`.

Tests marked `slow` or `gpu` are left out. The reason of a `slow` test is that of its mark, else the first sentence of its
docstring or of its module's. Tests marked `skip`, `skipif` or `xfail`, and those that skip themselves where something is missing,
are listed with what they say.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("gpu", "slow", "skip", "skipif", "xfail")
CALLS = ("skip", "importorskip", "xfail")


class LeftOut(NamedTuple):
    """A test, or a place at which tests skip themselves; the mark or function; and the reason."""

    kind: str
    place: str
    reason: str


class Collected:
    """A plugin that notes what is marked among the tests that pytest collects."""

    def __init__(self) -> None:
        self.found: list[LeftOut] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers():
                if mark.name in MARKS and not (mark.name == "skipif" and not any(mark.args)):
                    self.found.append(LeftOut(mark.name, item.nodeid, describe_mark(item, mark)))


def describe_mark(item: pytest.Item, mark: pytest.Mark) -> str:
    """The reason of a mark, else what the test or its module is about."""
    given = mark.kwargs.get("reason") or next((text for text in mark.args if isinstance(text, str)), "")
    texts = (getattr(getattr(item, name, None), "__doc__", None) for name in ("function", "module"))
    return str(given) or next((" ".join(text.split()).partition(". ")[0] for text in texts if text), "")


def list_marked(folder: Path = ROOT / "tests") -> list[LeftOut]:
    """Every test with one of the marks."""
    plugin = Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", str(folder)], [plugin])
    if code != pytest.ExitCode.OK:
        raise SystemExit(said.getvalue())
    return sorted(set(plugin.found))


def list_conditions() -> Iterator[LeftOut]:
    """Every place in the tests that calls `pytest.skip`, `pytest.importorskip` or `pytest.xfail`."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            name = node.func.attr
            if name in CALLS and ast.unparse(node.func.value) == "pytest":
                (said,) = node.args[:1] or [keyword.value for keyword in node.keywords[:1]]
                text = said.value if isinstance(said, ast.Constant) else ast.unparse(said)
                reason = f"{text} is not installed" if name == "importorskip" else str(text)
                yield LeftOut(name, f"{file.relative_to(ROOT)}:{node.lineno}", reason)


def main() -> None:
    found = [*list_marked(), *list_conditions()]
    for kind in (*MARKS, "importorskip"):
        chosen = [one for one in found if one.kind == kind]
        sys.stdout.write(f"\n{kind}: {len(chosen)}\n")
        for one in chosen:
            sys.stdout.write(f"  {one.place}: {one.reason}\n")


if __name__ == "__main__":
    main()
