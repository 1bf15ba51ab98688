"""A reader who has never seen the project finds ten answers from README by at most two links."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "https://github.com/fedagentgym/fedagentgym/blob/main/"

QUESTIONS = {
    "What is it?": (["README.md"], "Train an LLM agent by reinforcement learning across many clients"),
    "For whom is it?": (["README.md"], "**For whom.**"),
    "Why not Flower or TRL?": (["README.md", "docs/explanation/related.md"], "## Which one to take"),
    "How do I start?": (["README.md"], "make demo"),
    "What is a client split?": (["README.md", "docs/tutorials/first-split.md"], "client split"),
    "How do I train an agent of my own on it?": (["README.md", "docs/tutorials/own-loop.md"], "gym.make("),
    "How do I write a method?": (["README.md", "docs/tutorials/own-method.md"], "Averaging"),
    "How do I rank my method?": (
        ["README.md", "docs/how-to/submit-a-result.md"],
        'fedagentgym bench run smoke --name mine --set "algorithm=',
    ),
    "What has never been run?": (["README.md", "docs/explanation/limits.md"], "## Never run"),
    "How do I rerun a paper's table?": (
        ["README.md", "papers/README.md", "papers/fedagent/README.md"],
        "--sweep seed=0,1,2",
    ),
}
"""Question -> the pages from README to the answer, each linked by the one before, and words of the answer."""


def list_targets(page: Path) -> set[Path]:
    """The files of the repository that a page links to."""
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text("utf-8"))
    local = (link.removeprefix(SOURCE) if link.startswith(SOURCE) else (page.parent / link) for link in links)
    return {(ROOT / one).resolve() for one in local}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_at_most_two_links_away(question: str) -> None:
    path, words = QUESTIONS[question]
    assert path[0] == "README.md" and len(path) <= 3
    for page, following in itertools.pairwise(path):
        assert ROOT / following in list_targets(ROOT / page), f"{page} has no link to {following}"
    assert words in (ROOT / path[-1]).read_text("utf-8")


def test_there_are_ten() -> None:
    assert len(QUESTIONS) == 10
