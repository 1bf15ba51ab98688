"""Goals as S-expressions: the six task types in the words of the real game files, and which type a given goal is of.

A goal refers to types only, never to instances. It is kept as the S-expression of the PDDL problem, so that
a goal read from a file, whatever its form, and one that was made here go the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedagentgym.envs.alfworld.game import Goal

TREATMENTS = {"Clean": ("cleanable", "isClean"), "Heat": ("heatable", "isHot"), "Cool": ("coolable", "isCool")}


def make_goal(category: str, object_kind: str, receptacle_kind: str = "", lamp_kind: str = "DeskLamp") -> Goal:
    """The goal of a task type, formed as the real data forms it (`receptacle_kind` is not used by Look).

    >>> render_goal(make_goal("Pick", "Apple", "Fridge"), indent=None)
    '(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o AppleType) \
(receptacleType ?r FridgeType)))))'
    """
    typed = ("objectType", "?o", f"{object_kind}Type")
    there = ("receptacleType", "?r", f"{receptacle_kind}Type")
    if category == "Pick":
        return ("and", _some_in_receptacle("and", ("inReceptacle", "?o", "?r"), typed, there))
    if category in TREATMENTS:
        able, done = TREATMENTS[category]
        return (
            "and",
            _some_in_receptacle("and", (able, "?o"), typed, there, (done, "?o"), ("inReceptacle", "?o", "?r")),
        )
    if category == "Pick2":
        return ("and", _two_in_receptacle(f"{object_kind}Type", there))
    if category == "Look":
        return (
            "and",
            _beside_lit(f"{lamp_kind}Type"),
            ("exists", ("?o", "-", "object", "?a", "-", "agent"), ("and", typed, ("holds", "?a", "?o"))),
        )
    raise ValueError(f"no goal is known for the category {category!r}")


def _some_in_receptacle(*ground_formula: Any) -> Goal:
    return ("exists", ("?r", "-", "receptacle"), ("exists", ("?o", "-", "object"), ground_formula))


def _two_in_receptacle(object_type: str, there: Goal) -> Goal:
    second = (
        "exists",
        ("?o2", "-", "object"),
        ("and", ("not", ("=", "?o1", "?o2")), *_located_there("?o2", object_type, there)),
    )
    return (
        "exists",
        ("?r", "-", "receptacle"),
        ("exists", ("?o1", "-", "object"), ("and", *_located_there("?o1", object_type, there), second)),
    )


def _located_there(variable: str, object_type: str, there: Goal) -> Goal:
    return (("objectType", variable, object_type), there, ("inReceptacle", variable, "?r"))


def _beside_lit(lamp_type: str) -> Goal:
    variables = ("?ot", "-", "object", "?r", "-", "receptacle", "?a", "-", "agent", "?l", "-", "location")
    lit = (("objectType", "?ot", lamp_type), ("toggleable", "?ot"), ("isToggled", "?ot"))
    near = (("receptacleAtLocation", "?r", "?l"), ("atLocation", "?a", "?l"), ("inReceptacle", "?ot", "?r"))
    return ("exists", variables, ("and", *lit, *near))


def render_goal(goal: Goal, indent: int | None = 12) -> str:
    """The goal as PDDL text: on one line, or one formula per line, indented from `indent` on."""
    simple = all(isinstance(item, str) for item in goal)
    if simple or indent is None:
        return "(" + " ".join(item if isinstance(item, str) else render_goal(item, None) for item in goal) + ")"
    head, rest = goal[0], goal[1:]
    if head in ("exists", "forall"):
        head, rest = f"{head} {render_goal(goal[1], None)}", goal[2:]
    lines = "".join(f"\n{' ' * (indent + 4)}{render_goal(item, indent + 4)}" for item in rest)
    return f"({head}{lines}\n{' ' * indent})"


def infer_category(goal: Goal) -> str:
    """The task type of a goal.

    A lamp to be lit makes Look, a treatment Clean, Heat or Cool, two different objects Pick2, all else Pick: slices,
    movable receptacles and "all of a kind" are variants of these.
    """
    words = {word.lower() for word in _iter_words(goal)}
    if "istoggled" in words:
        return "Look"
    for category, (_, done) in TREATMENTS.items():
        if done.lower() in words:
            return category
    return "Pick2" if "=" in words else "Pick"


def _iter_words(goal: Goal) -> Iterator[str]:
    for item in goal:
        if isinstance(item, str):
            yield item
        else:
            yield from _iter_words(item)
