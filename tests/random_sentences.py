"""Print sentences drawn at random from the documentation and from the docstrings, to read them aloud.

python tests/random_sentences.py --seed 0 --number 50
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_PROSE = re.compile(
    r"^(```+).*?^\1\s*$|<!-- ([\w -]+): begin -->.*?<!-- \2: end -->|^[ \t]*[|#>][^\n]*$", re.MULTILINE | re.DOTALL
)
GENERATED = {"commands.md", "options.md", "settings.md"}


def list_sentences(text: str) -> Iterator[str]:
    """The sentences of a text of Markdown, without blocks, tables and headings."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", NO_PROSE.sub("\n\n", text)):
        paragraph = re.sub(r"<!--.*?-->", "", paragraph, flags=re.DOTALL)
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", " ".join(paragraph.split())).lstrip("- ")
        if plain.startswith("Next: "):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\"])", plain):
            if len(sentence.split()) >= 5 and sentence[-1] in ".!?:":
                yield sentence


def list_docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its public classes and its public functions, up to their sections."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            public = not getattr(node, "name", "").startswith("_")
            if public and (text := ast.get_docstring(node)):
                yield re.split(r"^(?:Args|Returns|Raises|Examples|Attributes|Yields):|>>>", text, flags=re.MULTILINE)[0]


def collect() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """All sentences of pages, and all of docstrings, each with the place where it stands."""
    pages, docstrings = [], []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "papers").rglob("*.md"))):
        if page.name not in GENERATED:
            place = page.relative_to(ROOT).as_posix()
            pages += [(place, sentence) for sentence in list_sentences(page.read_text("utf-8"))]
    for file in sorted((ROOT / "fedagentgym").rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        texts = list_docstrings(file.read_text("utf-8"))
        docstrings += [(place, sentence) for text in texts for sentence in list_sentences(text)]
    return pages, docstrings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=50)
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    for sentences in collect():
        for place, sentence in draw.sample(sentences, given.number // 2):
            sys.stdout.write(f"{place}: {sentence}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
