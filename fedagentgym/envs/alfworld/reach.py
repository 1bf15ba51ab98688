"""Whether a goal is reachable at all: each fact it needs must be the effect of some action.

This is the test that the real engine's planner makes before it starts, where a game that fails it ends in an unrelated
error. It is optimistic (facts are taken one by one, "not" and "forall" count as fulfilled), so a game that passes it may
still have no plan: it needs two mugs and there is one. The real engine plays such a game, and so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedagentgym.envs.alfworld.game import NOWHERE, TRAITS, Game
from fedagentgym.envs.alfworld.grounding import Fact, can_hold, ground
from fedagentgym.envs.alfworld.tables import Tables, tables_of


def is_reachable(game: Game) -> bool:
    """Whether every fact that the goal of a game needs holds at the start or can be brought about."""
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
        return _REACHABLE_TESTS[fact.kind](self, fact.where, 1 << fact.what if fact.what != NOWHERE else 0)

    def inside(self, where: int, bit: int) -> bool:
        game = self.game
        fits = self.holdable & self.tables.accepts[where] & bit and game.receptacle_places[where] != NOWHERE
        return bool(game.contents[where] & bit or fits)

    def laid(self, where: int, bit: int) -> bool:
        arrives = any(
            self.holdable & self.tables.accepts[number] & bit
            for number in self.placed
            if self.game.receptacle_places[number] == where
        )
        return bool(self.game.laid[where] & bit) or arrives

    def held(self, where: int, bit: int) -> bool:
        return bool(self.holdable & bit)

    def holding(self, where: int, bit: int) -> bool:
        return self.holdable != 0

    def place(self, where: int, bit: int) -> bool:
        return where == self.game.start or self.tables.at[where] != 0

    def opened(self, where: int, bit: int) -> bool:
        openable = self.game.openable >> where & 1 and where in self.placed
        return bool(self.game.opened >> where & 1 or openable)

    def make_treatment_test(self, condition: int, trait: str, tools: int) -> Callable[[int], bool]:
        able = self.holdable & self.trait[trait] if any(tools >> number & 1 for number in self.placed) else 0
        return lambda bit: bool((self.game.conditions[condition] | able) & bit)

    def clean(self, where: int, bit: int) -> bool:
        return self.make_treatment_test(0, "cleanable", self.tables.basins)(bit)

    def hot(self, where: int, bit: int) -> bool:
        return self.make_treatment_test(1, "heatable", self.tables.microwaves)(bit)

    def cool(self, where: int, bit: int) -> bool:
        return self.make_treatment_test(2, "coolable", self.tables.fridges)(bit)

    def sliced(self, where: int, bit: int) -> bool:
        near = any(self.laid(place, bit) for place in range(len(self.game.locations)) if self.place(place, 0))
        cut = self.trait["sliceable"] & bit and near and self.holdable & self.tables.knives
        return bool(self.game.conditions[3] & bit or cut)

    def toggled(self, where: int, bit: int) -> bool:
        return bool((self.game.conditions[4] | self.usable & self.trait["toggleable"]) & bit)


_REACHABLE_TESTS: Mapping[str, Callable[[_Reach, int, int], bool]] = {
    "in": _Reach.inside,
    "laid": _Reach.laid,
    "held": _Reach.held,
    "holding": _Reach.holding,
    "place": _Reach.place,
    "opened": _Reach.opened,
    "clean": _Reach.clean,
    "hot": _Reach.hot,
    "cool": _Reach.cool,
    "sliced": _Reach.sliced,
    "toggled": _Reach.toggled,
}
