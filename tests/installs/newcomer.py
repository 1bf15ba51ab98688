"""The first hour of a newcomer, in the environment that holds the installed package. Run by `test_installs.py`, and by
`test_first_steps.py` after `make demo`.

usage: python newcomer.py core|train|hour CHECKOUT
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium

import fedagentgym
from fedagentgym.cli.application import COMMANDS, load_application
from fedagentgym.cli.main import main
from fedagentgym.envs import ShowPrompt
from fedagentgym.errors import FedAgentGymError

RUN = """
env: {id: fedagentgym/Guess-v0}
agent: untrained-tiny
partition: {clients: 2, tasks_per_client: 6}
learning: {tasks_per_step: 3, group_size: 2}
algorithm: {name: fedagent, local_steps: 1}
federation: {rounds: 1}
output: {folder: run}
"""


OWN_AGENT = """
env: {id: Guess}
agent: tiny
partition: {clients: 2, tasks_per_client: 6}
learning: {tasks_per_step: 2, group_size: 2}
federation: {rounds: 1}
evaluation: {tasks: 5}
"""
MISROUNDED = re.compile(r"(?<![\w.])-0(\.0+)?(?![\d.])|\b0 seeds|\b1 (minutes|rounds|seeds|results)\b|Traceback")


class Slow(BaseHTTPRequestHandler):
    """A server of chat completions that thinks for two seconds."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(2 * self.path.startswith("/slow"))
        reply = {"role": "assistant", "content": "<answer> 1 </answer>"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        body = json.dumps({"choices": [{"message": reply, "finish_reason": "stop"}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """The address of a hosted model on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


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
    check("presets")
    check("presets", "demo")
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
    assert observation == "What is 0 + 2?" and "<answer>" in info["prompt"]
    assert env.step("<answer> 2 </answer>")[1] == 1.0
    assert fedagentgym.evaluate("expert", env, tasks=4).overall["success"].mean == 1.0
    client = gymnasium.make("fedagentgym/Math-v0", client_split="offices.json", client=1, data=rows)
    assert len(client.unwrapped.pool) == 6
    assert len(fedagentgym.federate("guess", clients=3)[0].make_vec(2, vectorization_mode="sync").reset()[0]) == 2


def read_output(*arguments: str, code: int = 0) -> str:
    """The output of a command as it is typed, which a log would hold."""
    command = [Path(sys.executable).parent / "fedagentgym", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"fedagentgym {' '.join(arguments)} ended with {done.returncode}: {said}"
    assert not MISROUNDED.search(said), f"fedagentgym {' '.join(arguments)}: {said}"
    return said


def try_own_loop() -> None:
    """A loop of one's own, wrong types, small samples, lists and plans."""
    env = ShowPrompt(gymnasium.make("fedagentgym/Math-v0", size="tiny"))
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
    assert "houses" in read_output("bench", "plan", "agents-tiny-v1")
    lists = [read_output("presets"), read_output("bench", "list"), read_output("split", "presets")]
    assert all("…" not in said and max(map(len, said.splitlines())) <= 80 for said in lists)
    assert "categories-per-client" in read_output("split", "make", "--help")


def try_training() -> None:
    Path("run.yaml").write_text(RUN)
    check("plan", "demo")
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
    check("export", "run", "--out", "exported")
    assert (Path("exported") / "config.json").is_file()


def try_own_agent() -> None:
    """A configuration of one's own starts from the package's tiny agent, or says what is made, why and for how long."""
    Path("own.yaml").write_text(OWN_AGENT)
    said = read_output("train", "own.yaml")
    assert "making" not in said
    again = re.search(r"play it again: fedagentgym (eval --run \S+)", said)
    assert again is not None and "recorded the same" in read_output(*again.group(1).split())
    said = read_output(
        *("train", "own.yaml", "--set", "warm_start={episodes: 40, steps: 4}", "--out", "made", "--force")
    )
    said = " ".join(said.split())
    assert "making a tiny agent for fedagentgym/Guess-v0 (40 demonstrations, 4 steps" in said, said
    assert "progress shows the time left" in said and "without these settings the package's agent is used" in said, said


def try_own_pool() -> None:
    """A library's data set, and a client split of a pool of one's own."""
    from datasets import Dataset

    rows = [{"problem": f"What is {n} + 2?", "solution": str(n + 2)} for n in range(12)]
    columns = {"question": "problem", "answer": "solution"}
    env = gymnasium.make("fedagentgym/Math-v0", data=Dataset.from_list(rows), columns=columns)
    pool = env.unwrapped.pool
    assert len(pool) == 12
    split = fedagentgym.federate("Math", partition="uniform", pool=pool, clients=3, tasks_per_client=4)
    split.save("pool.json")
    for given in (split, "pool.json"):
        client = gymnasium.make("fedagentgym/Math-v0", client_split=given, client=1, pool=pool)
        assert len(client.unwrapped.pool) == 4
    make = ["split", "make", "uniform", "--env", "Guess", "--clients", "2", "--tasks-per-client", "5"]
    said = read_output(*make, "--out", "drawn.json", "--plot", "drawn.png", code=2)
    assert "fedagentgym[plots]" in said and not Path("drawn.json").exists()


def try_hosted_model() -> None:
    """A mistyped address costs a second and not the entry's name; a slow model says so in a log."""
    entry = ["--agent", "endpoint", "--agent-set", "model=third", "--scenario", "questions"]
    begin = time.monotonic()
    said = read_output(
        "bench", "run", "agents-tiny-v1", *entry, "--agent-set", "options.url=http://127.0.0.1:9/v1", code=2
    )
    assert "refused" in said and time.monotonic() - begin < 30, said
    with serve() as address:
        read_output("bench", "run", "agents-tiny-v1", *entry, "--agent-set", f"options.url={address}/v1")
        said = read_output(
            *["eval", "--env", "Math", "--env-set", "size=tiny", "--tasks", "8", "--agent", "endpoint"],
            *["--agent-set", "model=third", "--agent-set", f"options.url={address}/slow/v1"],
            *["--agent-set", "options.concurrency=1"],
        )
    assert re.search(r"\d of 8, .* left", said), said
    run = "runs/leaderboard/agents-tiny-v1/endpoint-third"
    listed = read_output("episodes", run, "--limit", "3", "--list")
    read_output("bench", "pack", run)
    packed = Path("results/agents-tiny-v1/endpoint-third.zip")
    said = read_output("episodes", str(packed), "--limit", "3", "--list")
    assert said == listed and len(said.splitlines()) == 4 and "3 of 100" in said, said
    read_output("bench", "verify", str(packed))
    read_output("leaderboard", "build", str(packed), "--out", "site")
    page = re.sub(r"<(script|style|svg).*?</\1>|<[^>]*>", " ", Path("site/index.html").read_text(), flags=re.S)
    assert not MISROUNDED.search(page), MISROUNDED.search(page)


def try_trl(checkout: Path) -> None:
    """The reward of the example's first steps and of its last."""
    command = [sys.executable, "-W", "ignore", str(checkout / "examples" / "trl_rollouts.py")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rewards = [float(value) for value in re.findall(r"^ *\d+ to +\d+ +(\S+)", said, re.M)]
    assert len(rewards) == 5 and rewards[-1] > rewards[0] + 0.2, said


if __name__ == "__main__":
    assert not Path(fedagentgym.__file__).is_relative_to(sys.argv[2]), "the checkout was imported, not the package"
    try_core()
    try_own_data()
    try_own_loop()
    if sys.argv[1] == "core":
        check("plan", "demo", code=2)
        check("train", "demo", code=2)
    else:
        try_training()
    if sys.argv[1] == "hour":
        try_own_agent()
        try_own_pool()
        try_hosted_model()
        try_trl(Path(__file__).parents[2])
