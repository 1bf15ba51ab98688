"""Whatever option is given beside a client split, the client plays the tasks of the split, or one sentence says why not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.guess import GuessEnv, GuessOptions
from fedagentgym.envs.options import play
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import Task, TaskSet
from fedagentgym.partitions.client_split import Client, ClientSplit, federate, load_client_split
from fedagentgym.registration import register_env

TINY: dict[str, dict[str, Any]] = {
    "Guess": {},
    "ALFWorld": {"size": "tiny"},
    "WebShop": {"size": "tiny"},
    "Math": {"size": "tiny"},
    "QA": {"size": "tiny"},
    "Code": {"size": "tiny"},
    "Skills": {"skills": 4},
    "Records": {"size": "tiny"},
    "Mixture": {"size": "tiny", "kinds": ["math", "qa"]},
}
VALUES: dict[str, tuple[Any, ...]] = {
    "split": ("train", "val", "test", "all", "nowhere"),
    "tasks": (None, ["guess/train/00001"], []),
    "variant": (None, {"kind": "wording", "phrasing": 3}, {"kind": "scene_split", "client": 1}),
    "max_turns": (None, 1, 3),
    "reward": ("score", "success10"),
    "order": ("drawn", "once", "twice"),
    "render_mode": (None, "ansi"),
    "seed": (0, 7, 42, np.int64(7)),
    "size": ("default", "full", "small", "tiny"),
    "engine": ("native",),
    "games": (None, "installed", "/nowhere"),
    "wording": ("move", "put", "question", "short"),
    "plan": (False, True),
    "data": (None, "installed", "/nowhere"),
    "columns": (None, {"question": "problem"}),
    "products": (None, 60, 80),
    "goals": ("synthetic", "human"),
    "goal_order": ("webshop", "fedagent"),
    "observation": ("text", "html", "url", "text_rich"),
    "nouns": ("rule", "nobody"),
    "num_prev_obs": (0, 2),
    "num_prev_actions": (0, 2),
    "source": (None, "gsm8k", "hotpotqa"),
    "subset": (None, "main"),
    "bad_rows": (0.0, 0.5),
    "merge_splits": (False, True),
    "holdout": (0, 5, {"val": 3}),
    "train_tasks": (None, 50, 400),
    "tools": ((), ["calc"], ["search"], ["run"]),
    "attempts": (1, 3),
    "verifier": (None, "exact", "math-verify"),
    "compare": ((), ["math-verify"]),
    "score": ("exact", "f1", "all", "share"),
    "time_limit": (1.0, 5.0),
    "sandbox": (None, {"accept": ["time"]}),
    "skills": (4, 8, 64),
    "procedures": (1, 2),
    "sharing": (None, 1, 2),
    "turns": (1, 2),
    "naming": ("once", "repeated"),
    "manners": ("one", "several"),
    "replies": ("tagged", "equation", "bare"),
    "members": (None, [{"name": "math", "env": "Math", "options": {"size": "tiny"}}]),
    "kinds": (None, ["math", "qa"], ["qa", "math"], ["math", "code"], ["math"]),
    "categories": ("members", "own", "domain", "kind"),
    "work": (1, 20),
    "corpus": ("own", "all"),
    "library": (None, "/nowhere"),
    "rows_shown": (1, 10),
}
"""Some values of every option of every environment; not all of them are valid everywhere."""
CLIENT = 1


CHOSEN = ("split", "tasks", "pool", "variant")


def list_marked(cls: type[TextEnv], *marks: str) -> set[str]:
    """The options of an environment with these marks."""
    return {name for name, mark in cls.Options.get_marks().items() if mark in marks}


def env_id(name: str) -> str:
    return f"fedagentgym/{name}-v0"


@pytest.fixture(scope="module")
def splits() -> dict[str, ClientSplit]:
    return {name: federate(env_id(name), clients=3, tasks_per_client=6, env=options) for name, options in TINY.items()}


def read_tasks(env: Any) -> list[Task]:
    return list(env.unwrapped.pool)


def expect_tasks(client: Client, split: Any = None) -> list[Task]:
    """The client's own tasks; with an evaluation split all of its tasks, which are played in the client's world."""
    cls = client.client_split.env_class
    if split is None or cls.canonical_split(split) not in cls.evaluation_splits:
        return read_tasks(client.open_env())
    return read_tasks(open_env(cls.id, **client.client_split.options, split=split))


@pytest.mark.parametrize("name", TINY)
def test_every_option_beside_a_split(name: str, splits: dict[str, ClientSplit]) -> None:
    """Reproduced before: ALFWorld's and Math's `seed=7`, WebShop's `products=80` and `goal_order="fedagent"` played other tasks
    under the same ids, and `tasks=None` the whole pool."""
    client = splits[name].client(CLIENT)
    accepted: set[str] = set()
    cls = ENVIRONMENTS.get(env_id(name))
    for option in {*cls.Options.model_fields, *CHOSEN} - {"pool"}:
        for value in VALUES[option]:
            try:
                env = client.open_env(**{option: value})
            except FedAgentGymError as error:
                assert "\n" not in str(error)
                continue
            accepted.add(option)
            expected = expect_tasks(client, value if option == "split" else None)
            assert read_tasks(env) == expected, f"{option}={value!r} plays other tasks"
            assert env.task_set == client.task_set or value in ("val", "test")
    assert accepted >= list_marked(cls, "play", "owner") - {"engine"}, "an option that changes no task is refused"
    assert not accepted & {"tasks", "variant"}


@given(name=st.sampled_from(sorted(TINY)), draw=st.data())
def test_several_options_beside_a_split(name: str, draw: st.DataObject) -> None:
    client = _split(name).client(CLIENT)
    options = sorted({"split", *ENVIRONMENTS.get(env_id(name)).Options.model_fields} - {"games", "data"})
    chosen = draw.draw(st.lists(st.sampled_from(options), min_size=2, max_size=4, unique=True))
    given = {option: draw.draw(st.sampled_from(VALUES[option])) for option in chosen}
    try:
        env = gymnasium.make(env_id(name), client_split=client.client_split, client=CLIENT, **given)
    except FedAgentGymError:
        return
    assert read_tasks(env) == expect_tasks(client, given.get("split"))


_SPLITS: dict[str, ClientSplit] = {}


def _split(name: str) -> ClientSplit:
    if name not in _SPLITS:
        _SPLITS[name] = federate(env_id(name), clients=3, tasks_per_client=6, env=TINY[name])
    return _SPLITS[name]


def test_options_that_decide_tasks_change_the_digest() -> None:
    """The safety net: two pools of one environment with other tasks have other digests."""
    for name, options in TINY.items():
        cls = ENVIRONMENTS.get(env_id(name))
        plain = open_env(env_id(name), **options, split="val")
        deciding = list_marked(cls, "task", "local")
        for option, value in ((each, value) for each in sorted(deciding) for value in VALUES[each]):
            try:
                other = open_env(env_id(name), **{**options, option: value}, split="val")
            except FedAgentGymError:
                continue
            if other.pool.digest == plain.pool.digest:
                assert [task.payload for task in other.pool] == [task.payload for task in plain.pool], (name, option)


@pytest.mark.parametrize("way", ["split", "file"])
def test_the_sentence_names_the_option_and_the_way_out(
    way: str, splits: dict[str, ClientSplit], tmp_path: Path
) -> None:
    made = splits["Math"]
    where = made if way == "split" else made.save(tmp_path / "split.json")
    said = (
        r"^seed=7 would change the tasks of the split, which was made with seed=0: leave it out, or make a split with it "
        r"\(federate\('fedagentgym/Math-v0', env=\{'seed': \.\.\.\}\)\)$"
    )
    with pytest.raises(OptionError, match=said):
        gymnasium.make(env_id("Math"), client_split=where, client=1, seed=7)
    again = gymnasium.make(env_id("Math"), client_split=where, client=1, seed=np.int64(0), attempts=2, split="train")
    assert read_tasks(again) == read_tasks(made.client(1).make())
    with pytest.raises(OptionError, match=r"seed=7 would change the tasks"):
        made.client(1).make_vec(2, seed=7)
    with pytest.raises(OptionError, match=r"split= is decided by the split"):
        made.client(1).make(split="warmup")
    with pytest.raises(OptionError, match="did you mean 'attempts'"):
        made.client(1).make(attemps=2)  # codespell:ignore attemps


def test_clients_in_variants_keep_their_tasks() -> None:
    made = federate(env_id("ALFWorld"), clients=3, tasks_per_client=4, env={"size": "tiny"}, variant="scene_split")
    client = made.client(0)
    expected = read_tasks(client.open_env())
    assert [task.payload for task in expected] != [task.payload for task in client.pool], "in rooms of its own"
    assert read_tasks(client.open_env(max_turns=3, engine="native", size="tiny")) == expected
    for refused in ({"seed": 7}, {"wording": "put"}, {"variant": None}, {"pool": made.pool}):
        with pytest.raises(OptionError):
            client.open_env(**refused)


def make_own_pool(offset: int) -> TaskPool:
    rows = [{"category": "small", "payload": (10, 1 + (number + offset) % 10)} for number in range(30)]
    return TaskPool.from_records(rows, env=GuessEnv.id)


def test_a_pool_beside_a_split_has_its_digest(tmp_path: Path) -> None:
    same, other = make_own_pool(0), make_own_pool(1)
    made = federate(GuessEnv.id, clients=3, tasks_per_client=5, pool=same)
    path = made.save(tmp_path / "split.json")
    expected = read_tasks(made.client(1).make())
    assert read_tasks(made.client(1).make(pool=make_own_pool(0))) == expected
    assert read_tasks(gymnasium.make(GuessEnv.id, client_split=path, client=1, pool=same)) == expected
    for open_other in (
        lambda: made.client(1).make(pool=other),
        lambda: gymnasium.make(GuessEnv.id, client_split=made, client=1, pool=other),
        lambda: gymnasium.make(GuessEnv.id, client_split=path, client=1, pool=other),
        lambda: load_client_split(path, pool=other),
    ):
        with pytest.raises(DataError):
            open_other()


# ---- environments that declare nothing --------------------------------------------------------------------------


class ShiftedOptions(GuessOptions):
    shift: int = 0
    polite: bool = False


class ShiftedGuessEnv(GuessEnv):
    """As a third party writes it: its own options have no mark, and the pool's source says nothing of them."""

    id = "test/Shifted-v0"
    Options = ShiftedOptions
    shares_pools = False


