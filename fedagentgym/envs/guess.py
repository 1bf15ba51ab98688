"""The smallest complete environment: find a hidden number. Read it before you write your own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.streams import stream
from fedagentgym.envs.core import Episode, TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.task import Task, TaskIds
from fedagentgym.envs.view import View

RANGES = {"small": 10, "medium": 30, "large": 100}
SIZES = {"train": 600, "val": 60, "test": 60, "warmup": 120}
GENERATOR_VERSION = 1
_COMMANDS = {high: tuple(f"guess {number}" for number in range(1, high + 1)) for high in RANGES.values()}
_NUMBERS = {command: number for number, command in enumerate(_COMMANDS[max(_COMMANDS)], start=1)}


class HiddenNumber(NamedTuple):
    """A task's payload: the upper end of the range and the number to be found."""

    high: int
    number: int


class State(NamedTuple):
    """The numbers that remain possible, given the answers so far."""

    hidden: HiddenNumber
    low: int
    high: int


class GuessEnv(TextEnv):
    """Find a hidden number by asking.

    **Tasks.** A number between 1 and 10, 30 or 100 (categories `small`, `medium`, `large`).
    **Actions.** `guess N`. Anything else is reported as not valid and costs a turn.
    **Observations.** The range, then after each guess whether the number is higher or lower.
    **Reward.** 1 for the right number, else 0. An episode has at most 8 turns.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Guess-v0"
    payload_type = HiddenNumber
    role = "You are playing a game in which you have to find a hidden number."
    action_help = "guess N: ask whether the hidden number is N."
    default_max_turns = 8
    shares_pools = True
    reward_names = ("accuracy/guess",)

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        self.seed = seed
        super().__init__(**options)

    def load_pool(self, split: str) -> TaskPool:
        """Numbers drawn for (seed, split, index); `all` is every split after the other."""
        if split == "all":
            parts = [self.load_pool(part) for part in self.splits]
            tasks = [task for part in parts for task in part]
            return self._make_pool(
                "all", [task.id for task in tasks], [(task.category, task.payload) for task in tasks]
            )
        drawn = [self._draw(split, index) for index in range(SIZES[split])]
        return self._make_pool(split, TaskIds(self.id, split, len(drawn)), drawn)

    def _make_pool(self, split: str, ids: Any, drawn: list[tuple[str, HiddenNumber]]) -> TaskPool:
        return TaskPool(
            env=self.id,
            split=split,
            ids=ids,
            categories=[category for category, _ in drawn],
            payload=lambda index: drawn[index][1],
            source={"generator": "guess", "version": GENERATOR_VERSION, "seed": self.seed},
            hardness=lambda index: float(np.log2(drawn[index][1].high)),
        )

    def _draw(self, split: str, index: int) -> tuple[str, HiddenNumber]:
        draw = stream(self.seed, "guess", split, index)
        category = draw.pick(tuple(RANGES))
        return category, HiddenNumber(RANGES[category], 1 + draw.integers(RANGES[category]))

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        hidden = HiddenNumber(*task.payload)
        opening = f"I think of a number between 1 and {hidden.high}. Which one is it?"
        return State(hidden, 1, hidden.high), View(opening, _COMMANDS[hidden.high])

    def advance(self, state: State, action: str) -> tuple[State, View]:
        hidden, low, high = state
        guess = _NUMBERS.get(action.strip(), 0)
        if not 0 < guess <= hidden.high:
            return state, _make_view("That is not a guess.", hidden.high, valid=False)
        if guess < hidden.number:
            return State(hidden, max(low, guess + 1), high), _make_higher_view(guess, hidden.high)
        if guess > hidden.number:
            return State(hidden, low, min(high, guess - 1)), _make_lower_view(guess, hidden.high)
        won = View(f"Yes, it is {guess}!", _COMMANDS[hidden.high], 1.0, 1.0, True, True, True, {"accuracy/guess": 1.0})
        return State(hidden, guess, guess), won

    def vocabulary(self) -> Iterable[str]:
        said = "I think of a number between and . Which one is it ? That not guess Yes , ! It higher than lower"
        return [*said.split(), *(str(number) for number in range(10))]

    def expert(self) -> BisectionExpert:
        return BisectionExpert()


@cache
def _make_view(text: str, high: int, valid: bool = True) -> View:
    return View(text, _COMMANDS[high], valid=valid)


@cache
def _make_higher_view(guess: int, high: int) -> View:
    return _make_view(f"It is higher than {guess}.", high)


@cache
def _make_lower_view(guess: int, high: int) -> View:
    return _make_view(f"It is lower than {guess}.", high)


class BisectionExpert:
    """Guesses the middle of the remaining range: at most seven guesses for a hundred numbers."""

    def act(self, episode: Episode) -> str:
        state: State = episode.state
        return f"guess {(state.low + state.high) // 2}"
