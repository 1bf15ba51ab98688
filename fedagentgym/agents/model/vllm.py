"""Rollouts by vLLM behind the session protocol: generate token ids, load weights, sleep and wake.

vLLM keeps its own key-value cache, so a session holds rows of ids and sends all ids of a row every turn (vLLM's prefix cache
recognizes the known part). This module relies on these facts about vLLM:

* Log-probs are those of the sampling distribution only under `logprobs_mode="processed_logprobs"`.
* A changed adapter under a known id is silently ignored, so every version gets a new id.
* After new full weights the prefix cache must be reset, and on a CPU a tied output head must be packed again.
* It samples with its own generator, seeded per request from the row's stream.
* Its LoRA kernels exist for ranks that are powers of two from 8 on.

On a GPU it computes in bfloat16, as the torch policy does, whatever the stored dtype.

A vLLM on one device runs in the learner's process and reads full weights from the learner's memory. A second GPU (`cuda:1`),
several GPUs (`options.parallel`) and `options.batch_invariant` need separate processes, which read weights from files. vLLM's
calls for weight transfer (`update_weights` and related ones) are not used, since they move weights between processes through
NCCL or CUDA IPC, which a CPU does not have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedagentgym.agents.model.loading import find_files, load_tokenizer
from fedagentgym.agents.model.policy import save_adapter
from fedagentgym.agents.protocols import (
    Completion,
    Constraint,
    Decoding,
    Session,
    SessionRow,
    TrainablePolicy,
)
from fedagentgym.agents.settings import AgentSettings, VllmOptions
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer, TextTokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import require
from fedagentgym.base.process import GENERATED
from fedagentgym.base.together import meet, wait_for_others

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


_GPUS = "CUDA_VISIBLE_DEVICES"
_OWN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_FIRST_DEVICES = ("auto", "cpu", "cuda", "cuda:0")

Weights = Iterable[tuple[str, "torch.Tensor"]]
"""Pairs of a tensor's name in a checkpoint and the tensor."""


class VllmEngine:
    """Implements `protocols.Policy` with a `vllm.LLM`."""

    def __init__(
        self, source: str | Path, settings: AgentSettings, options: VllmOptions, adapter_rank: int | None = None
    ) -> None:
        vllm = require("vllm", "vllm")
        self.name = settings.name
        self.version = 0
        self._vllm = vllm
        self.sleeps, self._asleep = options.sleep, False
        on_cpu = _is_on_cpu()
        if options.sleep and on_cpu:
            raise OptionError("agent.options.sleep gives a GPU's memory back: leave it out on a CPU")
        if options.batch_invariant and not _has_batch_invariant_kernels():
            raise OptionError(
                "agent.options.batch_invariant needs an NVIDIA GPU of compute capability 9.0 or newer: leave it out"
            )
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
        if on_cpu:
            arguments["worker_extension_cls"] = f"{__name__}.{CpuWorker.__name__}"
        if options.sleep:
            arguments["enable_sleep_mode"] = True
        if settings.context_length is not None:
            arguments["max_model_len"] = settings.context_length
        if adapter_rank is not None:
            arguments |= {"enable_lora": True, "max_lora_rank": make_room(adapter_rank), "max_loras": options.adapters}
        kind, _, index = settings.device.partition(":")
        default = "0" if settings.device in _FIRST_DEVICES and options.parallel == 1 else "1"
        variables = {_OWN_PROCESS: os.environ.get(_OWN_PROCESS, default)}
        # these kernels replace torch's in the whole process, and must not be used for training
        if options.batch_invariant:
            variables |= {_OWN_PROCESS: "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_BATCH_INVARIANT": "1"}
        if kind == "cuda" and index:  # by itself vLLM would take the first GPU of this process
            if options.parallel > 1:
                raise OptionError(
                    f"agent.options.parallel {options.parallel} is for several GPUs, but agent.device"
                    f" {settings.device!r} is one of them: leave one of the two out"
                )
            seen = os.environ.get(_GPUS, "").split(",") if os.environ.get(_GPUS) else []
            variables[_GPUS] = seen[int(index)] if int(index) < len(seen) else index
        self.in_process = variables[_OWN_PROCESS] == "0" and options.parallel == 1
        with _set_variables(variables):
            self.llm = vllm.LLM(**{**arguments, **options.engine})
        self.context_length = int(self.llm.llm_engine.model_config.max_model_len)
        generation = self.llm.llm_engine.model_config.try_get_generation_config() or {}
        stops = generation.get("eos_token_id", ())
        self.tokenizer = HuggingFaceTokenizer(
            load_tokenizer(source), [stops] if isinstance(stops, int) else stops or ()
        )

    def open_session(self) -> VllmSession:
        return VllmSession(self)

    def load_adapter(self, folder: Path, version: int) -> Any:
        """Return the value by which `complete` uses the peft adapter in a folder. vLLM reads the folder at the first request."""
        request = require("vllm.lora.request", "vllm")
        self.version = version
        return request.LoRARequest(f"version-{version}", version + 1, str(folder))

    def unload_adapter(self, adapter: Any) -> None:
        """Do nothing, since vLLM itself replaces the least recently used adapter."""

    def load_weights(self, source: str | Path | Weights, version: int) -> None:
        """Replace all weights by those of a model folder or, if the engine runs in this process, by named tensors."""
        if isinstance(source, str | Path):
            arguments: dict[str, object] = {"weights_path": str(source)}
        else:
            arguments = {"weights_iterator": iter(source)}
        self.llm.collective_rpc("reload_weights", kwargs=arguments)
        if _is_on_cpu():
            self.llm.collective_rpc("repack_head")
        self.llm.reset_prefix_cache()
        self.version = version

    def sleep(self) -> None:
        """Release the GPU's memory until `wake`, if the option `sleep` is set."""
        if self.sleeps and not self._asleep:
            self.llm.sleep(level=1)
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self.llm.wake_up()
            self._asleep = False

    def close(self) -> None:
        """Drop the engine; its processes end with the last reference to it."""
        del self.llm

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        decoding: Decoding,
        adapters: Sequence[Any] | None = None,
    ) -> list[Completion]:
        """Return a reply to each prompt, generated with the prompt's adapter if `adapters` are given."""
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
            lora_request=None if adapters is None else list(adapters),
        )
        answers = []
        for output in (request.outputs[0] for request in found):
            ids = tuple(output.token_ids)
            steps = zip(ids, output.logprobs, strict=True)
            greedy = decoding.temperature == 0.0
            logprobs = tuple(0.0 if greedy else float(step[token].logprob) for token, step in steps)
            answers.append(
                Completion(ids, logprobs, "stop" if ids and ids[-1] in self.tokenizer.stop_ids else "length")
            )
        return answers


