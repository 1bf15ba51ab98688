"""Read real game files into `Game` values.

`read_game` takes a `game.tw-pddl` file; `read_problem` takes the text of its PDDL problem. The reader knows the
predicates and types of ALFWorld's domain, and refuses anything else with the line where it stands. It ignores facts that no
action and no sentence of the game uses, such as distances and visited places.

Texts are split into words as in the real engine's planner: blanks and parentheses separate words, `;` starts a comment, `?`
starts a new word. The depth of nesting is bounded, so that hostile input ends in an error and not in a stack overflow.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fedagentgym.base.errors import DataError, find_closest_name, holds_halves
from fedagentgym.base.files import read_bytes
from fedagentgym.envs.alfworld.game import Game, Receptacle, Thing, build_game
from fedagentgym.envs.alfworld.gamefiles import GAME_FILE, TRAJECTORY_FILE, recognise
from fedagentgym.envs.alfworld.grounding import CONDITION_PREDICATES, TRAIT_PREDICATES, TYPES
from fedagentgym.envs.alfworld.plans import infer_category
from fedagentgym.envs.alfworld.tables import is_reachable

MAX_DEPTH = 200
_WORD = re.compile(r"[()]|\??[^\s()?]+|\?")
_COMMENT = re.compile(r";[^\n]*")


class Form(NamedTuple):
    """A parenthesised form: its items, each a word or another form, and the index of its first word in the text."""

    items: tuple[Any, ...]
    position: int


Item: TypeAlias = str | Form


class ProblemText:
    """The text of a PDDL problem, with a name and line numbers for error messages."""

    def __init__(self, text: str, where: str) -> None:
        self.text = _COMMENT.sub(lambda comment: " " * len(comment.group()), text) if ";" in text else text
        self.where = where

    def make_error(self, what: str, position: int) -> DataError:
        return DataError(f"{self.where}, PDDL problem line {self.find_line(position)}: {what}")

    def find_line(self, position: int) -> int:
        starts = [match.start() for match in _WORD.finditer(self.text)]
        offset = starts[position] if position < len(starts) else len(self.text.rstrip())
        ends = [index for index, sign in enumerate(self.text) if sign == "\n"]
        return bisect.bisect_left(ends, offset) + 1

    def read(self) -> Form:
        """The one form that the text consists of."""
        words = _WORD.findall(self.text)
        if not words:
            raise DataError(f"{self.where}: the PDDL problem is empty")
        if words[0] != "(":
            raise self.make_error(f"expected '(' and found {words[0][:60]!r}", 0)
        stack: list[tuple[list[Item], int]] = []
        for position, word in enumerate(words):
            if word == "(":
                if len(stack) == MAX_DEPTH:
                    raise self.make_error(f"forms are nested more than {MAX_DEPTH} deep", position)
                stack.append(([], position))
            elif word == ")":
                items, opened = stack.pop()
                form = Form(tuple(items), opened)
                if not stack:
                    if position + 1 != len(words):
                        raise self.make_error(
                            f"text follows the end of the problem: {words[position + 1][:60]!r}", position + 1
                        )
                    return form
                stack[-1][0].append(form)
            else:
                stack[-1][0].append(word)
        raise self.make_error("the text ends before every '(' is closed", len(words))


def to_tuples(form: Form) -> tuple[Any, ...]:
    """A form as nested tuples of strings."""
    return tuple(to_tuples(item) if isinstance(item, Form) else item for item in form.items)


MAX_FILE_BYTES = 32 << 20

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*TRAIT_PREDICATES, *CONDITION_PREDICATES), ("object",)),
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "inreceptacleobject": ("object", "object"),
    "receptacletype": ("receptacle", "rtype"),
    "objecttype": ("object", "otype"),
    "cancontain": ("rtype", "otype"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
}
IGNORED_PREDICATES = frozenset(
    (
        "checked",
        "examined",
        "full",
        "wasinreceptacle",
        "isreceptacleobjectfull",
        "moveable",
        "holdsanyreceptacleobject",
        "ison",
    )
)


def read_game(path: Path) -> Game:
    """The game in a `game.tw-pddl` file; its folder must hold a readable `traj_data.json` as well."""
    require_trajectory(path.parent)
    return parse_game(read_json_object(path), str(path), scene=infer_scene(path), origin=str(path))


def parse_game(data: Mapping[str, Any], where: str, *, scene: str = "", origin: str = "") -> Game:
    """The game in the parsed content of a game file."""
    for field in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(field), str):
            raise DataError(f"{where}: the field {field!r} of an ALFWorld game is missing or not a text")
    if data.get("solvable", True) is not True:
        raise DataError(
            f"{where}: the game is marked as unsolvable; remove it, or import the data with `fedagentgym data add alfworld`"
        )
    wording, task = recognise(data["pddl_domain"], data["grammar"], where)
    return read_problem(data["pddl_problem"], task=task, wording=wording, where=where, scene=scene, origin=origin)


def read_problem(
    text: str, *, task: str, wording: str = "move", where: str = "the game", scene: str = "", origin: str = ""
) -> Game:
    """The game in the text of a PDDL problem; its goal must be reachable."""
    game = _Problem(ProblemText(text, where)).build_game(task=task, wording=wording, scene=scene, origin=origin)
    try:
        reachable = is_reachable(game)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if not reachable:
        raise DataError(f"{where}: the game is unsolvable: no sequence of actions makes its goal true")
    return game


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `DataError` if the file holds anything else."""
    data = _read_json(path)
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def _read_json(path: Path) -> Any:
    data = read_bytes(path, MAX_FILE_BYTES)
    try:
        found = json.loads(data)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}); the file may be cut off") from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise DataError(f"{path}: not valid JSON text") from None
    if holds_halves(found):
        raise DataError(f"{path}: not usable JSON: a text holds half of a character (a lone surrogate)")
    return found


