"""The native engine: pure functions over a small state that answer as the real engine does, byte for byte.

The rules are those of ALFWorld's domain, the words those of its grammar. Some rules surprise, and all of them are the real
engine's. The microwave may be closed or occupied when an object is heated. Of the objects, only the one in hand can be
examined. An object that is a container shows what lies in it, and never how hot it is. An object in two receptacles leaves
only the one that it is taken from. `use` always turns an object on. A win ends as soon as the goal no longer holds.

>>> outcome = start(game)                                   # doctest: +SKIP
>>> outcome = step(game, outcome.state, "go to fridge 1")   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from fedagentgym.envs.alfworld import wording
from fedagentgym.envs.alfworld.game import NOWHERE, TRAITS, Game, HouseState, list_members
from fedagentgym.envs.alfworld.grounding import evaluate
from fedagentgym.envs.alfworld.tables import Tables, list_names, tables_of

NOTHING_HAPPENS = "Nothing happens."


class Outcome(NamedTuple):
    """The state after a command, the observation, and whether the command was admissible."""

    state: HouseState
    feedback: str
    valid: bool = True


def start(game: Game) -> Outcome:
    """The first state, and the text that introduces room and task."""
    state = HouseState(
        place=game.start,
        held=game.holding,
        opened=game.opened,
        contents=game.contents,
        laid=game.laid,
        taken=(0,) * len(game.receptacles),
        clean=game.conditions[0],
        hot=game.conditions[1],
        cool=game.conditions[2],
        sliced=game.conditions[3],
        toggled=game.conditions[4],
        won=False,
    )
    tables = tables_of(game)
    state = state._replace(won=evaluate(tables.goal, state))
    # The receptacles in front of the agent, or all receptacles of the room.
    placed = [name for name, place in zip(tables.receptacle_names, game.receptacle_places, strict=True) if place >= 0]
    room = _describe_surroundings(game, state) or wording.describe_room(placed)
    return Outcome(state, wording.format_intro(room, game.task))


def step(game: Game, state: HouseState, command: str) -> Outcome:
    """The outcome of a command, which may be any text; a text that is no command changes nothing."""
    command = command.strip()
    verb, _, rest = command.partition(" ")
    if verb == game.wording:
        act: _Act | None = _put
    else:
        act = _ACTS.get(verb)
    outcome = act(game, state, rest) if act is not None else None
    if outcome is None and game.wording == "move" and command == "help":
        outcome = Outcome(state, wording.HELP)
    return outcome if outcome is not None else Outcome(state, NOTHING_HAPPENS, False)


def list_admissible_commands(game: Game, state: HouseState) -> tuple[str, ...]:
    """Every command that does something now, sorted."""
    tables = tables_of(game)
    here, held = tables.at[state.place], state.held
    names, things = tables.receptacle_names, tables.object_names
    commands = [command for command, place in tables.go_to if place != state.place]
    commands += ("inventory", "look")
    if game.wording == "move":
        commands.append("help")
    usable = 0
    for number in list_members(here):
        bit, name = 1 << number, names[number]
        commands.append(f"examine {name}")
        closed = game.openable & bit and not state.opened & bit
        if game.openable & bit:
            commands.append(f"open {name}" if closed else f"close {name}")
        usable |= state.contents[number]
        if closed:
            continue
        if held < 0:
            takeable = state.contents[number] & game.traits[_PICKUPABLE]
            commands += [f"take {things[thing]} from {name}" for thing in list_members(takeable)]
        elif tables.accepts[number] >> held & 1:
            commands.append(wording.format_put_command(game.wording, things[held], name))
    usable &= game.traits[_TOGGLEABLE]
    if usable:
        commands += [f"use {name}" for name in list_names(things, usable)]
    if held >= 0:
        commands.append(f"examine {things[held]}")
        for verb, trait in _TREATED_TRAITS.items():
            tools = here & tables.tools[verb]
            if tools and game.traits[trait] >> held & 1:
                commands += [f"{verb} {things[held]} with {tool}" for tool in list_names(names, tools)]
        if tables.knives >> held & 1:
            whole = state.laid[state.place] & game.traits[_SLICEABLE]
            commands += [f"slice {one} with {things[held]}" for one in list_names(things, whole)]
    commands.sort()
    return tuple(commands)


_PICKUPABLE, _CONTAINER, _CLEANABLE, _HEATABLE, _COOLABLE, _TOGGLEABLE, _SLICEABLE = range(len(TRAITS))
_TREATED_TRAITS = {"clean": _CLEANABLE, "heat": _HEATABLE, "cool": _COOLABLE}
_Act = Callable[[Game, HouseState, str], Outcome | None]


def _look(game: Game, state: HouseState, rest: str) -> Outcome | None:
    if rest:
        return None
    return Outcome(state, _describe_surroundings(game, state) or wording.describe_room([]))


def _describe_surroundings(game: Game, state: HouseState) -> str | None:
    tables = tables_of(game)
    here = list_members(tables.at[state.place])
    if not here:
        return None
    beside = [
        tables.object_names[thing]
        for thing in list_members(state.laid[state.place])
        for number in here
        if state.taken[number] >> thing & 1
    ]
    return wording.describe_surroundings([tables.receptacle_names[number] for number in here], beside)


def _inventory(game: Game, state: HouseState, rest: str) -> Outcome | None:
    if rest:
        return None
    held = state.held
    return Outcome(state, wording.describe_inventory(None if held < 0 else tables_of(game).object_names[held]))


def _go(game: Game, state: HouseState, rest: str) -> Outcome | None:
    tables = tables_of(game)
    number = tables.receptacle_index.get(rest[3:], NOWHERE) if rest.startswith("to ") else NOWHERE
    place = game.receptacle_places[number] if number >= 0 else NOWHERE
    if place < 0 or place == state.place:
        return None
    state = _update_won(tables, state._replace(place=place), "place")
    arrival = tables.receptacle_names[number] if game.wording == "move" else tables.location_names[place]
    return Outcome(state, f"You arrive at {arrival}. {_describe_receptacle(game, state, number)}")


def _describe_receptacle(game: Game, state: HouseState, number: int) -> str:
    """The observation of a receptacle."""
    tables, bit = tables_of(game), 1 << number
    openable, opened = bool(game.openable & bit), bool(state.opened & bit)
    shown = list_names(tables.object_names, state.contents[number]) if opened or not openable else []
    return wording.describe_receptacle(tables.receptacle_names[number], shown, openable, opened)


def _open(game: Game, state: HouseState, rest: str) -> Outcome | None:
    number = _find_receptacle_here(game, state, rest)
    if number < 0 or not game.openable >> number & 1 or state.opened >> number & 1:
        return None
    state = _update_won(tables_of(game), state._replace(opened=state.opened | 1 << number), "opened")
    return Outcome(state, f"You open the {rest}. {_describe_receptacle(game, state, number)}")


def _close(game: Game, state: HouseState, rest: str) -> Outcome | None:
    number = _find_receptacle_here(game, state, rest)
    if number < 0 or not game.openable >> number & 1 or not state.opened >> number & 1:
        return None
    state = _update_won(tables_of(game), state._replace(opened=state.opened & ~(1 << number)), "opened")
    return Outcome(state, f"You close the {rest}.")


def _take(game: Game, state: HouseState, rest: str) -> Outcome | None:
    name, _, holder = rest.partition(" from ")
    thing, number = tables_of(game).object_index.get(name, NOWHERE), _find_receptacle_here(game, state, holder)
    if thing < 0 or number < 0 or state.held >= 0 or not _is_accessible(game, state, number):
        return None
    bit = 1 << thing
    if not state.contents[number] & game.traits[_PICKUPABLE] & bit:
        return None
    state = state._replace(
        held=thing,
        contents=_replace_at(state.contents, number, state.contents[number] & ~bit),
        laid=_replace_at(state.laid, state.place, state.laid[state.place] & ~bit),
        taken=_replace_at(state.taken, number, state.taken[number] | bit),
    )
    return Outcome(
        _update_won(tables_of(game), state, "held", "holding", "in", "laid"),
        f"You pick up the {name} from the {holder}.",
    )


def _put(game: Game, state: HouseState, rest: str) -> Outcome | None:
    name, _, holder = rest.partition(wording.PUT_PREPOSITION[game.wording])
    thing, number = tables_of(game).object_index.get(name, NOWHERE), _find_receptacle_here(game, state, holder)
    if thing < 0 or thing != state.held or number < 0 or not _is_accessible(game, state, number):
        return None
    if not tables_of(game).accepts[number] >> thing & 1:
        return None
    bit = 1 << thing
    state = state._replace(
        held=NOWHERE,
        contents=_replace_at(state.contents, number, state.contents[number] | bit),
        laid=_replace_at(state.laid, state.place, state.laid[state.place] | bit),
        taken=_replace_at(state.taken, number, state.taken[number] & ~bit),
    )
    state = _update_won(tables_of(game), state, "held", "holding", "in", "laid")
    return Outcome(state, wording.format_put_feedback(game.wording, name, holder))


def _examine(game: Game, state: HouseState, rest: str) -> Outcome | None:
    number = _find_receptacle_here(game, state, rest)
    if number >= 0:
        return Outcome(state, _describe_receptacle(game, state, number))
    thing = tables_of(game).object_index.get(rest, NOWHERE)
    if thing < 0 or thing != state.held:
        return None
    bit, names = 1 << thing, tables_of(game).object_names
    if game.traits[_CONTAINER] & bit:
        inside = dict(game.inner).get(thing, 0) & ~bit  # the original never states that a thing lies in itself
        return Outcome(state, wording.describe_container(rest, list_names(names, inside)))
    return Outcome(
        state,
        wording.describe_object(
            rest,
            hot=bool(state.hot & bit),
            cool=bool(state.cool & bit),
            clean=bool(state.clean & bit),
            sliced=bool(state.sliced & bit),
            sliceable=bool(game.traits[_SLICEABLE] & bit),
            lit=bool(game.traits[_TOGGLEABLE] & state.toggled & bit),
        ),
    )


def _treat(verb: str, game: Game, state: HouseState, rest: str) -> Outcome | None:
    """Clean, heat or cool the object in hand with an appliance at this location, if the object can be treated with it."""
    tables = tables_of(game)
    name, _, tool = rest.partition(" with ")
    thing, number = tables.object_index.get(name, NOWHERE), _find_receptacle_here(game, state, tool)
    if thing < 0 or thing != state.held or number < 0:
        return None
    if not (game.traits[_TREATED_TRAITS[verb]] >> thing & 1 and tables.tools[verb] >> number & 1):
        return None
    bit = 1 << thing
    if verb == "clean":
        state = _update_won(tables, state._replace(clean=state.clean | bit), "clean")
    elif verb == "heat":
        state = _update_won(tables, state._replace(hot=state.hot | bit, cool=state.cool & ~bit), "hot", "cool")
    else:
        state = _update_won(tables, state._replace(cool=state.cool | bit, hot=state.hot & ~bit), "hot", "cool")
    return Outcome(state, f"You {verb} the {name} using the {tool}.")


def _use(game: Game, state: HouseState, rest: str) -> Outcome | None:
    tables = tables_of(game)
    thing = tables.object_index.get(rest, NOWHERE)
    if thing < 0 or not game.traits[_TOGGLEABLE] >> thing & 1:
        return None
    if not any(state.contents[number] >> thing & 1 for number in list_members(tables.at[state.place])):
        return None
    state = _update_won(tables, state._replace(toggled=state.toggled | 1 << thing), "toggled")
    return Outcome(state, f"You turn on the {rest}.")


def _slice(game: Game, state: HouseState, rest: str) -> Outcome | None:
    tables = tables_of(game)
    name, _, tool = rest.partition(" with ")
    thing, knife = tables.object_index.get(name, NOWHERE), tables.object_index.get(tool, NOWHERE)
    if thing < 0 or knife < 0 or knife != state.held or not tables.knives >> knife & 1:
        return None
    if not state.laid[state.place] & game.traits[_SLICEABLE] & 1 << thing:
        return None
    state = _update_won(tables, state._replace(sliced=state.sliced | 1 << thing), "sliced")
    return Outcome(state, f"You sliced the {name} with the {tool}.")


def _find_receptacle_here(game: Game, state: HouseState, name: str) -> int:
    """The number of a receptacle in reach, or NOWHERE."""
    number = tables_of(game).receptacle_index.get(name, NOWHERE)
    return number if number >= 0 and game.receptacle_places[number] == state.place else NOWHERE


def _is_accessible(game: Game, state: HouseState, number: int) -> bool:
    return bool((state.opened | ~game.openable) >> number & 1)


def _replace_at(column: tuple[int, ...], position: int, value: int) -> tuple[int, ...]:
    return (*column[:position], value, *column[position + 1 :])


def _update_won(tables: Tables, state: HouseState, *changed: str) -> HouseState:
    """The state with `won` updated, which only a change of a fact that the goal names can alter."""
    if tables.goal_facts.isdisjoint(changed):
        return state
    won = evaluate(tables.goal, state)
    return state if won == state.won else state._replace(won=won)


_ACTS: Mapping[str, _Act] = {
    "look": _look,
    "inventory": _inventory,
    "go": _go,
    "open": _open,
    "close": _close,
    "take": _take,
    "examine": _examine,
    **{verb: partial(_treat, verb) for verb in _TREATED_TRAITS},
    "use": _use,
    "slice": _slice,
}
