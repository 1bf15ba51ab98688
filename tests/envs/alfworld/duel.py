"""Two engines, one game: plays the same commands in the native and in the real engine and compares all that they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.alfworld.engine import Outcome, list_admissible_commands, start, step
from fedagentgym.envs.alfworld.expert import HouseholdExpert
from fedagentgym.envs.alfworld.game import CATEGORIES, TRAITS, WORDINGS, Game
from fedagentgym.envs.alfworld.gamefiles import make_game_content
from fedagentgym.envs.alfworld.houses import make_house_pool
from fedagentgym.envs.alfworld.plans import infer_category
from fedagentgym.envs.alfworld.reader import parse_game
from fedagentgym.envs.alfworld.real import RealAnswer, RealEngine
from fedagentgym.envs.alfworld.tables import is_reachable
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import Episode, View

ENV = "fedagentgym/ALFWorld-v0"
GARBAGE = (
    "", " ", "garbage", "LOOK", "look\n", " inventory ", "look around", "go to", "go to nowhere 1", "go  to drawer 1",
    "take apple 1", "take apple 1 from", "take  from ", "open", "open drawer 99", "close fridge 1", "use", "use desklamp 1",
    "examine", "examine apple 1", "examine fridge 1", "heat egg 1 with microwave 1", "clean mug 1 with sinkbasin 1",
    "cool apple 1 with fridge 1", "slice apple 1 with knife 1", "slice apple 1 with apple 1", "put mug 1 in/on desk 1",
    "move mug 1 to desk 1", "move mug 1 to ", "help", "help me", "take mug 1 from mug 1", "go to mug 1", "\u2603", "go to loc 1",
)  # fmt: skip


class Case(NamedTuple):
    """A game to play in both engines, and how."""

    name: str
    game: Game
    steps: int
    manner: str
    """`expert` follows the expert often, so that goals are reached and undone; `random` does not."""
    declared: str = ""
    facts: str = ""
    """Texts that are put into the problem beside those of the game."""


class Report(NamedTuple):
    """Observations of a duel."""

    name: str
    game: Game
    steps: int
    differences: list[str]
    wins: int
    steps_after_win: int


ALL_SIZES = ("tiny", "small", "tiny", "small", "tiny", "full")
MOSTLY_TINY = ("tiny",) * 5 + ("small",) + ("tiny",) * 9 + ("full",)
"""The real engine takes half a second to start a small game and a twentieth for each step in it, in a tiny one half of that."""


def plain_cases(count: int, steps: int, seed: int = 0, sizes: Sequence[str] = ALL_SIZES) -> list[Case]:
    """Generated games: all task types, rooms and sizes, both wordings, in turn."""
    cases = []
    pools = {
        (size, wording): make_house_pool("train", env=ENV, size=size, seed=seed, wording=wording)
        for size in ("tiny", "small", "full")
        for wording in WORDINGS
    }
    for number in range(count):
        category, wording = CATEGORIES[number % 6], WORDINGS[number // 6 % 2]
        size = sizes[(number + number // 6) % len(sizes)]
        pool = pools[size, wording]
        of_category = [index for index, code in enumerate(pool.category_codes) if pool.category_names[code] == category]
        task = pool[of_category[number // 12 * 7 % len(of_category)]]
        manner = "random" if number % 5 == 4 else "expert"
        cases.append(Case(f"{size} {wording} {task.id}", task.payload, steps, manner))
    return cases


def unusual_cases(count: int, steps: int, seed: int = 0) -> list[Case]:
    """Games as no generator writes them: shared locations, doubled and foreign contents, other traits and goals."""
    return [unusual_case(number, steps, seed) for number in range(count)]


def unusual_case(number: int, steps: int, seed: int = 0) -> Case:
    draws = stream(seed, "odd games", number)
    wording = WORDINGS[number % 2]
    pool = make_house_pool("train", env=ENV, size=("tiny", "small")[number % 3 == 2], seed=seed, wording=wording)
    game = unusual_game(pool[draws.integers(len(pool))].payload, draws)
    return Case(f"odd {number} {wording}", game, steps, "random")


def cluttered_cases(count: int, steps: int) -> list[Case]:
    """Games whose problems name things without a place, facts that nobody asks for, and a thing in hand."""
    cases = []
    for number, case in enumerate(unusual_cases(count, steps, seed=3)):
        game, declared, facts = case.game, "", f"(checked {case.game.receptacles[0]}) (isOn {case.game.objects[0]})"
        declared += (
            " Faucet_bar_1 Faucet_bar_2 - object loc_bar_0_bar_0 loc_bar_0_bar_1 - location Drawer_bar_0 - receptacle"
        )
        facts += " (pickupable Faucet_bar_2) (examined loc_bar_0_bar_1) (= (total-cost) 0) (= (distance loc_bar_0_bar_0 x) 2)"
        if number % 2:
            facts += f" (holds agent1 {game.objects[-1]}) (holdsAny agent1)"
        else:
            declared, facts = f"{declared} plain - object", f"{facts} (objectType plain MugType) (pickupable plain)"
            facts += f" (inReceptacle plain {game.receptacles[-1]})"
        cases.append(case._replace(name=f"cluttered {case.name}", declared=f"{declared} x - location", facts=facts))
    return cases


def unusual_game(game: Game, draws: Stream) -> Game:
    """A game bent in every way that its format admits."""
    objects, receptacles, locations = len(game.objects), len(game.receptacles), len(game.locations)

    def some(bits: int, chance: int) -> int:
        return sum(1 << number for number in range(bits) if draws.integers(100) < chance)

    traits = [old | some(objects, 25) if draws.integers(2) else old for old in game.traits]
    traits[TRAITS.index("container")] = some(objects, 20)
    hot = some(objects, 10)
    conditions = (some(objects, 10), hot, some(objects, 10) & ~hot, some(objects, 10), some(objects, 10))
    contents, places, laid = list(game.contents), list(game.receptacle_places), list(game.laid)
    for _ in range(3):
        contents[draws.integers(receptacles)] |= 1 << draws.integers(objects)
    for _ in range(receptacles // 2):
        places[draws.integers(receptacles)] = draws.integers(locations)
    for _ in range(3):
        thing = 1 << draws.integers(objects)
        laid = [there & ~thing for there in laid]
        laid[draws.integers(locations)] |= thing
    inner = {draws.integers(objects): some(objects, 20) for _ in range(2)}
    bent = replace(
        game,
        conditions=conditions,
        traits=tuple(traits),
        contents=tuple(contents),
        laid=tuple(laid),
        receptacle_places=tuple(places),
        inner=tuple((outer, held) for outer, held in sorted(inner.items()) if held),
        opened=some(receptacles, 40),
        openable=some(receptacles, 40),
        start=draws.integers(locations),
    )
    for _ in range(40):
        candidate = with_goal(bent, draws.pick(tuple(unusual_goals(bent, draws))))
        if is_reachable(candidate):
            return candidate
    raise AssertionError("none of forty goals is within reach")


def with_goal(game: Game, goal: tuple[Any, ...]) -> Game:
    return replace(game, goal=goal, category=infer_category(goal))


def unusual_goals(game: Game, draws: Stream) -> Iterator[tuple[Any, ...]]:
    """Goals in the forms of the original's library that the six task types do not use, and some of our own."""
    thing = f"{game.object_kinds[draws.integers(len(game.objects))]}Type"
    other = f"{game.object_kinds[draws.integers(len(game.objects))]}Type"
    place = f"{game.receptacle_kinds[draws.integers(len(game.receptacles))]}Type"
    some_o, some_r = ("?o", "-", "object"), ("?r", "-", "receptacle")
    typed, there, inside = ("objectType", "?o", thing), ("receptacleType", "?r", place), ("inReceptacle", "?o", "?r")
    sliced = (("sliceable", "?o"), ("isSliced", "?o"))
    yield (
        "and",
        ("exists", some_r, ("exists", (*some_o, "?ko", "-", "object"), ("and", *sliced, typed, inside, there))),
    )
    for able, done in (("cleanable", "isClean"), ("heatable", "isHot"), ("coolable", "isCool")):
        treated = ((able, "?o"), (done, "?o"))
        yield ("and", ("exists", some_r, ("exists", some_o, ("and", *sliced, *treated, typed, there, inside))))
        yield ("and", ("exists", some_r, ("exists", some_o, ("and", *treated, typed, there, inside))))
    movable = (
        ("objectType", "?mo", other),
        ("isReceptacleObject", "?mo"),
        ("inReceptacleObject", "?o", "?mo"),
        ("inReceptacle", "?mo", "?r"),
    )
    held = ("exists", some_o, ("and", typed, ("exists", ("?mo", "-", "object"), ("and", *movable))))
    yield ("and", ("exists", some_r, ("and", there, held)))
    every = ("or", ("and", typed, there, inside), ("or", ("not", typed)))
    yield ("and", ("exists", some_r, ("forall", some_o, every)))
    lamp = (
        "and",
        ("toggleable", "?ot"),
        ("isToggled", "?ot"),
        ("objectAtLocation", "?ot", "?l"),
        ("atLocation", "?a", "?l"),
    )
    looking = ("exists", ("?o", "-", "object", "?a", "-", "agent"), ("and", typed, ("holds", "?a", "?o")))
    yield ("and", ("exists", ("?ot", "-", "object", "?a", "-", "agent", "?l", "-", "location"), lamp), looking)
    yield (
        "and",
        ("exists", some_r, ("and", there, ("or", ("opened", "?r"), ("exists", some_o, ("and", typed, inside))))),
    )
    yield ("and", ("exists", some_o, ("and", typed, ("not", ("isHot", "?o")), ("isClean", "?o"))))
    yield ("and", ("forall", some_o, ("or", ("not", typed), ("isCool", "?o"), ("isSliced", "?o"))))
    yield (
        "and",
        ("forall", some_r, ("or", ("opened", "?r"), ("not", there))),
        ("exists", some_o, ("holds", "agent1", "?o")),
    )
    yield ("and", ("exists", some_o, ("and", typed, ("or", ("holds", "agent1", "?o"), ("forall", some_r, inside)))))


