"""Copy the comments and texts of Python files into a folder, line for line, so that codespell reads prose and no names.

    python tests/prose_of_code.py build/prose fedagentgym tests benchmarks examples && codespell build/prose

A text without a space is a name or a number, and what stands in the braces of an f-string is code.
"""

from __future__ import annotations

import re
import sys
import tokenize
from pathlib import Path

PROSE = {"COMMENT", "STRING", "FSTRING_MIDDLE"}


def extract_prose(file: Path) -> str:
    """The comments and texts of a file, each in its line."""
    lines = [""] * (file.read_text("utf-8").count("\n") + 1)
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            kind, text = tokenize.tok_name[token.type], token.string
            if kind not in PROSE or (kind != "COMMENT" and " " not in text.strip()):
                continue
            if kind == "STRING" and "f" in text[: text.index(text[-1])].lower():
                text = re.sub(r"\{[^{}]*\}", "{}", text)
            for at, line in enumerate(text.split("\n"), start=token.start[0] - 1):
                lines[at] += f" {line}"
    return "\n".join(lines)


def copy_prose(folder: Path, sources: list[Path]) -> None:
    """Write the prose of every Python file below these folders to the same place below `folder`."""
    for file in sorted(file for source in sources for file in source.rglob("*.py")):
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(extract_prose(file), "utf-8")


if __name__ == "__main__":
    copy_prose(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
