"""The texts of the game: the sentences of ALFWorld's grammar, in both of its wordings.

The `put` wording of earlier releases differs from today's `move` in three things: the command and the answer of putting
something down, the place that is named on arrival, and the `help` command, which only `move` games have.

The task sentence of a generated game comes from one of several templates per task type. Two templates of each type are those
of the real games, so that an agent that was trained on one kind of game understands the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

PUT_PREPOSITION = {"move": " to ", "put": " in/on "}

HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def format_intro(room: str, task: str) -> str:
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {task}."


def join_items(items: Sequence[str]) -> str:
    """A list as the game writes it, a comma before the "and" even between two.

    >>> join_items(["a mug 1", "a pan 1"])
    'a mug 1, and a pan 1'
    """
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"


def join_with_articles(names: Sequence[str]) -> str:
    """A list of names, each with its article, which is always "a"."""
    return join_items([f"a {name}" for name in names])


def describe_room(receptacles: Sequence[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {join_with_articles(receptacles)}."


def describe_surroundings(receptacles: Sequence[str], beside: Sequence[str]) -> str:
    return f"You are facing the {join_items(receptacles)}. Next to it, you see {join_with_articles(beside)}."


def describe_inventory(held: str | None) -> str:
    return "You are not carrying anything." if held is None else f"You are carrying: a {held}."


def describe_receptacle(name: str, contents: Sequence[str], openable: bool, opened: bool) -> str:
    if not openable:
        return f"On the {name}, you see {join_with_articles(contents)}."
    if opened:
        return f"The {name} is open. In it, you see {join_with_articles(contents)}."
    return f"The {name} is closed."


def describe_container(name: str, contents: Sequence[str]) -> str:
    return f"This is a normal {name}. In it, you see {join_with_articles(contents)}."


def describe_object(name: str, *, hot: bool, cool: bool, clean: bool, sliced: bool, sliceable: bool, lit: bool) -> str:
    """An object in hand: temperature and cleanness first, then whether it is lit, then whether it is cut."""
    if sliced and (hot or cool or clean):
        return f"This is a {_join_adjectives(hot, cool, clean)} sliced {name}."
    if hot or clean:
        return f"This is a {_join_adjectives(hot, cool, clean)} {name}."
    if cool:
        return f"This is a cold {name}."
    if lit:
        return f"This {name} is on."
    if sliced and sliceable:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def _join_adjectives(hot: bool, cool: bool, clean: bool) -> str:
    temperature = "hot" if hot else "cool" if cool else ""
    return " and ".join(word for word in (temperature, "clean" if clean else "") if word)


def format_put_command(wording: str, name: str, holder: str) -> str:
    return f"{wording} {name}{PUT_PREPOSITION[wording]}{holder}"


def format_put_feedback(wording: str, name: str, holder: str) -> str:
    preposition = "to" if wording == "move" else "in/on"
    return f"You {wording} the {name} {preposition} the {holder}."


def extract_words(text: str) -> frozenset[str]:
    """The words and signs of a text.

    >>> sorted(extract_words("You see a mug 1."))
    ['.', '1', 'You', 'a', 'mug', 'see']
    """
    return frozenset(re.findall(r"[^\W\d_]+(?:'[a-z]+)?|\d+|[^\w\s]", text))


def list_game_words() -> frozenset[str]:
    """Every word of the game's own sentences and commands, in both wordings, and the numbers of things."""
    states: tuple[dict[str, bool], ...] = (
        {"hot": True, "clean": True, "sliced": True},
        {"cool": True, "sliced": True},
        {"cool": True},
        {"lit": True},
        {},
    )
    unchanged = dict.fromkeys(("hot", "cool", "clean", "sliced", "sliceable", "lit"), False)
    said = [
        format_intro(describe_room([]), ""),
        describe_surroundings([], []),
        describe_inventory(None),
        describe_inventory(""),
        *(
            describe_receptacle("", [], openable, opened)
            for openable, opened in ((False, False), (True, True), (True, False))
        ),
        describe_container("", []),
        *(describe_object("", **{**unchanged, **state}) for state in states),
        *(format_put_command(wording, "", "") + format_put_feedback(wording, "", "") for wording in PUT_PREPOSITION),
        HELP,
        join_items(["", ""]),
        "Nothing happens. You arrive at loc . You open the . You close the . You pick up the from the . You turn on the .",
        "You clean heat cool the using the . You sliced the with the .",
        *map(str, range(100)),
    ]
    return frozenset().union(*map(extract_words, said))


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
