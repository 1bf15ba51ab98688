"""Grounding: a goal about types becomes one about the receptacles and objects of a game.

Quantifiers become "and" and "or" over the entities of a game, and facts that never change become true or false
and disappear. A small tree over facts that change remains, which the engine evaluates after an action that changed one
of them. `can_hold` tests with such a tree whether the goal can be reached at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from fedagentgym.base.errors import DataError
from fedagentgym.envs.alfworld.game import NOWHERE, TRAITS, Game, Goal, HouseState


class Fact(NamedTuple):
    """A fact that actions change: `in` (receptacle, object), `laid` (location, object), `held` (object),
    `place` (location), `opened` (receptacle), `holding` anything, or one of `CONDITIONS` (object)."""

    kind: str
    where: int
    what: int


class Branch(NamedTuple):
    """`and`, `or` or `not` over parts."""

    kind: str
    parts: tuple[Any, ...]


Node: TypeAlias = bool | Fact | Branch
MAX_FORMULAS = 300_000
"""Maximum number of formulas that a goal may expand to: a thousand times what the largest real one needs."""


class Entity(NamedTuple):
    """Something a variable can stand for; types and the agent are entities too."""

    type: str
    number: int
    name: str = ""


TRAIT_PREDICATES = {**{trait: trait for trait in TRAITS if trait != "container"}, "isreceptacleobject": "container"}
CONDITION_PREDICATES = {
    "isclean": "clean",
    "ishot": "hot",
    "iscool": "cool",
    "issliced": "sliced",
    "istoggled": "toggled",
}
TYPES = ("agent", "location", "receptacle", "object", "rtype", "otype")


def ground(game: Game, relaxed: bool = False) -> Node:
    """The goal of a game over its own receptacles and objects; `relaxed` treats "not" and "forall" as fulfilled."""
    check_form(game.goal)
    return _Grounder(game, relaxed).ground_formula(game.goal, {})


def check_form(goal: Any) -> None:
    """Refuse anything but a formula, so that the other functions may rely on its form."""
    if not isinstance(goal, tuple):
        raise DataError(f"the goal has {goal!r} where a formula is expected")
    head = goal[0].lower() if goal and isinstance(goal[0], str) else ""
    parts = {"not": 1, "imply": 2, "exists": 2, "forall": 2}.get(head)
    if parts is not None and len(goal) != parts + 1:
        raise DataError(f"the goal has ({head} ...) with {len(goal) - 1} parts instead of {parts}")
    if head in ("exists", "forall"):
        if not isinstance(goal[1], tuple) or not all(isinstance(word, str) for word in goal[1]):
            raise DataError(f"the goal has ({head} ...) without a list of variables")
        if stray := [name for name, _ in parse_typed_variables(goal[1]) if not name.startswith("?")]:
            raise DataError(f"the goal has {stray[0]} among its variables, whose names begin with '?'")
        check_form(goal[2])
    elif head in ("and", "or", "not", "imply"):
        for part in goal[1:]:
            check_form(part)
    elif not all(isinstance(item, str) for item in goal):
        raise DataError("the goal has a formula that begins with none of and, or, not, imply, exists, forall")


def evaluate(node: Node, state: HouseState) -> bool:
    """Return whether a grounded goal holds in a state."""
    if isinstance(node, bool):
        return node
    if isinstance(node, Fact):
        return _TRUTH[node.kind](state, node.where, node.what)
    kind, parts = node
    if kind == "and":
        return all(evaluate(part, state) for part in parts)
    if kind == "or":
        return any(evaluate(part, state) for part in parts)
    return not evaluate(parts[0], state)


def collect_fact_kinds(node: Node) -> frozenset[str]:
    """The kinds of fact a grounded goal depends on."""
    if isinstance(node, bool):
        return frozenset()
    if isinstance(node, Fact):
        return frozenset((node.kind,))
    return frozenset().union(*(collect_fact_kinds(part) for part in node.parts))


def can_hold(node: Node, reachable: Callable[[Fact], bool]) -> bool:
    """Return whether a relaxed goal can come true, given which single facts can."""
    if isinstance(node, bool):
        return node
    if isinstance(node, Fact):
        return reachable(node)
    join = all if node.kind == "and" else any
    return join(can_hold(part, reachable) for part in node.parts)


def conjoin(parts: list[Node]) -> Node:
    return _join("and", parts, neutral=True)


def disjoin(parts: list[Node]) -> Node:
    return _join("or", parts, neutral=False)


def _join(kind: str, parts: list[Node], neutral: bool) -> Node:
    kept: list[Node] = []
    for part in parts:
        if isinstance(part, bool):
            if part is not neutral:
                return part
        elif isinstance(part, Branch) and part.kind == kind:
            kept.extend(part.parts)
        else:
            kept.append(part)
    if not kept:
        return neutral
    return kept[0] if len(kept) == 1 else Branch(kind, tuple(kept))


_TRUTH: Mapping[str, Callable[[Any, int, int], bool]] = {
    "in": lambda state, where, what: bool(state.contents[where] >> what & 1),
    "laid": lambda state, where, what: bool(state.laid[where] >> what & 1),
    "held": lambda state, where, what: state.held == what,
    "holding": lambda state, where, what: state.held != NOWHERE,
    "place": lambda state, where, what: state.place == where,
    "opened": lambda state, where, what: bool(state.opened >> where & 1),
    "clean": lambda state, where, what: bool(state.clean >> what & 1),
    "hot": lambda state, where, what: bool(state.hot >> what & 1),
    "cool": lambda state, where, what: bool(state.cool >> what & 1),
    "sliced": lambda state, where, what: bool(state.sliced >> what & 1),
    "toggled": lambda state, where, what: bool(state.toggled >> what & 1),
}


class _Grounder:
    """Walks a goal with the variables bound so far."""

    def __init__(self, game: Game, relaxed: bool) -> None:
        self.game, self.relaxed, self.formulas = game, relaxed, 0
        self.entities = {
            "agent": [Entity("agent", 0)],
            "location": [Entity("location", number) for number in range(len(game.locations))],
            "receptacle": [Entity("receptacle", number) for number in range(len(game.receptacles))],
            "object": [Entity("object", number) for number in range(len(game.objects))],
        }
        kinds = {"object": game.object_kinds, "receptacle": game.receptacle_kinds}
        self.type_words = {name: [f"{kind}type".lower() for kind in column] for name, column in kinds.items()}
        self.types = {word for column in self.type_words.values() for word in column}
        self.inner = dict(game.inner)
        self.narrowed: dict[tuple[int, str], list[Entity]] = {}

    @cached_property
    def constants(self) -> dict[str, Entity]:
        """The game's things by id, for the rare goal that names one."""
        game = self.game
        named = zip(("location", "receptacle", "object"), (game.locations, game.receptacles, game.objects), strict=True)
        return {
            identifier.lower(): Entity(type_name, number)
            for type_name, column in named
            for number, identifier in enumerate(column)
        }

    def ground_formula(self, goal: Goal, bound: Mapping[str, Entity]) -> Node:
        self.formulas += 1
        if self.formulas > MAX_FORMULAS:
            raise DataError(f"the goal ranges over more than {MAX_FORMULAS} combinations of things")
        if not goal:
            return True
        head = goal[0].lower()
        if head == "and":
            return conjoin([self.ground_formula(part, bound) for part in goal[1:]])
        if head == "or":
            return disjoin([self.ground_formula(part, bound) for part in goal[1:]])
        if head == "not":
            return self.ground_negation(goal[1], bound)
        if head == "imply":
            return disjoin([self.ground_negation(goal[1], bound), self.ground_formula(goal[2], bound)])
        if head == "forall" and self.relaxed:
            return True
        if head in ("exists", "forall"):
            variables = list(parse_typed_variables(goal[1]))
            return self.ground_quantifier(head, variables, goal[2], dict(bound))
        return self.ground_atom(head, [self.resolve_term(word, bound) for word in goal[1:]])

    def ground_negation(self, goal: Goal, bound: Mapping[str, Entity]) -> Node:
        node = self.ground_formula(goal, bound)
        if self.relaxed or isinstance(node, bool):
            return self.relaxed or not node
        if isinstance(node, Branch) and node.kind == "not":
            part: Node = node.parts[0]
            return part
        return Branch("not", (node,))

    def ground_quantifier(
        self, head: str, variables: list[tuple[str, str]], body: Goal, bound: dict[str, Entity]
    ) -> Node:
        if not variables:
            return self.ground_formula(body, bound)
        (name, type_name), rest = variables[0], variables[1:]
        if head == "exists":
            candidates = self.find_bound_location(body, name, type_name, bound)
            if candidates is None:
                candidates = self.narrow(body, name, type_name)
        else:
            candidates = self.list_entities(type_name)
        parts = [self.ground_quantifier(head, rest, body, {**bound, name: candidate}) for candidate in candidates]
        return disjoin(parts) if head == "exists" else conjoin(parts)

    def narrow(self, body: Goal, name: str, type_name: str) -> list[Entity]:
        """The entities of a type that meet a formula's demands on a variable, whatever its other variables stand for."""
        key = (id(body), name)
        if key not in self.narrowed:
            demands = list(_iter_demands(body, name))
            self.narrowed[key] = [
                one
                for one in self.list_candidates(demands, type_name)
                if all(self.evaluate_static(fact, one) is not False for fact in demands)
            ]
        return self.narrowed[key]

    def list_candidates(self, demands: list[tuple[str, str]], type_name: str) -> list[Entity]:
        """The entities of a type, or of the one kind that is demanded."""
        for predicate, kind in demands:
            wanted = _KIND_OF.get(predicate)
            if wanted is not None and type_name in (wanted, "object"):
                pairs = zip(self.entities[wanted], self.type_words[wanted], strict=True)
                return [entity for entity, word in pairs if word == kind]
        return self.list_entities(type_name)

    def find_bound_location(
        self, body: Goal, name: str, type_name: str, bound: Mapping[str, Entity]
    ) -> list[Entity] | None:
        """The one location a variable can stand for when a formula demands that a known receptacle is there."""
        holder = bound.get(next((other for other in _iter_holders_at(body, name) if other in bound), ""))
        if holder is None or holder.type != "receptacle" or type_name not in ("location", "object"):
            return None
        place = self.game.receptacle_places[holder.number]
        return [] if place == NOWHERE else [self.entities["location"][place]]

    def list_entities(self, type_name: str) -> list[Entity]:
        """The entities of a type; `object` is also the root of all types, so it names every one of them."""
        if type_name == "object":
            return [entity for column in self.entities.values() for entity in column]
        if type_name not in self.entities:
            raise DataError(
                f"the goal has a variable of the type {type_name!r}, which no goal of this domain ranges over"
            )
        return self.entities[type_name]

    def resolve_term(self, word: str, bound: Mapping[str, Entity]) -> Entity:
        name = word.lower()
        if name in self.types:
            return Entity("type", 0, name)
        if name.startswith("?"):
            if name not in bound:
                raise DataError(f"the goal uses the variable {word}, which no quantifier binds")
            return bound[name]
        return self.constants.get(name) or Entity("type", 0, name)

    def evaluate_static(self, fact: tuple[str, str], one: Entity) -> bool | None:
        """The truth of a fact about one entity that never changes; None if actions change the fact."""
        predicate, argument = fact
        node = self.ground_atom(predicate, [one] if not argument else [one, Entity("type", 0, argument)])
        return node if isinstance(node, bool) else None

    def ground_atom(self, predicate: str, terms: list[Entity]) -> Node:
        if predicate not in _ATOMS:
            raise DataError(f"the goal asks for ({predicate} ...), which the engine does not follow")
        types, truth = _ATOMS[predicate]
        if len(terms) != len(types):
            raise DataError(f"the goal gives ({predicate} ...) {len(terms)} arguments instead of {len(types)}")
        return all(map(_fits, terms, types)) and truth(self, *terms)


