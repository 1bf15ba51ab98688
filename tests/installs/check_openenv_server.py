"""Run by `test_bridges_apart.py`: a server of ours, seen by the clients of the installed openenv and by plain HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import requests
import uvicorn
from openenv.core.generic_client import GenericEnvClient

from fedagentgym.bridges.openenv import make_app
from fedagentgym.envs import open_env

ENV = open_env("fedagentgym/WebShop-v0", size="tiny", split="val")


@contextmanager
def serve() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(make_app(ENV, sessions=8), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


def check_episodes(client: Any, seeds: range) -> None:
    """The client sees the same as through gymnasium's interface, step by step, with the expert at play."""
    mine = open_env(ENV.id, size="tiny", split="val")
    for seed in seeds:
        observation, info = mine.reset(seed=seed)
        result, expert = client.reset(seed=seed), mine.expert()
        assert result.observation["text"] == observation
        assert result.observation["prompt"] == info["prompt"] and mine.action_help in info["prompt"]
        while not result.done:
            action = expert.act(mine.episode)
            observation, reward, terminated, truncated, info = mine.step(action)
            result = client.step({"text": action})
            seen = result.observation
            assert (seen["text"], result.reward, result.done) == (observation, reward, terminated or truncated)
            assert all(seen[name] == info[name] for name in ("prompt", "admissible", "valid", "turn"))
            graded = ("score", "success", "rewards", "task", "category")
            assert all(seen[name] == (info[name] if result.done else None) for name in graded)
        assert client.state()["step_count"] == info["turn"] and set(client.state()) <= {
            "env",
            "episode_id",
            "task",
            "step_count",
            "task_set",
        }


def expect_error(call: Callable[[], object], said: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"no error that says {said!r}")


def check_mistakes(client: Any) -> None:
    """A client's mistake is reported to it, and its session goes on."""
    expect_error(lambda: client.reset(task="nope"), "unknown task")
    expect_error(lambda: client.reset(split="train", index=0), "'val', not 'train'")
    expect_error(lambda: client.reset(split="val", index=10**9), "there is no number 1000000000")
    expect_error(lambda: client.reset(sead=3), "'sead' is unknown")
    expect_error(lambda: client.step({"words": "x"}), "VALIDATION_ERROR")
    result = client.reset(split="val", index=2)
    assert client.state()["task"] == ENV.pool.ids[2]
    result = client.step({"text": 42})
    assert result.observation["turn"] == 1
    result = client.step({"text": "\ud83d nonsense \x00" * 50})
    assert result.observation["valid"] is False
    while not result.done:
        result = client.step({"text": "nonsense"})
    assert result.observation["truncated"]
    expect_error(lambda: client.step({"text": "nonsense"}), "the episode is over")


def main() -> None:
    with serve() as address:
        with GenericEnvClient(base_url=address).sync() as client:
            expect_error(lambda: client.step({"text": "x"}), "reset")
            check_episodes(client, range(3))
            check_mistakes(client)
        clients = [GenericEnvClient(base_url=address).sync() for _ in range(4)]
        failed: list[BaseException] = []

        def play(number: int) -> None:
            try:
                with clients[number] as mine:
                    check_episodes(mine, range(10 * number, 10 * number + 3))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        answer = requests.post(f"{address}/reset", json={"seed": 5}, timeout=20).json()
        assert answer["observation"]["text"] == ENV.reset(seed=5)[0]
        splits = requests.get(f"{address}/webshop/splits", timeout=20).json()
        assert "val" in str(splits), splits
        count = requests.post(f"{address}/webshop/num_tasks", json={"split": "val"}, timeout=20).json()
        assert str(len(ENV.pool)) in str(count), count
    print("checked with openenv", version("openenv"))


if __name__ == "__main__":
    main()
