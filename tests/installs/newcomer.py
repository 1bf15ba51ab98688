"""What a newcomer does in the first minutes, in the environment that holds the installed package. Run by `test_installs.py`.

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


def try_training() -> None:
    Path("run.yaml").write_text(RUN)
    check("train", "run.yaml")
    check("export", "run", "exported")
    assert (Path("exported") / "config.json").is_file()


if __name__ == "__main__":
    assert not Path(fedagentgym.__file__).is_relative_to(sys.argv[2]), "the checkout was imported, not the package"
    try_core()
    if sys.argv[1] == "train":
        try_training()
    else:
        check("train", "demo", code=2)
