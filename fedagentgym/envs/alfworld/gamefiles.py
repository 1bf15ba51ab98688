"""Games as files that the real engine loads: `game.tw-pddl` and `traj_data.json`, in folders named as ALFWorld names them.

The problem is written in full (every fact that the domain asks for); domain and grammar come from the installed `alfworld`
package. A file read back gives the same `Game`.

The real engine makes its texts with the grammar inside each game file. Two grammars are known, today's (`move`) and that of
earlier releases (`put`). Each is recognised by the digest of its text without the task sentence, with white space normalised.
Games with another grammar are refused: an engine that guesses at unknown rules would answer wrongly without notice. When a
game file with the wording `put` is written, the few changes since the earlier releases are undone in the installed texts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError, MissingExtraError, holds_halves, require_type, show_value
from fedagentgym.base.files import write_atomic
from fedagentgym.envs.alfworld.figures import load_statistics
from fedagentgym.envs.alfworld.game import CONDITIONS, NOWHERE, TRAITS, Game, list_members
from fedagentgym.envs.alfworld.plans import extract_target, plan_commands, render_goal
from fedagentgym.envs.tasks import Task

GRAMMARS = {
    "fb5689bd52947327eaab1e91f14a70591a4acc2b493ef298135fdc77f2474020": "move",
    "87107d26b4b5a9724f5c5e9e732e218661047e37d50d8400dfb00d3c2101a468": "put",
}
DOMAINS = {
    "68c0c8ed4392a559a1ad2c107dc77efc940461cfb6153136190f81d312aaebe9": "move",
    "c398bac7936b4387f52da0ff9ba6919b28acde22edfb26db4fe5d249aa1cd927": "put",
}
_TASK = re.compile(r'(Your task is to: )(.*?)(\."\s*\})', re.DOTALL)
_FORBIDDEN_CHARACTERS = frozenset(';|"<>[]#{}\t\n\\')
PLACEHOLDER = "UNKNOWN GOAL"


def recognise(domain: str, grammar: str, where: str) -> tuple[str, str]:
    """The wording of a game file, recognised by its domain and grammar, and its task sentence."""
    wording = GRAMMARS.get(grammar_digest(grammar))
    if wording is None:
        raise DataError(
            f"{where}: unknown grammar; the games of ALFWorld 0.4 ('move') and of earlier releases ('put') can be played"
        )
    if DOMAINS.get(domain_digest(domain)) != wording:
        raise DataError(f"{where}: the PDDL domain is not the one that belongs to the grammar's wording, {wording!r}")
    return wording, extract_task_sentence(grammar, where)


def grammar_digest(grammar: str) -> str:
    return _normal_digest(_TASK.sub(r"\1\3", grammar, count=1))


def domain_digest(domain: str) -> str:
    return _normal_digest(re.sub(r";[^\n]*", "", domain))


def _normal_digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def extract_task_sentence(grammar: str, where: str) -> str:
    """The sentence of the task, without its full stop."""
    found = _TASK.search(grammar)
    try:
        sentence = json.loads(f'"{found[2]}"') if found else ""
    except json.JSONDecodeError:
        sentence = ""
    if not sentence or holds_halves(sentence) or _FORBIDDEN_CHARACTERS & set(sentence):
        raise DataError(f"{where}: the grammar holds no task sentence that the engine could say")
    return str(sentence)


def make_domain_and_grammar(wording: str, task: str) -> tuple[str, str]:
    """The two texts for a new game file, taken from the installed alfworld package."""
    if not task.strip() or _FORBIDDEN_CHARACTERS & set(task):
        raise DataError(
            f"the task sentence {task[:80]!r} is empty or holds a sign that the real engine's grammar cannot say"
        )
    domain, grammar = _make_put_texts() if wording == "put" else _load_installed_texts()
    return domain, grammar.replace(PLACEHOLDER, json.dumps(task)[1:-1])


@lru_cache(maxsize=1)
def _load_installed_texts() -> tuple[str, str]:
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "writing and playing real ALFWorld game files needs alfworld: pip install 'fedagentgym[alfworld]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    try:
        domain, grammar = ((folder / name).read_text("utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    except OSError as error:
        raise DataError(f"{folder}: the installed alfworld lacks its domain or grammar ({error.strerror})") from None
    recognise(domain, grammar, f"the installed alfworld ({folder})")
    return domain, grammar


@lru_cache(maxsize=1)
def _make_put_texts() -> tuple[str, str]:
    """The texts of earlier releases, made from the installed ones; their digests prove that nothing else differs."""
    domain, grammar = _load_installed_texts()
    domain = domain[: domain.index("(:action help")] + ")\n"
    grammar = grammar[: grammar.index("action help {")]
    for today, earlier in (
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ('"move {o} to {r}"', '"put {o} in/on {r}"'),
    ):
        grammar = grammar.replace(today, earlier)
    recognise(domain, grammar, "the earlier ALFWorld texts")
    return domain, grammar


TASK_TYPES = {
    "Pick": "pick_and_place_simple",
    "Look": "look_at_obj_in_light",
    "Clean": "pick_clean_then_place_in_recep",
    "Heat": "pick_heat_then_place_in_recep",
    "Cool": "pick_cool_then_place_in_recep",
    "Pick2": "pick_two_obj_and_place",
}
SPLIT_FOLDERS = {"train": "train", "val": "valid_seen", "test": "valid_unseen", "warmup": "warmup"}
GAME_FILE, TRAJECTORY_FILE = "game.tw-pddl", "traj_data.json"
_TRAIT_WORDS = {trait: "isReceptacleObject" if trait == "container" else trait for trait in TRAITS}
_CONDITION_WORDS = dict(zip(CONDITIONS, ("isClean", "isHot", "isCool", "isSliced", "isToggled"), strict=True))
_NAMED_BY_THE_DOMAIN = (("Knife", "ButterKnife"), ("SinkBasin", "Microwave", "Fridge"))


def write_game_files(tasks: Iterable[Task], folder: Path) -> list[Path]:
    """Write ALFWorld's tasks as the game files of TextWorld, for other programs that play ALFWorld.

    Args:
        tasks: Tasks of `fedagentgym/ALFWorld-v0`.
        folder: The folder to write to; each game goes below the folder of its split.

    Returns:
        The paths of the game files, in the order of the tasks.

    Raises:
        DataError: If a task is no game of ALFWorld.
        MissingExtraError: If `alfworld` is not installed, whose domain and grammar the files contain.
    """
    require_type("tasks are a pool or a list of tasks", tasks, Iterable)
    tasks = list(tasks)
    if strange := next((task for task in tasks if not isinstance(getattr(task, "payload", None), Game)), None):
        raise DataError(
            f"the task {show_value(getattr(strange, 'id', strange))} is no ALFWorld game: it is not written"
        )
    written = []
    for task in tasks:
        place = Path(folder) / SPLIT_FOLDERS.get(task.split, "train")
        # A name in the style of the real ones, different for each task.
        trial = f"trial_T20000101_000000_{int(task.id.rpartition('/')[2]):06d}"
        written.append(write_game(task.payload, place, trial=trial))
    return written


def write_game(game: Game, folder: Path, *, trial: str) -> Path:
    """Write one game below a folder, as `<type>-<object>-None-<destination>-<scene>/<trial>/game.tw-pddl`."""
    content, trajectory = make_game_content(game), make_trajectory_content(game, trial)
    place = Path(folder) / make_folder_name(game) / trial
    write_atomic(place / TRAJECTORY_FILE, json.dumps(trajectory, indent=1))
    write_atomic(place / GAME_FILE, json.dumps(content))
    return place / GAME_FILE


def make_game_content(game: Game) -> dict[str, Any]:
    """The content of a game file: domain, grammar with the task sentence, problem, and a walkthrough."""
    domain, grammar = make_domain_and_grammar(game.wording, game.task)
    walkthrough = plan_commands(game)
    return {
        "pddl_domain": domain,
        "grammar": grammar,
        "pddl_problem": render_problem(game),
        "solvable": True,
        **({} if walkthrough is None else {"walkthrough": list(walkthrough)}),
    }


def make_folder_name(game: Game) -> str:
    """The name of a game's folder: task type, object, movable receptacle (none), destination or lamp, scene.

    For a private room, which has no scene number, it is the number of the scene that the room is modelled on.
    """
    target = extract_target(game)
    if target is None:
        raise DataError("a game whose goal is not of one of the six plain forms has no folder name")
    scene = game.scene.removeprefix("FloorPlan").partition("-")[0]
    return f"{TASK_TYPES[game.category]}-{target.thing}-None-{target.place}-{scene or 0}"


def make_trajectory_content(game: Game, trial: str) -> dict[str, Any]:
    """The parts of `traj_data.json` that the real package reads."""
    target = extract_target(game)
    if target is None:
        raise DataError("a game whose goal is not of one of the six plain forms has no parameters to write")
    lamp = game.category == "Look"
    return {
        "task_id": trial,
        "task_type": TASK_TYPES[game.category],
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": target.thing,
            "parent_target": "" if lamp else target.place,
            "toggle_target": target.place if lamp else "",
        },
        "scene": {"floor_plan": game.scene},
        "plan": {"high_pddl": [], "low_actions": []},
        "images": [],
        "turk_annotations": {"anns": [{"task_desc": game.task, "high_descs": []}]},
    }


# ---- the PDDL problem -----------------------------------------------------------------------------------------------


def render_problem(game: Game) -> str:
    """The PDDL problem of a game."""
    declared = "".join(f"\n        {name} - {kind}" for name, kind in _iter_declarations(game))
    facts = "".join(f"\n        ({fact})" for fact in _iter_facts(game))
    goal = render_goal(game.goal)
    return (
        f"\n(define (problem house)\n(:domain alfred)\n(:objects{declared}\n        )\n\n(:init{facts}\n        )\n\n"
        f"        (:goal\n            {goal}\n        )\n    )\n"
    )


def _iter_declarations(game: Game) -> Iterator[tuple[str, str]]:
    yield "agent1", "agent"
    known_objects, known_receptacles = _get_known_kinds()
    for kind in sorted({*known_objects, *game.object_kinds, *_NAMED_BY_THE_DOMAIN[0]}):
        yield f"{kind}Type", "otype"
    for kind in sorted({*known_receptacles, *game.receptacle_kinds, *game.can_contain, *_NAMED_BY_THE_DOMAIN[1]}):
        yield f"{kind}Type", "rtype"
    for names, kind in ((game.objects, "object"), (game.receptacles, "receptacle"), (game.locations, "location")):
        for name in names:
            yield name, kind


@lru_cache(maxsize=1)
def _get_known_kinds() -> tuple[frozenset[str], frozenset[str]]:
    """All kinds of objects and of receptacles that real problems declare, whether they are in the room or not."""
    known = load_statistics()
    held = frozenset(kind for kinds in known.may_hold.values() for kind in kinds)
    objects = frozenset(kind for room in known.objects.values() for kind in room) | held | set(known.lamps)
    return objects, frozenset(known.may_hold)


def _iter_facts(game: Game) -> Iterator[str]:
    receptacles, objects, locations = game.receptacles, game.objects, game.locations
    yield from (
        f"receptacleType {one} {kind}Type" for one, kind in zip(receptacles, game.receptacle_kinds, strict=True)
    )
    yield from (f"objectType {one} {kind}Type" for one, kind in zip(objects, game.object_kinds, strict=True))
    for kind, kinds in game.can_contain.items():
        yield from (f"canContain {kind}Type {held}Type" for held in sorted(kinds))
    for trait, having in zip(TRAITS, game.traits, strict=True):
        yield from (f"{_TRAIT_WORDS[trait]} {objects[number]}" for number in list_members(having))
    for condition, having in zip(CONDITIONS, game.conditions, strict=True):
        yield from (f"{_CONDITION_WORDS[condition]} {objects[number]}" for number in list_members(having))
    yield from (f"openable {receptacles[number]}" for number in list_members(game.openable))
    yield from (f"opened {receptacles[number]}" for number in list_members(game.opened))
    yield f"atLocation agent1 {locations[game.start]}"
    if game.holding != NOWHERE:
        yield f"holds agent1 {objects[game.holding]}"
        yield "holdsAny agent1"
    for outer, held in game.inner:
        yield from (f"inReceptacleObject {objects[number]} {objects[outer]}" for number in list_members(held))
    for place, held in zip(receptacles, game.contents, strict=True):
        yield from (f"inReceptacle {objects[number]} {place}" for number in list_members(held))
    for place, where in zip(receptacles, game.receptacle_places, strict=True):
        if where != NOWHERE:
            yield f"receptacleAtLocation {place} {locations[where]}"
    for location, laid in zip(locations, game.laid, strict=True):
        yield from (f"objectAtLocation {objects[number]} {location}" for number in list_members(laid))
