"""One scripted player in five libraries. Run by `test_same_scores.py` in an environment that has the library:

    python scripted_player.py WAY REPLIES.json

prints a JSON list of the episodes: the score of each, and the messages that the player read. The file has the cases: an
environment, its options, a task, and the replies in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Played = tuple[float, list[str]]
"""The score of an episode, and the messages to the model, without its own."""


def list_read(messages: list[dict[str, Any]]) -> list[str]:
    """The contents of the messages to a model."""
    return [one["content"] for one in messages if one["role"] == "user"]


def play_own(cases: list[Case]) -> list[Played]:
    """The package's own base class of agents."""
    from fedagentgym.agents import Agent
    from fedagentgym.envs import open_env
    from fedagentgym.learning import collect

    class Scripted(Agent):
        def __init__(self, replies: list[str], read: list[list[str]]) -> None:
            self.replies, self.read = replies, read

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            self.read.append(list_read(info["messages"]))
            return self.replies[info["turn"]]

    scores = []
    for case in cases:
        read = list[list[str]]()
        agent = Scripted(case["replies"], read)
        (trajectory,) = collect(agent, open_env(case["env"], **case["options"]), [case["task"]]).trajectories
        scores.append((float(trajectory.score), read[-1]))
    return scores


def play_trl(cases: list[Case]) -> list[Played]:
    """TRL's tools, called as its trainer calls them; with one reply also the reward function."""
    import fedagentgym
    from fedagentgym.bridges.trl import make_environment_factory, make_tool_rows
    from fedagentgym.envs import open_env

    scores = []
    for case in cases:
        env = open_env(case["env"], **case["options"])
        (row,), episode = make_tool_rows(env, [case["task"]]), make_environment_factory(env)()
        read = [row["prompt"][0]["content"] + episode.reset(**row)]
        for reply in case["replies"]:
            read.append(episode.act(reply))
            if "The episode is over." in read[-1]:
                read.pop()
                break
        reward = episode.get_reward()
        scores.append((reward, read))
        if env.max_turns == 1:
            assert fedagentgym.make_reward(env)(completions=case["replies"], task=[case["task"]]) == [reward]
    return scores


def play_openenv(cases: list[Case]) -> list[Played]:
    """An OpenEnv server and a client of that library."""
    import uvicorn
    from openenv.core.generic_client import GenericEnvClient

    from fedagentgym.bridges.openenv import make_app
    from fedagentgym.envs import open_env

    scores = []
    for case in cases:
        config = uvicorn.Config(make_app(open_env(case["env"], **case["options"])), port=0, log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            threading.Event().wait(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            result = client.reset(task=case["task"])
            assert result.observation["score"] is None
            read = [result.observation["prompt"]]
            for reply in case["replies"]:
                result = client.step({"text": reply})
                if result.done:
                    break
                read.append(result.observation["prompt"])
        scores.append((result.observation["score"], read))
        server.should_exit = True
        thread.join(20)
    return scores


def play_verifiers(cases: list[Case]) -> list[Played]:
    """`vf-eval` on the taskset of the examples, with an endpoint on this machine as its model."""
    (examples,) = (path for path in map(Path, os.environ["EXAMPLES"].split(os.pathsep)))
    scores = []
    for case in cases:
        asked = list[list[dict[str, Any]]]()
        with serve_replies(case["replies"], asked) as address, tempfile.TemporaryDirectory() as folder:
            taskset = {"id": "verifiers_taskset", "env": case["env"], "options": case["options"]}
            player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
            settings = {
                "model": "scripted",
                "push": False,
                "output_dir": folder,
                "client": {"base_url": f"{address}/v1", "api_key_var": "NO_KEY"},
                "env": {"taskset": taskset, "player": player},
                "select": {"include": {"names": [case["task"]]}},
            }
            file = Path(folder, "run.json")
            file.write_text(json.dumps(settings))
            variables = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(examples), os.environ.get("PYTHONPATH", "")]),
                "NO_KEY": "x",
            }
            command = [str(Path(sys.executable).with_name("vf-eval")), "@", str(file)]
            done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
            lines = [line for file in Path(folder).rglob("traces.jsonl") for line in file.read_text().splitlines()]
            assert lines, done.stderr[-3000:]
            episode = json.loads(lines[0])
            assert episode["ok"], json.dumps(episode)[-3000:]
            scores.append((episode["traces"][0]["info"]["score"], list_read(asked[-1])))
    return scores


def play_inspect(cases: list[Case]) -> list[Played]:
    """inspect_ai's own evaluation, with its mock of a model."""
    import inspect_ai
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def say(reply: str) -> Any:
        output = ModelOutput.from_content("mockllm/model", reply)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    scores = []
    for case in cases:
        model = get_model("mockllm/model", custom_outputs=[say(reply) for reply in case["replies"]], memoize=False)
        arguments = {"env": case["env"], **case["options"]}
        with tempfile.TemporaryDirectory() as folder:
            (log,) = inspect_ai.eval(
                "fedagentgym/play",
                task_args=arguments,
                model=model,
                sample_id=case["task"],
                display="none",
                log_dir=folder,
            )
            assert log.status == "success", log.error
            (score,) = log.samples[0].scores.values()
            read = [str(one.content) for one in log.samples[0].messages if one.role == "user"]
            scores.append((score.value["score"], read))
    return scores


@contextmanager
def serve_replies(replies: list[str], asked: list[list[dict[str, Any]]]) -> Iterator[str]:
    """An OpenAI-compatible endpoint that says the replies in order, as chunks of a stream, and notes the messages."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"])
            turn = sum(message["role"] == "assistant" for message in asked[-1])
            same = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
            delta = {"role": "assistant", "content": replies[turn]}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            chunks = [
                {**same, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                {**same, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {**same, "choices": [], "usage": usage},
            ]
            body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


WAYS = {
    "own": play_own,
    "trl": play_trl,
    "openenv": play_openenv,
    "verifiers": play_verifiers,
    "inspect": play_inspect,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(WAYS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))) + "\n")