class DriftingOptions(GuessOptions):
    level: int = play(0, description="how far")


class DriftingEnv(GuessEnv):
    """Declares an option as harmless that is not."""

    id = "test/Drifting-v0"
    Options = DriftingOptions

    def set_up(self) -> None:
        self.options = self.options.model_copy(update={"seed": self.options.level})


register_env(ShiftedGuessEnv.id, ShiftedGuessEnv, replace=True)
register_env(DriftingEnv.id, DriftingEnv, replace=True)


def test_options_without_a_mark_are_taken_to_decide_tasks() -> None:
    client = federate(ShiftedGuessEnv.id, clients=2, tasks_per_client=3).client(0)
    for option, value in {"shift": 1, "polite": True}.items():
        with pytest.raises(OptionError, match=f"{option}=.* would change the tasks"):
            client.make(**{option: value})
    assert client.make(shift=0, max_turns=2).unwrapped.max_turns == 2


def test_a_wrong_declaration_is_caught_by_the_digest() -> None:
    made = federate(DriftingEnv.id, clients=2, tasks_per_client=3)
    env = made.client(0).open_env()
    with pytest.raises(DataError, match="the tasks were named for the pool"):
        open_env(DriftingEnv.id, level=3, tasks=env.task_set)


# ---- the value that names tasks ---------------------------------------------------------------------------------


