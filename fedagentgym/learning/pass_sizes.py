"""How long a pass is and how much it computes at a time, without torch: an update and the plan of a run use the same numbers."""

from __future__ import annotations

CPU_BUDGET = 512 << 20
"""Bytes that a pass on a CPU keeps for its backward pass, by default."""
GPU_SHARE = 4
"""On a GPU the budget is this part of the card's whole memory."""
MOST_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Tokens beyond which a pass is no faster, by device."""
FEWEST_TOKENS = 64
CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Logits that are computed at a time: 32 MB in single precision on a CPU, 256 MB on a GPU."""


def count_token_bytes(layers: int, hidden: int, attention: int, inner: int) -> int:
    """What the decoder blocks keep per token, in single precision: their inputs, both norms, queries, keys and values, the
    attention's output, and the inner layer three times."""
    return 4 * layers * (6 * hidden + 4 * attention + 3 * inner)


def limit_tokens(fitting: int, device_type: str) -> int:
    """The length of a pass where memory fits `fitting` tokens."""
    return min(max(fitting, FEWEST_TOKENS), MOST_TOKENS.get(device_type, MOST_TOKENS["cuda"]))
