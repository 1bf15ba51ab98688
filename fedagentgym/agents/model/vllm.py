"""Rollouts by vLLM behind the session protocol: generate token ids, load weights, sleep and wake.

vLLM keeps its own key-value cache, so a session holds rows of ids and sends each row whole every turn (vLLM's prefix cache
recognizes the known part). This module relies on these facts: log-probs are those of the sampling distribution only under
``logprobs_mode="processed_logprobs"``; a changed adapter under a known id is silently ignored, so every version gets a new id;
after new full weights the prefix cache must be reset, and on a CPU a tied output head must be packed again.
vLLM samples with its own generator, seeded per request from the row's stream. On a GPU it computes in bfloat16, as the torch
policy does, whatever type is stored; its LoRA kernels exist for powers of two from 8 on.

One vLLM on one device runs in the learner's process and reads full weights from the learner's memory. A second GPU
(``cuda:1``) or several (``options.parallel``) need processes of their own, and those read weights from files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedagentgym.agents.model.generate import BaseSession
from fedagentgym.agents.model.loading import find_files, load_tokenizer
from fedagentgym.agents.model.policy import save_adapter
from fedagentgym.agents.protocols import Completion, Constraint, Decoding, FinishReason, TrainablePolicy, WeightOwner
from fedagentgym.agents.settings import AgentSettings, VllmOptions
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer, TextTokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import require
from fedagentgym.base.process import GENERATED

if TYPE_CHECKING:
    import numpy as np
    import torch

    from fedagentgym.base.streams import Stream


_GPUS = "CUDA_VISIBLE_DEVICES"
_OWN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_FIRST_DEVICES = ("auto", "cpu", "cuda", "cuda:0")

Weights = Iterable[tuple[str, "torch.Tensor"]]
"""Named tensors, by the names that a checkpoint of the model has."""


class VllmEngine:
    """``protocols.Policy`` on a ``vllm.LLM``."""

    def __init__(
        self, source: str | Path, settings: AgentSettings, options: VllmOptions, adapter_rank: int | None = None
    ) -> None:
        vllm = require("vllm", "vllm")
        self.name = settings.name
        self.version = 0
        self._adapter: Any = None
        self._vllm = vllm
        self._sleeps, self._asleep = options.sleep, False
        on_cpu = _is_on_cpu()
        if options.sleep and on_cpu:
            raise OptionError("options.sleep gives a GPU's memory back: leave it out on a CPU")
        arguments: dict[str, Any] = {
            "model": str(find_files(source)),
            "dtype": (settings.dtype or "float32") if on_cpu else "bfloat16",
            "logprobs_mode": "processed_logprobs",
            "gpu_memory_utilization": options.memory,
            "tensor_parallel_size": options.parallel,
            "enforce_eager": options.eager,
            "enable_prefix_caching": True,
            "generation_config": "vllm",
            "seed": 0,
        }
        if options.sleep:
            arguments["enable_sleep_mode"] = True
        if settings.context_length is not None:
            arguments["max_model_len"] = settings.context_length
        if adapter_rank is not None:
            room = max(8, 1 << (adapter_rank - 1).bit_length())
            arguments |= {"enable_lora": True, "max_lora_rank": room, "max_loras": 1}
        default = "0" if settings.device in _FIRST_DEVICES and options.parallel == 1 else "1"
        with (
            _restrict_visible_gpus(settings.device, options.parallel),
            _set_variable(_OWN_PROCESS, os.environ.get(_OWN_PROCESS, default)),
        ):
            self.in_process = os.environ[_OWN_PROCESS] == "0" and options.parallel == 1
            self.llm = vllm.LLM(**{**arguments, **options.engine})
        self.context_length = int(self.llm.llm_engine.model_config.max_model_len)
        generation = self.llm.llm_engine.model_config.try_get_generation_config() or {}
        stops = generation.get("eos_token_id", ())
        self.tokenizer = HuggingFaceTokenizer(
            load_tokenizer(source), [stops] if isinstance(stops, int) else stops or ()
        )

    def open_session(self) -> VllmSession:
        return VllmSession(self)

    def load_adapter(self, folder: str | Path, version: int) -> None:
        """Use the peft adapter in a folder from now on. vLLM reads it with the next request."""
        request = require("vllm.lora.request", "vllm")
        self._adapter = request.LoRARequest(f"version-{version}", version + 1, str(folder))
        self.version = version

    def load_weights(self, source: str | Path | Weights, version: int) -> None:
        """Replace all weights by those of a model folder or, if the engine runs in this process, by the given tensors."""
        if isinstance(source, str | Path):
            arguments: dict[str, object] = {"weights_path": str(source)}
        else:
            arguments = {"weights_iterator": iter(source)}
        self.llm.collective_rpc("reload_weights", kwargs=arguments)
        if _is_on_cpu():
            self.llm.apply_model(_repack_head)
        self.llm.reset_prefix_cache()
        self.version = version

    def sleep(self) -> None:
        """Release the GPU's memory while others need it, if the options require it."""
        if self._sleeps and not self._asleep:
            self.llm.sleep(level=1)
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def close(self) -> None:
        """Let the engine go; its processes end with the last reference."""
        del self.llm

    def complete(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Completion]:
        """Continue each prompt: token ids in, token ids and log-probs out."""
        parameters = [
            self._vllm.SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=seed,
                logprobs=0,
                stop_token_ids=sorted(self.tokenizer.stop_ids),
                detokenize=False,
            )
            for seed in seeds
        ]
        found = self.llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in prompts],
            parameters,
            use_tqdm=False,
            lora_request=self._adapter,
        )
        return [self._to_completion(request.outputs[0], decoding) for request in found]

    def _to_completion(self, output: Any, decoding: Decoding) -> Completion:
        ids = tuple(output.token_ids)
        greedy = decoding.temperature == 0.0
        logprobs = tuple(
            0.0 if greedy else float(step[token].logprob) for token, step in zip(ids, output.logprobs, strict=True)
        )
        finish: FinishReason = "stop" if ids and ids[-1] in self.tokenizer.stop_ids else "length"
        return Completion(ids, logprobs, finish)


