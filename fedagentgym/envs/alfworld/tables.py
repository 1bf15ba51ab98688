"""Tables that the engine derives from a game once: shown names, positions, what may go where, the grounded goal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedagentgym.envs.alfworld.game import NOWHERE, Game, list_members
from fedagentgym.envs.alfworld.grounding import Node, collect_fact_kinds, ground


class Tables(NamedTuple):
    receptacle_names: tuple[str, ...]
    object_names: tuple[str, ...]
    location_names: tuple[str, ...]
    receptacle_index: dict[str, int]
    object_index: dict[str, int]
    at: tuple[int, ...]
    """Per location, the set of the receptacles there."""
    accepts: tuple[int, ...]
    """Per receptacle, the set of the objects that may be put there."""
    go_to: tuple[tuple[str, int], ...]
    """Every ``go to`` command with the location it leads to, sorted."""
    basins: int
    microwaves: int
    fridges: int
    knives: int
    goal: Node
    goal_facts: frozenset[str]
    """The kinds of fact the goal depends on: only an action that changes one of them can win or lose."""


def tables_of(game: Game) -> Tables:
    """The tables of a game, made at first use and kept with it."""
    found = game.derived.get("tables")
    if isinstance(found, Tables):
        return found
    game.derived["tables"] = made = _derive(game)
    return made


def _derive(game: Game) -> Tables:
    receptacle_names, object_names, location_names = make_display_names(game)
    at = [0] * len(game.locations)
    for number, place in enumerate(game.receptacle_places):
        if place != NOWHERE:
            at[place] |= 1 << number
    go_to = ((f"go to {receptacle_names[n]}", place) for n, place in enumerate(game.receptacle_places) if place >= 0)
    goal = ground(game)
    return Tables(
        receptacle_names=receptacle_names,
        object_names=object_names,
        location_names=location_names,
        receptacle_index={name: number for number, name in enumerate(receptacle_names)},
        object_index={name: number for number, name in enumerate(object_names)},
        at=tuple(at),
        accepts=_compute_accepted(game),
        go_to=tuple(sorted(go_to)),
        basins=_to_kind_bit_set(game.receptacle_kinds, "sinkbasin"),
        microwaves=_to_kind_bit_set(game.receptacle_kinds, "microwave"),
        fridges=_to_kind_bit_set(game.receptacle_kinds, "fridge"),
        knives=_to_kind_bit_set(game.object_kinds, "knife", "butterknife"),
        goal=goal,
        goal_facts=collect_fact_kinds(goal),
    )


def make_display_names(game: Game) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names the player reads, of receptacles, objects and locations.

    The real engine sorts the ids of everything and counts each type downwards: the last id of a type is its number 1.
    An id without coordinates is its own name, followed by a blank.
    """
    types = {
        one.lower(): _extract_type_name(one.lower()) for one in (*game.receptacles, *game.objects, *game.locations)
    }
    left = Counter(types.values())
    names = {}
    for one in sorted(types):
        type_name = types[one]
        if type_name is None:
            names[one] = f"{_decode_identifier(one)} "
        else:
            names[one] = f"{type_name} {left[type_name]}"
            left[type_name] -= 1
    columns = (game.receptacles, game.objects, game.locations)
    receptacles, objects, locations = (tuple(names[one.lower()] for one in column) for column in columns)
    return receptacles, objects, locations


def _extract_type_name(identifier: str) -> str | None:
    name, bar, _ = identifier.partition("_bar_")
    if not bar and "|" not in identifier:
        return None
    name = _decode_identifier(name).partition("|")[0]
    return f"{name}basin" if "basin" in identifier else name


def _decode_identifier(identifier: str) -> str:
    for coded, sign in (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        identifier = identifier.replace(coded, sign)
    return identifier


def _compute_accepted(game: Game) -> tuple[int, ...]:
    of_kind: dict[str, int] = {}
    for number, kind in enumerate(game.object_kinds):
        of_kind[kind] = of_kind.get(kind, 0) | 1 << number
    sets = {
        kind: sum(of_kind.get(one, 0) for one in game.can_contain.get(kind, ())) for kind in set(game.receptacle_kinds)
    }
    return tuple(sets[kind] for kind in game.receptacle_kinds)


def _to_kind_bit_set(kinds: Sequence[str], *wanted: str) -> int:
    return sum(1 << number for number, kind in enumerate(kinds) if kind.lower() in wanted)


def list_names(names: Sequence[str], bits: int) -> list[str]:
    """The names of a set's members, in order."""
    return [names[number] for number in list_members(bits)]
