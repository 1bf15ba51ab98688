"""Log-probs of given tokens under a model, with gradients: the training side's forward pass; and embeddings of texts.

A row is read up to the last chosen token; forced tokens have log-prob 0. Models of Llama's family run over packed rows
(`agents/decoder/packed.py`), others through their own forward pass over rows padded on the right, where causal attention needs
no mask: a token never attends to later ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.decoder.architectures import fits
from fedagentgym.agents.decoder.module import Decoder
from fedagentgym.agents.decoder.packed import batch_by_nodes, compute_hidden, compute_table_hidden
from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.base.errors import DataError
from fedagentgym.learning.log_probs import ScoredRow, TokenLogprobs, find_choices, score_choices
from fedagentgym.learning.rows import batch_by_length

Ids = NDArray[np.int64]
EMBEDDED_TEXTS = 32
"""Texts that are embedded at a time."""


def compute_logprobs(
    model: torch.nn.Module,
    rows: Sequence[ScoredRow],
    device: torch.device,
    temperature: float = 1.0,
    entropy: bool = False,
    *,
    kept: int | None = None,
    bias: Tensor | None = None,
) -> TokenLogprobs:
    """Log-probs under the distribution that is sampled from: at this temperature, over the allowed tokens.

    For a pass over more than `kept` tokens, activations inside the blocks are recomputed in the backward pass: more time, less
    memory, the same bits. `bias` is added to the last block's output.
    """
    places = [find_choices(row) - 1 for row in rows]
    read = [(_cut(row, place), place) for row, place in zip(rows, places, strict=True) if len(place)]
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        head, hidden = _compute_states(
            model, [ids for ids, _ in read], [place for _, place in read], device, kept, bias
        )
        vocabulary = int(unwrap_model(model).config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]
        return score_choices(head, hidden, rows, vocabulary, temperature, entropy)


def batch_rows(model: torch.nn.Module, rows: Sequence[ScoredRow], micro_tokens: int) -> list[list[int]]:
    """Indices of rows that go through the model together, so that it reads at most `micro_tokens` tokens at a time, padding
    included (a single row may have more)."""
    read = [_cut(row, find_choices(row) - 1) for row in rows]
    if _runs_packed(model):
        return batch_by_nodes(read, micro_tokens)
    return batch_by_length([len(ids) for ids in read], micro_tokens)


def _runs_packed(model: torch.nn.Module) -> bool:
    """Whether packed rows may be used: they bypass the blocks' own forward passes, in which sharded blocks gather weights."""
    inner = unwrap_model(model)
    sharded = any(hasattr(module, "unshard") for module in inner.modules())
    return not sharded and fits(getattr(inner, "config", None)) and split_decoder_and_head(model) is not None


def _cut(row: ScoredRow, places: Ids) -> Ids:
    """The part of a row that is read: up to the last position with a choice."""
    return row.ids[: int(places[-1]) + 1] if len(places) else row.ids[:0]


def _compute_states(
    model: torch.nn.Module,
    rows: Sequence[Ids],
    places: Sequence[Ids],
    device: torch.device,
    kept: int | None,
    bias: Tensor | None,
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The function that computes logits, and its input: the last hidden states at the given positions of each row."""
    inner: Any = unwrap_model(model)
    if not rows:
        return torch.nn.Identity(), torch.zeros(0, 1, device=device)
    if _runs_packed(model):
        return inner.lm_head, compute_hidden(inner, rows, places, device, kept, bias)
    ids = torch.from_numpy(_pad(rows)).to(device)
    which = np.repeat(np.arange(len(rows)), [len(place) for place in places])
    index = (torch.from_numpy(which).to(device), torch.from_numpy(np.concatenate(places)).to(device))
    backbone = split_decoder_and_head(model)
    with _add_to_last_block(model, bias):
        if backbone is None:
            return torch.nn.Identity(), model(input_ids=ids, use_cache=False).logits[index]
        decoder, head = backbone
        return head, _read_table(model, decoder, ids)[index]


def _pad(sequences: Sequence[Ids]) -> Ids:
    result = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    for row, ids in zip(result, sequences, strict=True):
        row[: len(ids)] = ids
    return result


@contextlib.contextmanager
def _add_to_last_block(model: torch.nn.Module, bias: Tensor | None) -> Iterator[None]:
    if bias is None:
        yield
        return
    added: Tensor = bias

    def add_bias(_module: Any, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0] + added.to(output[0].dtype), *output[1:])
        return output + added.to(output.dtype)

    handle = find_last_block(model).register_forward_hook(add_bias)
    try:
        yield
    finally:
        handle.remove()


# ---- embeddings ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def embed(policy: TrainablePolicy, texts: Sequence[str]) -> NDArray[np.float64]:
    """The normalised means of a model's last hidden states: similar texts have near embeddings.

    One row per text, with the policy's current weights; a text longer than the context is cut.
    """
    backbone = split_decoder_and_head(policy.model)
    if backbone is None:
        raise DataError(f"{policy.name} has no hidden states for embeddings")
    rows = []
    for start in range(0, len(texts), EMBEDDED_TEXTS):
        ids = [policy.tokenizer.encode(text)[: policy.context_length] for text in texts[start : start + EMBEDDED_TEXTS]]
        lengths = torch.tensor([max(len(row), 1) for row in ids])
        width = int(lengths.max())
        padded = torch.tensor([[*row, *[policy.tokenizer.pad_id] * (width - len(row))] for row in ids])
        hidden = _read_table(policy.model, backbone[0], padded.to(policy.device)).double().cpu()
        inside = (torch.arange(width)[None, :] < lengths[:, None]).unsqueeze(-1)
        rows.append((hidden * inside).sum(1) / lengths[:, None])
    stacked = torch.cat(rows) if rows else torch.zeros(0, 1, dtype=torch.float64)
    return np.asarray(torch.nn.functional.normalize(stacked, dim=1).numpy(), dtype=np.float64)


def _read_table(model: torch.nn.Module, decoder: Callable[..., Any], ids: Tensor) -> Tensor:
    """The last hidden states of all tokens of rows that are padded on the right."""
    inner: Any = unwrap_model(model)
    if _runs_packed(model):
        return compute_table_hidden(inner.model, ids)
    found: Tensor = decoder(input_ids=ids, use_cache=False).last_hidden_state
    return found


# ---- the parts of a model ------------------------------------------------------------------------------------------------

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
    """The language model inside an adapter's wrapper; the adapter's layers are inside it and stay active."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if unwrap is not None else model


def set_checkpointing(model: Any, on: bool) -> None:
    """Recompute activations in the backward pass, or no longer. (transformers renamed the method within version 5.)

    A plain module has no such switch: its only passes are packed, which recompute what memory does not hold.
    """
    if isinstance(unwrap_model(model), Decoder):
        return
    renamed = hasattr(model, "activation_checkpointing_enable")
    prefix = "activation" if renamed else "gradient"
    if on:
        enable = getattr(model, f"{prefix}_checkpointing_enable")
        enable(**{f"{prefix}_checkpointing_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{prefix}_checkpointing_disable")()


def find_last_block(model: torch.nn.Module) -> torch.nn.Module:
    """The last decoder block."""
    blocks = find_blocks(model)
    if not blocks:
        raise DataError(f"cannot find the decoder blocks of a {type(unwrap_model(model)).__name__}")
    return blocks[-1]


def find_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The decoder blocks, first to last; none if they are not found."""
    inner: Any = unwrap_model(model)
    layers = getattr(inner.get_decoder(), "layers", None) if hasattr(inner, "get_decoder") else None
    return list(layers or ())
