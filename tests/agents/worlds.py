"""A shop of three pages for the tests: a free-text slot, and a variant that takes whole replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.options import EnvOptions, play
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.view import Episode, View

GOALS = ("red shoes", "blue hat", "green scarf with stripes")


class ShopExpert:
    def act(self, episode: Episode) -> str:
        if episode.state[0] == "search":
            return f"search[{episode.task.payload}]"
        return "click[buy now]"


class ShopOptions(EnvOptions):
    padding: int = play(0, description="words behind every observation")


class ShopEnv(TextEnv[ShopOptions]):
    """Search for what the instruction says, then buy. `padding` makes every observation longer."""

    id = "tests/WebShop-v0"
    role = "You are shopping."
    action_help = "search[words] looks for products; click[button] presses a button."
    default_max_turns = 6
    reward_names = ("accuracy/shop",)

    def load_pool(self, split: str) -> TaskPool:
        records = [{"category": "any", "payload": goal} for goal in GOALS]
        return TaskPool.from_records(records, env=self.id, split="train")

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        text = f"Find me {task.payload}, please." + " x" * self.options.padding
        return ("search", task.payload), View(text, ("search[<query>]",))

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        page, goal = state
        extra = " x" * self.options.padding
        if action.startswith("search[") and action.endswith("]"):
            found = action[7:-1] == goal
            return (f"results {found}", goal), View(f"Results: {action}." + extra, ("click[buy now]", "click[< prev]"))
        if action == "click[buy now]" and page.startswith("results"):
            right = page == "results True"
            score = float(right)
            return ("done", goal), View("Bought.", ("click[buy now]",), score, score, right, True)
        return state, View("Nothing happens." + extra, ("search[<query>]",), valid=False)

    def vocabulary(self) -> Iterable[str]:
        yield "Find me, please. Results Bought Nothing happens search click buy now prev x"
        yield from GOALS

    def expert(self) -> ShopExpert:
        return ShopExpert()


class AskExpert:
    def act(self, episode: Episode) -> str:
        return f"<answer>{episode.task.payload}</answer>"


class AskEnv(ShopEnv):
    """One question, one reply: the environment reads the whole of it."""

    id = "tests/Ask-v0"
    takes = "reply"
    action_help = "Give the answer between <answer> and </answer>."
    default_max_turns = 1

    def begin(self, task: Task, seed: int) -> tuple[Any, View]:
        return task.payload, View(f"Say {task.payload}.")

    def advance(self, state: Any, action: str) -> tuple[Any, View]:
        right = action == f"<answer>{state}</answer>"
        return state, View("", None, float(right), float(right), right, True)

    def expert(self) -> AskExpert:  # type: ignore[override]
        return AskExpert()
