"""The number of tokens that go through a model at a time, and the activations that are kept for the backward pass.

The number of tokens determines the order in which gradients are summed, so it follows only from the model's sizes and a
configured budget: a run that is resumed next to other programs, or with another number of workers, reaches the same bits. Free
memory only affects what changes no bits: whether the decoder blocks' activations are kept for the backward pass or recomputed.
An update and the plan of a run use the same numbers; torch is imported only if a GPU is queried.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedagentgym.base.rounding import format_bytes

if TYPE_CHECKING:
    import torch

LARGE_TOKEN = 1 << 17
"""Bytes kept per token from which on a model counts as large."""
LARGE_TENSOR = 1 << 21
"""Bytes from which on a tensor of a large model is allocated from the system."""


class PassLimits(NamedTuple):
    """`micro_tokens`: maximum tokens of a pass (a single row may be longer); `kept`: maximum tokens without recomputation."""

    micro_tokens: int
    kept: int


def find_pass_limits(model: Any, device: torch.device, micro_tokens: int | Literal["auto"]) -> PassLimits:
    """The limits of passes through a model. A configured number is used as it is, and its passes are kept if memory permits."""
    per_token = estimate_token_bytes(model)
    free = read_free_bytes(device) // per_token
    if micro_tokens != "auto":
        return PassLimits(micro_tokens, free)
    budget = CPU_BUDGET
    if device.type == "cuda":
        import torch

        budget = torch.cuda.get_device_properties(device).total_memory // GPU_SHARE
    fitting = budget // per_token
    return PassLimits(limit_tokens(fitting, device.type), min(fitting, free))


def estimate_token_bytes(model: Any) -> int:
    """`count_token_bytes` of a model, read from its configuration."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    width = heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    inner = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    return count_token_bytes(int(config.num_hidden_layers), int(config.hidden_size), width, inner)


def describe_caches(model: Any, tokens: int, episodes: int) -> str | None:
    """A warning if the keys and values of `episodes` episodes of `tokens` tokens may not fit into memory; None otherwise."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads)
    needed = 4 * 2 * int(config.num_hidden_layers) * shared * width * tokens * episodes
    free = _read_free()
    if needed <= free:
        return None
    return (
        f"{episodes} episodes at a time of up to {tokens:,} tokens may need {format_bytes(needed)} for keys and values, and"
        f" {format_bytes(free)} of memory are free: shorter ones (agent.context_length) or fewer (--parallel) need less"
    )


def read_free_bytes(device: torch.device) -> int:
    """The memory that this process may take: the free memory of a GPU, or the machine's free memory divided by the number of
    processors, since as many workers may be running."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _read_free_share(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _read_free_share(second: int) -> int:
    """This process's part of the machine's free memory, read once a second, since a tiny model makes a hundred passes in one."""
    return _read_free() // (os.cpu_count() or 1)


def _read_free() -> int:
    sizes = [size for size in (_read_available(), _read_group_rest()) if size is not None]
    return min(sizes, default=1 << 62)


def _read_available() -> int | None:
    """Available memory according to Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


_GROUP_FILES = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
)


def _read_group_rest() -> int | None:
    """The memory that a container's limit leaves, including reclaimable file cache; None without a limit."""
    for folder, limit, usage, cache in _GROUP_FILES:
        try:
            most, used = (Path(folder, name).read_text("ascii").strip() for name in (limit, usage))
            lines = Path(folder, "memory.stat").read_text("ascii").splitlines()
        except OSError:
            continue
        if not most.isdigit():
            return None
        given_up = sum(int(line.split()[1]) for line in lines if line.startswith(cache))
        return max(0, int(most) - int(used) + given_up)
    return None


def map_large_tensors(model: Any, device: torch.device) -> None:
    """Make the C library (glibc) allocate every large tensor of a large model from the system and free it at once.

    By default glibc begins to keep them in its heap, where short-lived tensors leave holes between long-lived ones. A step over a
    row of 4,096 tokens then took three times the memory that it used. Tiny models are faster with the heap.
    """
    set_option = getattr(_C_LIBRARY, "mallopt", None)
    if device.type == "cpu" and estimate_token_bytes(model) >= LARGE_TOKEN and set_option is not None:
        set_option(_MMAP_THRESHOLD, LARGE_TENSOR)


_C_LIBRARY = ctypes.CDLL(None) if os.name == "posix" else None
_MMAP_THRESHOLD = -3


CPU_BUDGET = 512 << 20
"""Bytes that a pass on a CPU keeps for its backward pass, by default."""
GPU_SHARE = 4
"""On a GPU the budget is the card's memory divided by this number."""
MAX_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Tokens beyond which a pass is no faster, by device."""
MIN_TOKENS = 64
CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Logits that are computed at a time: 32 MB in single precision on a CPU, 256 MB on a GPU."""


def count_token_bytes(layers: int, hidden: int, attention: int, inner: int) -> int:
    """The bytes that the decoder blocks keep per token, in single precision: their inputs, both norms, queries, keys and values,
    the attention's output, and the inner layer three times."""
    return 4 * layers * (6 * hidden + 4 * attention + 3 * inner)


def limit_tokens(fitting: int, device_type: str) -> int:
    """The maximum number of tokens of a pass, given that `fitting` tokens fit into memory."""
    return min(max(fitting, MIN_TOKENS), MAX_TOKENS.get(device_type, MAX_TOKENS["cuda"]))