def _is_on_cpu() -> bool:
    return bool(require("vllm.platforms", "vllm").current_platform.is_cpu())


@contextlib.contextmanager
def _restrict_visible_gpus(device: str, parallel: int) -> Iterator[None]:
    """Let vLLM use only this GPU of those that this process has: by itself it takes the first."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index:
        yield
        return
    if parallel > 1:
        raise OptionError(f"options.parallel {parallel} is for several GPUs, but device {device!r} is one of them")
    seen = os.environ.get(_GPUS, "").split(",") if os.environ.get(_GPUS) else []
    with _set_variable(_GPUS, seen[int(index)] if int(index) < len(seen) else index):
        yield


@contextlib.contextmanager
def _set_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore its former value at the end."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def iter_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's tensors under their names in a checkpoint; a tensor that two names share comes once."""
    met = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in met:
            met.add(tensor.data_ptr())
            yield name, tensor


def _repack_head(model: Any) -> None:
    """Pack the output head again: on a CPU, 0.32 leaves a head that is tied to the embedding packed from the old weights."""
    head = model.lm_head
    head.quant_method.process_weights_after_loading(head)


class Engine(Protocol):
    """An engine that continues whole prompts: a `VllmEngine`, or another program's vLLM."""

    context_length: int

    def complete(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding
    ) -> list[Completion]: ...


