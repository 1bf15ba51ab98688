"""From a client_split to a client's environment, with and without gymnasium's ids."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.envs import open_env
from fedagentgym.partitions.adapters import import_client_split
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split

GUESS = "fedagentgym/Guess-v0"


@pytest.fixture(scope="module")
def client_split() -> ClientSplit:
    return federate(
        GUESS, partition="uniform", clients=6, tasks_per_client=20, roles={"public": 15, "server": 10, "warmup": 5}
    )


def test_a_client_plays_its_own_tasks_only(client_split: ClientSplit) -> None:
    client = client_split.client(2)
    env = client.make()
    assert set(env.unwrapped.pool.ids) == set(client.tasks) and len(client) == 20
    seen = {env.reset(seed=seed)[1]["task"] for seed in range(200)}
    assert seen <= set(client.tasks) and len(seen) > 15
    with pytest.raises(UnknownNameError):
        env.reset(options={"task": client_split.client(3).tasks[0]})


@pytest.mark.parametrize("wrong", [3, None, b"train", ["val"], True])
def test_a_split_that_is_no_name_is_refused(client_split: ClientSplit, wrong: Any) -> None:
    for make in (client_split[1].open_env, client_split[1].make, partial(client_split.make_vec, [1])):
        with pytest.raises(OptionError, match="split must be the name of a split, got "):
            make(split=wrong)


def test_by_id_it_is_the_same_environment(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.json")
    direct = client_split.client(4).make()
    for split_or_path in (str(path), path, client_split):
        by_id = gymnasium.make(GUESS, client_split=split_or_path, client=4)
        assert list(by_id.unwrapped.pool.ids) == list(direct.unwrapped.pool.ids)
        assert by_id.reset(seed=3)[0] == direct.reset(seed=3)[0]
        assert by_id.reset(seed=3)[1]["task"] == direct.reset(seed=3)[1]["task"]
    assert gymnasium.make(f"fedagentgym:{GUESS}", client_split=str(path), client=0).reset(seed=0)


def test_vector_environments(client_split: ClientSplit) -> None:
    vector = client_split.client(1).make_vec(3)
    observations, infos = vector.reset(seed=5)
    assert len(observations) == 3 and set(infos["task"]) <= set(client_split.client(1).tasks)
    vector.close()


def test_vector_environments_in_processes(client_split: ClientSplit) -> None:
    vector = client_split.client(1).make_vec(2, vectorization_mode="async")
    observations, infos = vector.reset(seed=5)
    assert len(observations) == 2 and set(infos["task"]) <= set(client_split.client(1).tasks)
    vector.step(("guess 3", "guess 4"))
    vector.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_vector_environment_over_clients(client_split: ClientSplit, mode: Any) -> None:
    vector = client_split.make_vec([4, 1], vectorization_mode=mode, max_turns=2)
    observations, infos = vector.reset(seed=[5, 6])
    alone = [client_split.client(number).make(max_turns=2).reset(seed=seed) for number, seed in ((4, 5), (1, 6))]
    assert list(observations) == [observation for observation, _ in alone]
    assert list(infos["task"]) == [info["task"] for _, info in alone]
    vector.step(("guess 3", "guess 4"))
    *_, truncated, _ = vector.step(("x", "x"))
    assert truncated.all()
    vector.close()


def test_a_vector_environment_needs_clients_that_exist(client_split: ClientSplit) -> None:
    assert client_split.make_vec().num_envs == 6
    for clients, sentence in (([], "at least one client"), ([0, 6], "there is no client")):
        with pytest.raises(OptionError, match=sentence):
            client_split.make_vec(clients)
    with pytest.raises(UnknownNameError, match="mode"):
        client_split.make_vec([0], vectorization_mode="threads")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="vector_kwargs must be a mapping"):
        client_split.make_vec([0], vector_kwargs=["copy"])  # type: ignore[arg-type]
    with pytest.raises(
        UnknownNameError, match="keyword of async vector environments 'shared': did you mean 'shared_mem"
    ):
        client_split[0].make_vec(2, vectorization_mode="async", vector_kwargs={"shared": False})


def test_a_vector_environment_takes_the_keywords_of_gymnasium(client_split: ClientSplit) -> None:
    for make in (partial(client_split.make_vec, [0, 3]), partial(client_split[0].make_vec, 2)):
        vector = make(vectorization_mode="async", vector_kwargs={"shared_memory": False})
        try:
            assert not vector.shared_memory and len(vector.reset(seed=0)[0]) == 2
        finally:
            vector.close()


def test_a_client_number_out_of_range(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.json")
    for number in (-1, 6, 10**9):
        with pytest.raises(OptionError, match=r"there is no client .* the split has 6, numbered 0 to 5"):
            client_split.client(number)
        with pytest.raises(OptionError, match="there is no client"):
            gymnasium.make(GUESS, client_split=str(path), client=number)
    for odd in (True, 1.0, "1"):
        with pytest.raises(OptionError, match="there is no client"):
            client_split.client(odd)  # type: ignore[arg-type]


def test_gym_make_refuses_what_the_split_decides(client_split: ClientSplit, tmp_path: Path) -> None:
    path = str(client_split.save(tmp_path / "split.json"))
    with pytest.raises(OptionError, match="belong together"):
        gymnasium.make(GUESS, client_split=path)
    with pytest.raises(OptionError, match="tasks= is decided by the split"):
        gymnasium.make(GUESS, client_split=path, client=0, tasks=["guess/train/00001"])
    with pytest.raises(OptionError, match="split= is decided by the split"):
        gymnasium.make(GUESS, client_split=path, client=0, split="warmup")
    with pytest.raises(OptionError, match="divides fedagentgym/Guess-v0, not fedagentgym/Math-v0"):
        gymnasium.make("fedagentgym/Math-v0", client_split=path, client=0)
    with pytest.raises(DataError, match="there is no split file"):
        gymnasium.make(GUESS, client_split=str(tmp_path / "none.json"), client=0)
    assert gymnasium.make(GUESS, client_split=path, client=0, max_turns=3).unwrapped.max_turns == 3


def test_evaluation_splits_are_never_divided() -> None:
    for split in ("val", "test", "all"):
        with pytest.raises(OptionError, match="never divided among clients"):
            federate(GUESS, clients=2, tasks_per_client=2, split=split)
    with pytest.raises(OptionError, match="never divided among clients"):
        federate("fedagentgym/ALFWorld-v0", clients=2, tasks_per_client=2, split="valid_unseen", env={"size": "tiny"})


def test_roles_are_apart(client_split: ClientSplit) -> None:
    held = {name for client in client_split for name in client.tasks}
    public, warmup = set(client_split.role("public").ids), set(client_split.role("warmup").ids)
    assert len(public) == 15 and len(warmup) == 5
    assert not public & held and not warmup & held and not public & warmup
    server = client_split.role("server")
    assert set(server.ids) <= held and all(not task.graded for task in server)
    assert all(task.graded for task in client_split.role("public"))
    with pytest.raises(OptionError, match="no role 'auxiliary'"):
        client_split.role("auxiliary")


@pytest.mark.parametrize(("overlap", "shared"), [(1.0, 40), (0.0, 0), (0.25, 10)])
def test_server_overlap(overlap: float, shared: int) -> None:
    made = federate(GUESS, clients=5, tasks_per_client=40, roles={"server": 40, "public": 20}, server_overlap=overlap)
    held = {name for client in made for name in client.tasks}
    server = made.record.roles["server"]
    assert len(server) == 40 and sum(name in held for name in server) == shared
    assert not set(server) & set(made.record.roles["public"])


def test_role_errors() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'public'"):
        federate(GUESS, clients=2, tasks_per_client=2, roles={"publik": 3})
    with pytest.raises(OptionError, match="take all 600 tasks"):
        federate(GUESS, clients=2, tasks_per_client=2, roles={"public": 400, "auxiliary": 300})
    with pytest.raises(OptionError, match="number of tasks"):
        federate(GUESS, clients=2, tasks_per_client=2, roles={"public": -1})
    with pytest.raises(OptionError, match=r"needs 50 tasks that clients hold, and they hold \d+"):
        federate(GUESS, clients=2, tasks_per_client=2, roles={"server": 50})
    with pytest.raises(OptionError, match="server_overlap must be a number between 0 and 1"):
        federate(GUESS, clients=2, tasks_per_client=2, server_overlap=1.5)
    with pytest.raises(OptionError, match="500 tasks per client are asked for, the pool has 400"):
        federate(GUESS, clients=2, tasks_per_client=500, roles={"public": 200})


def test_other_mistakes() -> None:
    with pytest.raises(UnknownNameError, match="environment"):
        federate("fedagentgym/Gess-v0", clients=2, tasks_per_client=2)
    with pytest.raises(UnknownNameError, match="did you mean 'preference'"):
        federate(GUESS, partition="preferense", clients=2)
    with pytest.raises(OptionError, match="no option 'sead'"):
        federate(GUESS, clients=2, tasks_per_client=2, env={"sead": 1})
    with pytest.raises(OptionError, match="seed"):
        federate(GUESS, clients=2, tasks_per_client=2, seed="0")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="variant"):
        federate(GUESS, clients=2, tasks_per_client=2, variant="upside_down")
    with pytest.raises(UnknownNameError, match="unknown variant of fedagentgym/Guess-v0 'wording'"):
        federate(GUESS, clients=2, tasks_per_client=2, variant="wording")


def test_environments_of_clients_pickle_between_steps(client_split: ClientSplit) -> None:
    env = client_split.client(0).make()
    env.reset(seed=1)
    state = pickle.loads(pickle.dumps(env.unwrapped.snapshot()))
    env.step("guess 3")
    env.unwrapped.restore(state)
    assert env.unwrapped.episode.turn == 0


def test_a_pool_of_ones_own() -> None:
    from fedagentgym.envs.guess import HiddenNumber
    from fedagentgym.envs.pool import TaskPool

    pool = TaskPool.from_records(
        [{"category": "small", "payload": HiddenNumber(10, 1 + number % 10)} for number in range(30)], env=GUESS
    )
    made = federate(GUESS, clients=3, tasks_per_client=5, pool=pool)
    env = made.client(1).make()
    assert list(env.unwrapped.pool.ids) == list(made.client(1).tasks) and env.reset(seed=0)[0]


def test_a_pool_of_another_environment_or_split_is_refused(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.json")
    held = [client.tasks for client in client_split]
    for pool, said in (
        (open_env(GUESS, split="val").pool, "tasks of the split 'train', and this pool holds tasks of the split 'val'"),
        (open_env(GUESS, split="all").pool, "tasks of the split 'train', and this pool holds tasks of the split 'all'"),
        (open_env("Skills").pool, f"tasks of {GUESS}, and this pool holds tasks of fedagentgym/Skills-v0"),
    ):
        for divide in (
            lambda pool=pool: federate(GUESS, clients=2, pool=pool),
            lambda pool=pool: federate(open_env(GUESS), clients=2, pool=pool),
            lambda pool=pool: load_client_split(path, pool=pool),
            lambda pool=pool: import_client_split(GUESS, held, pool=pool),
        ):
            with pytest.raises(OptionError, match=f"pool must hold {said}"):
                divide()
    warm = open_env(GUESS, split="warmup").pool
    assert federate(GUESS, clients=2, split="warmup", pool=warm).pool is warm


def test_an_environment_is_divided_with_its_options() -> None:
    made = federate(gymnasium.make(GUESS, max_turns=3, seed=4, render_mode="ansi"), clients=2, env={"order": "once"})
    same = federate(GUESS, clients=2, env={"max_turns": 3, "seed": 4, "order": "once"})
    assert made.record.env_options == {"max_turns": 3, "seed": 4, "order": "once"} and made.digest == same.digest
    assert made[1].open_env().max_turns == 3
    assert federate(gymnasium.make(GUESS), clients=2).digest == federate(GUESS, clients=2).digest
    warm = gymnasium.make(GUESS, split="warmup")
    assert federate(warm, split="warmup", clients=2).digest == federate(GUESS, split="warmup", clients=2).digest


def test_an_environment_with_a_part_of_the_tasks_a_variant_or_another_split_is_refused() -> None:
    part = open_env(GUESS, tasks=open_env(GUESS).pool.ids[:10])
    client = federate(GUESS, clients=2)[0]
    varied = federate("Math", clients=2, env={"size": "tiny"}, variant="wording")[0]
    for opened, said in (
        (part, r"must play all tasks of its pool, and this one plays 10 of 600: .* pool=env\.pool"),
        (client, "must play all tasks of its pool, and this one plays 300 of 600"),
        (varied, "must have no variant, and this one has .*wording"),
        (gymnasium.make(GUESS, split="val"), "must play the split 'train', and this one plays 'val'"),
        (gymnasium.make(GUESS, split="all"), "must play the split 'train', and this one plays 'all'"),
    ):
        with pytest.raises(OptionError, match=f"the environment to divide {said}"):
            federate(opened, clients=2)
    with pytest.raises(OptionError, match="must play the split 'warmup', and this one plays 'train'"):
        federate(open_env(GUESS), split="warmup")
    assert federate(part, clients=2, pool=part.pool).table.ids == sorted(part.pool.ids)
    assert len(federate(client, clients=2, pool=client.pool).pool) == 300


def test_loaded_data_is_found_by_whoever_has_it(shared_data: Path, tmp_path: Path) -> None:
    """The split of a real catalogue holds no path; the holder of the data says where it lies."""
    shop = "fedagentgym/WebShop-v0"
    data = {"data": str(shared_data / "webshop")}
    options = {"goal_order": "fedagent", **data}
    made = federate(shop, partition="preference", clients=100, tasks_per_client=100, omega=0.9, env=options)
    path = made.save(tmp_path / "split.json")
    assert str(shared_data) not in path.read_text() and len(made.pool) == 6410
    with pytest.raises(
        DataError, match=r"made for another pool .*; if it was made with data= or pool=, give that again"
    ):
        load_client_split(path)
    again = load_client_split(path, env=data)
    assert again.digest == made.digest and all(check.ok is not False for check in again.verify())
    env = gymnasium.make(shop, client_split=str(path), client=21, **data)
    assert env.reset(seed=0)[1]["task"] in made.client(21).tasks


def test_numpy_integers_are_integers(client_split: ClientSplit) -> None:
    assert client_split.client(np.int64(2)).tasks == client_split.client(2).tasks  # type: ignore[arg-type]
    made = federate(GUESS, clients=np.int32(2), tasks_per_client=3, seed=np.int64(1))  # type: ignore[arg-type]
    assert made.digest == federate(GUESS, clients=2, tasks_per_client=3, seed=1).digest


def test_lazy_names_resolve() -> None:
    import fedagentgym.partitions as room

    assert room.ClientSplit is ClientSplit and room.federate is fedagentgym.federate
    with pytest.raises(AttributeError):
        room.nothing  # noqa: B018


@given(
    start=st.integers(-9, 9) | st.none(), stop=st.integers(-9, 9) | st.none(), step=st.sampled_from([None, 1, 2, -1])
)
def test_a_split_is_a_sequence_of_its_clients(start: int | None, stop: int | None, step: int | None) -> None:
    split = federate("fedagentgym/Guess-v0", partition="uniform", clients=5, tasks_per_client=4)
    plain = [split.client(index) for index in range(5)]
    assert split[start:stop:step] == split.clients[start:stop:step] == plain[start:stop:step]
    assert len(split) == len(split.clients) == 5 and list(split.clients) == list(split) == plain


def test_clients_are_numbered_as_in_any_python_sequence() -> None:
    split = federate("fedagentgym/Guess-v0", partition="uniform", clients=5, tasks_per_client=4)
    assert split[3] == split.clients[3] == split.client(3) and split[-1] == split.client(4)
    assert (
        split[np.int64(2)].index == 2
        and split.client(1) in split.clients
        and [c.index for c in reversed(split.clients)] == [*range(4, -1, -1)]
    )
    for wrong in (5, -6, 10**30):
        with pytest.raises(IndexError, match="numbered 0 to 4"):
            split[wrong]
    for strange in (True, "3", 1.0, None):
        with pytest.raises(OptionError, match="numbered"):
            split[strange]  # type: ignore[call-overload]
