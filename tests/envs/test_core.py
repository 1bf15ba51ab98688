"""The base of all environments, proved on the smallest one."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.agents.presets import make_agent
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, UnknownNameError
from fedagentgym.base.streams import stream
from fedagentgym.bridges.trl import RolloutFunction, make_environment_factory
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import env_class, make
from fedagentgym.envs.options import RESERVED, EnvOptions, task
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.envs.tasks import TaskIds
from fedagentgym.envs.view import View, check_view
from fedagentgym.envs.wrappers import ShowPrompt
from fedagentgym.registration import make_env
from fedagentgym.testing import check_env, play_steps

GUESS = "fedagentgym/Guess-v0"


def guess(**options: Any) -> TextEnv:
    return open_env(GUESS, **options)


def test_the_example_conforms() -> None:
    check_env(GUESS)
    check_env(GUESS, split="val", reward="success10", max_turns=3)


def random_actions(seed: int) -> list[str]:
    draw = stream(seed, "actions")
    return [f"guess {1 + draw.integers(110)}" if draw.integers(8) else "?" for _ in range(8)]


def test_ten_thousand_episodes_replay_to_identical_bytes() -> None:
    env = open_env(GuessEnv)
    ids = [env.pool.ids[number % len(env.pool)] for number in range(10_000)]
    scripts = [random_actions(seed) for seed in range(10_000)]

    def play() -> str:
        episodes = env.reset_many(ids, range(10_000))
        texts = [[episode.view.observation for episode in episodes]]
        for turn in range(8):
            episodes = env.step_many(episodes, [script[turn] for script in scripts])
            texts.append([f"{episode.view.observation}{episode.reward}{episode.over}" for episode in episodes])
        return digest(texts)

    assert play() == play()
    one = env.reset_many(ids[77:78], [77])
    for action in scripts[77]:
        one = env.step_many(one, [action])
    gym_env = guess()
    gym_env.reset(seed=77, options={"task": ids[77]})
    for action in scripts[77]:
        observation, *_ = gym_env.step(action)
    assert observation == one[0].view.observation


CONTINUE = """
import pickle, sys
import fedagentgym
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import env_class
from fedagentgym.envs.make import open_env
snapshot, actions = pickle.loads(bytes.fromhex(sys.stdin.read()))
env = open_env(GuessEnv)
env.restore(snapshot)
sys.stdout.write(repr([env.step(action) for action in actions]))
"""


def test_a_snapshot_goes_on_in_another_process() -> None:
    env = guess()
    env.reset(seed=3, options={"task": env.pool.ids[5]})
    actions = random_actions(3)
    for action in actions[:4]:
        env.step(action)
    frozen = pickle.dumps((env.snapshot(), actions[4:])).hex()
    elsewhere = subprocess.run(
        [sys.executable, "-c", CONTINUE], input=frozen, capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout == repr([env.step(action) for action in actions[4:]])


@given(st.lists(st.text(max_size=30), max_size=12))
def test_any_text_is_an_action(actions: list[str]) -> None:
    env = open_env(GuessEnv)
    env.reset(seed=0)
    for action in actions:
        if env.episode.over:
            break
        before = env.snapshot()
        observation, reward, *_, info = env.step(action)
        assert isinstance(observation, str) and isinstance(reward, float)
        if not info["valid"]:
            assert env.snapshot().state == before.state


def test_seed_picks_the_task_and_options_name_it() -> None:
    env = guess()
    tasks = {env.reset(seed=seed)[1]["task"] for seed in range(200)}
    assert len(tasks) > 100
    assert env.reset(seed=4)[1]["task"] == env.reset(seed=4)[1]["task"]
    env.reset(seed=4)
    following = [env.reset()[1]["task"] for _ in range(5)]
    env.reset(seed=4)
    assert [env.reset()[1]["task"] for _ in range(5)] == following and len(set(following)) > 1
    assert env.reset(options={"task": "guess/train/00042"})[1]["task"] == "guess/train/00042"


def test_turns_end_the_episode() -> None:
    env = guess(max_turns=2)
    env.reset(seed=0)
    assert env.step("?")[2:4] == (False, False)
    assert env.step("?")[2:4] == (False, True)
    for episode in (env.snapshot(), pickle.loads(pickle.dumps(env.snapshot()))):
        env.restore(episode)
        with pytest.raises(OptionError, match=r"the episode is over: call reset\(\)"):
            env.step("guess 1")
    env.reset(seed=0)
    assert env.step("?")[2:4] == (False, False)


def test_success10_pays_ten_for_success_only() -> None:
    env = guess(reward="success10")
    env.reset(seed=0)
    expert, total = env.expert(), 0.0
    while not env.episode.over:
        total += env.step(expert.act(env.episode))[1]
    assert total == 10.0 and env.episode.view.score == 1.0


@pytest.mark.parametrize("split", ["train", "val", "test", "warmup"])
def test_the_expert_wins_every_game(split: str) -> None:
    env = open_env(GuessEnv, split=split)
    episodes = env.reset_many(list(env.pool.ids), range(len(env.pool)))
    experts = [env.expert() for _ in episodes]
    for _ in range(env.max_turns):
        episodes = [
            episode if episode.over else env.step_many([episode], [expert.act(episode)])[0]
            for episode, expert in zip(episodes, experts, strict=True)
        ]
    assert all(episode.terminated and episode.view.success for episode in episodes)


def test_an_environment_has_unseen_templates_or_says_that_it_has_none() -> None:
    ours = [name for name in ENVIRONMENTS.names() if name.startswith("fedagentgym/") and "ReasoningGym" not in name]
    held_out = {name for name in ours if "unseen" in env_class(name).splits}
    assert {name.partition("/")[2] for name in held_out} == {"Math-v0", "QA-v0", "Code-v0", "Mixture-v0", "Records-v0"}
    for name in ours:
        if name in held_out:
            assert "unseen" in env_class(name).evaluation_splits
        else:
            with pytest.raises(
                UnknownNameError, match=r"no split 'unseen', for tasks of templates that no other split has; there are"
            ):
                env_class(name).canonical_split("unseen")


def test_all_is_every_split_in_order() -> None:
    env = open_env(GuessEnv)
    assert list(env.load_pool("all").ids) == [
        identifier for split in env.splits for identifier in env.load_pool(split).ids
    ]
    assert env.load_pool("all")["guess/val/00003"].split == "val"


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"split": "trian"}, UnknownNameError, "did you mean 'train'"),
        ({"reward": "sum"}, UnknownNameError, "known are score, success10"),
        ({"max_turns": 0}, OptionError, "at least 1"),
        ({"max_turns": "many"}, OptionError, "option 'max_turns'"),
        ({"sead": 1}, OptionError, "did you mean 'seed'"),
        ({"tasks": ["guess/train/99999"]}, UnknownNameError, "task of fedagentgym/Guess-v0"),
        ({"tasks": ["guess/train/00001"] * 2}, DataError, "names a task twice"),
        ({"tasks": []}, DataError, "no tasks"),
        ({"client": 3}, OptionError, "belong together"),
        ({"render_mode": "rgb_array"}, UnknownNameError, "render_mode"),
        ({"env": {"seed": 0}}, OptionError, "no option 'env'"),
        ({"cls": GuessEnv}, OptionError, "no option 'cls'"),
        ({"max_turns": "3"}, OptionError, "option 'max_turns': it must be a whole number (got '3')"),
        ({"pool": open_env("Guess", split="val").pool}, OptionError, "pool must hold tasks of the split"),
        ({"split": "val", "pool": open_env("Guess").pool}, OptionError, "pool must hold tasks of the split"),
        ({"pool": open_env("Skills", skills=4).pool}, OptionError, "pool must hold tasks of fedagentgym/Guess-v0"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], error: type[FedAgentGymError], sentence: str) -> None:
    with pytest.raises(error) as caught:
        gymnasium.make(GUESS, disable_env_checker=True, **options)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_calls_are_one_sentence() -> None:
    env = guess()
    with pytest.raises(OptionError, match="call reset"):
        env.step("guess 1")
    with pytest.raises(UnknownNameError, match="did you mean"):
        env.reset(options={"task": "guess/train/0042"})
    with pytest.raises(OptionError, match="unknown reset option"):
        env.reset(options={"tsk": "x"})
    with pytest.raises(OptionError, match="must be a task id"):
        env.reset(options={"task": 3})
    env.reset(seed=0)
    with pytest.raises(OptionError, match="an action must be a string"):
        env.step(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not a snapshot"):
        env.restore("x")  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        env.reset_many(["guess/train/00000"], [])


def test_pools_are_named_by_what_is_in_them() -> None:
    pool = open_env(GuessEnv).pool
    assert pool.digest == open_env(GuessEnv).pool.digest != open_env(GuessEnv, seed=1).pool.digest
    assert sum(pool.categories.values()) == len(pool) == 600
    assert pool.subset(pool.ids[:10]).digest != pool.subset(pool.ids[1:11]).digest
    assert pool["guess/train/00007"] == pool[7] == list(pool)[7]
    assert "guess/train/00007" in pool and "guess/train/7" not in pool and 7 not in pool
    hidden = pool.without_answers(pool.ids[:3])
    assert not hidden[0].graded and pool[0].graded
    with pytest.raises(DataError, match="out of range"):
        pool[600]


def test_tasks_without_an_order_are_refused() -> None:
    pool = open_env(GUESS).pool
    ids = [pool.ids[7], pool.ids[2]]
    for unordered in (set(ids), frozenset(ids), set()):
        for choose in (pool.subset, pool.without_answers, lambda ids: gymnasium.make(GUESS, tasks=ids)):
            with pytest.raises(
                OptionError, match="tasks must be in an order, such as a list of ids, got a set: sort it"
            ):
                choose(unordered)
    for ordered in (ids, tuple(ids), iter(ids), dict.fromkeys(ids), dict.fromkeys(ids).keys()):
        assert list(pool.subset(ordered).ids) == ids


def test_a_million_tasks_cost_nothing() -> None:
    ids = TaskIds(GUESS, "train", 1_000_000)
    assert ids[999_999] == "guess/train/999999" and ids.find_position("guess/train/123456") == 123_456
    assert ids.find_position("guess/train/" + "9" * 5000) is None
    assert ids.find_position("guess/train/0123456") is None and ids.find_position("guess/val/00001") is None
    assert ids[-2:] == ["guess/train/999998", "guess/train/999999"]


def test_pools_of_given_records() -> None:
    pool = TaskPool.from_records(
        [{"category": "small", "payload": (10, 3)}, {"category": "x", "payload": (10, 4)}], env=GUESS
    )
    env = open_env(GuessEnv, pool=pool)
    env.reset(options={"task": "guess/train/00001"})
    assert env.step("guess 4")[2]
    with pytest.raises(DataError, match="lacks the field 'payload'"):
        TaskPool.from_records([{"category": "x"}], env=GUESS)
    for hardness in ("hard", "0.5", float("nan"), float("inf"), [1]):
        with pytest.raises(DataError, match="hardness must be a finite number"):
            TaskPool.from_records([{"category": "x", "payload": 1, "hardness": hardness}], env=GUESS)
    for hardness in (None, 0, 0.5, np.float32(0.5)):
        assert TaskPool.from_records([{"category": "x", "payload": 1, "hardness": hardness}], env=GUESS)
    with pytest.raises(DataError, match="twice"):
        TaskPool.from_records([{"category": "x", "payload": 1, "id": "a"}] * 2, env=GUESS)
    kept = TaskPool.from_records([{"category": "x", "payload": 1, "id": one} for one in (0, "", None, 7)], env=GUESS)
    assert list(kept.ids) == ["0", "", "guess/train/00002", "7"] and kept[""].id == ""


class Hue(Enum):
    RED = 1


@dataclass(frozen=True)
class Paint:
    hue: Hue
    names: frozenset[str]
    price: Decimal = Decimal("1.5")
    found: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


class Spot(NamedTuple):
    x: int
    paint: Paint | None = None


class Opaque:
    """Its text holds its address, or says nothing of what it holds."""


STABLE: list[Any] = [
    None,
    True,
    3,
    -2.5,
    "a'b",
    b"c",
    (1,),
    (),
    [1, "x"],
    {"b": [1], "a": (2, 3)},
    Hue.RED,
    Spot(1),
    {},
    set(),
]


def test_the_digest_of_given_records_is_that_of_their_values() -> None:
    def digest(*payloads: Any, **more: Any) -> str:
        rows = [{"category": "x", "payload": payload} for payload in payloads]
        return TaskPool.from_records(rows, env=GUESS, **more).digest

    assert represent(STABLE) == repr(STABLE), "as in splits that were made before"
    texts = [represent(value) for value in [*STABLE, Spot(2), np.int64(3), {"a": (2, 3), "b": [1]}, Fraction(1, 3)]]
    assert len(set(texts)) == len(texts)
    assert represent(Paint(Hue.RED, frozenset({"b", "a"}), found={"kept": Opaque()})) == (
        "Paint(hue=<Hue.RED: 1>, names=frozenset({'a', 'b'}), price=Decimal('1.5'))"
    )
    for payload in (Opaque(), [Opaque()], {"key": len}, np.arange(3), Spot(1, paint=Opaque())):  # type: ignore[arg-type]
        with pytest.raises(DataError, match="looks different in every process: pass payload_key=, a function"):
            digest(payload)
    assert digest(Opaque(), payload_key=lambda payload: "a") == digest("a") != digest("b")


def test_payloads_of_sets_have_one_digest_in_every_process() -> None:
    program = (
        "from fedagentgym.envs.pool import TaskPool\n"
        "row = {'category': 'x', 'payload': {'names': set('abcdefgh'), 'more': frozenset(['x', 'yy', 'zzz'])}}\n"
        "print(TaskPool.from_records([row], env='fedagentgym/Guess-v0').digest)"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


class MyGuess(GuessEnv):
    """An environment of your own."""

    id = "mine/Guess-v0"


@pytest.fixture
def registries_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENVIRONMENTS, "_entries", dict(ENVIRONMENTS._entries))
    for name in ("mine/Guess-v0", "mine/Named-v0"):
        monkeypatch.setitem(gymnasium.registry, name, None)
        del gymnasium.registry[name]


@pytest.mark.usefixtures("registries_as_before")
def test_an_environment_of_your_own_registers_under_its_id() -> None:
    fedagentgym.register_env("mine/Guess-v0", f"{__name__}:MyGuess", replace=True)
    assert gymnasium.make("mine/Guess-v0").reset(seed=0)[1]["task"].startswith("guess/")


WRONG_IDS = (
    "Guess",
    "mine/Guess",
    "mine/-very",
    "mine/Maze-v",
    "mine/Maze-v1x",
    "mine/Ma ze-v0",
    "mine/x/Maze-v0",
    " me/Maze-v0",
)


@pytest.mark.parametrize("env_id", WRONG_IDS)
def test_an_id_of_another_form_registers_nothing(env_id: str) -> None:
    before = (ENVIRONMENTS.names(), set(gymnasium.registry))
    for target in ("a:b", type("Maze", (GuessEnv,), {"id": env_id})):
        with pytest.raises(OptionError, match="form 'namespace/Name-v0'"):
            fedagentgym.register_env(env_id, target)
    assert (ENVIRONMENTS.names(), set(gymnasium.registry)) == before


def test_the_reserved_names_are_all_that_make_takes() -> None:
    for function in (make, make_env, gymnasium.make, gymnasium.make_vec):
        taken = set(inspect.signature(function).parameters) - {"options", "kwargs", "render_mode"}
        assert taken <= RESERVED, function


def test_the_spec_of_what_names_a_file_is_written_and_read(tmp_path: Path) -> None:
    fedagentgym.federate("Guess", clients=2).save(tmp_path / "split.json")
    env = gymnasium.make(GUESS, client_split=tmp_path / "split.json", client=np.int64(1))
    assert env.spec is not None
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=3)[1]["task"] == env.reset(seed=3)[1]["task"]


@pytest.mark.parametrize("given", [None, "walker", 3])
def test_an_expert_that_cannot_act_is_refused(given: Any) -> None:
    class Odd(GuessEnv):
        def expert(self) -> Any:
            return given

    with pytest.raises(OptionError, match=r"expert\(\) must return an object with the method act, got"):
        fedagentgym.evaluate("expert", open_env(Odd, split="val"), tasks=1)


@pytest.mark.parametrize(
    "settings",
    [{"sets": []}, {"at_clients": ["own_world"]}, {"every": 3}, {"newcomers": 1}],
    ids=lambda one: next(iter(one)),
)
def test_settings_of_runs_are_none_of_an_evaluation(settings: dict[str, Any]) -> None:
    for said in ({"settings": settings}, settings):
        with pytest.raises(OptionError, match="is for evaluations during a run, and does nothing here"):
            fedagentgym.evaluate("random", "Guess", **said)
    with pytest.raises(OptionError, match="file must be a path, got '3'"):
        fedagentgym.evaluate("random", "Guess", tasks=1, file=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_option_has_the_name_of_what_make_takes_itself(name: str) -> None:
    fields = {name: task("a", description="d"), "__annotations__": {name: str}, "__module__": __name__}
    with pytest.raises(
        OptionError, match=f"Mine has an option '{name}', which is an argument of gymnasium.make or open_env"
    ):
        type("Mine", (EnvOptions,), fields)


@pytest.mark.usefixtures("registries_as_before")
def test_the_id_of_a_class_is_the_one_that_it_is_registered_by() -> None:
    with pytest.raises(
        OptionError, match="MyGuess is registered as 'mine/Other-v0', but its class attribute id is 'mine/Guess"
    ):
        fedagentgym.register_env("mine/Other-v0", MyGuess)
    with pytest.raises(OptionError, match="'3' is no class derived from TextEnv"):
        fedagentgym.register_env("mine/Other-v0", 3)  # type: ignore[arg-type]
    assert "mine/Other-v0" not in ENVIRONMENTS and "mine/Other-v0" not in gymnasium.registry
    fedagentgym.register_env("mine/Named-v0", f"{__name__}:MyGuess", replace=True)
    with pytest.raises(OptionError, match="is registered as 'mine/Named-v0'"):  # known when it is imported
        open_env("mine/Named-v0")


def test_conformance_catches_a_broken_environment() -> None:
    class Impure(GuessEnv):
        """Remembers the last guess outside the state."""

        last = 0

        def advance(self, state: Any, action: str) -> Any:
            self.last += 1
            state, view = super().advance(state, action)
            return state, view._replace(observation=f"{view.observation} {self.last}")

    with pytest.raises(AssertionError):
        check_env(Impure)


def test_played_is_reproducible() -> None:
    first, second = (
        [repr((action, *episode, *episode.view)) for action, episode in play_steps(open_env(GuessEnv), 30)]
        for _ in "ab"
    )
    assert first == second


# ---- rendering and gymnasium's description ------------------------------------------------------------------------


def play_three_turns(env: gymnasium.Env[str, str]) -> None:
    env.reset(options={"task": "guess/train/00003"}, seed=1)
    env.step("guess 1")
    env.step("nonsense")


def test_ansi_shows_the_transcript_and_the_choices() -> None:
    env = gymnasium.make("fedagentgym/Guess-v0", render_mode="ansi")
    play_three_turns(env)
    shown = str(env.render())
    assert shown.startswith("guess/train/00003 (") and shown.count("> ") == 2
    assert "> guess 1\n  It is higher than 1." in shown and "  That is not a guess." in shown
    assert shown.splitlines()[-1].startswith("Choices: guess 1 | guess 2 | ")
    copied = pickle.loads(pickle.dumps(env.unwrapped))
    assert copied.render() == shown
    start = env.unwrapped.snapshot()  # type: ignore[attr-defined]
    env.unwrapped.restore(start)  # type: ignore[attr-defined]
    assert "> " not in str(env.render()) and "That is not a guess." in str(env.render())
    env.reset(options={"task": "guess/train/00003"})
    number = env.unwrapped.pool["guess/train/00003"].payload.number  # type: ignore[attr-defined]
    env.step(f"guess {number}")
    assert str(env.render()).endswith("(solved, score 1)")


def test_ansi_shows_the_goal_where_there_is_one() -> None:
    env = gymnasium.make("fedagentgym/WebShop-v0", size="tiny", render_mode="ansi")
    env.reset(seed=0)
    unwrapped: Any = env.unwrapped
    assert f"Goal: {unwrapped.goal(unwrapped.episode.task)}" in str(env.render())


def test_human_prints_as_it_happens_what_ansi_would_show(capsys: pytest.CaptureFixture[str]) -> None:
    env = gymnasium.make("fedagentgym/Guess-v0", render_mode="human")
    play_three_turns(env)
    assert env.render() is None
    said = capsys.readouterr().out
    again = gymnasium.make("fedagentgym/Guess-v0", render_mode="ansi")
    play_three_turns(again)
    kept = [line for line in said.splitlines() if not line.startswith("Choices")]
    assert kept == [line for line in str(again.render()).splitlines() if not line.startswith("Choices")]
    assert said.count("Choices: ") == 3


def test_without_a_render_mode_nothing_is_kept_or_printed(capsys: pytest.CaptureFixture[str]) -> None:
    env = gymnasium.make("fedagentgym/Guess-v0")
    play_three_turns(env)
    assert not env.unwrapped._steps and not capsys.readouterr().out  # type: ignore[attr-defined]


def test_the_spec_states_the_true_number_of_turns() -> None:
    assert gymnasium.make("fedagentgym/Guess-v0").spec.max_episode_steps == GuessEnv.default_max_turns  # type: ignore[union-attr]
    env = gymnasium.make("fedagentgym/Guess-v0", max_turns=3)
    spec = env.spec
    assert spec is not None and spec.max_episode_steps == 3 and pickle.loads(pickle.dumps(env)).spec == spec
    for made in (env, gymnasium.make(spec), gymnasium.make("fedagentgym/Guess-v0", max_episode_steps=3)):
        made.reset(seed=0, options={"task": "guess/train/00003"})
        ends = [made.step("nonsense")[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]
        assert made.spec is not None and made.spec.max_episode_steps == 3


@pytest.mark.parametrize("records", [None, 3, [3], [None], ["x"]])
def test_records_that_are_no_mappings_are_one_sentence(records: Any) -> None:
    with pytest.raises(DataError, match=r"list of mappings|is no mapping"):
        TaskPool.from_records(records, env="me/Odd-v0")


@pytest.mark.parametrize("env_id", [None, 3, [], "", "Odd"])
def test_an_id_of_another_form_is_one_sentence(env_id: Any) -> None:
    with pytest.raises(OptionError, match="form 'namespace/Name-v0'"):
        fedagentgym.register_env(env_id, "me:Odd")


# ---- wrappers of gymnasium ---------------------------------------------------------------------------------------------


class Shout(gymnasium.ObservationWrapper[str, str, str]):
    """A wrapper of a user's own."""

    def observation(self, observation: str) -> str:
        return observation.upper()