def make_room(rank: int) -> int:
    """Return the smallest `max_lora_rank` of vLLM for this rank: its kernels exist for powers of two from 8 on."""
    return max(8, 1 << (rank - 1).bit_length())


class CpuWorker:
    """Adds a method to vLLM's workers on a CPU: vLLM makes this class one of their base classes."""

    model_runner: Any

    def repack_head(self) -> None:
        """Pack the output head again. After `reload_weights`, a head tied to the embedding still has its old packed weights."""
        head = self.model_runner.get_model().lm_head
        head.quant_method.process_weights_after_loading(head)


def _is_on_cpu() -> bool:
    return bool(require("vllm.platforms", "vllm").current_platform.is_cpu())


def _has_batch_invariant_kernels() -> bool:
    platform = require("vllm.platforms", "vllm").current_platform
    return bool(platform.is_cuda() and platform.has_device_capability(90))


@contextlib.contextmanager
def _set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore their former values at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def iter_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the model's tensors with their names in a checkpoint. A tensor with two names is yielded once."""
    met = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in met:
            met.add(tensor.data_ptr())
            yield name, tensor


class Engine(Protocol):
    """An engine that continues whole prompts: a `VllmEngine`, or another program's vLLM."""

    context_length: int

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        decoding: Decoding,
        adapters: Sequence[Any] | None = None,
    ) -> list[Completion]: ...


class PlayedWeights(Protocol):
    """An engine that plays with a learner's weights. `complete` takes the values that `load_adapter` returns as adapters."""

    version: int
    context_length: int
    sleeps: bool
    in_process: bool

    @property
    def tokenizer(self) -> TextTokenizer: ...

    def load_adapter(self, folder: Path, version: int) -> Any: ...

    def unload_adapter(self, adapter: Any) -> None: ...

    def load_weights(self, source: str | Path | Weights, version: int) -> None: ...

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        decoding: Decoding,
        adapters: Sequence[Any] | None = None,
    ) -> list[Completion]: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class _Asked(NamedTuple):
    """The prompts of one session, their seeds, and the session's adapter."""

    prompts: list[list[int]]
    seeds: list[int]
    adapter: Any


def _complete_together(engine: Engine, decoding: Decoding, asked: Sequence[_Asked]) -> list[list[Completion]]:
    """Continue the prompts of several sessions in one batch. A session without an adapter uses the frozen weights."""
    prompts = [prompt for one in asked for prompt in one.prompts]
    seeds = [seed for one in asked for seed in one.seeds]
    adapters = [one.adapter for one in asked for _ in one.prompts]
    if any(adapter is not None for adapter in adapters):
        found = iter(engine.complete(prompts, seeds, decoding, adapters))
    else:
        found = iter(engine.complete(prompts, seeds, decoding))
    return [list(islice(found, len(one.prompts))) for one in asked]


