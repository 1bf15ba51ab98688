"""Words that docs, docstrings, comments, messages and help do not use: images for code, and sentences that are hard to read.

Each word of the list was used once where the field has a plain term. Contents of environments (a shop's products, the rooms of a
house) may use any word, so modules and pages of such contents are left out for the words that they need.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "fedagentgym").rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]

WORDS = {
    r"seams?": "interface",
    r"doorsteps?": "entry point",
    r"floor \d": "package",
    r"travel(s|led|ling)?": "is sent",
    r"shoppers?": "player, expert",
    r"guests?": "code of others",
    r"riddles?": "",
    r"whoever|whomever": "a caller that, anybody who",
    r"hither|thither|whence": "",
    r"anew": "again",
    r"made from nothing": "made from scratch",
    r"(no|a) word for it": "cannot represent",
    r"says nothing": "is not informative",
    r"(learns|teaches) nothing from it": "gives no learning signal",
    r"laid over": "applied to",
    r"held against": "compared with",
    r"cannot part": "is not significant",
    r"goes? on where": "continues where",
}
"""What is not written, and what is written in its place."""
CONTENTS = (
    "fedagentgym/envs/webshop/",
    "fedagentgym/envs/reasoning/generators/",
    "docs/environments/webshop.md",
    "fedagentgym/benchmarks/webshop_figures.py",
)
"""Where products and questions may travel, have seams and be for guests."""
UNWANTED = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


def list_texts(source: str) -> Iterator[tuple[int, str]]:
    """Comments and texts of several words in a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def find_unwanted(texts: Iterator[tuple[int, str]]) -> list[str]:
    return [f"line {line}: {found[0]!r}" for line, text in texts for found in UNWANTED.finditer(" ".join(text.split()))]


@pytest.mark.parametrize("package", sorted({path.relative_to(ROOT).parts[1] for path in MODULES}))
def test_no_module_uses_an_unwanted_word(package: str) -> None:
    faults = []
    for path in MODULES:
        name = path.relative_to(ROOT).as_posix()
        if path.relative_to(ROOT).parts[1] == package and not name.startswith(CONTENTS):
            faults += [f"{name}, {fault}" for fault in find_unwanted(list_texts(path.read_text("utf-8")))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_uses_an_unwanted_word(page: Path) -> None:
    if page.relative_to(ROOT).as_posix().startswith((*CONTENTS, "CHANGELOG")):
        return
    faults = find_unwanted(enumerate(page.read_text("utf-8").splitlines(), start=1))
    assert not faults, "\n".join(faults)


def test_an_unwanted_word_is_found_in_comments_and_messages_alone() -> None:
    texts = list_texts('seam = 1  # whoever reads it\nraise ValueError("it is made\\n anew")\n')
    assert find_unwanted(texts) == ["line 1: 'whoever'", "line 2: 'anew'"]
