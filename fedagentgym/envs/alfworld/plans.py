"""Goals, their demands, and the shortest plan for a goal when all places are known.

A goal is of one of six task types, in the form of the real game files. It refers to types only, never to instances. It
is kept as the S-expression of the PDDL problem, so that goals that were read from a file and goals that were
made here are handled alike.

The shortest plan is exact for the six task types: it tries every target, every appliance and every destination that
could make a difference, and counts commands. It measures how difficult a game is, bounds what the generator may
produce, and is the walkthrough of a game file. Goals of other shapes (slices, movable receptacles, `forall`) have no
plan here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

from fedagentgym.envs.alfworld.game import TRAITS, Game, Goal, list_members
from fedagentgym.envs.alfworld.tables import tables_of
from fedagentgym.envs.alfworld.wording import format_put_command

TREATMENTS = {"Clean": ("cleanable", "isClean"), "Heat": ("heatable", "isHot"), "Cool": ("coolable", "isCool")}


def make_goal(category: str, object_kind: str, receptacle_kind: str = "", lamp_kind: str = "DeskLamp") -> Goal:
    """The goal of a task type, formed as the real data forms it (`receptacle_kind` is not used by Look).

    >>> render_goal(make_goal("Pick", "Apple", "Fridge"), indent=None)
    '(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o AppleType) \
(receptacleType ?r FridgeType)))))'
    """
    kind, there = f"{object_kind}Type", ("receptacleType", "?r", f"{receptacle_kind}Type")
    typed, inside = ("objectType", "?o", kind), ("inReceptacle", "?o", "?r")
    variable = "?o"
    if category == "Pick":
        demands: tuple[Any, ...] = ("and", inside, typed, there)
    elif category in TREATMENTS:
        able, done = TREATMENTS[category]
        demands = ("and", (able, "?o"), typed, there, (done, "?o"), inside)
    elif category == "Pick2":
        first, second = ((("objectType", o, kind), there, ("inReceptacle", o, "?r")) for o in ("?o1", "?o2"))
        other = ("exists", ("?o2", "-", "object"), ("and", ("not", ("=", "?o1", "?o2")), *second))
        variable, demands = "?o1", ("and", *first, other)
    elif category == "Look":
        variables = ("?ot", "-", "object", "?r", "-", "receptacle", "?a", "-", "agent", "?l", "-", "location")
        lit = (("objectType", "?ot", f"{lamp_kind}Type"), ("toggleable", "?ot"), ("isToggled", "?ot"))
        near = (("receptacleAtLocation", "?r", "?l"), ("atLocation", "?a", "?l"), ("inReceptacle", "?ot", "?r"))
        held = ("exists", ("?o", "-", "object", "?a", "-", "agent"), ("and", typed, ("holds", "?a", "?o")))
        return ("and", ("exists", variables, ("and", *lit, *near)), held)
    else:
        raise ValueError(f"no goal is known for the category {category!r}")
    return ("and", ("exists", ("?r", "-", "receptacle"), ("exists", (variable, "-", "object"), demands)))


def render_goal(goal: Goal, indent: int | None = 12) -> str:
    """The goal as PDDL text: one formula per line, indented from `indent` on, or all on one line if `indent` is None."""
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

    A goal with a lit lamp is Look, one with a treatment Clean, Heat or Cool, and one with two different objects Pick2. Every
    other goal is Pick. Slices, movable receptacles and "all of a kind" are variants of these types.
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


APPLIANCE = {"Clean": "SinkBasin", "Heat": "Microwave", "Cool": "Fridge"}
_CONDITION = {"Clean": 0, "Heat": 1, "Cool": 2, "Look": 4}
_COMMON = {"objecttype", "receptacletype", "inreceptacle"}
_ATOMS = {
    "Pick": _COMMON,
    "Pick2": _COMMON | {"=", "not"},
    "Look": {"objecttype", "toggleable", "istoggled", "receptacleatlocation", "objectatlocation", "atlocation", "holds"}
    | {"inreceptacle"},
} | {category: _COMMON | {able.lower(), done.lower()} for category, (able, done) in TREATMENTS.items()}


class Target(NamedTuple):
    """A goal in three words: the task type, the kind of object, the kind of receptacle (of lamp, for Look)."""

    category: str
    thing: str
    place: str


class PlanStep(NamedTuple):
    """One command of a plan, by the numbers of object and receptacle in the game."""

    verb: str
    receptacle: int
    thing: int = -1


def extract_target(game: Game) -> Target | None:
    """The target of a game's goal; None if the goal does not have the plain form of its task type."""
    atoms = list(_iter_atoms(game.goal))
    if {atom[0].lower() for atom in atoms} - _ATOMS[game.category]:
        return None
    things = {atom[1]: atom[2].removesuffix("Type") for atom in atoms if atom[0].lower() == "objecttype"}
    places = {atom[2].removesuffix("Type") for atom in atoms if atom[0].lower() == "receptacletype"}
    if game.category == "Look":
        lamps = {atom[1] for atom in atoms if atom[0].lower() == "istoggled"}
        places = {kind for variable, kind in things.items() if variable in lamps}
        things = {variable: kind for variable, kind in things.items() if variable not in lamps}
    if len(set(things.values())) != 1 or len(places) != 1:
        return None
    return Target(game.category, next(iter(things.values())), places.pop())


