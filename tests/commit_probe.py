"""Compute digests of what the package computes: the half of `compare_commits.py` that runs once per checkout.

    PYTHONPATH=CHECKOUT python -P tests/commit_probe.py CHECKOUT < CASES

reads cases (kind/name -> plain values, see `compare_commits.py`) and prints one JSON object, kind/name/part -> digest. Where
something raises, there is a part `failed` with the error. Only public names that both commits have are used. Times, dates, paths
and versions are left out of everything that is hashed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import fedagentgym
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.cli.main import main as main_command
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.partitions import SAMPLERS

Case = Mapping[str, Any]
Digests = Iterator[tuple[str, str]]
CHECKOUT = Path(fedagentgym.__file__).resolve().parents[1]

UNTRAINED = "fedagentgym.testing.untrained"
"""The plugin module that registered the agent `untrained-tiny` in older commits."""


def run_command(*arguments: str) -> None:
    """Run the command `fedagentgym` of this checkout."""
    if code := main_command(["-q", *arguments]):
        raise RuntimeError(f"fedagentgym {' '.join(arguments)} ended with code {code}")


def list_registered(kind: str) -> list[str]:
    """The names of all algorithms, of all samplers and all ways in which clients' environments differ, or of all environments."""
    if kind == "methods":
        return list(ALGORITHMS.names())
    ids = [name for name in gymnasium.registry if name.startswith("fedagentgym/")]
    if kind == "episodes":
        return ids
    variants = {variant.kind for name in ids for variant in ENVIRONMENTS.get(name).variants}
    return [*SAMPLERS.names(), *(f"variant {kind}" for kind in variants)]


# ==== digests =========================================================================================================


def digest(value: Any) -> str:
    """sha256 of a value made of mappings, lists, numbers, texts and bytes; floats count to their last bit."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode("ascii")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be hashed: {str(value)[:80]}")


def without(value: Any, unwanted: Callable[[str], bool]) -> Any:
    """The same value without the keys that are unwanted, at any depth."""
    if isinstance(value, Mapping):
        return {key: without(item, unwanted) for key, item in value.items() if not unwanted(key)}
    return [without(item, unwanted) for item in value] if isinstance(value, list) else value


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def safetensors_digest(folder: Path) -> str:
    """Names, dtypes, shapes and bytes of the tensors in a folder's `.safetensors` file."""
    (file,) = folder.glob("*.safetensors")
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    if not header:
        raise ValueError(f"{file} holds no tensor")
    spans = {name: [start + offset for offset in entry["data_offsets"]] for name, entry in header.items()}
    return digest({n: [e["dtype"], e["shape"], data[slice(*spans[n])]] for n, e in header.items()})


def encoded_arrays(data: bytes) -> list[str]:
    """Digests of the arrays in the package's encoding (magic, length of header, header, arrays), whatever they are called."""
    begin = data.index(b"FAG1")
    offset = begin + 12 + struct.unpack("<Q", data[begin + 4 : begin + 12])[0]
    found = []
    for dtype, shape in json.loads(data[begin + 12 : offset])["arrays"]:
        end = offset + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        found.append(digest([dtype, shape, data[offset:end]]))
        offset = end
    if offset != len(data):
        raise ValueError("the encoded arrays do not end where the data ends")
    return sorted(found)


# ==== methods =========================================================================================================


def run_digests(case: Case, scratch: Path) -> Digests:
    """Train; then what came out, part by part."""
    import yaml

    folder = scratch / "run"
    output = {"folder": str(folder), "report": "none"}
    config = {**case, "output": output, "plugins": [UNTRAINED] if find_spec(UNTRAINED) else []}
    record = fedagentgym.train(config).record
    rounds = json_lines(folder / "metrics.jsonl")
    if any(line["failures"] for line in rounds):
        raise RuntimeError(f"a client failed: {[line['failures'] for line in rounds]}")
    run_command("export", str(folder), str(scratch / "model"))
    yield "policy", safetensors_digest(scratch / "model")
    if "adapter" in case["agent"]:
        run_command("export", str(folder), str(scratch / "adapter"), "--adapter")
        yield "adapter", safetensors_digest(scratch / "adapter")
    timed = re.compile(r"second|^digest$|^policy$|^bytes|^low$|^high$")
    yield "metrics", digest(without(rounds, lambda key: bool(timed.search(key))))
    counts = rounds[-1]["bytes_total"].items()
    yield "bytes", digest({way: without(columns, ("report", "framing").__contains__) for way, columns in counts})
    yield "framing", digest({way: columns["framing"] for way, columns in counts})
    played = [*sorted(folder.glob("evaluation/*.jsonl")), *sorted(folder.glob("trajectories/*.jsonl"))]
    episodes = {f"{path.parent.name}/{path.name}": json_lines(path) for path in played}
    yield "episodes", digest(without(episodes, ("policy", "pool").__contains__))
    settings = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    settings = {key: value for key, value in settings.items() if key not in ("output", "plugins")}
    yield "settings", digest(settings)
    newest = max((folder / "rounds").iterdir(), key=lambda place: int(place.name)) / "global.bin"
    kept = sorted((folder / "states").rglob("*.state")) if (folder / "states").exists() else []
    yield "state", digest([record["final"]["digest"], *(path.read_bytes() for path in kept)])
    yield "numbers of the state", digest([encoded_arrays(path.read_bytes()) for path in (newest, *kept)])