DOORS: dict[str, Callable[[Any], object]] = {
    "open_env": open_env,
    "evaluate": lambda env: fedagentgym.evaluate("random", env, tasks=1),
    "collect": lambda env: fedagentgym.collect(make_agent("random"), env, ["guess/train/00000"]),
    "federate": lambda env: fedagentgym.federate(env, clients=2),
    "trl's environments": make_environment_factory,
    "trl's rollouts": RolloutFunction,
}


@pytest.mark.parametrize("door", DOORS)
def test_wrappers_that_would_be_left_out_are_refused(door: str) -> None:
    """Their observations, rewards and limits would be missing in every episode, without a word."""
    for wrapped in (
        Shout(gymnasium.make(GUESS)),
        gymnasium.wrappers.OrderEnforcing(Shout(gymnasium.make(GUESS, disable_env_checker=True))),
    ):
        with pytest.raises(OptionError, match="wrappers are not played here: Shout; give the environment without them"):
            DOORS[door](wrapped)
    with pytest.raises(OptionError, match=r"wrappers are not played here: TimeLimit; .* max_turns"):
        DOORS[door](gymnasium.make(GUESS, max_episode_steps=2))


def test_the_wrappers_of_gymnasium_and_of_this_package_change_nothing() -> None:
    assert isinstance(open_env(gymnasium.make(GUESS)), GuessEnv)
    assert isinstance(open_env(ShowPrompt(gymnasium.make(GUESS))), GuessEnv)
    again = gymnasium.make(gymnasium.make(GUESS, split="val").spec)
    assert isinstance(again, gymnasium.wrappers.TimeLimit) and fedagentgym.evaluate("random", again, tasks=1)
    with pytest.raises(OptionError, match="wrappers are not played here: TimeLimit"):
        open_env("Guess", client_split=fedagentgym.federate("Guess", clients=2), client=0, max_episode_steps=2)


WRONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "reward": ({"reward": "1"}, "reward must be a finite float, got '1'"),
    "no reward": ({"reward": None}, "reward must be a finite float, got 'None'"),
    "score": ({"score": "0.5"}, "score must be a finite float, got '0.5'"),
    "observation": ({"observation": None}, "observation must be a text, got 'None'"),
    "success": ({"success": "no"}, "success must be True or False, got 'no'"),
    "actions": ({"admissible": "on"}, "admissible must be a tuple of texts or None, got 'on'"),
    "rewards": ({"rewards": 3}, "rewards must be a mapping, got '3'"),
    "a component": ({"rewards": {"accuracy": "1"}}, r"rewards\['accuracy'\] must be a finite float, got '1'"),
    "extra": ({"extra": None}, "extra must be a mapping, got 'None'"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
@pytest.mark.parametrize("method", ["begin", "advance"])
def test_a_view_with_a_field_of_another_type_is_refused(
    case: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, said = WRONG_FIELDS[case]
    right = getattr(GuessEnv, method)

    def wrong(self: GuessEnv, *given: Any) -> Any:
        state, view = right(self, *given)
        return state, view._replace(**changed)

    monkeypatch.setattr(GuessEnv, method, wrong)
    env = open_env(GuessEnv)
    with pytest.raises(OptionError, match=f"GuessEnv.{method}: View.{said}"):
        env.step_many(env.reset_many([env.pool.ids[0]], [0]), ["guess 5"])


def test_numbers_of_other_libraries_are_numbers() -> None:
    view = View("It is dark.", reward=np.float32(1), score=1, success=np.bool_(True))  # type: ignore[arg-type]
    check_view(GuessEnv, "begin", view)