def _iter_atoms(goal: Goal) -> Iterator[Goal]:
    """The facts in a goal, without the logic around them; `or`, `forall` and the like count as facts."""
    head = goal[0].lower()
    if head == "and":
        for part in goal[1:]:
            yield from _iter_atoms(part)
    elif head == "exists":
        yield from _iter_atoms(goal[2])
    elif head == "not" and goal[1][0] == "=":
        yield goal[1]
    else:
        yield tuple(part if isinstance(part, str) else "?" for part in goal)


def find_shortest_plan(game: Game) -> list[PlanStep] | None:
    """The moves of a shortest plan; empty if the goal already holds, None if there is no plan."""
    target = extract_target(game)
    if target is None:
        return None
    plans = {"Look": _iter_look_plans, "Pick2": _iter_two_object_plans}.get(target.category, _iter_bring_plans)(
        game, target
    )
    return min(plans, key=len, default=None)


def plan_commands(game: Game) -> tuple[str, ...] | None:
    """The shortest plan as commands in the game's own wording."""
    plan = find_shortest_plan(game)
    if plan is None:
        return None
    tables = tables_of(game)
    forms = {"go": "go to {1}", "open": "open {1}", "take": "take {0} from {1}", "use": "use {0}"}
    forms["put"] = format_put_command(game.wording, "{0}", "{1}")
    commands = []
    for move in plan:
        receptacle = tables.receptacle_names[move.receptacle] if move.receptacle >= 0 else ""
        thing = tables.object_names[move.thing] if move.thing >= 0 else ""
        commands.append(forms.get(move.verb, f"{move.verb} {{0}} with {{1}}").format(thing, receptacle))
    return tuple(commands)


class _PlanBuilder:
    """A plan under construction: where the agent is, what it has opened, and its commands."""

    def __init__(self, game: Game) -> None:
        self.game, self.place, self.opened, self.moves = game, game.start, game.opened, list[PlanStep]()

    def go_to(self, receptacle: int) -> _PlanBuilder:
        if self.game.receptacle_places[receptacle] != self.place:
            self.place = self.game.receptacle_places[receptacle]
            self.moves.append(PlanStep("go", receptacle))
        return self

    def open_at(self, receptacle: int) -> _PlanBuilder:
        self.go_to(receptacle)
        if self.game.openable & ~self.opened & 1 << receptacle:
            self.opened |= 1 << receptacle
            self.moves.append(PlanStep("open", receptacle))
        return self

    def append_step(self, verb: str, receptacle: int, thing: int = -1) -> _PlanBuilder:
        self.moves.append(PlanStep(verb, receptacle, thing))
        return self

    def carry(self, thing: int, source: int, goal: int) -> _PlanBuilder:
        self.open_at(source).append_step("take", source, thing)
        return self.open_at(goal).append_step("put", goal, thing)


