"""The first minutes of a newcomer, in the environment that holds the installed package. Run by `test_installs.py`.

usage: python newcomer.py core|train CHECKOUT
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium

import fedagentgym
from fedagentgym.cli.application import COMMANDS, load_application
from fedagentgym.cli.main import main
from fedagentgym.envs import ShowInstructions
from fedagentgym.errors import FedAgentGymError

RUN = """
plugins: [fedagentgym.testing.untrained]
env: {id: fedagentgym/Guess-v0}
agent: untrained-tiny
partition: {clients: 2, tasks_per_client: 6}
learning: {tasks_per_step: 3, group_size: 2}
algorithm: {name: fedagent, local_steps: 1}
federation: {rounds: 1}
output: {folder: run}
"""


def list_helps(command: Any, path: tuple[str, ...] = ()) -> list[list[str]]:
    """The command lines that ask for help, of a command and all below it."""
    below = getattr(command, "commands", {})
    return [[*path, "--help"]] + [line for name in below for line in list_helps(below[name], (*path, name))]


def check(*arguments: str, code: int = 0) -> None:
    found = main(list(arguments))
    assert found == code, f"fedagentgym {' '.join(arguments)} ended with {found}, not {code}"


def try_core() -> None:
    for name in fedagentgym.registration.ENVIRONMENTS.names():
        gymnasium.make(name).reset(seed=0)
    helps = list_helps(load_application())
    assert len(helps) > len(COMMANDS)
    for line in helps:
        check(*line)
    check("envs")
    check(
        "split", "make", "preference", "--env", "Guess", "--clients", "4", "--tasks-per-client", "10", "--omega", "0.9"
    )
    check("split", "verify", "split.json")
    check("eval", "--env", "Guess", "--agent", "expert", "--tasks", "5")
    check("train", "--list")
    check("train", "demo", "--show")
    check("train", "demo", "--plan")
    check("doctor")
    command = [Path(sys.executable).parent / "fedagentgym", "play", "Guess", "--task", "guess/train/00003"]
    typed = "\n".join(f"guess {number}" for number in range(1, 11))
    assert (
        "guess/train/00003" in subprocess.run(command, input=typed, capture_output=True, text=True, check=True).stdout
    )


def try_own_data() -> None:
    """The first hour with rows of one's own: as files and lists, in splits, in commands, and in a loop of one's own."""
    rows = [{"frage": f"What is {n} + 2?", "answer": n + 2, "office": ("Oslo", "Lima")[n % 2]} for n in range(12)]
    Path("mine.csv").write_text(
        "frage,answer,office\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in rows)
    )
    options = ["--env-set", "data=mine.csv", "--env-set", "columns.question=frage"]
    check("eval", "--env", "Math", *options, "--agent", "expert", "--split", "train", "--tasks", "5")
    check("split", "make", "natural", "--by", "office", "--env", "Math", *options, "--out", "offices.json")
    check("split", "show", "offices.json")
    check("split", "verify", "offices.json", "--env-set", "data=mine.csv")
    check("split", "make", "dirichlet", "--alpha", "0.3", "--env", "Guess", "--clients", "3", "--out", "alpha.json")
    env = gymnasium.make("fedagentgym/Math-v0", data=rows, columns={"question": "frage"}, order="once")
    observation, info = env.reset(seed=0)
    assert observation == "What is 0 + 2?" and "<answer>" in info["instructions"]
    assert env.step("<answer> 2 </answer>")[1] == 1.0
    assert fedagentgym.evaluate("expert", env, tasks=4).overall["success"].mean == 1.0
    client = gymnasium.make("fedagentgym/Math-v0", client_split="offices.json", client=1, data=rows)
    assert len(client.unwrapped.pool) == 6
    assert len(fedagentgym.federate("guess", clients=3)[0].make_vec(2, vectorization_mode="sync").reset()[0]) == 2


def read_output(*arguments: str, code: int = 0) -> str:
    """The output of a command as it is typed, which a log would hold."""
    command = [Path(sys.executable).parent / "fedagentgym", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"fedagentgym {' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
    return done.stdout + done.stderr


def try_own_loop() -> None:
    """A loop of one's own, wrong types, small samples, lists and plans."""
    env = ShowInstructions(gymnasium.make("fedagentgym/Math-v0", size="tiny"))
    assert "<answer>" in str(env.reset(seed=0)[0])
    shop = gymnasium.make("fedagentgym/WebShop-v0", size="tiny")
    shop.reset(seed=0)
    assert not shop.step("search[<query>]")[4]["valid"]
    for call in (lambda: fedagentgym.evaluate("random", 3), lambda: fedagentgym.federate(None, clients=2)):
        try:
            call()
        except FedAgentGymError as error:
            assert "\n" not in str(error)
        else:
            raise AssertionError("a wrong type was accepted")
    said = read_output("eval", "--env", "WebShop", "--env-set", "size=tiny", "--agent", "random", "--tasks", "8")
    assert "…" not in said and "0.000 to 0.000" not in said and max(map(len, said.splitlines())) <= 80
    assert "houses" in read_output("bench", "show", "agents-tiny-v1", "--plan")
    lists = [read_output("train", "--list"), read_output("bench", "list"), read_output("split", "presets")]
    assert all("…" not in said and max(map(len, said.splitlines())) <= 80 for said in lists)
    assert "categories-per-client" in read_output("split", "make", "--help")


def try_training() -> None:
    Path("run.yaml").write_text(RUN)
    check("train", "run.yaml")
    own = {
        "env": {"id": "Guess"},
        "agent": "tiny",
        "partition": {"clients": 2, "tasks_per_client": 6},
        "federation": {"rounds": 1},
    }
    own |= {"learning": {"tasks_per_step": 2, "group_size": 2}, "evaluation": {"tasks": 5}, "output": {"folder": "own"}}
    result = fedagentgym.train(own)
    assert result.success is not None and result.interval is not None and len(result.curve) == 2
    assert len(result.episodes()) == 5 and len(repr(result)) < 200
    check("export", "run", "exported")
    assert (Path("exported") / "config.json").is_file()


if __name__ == "__main__":
    assert not Path(fedagentgym.__file__).is_relative_to(sys.argv[2]), "the checkout was imported, not the package"
    try_core()
    try_own_data()
    try_own_loop()
    if sys.argv[1] == "train":
        try_training()
    else:
        check("train", "demo", code=2)
