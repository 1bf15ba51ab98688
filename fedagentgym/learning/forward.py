"""Log-probs of given tokens under a model, with gradients: the training side's forward pass.

Rows are padded on the right, so causal attention needs no mask: a token never sees what comes after it. Only the places before
the agent's own tokens go through the output head, since most tokens of an episode are observations and the head of a large
vocabulary is the greatest tensor of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.learning.rows import Row


class TokenLogprobs(NamedTuple):
    """Log-prob of each own token of the rows, one after the other, and the entropy of its distribution if asked for."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None


def compute_logprobs(
    model: torch.nn.Module, rows: Sequence[Row], device: torch.device, temperature: float = 1.0, entropy: bool = False
) -> TokenLogprobs:
    """Log-probs under the distribution that is sampled from: at this temperature, over the allowed tokens."""
    ids = _pad([row.ids for row in rows])
    which = np.repeat(np.arange(len(rows)), [len(row.own) for row in rows])
    places = np.concatenate([row.own for row in rows]) if rows else np.zeros(0, dtype=np.int64)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        logits = _compute_logits(model, torch.from_numpy(ids).to(device), which, places)
    logits = logits.float() / temperature
    targets = torch.from_numpy(ids[which, places]).to(device)
    chosen = logits.gather(1, targets[:, None])[:, 0]
    if any(len(row.allowed_counts) for row in rows):
        logits = _restrict_to_allowed(logits, rows)
    logprobs = chosen - torch.logsumexp(logits, dim=1)
    if not entropy:
        return TokenLogprobs(logprobs, None)
    return TokenLogprobs(logprobs, _entropy(logits))


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each row's distribution. The surprisal of a forbidden token is left out before it is multiplied: a product of
    0 and infinity would make the gradient of the whole batch NaN."""
    distribution = torch.log_softmax(logits, dim=1)
    return -(distribution.exp() * distribution.masked_fill(logits == -torch.inf, 0.0)).sum(1)


def _pad(sequences: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    result = np.zeros((len(sequences), max((len(ids) for ids in sequences), default=0)), dtype=np.int64)
    for row, ids in zip(result, sequences, strict=True):
        row[: len(ids)] = ids
    return result


def _compute_logits(
    model: torch.nn.Module, ids: torch.Tensor, which: NDArray[np.int64], places: NDArray[np.int64]
) -> torch.Tensor:
    """Logits of the distribution that each place was drawn from."""
    before = (torch.from_numpy(which).to(ids.device), torch.from_numpy(places - 1).to(ids.device))
    backbone = split_decoder_and_head(model)
    if backbone is None:
        full: torch.Tensor = model(input_ids=ids, use_cache=False).logits[before]
        return full
    decoder, head = backbone
    hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    logits: torch.Tensor = head(hidden[before])
    return logits


def _restrict_to_allowed(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The logits of the allowed tokens alone, padded with -inf to the widest choice; a row without a list keeps all."""
    vocabulary = logits.shape[1]
    counts, ids = [], []
    for row in rows:
        listed = bool(len(row.allowed_counts))
        counts.append(row.allowed_counts if listed else np.full(len(row.own), vocabulary, dtype=np.int32))
        ids.append(row.allowed_ids if listed else np.tile(np.arange(vocabulary, dtype=np.int32), len(row.own)))
    sizes, flat = np.concatenate(counts), np.concatenate(ids)
    filled = np.arange(int(sizes.max(initial=1)))[None, :] < sizes[:, None]
    table = np.zeros(filled.shape, dtype=np.int64)
    table[filled] = flat
    index = torch.from_numpy(table).to(logits.device)
    return logits.gather(1, index).masked_fill(~torch.from_numpy(filled).to(logits.device), -torch.inf)


_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def split_decoder_and_head(model: torch.nn.Module) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]] | None:
    """The decoder and the output head, if the model's logits are exactly the head of the decoder's last hidden state."""
    inner: Any = unwrap_model(model)
    config = getattr(inner, "config", None)
    if any(getattr(config, name, None) not in (None, 1.0) for name in _LOGIT_TRANSFORMS):
        return None
    if not hasattr(inner, "get_decoder") or not hasattr(inner, "get_output_embeddings"):
        return None
    decoder, head = inner.get_decoder(), inner.get_output_embeddings()
    return None if decoder is inner or head is None else (decoder, head)


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """The language model inside an adapter's wrapper; the adapter's layers sit inside it and stay active."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if unwrap is not None else model


def set_checkpointing(model: Any, on: bool) -> None:
    """Recompute activations in the backward pass, or no longer. (transformers renamed the method within version 5.)"""
    renamed = hasattr(model, "activation_checkpointing_enable")
    prefix = "activation" if renamed else "gradient"
    if on:
        enable = getattr(model, f"{prefix}_checkpointing_enable")
        enable(**{f"{prefix}_checkpointing_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{prefix}_checkpointing_disable")()


def find_last_block(model: torch.nn.Module) -> torch.nn.Module:
    """The last decoder block."""
    inner: Any = unwrap_model(model)
    layers = getattr(inner.get_decoder(), "layers", None) if hasattr(inner, "get_decoder") else None
    if not layers:
        raise DataError(f"cannot find the decoder blocks of a {type(inner).__name__}")
    block: torch.nn.Module = layers[-1]
    return block