def parse_typed_variables(words: Goal) -> Iterator[tuple[str, str]]:
    """The (variable, type) pairs of a quantifier's list `(?r - receptacle ?a ?b - object)`.

    >>> list(parse_typed_variables(("?r", "-", "receptacle", "?a", "?b", "-", "object")))
    [('?r', 'receptacle'), ('?a', 'object'), ('?b', 'object')]
    """
    waiting: list[str] = []
    position = 0
    while position < len(words):
        word = words[position].lower()
        if word == "-" and position + 1 < len(words):
            type_name = words[position + 1].lower()
            yield from ((name, type_name) for name in waiting)
            waiting = []
            position += 1
        else:
            waiting.append(word)
        position += 1
    yield from ((name, "object") for name in waiting)


def _iter_demands(body: Goal, variable: str) -> Iterator[tuple[str, str]]:
    """Facts about one variable that a conjunction requires: they narrow what the variable can stand for."""
    head = body[0].lower() if body else ""
    if head == "and":
        for part in body[1:]:
            yield from _iter_demands(part, variable)
    elif head == "exists" and variable not in {name for name, _ in parse_typed_variables(body[1])}:
        yield from _iter_demands(body[2], variable)
    elif head in ("objecttype", "receptacletype") and len(body) == 3 and body[1].lower() == variable:
        if not body[2].startswith("?"):
            yield head, body[2].lower()
    elif head in TRAIT_PREDICATES and len(body) == 2 and body[1].lower() == variable:
        yield head, ""


