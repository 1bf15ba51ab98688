"""The interface between sessions and models, and its implementation by the model's own modules.

Given a chunk of tokens per row, a `Forward` returns the logits after each row's last token. `agents/model/cached.py` has a faster
implementation for Llama's family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.model.cache import Chunks, KVCache
from fedagentgym.base.errors import OptionError

PASS_COST = 64
"""The least overhead of a pass, counted in tokens that take the same time. Small models have a higher overhead."""
MAX_TOKENS_PER_PASS = 32_768
"""The most tokens, including padding, in one pass. Limits the memory of long prompts."""

_KINDS = ("full_attention", "sliding_attention")


class Forward(Protocol):
    """A model over a key-value cache. `pass_cost` is the overhead of a pass, counted in tokens that take the same time."""

    slots: KVCache
    pass_cost: int

    def compute_logits(self, chunks: Chunks, choices: Tensor | None = None) -> Tensor:
        """Run the chunks into the cache and return the logits after each row's last token.

        `choices` [rows, choices] are the tokens whose logits are returned; None for the whole vocabulary.
        """
        ...


class _Window(NamedTuple):
    """The cache slots that a padded group of rows writes and reads.

    `slots` is None for the first `rows` slots, which attention reads without a copy. `real` are the indices of the tokens that
    are stored, all but padding; None if there is no padding."""

    rows: int
    slots: Tensor | None
    real: Tensor | None
    cells: Tensor
    columns: int


class ModuleForward:
    """Any causal language model, run by its own modules with a cache object that writes into the slots.

    `compute` is the dtype of autocast, or None. On a GPU rollouts use the same autocast as training, so that log-probs agree.
    """

    def __init__(self, model: Any, device: torch.device, compute: torch.dtype | None = None) -> None:
        config = model.config.get_text_config()
        declared = getattr(config, "layer_types", None)
        kinds = set(declared or _KINDS[:1])
        if not kinds <= set(_KINDS):
            raise OptionError(
                f"{type(model).__name__} has layers of the kinds {', '.join(sorted(kinds))}: only attention layers can be "
                "cached over many turns"
            )
        self.span: int | None = getattr(config, "sliding_window", None)
        self.mixed = _KINDS[1] in kinds
        if declared is not None and not self.mixed:
            self.span = None
        self.model = model
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.compute = compute
        layers = config.num_hidden_layers
        self.pass_cost = max(PASS_COST, min(1024, 6 * 10**7 * layers // sum(w.numel() for w in model.parameters())))
        self.slots = KVCache(config.num_hidden_layers, heads, width, compute or next(model.parameters()).dtype, device)
        self.cache = _make_module_cache(self.slots)

    def compute_logits(self, chunks: Chunks, choices: Tensor | None = None) -> Tensor:
        """Run rows of like length together, as padded rectangles."""
        groups = group_by_length(chunks.lengths.tolist(), self.pass_cost)
        found = torch.cat([self._run_group(chunks, np.array(group)) for group in groups])
        back = np.argsort(np.concatenate(groups))
        logits = found[torch.from_numpy(back).to(found.device)] if len(groups) > 1 else found
        return logits if choices is None else logits.gather(1, choices)

    @torch.no_grad()
    def _run_group(self, chunks: Chunks, group: NDArray[np.int64]) -> Tensor:
        lengths, slots, device = chunks.lengths[group], chunks.slots[group], self.slots.device
        within = np.arange(int(lengths.max()))
        real = within < lengths[:, None]
        starts = (chunks.ends - chunks.lengths)[group]
        ids = torch.from_numpy(chunks.ids[np.where(real, starts[:, None] + within, starts[:, None])]).to(device)

        places = chunks.first[group, None] + within
        cells = self.slots.find_cells(np.repeat(slots, real.sum(1)), places[real])
        columns = int(places[real].max()) + 1
        parts = (slots, np.flatnonzero(real), np.minimum(places, columns - 1))
        rows, kept, positions = (torch.from_numpy(part).to(device) for part in parts)
        in_front = bool((slots == np.arange(len(slots))).all())
        self.cache.window = _Window(
            len(slots), None if in_front else rows, None if real.all() else kept, cells, columns
        )

        # masks are added to the scores: every attention implementation accepts this form, and none converts it per layer
        key_places, least = torch.arange(columns, device=device), torch.finfo(self.slots.dtype).min
        seen = [key_places <= positions.unsqueeze(-1)]
        if self.span is not None:
            near = seen[0] & (key_places > positions.unsqueeze(-1) - self.span)
            seen = [*seen, near] if self.mixed else [near]
        masks = [
            torch.zeros(mask.shape, dtype=self.slots.dtype, device=device).masked_fill_(~mask, least).unsqueeze(1)
            for mask in seen
        ]
        last = torch.from_numpy(lengths - 1).to(device)
        wanted = torch.unique(last)
        with torch.autocast(device.type, dtype=self.compute, enabled=self.compute is not None):
            found: Tensor = self.model(
                input_ids=ids,
                attention_mask=masks[0] if len(masks) == 1 else dict(zip(_KINDS, masks, strict=True)),
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=wanted,
            ).logits
        return found[torch.arange(len(ids), device=device), torch.searchsorted(wanted, last)]


def _make_module_cache(slots: KVCache) -> Any:
    """Build the cache object that the modules call. The class is defined here, since its base class needs transformers."""
    from transformers.cache_utils import Cache, DynamicLayer

    class SlotCache(Cache):  # type: ignore[misc]
        window: _Window

        def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            window = self.window
            fresh = [new.transpose(1, 2).flatten(0, 1) for new in (keys, values)]
            if window.real is not None:
                fresh = [new[window.real] for new in fresh]
            slots.write(layer, window.cells, *fresh)
            found = [store[:, :, : window.columns] for store in (slots.keys[layer], slots.values[layer])]
            if window.slots is None:
                return found[0][: window.rows], found[1][: window.rows]
            return found[0].index_select(0, window.slots), found[1].index_select(0, window.slots)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.window.columns

    return SlotCache(layer_class_to_replicate=DynamicLayer)


def group_by_length(lengths: Sequence[int], pass_cost: int = PASS_COST) -> list[list[int]]:
    """Split indices into groups at the least total cost of padding and passes. Each group is padded to its longest length."""
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    distinct = sorted(by_length)
    # cut the sorted lengths into runs: for every end, find the cheapest last run, given the cheapest cut of the lengths before it
    best = [0] + [1 << 60] * len(distinct)
    begins = [0] * (len(distinct) + 1)
    for stop in range(1, len(distinct) + 1):
        rows, longest = 0, distinct[stop - 1]
        for start in range(stop - 1, -1, -1):
            rows += len(by_length[distinct[start]])
            cost = best[start] + rows * longest + pass_cost
            if cost < best[stop]:
                best[stop], begins[stop] = cost, start
    runs = []
    stop = len(distinct)
    while stop:
        runs.append(distinct[begins[stop] : stop])
        stop = begins[stop]
    groups = []
    for run in reversed(runs):
        members = sorted(index for length in run for index in by_length[length])
        # distribute the rows evenly over as few passes as the limit permits
        passes = -(-len(members) // max(1, MAX_TOKENS_PER_PASS // run[-1]))
        size = -(-len(members) // passes)
        groups += [members[start : start + size] for start in range(0, len(members), size)]
    return groups
