"""When nearly all replies are malformed, one sentence says what they lack."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedagentgym.agents.presets import make_agent
from fedagentgym.learning.evaluation import explain_malformed
from fedagentgym.learning.trajectory import Trajectory, Turn

AGENT = make_agent("random")


def groups(replies: Sequence[str], broken: int) -> list[tuple[Trajectory, ...]]:
    turns = [
        Turn("what you see", reply, "", 0.0, number >= broken, number >= broken) for number, reply in enumerate(replies)
    ]
    return [(Trajectory("task", 0, tuple(turns)),)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("go to fridge 1", "lack <action>...</action>, such as 'go to fridge 1'"),
        (" \n", "are empty"),
        ("<action>look</action> and then <action>go</action>", "contain more than one action"),
        ("x\x1b[31m" * 40, "lack <action>"),
    ],
)
def test_the_commonest_reason_is_told_with_an_example(reply: str, reason: str) -> None:
    told = explain_malformed(groups([reply] * 19 + ["fine"], 19), AGENT)
    assert told is not None and told.startswith("95% of replies are malformed: most") and reason in told
    assert "\n" not in told and "\x1b" not in told and len(told) < 250


def test_nothing_is_said_of_fewer() -> None:
    assert explain_malformed(groups(["a"] * 10, 9), AGENT) is None
    assert explain_malformed(groups([], 0), AGENT) is None