class VllmSession(BaseSession):
    """``protocols.Session`` over an engine: rows of ids."""

    def __init__(self, engine: Engine, on_close: Callable[[], object] | None = None) -> None:
        super().__init__(engine.context_length, on_close)
        self.engine = engine
        self._rows: dict[int, list[int]] = {}

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        self._check_prompts(prompts)
        opened = []
        for prompt in prompts:
            for _ in range(copies):
                self._next += 1
                self._rows[self._next] = list(prompt)
                opened.append(self._next)
        return opened

    def append(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        for row, chunk in zip(rows, chunks, strict=True):
            self._rows[row].extend(chunk)

    def generate(
        self,
        rows: Sequence[int],
        streams: Sequence[Stream],
        decoding: Decoding,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> list[Completion]:
        if constraints is not None and any(constraints):
            raise OptionError(
                "agent 'vllm' cannot constrain generation: set constrained: false, or use agent 'transformers'"
            )
        seeds = [int(stream.uniform(decoding.max_new_tokens)[0] * (1 << 31)) for stream in streams]
        answers = [Completion((), (), "context")] * len(rows)
        fits = [
            i for i, row in enumerate(rows) if self.length(row) + decoding.max_new_tokens <= self.engine.context_length
        ]
        if fits:
            found = self.engine.complete([self._rows[rows[i]] for i in fits], [seeds[i] for i in fits], decoding)
            for index, answer in zip(fits, found, strict=True):
                self._rows[rows[index]].extend(answer.token_ids)
                answers[index] = answer
                GENERATED.tokens += len(answer.token_ids)
        return answers

    def length(self, row: int) -> int:
        return len(self._rows[row])

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._rows[row]


class TorchVllmPolicy:
    """``protocols.TrainablePolicy`` that learns in torch and generates by vLLM, each session with the newest weights.

    The learner's version grows with every update and every change of client, and the engine takes over what it does not have
    yet when a session begins. Between sessions it may sleep, so that training has the GPU to itself.
    """

    def __init__(self, learner: TrainablePolicy, engine: VllmEngine, adapter: bool) -> None:
        self.learner, self.engine, self.adapter = learner, engine, adapter
        self.name, self.model, self.device = learner.name, learner.model, learner.device
        self.context_length = engine.context_length
        self._loaded = learner.version
        self._open = 0
        self._folder = tempfile.TemporaryDirectory(prefix="fedagentgym-vllm-")

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.engine.tokenizer

    @property
    def version(self) -> int:
        return self.learner.version

    def open_session(self) -> VllmSession:
        self.engine.wake()
        if self._loaded != self.learner.version:
            self._sync_weights()
        self._open += 1
        return VllmSession(self.engine, on_close=self._release_session)

    def _release_session(self) -> None:
        self._open -= 1
        if not self._open:
            self.engine.sleep()

    def _sync_weights(self) -> None:
        """Give the engine the newest weights. An adapter is read when first used, so its files stay until the next one."""
        version = self.learner.version
        folder = Path(self._folder.name) / str(version)
        if self.adapter:
            save_adapter(self.model, folder)
            self.engine.load_adapter(folder, version)
            shutil.rmtree(Path(self._folder.name) / str(self._loaded), ignore_errors=True)
        elif self.engine.in_process:
            self.engine.load_weights(iter_weights(self.model), version)
        else:
            self.learner.save(folder)
            self.engine.load_weights(folder, version)
            shutil.rmtree(folder, ignore_errors=True)
        self._loaded = version

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self.learner.parameters()

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        return self.learner.get_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.learner.set_weights(weights)

    def claim(self, owner: WeightOwner | None = None) -> None:
        self.learner.claim(owner)

    def bump_version(self) -> None:
        self.learner.bump_version()

    def save(self, folder: str | Path) -> None:
        self.learner.save(folder)

    def close(self) -> None:
        self.engine.close()
        self.learner.close()
        self._folder.cleanup()


def make_torch_vllm_policy(
    settings: AgentSettings, source: str | Path, learner: Callable[[], TrainablePolicy]
) -> TorchVllmPolicy:
    """The policy of an agent with ``rollouts: vllm``. The engine starts first and releases memory before the learner is made."""
    options = VllmOptions.load(settings.options, "agent.options")
    rank = settings.adapter.rank if settings.adapter is not None else None
    engine = VllmEngine(source, settings, options, rank)
    engine.sleep()
    return TorchVllmPolicy(learner(), engine, adapter=rank is not None)
