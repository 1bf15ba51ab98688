"""The task sentence of a generated game, in one of several wordings per task type.

Kinds are named in lower case, as the game names its objects. Two wordings per type are those of the real games, so that
what was learnt on one is understood on the other.
"""

from __future__ import annotations

from collections.abc import Mapping

SENTENCE_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Pick": ("put a {thing} in {place}", "put some {thing} on {place}", "find a {thing} and put it in {place}"),
    "Look": (
        "look at {thing} under the {place}",
        "examine the {thing} with the {place}",
        "find a {thing} and look at it under the {place}",
    ),
    "Clean": (
        "put a clean {thing} in {place}",
        "clean some {thing} and put it in {place}",
        "find a {thing}, clean it and put it in {place}",
    ),
    "Heat": (
        "put a hot {thing} in {place}",
        "heat some {thing} and put it in {place}",
        "find a {thing}, heat it and put it in {place}",
    ),
    "Cool": (
        "put a cool {thing} in {place}",
        "cool some {thing} and put it in {place}",
        "find a {thing}, cool it and put it in {place}",
    ),
    "Pick2": (
        "put two {thing} in {place}",
        "find two {thing} and put them in {place}",
        "put two {thing} in the same {place}",
    ),
}


def make_task_sentence(category: str, thing: str, place: str, number: int) -> str:
    """The task sentence for a kind of object and a kind of receptacle (or lamp), in the wording of this number.

    >>> make_task_sentence("Heat", "Potato", "SinkBasin", 0)
    'put a hot potato in sinkbasin'
    """
    wordings = SENTENCE_TEMPLATES[category]
    return wordings[number % len(wordings)].format(thing=thing.lower(), place=place.lower())
