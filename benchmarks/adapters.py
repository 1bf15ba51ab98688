"""Rollouts of several adapters on one model: one client after the other, compared with one batch (`federation.together`).

Every client has its own adapter of rank 8 and several rows, each with a prompt and replies that do not end early. Both ways draw
the same tokens, and their log-probs are compared too. A time is the least processor time of several trials in one thread; the two
ways alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.measurement import Measurement
from fedagentgym.agents.protocols import Completion, Decoding
from fedagentgym.base.errors import DataError
from fedagentgym.base.streams import generator, stream
from fedagentgym.base.together import run_together

if TYPE_CHECKING:
    from fedagentgym.agents.model.policy import TorchPolicy

RANK = 8
TURNS = 2


class Load(NamedTuple):
    """The play of each client: its rows, the tokens of a prompt or later observation, and the tokens of a reply."""

    rows: int
    prompt: int
    reply: int


def run(quick: bool = False) -> list[Measurement]:
    """Rollouts of 4 and 8 adapters in one batch, compared with one adapter after the other: tiny agents, and SmolLM2 if added."""
    from fedagentgym.agents.model.loading import use_threads

    loads = [Load(4, 24, 4)] if quick else [Load(4, 32, 12), Load(16, 32, 12)]
    trials = 2 if quick else 4
    with use_threads(1):
        found = _measure(_make_tiny(), "0.1 M tiny agent", (8,) if quick else (4, 8), loads, trials)
        if not quick and (policy := _load_smollm2()) is not None:
            found += _measure(policy, "SmolLM2-135M", (4, 8), [Load(1, 32, 12), Load(4, 32, 12)], 2)
    return found


def _measure(
    policy: TorchPolicy, name: str, counts: tuple[int, ...], loads: list[Load], trials: int
) -> list[Measurement]:
    found = []
    for clients in counts:
        for load in loads:
            works = [partial(_play, policy, _draw_adapter(policy, client), client, load) for client in range(clients)]
            turns, batch = np.inf, np.inf
            for _ in range(trials):
                seconds, alone = _time(lambda works=works: [work() for work in works])  # type: ignore[misc]
                turns = min(turns, seconds)
                seconds, together = _time(partial(run_together, works))
                batch = min(batch, seconds)
            what = f"{name}, {clients} adapters of rank {RANK}, {load.rows} rows each"
            found += [
                Measurement(f"{what}: in turns", turns, "s"),
                Measurement(f"{what}: one batch", batch, "s"),
                Measurement(f"{what}: turns over batch", turns / batch, "times"),
                Measurement(f"{what}: share of tokens that are equal", _compare_tokens(alone, together), "", "1"),
                Measurement(f"{what}: greatest difference of a log-prob", _compare(alone, together), "", "< 1e-5"),
            ]
    return found


def _time(call: Callable[[], list[list[Completion]]]) -> tuple[float, list[Completion]]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, [answer for answers in found for answer in answers]


def _play(policy: TorchPolicy, weights: Any, client: int, load: Load) -> list[Completion]:
    """Load a client's adapter, read its prompts, and generate several replies."""
    policy.set_weights(weights)
    draw, decoding = generator(client, "prompts"), Decoding(max_new_tokens=load.reply)
    streams = [stream(client, "say", row) for row in range(load.rows)]
    found: list[Completion] = []
    with policy.open_session() as session:
        rows = session.open(_draw_ids(policy, draw, load))
        for turn in range(TURNS):
            if turn:
                session.append(rows, _draw_ids(policy, draw, load))
            found += session.generate(rows, streams, decoding)
    return found


def _draw_ids(policy: TorchPolicy, draw: Any, load: Load) -> list[list[int]]:
    ids: list[list[int]] = draw.integers(8, policy.tokenizer.size - 8, (load.rows, load.prompt)).tolist()
    return ids


def _draw_adapter(policy: TorchPolicy, client: int) -> dict[str, Any]:
    """A random adapter that changes the policy; an untrained adapter would not change it."""
    draw = generator(client, "adapter")
    return {
        name: (array + 0.02 * draw.standard_normal(array.shape)).astype(array.dtype)
        for name, array in policy.get_weights().items()
    }


def _compare_tokens(one: list[Completion], other: list[Completion]) -> float:
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a.token_ids, b.token_ids, strict=False)]
    return float(np.mean([a == b for a, b in pairs]))


def _compare(one: list[Completion], other: list[Completion]) -> float:
    return max(
        float(np.abs(np.subtract(a.logprobs, b.logprobs)).max())
        for a, b in zip(one, other, strict=True)
        if a.token_ids == b.token_ids
    )


def _make_tiny() -> TorchPolicy:
    from fedagentgym.agents.model.loading import make_tiny_model
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.agents.settings import AdapterSettings

    model, tokenizer = make_tiny_model([f"word{number}" for number in range(300)], "0.1m", 256)
    policy = TorchPolicy(model, tokenizer, adapter=AdapterSettings(rank=RANK), forward="own")
    policy.tokenizer.stop_ids = frozenset()
    return policy


def _load_smollm2() -> TorchPolicy | None:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.agents.model.store import locate_model
    from fedagentgym.agents.settings import AdapterSettings

    try:
        policy = TorchPolicy.load(
            locate_model("smollm2"), device="cpu", adapter=AdapterSettings(rank=RANK), forward="own"
        )
    except DataError:  # it was not added on this machine
        return None
    policy.tokenizer.stop_ids = frozenset()
    return policy
