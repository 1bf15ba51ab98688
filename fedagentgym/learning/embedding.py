"""Embeddings of texts: the normalised mean of a language model's last hidden states. Similar texts have near embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.base.errors import DataError
from fedagentgym.learning.forward import split_decoder_and_head

BATCH_SIZE = 32


@torch.no_grad()
def embed(policy: TrainablePolicy, texts: Sequence[str]) -> NDArray[np.float64]:
    """One row per text, with the policy's current weights; a text longer than the context is cut."""
    backbone = split_decoder_and_head(policy.model)
    if backbone is None:
        raise DataError(f"{policy.name} has no hidden states for embeddings")
    decoder: Any = backbone[0]
    rows = []
    for start in range(0, len(texts), BATCH_SIZE):
        ids = [
            list(policy.tokenizer.encode(text))[: policy.context_length] for text in texts[start : start + BATCH_SIZE]
        ]
        lengths = torch.tensor([max(len(row), 1) for row in ids])
        width = int(lengths.max())
        padded = torch.tensor([row + [policy.tokenizer.pad_id] * (width - len(row)) for row in ids])
        hidden = decoder(input_ids=padded.to(policy.device), use_cache=False).last_hidden_state.double().cpu()
        inside = (torch.arange(width)[None, :] < lengths[:, None]).unsqueeze(-1)
        rows.append((hidden * inside).sum(1) / lengths[:, None])
    stacked = torch.cat(rows) if rows else torch.zeros(0, 1, dtype=torch.float64)
    return np.asarray(torch.nn.functional.normalize(stacked, dim=1).numpy(), dtype=np.float64)