def require_trajectory(folder: Path) -> None:
    """Refuse a game folder without a readable `traj_data.json`; the content of that file is not used."""
    if not (folder / TRAJECTORY_FILE).is_file():
        raise DataError(f"{folder}: there is a {GAME_FILE} without the {TRAJECTORY_FILE} that belongs beside it")
    _read_json(folder / TRAJECTORY_FILE)


def infer_scene(path: Path) -> str:
    """The floor plan that the name of a game's folder ends in.

    >>> infer_scene(Path("pick_heat_then_place_in_recep-Potato-None-SinkBasin-14/trial_T2019/game.tw-pddl"))
    'FloorPlan14'
    """
    for part in reversed(path.parts[:-1]):
        if found := re.fullmatch(r"\A[a-z_]+(?:-\w+){3}-(\d+)", part):
            return f"FloorPlan{found[1]}"
    return ""


class _Problem:
    """Collects the content of a problem, fact by fact."""

    def __init__(self, source: ProblemText) -> None:
        self.source = source
        self.types: dict[str, str] = {}
        self.spelling: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.inside: dict[str, list[str]] = {}
        self.inner: dict[str, list[str]] = {}
        self.marks: dict[str, set[str]] = {}
        self.can_contain: dict[str, set[str]] = {}
        self.agent_place: str | None = None
        self.held: list[str] = []
        self.hands_full = False

    def build_game(self, **said: str) -> Game:
        """The whole problem as a game; `said` are its task, wording, scene and origin."""
        sections = self.split_sections(self.source.read())
        self.read_objects(sections["objects"])
        for fact in sections["init"].items[1:]:
            self.read_fact(fact, sections["init"])
        section = sections["goal"]
        if len(section.items) != 2 or not isinstance(section.items[1], Form):
            raise self.source.make_error("(:goal ...) holds one formula", section.position)
        goal = to_tuples(section.items[1])
        if self.agent_place is None:
            raise self.source.make_error("no (atLocation ...) says where the agent starts", sections["init"].position)
        if bool(self.held) != self.hands_full or len(self.held) > 1:
            raise self.source.make_error(
                "the agent holds one object, with holds and holdsAny, or none", sections["init"].position
            )
        return build_game(
            receptacles=[self.make_receptacle(name) for name in self.list_mentioned("receptacle")],
            things=[self.make_thing(name) for name in self.list_mentioned("object")],
            start=self.spelling[self.agent_place],
            can_contain=self.can_contain,
            goal=goal,
            category=infer_category(goal),
            holding=self.held[0] if self.held else None,
            places=[self.spelling[name] for name in self.list_mentioned("location")],
            **said,
        )

    def split_sections(self, problem: Form) -> dict[str, Form]:
        if not problem.items or str(problem.items[0]).lower() != "define":
            raise self.source.make_error("a PDDL problem begins with (define ...)", problem.position)
        sections: dict[str, Form] = {}
        for part in problem.items[1:]:
            if not isinstance(part, Form) or not part.items or not isinstance(part.items[0], str):
                raise self.source.make_error("expected a section such as (:init ...)", problem.position)
            name = part.items[0].lower().removeprefix(":")
            if name in sections:
                raise self.source.make_error(f"there are two sections ({part.items[0]} ...)", part.position)
            sections[name] = part
        for name in ("objects", "init", "goal"):
            if name not in sections:
                raise self.source.make_error(f"the section (:{name} ...) is missing", problem.position)
        return sections

    def read_objects(self, section: Form) -> None:
        waiting: list[str] = []
        words = iter(section.items[1:])
        for word in words:
            if isinstance(word, Form):
                raise self.source.make_error("a form stands among the names of (:objects ...)", word.position)
            if word != "-":
                waiting.append(word)
                continue
            type_name = next(words, "")
            if not isinstance(type_name, str) or type_name.lower() not in TYPES:
                raise self.source.make_error(
                    f"unknown type {_describe_item(type_name)} in (:objects ...); known: {', '.join(TYPES)}",
                    self.find_word(section, type_name),
                )
            self.declare(waiting, type_name.lower(), section)
            waiting = []
        self.declare(waiting, "object", section)

    def declare(self, names: list[str], type_name: str, section: Form) -> None:
        for name in names:
            if name.lower() in self.types:
                raise self.source.make_error(
                    f"{name} is declared twice in (:objects ...)", self.find_word(section, name, last=True)
                )
            self.types[name.lower()] = type_name
            self.spelling[name.lower()] = name

    def find_word(self, section: Form, word: Any, last: bool = False) -> int:
        """The position of a word of a flat section."""
        positions = [section.position + 1 + number for number, item in enumerate(section.items) if item == word]
        return (positions[-1] if last else positions[0]) if positions else section.position

    def read_fact(self, fact: Any, section: Form) -> None:
        if not isinstance(fact, Form) or not fact.items or not isinstance(fact.items[0], str):
            raise self.source.make_error(
                f"expected a fact and found {_describe_item(fact)}",
                fact.position if isinstance(fact, Form) else section.position,
            )
        predicate = fact.items[0].lower()
        if predicate in ("=", "not"):
            return
        arguments = tuple(item.lower() if isinstance(item, str) else "" for item in fact.items[1:])
        signature = SIGNATURES.get(predicate)
        if signature is None and predicate not in IGNORED_PREDICATES:
            guess = find_closest_name(fact.items[0], SIGNATURES)
            hint = f"; did you mean {guess}?" if guess else ""
            raise self.source.make_error(f"unknown predicate {fact.items[0][:60]!r}{hint}", fact.position)
        for argument in arguments:
            if argument not in self.types:
                raise self.source.make_error(
                    f"({fact.items[0]} ...) names {argument or 'a form'}, which (:objects ...) does not declare",
                    fact.position,
                )
            self.marks.setdefault(argument, set())
        types = tuple(self.types[argument] for argument in arguments)
        if signature is None or (predicate == "isreceptacleobject" and "receptacle" in types):
            return
        if types != signature:
            raise self.source.make_error(
                f"({fact.items[0]} ...) takes ({' '.join(signature)}), not ({' '.join(types)})", fact.position
            )
        self.note(predicate, arguments, fact)

    def note(self, predicate: str, arguments: tuple[str, ...], fact: Form) -> None:
        """Store the content of a fact."""
        name, other = arguments[0], arguments[-1]
        match predicate:
            case "receptacletype" | "objecttype":
                self.set_once(self.kinds, name, self.check_type_name(other, fact), fact)
            case "receptacleatlocation" | "objectatlocation":
                self.set_once(self.places, name, other, fact)
            case "inreceptacle":
                self.inside.setdefault(name, []).append(other)
            case "inreceptacleobject":
                self.inner.setdefault(other, []).append(name)
            case "cancontain":
                holder, held = (self.spelling[self.check_type_name(kind, fact)][: -len("Type")] for kind in arguments)
                self.can_contain.setdefault(holder, set()).add(held)
            case "atlocation":
                if self.agent_place not in (None, other):
                    raise self.source.make_error("the agent starts at two locations", fact.position)
                self.agent_place = other
            case "holds":
                self.held.append(other)
            case "holdsany":
                self.hands_full = True
            case _:
                self.marks[name].add(predicate)

    def check_type_name(self, kind: str, fact: Form) -> str:
        if not kind.endswith("type") or kind == "type":
            raise self.source.make_error(
                f"the type {self.spelling[kind]} does not end in 'Type' as all of this domain do", fact.position
            )
        return kind

    def set_once(self, column: dict[str, str], name: str, value: str, fact: Form) -> None:
        if column.setdefault(name, value) != value:
            raise self.source.make_error(
                f"({fact.items[0]} {self.spelling[name]} ...) says two different things", fact.position
            )

    def list_mentioned(self, type_name: str) -> list[str]:
        """The entities of a type that facts mention; an entity that is only declared is not part of the game."""
        return [name for name in self.marks if self.types[name] == type_name]

    def get_kind(self, name: str) -> str:
        kind = self.kinds.get(name)
        return "" if kind is None else self.spelling[kind][: -len("Type")]

    def make_receptacle(self, name: str) -> Receptacle:
        marks, place = self.marks[name], self.places.get(name)
        where = None if place is None else self.spelling[place]
        return Receptacle(self.spelling[name], self.get_kind(name), where, "openable" in marks, "opened" in marks)

    def make_thing(self, name: str) -> Thing:
        marks, place = self.marks[name], self.places.get(name)
        return Thing(
            id=self.spelling[name],
            kind=self.get_kind(name),
            inside=tuple(self.inside.get(name, ())),
            place=None if place is None else self.spelling[place],
            traits=frozenset(trait for predicate, trait in TRAIT_PREDICATES.items() if predicate in marks),
            condition=frozenset(state for predicate, state in CONDITION_PREDICATES.items() if predicate in marks),
            inner=tuple(self.inner.get(name, ())),
        )


def _describe_item(item: Any) -> str:
    return "a form" if isinstance(item, Form) else repr(str(item)[:60])
