"""The smallest complete environment: find a hidden number. Read it before you write your own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.options import EnvOptions, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task, TaskIds
from fedagentgym.envs.view import Episode, View

RANGES = {"small": 10, "medium": 30, "large": 100}
SIZES = {"train": 600, "val": 60, "test": 60, "warmup": 120}
GENERATOR_VERSION = 1
ACTIONS = {high: tuple(f"guess {number}" for number in range(1, high + 1)) for high in RANGES.values()}
NUMBERS = {action: number for number, action in enumerate(ACTIONS[max(ACTIONS)], start=1)}


class HiddenNumber(NamedTuple):
    """A task's payload: the upper end of the range and the number to be found."""

    high: int
    number: int


class GuessState(NamedTuple):
    """The task, and the range of numbers that remain possible, given the answers so far."""

    hidden: HiddenNumber
    low: int
    high: int


class GuessOptions(EnvOptions):
    """Options of the game: the seed of the hidden numbers."""

    seed: int = task(0, description="seed of the hidden numbers")


class GuessEnv(TextEnv[GuessOptions]):
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

    def load_pool(self, split: str) -> TaskPool:
        """Draw the number of each (seed, split, index); `all` is one split after the other."""
        if split == "all":
            parts = [self.load_pool(part) for part in self.splits]
            tasks = [task for part in parts for task in part]
            drawn = [(task.category, task.payload) for task in tasks]
            return self._make_pool("all", [task.id for task in tasks], drawn, [task.split for task in tasks])
        drawn = []
        for index in range(SIZES[split]):
            draw = stream(self.options.seed, "guess", split, index)
            category = draw.pick(tuple(RANGES))
            drawn.append((category, HiddenNumber(RANGES[category], 1 + draw.integers(RANGES[category]))))
        return self._make_pool(split, TaskIds(self.id, split, len(drawn)), drawn)

    def _make_pool(
        self, split: str, ids: Any, drawn: list[tuple[str, HiddenNumber]], splits: Sequence[str] | None = None
    ) -> TaskPool:
        return TaskPool(
            env=self.id,
            split=split,
            ids=ids,
            categories=[category for category, _ in drawn],
            payload=lambda index: drawn[index][1],
            source={"generator": "guess", "version": GENERATOR_VERSION, "seed": self.options.seed},
            hardness=lambda index: float(np.log2(drawn[index][1].high)),
            split_of=None if splits is None else splits.__getitem__,
        )

    def begin(self, task: Task, seed: int) -> tuple[GuessState, View]:
        hidden = HiddenNumber(*task.payload)
        opening = f"I think of a number between 1 and {hidden.high}. Which one is it?"
        return GuessState(hidden, low=1, high=hidden.high), View(observation=opening, admissible=ACTIONS[hidden.high])

    def advance(self, state: GuessState, action: str) -> tuple[GuessState, View]:
        hidden, low, high = state
        guesses, guess = ACTIONS[hidden.high], NUMBERS.get(action.strip(), 0)
        if not 0 < guess <= hidden.high:
            return state, View(observation="That is not a guess.", admissible=guesses, valid=False)
        if guess == hidden.number:
            won = View(
                observation=f"Yes, it is {guess}!",
                admissible=guesses,
                reward=1.0,
                score=1.0,
                success=True,
                done=True,
                rewards={"accuracy/guess": 1.0},
            )
            return GuessState(hidden, low=guess, high=guess), won
        if guess < hidden.number:
            answer, state = "higher", GuessState(hidden, low=max(low, guess + 1), high=high)
        else:
            answer, state = "lower", GuessState(hidden, low=low, high=min(high, guess - 1))
        return state, View(observation=f"It is {answer} than {guess}.", admissible=guesses)

    def vocabulary(self) -> Iterable[str]:
        said = "I think of a number between and . Which one is it ? That not guess Yes , ! It higher than lower"
        return [*said.split(), *(str(number) for number in range(10))]

    def expert(self) -> BisectionExpert:
        return BisectionExpert()


class BisectionExpert:
    """Guesses the middle of the remaining range: at most seven guesses for a hundred numbers."""

    def act(self, episode: Episode) -> str:
        state: GuessState = episode.state
        return f"guess {(state.low + state.high) // 2}"