def _iter_bring_plans(game: Game, target: Target) -> Iterator[list[PlanStep]]:
    """Plans for Pick, Clean, Heat and Cool."""
    category = target.category
    tools = _find_by_kind(game.receptacle_kinds, APPLIANCE[category]) if category in APPLIANCE else [-1]
    goals = _list_destinations(game, target)
    treatable = game.traits[TRAITS.index(TREATMENTS[category][0])] if category in APPLIANCE else -1
    treated = game.conditions[_CONDITION[category]] if category in APPLIANCE else -1
    for thing, source in _iter_reachable(game, target.thing):
        if not treatable >> thing & 1:
            continue
        done = bool(treated >> thing & 1)
        if done and game.receptacle_kinds[source].lower() == target.place.lower():
            yield []
        for goal in goals:
            for tool in [-1] if done else tools:
                walk = _PlanBuilder(game).open_at(source).append_step("take", source, thing)
                if tool >= 0:
                    walk.go_to(tool).append_step(category.lower(), tool, thing)
                yield walk.open_at(goal).append_step("put", goal, thing).moves


def _iter_two_object_plans(game: Game, target: Target) -> Iterator[list[PlanStep]]:
    found = list(_iter_reachable(game, target.thing))
    sources = {game.receptacle_places[source] for _, source in found}
    plain: set[bool] = set()
    for goal in _list_destinations(game, target):
        door = bool(game.openable & ~game.opened & 1 << goal)
        already = [thing for thing, source in found if source == goal]
        if game.receptacle_places[goal] not in sources:
            if door in plain:
                continue
            plain.add(door)
        if len(already) >= 2:
            yield []
        missing = [pair for pair in found if pair[1] != goal]
        for chosen in permutations(missing, 2 - min(1, len(already))):
            if len({thing for thing, _ in chosen}) == len(chosen):
                walk = _PlanBuilder(game)
                for thing, source in chosen:
                    walk.carry(thing, source, goal)
                yield walk.moves


def _iter_look_plans(game: Game, target: Target) -> Iterator[list[PlanStep]]:
    lit = game.conditions[_CONDITION["Look"]]
    lamps = [
        (lamp, number)
        for number, held in enumerate(game.contents)
        for lamp in list_members(held & game.traits[TRAITS.index("toggleable")])
        if game.object_kinds[lamp].lower() == target.place.lower()
    ]
    for thing, source in _iter_reachable(game, target.thing):
        for lamp, stand in lamps:
            walk = _PlanBuilder(game).open_at(source).append_step("take", source, thing).go_to(stand)
            yield walk.moves if lit >> lamp & 1 else walk.append_step("use", stand, lamp).moves


def _list_destinations(game: Game, target: Target) -> list[int]:
    if target.thing not in game.can_contain.get(target.place, ()):
        return []
    return [
        number for number in _find_by_kind(game.receptacle_kinds, target.place) if game.receptacle_places[number] >= 0
    ]


def _find_by_kind(kinds: tuple[str, ...], wanted: str) -> list[int]:
    return [number for number, kind in enumerate(kinds) if kind.lower() == wanted.lower()]


def _iter_reachable(game: Game, kind: str) -> Iterator[tuple[int, int]]:
    """Objects of a kind that can be picked up, each with the receptacle it is in."""
    pickupable = game.traits[TRAITS.index("pickupable")]
    for number, held in enumerate(game.contents):
        if game.receptacle_places[number] >= 0:
            for thing in list_members(held & pickupable):
                if game.object_kinds[thing].lower() == kind.lower():
                    yield thing, number