def test_a_task_set_is_carried_by_split_client_and_environment(splits: dict[str, ClientSplit], tmp_path: Path) -> None:
    for name, made in splits.items():
        named = made.task_set
        cls = ENVIRONMENTS.get(env_id(name))
        wanted = list_marked(cls, "task") - {"columns"}  # columns only where they are given
        assert set(named.options) == wanted, "every option is resolved"
        assert named.ids is made.pool.ids and named.pool == made.record.pool_digest
        client = made.client(2)
        assert client.task_set.ids == client.tasks and client.task_set != named and client.task_set.pool == named.pool
        assert client.open_env().task_set == client.task_set == client.make(max_turns=2).unwrapped.task_set
        assert load_client_split(made.save(tmp_path / f"{name}.json")).client(2).task_set == client.task_set
        whole = open_env(env_id(name), **TINY[name])
        assert whole.task_set == named and hash(whole.task_set) == hash(named)


def test_an_environment_is_made_of_a_task_set(splits: dict[str, ClientSplit]) -> None:
    named = splits["Skills"].client(0).task_set
    env = open_env(named.env, **named.options, tasks=named, split=named.split)
    assert read_tasks(env) == read_tasks(splits["Skills"].client(0).open_env())
    with pytest.raises(DataError, match=r"named for the pool sha256:\w+\.\.\. \(split 'train', options"):
        open_env(named.env, tasks=named, seed=5)
    with pytest.raises(OptionError, match="tasks= names tasks of another environment, fedagentgym/Skills-v0"):
        open_env(env_id("Guess"), tasks=named)


def test_the_tasks_of_a_set_have_an_order() -> None:
    first = TaskSet("me/Maze-v0", {"seed": 1}, "train", "sha256:0", ("a", "b"))
    assert first == TaskSet("me/Maze-v0", {"seed": 1}, "train", "sha256:0", ["a", "b"])
    others = itertools.starmap(
        TaskSet,
        (
            ("me/Maze-v1", {"seed": 1}, "train", "sha256:0", ("a", "b")),
            ("me/Maze-v0", {"seed": 2}, "train", "sha256:0", ("a", "b")),
            ("me/Maze-v0", {"seed": 1}, "val", "sha256:0", ("a", "b")),
            ("me/Maze-v0", {"seed": 1}, "train", "sha256:1", ("a", "b")),
            ("me/Maze-v0", {"seed": 1}, "train", "sha256:0", ("b", "a")),
        ),
    )
    assert all(first != other for other in others)


def test_every_option_has_a_mark_a_sentence_and_a_default() -> None:
    for name in TINY:
        cls: type[TextEnv] = ENVIRONMENTS.get(env_id(name))
        assert set(cls.Options.get_marks().values()) <= {"task", "play", "local", "owner"}
        assert all(option in VALUES for option in cls.Options.model_fields)
        for option, field in cls.Options.model_fields.items():
            assert field.description and not field.is_required(), (name, option)
            extra = field.json_schema_extra
            assert isinstance(extra, dict) and "mark" in extra, (name, option)
