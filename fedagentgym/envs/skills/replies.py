"""Reading replies in the skills environment: the answer, and its style.

The rewards beside accuracy pull in different directions. `thought` wants a thought in the right layout, and `brevity` falls with
every word of it; `style/bare` wants the number alone and `style/unit` the number with its things, so that no reply earns both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fedagentgym.base.streams import stream
from fedagentgym.envs.core import Episode
from fedagentgym.envs.skills.numbers import MOST_STEPS, apply_procedure, write_steps
from fedagentgym.envs.skills.tasks import SkillTask, parse_task
from fedagentgym.envs.verifiers.formats import THINK, format_rewards, last_block
from fedagentgym.envs.verifiers.math_text import extract_answer

VERIFIER_VERSION = "skills/1"
STYLES = ("style/bare", "style/unit")
WORDS_PER_STEP = 6
MOST_THOUGHT = 2 * WORDS_PER_STEP * MOST_STEPS
MANNERS = ("one", "several")
LAYOUTS = ("thinks", "empty", "answers")
UNKNOWN = "<think> I do not know . </think> <answer> 0 </answer>"
_ANSWER = re.compile(r"([0-9]{1,9})(?:\s+([a-z]{1,20}))?")


class ReadAnswer(NamedTuple):
    """A number, and the things that were named with it."""

    number: int
    unit: str


def read_answer(reply: str, things: str) -> ReadAnswer | None:
    """The answer of a reply: a number, alone or with the task's things behind it.

    >>> read_answer("<think> 45 + 32 = 77 . </think> <answer> 77 hats </answer>", "hats")
    ReadAnswer(number=77, unit='hats')
    >>> read_answer("<answer> 77 cups </answer>", "hats") is None
    True
    """
    text = extract_answer(reply)
    found = _ANSWER.fullmatch(text.strip()) if text is not None else None
    if found is None or found[2] not in (None, things):
        return None
    return ReadAnswer(int(found[1]), found[2] or "")


def rate_reply(reply: str, answer: ReadAnswer | None) -> dict[str, float]:
    """The rewards that need no gold."""
    thought = last_block(reply, THINK)
    words = 0 if thought is None else len(thought[:10_000].split())
    layout = format_rewards(reply)
    return {
        **layout,
        "thought": float(layout["format"] == 1.0 and words > 0),
        "brevity": max(0.0, 1.0 - words / MOST_THOUGHT),
        "style/bare": float(answer is not None and not answer.unit),
        "style/unit": float(answer is not None and bool(answer.unit)),
    }


class SkillsExpert:
    """Thinks the steps of a town's procedure and answers, in the required layout; with several manners also without
    thinking, without layout, and with the things named, each manner as often, by the task alone."""

    def __init__(self, manners: str, procedure: str | None = None) -> None:
        self._manners, self._procedure = manners, procedure

    def act(self, episode: Episode) -> str:
        task = parse_task(episode.task.payload)
        if not task.procedure or not episode.task.graded:
            return UNKNOWN
        turn = min(episode.turn, len(task.numbers) - 1)
        return write_reply(task, self._procedure or task.procedure, turn, *self._choose_manner(episode.task.id))

    def _choose_manner(self, identifier: str) -> tuple[str, bool]:
        if self._manners == MANNERS[0]:
            return LAYOUTS[0], False
        draw = stream(0, "skills", "manner", identifier)
        return draw.pick(LAYOUTS), bool(draw.integers(2))


def write_reply(task: SkillTask, procedure: str, turn: int, layout: str = "thinks", unit: bool = False) -> str:
    """A reply by a procedure to the question of a turn."""
    numbers = task.numbers[turn]
    answer = f"<answer> {apply_procedure(procedure, numbers)}{f' {task.things}' if unit else ''} </answer>"
    if layout == "answers":
        return answer
    thought = f" {write_steps(procedure, numbers)} ." if layout == "thinks" else ""
    return f"<think>{thought} </think> {answer}"


def follows_procedure(task: SkillTask, replies: Sequence[str], procedure: str) -> bool:
    """Whether every reply gives the result of this procedure."""
    if not replies or len(replies) > len(task.numbers):
        return False
    for reply, numbers in zip(replies, task.numbers, strict=False):
        answer = read_answer(reply, task.things)
        if answer is None or answer.number != apply_procedure(procedure, numbers):
            return False
    return True
