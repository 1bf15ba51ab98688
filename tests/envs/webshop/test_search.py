"""The ranking: identical to the original's engine, and the same however large the collection is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.webshop import search as search_module
from fedagentgym.envs.webshop.analysis import analyze_text
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.index import (
    Index,
    build_text_index,
    check_fields,
    decode_lengths,
    make_document,
    quantise,
)
from fedagentgym.envs.webshop.search import Searcher, Segment
from fedagentgym.envs.webshop.stock import get_index

WORDS = ["red", "blue", "shoe", "shirt", "cotton", "large", "small", "lamp", "tea", "cup", "kiwi", "zebra"]


def collection(texts: list[str]) -> Index:
    return build_text_index(texts, np.arange(len(texts), dtype=np.int32))


def straightforward(texts: list[str], query: str, k: int, k1: float = 0.9, b: float = 0.4) -> list[int]:
    """BM25 by the formula, document by document."""
    bags = [Counter(analyze_text(text)) for text in texts]
    lengths = np.array([sum(bag.values()) for bag in bags], dtype=np.int64)
    shown = decode_lengths()[quantise(lengths)]
    average = np.float32(lengths.sum() / len(texts))
    one = np.float32(1)
    scores = np.zeros(len(texts))
    for text, count in Counter(analyze_text(query)).items():
        frequency = sum(text in bag for bag in bags)
        weight = np.float32(count) * np.float32(np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5)))
        for place, bag in enumerate(bags):
            if bag[text]:
                norm = one / (np.float32(k1) * ((one - np.float32(b)) + np.float32(b) * shown[place] / average))
                scores[place] += weight - weight / (one + np.float32(bag[text]) * norm)
    rounded = scores.astype(np.float32)
    return [place for place in np.argsort(-rounded, kind="stable").tolist() if rounded[place] > 0][:k]


def test_rankings_are_the_originals(real: WebShopEnv, parity: Callable[[str], Any]) -> None:
    shop, queries = real.site.shop, parity("search_cases")["queries"]
    found = [[shop.get_head(row).asin for row in shop.searcher.search(case["query"], 50)] for case in queries]
    wanted = [[asin for asin, _ in case["hits"]] for case in queries]
    assert len(queries) == 126
    assert [hits[:10] for hits in found] == [hits[:10] for hits in wanted]
    assert found == wanted


def test_lengths_are_exact_below_forty_and_then_keep_four_bits() -> None:
    lengths = np.arange(40)
    assert (decode_lengths()[quantise(lengths)] == lengths).all()
    assert decode_lengths()[quantise(np.array([40, 41, 60, 1000, 100_000]))].tolist() == [40, 40, 60, 984, 98328]


texts_strategy = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=40
)


@given(texts_strategy, st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join))
def test_vectorised_scores_are_those_of_the_formula(texts: list[str], query: str) -> None:
    assert Searcher([Segment(collection(texts))]).search(query, 10) == straightforward(texts, query, 10)


@given(texts_strategy, st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join), st.data())
def test_segments_rank_as_one_collection(texts: list[str], query: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(texts)))
    asin = [f"{place:05d}" for place in range(len(texts))].__getitem__
    parts = [Segment(collection(texts[:cut]), 0), Segment(collection(texts[cut:]), cut)]
    assert Searcher(parts, asin=asin).search(query, 10) == straightforward(texts, query, 10)


@pytest.mark.parametrize("masked", [False, True])
def test_skipping_frequent_terms_changes_nothing(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.Generator(np.random.Philox(key=3))
    rare = [f"word{number}" for number in range(400)]
    texts = []
    for _ in range(6000):
        some = [WORDS[int(place)] for place in draw.integers(0, len(WORDS), size=6)]
        texts.append(" ".join([*some, *(rare[int(place)] for place in draw.integers(0, 400, size=2))]))
    index = collection(texts)
    allowed = draw.random(len(texts)) < 0.3 if masked else None
    whole = Searcher([Segment(index, allowed=allowed)])
    monkeypatch.setattr(search_module, "READ_ALL_BELOW", 0)
    monkeypatch.setattr(search_module, "BLOCK", 16)
    pruned = Searcher([Segment(index, allowed=allowed)])
    skipped = 0
    looked_up = Searcher._look_up
    for number in range(60):
        query = f"word{number} word{number + 7} red shoe large cotton {WORDS[number % 12]}"
        found = pruned.search(query, 10)
        calls: list[int] = []
        monkeypatch.setattr(Searcher, "_look_up", lambda *a, c=calls: (c.append(1), looked_up(*a))[1])
        assert pruned.search(query, 10) == found
        skipped += len(calls)
        monkeypatch.setattr(Searcher, "_look_up", looked_up)
        monkeypatch.setattr(search_module, "READ_ALL_BELOW", 1 << 16)
        assert whole.search(query, 10) == found
        monkeypatch.setattr(search_module, "READ_ALL_BELOW", 0)
    assert skipped > 0


def test_more_occurrences_than_a_byte_can_hold() -> None:
    texts = ["tea " * 300 + "cup", "tea " * 255 + "cup", "tea " * 290 + "lamp", "cup"]
    assert Searcher([Segment(collection(texts))]).search("tea", 4) == straightforward(texts, "tea", 4)


def test_unusual_queries_find_nothing_or_something_and_never_fail(real: WebShopEnv) -> None:
    searcher = real.site.shop.searcher
    for query in ("", " ", "the of and", "\x00", "\ud800", "½", "zzzzqqq", "<b>"):
        assert isinstance(searcher.search(query, 50), list)
    assert searcher.search("zzzzqqq", 50) == []
    assert len(searcher.search("red " * 20000, 50)) == 50


def test_index_fields_select_texts(real: WebShopEnv) -> None:
    product = real.site.shop.get_product(5)
    assert make_document(product, ("name",)) == product.title.lower()
    assert product.bullets[2].lower() in make_document(product, ("bullets",))
    assert check_fields(["features", "name"]) == ("name", "features")
    assert get_index(real.stock, ("name",)).total_terms < get_index(real.stock).total_terms


def test_an_index_in_a_folder_is_the_one_in_memory(tmp_path: Path) -> None:
    texts = ["tea cup " * 300, "red shoe", "blue shoe tea"]
    kept = build_text_index(texts, np.arange(3, dtype=np.int32), tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".bin"] * 7 + [".json"]
    for mine, theirs in zip(kept, collection(texts), strict=True):
        assert np.array_equal(mine, theirs)
    assert Searcher([Segment(kept)]).search("tea", 3) == straightforward(texts, "tea", 3)
