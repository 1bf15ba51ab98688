"""Tables that are derived from a game once: shown names, positions, what may go where, the grounded goal, and whether it is
reachable.

A goal is reachable if each fact that it needs is the effect of some action. The real engine's planner makes the same test
before it starts, and a game that fails it there ends in an unrelated error. The test is optimistic (facts are taken one by
one, "not" and "forall" count as fulfilled), so a game that passes may still have no plan, for example if it needs two mugs
and has only one. The real engine plays such a game, and so does the native one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedagentgym.envs.alfworld.game import NOWHERE, TRAITS, Game, list_members
from fedagentgym.envs.alfworld.grounding import Fact, Node, can_hold, collect_fact_kinds, ground


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
    """Every `go to` command with the location it leads to, sorted."""
    tools: Mapping[str, int]
    """Per treatment, the set of the receptacles that give it."""
    knives: int
    goal: Node
    goal_facts: frozenset[str]
    """The kinds of fact the goal depends on: only an action that changes one of them can win or lose."""


def tables_of(game: Game) -> Tables:
    """The tables of a game, made at first use and kept with it."""
    found = game.derived.get("tables")
    if isinstance(found, Tables):
        return found
    receptacle_names, object_names, location_names = make_display_names(game)
    at = [0] * len(game.locations)
    for number, place in enumerate(game.receptacle_places):
        if place != NOWHERE:
            at[place] |= 1 << number
    of_kind: dict[str, int] = {}
    for number, kind in enumerate(game.object_kinds):
        of_kind[kind] = of_kind.get(kind, 0) | 1 << number
    accepted = {
        kind: sum(of_kind.get(one, 0) for one in game.can_contain.get(kind, ())) for kind in set(game.receptacle_kinds)
    }
    go_to = ((f"go to {receptacle_names[n]}", place) for n, place in enumerate(game.receptacle_places) if place >= 0)
    goal = ground(game)
    game.derived["tables"] = made = Tables(
        receptacle_names=receptacle_names,
        object_names=object_names,
        location_names=location_names,
        receptacle_index={name: number for number, name in enumerate(receptacle_names)},
        object_index={name: number for number, name in enumerate(object_names)},
        at=tuple(at),
        accepts=tuple(accepted[kind] for kind in game.receptacle_kinds),
        go_to=tuple(sorted(go_to)),
        tools={
            verb: _to_kind_bit_set(game.receptacle_kinds, kind)
            for verb, kind in (("clean", "sinkbasin"), ("heat", "microwave"), ("cool", "fridge"))
        },
        knives=_to_kind_bit_set(game.object_kinds, "knife", "butterknife"),
        goal=goal,
        goal_facts=collect_fact_kinds(goal),
    )
    return made


def make_display_names(game: Game) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names the player reads, of receptacles, objects and locations.

    The real engine sorts the ids of everything and counts each type downwards: the last id of a type is its number 1.
    An id without coordinates is its own name, followed by a blank.
    """
    types: dict[str, str | None] = {}
    for one in map(str.lower, (*game.receptacles, *game.objects, *game.locations)):
        name, bar, _ = one.partition("_bar_")
        types[one] = None
        if bar or "|" in one:
            types[one] = _decode_identifier(name).partition("|")[0] + ("basin" if "basin" in one else "")
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


def _decode_identifier(identifier: str) -> str:
    for coded, sign in (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        identifier = identifier.replace(coded, sign)
    return identifier


def _to_kind_bit_set(kinds: Sequence[str], *wanted: str) -> int:
    return sum(1 << number for number, kind in enumerate(kinds) if kind.lower() in wanted)


def list_names(names: Sequence[str], bits: int) -> list[str]:
    """The names of a set's members, in order."""
    return [names[number] for number in list_members(bits)]


def is_reachable(game: Game) -> bool:
    """Return whether every fact that the goal of a game needs holds at the start or can be brought about."""
    return can_hold(ground(game, relaxed=True), _Reach(game, tables_of(game)).can_become_true)


class _Reach:
    def __init__(self, game: Game, tables: Tables) -> None:
        self.game, self.tables = game, tables
        self.trait = dict(zip(TRAITS, game.traits, strict=True))
        self.placed = [number for number, place in enumerate(game.receptacle_places) if place != NOWHERE]
        in_reach = 0
        for number in self.placed:
            in_reach |= game.contents[number]
        held = 1 << game.holding if game.holding != NOWHERE else 0
        self.holdable = in_reach & self.trait["pickupable"] | held
        self.usable = in_reach
        for number in self.placed:
            self.usable |= self.holdable & tables.accepts[number]

    def can_become_true(self, fact: Fact) -> bool:
        """Return whether a fact holds at the start or is the effect of some action."""
        game, where = self.game, fact.where
        bit = 1 << fact.what if fact.what != NOWHERE else 0
        match fact.kind:
            case "in":
                fits = self.holdable & self.tables.accepts[where] & bit and where in self.placed
                return bool(game.contents[where] & bit or fits)
            case "laid":
                return self.can_lie(where, bit)
            case "held":
                return bool(self.holdable & bit)
            case "holding":
                return self.holdable != 0
            case "place":
                return self.can_stand(where)
            case "opened":
                return bool(game.opened >> where & 1 or (game.openable >> where & 1 and where in self.placed))
            case "clean":
                return self.can_be_treated(0, "cleanable", self.tables.tools["clean"], bit)
            case "hot":
                return self.can_be_treated(1, "heatable", self.tables.tools["heat"], bit)
            case "cool":
                return self.can_be_treated(2, "coolable", self.tables.tools["cool"], bit)
            case "sliced":
                near = any(self.can_lie(place, bit) and self.can_stand(place) for place in range(len(game.locations)))
                cut = self.trait["sliceable"] & bit and near and self.holdable & self.tables.knives
                return bool(game.conditions[3] & bit or cut)
            case _:
                return bool((game.conditions[4] | self.usable & self.trait["toggleable"]) & bit)

    def can_lie(self, where: int, bit: int) -> bool:
        arrives = any(
            self.holdable & self.tables.accepts[number] & bit
            for number in self.placed
            if self.game.receptacle_places[number] == where
        )
        return bool(self.game.laid[where] & bit) or arrives

    def can_stand(self, where: int) -> bool:
        return where == self.game.start or self.tables.at[where] != 0

    def can_be_treated(self, condition: int, trait: str, tools: int, bit: int) -> bool:
        able = self.holdable & self.trait[trait] if any(tools >> number & 1 for number in self.placed) else 0
        return bool((self.game.conditions[condition] | able) & bit)
