"""Commands that are printed to be run: whatever stands in them besides fixed words is quoted for a shell."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.escape import quote_word
from fedagentgym.envs.registry import format_env_words

COMMAND = re.compile(r"fedagentgym [a-z]|\b(?:resume|flwr run|eval --[a-z-]+|bench [a-z]+|openenv validate|cd) \Z")
"""A text in which a command has begun when a value follows."""
QUOTING = ("quote_word", "shlex.join", "format_env_words", "describe_pool_words")
SAFE = {
    ("cli/hub.py", "name"),  # a name of the hub, checked by its pattern
    ("cli/bench.py", "option"),  # the name of an option
    ("envs/reasoning/sources/loading.py", "name"),  # a name of the catalogue
    ("experiment/gpu.py", "PAPER_MODEL"),  # a constant, a name of the hub
    ("base/files.py", "number"),  # no command: "this version of fedagentgym reads format 1"
    *(
        ("leaderboard/suite.py", f"self.{name}") for name in ("suite", "salt", "seed")
    ),  # no command: what a digest is of
}


def find_values_in_commands(source: str) -> Iterator[tuple[int, str]]:
    """The line and the expression of every value in a command that an f-string writes, without those that are quoted."""
    nodes = list(ast.walk(ast.parse(source)))
    is_quoting = any(call in source for call in QUOTING)
    quoted = {
        target.id
        for node in nodes
        if is_quoting and isinstance(node, ast.Assign) and any(call in ast.unparse(node.value) for call in QUOTING)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                if COMMAND.search(re.split(r"[`;:(]", before)[-1]):
                    said = ast.unparse(part.value)
                    if said not in quoted and not any(call in said for call in QUOTING):
                        yield node.lineno, said
                before += "VALUE"


def test_values_in_printed_commands_are_quoted(root: Path) -> None:
    package = root / "fedagentgym"
    found = {
        f"{file.relative_to(package)}, line {line}: {said}"
        for file in sorted(package.rglob("*.py"))
        for line, said in find_values_in_commands(file.read_text("utf-8"))
        if (file.relative_to(package).as_posix(), said) not in SAFE
    }
    assert not found


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('f"try `fedagentgym resume {folder}`"', 1),
        ('f"try `fedagentgym resume {quote_word(folder)}`"', 0),
        ('f"{folder} holds no run: `fedagentgym train` makes one, {folder}"', 0),
        ('f"resume with: {program} resume {folder}"', 1),
        ('f"eval --agent {folder}"', 1),
        ('folder = quote_word(path)\nf"fedagentgym resume {folder}"', 0),
    ],
)
def test_the_search_finds_what_is_not_quoted(line: str, count: int) -> None:
    assert len(list(find_values_in_commands(line))) == count


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_quoted_word_is_one_word_and_no_option(text: str) -> None:
    (word,) = shlex.split(quote_word(text))
    assert not word.startswith("-") and word.removeprefix("./") == text.removeprefix("./")
    assert shlex.split(format_env_words("a/B-v0", {"data": text})) == ["a/B-v0", "--env-set", f"data={text}"]