def duel(real: RealEngine, case: Case, seed: int = 0) -> Report:
    """Play one case in both engines, until its steps are done or they differ."""
    draws = stream(seed, "duel", case.name)
    content = json.loads(json.dumps(make_game_content(case.game)))
    problem = content["pddl_problem"].replace("(:objects", f"(:objects {case.declared}")
    content["pddl_problem"] = problem.replace("(:init", f"(:init {case.facts}")
    game = parse_game(content, case.name)
    expert, task = HouseholdExpert(), Task("alfworld/train/00000", ENV, "train", case.game.category, game)
    outcome = start(game)
    commands: list[str] = []
    told = real.play(content, commands)
    differences = list(compared("(start)", game, outcome, told))
    wins = after = 0
    while len(commands) < case.steps and not differences:
        offered = list_admissible_commands(game, outcome.state)
        command = chosen(case, expert, task, outcome, offered, draws)
        was_won, outcome = outcome.state.won, step(game, outcome.state, command)
        commands.append(command)
        told = real.play(content, commands)
        differences += compared(command, game, outcome, told)
        if outcome.valid != (command.strip() in offered):
            differences.append(f"{command!r}: valid is {outcome.valid}")
        wins += outcome.state.won and not was_won
        after += was_won
    return Report(case.name, case.game, len(commands), differences, wins, after)


