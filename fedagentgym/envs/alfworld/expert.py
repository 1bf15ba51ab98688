"""A scripted player that uses only the game's observations: it explores, finds, fetches, treats and places.

Each turn it reads the observation and the admissible commands, updates its notes, and decides what to do. Because nothing is
planned further ahead than one command, it can continue after other actions than its own (an object taken, a door closed, a
target moved).

It searches where the objects of a kind usually are: each place it has not looked into is rated by the share of such objects
that ALFRED's scenes have there, divided by the commands that a look costs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

from fedagentgym.envs.alfworld.figures import load_statistics
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.layouts import LAMP_HOSTS
from fedagentgym.envs.alfworld.plans import APPLIANCE, Target, extract_target
from fedagentgym.envs.view import Episode

_LOOKED = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see ([^.]*)\.")
_TAKEN = re.compile(r"You pick up the [a-z]+ \d+ from the ([a-z]+ \d+)\.")
_PLACED = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the ([a-z]+ \d+) using the ")
_NAME = re.compile(r"(?<![a-z])[a-z]++ \d+")
_UNDOES = {"heat": "cool", "cool": "heat", "clean": ""}
_DOORS = frozenset(("cabinet", "drawer", "fridge", "microwave", "safe"))
_IDLE = "look"


def strip_number(name: str) -> str:
    """The kind of a shown name: `mug` of `mug 2`."""
    return name.rpartition(" ")[0]


@lru_cache(maxsize=1)
def get_receptacle_kinds() -> frozenset[str]:
    """The kinds of receptacles of ALFRED's scenes, in lower case; no object is of such a kind."""
    return frozenset(kind.lower() for scene in load_statistics().scenes.values() for kind in scene.receptacles)


class AvailableCommands:
    """The admissible commands of one turn, grouped by their kind. `places` are receptacles known from before."""

    def __init__(self, admissible: Sequence[str], places: Container[str] = ()) -> None:
        self.commands = frozenset(admissible)
        self.elsewhere = [command[6:] for command in admissible if command.startswith("go to ")]
        examined = [command[8:] for command in admissible if command.startswith("examine ")]
        self.here = [name for name in examined if name in places or strip_number(name) in get_receptacle_kinds()]
        self.held = next((name for name in examined if name not in self.here), None)
        self.closed_here = [name for name in self.here if f"open {name}" in self.commands]
        self.lamps = [command[4:] for command in admissible if command.startswith("use ")]
        self.offered: dict[str, set[str]] = {}
        """Place -> what can be taken from it now."""
        self.puts: dict[str, str] = {}
        """Place -> the command that puts the object in hand there."""
        for command in admissible:
            if command.startswith("take "):
                thing, _, place = command[5:].partition(" from ")
                self.offered.setdefault(place, set()).add(thing)
            elif command.startswith(("move ", "put ")):
                self.puts[re.split(" to | in/on ", command, maxsplit=1)[1]] = command


class ExplorationMemory:
    """The player's knowledge so far."""

    def __init__(self) -> None:
        self.places: dict[str, None] = {}
        self.contents: dict[str, set[str]] = {}
        """Place -> what lay there when last seen; a place that was never looked into is missing."""
        self.closed: set[str] = set()
        self.lamps: dict[str, str] = {}
        self.treated: dict[str, set[str]] = {}
        self.source: str | None = None
        """The place from which the object in hand was taken."""

    def update(self, observation: str, turn: AvailableCommands) -> None:
        self.places.update(dict.fromkeys([*turn.elsewhere, *turn.here]))
        for surface, box, listed in _LOOKED.findall(observation):
            place, found = surface or box, set(_NAME.findall(listed))
            self.contents[place] = found
            self.lamps.update(dict.fromkeys((name for name in found if strip_number(name).endswith("lamp")), place))
        for place in _TAKEN.findall(observation):
            self.source = place
        for thing, place in _PLACED.findall(observation):
            self.contents.setdefault(place, set()).add(thing)
        for verb, thing in _TREATED.findall(observation):
            done = self.treated.setdefault(thing, set())
            done.discard(_UNDOES[verb])
            done.add(verb)
        for name in turn.here:
            if name in turn.closed_here:
                self.closed.add(name)
                continue
            self.closed.discard(name)
            if turn.held is None:
                self.contents[name] = set(turn.offered.get(name, ()))
        for inside in self.contents.values():
            inside.discard(turn.held or "")
        for lamp in turn.lamps:
            self.lamps[lamp] = turn.here[0]

    def find_places(self, kind: str) -> list[str]:
        return [name for name in self.places if strip_number(name) == kind]

    def find_objects(self, kind: str) -> list[tuple[str, str]]:
        """Known objects of a kind, each with its place."""
        return [
            (thing, place)
            for place, inside in self.contents.items()
            for thing in sorted(inside)
            if strip_number(thing) == kind
        ]

    def list_unvisited(self) -> list[str]:
        return [name for name in self.places if name not in self.contents]


