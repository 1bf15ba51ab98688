"""The bytes that each method sends in FedGRPO's figure 2, counted by the byte counter of real runs.

Ranks, rounds, clients and questions are those of the preset `paper-fedgrpo`. The messages are built from the shapes of the
models' layers (no weights are needed: an array that repeats one zero has the size of a real one). Their payload is counted,
without the encoding around it. Text is counted at a mean length stated here, since no paper publishes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.measurement import Measurement
from fedagentgym.experiment.config import load_config
from fedagentgym.federation.message import Message

FEDGRPO, LORA, DPSDA = (load_config(f"paper-fedgrpo{row}") for row in ("", ":fedpetuning-grpo", ":dpsda-grpo"))
assert LORA.agent.adapter is not None and FEDGRPO.partition.clients is not None
RANK = LORA.agent.adapter.rank
ROUNDS = FEDGRPO.federation.rounds
QUESTIONS = ROUNDS * FEDGRPO.learning.tasks_per_step
CANDIDATES = FEDGRPO.learning.group_size
EXPERTS = int(FEDGRPO.algorithm["experts"])
CLIENTS = FEDGRPO.partition.clients
AUXILIARY = FEDGRPO.partition.roles["auxiliary"]
SYNTHETIC_ITERATIONS = int(DPSDA.algorithm["iterations"])
SYNTHETIC_CANDIDATES = int(DPSDA.algorithm["candidates"])
CANDIDATE_TEXT = 2000
QUESTION_TEXT = 300


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a model's configuration that decide the sizes of its linear layers."""

    hidden: int
    inner: int
    layers: int
    key_value: int

    def get_linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Output and input width of each adapted layer of a block."""
        attention = {"q": (self.hidden, self.hidden), "o": (self.hidden, self.hidden)}
        narrow = dict.fromkeys(("k", "v"), (self.key_value, self.hidden))
        wide = {"gate": (self.inner, self.hidden), "up": (self.inner, self.hidden), "down": (self.hidden, self.inner)}
        return attention | narrow | wide


SHAPES = {
    "Qwen2.5-1.5B": ModelShape(1536, 8960, 28, 256),
    "Qwen2.5-3B": ModelShape(2048, 11008, 36, 256),
    "Qwen2.5-7B": ModelShape(3584, 18944, 28, 512),
}
PUBLISHED = {"fedgrpo": "paper: 2.4 MB, not derivable", "dpsda-fl": "paper: 102.5 MB", "7B": "paper: up to 6.1 GB"}


def make_zeros(*shape: int) -> np.ndarray:
    """An array of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype=np.float32), shape)


def make_adapter_message(shape: ModelShape, rank: int = RANK) -> Message:
    """One client's LoRA factors."""
    factors: dict[str, np.ndarray] = {}
    for layer in range(shape.layers):
        for name, (out, into) in shape.get_linear_shapes().items():
            factors[f"{layer}.{name}.A"] = make_zeros(rank, into)
            factors[f"{layer}.{name}.B"] = make_zeros(out, rank)
    return Message(weights=factors)


def count_payload_bytes(message: Message) -> int:
    return sum(message.count_payload().values())


def count_fedgrpo_bytes() -> Mapping[str, float]:
    """FedGRPO's bytes. Up: one bit per auxiliary example and client, one number per candidate and expert. Down: texts."""
    bits = count_payload_bytes(Message(scores={"right": np.zeros((AUXILIARY + 7) // 8, dtype=np.uint8)}))
    scores = count_payload_bytes(Message(scores={"scores": make_zeros(1, CANDIDATES)}))
    question = count_payload_bytes(
        Message(text={"question": "x" * QUESTION_TEXT, "candidates": ["x" * CANDIDATE_TEXT] * CANDIDATES})
    )
    example = count_payload_bytes(Message(text={"question": "x" * QUESTION_TEXT}))
    return {
        "up": float(CLIENTS * bits + QUESTIONS * EXPERTS * scores),
        "down": float(CLIENTS * AUXILIARY * example + QUESTIONS * EXPERTS * question),
    }


def count_dpsda_bytes() -> Mapping[str, float]:
    """The bytes of DPSDA-FL. Up: a histogram per iteration and client. Down: the candidates."""
    votes = count_payload_bytes(Message(scores={"votes": make_zeros(SYNTHETIC_CANDIDATES)}))
    texts = count_payload_bytes(Message(text={"candidates": ["x" * QUESTION_TEXT] * SYNTHETIC_CANDIDATES}))
    exchanged = SYNTHETIC_ITERATIONS * CLIENTS
    return {"up": float(exchanged * votes), "down": float(exchanged * texts)}


def run(quick: bool = False) -> list[Measurement]:
    """The bytes that each method sends under the settings of FedGRPO's figure 2."""
    found = []
    for direction, size in count_fedgrpo_bytes().items():
        note = PUBLISHED["fedgrpo"] if direction == "up" else "left out of the paper's number"
        found.append(Measurement(f"FedGRPO, whole run, {direction}", size / 1e6, "MB", note))
    for direction, size in count_dpsda_bytes().items():
        found.append(Measurement(f"DPSDA-FL, whole run, {direction}", size / 1e6, "MB", PUBLISHED["dpsda-fl"]))
    for name, shape in SHAPES.items():
        one = count_payload_bytes(make_adapter_message(shape))
        note = PUBLISHED["7B"] if name.endswith("7B") else ""
        found.append(Measurement(f"LoRA FedAvg, {name}, one client one way", one / 1e6, "MB"))
        whole = 2 * CLIENTS * ROUNDS * one
        found.append(Measurement(f"LoRA FedAvg, {name}, {ROUNDS} rounds of {CLIENTS} clients", whole / 1e9, "GB", note))
    return found