def _iter_holders_at(body: Goal, location: str) -> Iterator[str]:
    """Variables for receptacles that a conjunction demands to be at a location."""
    head = body[0].lower() if body else ""
    if head == "and":
        for part in body[1:]:
            yield from _iter_holders_at(part, location)
    elif head == "receptacleatlocation" and len(body) == 3 and body[2].lower() == location:
        yield body[1].lower()


def _has_trait(position: int) -> Callable[..., Node]:
    return lambda grounder, one: bool(grounder.game.traits[position] >> one.number & 1)


def _has_condition(kind: str) -> Callable[..., Node]:
    return lambda grounder, one: Fact(kind, NOWHERE, one.number)


def _can_contain(grounder: _Grounder, holder: Entity, held: Entity) -> Node:
    table = grounder.game.can_contain
    pairs = {(f"{kind}type".lower(), f"{one}type".lower()) for kind, kinds in table.items() for one in kinds}
    return (holder.name, held.name) in pairs


def _fits(entity: Entity, type_name: str) -> bool:
    """Return whether an entity may be an argument of a type. The agent may also be given by its name, which no game keeps."""
    return type_name in ("any", entity.type) or (type_name == "agent" and entity.type == "type")


_KIND_OF = {"objecttype": "object", "receptacletype": "receptacle"}
_ATOMS: Mapping[str, tuple[tuple[str, ...], Callable[..., Node]]] = {
    "=": (("any", "any"), lambda g, one, other: one == other),
    "objecttype": (("object", "type"), lambda g, one, kind: g.type_words["object"][one.number] == kind.name),
    "receptacletype": (
        ("receptacle", "type"),
        lambda g, one, kind: g.type_words["receptacle"][one.number] == kind.name,
    ),
    **{name: (("object",), _has_trait(TRAITS.index(trait))) for name, trait in TRAIT_PREDICATES.items()},
    **{name: (("object",), _has_condition(kind)) for name, kind in CONDITION_PREDICATES.items()},
    "openable": (("receptacle",), lambda g, one: bool(g.game.openable >> one.number & 1)),
    "opened": (("receptacle",), lambda g, one: Fact("opened", one.number, NOWHERE)),
    "inreceptacle": (("object", "receptacle"), lambda g, one, holder: Fact("in", holder.number, one.number)),
    "inreceptacleobject": (
        ("object", "object"),
        lambda g, one, holder: bool(g.inner.get(holder.number, 0) >> one.number & 1),
    ),
    "objectatlocation": (("object", "location"), lambda g, one, place: Fact("laid", place.number, one.number)),
    "receptacleatlocation": (
        ("receptacle", "location"),
        lambda g, one, place: g.game.receptacle_places[one.number] == place.number,
    ),
    "atlocation": (("agent", "location"), lambda g, agent, place: Fact("place", place.number, NOWHERE)),
    "holds": (("agent", "object"), lambda g, agent, one: Fact("held", NOWHERE, one.number)),
    "holdsany": (("agent",), lambda g, agent: Fact("holding", NOWHERE, NOWHERE)),
    "cancontain": (("type", "type"), _can_contain),
}
"""Predicate -> the types of its arguments, and a function for its truth in a game. It is false for arguments of other types."""