class HouseholdExpert:
    """Plays one episode; make a new one for each. With `treatment`, objects that the goal wants cleaned, heated or cooled get
    this treatment instead, or none if the room has no appliance for it."""

    def __init__(self, treatment: str | None = None) -> None:
        self._treatment = treatment
        self._notes = ExplorationMemory()
        self._target: Target | None = None
        self._turn = AvailableCommands(())

    def act(self, episode: Episode) -> str:
        """The next command. `look` if the goal has an unknown form."""
        if self._target is None and isinstance(episode.task.payload, Game):
            target = extract_target(episode.task.payload)
            self._target = target and Target(target.category, target.thing.lower(), target.place.lower())
        self._turn = AvailableCommands(episode.view.admissible or (), self._notes.places)
        self._notes.update(episode.view.observation, self._turn)
        if self._target is None:
            return _IDLE
        if self._treatment is not None and self._target.category in APPLIANCE:
            here = self._notes.find_places(APPLIANCE[self._treatment].lower())
            self._target = self._target._replace(category=self._treatment if here else "Pick")
        if self._turn.held is None:
            return self._fetch(self._target)
        if strip_number(self._turn.held) == self._target.thing:
            return self._use(self._target, self._turn.held)
        return self._put_away()

    # ---- the four things there are to do ------------------------------------------------------------------------

    def _fetch(self, target: Target) -> str:
        """Take a target whose place is known, the nearest first; otherwise look for one."""
        delivered = self._choose_goal_place(target) if target.category == "Pick2" else None
        known = [(thing, place) for thing, place in self._notes.find_objects(target.thing) if place != delivered]
        if not known:
            wanted = [target.thing]
            if target.category == "Look" and not self._find_lamp(target):
                wanted.append(target.place)
            return self._explore(wanted)
        thing, place = min(known, key=lambda pair: self._distance(pair[1]))
        command = f"take {thing} from {place}"
        return command if command in self._turn.commands else self._approach(place)

    def _use(self, target: Target, held: str) -> str:
        """Apply the goal's treatment to the target in hand."""
        if target.category == "Look":
            lamp = self._find_lamp(target)
            if lamp is None:
                return self._explore([target.place])
            command = f"use {lamp}"
            return command if command in self._turn.commands else self._approach(self._notes.lamps[lamp])
        verb = target.category.lower()
        if target.category in APPLIANCE and verb not in self._notes.treated.get(held, ()):
            return self._treat(verb, held, APPLIANCE[target.category].lower())
        place = self._choose_goal_place(target)
        if place is None:
            return self._explore([target.place])
        return self._turn.puts.get(place) or self._approach(place)

    def _treat(self, verb: str, held: str, appliance: str) -> str:
        tools = self._notes.find_places(appliance)
        for tool in tools:
            if f"{verb} {held} with {tool}" in self._turn.commands:
                return f"{verb} {held} with {tool}"
        elsewhere = [tool for tool in tools if tool not in self._turn.here]
        return f"go to {elsewhere[0]}" if elsewhere else _IDLE

    def _put_away(self) -> str:
        """Put down an object that is not needed: here, otherwise where it came from, otherwise wherever it fits."""
        if self._turn.puts:
            return min(self._turn.puts.values())
        source = self._notes.source
        if source is not None and (source not in self._turn.here or source in self._turn.closed_here):
            return self._approach(source)
        if self._turn.closed_here:
            return f"open {self._turn.closed_here[0]}"
        return self._visit_next_place()

    # ---- places -------------------------------------------------------------------------------------------------

    def _approach(self, place: str) -> str:
        """The next command on the way to a place and its contents."""
        if place not in self._turn.here:
            return f"go to {place}"
        return f"open {place}" if place in self._turn.closed_here else f"examine {place}"

    def _distance(self, place: str) -> int:
        return (place not in self._turn.here) * 2 + (place in self._notes.closed)

    def _find_lamp(self, target: Target) -> str | None:
        lamps = [lamp for lamp in self._notes.lamps if strip_number(lamp) == target.place]
        return min(lamps, key=lambda lamp: self._distance(self._notes.lamps[lamp]), default=None)

    def _choose_goal_place(self, target: Target) -> str | None:
        """The destination: for Pick2, a place that already holds a target; otherwise the nearest place of the kind."""
        notes = self._notes
        inside = dict.fromkeys(notes.find_places(target.place), 0)
        for _, place in notes.find_objects(target.thing):
            if place in inside:
                inside[place] += target.category == "Pick2"
        doubt = {place: place not in notes.contents and target.place in _DOORS for place in inside}
        return min(inside, key=lambda place: (-inside[place], self._distance(place) + doubt[place]), default=None)

    def _explore(self, wanted: Iterable[str]) -> str:
        """Look into the place where one of the wanted kinds is most likely found, per command that the look costs."""
        unseen = self._notes.list_unvisited()
        if not unseen:
            self._notes.contents.clear()
            return self._visit_next_place()
        chances = _estimate_chances(tuple(sorted(self._notes.places)), tuple(wanted), self._target)
        # A look costs a command, and another one where a door is to be opened first.
        closed = {place for place in unseen if place in self._notes.closed or strip_number(place) in _DOORS}
        costs = {place: 1 + (place in closed and place not in self._turn.here) for place in unseen}
        return self._approach(max(unseen, key=lambda place: chances[place] / costs[place]))

    def _visit_next_place(self) -> str:
        """Continue with the next place in line, when nothing better is known."""
        order = sorted(self._notes.places)
        if not self._turn.elsewhere:
            return _IDLE
        after = [name for name in order if name in self._turn.elsewhere and name > max(self._turn.here, default="")]
        return f"go to {(after or sorted(self._turn.elsewhere))[0]}"


