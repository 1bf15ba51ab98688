"""Programs against a gateway: a client of the standard library, threads that play in this process, and a file for one of
their own."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from fedagentgym import agents
from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.gateway.harness import Harness
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import HarnessSettings
from fedagentgym.agents.text.prompts import Template
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.cli.gateway_programs import PROGRAMS
from fedagentgym.envs import open_env
from fedagentgym.learning.rollouts import Rollouts, collect
from tests.agents.models import make_policy

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
RUN_KEY = "0" * 32
GUESS = open_env("fedagentgym/Guess-v0")


def make_agent(chat: bool = False, length: int = 512, **settings: Any) -> TokenAgent:
    """An agent with random weights, whose harness is played by threads of the test."""
    policy = make_policy("own", words=GUESS.vocabulary(), context_length=length)
    if chat:
        hf = policy.tokenizer.hf
        hf.chat_template = CHAT
        policy.tokenizer = HuggingFaceTokenizer(hf, policy.tokenizer.stop_ids)
    harness = Harness(HarnessSettings.load(settings, "harness"))
    harness.keys = {RUN_KEY: "a thread"}
    return TokenAgent(
        "toy", policy, Template("compact", think=False), Decoding(max_new_tokens=12), chat=chat, harness=harness
    )


def make_trained_agent(**settings: Any) -> TokenAgent:
    """The tiny agent of the package, whose harness is played by threads of the test."""
    made = agents.make_agent({"name": "tiny", "threads": 1, "harness": settings}, GUESS)
    assert isinstance(made, TokenAgent) and made.harness is not None
    made.harness.keys = {RUN_KEY: "a thread"}
    return made


class Answer(NamedTuple):
    status: int
    plain: Any
    headers: Any
    body: bytes

    @property
    def code(self) -> str:
        return str(self.plain["error"]["code"])

    @property
    def text(self) -> str:
        return str(self.plain["choices"][0]["message"]["content"])


class Client:
    """What a program does, by HTTP alone."""

    def __init__(self, url: str, key: str = RUN_KEY) -> None:
        self.host, self.key = url.removeprefix("http://"), key

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return self.ask("POST", path, raw, {"Authorization": f"Bearer {key or self.key}", **headers})

    def ask(self, method: str, path: str, raw: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, raw, headers)
            found = connection.getresponse()
            content = found.read()
        finally:
            connection.close()
        plain = json.loads(content) if content.startswith(b"{") else None
        return Answer(found.status, plain, found.headers, content)

    def begin(self) -> tuple[Client, dict[str, Any]] | None:
        """The next episode and a client with its key; None when the run is over or has no more."""
        found = self.post("/v1/episodes", {"wait": 1})
        return (Client(f"http://{self.host}", found.plain["key"]), found.plain) if found.status == 200 else None

    def chat(self, messages: Sequence[Any], **fields: Any) -> Answer:
        return self.post("/v1/chat/completions", {"messages": list(messages), "model": "policy", **fields})


def say(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def play_loop(client: Client, task: dict[str, Any], **fields: Any) -> None:
    """The plain loop: ask, act, tell."""
    messages, over = list(task["messages"]), False
    while not over:
        answer = client.chat(messages, **fields)
        if answer.status != 200:
            break
        inside = answer.text.partition("<action>")[2].partition("</action>")
        step = client.post("/v1/step", {"action": inside[0].strip() if inside[1] else ""})
        over = step.plain["over"]
        messages += [say("assistant", answer.text), say("user", step.plain["content"])]
    client.post("/v1/finish", {"status": "done"})


Script = Callable[[Client, dict[str, Any]], object]


@contextmanager
def programs(agent: TokenAgent, script: Script, threads: int = 1) -> Iterator[list[BaseException]]:
    """Threads that play every episode by a script until the block ends; what they raise is raised at its end."""
    assert agent.harness is not None
    url, raised, over = agent.harness.open(), list[BaseException](), threading.Event()

    def work() -> None:
        while not over.is_set():
            begun = None
            try:
                if (begun := Client(url).begin()) is not None:
                    script(begun[0], begun[1]["task"])
                    begun[0].post("/v1/finish", {"status": "done"})
            except OSError:  # the server has ended, or a connection broke: who collects waits for the next episode
                over.wait(0.05)
            except BaseException as error:
                raised.append(error)
                begun[0].post("/v1/finish", {"status": "discard"}) if begun else None

    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for one in running:
        one.start()
    try:
        yield raised
    finally:
        over.set()
        agent.harness.close()
        for one in running:
            one.join(5)
    if raised:
        raise raised[0]


def play(
    agent: TokenAgent, script: Script, tasks: int = 1, *, threads: int = 1, env: Any = GUESS, **options: Any
) -> Rollouts:
    """Collect episodes that a script plays."""
    with programs(agent, script, threads):
        return collect(agent, env, env.pool.ids[:tasks], **options)


def with_harness(agent: TokenAgent, **settings: Any) -> TokenAgent:
    """The same agent with a command, or other settings of its harness."""
    return replace(agent, harness=Harness(HarnessSettings.load(settings, "harness")))


LOOP = PROGRAMS["plain"]
"""A program for processes of their own."""
UNSTEADY = LOOP.replace(
    "\n\ndef play",
    """
import random
import signal

ask, attempt = post, 0


def post(path, body, key):
    global attempt
    if path == "/v1/chat/completions":
        if attempt == 0 and random.random() < float(os.environ.get("KILLED", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("STREAM"):
            return read_stream(path, {**body, "stream": True}, key)
    found = ask(path, body, key)
    if path == "/v1/episodes" and found:
        attempt = found["attempt"]
    return found


def read_stream(path, body, key):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers)) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    parts = [choice["delta"].get("content") or "" for event in events for choice in json.loads(event)["choices"]]
    return {"choices": [{"message": {"content": "".join(parts)}}]}


def play""",
    1,
)
"""The same with replies as streams, or with some first attempts killed."""