# ==== splits ==========================================================================================================


def split_digests(case: Case, scratch: Path) -> Digests:
    """Divide, save in both forms, read again, and let the first clients of a small split play."""
    options = {"seed": 11, **case}
    made = fedagentgym.federate(options.pop("env_id"), **options)
    assignment = digest(held(made))
    yield "assignment", assignment
    file, folder = Path(made.save(scratch / "split.json")), Path(made.save(scratch / "split"))
    stored = json.loads(file.read_text("utf-8"))
    yield "digest", stored["digest"]
    stored = {key: item for key, item in stored.items() if key not in ("schema", "provenance", "digest")}
    yield "file", digest(stored)
    yield "folder", digest({path.name: path.read_bytes() for path in folder.glob("*.bin")})
    if any(digest(held(fedagentgym.load_client_split(place))) != assignment for place in (file, folder)):
        raise RuntimeError("the split is another one when it is read again")
    if len(made) < 10:
        options = {"client_split": file, "disable_env_checker": True}
        envs = [gymnasium.make(case["env_id"], client=client, **options) for client in range(3)]
        yield "episodes", digest([episode(env, seed, player) for env in envs for seed, player in enumerate(PLAYERS)])


def held(split: Any) -> list[list[str]]:
    """The task ids of every client."""
    return [list(split.client(client).tasks) for client in range(len(split))]


# ==== episodes ========================================================================================================


def expert_player(env: Any, seed: int) -> Callable[[str, Mapping[str, Any]], str]:
    """The environment's own expert."""
    expert = env.unwrapped.expert()
    return lambda observation, info: str(expert.act(env.unwrapped.episode))


def random_player(env: Any, seed: int) -> Callable[[str, Mapping[str, Any]], str]:
    """Admissible actions with words of the observation in their slots; replies that are right, cut, bare or nonsense."""
    draw, expert = random.Random(seed), expert_player(env, seed)

    def act(observation: str, info: Mapping[str, Any]) -> str:
        words = re.findall(r"\w+", observation) or ["a"]
        if draw.random() < 0.1:
            return draw.choice(["", "no such action", "\x00é", "guess -1", "<answer></answer>"])
        if info["admissible"]:
            return re.sub(r"<\w+>", lambda _: " ".join(draw.choices(words, k=2)), draw.choice(info["admissible"]))
        tools = ["calc[2 + 3 * 4]", f"search[{draw.choice(words)}]", "run[print(2 + 3)]"]
        tried = [f"<tool> {tool} </tool>" for tool in tools]
        reply, number = expert(observation, info), draw.choice([word for word in words if word.isdecimal()] or words)
        return draw.choice([reply, reply[:-12], reply.replace("think", "answer"), f"<answer>{number}</answer>", *tried])

    return act


PLAYERS = {"expert": expert_player, "random": random_player}


def episode(env: Any, seed: int, player: str) -> list[Any]:
    """Actions, and all that the environment answers, of one episode."""
    observation, info = env.reset(seed=seed)
    act, steps, over = PLAYERS[player](env, seed), [["", observation, info]], False
    while not over:
        action = act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append([action, observation, reward, terminated, truncated, info])
        over = terminated or truncated
    return steps


def episode_digests(case: Case, scratch: Path) -> Digests:
    """The tasks of a split, and several episodes by each player."""
    env: Any = gymnasium.make(disable_env_checker=True, **case)
    yield "tasks", digest([list(env.unwrapped.pool.ids), env.unwrapped.pool.digest])
    for player in PLAYERS:
        yield player, digest([episode(env, seed, player) for seed in range(5)])
    env.close()


# ==== all of them =====================================================================================================


def digests_of(name: str, case: Case, scratch: Path) -> Digests:
    """The parts of one case."""
    kind, _, own = name.partition("/")
    if own == "registered":
        yield "", ", ".join(sorted(list_registered(kind)))
    else:
        yield from {"methods": run_digests, "splits": split_digests, "episodes": episode_digests}[kind](case, scratch)


def main() -> None:
    checkout, cases = Path(sys.argv[1]).resolve(), json.load(sys.stdin)
    if checkout != CHECKOUT:
        sys.exit(f"fedagentgym was imported from {CHECKOUT}, not from {checkout}")
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no part of the answer
    found: dict[str, str] = {}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found.update(
                    (f"{name}/{part}".rstrip("/"), value) for part, value in digests_of(name, case, Path(scratch))
                )
            except Exception as error:
                traceback.print_exc()
                found[f"{name}/failed"] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    main()
