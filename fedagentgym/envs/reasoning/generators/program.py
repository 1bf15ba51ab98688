"""A programming task as a plain value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.verifiers.code import Call, Checks

SHOWN, HIDDEN, CANDIDATES = 2, 8, 24


class Program(NamedTuple):
    """The content of a programming task: the specification, hidden tests, and a solution (the gold)."""

    statement: str
    tests: Checks
    solution: str = ""
    thought: str = ""


def draw_calls(text: str, draw: Callable[[Stream], Any], apply: Callable[[Any], Any]) -> tuple[Call, ...]:
    """Inputs that follow from the specification, with the required results.

    The inputs are different, and their results too where the specification allows it: a constant must not pass.
    """
    source = stream(0, "inputs", text)
    drawn: dict[str, Call] = {}
    for _ in range(CANDIDATES):
        given = draw(source)
        drawn.setdefault(repr(given), Call((given,), apply(given)))
    first_of_kind: dict[str, str] = {}
    for name, call in drawn.items():
        first_of_kind.setdefault(repr(call.expected), name)
    telling = list(first_of_kind.values())[: (SHOWN + HIDDEN) // 2]
    kept = dict.fromkeys([*telling, *drawn])
    return tuple(drawn[name] for name in list(kept)[: SHOWN + HIDDEN])


def draw_number(source: Stream) -> int:
    return source.integers(120) - 20


def draw_number_list(source: Stream) -> list[int]:
    return [source.integers(60) - 15 for _ in range(source.integers(8) + 1)]


def draw_text(source: Stream) -> str:
    letters = "abcdeiou rstnlmABE"
    return "".join(source.pick(letters) for _ in range(source.integers(12) + 2))


def draw_natural(source: Stream) -> int:
    return source.integers(25) + 1


def format_numbered_steps(parts: Sequence[str]) -> str:
    """Steps as one numbered paragraph."""
    return " ".join(f"({number}) {part}." for number, part in enumerate(parts, start=1))
