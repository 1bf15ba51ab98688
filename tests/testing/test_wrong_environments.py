"""Wrong environments, each with the sentence that `check_env` has for it; there is never a traceback of this package."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.streams import stream
from fedagentgym.envs import ENVIRONMENTS, EnvOptions, TaskPool, TextEnv, View, open_env, task
from fedagentgym.registration import register_env
from fedagentgym.testing import check_env

pytestmark = pytest.mark.filterwarnings("ignore:.*has no expert")

ACTIONS = ("left", "right")


class Walker:
    """Goes right."""

    def act(self, episode: Any) -> str:
        return "right"


class GoodEnv(TextEnv):
    """Walk to the lamp."""

    id = "wrong/Lamp-v0"
    role = "You are walking along a corridor."
    action_help = "left, right: go one place."
    default_max_turns = 12
    reward_names = ("accuracy/lamp",)

    def load_pool(self, split: str) -> TaskPool:
        goals = [1 + stream(0, split, number).integers(9) for number in range(20)]
        tasks = [{"category": "near" if goal < 5 else "far", "payload": {"goal": goal}} for goal in goals]
        return TaskPool.from_records(tasks, env=self.id, split=split)

    def begin(self, task: Any, seed: int) -> Any:
        goal = task.payload["goal"] if task.graded else 99
        return (0, goal), View(observation="Place 0.", admissible=ACTIONS)

    def advance(self, state: Any, action: str) -> Any:
        place, goal = state
        place = max(place + {"left": -1, "right": 1}.get(action, 0), 0)
        won = place == goal
        return (place, goal), View(
            observation=f"Place {place}.",
            admissible=ACTIONS,
            reward=float(won),
            score=float(won),
            success=won,
            done=won,
            valid=action in ACTIONS,
            rewards={"accuracy/lamp": float(won)},
        )

    def vocabulary(self) -> list[str]:
        return ["Place", ".", *"0123456789"]

    def expert(self) -> Any:
        return Walker()


def wrong(**members: Any) -> type[TextEnv]:
    """The good environment with some members replaced."""
    return type("WrongEnv", (GoodEnv,), {"__doc__": "Walk to the lamp.", **members})


def pool_of(change: Callable[[TaskPool, str], Any]) -> type[TextEnv]:
    """With another pool."""
    return wrong(load_pool=lambda self, split: change(GoodEnv.load_pool(self, split), split))


def records(split: str = "train", count: int = 5, **more: Any) -> TaskPool:
    rows = [{"category": "x", "payload": {"goal": 1 + number}, **more} for number in range(count)]
    return TaskPool.from_records(rows, env=GoodEnv.id, split=split)


def view_of(first: bool = True, **changes: Any) -> type[TextEnv]:
    """With another view at the beginning, or after every action."""

    def change(found: Any) -> Any:
        state, view = found
        made = {name: value(view) if callable(value) else value for name, value in changes.items()}
        return state, view._replace(**made)

    if first:
        return wrong(begin=lambda self, task, seed: change(GoodEnv.begin(self, task, seed)))
    return wrong(advance=lambda self, state, action: change(GoodEnv.advance(self, state, action)))


def begin_of(change: Callable[[Any], Any]) -> type[TextEnv]:
    return wrong(begin=lambda self, task, seed: change(GoodEnv.begin(self, task, seed)))


def advance_of(change: Callable[[Any], Any]) -> type[TextEnv]:
    return wrong(advance=lambda self, state, action: change(GoodEnv.advance(self, state, action)))


def expert_of(act: Callable[[Any], Any]) -> type[TextEnv]:
    return wrong(expert=lambda self: SimpleNamespace(act=act))


def make_clock() -> Callable[[Any], Any]:
    return lambda found: (found[0], found[1]._replace(observation=f"{time.perf_counter_ns()}"))


def make_counter() -> type[TextEnv]:
    counted = [0]

    def count(found: Any) -> Any:
        counted[0] += 1
        return found[0], found[1]._replace(observation=f"Step {counted[0]}.")

    return advance_of(count)


def change_state(self: Any, state: Any, action: str) -> Any:
    state["place"] += {"left": -1, "right": 1}.get(action, 0)
    won = state["place"] == state["goal"]
    done = {"reward": float(won), "score": float(won), "success": won, "done": won, "valid": action in ACTIONS}
    return state, View(observation=f"Place {state['place']}.", admissible=ACTIONS, **done)


def change_payload(self: Any, task: Any, seed: int) -> Any:
    task.payload["goal"] += 1
    return GoodEnv.begin(self, task, seed)


def look_up(self: Any, state: Any, action: str) -> Any:
    return GoodEnv.advance(self, state, {"left": "left", "right": "right"}[action])


def swallow(self: Any, *, lamps: int = 3, **options: Any) -> None:
    self.lamps = lamps
    TextEnv.__init__(self, **options)


def draw_anew(self: Any, split: str) -> TaskPool:
    rows = [{"category": "x", "payload": {"goal": int(np.random.default_rng().integers(1, 1000))}} for _ in range(9)]
    return TaskPool.from_records(rows, env=GoodEnv.id, split=split)


def stumble(self: Any, task: Any, seed: int) -> Any:
    return (0, task.payload["gaol"]), View(observation="")


def iterate(self: Any, split: str) -> Iterator[dict[str, Any]]:
    yield {"category": "x", "payload": 1}


class Nothing:
    """A value whose text differs in every process."""


class UndescribedOptions(EnvOptions):
    lamps: int = 3


class WrongOptions(EnvOptions):
    lamps: int = task(0, ge=1, description="number of lamps")


def count_down() -> Callable[[Any], str]:
    left = iter(["right"] * 3)
    return lambda episode: next(left)


WRONG: dict[str, tuple[type[Any], str]] = {
    # the class
    "no id": (type("NoIdEnv", (TextEnv,), {"__doc__": "x", "role": "x", "action_help": "x"}), "class attribute 'id'"),
    "no role": (type("NoEnv", (TextEnv,), {"__doc__": "x", "id": "a/B-v0", "action_help": "x"}), "class attribute 'role'"),
    "no action_help": (type("NoEnv", (TextEnv,), {"__doc__": "x", "id": "a/B-v0", "role": "x"}), "'action_help', a text"),
    "role is a list": (wrong(role=["x"]), "class attribute 'role', a text"),
    "an empty role": (wrong(role=" "), "the class attribute role is empty"),
    "no docstring": (wrong(__doc__=None), "has no docstring: it is the environment's page"),
    "a blank docstring": (wrong(__doc__=" \n "), "has no docstring: it is the environment's page"),
    "another name for turns": (wrong(max_turns=4), "max_turns has no effect: the class attribute is default_max_turns"),
    "takes something else": (wrong(takes="text"), "takes is 'command' or 'reply'"),
    "reward_names is a text": (wrong(reward_names="accuracy"), "reward_names must be a tuple of names"),
    "no turns": (wrong(default_max_turns=0), "default_max_turns must be a whole number from 1 on"),
    "endless turns": (wrong(default_max_turns=float("inf")), "default_max_turns must be a whole number from 1 on"),
    "its own __init__": (wrong(__init__=swallow), r"defines __init__: options are a class, .*set_up\(self\)"),
    "no load_pool": (
        type("NoEnv", (TextEnv,), {"__doc__": "x", "id": "a/B-v0", "role": "x", "action_help": "x"}),
        r"does not define load_pool\(split\)",
    ),
    "no begin": (wrong(begin=TextEnv.begin), r"does not define begin\(task, seed\)"),
    "no advance": (wrong(advance=TextEnv.advance), r"does not define advance\(state, action\)"),
    "an option without a sentence": (wrong(Options=UndescribedOptions), "the option 'lamps' has no description"),
    "an impossible default": (wrong(Options=WrongOptions), "option 'lamps': it must be at least 1"),
    "an evaluation split that is none": (wrong(evaluation_splits=("dev",)), "the evaluation split 'dev' is not among"),
    "vocabulary is a text": (wrong(vocabulary=lambda self: "Place 0"), "return a list of texts"),
    "vocabulary of numbers": (wrong(vocabulary=lambda self: [1, 2]), "return a list of texts"),
    "vocabulary is None": (wrong(vocabulary=lambda self: None), "return a list of texts"),
    "vocabulary takes more": (
        wrong(vocabulary=lambda self, size: []),
        r"vocabulary \(test_wrong_environments.py, line \d+\) raised TypeError.*it is called as vocabulary\(\)",
    ),
    "goal fails": (wrong(goal=lambda self, task: {}["x"]), r"goal \(test_wrong_environments.py, line \d+\) raised KeyError"),
    "set_up fails": (
        wrong(set_up=lambda self: 1 / 0),
        r"set_up \(test_wrong_environments.py, line \d+\) raised ZeroDivisionError: division by zero: it is called as set_up",
    ),
    "set_up takes more": (wrong(set_up=lambda self, size: None), r"set_up \(test_wrong_environments.py, line \d+\) raised TypeE"),
    "close fails": (wrong(close=lambda self: 1 / 0), r"close \(test_wrong_environments.py, line \d+\) raised ZeroDivision"),
    "split_aliases is a list": (wrong(split_aliases=["dev"]), "WrongEnv.split_aliases must be a mapping from other names"),
    "splits is a text": (wrong(splits="train"), "WrongEnv.splits must be a tuple of names"),
    "variants of something else": (wrong(variants=(3,)), "WrongEnv.variants must be a tuple of classes derived from Variant"),
    "payload_type of something else": (wrong(payload_type=int), "payload_type is the type of the payloads, by which"),
    "goal is None": (wrong(goal=lambda self, task: None), r"goal\(task\) returns a text"),
    "a member is a text": (wrong(find_member=lambda self, task: "x"), r"find_member\(task\) returns an environment"),
    "no environment": (type("Other", (gymnasium.Env,), {}), "an environment must be an id"),
    # tasks
    "a list": (pool_of(lambda pool, split: list(pool)), "load_pool returned .*: it returns a TaskPool, for example"),
    "a dict": (pool_of(lambda pool, split: {"tasks": 3}), "it returns a TaskPool, for example"),
    "a generator": (wrong(load_pool=iterate), "it returns a TaskPool, for example"),
    "None": (pool_of(lambda pool, split: None), "load_pool returned 'None': it returns a TaskPool"),
    "nothing at all": (pool_of(lambda pool, split: pool.subset([])), "the split 'train' is empty"),
    "equal ids": (wrong(load_pool=lambda self, split: records(split, id="one")), "hold one id twice"),
    "equal ids in a pool": (
        pool_of(
            lambda pool, split: TaskPool(
                env=pool.env, split=split, ids=["a", "a"], categories=["x"] * 2, payload=lambda _: {"goal": 1}, source={}
            )
        ),
        "gives two tasks with the same id",
    ),
    "a payload without a value": (
        wrong(load_pool=lambda self, split: TaskPool.from_records([{"category": "x", "payload": Nothing()}], env=self.id)),
        "a payload holds a Nothing, which looks different in every process",
    ),
    "no payload": (
        wrong(load_pool=lambda self, split: TaskPool.from_records([{"category": "x"}], env=self.id)),
        "lacks the field 'payload'",
    ),
    "records that are none": (
        wrong(load_pool=lambda self, split: TaskPool.from_records(["x"], env=self.id)),  # type: ignore[list-item]
        "task record 0 is no mapping",
    ),
    "one split whatever is asked for": (wrong(load_pool=lambda self, split: records()), "both have the task"),
    "the same payloads in every split": (wrong(load_pool=lambda self, split: records(split)), "the same tasks for 'train' and"),
    "the same payloads in another order": (
        pool_of(
            lambda pool, split: TaskPool.from_records(
                [{"category": "x", "payload": number} for number in ([1, 2, 3] if split == "train" else [3, 1, 2])],
                env=pool.env,
                split=split,
            )
        ),
        "the same tasks for 'train' and",
    ),
    "tasks of another environment": (
        pool_of(lambda pool, split: TaskPool.from_records([{"category": "x", "payload": 1}], env="a/B-v0", split=split)),
        "gives tasks of a/B-v0",
    ),
    "other tasks each time": (wrong(load_pool=draw_anew), "gives other tasks each time"),
    "a split that it does not know": (
        wrong(load_pool=lambda self, split: {"train": records()}[split]),
        "raised KeyError: 'val': it returns|raised KeyError: 'val'",
    ),
    # what begin and advance return
    "begin: a view alone": (begin_of(lambda found: found[1]), "begin returned a view alone: it returns the state and the view"),
    "begin: the other order": (begin_of(lambda found: found[::-1]), "begin returned the view first"),
    "begin: None": (begin_of(lambda found: None), "begin returned 'None'"),
    "begin: an observation and info": (begin_of(lambda found: ("Place 0.", {})), "begin returned"),
    "begin fails": (wrong(begin=stumble), "begin .*raised KeyError: 'gaol'"),
    "begin changes its task": (wrong(begin=change_payload), "begin changed the payload of its task"),
    "advance: a view alone": (advance_of(lambda found: found[1]), "advance returned a view alone"),
    "advance: the other order": (advance_of(lambda found: found[::-1]), "advance returned the view first"),
    "advance: gymnasium's five": (
        advance_of(lambda found: ("Place", 0.0, False, False, {})),
        "advance returned five values, as gymnasium's step does",
    ),
    "advance: a string": (advance_of(lambda found: "Place 1."), "advance returned 'Place 1.'"),
    "advance: three values": (advance_of(lambda found: (*found, 0)), "advance returned"),
    "advance: a list": (advance_of(list), "advance returned"),
    "advance raises on an unknown word": (wrong(advance=look_up), "any text is an action"),
    "the state is changed": (
        wrong(
            begin=lambda self, task, seed: (
                {"place": 0, "goal": task.payload["goal"]},
                View(observation="Place 0.", admissible=ACTIONS),
            ),
            advance=change_state,
            reward_names=(),
        ),
        "advance changed the state that it was given: return a new one",
    ),
    "a state that cannot be pickled": (
        wrong(
            begin=lambda self, task, seed: ((lambda: 0), View(observation="x", admissible=ACTIONS)),
            advance=lambda self, state, action: (state, View(observation="x", admissible=ACTIONS, valid=action in ACTIONS)),
            expert=TextEnv.expert,
        ),
        "a state cannot be pickled",
    ),
    # views
    "an observation that is None": (view_of(observation=None), "begin: View.observation must be a text"),
    "an observation in bytes": (view_of(first=False, observation=b"x"), "advance: View.observation must be a text"),
    "a reward that is NaN": (view_of(first=False, reward=float("nan")), "View.reward is nan: a number that is finite"),
    "a reward that is infinite": (view_of(first=False, reward=float("inf")), "View.reward is inf"),
    "a reward that is an int": (view_of(first=False, reward=lambda view: int(view.reward)), "reward must be a float, got '0'"),
    "a reward that is a bool": (view_of(first=False, reward=lambda view: view.success), "View.reward must be a float"),
    "a score outside its range": (view_of(first=False, score=2.0), "View.score must be between 0 and 1, got 2.0"),
    "a negative score": (view_of(first=False, score=-0.5), "View.score must be between 0 and 1"),
    "success of NumPy": (view_of(first=False, success=lambda view: np.bool_(view.success)), "View.success is True or False"),
    "done as a number": (view_of(first=False, done=lambda view: int(view.done)), "View.done is True or False, got"),
    "valid is None": (view_of(first=False, valid=None), "View.valid must be True or False"),
    "a component that is not named": (view_of(first=False, rewards={"speed": 1.0}), "which reward_names does not list"),
    "a component that is a text": (view_of(first=False, rewards={"accuracy/lamp": "1"}), "must be a finite float"),
    "components that are a list": (view_of(first=False, rewards=[1.0]), "View.rewards must be a mapping"),
    "solved without a reward": (
        view_of(first=False, reward=0.0, score=0.0, rewards={}),
        "an episode was solved and paid nothing",
    ),
    "actions are missing later": (view_of(first=False, admissible=None), "View.admissible is missing, which was at the"),
    "actions come later": (view_of(admissible=None), "View.admissible is there, which was not at the beginning"),
    "actions are a list": (view_of(admissible=list(ACTIONS)), "View.admissible must be a tuple of texts"),
    "actions are one text": (view_of(admissible="left"), "View.admissible must be a tuple of texts"),
    "actions are numbers": (view_of(admissible=(1, 2)), "holds something that is not a text"),
    "no action is possible": (view_of(admissible=()), "View.admissible is empty"),
    "everything is valid": (view_of(first=False, valid=True), "an action that is not admissible was understood"),
    # randomness
    "a global generator": (
        advance_of(lambda found: (found[0], found[1]._replace(observation=f"{random.random()}"))),
        "draws from a global generator|gave two different episodes",
    ),
    "the clock": (advance_of(make_clock()), "gave two different episodes"),
    "a counter outside of the state": (make_counter(), "gave two different episodes|another way"),
    # the expert
    "an expert that ends": (expert_of(count_down()), "raised StopIteration.*|an expert is asked at every turn"),
    "an expert that raises": (expert_of(lambda episode: {}["x"]), "raised KeyError: 'x'"),
    "an expert that takes nothing": (
        expert_of(lambda: "right"),
        r"act \(test_wrong_environments.py, line \d+\) raised TypeError.*it is called as act\(episode\)",
    ),
    "expert takes more": (wrong(expert=lambda self, episode: Walker()), r"expert \(test_wrong_environments.py, line \d+\) "),
    "an expert that says nothing": (expert_of(lambda episode: None), "an action, a text, got 'None'|an action must be a string"),
    "an expert that is None": (wrong(expert=lambda self: None), r"expert\(\) returns an object with act|has no attribute 'act'"),
    "an inadmissible action": (expert_of(lambda episode: "up"), "returned 'up', which is not admissible: left, right"),
    "an expert that never finishes": (expert_of(lambda episode: "left"), "no episode ends in 6 plays of the expert"),
    "solved without an end": (
        type(
            "SolvedEnv",
            (view_of(first=False, done=False, success=True, reward=1.0, score=1.0),),
            {"__doc__": "x", "expert": TextEnv.expert},
        ),
        "an episode that is solved goes on: none of 6 ended before its",
    ),
    "an episode that never ends": (
        view_of(first=False, done=False, success=False, reward=0.0, score=0.0, rewards={}),
        "no episode ends in 6 plays of the expert",
    ),
    "an expert that fails": (
        view_of(first=False, success=False, reward=0.0, score=0.0, rewards={}),
        "the expert solved none of 6 tasks",
    ),
    "the answer is used where it is unknown": (
        wrong(
            begin=lambda self, task, seed: ((0, task.payload["goal"]), View(observation="Place 0.", admissible=ACTIONS)),
            id="wrong/Lamp-v0",
        ),
        "",
    ),
}  # fmt: skip


def test_the_environment_that_all_are_made_of_is_right() -> None:
    check_env(GoodEnv)
    assert len(WRONG) > 80


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_environment_is_one_sentence(name: str) -> None:
    cls, sentence = WRONG[name]
    if not sentence:  # the views of such a task are without grades, so nothing is paid
        check_env(cls)
        return
    with pytest.raises(AssertionError, match=sentence) as caught:
        check_env(cls)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, str(caught.value)


MADE = [name for name in WRONG if name.split(":")[0] in ("begin", "advance")] + [
    "a list", "a dict", "a generator", "None", "nothing at all", "its own __init__", "no role", "no turns", "endless turns",
]  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_gymnasium_says_the_same_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, sentence = WRONG[name]
    monkeypatch.setattr(ENVIRONMENTS, "_entries", dict(ENVIRONMENTS._entries))
    register_env(cls.id, cls, replace=True)
    with pytest.raises(FedAgentGymError, match=sentence):
        env = gymnasium.make(cls.id)
        env.reset(seed=0)
        env.step("right")


def test_a_class_is_not_called() -> None:
    with pytest.raises(FedAgentGymError, match=r"made by open_env\(GoodEnv, \.\.\.\) or gymnasium.make"):
        GoodEnv(split="val")
    assert open_env(GoodEnv, split="val").pool.split == "val"
