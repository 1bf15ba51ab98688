"""The cache of keys and values grows by one store at a time, up to the context, and keeps what it holds."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.agents.model.cache import KVCache

CONTEXT = 1 << 15
LAYERS, HEADS, WIDTH = 4, 2, 64


def make_cache() -> KVCache:
    return KVCache(LAYERS, HEADS, WIDTH, torch.float32, torch.device("cpu"))


def test_an_old_store_is_given_back_before_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = make_cache()
    stores.reserve(2, 64, CONTEXT)
    old = [weakref.ref(store) for store in (*stores.keys, *stores.values)]
    storages = [store.untyped_storage().data_ptr() for store in (*stores.keys, *stores.values)]
    assert len(set(storages)) == 2 * LAYERS
    alive: list[int] = []
    make = np.zeros

    def make_and_count(*arguments: Any, **options: Any) -> Any:
        # a view of an old store would keep its memory, so views are counted too
        kept = {line.untyped_storage().data_ptr() for line in stores._lines}
        alive.append(sum(one() is not None or place in kept for one, place in zip(old, storages, strict=True)))
        return make(*arguments, **options)

    monkeypatch.setattr(np, "zeros", make_and_count)
    stores.reserve(2, 65, CONTEXT)
    assert alive == list(range(2 * LAYERS, 0, -1))


@given(steps=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 300)), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_what_is_held_stays_and_no_store_is_longer_than_the_context(steps: list[tuple[int, int]]) -> None:
    context = 300
    stores = KVCache(2, HEADS, WIDTH * 32, torch.float32, torch.device("cpu"))
    kept: dict[tuple[int, int], torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for rows, columns in steps:
        stores.reserve(rows, columns, context)
        assert stores.count >= rows and columns <= stores.columns <= context
        slot, position = rows - 1, columns - 1
        token = torch.randn(1, HEADS, WIDTH * 32, generator=generator)
        cells = stores.find_cells(np.array([slot]), np.array([position]))
        for layer in range(2):
            stores.write(layer, cells, token, -token)
        kept[slot, position] = token[0]
        for (row, column), held in kept.items():
            for layer in range(2):
                assert torch.equal(stores.keys[layer][row, :, column], held)
                assert torch.equal(stores.values[layer][row, :, column], -held)
