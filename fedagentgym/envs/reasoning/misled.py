"""Wrong solutions with the length and form of right ones, for misled experts.

    mathematics   `inverse`: the last step subtracts instead of adding or dividing, and adds instead of subtracting or
                  multiplying
    programs      `counterpart`: one operation is replaced by its counterpart, such as + by -, max by min, < by >, or the first
                  letters by the rest
    questions     `other`: the answer is that of another person, the other of two candidates, or no for yes

Each function returns the record as a misled player sees it, or None if it has no wrong solution of this kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.reasoning.generators.problems import MathProblem, Program, Question
from fedagentgym.envs.view import Episode

_LAST_STEP = re.compile(r"(?:^|(?<=\. ))(\d{1,9}) ([-+*/]) (\d{1,9}) = (\d{1,18})(?= ?\.?$)")
_SLICES = (
    (re.compile(r"\[( ?):( ?)(\d+)( ?)\]"), r"[\1\3\2:\4]"),
    (re.compile(r"\[( ?)(\d+)( ?):( ?)\]"), r"[\1:\3\2\4]"),
)
_COUNTERPARTS = (
    (" > ", " < "),
    (" < ", " > "),
    ("max (", "min ("),
    ("min (", "max ("),
    ("max(", "min("),
    ("min(", "max("),
)
_SUM = re.compile(r" ([+-]) (?=[1-9])(?!.* [+-] [1-9])", re.DOTALL)
"""The last addition or subtraction of a number other than 0."""


class MisledExpert:
    """Plays as the expert of a reply environment does, on the task as a misled player sees it."""

    def __init__(self, expert: Expert, parse: Callable[[Any], Any], mislead: Callable[[Any], Any]) -> None:
        """`parse` reads the record of a payload; `mislead` turns it into the record that this player sees."""
        self._expert, self._parse, self._mislead = expert, parse, mislead

    def act(self, episode: Episode) -> str:
        believed = self._mislead(self._parse(episode.task.payload))
        if believed is None:
            return self._expert.act(episode)
        return self._expert.act(episode._replace(task=replace(episode.task, payload=believed)))


def mislead_problem(problem: MathProblem) -> MathProblem | None:
    """The problem with the inverse operation in its last step.

    >>> mislead_problem(MathProblem("What is 9 - 3 ?", ("6",), "9 - 3 = 6")).answers
    ('12',)
    """
    step = _LAST_STEP.search(problem.solution)
    if step is None or not problem.answers:
        return None
    left, sign, right, result = int(step[1]), step[2], int(step[3]), step[4]
    found = abs(left - right) if sign in "+/" else left + right
    numerator, slash, denominator = problem.answers[0].partition("/")
    if str(found) == result or numerator != result:
        return None
    written = f"{max(left, right)} - {min(left, right)}" if sign in "+/" else f"{left} + {right}"
    solution = f"{problem.solution[: step.start()]}{written} = {found}{problem.solution[step.end() :]}"
    return problem._replace(solution=solution, answers=(f"{found}{slash}{denominator}",))


def mislead_program(program: Program) -> Program | None:
    """The program with one operation replaced by its counterpart."""
    wrong = _replace_operation(program.solution)
    if wrong is None:
        return None
    return program._replace(solution=wrong, thought=_replace_operation(program.thought) or program.thought)


def _replace_operation(text: str) -> str | None:
    for old, new in _COUNTERPARTS:
        if old in text:
            return text.replace(old, new, 1)
    for pattern, swapped in _SLICES:
        if pattern.search(text):
            return pattern.sub(swapped, text, count=1)
    found = _SUM.search(text)
    return None if found is None else _SUM.sub(" - " if found[1] == "+" else " + ", text, count=1)


def mislead_question(question: Question) -> Question | None:
    """The question with the answer for another person or thing, or the other of two possible answers."""
    if not question.answers or question.options:
        return None
    answer = question.answers[0]
    if answer in ("yes", "no"):
        return question._replace(answers=("no" if answer == "yes" else "yes",))
    if answer in question.path:
        others = [title for title in question.path if title != answer]
        return question._replace(answers=(others[0],)) if others else None

    # take the answer from an unneeded fact that says the same of another subject as the last needed fact
    needed = [fact for fact in question.facts if fact.title in question.path and fact.text in question.solution]
    last = next((fact for fact in needed if answer in fact.text.split()), None)
    if last is None:
        return None
    known = last.text.split()
    place = known.index(answer)
    unneeded = [fact for fact in question.facts if fact not in needed]
    for fact in unneeded:
        said, titles = fact.text.split(), fact.title.split() + last.title.split()
        if len(said) != len(known) or said[place] == answer:
            continue
        others = [word for at, word in enumerate(said) if word != known[at] and at != place]
        if all(word in titles for word in others):
            thought = " ".join([*(one.text for one in unneeded if one != fact), fact.text])
            return question._replace(answers=(said[place],), solution=thought)
    return None
