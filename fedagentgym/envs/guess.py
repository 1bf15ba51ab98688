"""The smallest complete world: find a hidden number. Read it before you write your own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.streams import stream
from fedagentgym.envs.core import Episode, TextEnv, View
from fedagentgym.envs.pool import TaskIds, TaskPool
from fedagentgym.envs.task import Task

RANGES = {"small": 10, "medium": 30, "large": 100}
SIZES = {"train": 600, "val": 60, "test": 60, "warmup": 120}
GENERATOR_VERSION = 1
_GUESS = re.compile(r"guess ([1-9][0-9]{0,2})")
_COMMANDS = {high: tuple(f"guess {number}" for number in range(1, high + 1)) for high in RANGES.values()}


class Hidden(NamedTuple):
    """A task's payload: the upper end of the range and the number to be found."""

    high: int
    number: int


class State(NamedTuple):
    """What is left to choose from, given the answers so far."""

    hidden: Hidden
    low: int
    high: int
    tries: int


class GuessEnv(TextEnv):
    """Find a hidden number by asking.

    **Tasks.** A number between 1 and 10, 30 or 100 (categories `small`, `medium`, `large`).
    **Actions.** `guess N`. Anything else is reported as not valid and costs a turn.
    **Observations.** The range, then after each guess whether the number is higher or lower.
    **Reward.** 1 for the right number, else 0. An episode has at most 8 turns.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Guess-v0"
    role = "You are playing a game in which you have to find a hidden number."
    action_help = "guess N: ask whether the hidden number is N."
    default_max_turns = 8
    reward_names = ("accuracy/guess",)

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        self.seed = seed
        super().__init__(**options)

    def load_pool(self, split: str) -> TaskPool:
        """Numbers drawn for (seed, split, index); `all` is every split after the other."""
        if split == "all":
            parts = [self.load_pool(part) for part in self.splits]
            tasks = [task for part in parts for task in part]
            return self._pool("all", [task.id for task in tasks], [(task.category, task.payload) for task in tasks])
        drawn = [self._draw(split, index) for index in range(SIZES[split])]
        return self._pool(split, TaskIds(self.id, split, len(drawn)), drawn)

    def _pool(self, split: str, ids: Any, drawn: list[tuple[str, Hidden]]) -> TaskPool:
        return TaskPool(
            env=self.id,
            split=split,
            ids=ids,
            categories=[category for category, _ in drawn],
            payload=lambda index: drawn[index][1],
            source={"generator": "guess", "version": GENERATOR_VERSION, "seed": self.seed},
            hardness=lambda index: float(np.log2(drawn[index][1].high)),
        )

    def _draw(self, split: str, index: int) -> tuple[str, Hidden]:
        draw = stream(self.seed, "guess", split, index)
        category = draw.pick(tuple(RANGES))
        return category, Hidden(RANGES[category], 1 + draw.integers(RANGES[category]))

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        hidden = Hidden(*task.payload)
        opening = f"I think of a number between 1 and {hidden.high}. Which one is it?"
        return State(hidden, 1, hidden.high, 0), View(opening, _COMMANDS[hidden.high])

    def advance(self, state: State, action: str) -> tuple[State, View]:
        hidden, low, high, tries = state
        commands = _COMMANDS[hidden.high]
        matched = _GUESS.fullmatch(action.strip())
        if not matched or int(matched[1]) > hidden.high:
            return State(hidden, low, high, tries + 1), View("That is not a guess.", commands, valid=False)
        guess = int(matched[1])
        if guess == hidden.number:
            won = View(f"Yes, it is {guess}!", commands, 1.0, 1.0, True, True, True, {"accuracy/guess": 1.0})
            return State(hidden, guess, guess, tries + 1), won
        if guess < hidden.number:
            return State(hidden, max(low, guess + 1), high, tries + 1), View(f"It is higher than {guess}.", commands)
        return State(hidden, low, min(high, guess - 1), tries + 1), View(f"It is lower than {guess}.", commands)

    def vocabulary(self) -> Iterable[str]:
        said = "I think of a number between and . Which one is it ? That not guess Yes , ! It higher than lower"
        return [*said.split(), *(str(number) for number in range(10))]

    def expert(self) -> Halving:
        return Halving()


class Halving:
    """Asks for the middle of what the answers leave: at most seven guesses for a hundred numbers."""

    def act(self, episode: Episode) -> str:
        state: State = episode.state
        return f"guess {(state.low + state.high) // 2}"