class VllmSession(Session):
    """A session that generates with an engine, and with an adapter if one is given."""

    def __init__(self, engine: Engine, on_close: Callable[[], object] | None = None, adapter: Any = None) -> None:
        super().__init__(engine.context_length, on_close)
        self.engine, self._adapter = engine, adapter

    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        self._check_prompts(prompts)
        return [self._add(SessionRow(list(prompt))) for prompt in prompts for _ in range(copies)]

    def _continue(
        self,
        rows: list[SessionRow],
        uniforms: Sequence[NDArray[np.float64]],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        if any(constraints):
            raise OptionError(
                "agent 'vllm' cannot constrain generation: set agent.decoding.constrained=false, or use agent 'transformers'"
            )
        seeds = [int(each[0] * (1 << 31)) for each in uniforms]
        asked = _Asked([row.ids for row in rows], seeds, self._adapter)
        answers = meet((self.engine, decoding), partial(_complete_together, self.engine, decoding), asked)
        for row, answer in zip(rows, answers, strict=True):
            row.ids.extend(answer.token_ids)
            GENERATED.tokens += len(answer.token_ids)
        return answers


class _Loaded(NamedTuple):
    """An adapter that an engine has loaded: its folder, and the value that `load_adapter` returned."""

    folder: Path
    adapter: Any


class TorchVllmPolicy:
    """A `protocols.TrainablePolicy` that learns in torch and generates by vLLM. Each session uses the newest weights.

    The learner's version grows with every update and every change of client. When a session begins, the engine gets the weights
    of a version that it does not have yet. Between sessions the engine may sleep, so that training has the whole GPU. A session
    keeps its adapter, so the sessions of a group (`base.together`) can be open at the same time, and generate in one batch.

    Adapters are written for the engine in a new folder inside `folder`, by default inside the system's temporary folder.
    """

    def __init__(
        self, learner: TrainablePolicy, engine: PlayedWeights, adapter: bool, folder: str | Path | None = None
    ) -> None:
        self.learner, self.engine, self.adapter = learner, engine, adapter
        self.name, self.model, self.device = learner.name, learner.model, learner.device
        self.context_length = engine.context_length
        self.parameters, self.get_weights, self.set_weights = (
            learner.parameters,
            learner.get_weights,
            learner.set_weights,
        )
        self.claim, self.bump_version, self.save = learner.claim, learner.bump_version, learner.save
        self.add_value_head = learner.add_value_head
        self._initial = self._newest = learner.version
        """The version with which the engine began (it needs no adapter, since a new adapter changes nothing), and the last
        version of full weights that the engine was given."""
        self._adapters: dict[int, _Loaded] = {}
        self._open: Counter[int] = Counter()
        self._folder = tempfile.TemporaryDirectory(prefix="fedagentgym-vllm-", dir=folder)
        if folder is not None:  # a server of another user must be able to read it
            Path(self._folder.name).chmod(0o755)

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.engine.tokenizer

    @property
    def version(self) -> int:
        return self.learner.version

    def open_session(self) -> VllmSession:
        """Give the engine the newest weights, and open a session with them.

        The engine may read an adapter at its first use, so an adapter's files are kept until a session needs a newer version."""
        version = self.learner.version
        adapter = self._give_adapter(version) if self.adapter else None
        self._open[version] += 1
        # the engine wakes when all members of a group have trained; by then the model may hold other weights
        if self.engine.sleeps:
            try:
                wait_for_others((self, "play"))
            except BaseException:
                self._open[version] -= 1
                raise
        self.engine.wake()
        if not self.adapter:
            self._give_weights(version)
        return VllmSession(self.engine, on_close=partial(self._release_session, version), adapter=adapter)

    def _give_adapter(self, version: int) -> Any:
        """Load the present adapter, and unload others that no session uses. Returns the adapter, None for the initial version."""
        for old in [old for old in self._adapters if old != version and not self._open[old]]:
            loaded = self._adapters.pop(old)
            self.engine.unload_adapter(loaded.adapter)
            shutil.rmtree(loaded.folder, ignore_errors=True)
        if version != self._initial and version not in self._adapters:
            folder = Path(self._folder.name) / str(version)
            save_adapter(self.model, folder)
            self._adapters[version] = _Loaded(folder, self.engine.load_adapter(folder, version))
        return self._adapters[version].adapter if version in self._adapters else None

    def _give_weights(self, version: int) -> None:
        if version == self._newest:
            return
        if self.engine.in_process:
            self.engine.load_weights(iter_weights(self.model), version)
            self._newest = version
            return
        folder = Path(self._folder.name) / str(version)
        self.learner.save(folder)
        self.engine.load_weights(folder, version)
        self._newest = version
        shutil.rmtree(folder, ignore_errors=True)

    def _release_session(self, version: int) -> None:
        self._open[version] -= 1
        if self.engine.sleeps:  # no client trains before all others have finished playing
            wait_for_others((self, "train"))
        if not self._open.total():
            self.engine.sleep()

    def close(self) -> None:
        self.engine.close()
        self.learner.close()
        self._folder.cleanup()


def make_torch_vllm_policy(
    settings: AgentSettings, source: str | Path, learner: Callable[[], TrainablePolicy]
) -> TorchVllmPolicy:
    """Make the policy of an agent with `rollouts: vllm`.

    The engine starts first and, with the option `sleep`, releases its memory before the learner is made."""
    options = VllmOptions.load(settings.options, "agent.options")
    rank = settings.adapter.rank if settings.adapter is not None else None
    engine = VllmEngine(source, settings, options, rank)
    engine.sleep()
    return TorchVllmPolicy(learner(), engine, adapter=rank is not None)
