"""Tokens per second of the engine's parts, and the share of the machine's own matrix product that they reach.

Rows of random tokens, no two alike, go through prefill and decode, and the same rows through `generate` of transformers; the
update is that of a policy step (`policy_step.py`). Useful arithmetic is counted: two operations for each weight of a matrix
that a token meets (the head only where logits are wanted), and the products of attention; a backward pass counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.streams import generator, stream

if TYPE_CHECKING:
    from fedagentgym.agents.engines.torch_policy import TorchPolicy

TRIALS = 3


@dataclass(frozen=True)
class Batch:
    """Rows, each of a prompt and of a reply that does not end early."""

    rows: int
    prompt: int
    reply: int


@dataclass(frozen=True)
class EngineSpeed:
    """Tokens per second of our session and of `generate`, for the same rows."""

    prefill: float
    decode: float
    together: float
    generate: float


@dataclass(frozen=True)
class ModelCost:
    """Operations that a token costs: in the layers, in the head, and in attention to each token before it."""

    layers: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: Any) -> ModelCost:
        """Counted from the model's own linear layers."""
        import torch

        sizes = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        head = sum(size for name, size in sizes.items() if name.endswith("lm_head"))
        config = model.config.get_text_config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        return cls(2.0 * (sum(sizes.values()) - head), 2.0 * head, 4.0 * config.num_hidden_layers * width)

    def count_prefill(self, batch: Batch) -> float:
        """Operations of the prompts, with logits for their last tokens."""
        return batch.rows * (batch.prompt * (self.layers + self.attention * batch.prompt / 2) + self.head)

    def count_decode(self, batch: Batch) -> float:
        """Operations of the replies, whose tokens all need logits."""
        context = batch.prompt + batch.reply / 2
        return batch.rows * batch.reply * (self.layers + self.head + self.attention * context)

    def count_update(self, batch: Batch) -> float:
        """Operations of forward and backward passes over prompts and replies."""
        length = batch.prompt + batch.reply
        once = length * (self.layers + self.attention * length / 2) + batch.reply * self.head
        return 3.0 * batch.rows * once


def measure_peak() -> float:
    """Operations per second of the best float32 product of two square matrices, in one thread like everything here."""
    import torch

    best = 0.0
    for size in (512, 1024):
        first, second = torch.randn(size, size), torch.randn(size, size)
        for _ in range(2 * TRIALS):
            seconds = _time_call(partial(torch.mm, first, second))
            best = max(best, 2.0 * size**3 / seconds)
    return best


def measure_engine(policy: TorchPolicy, batch: Batch) -> EngineSpeed:
    """The best of some trials of each part; sides alternate."""
    policy.tokenizer.stop_ids = frozenset()
    draw = generator(0, "prompts")
    best = np.full(3, np.inf)
    for _ in range(TRIALS):
        prompts = draw.integers(8, policy.tokenizer.size - 8, (batch.rows, batch.prompt)).tolist()
        best = np.minimum(best, [*_time_session(policy, prompts, batch), _time_generate(policy, prompts, batch)])
    prefill, decode, generate = (float(seconds) for seconds in best)
    tokens = batch.rows * (batch.prompt + batch.reply)
    return EngineSpeed(
        batch.rows * batch.prompt / prefill,
        batch.rows * batch.reply / decode,
        tokens / (prefill + decode),
        tokens / generate,
    )


def _time_session(policy: TorchPolicy, prompts: list[list[int]], batch: Batch) -> tuple[float, float]:
    """Seconds of the prompts with one token after each, and of the other tokens of the replies."""
    streams = [stream(1, "say", row) for row in range(batch.rows)]
    with policy.open_session() as session:
        rows: list[int] = []

        def prefill() -> None:
            rows.extend(session.open(prompts))
            session.generate(rows, streams, Decoding(max_new_tokens=1))

        return (
            _time_call(prefill),
            _time_call(lambda: session.generate(rows, streams, Decoding(max_new_tokens=batch.reply))),
        )


def _time_generate(policy: TorchPolicy, prompts: list[list[int]], batch: Batch) -> float:
    """Seconds of the same rows in `generate`, with its own cache."""
    import torch

    ids = torch.tensor(prompts)

    def generate() -> None:
        with torch.no_grad():
            policy.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=batch.reply + 1,
                eos_token_id=None,
                pad_token_id=policy.tokenizer.pad_id,
            )

    return _time_call(generate)


def _time_call(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


@contextmanager
def use_one_thread() -> Iterator[None]:
    """One thread of torch's, as a worker has."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