@lru_cache(maxsize=4096)
def _estimate_chances(places: tuple[str, ...], wanted: tuple[str, ...], target: Target | None) -> dict[str, float]:
    """Return how likely one of the wanted kinds lies in each of a room's places."""
    kinds = [strip_number(place) for place in places]
    signs = {"fridge": "kitchen", "toilet": "bathroom", "bed": "bedroom"}
    room = next((signs[kind] for kind in kinds if kind in signs), "living_room")
    # No target is at its destination at the start, or in the device that is to treat it.
    excluded = ""
    if target is not None:
        bring = target.category in ("Pick", "Pick2")
        excluded = target.place if bring else APPLIANCE.get(target.category, "").lower()
    chances = dict.fromkeys(places, 0.0)
    for want in wanted:
        shares = _compute_place_shares(room, want)
        for place, kind in zip(places, kinds, strict=True):
            barred = target is not None and want == target.thing and kind == excluded
            chances[place] += (0.0 if barred else shares.get(kind, 0.0)) / kinds.count(kind) + 1e-4
    return chances


@lru_cache(maxsize=1024)
def _compute_place_shares(room: str, wanted: str) -> dict[str, float]:
    """The share of each kind of receptacle among the places of a kind of object."""
    for lamp, hosts in LAMP_HOSTS.items():
        if lamp.lower() == wanted:
            return {host.lower(): 1 / len(hosts) for host in hosts}
    for table in (load_statistics().objects[room], *load_statistics().objects.values()):
        for kind, facts in table.items():
            if kind.lower() == wanted and facts.places:
                total = sum(facts.places.values())
                return {place.lower(): weight / total for place, weight in facts.places.items()}
    return {
        kind.lower(): 0.1
        for kind, held in load_statistics().may_hold.items()
        if wanted in {one.lower() for one in held}
    }