def chosen(
    case: Case, expert: HouseholdExpert, task: Task, outcome: Outcome, offered: Sequence[str], draws: Stream
) -> str:
    dice = draws.integers(100)
    if dice < 8:
        return draws.pick(GARBAGE)
    if case.manner == "expert" and dice < 70 and not outcome.state.won:
        return expert.act(Episode(task, 0, 0, None, View(outcome.feedback, tuple(offered))))
    acting = [one for one in offered if not one.startswith(("go to", "help", "look", "inventory", "examine"))]
    return draws.pick(acting if acting and dice < 85 else offered)


def compared(command: str, game: Game, outcome: Outcome, told: RealAnswer) -> Iterator[str]:
    if outcome.feedback != told.feedback:
        yield f"{command!r}: says {outcome.feedback!r}, the real engine {told.feedback!r}"
    offered = list_admissible_commands(game, outcome.state)
    if offered != told.admissible:
        yield f"{command!r}: offers {set(offered) ^ set(told.admissible)} differently, or in another order"
    if outcome.state.won != told.won:
        yield f"{command!r}: won is {outcome.state.won}, in the real engine {told.won}; goal {game.goal}"


def duels(cases: Sequence[Case], seed: int = 0) -> list[Report]:
    """All cases, on two processes of the real engine."""
    engines = [RealEngine(), RealEngine()]

    def half(number: int) -> list[Report]:
        try:
            return [duel(engines[number], case, seed) for case in cases[number::2]]
        finally:
            engines[number].close()

    with ThreadPoolExecutor(2) as threads:
        return [report for reports in threads.map(half, (0, 1)) for report in reports]


def room_of(game: Game) -> str:
    """The kind of room that a game's floor plan belongs to."""
    number = int(game.scene.removeprefix("FloorPlan").partition("-")[0])
    return {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}[number // 100]
