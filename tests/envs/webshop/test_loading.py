"""Reading the original's files: cleaning rules, streaming, errors that name the place; importing and mapping."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.progress import Progress
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop import loading, stock
from fedagentgym.envs.webshop.arrays import open_folder
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.loading import clean, find_files, read_entries, stream_json
from fedagentgym.envs.webshop.stock import ShopChoice, open_shop_data

RECORD = {
    "asin": "B000000001",
    "name": "Lamp",
    "full_description": "",
    "small_description": ["Bright ", "Small "],
    "pricing": "$9.99",
    "images": ["x.jpg"],
    "product_category": "A › B",
    "category": "garden",
    "query": " Lamps ",
    "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "Navy"}], "Size": None},
}


def write(folder: Path, products: Any, notes: Any = None, human: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "items_shuffle_1000.json").write_text(products if isinstance(products, str) else json.dumps(products))
    notes = (
        {
            "B000000001": {
                "attributes": ["easy use"],
                "instruction": "Find lamps",
                "instruction_attributes": ["easy use"],
            }
        }
        if notes is None
        else notes
    )
    (folder / "items_ins_v2_1000.json").write_text(notes if isinstance(notes, str) else json.dumps(notes))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human))
    return folder


def many(count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    records = [{**RECORD, "asin": f"B{number:09d}", "name": f"Lamp {number}"} for number in range(count)]
    notes = {
        record["asin"]: {
            "attributes": ["easy use"],
            "instruction": f"Find lamp {number}",
            "instruction_attributes": ["easy use"],
        }
        for number, record in enumerate(records)
    }
    return records, notes


def test_cleaning_rules() -> None:
    product = clean(RECORD, {}, "here")
    assert product.options == {"color": ("red | blue", "navy")}
    assert (product.query, product.price_tag, product.prices) == ("lamps", "$9.99", (9.99,))
    assert product.attributes == ("DUMMY_ATTR",)
    assert clean({**RECORD, "small_description": "One"}, {}, "").bullets == ("One",)
    assert clean({**RECORD, "customization_options": ""}, {}, "").options == {}


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("", (100.0,), "$100.0"),
        (None, (100.0,), "$100.0"),
        ("$40", (40.0,), "$40.0"),
        ("$1,234.50", (1234.5,), "$1234.5"),
        ("$5.00$7.5$9", (5.0, 7.5), "$5.0 to $7.5"),
        ("$5$5", (5.0, 5.0), "$5.0 to $5.0"),
    ],
)
def test_prices(pricing: Any, prices: tuple[float, ...], tag: str) -> None:
    product = clean({**RECORD, "pricing": pricing}, {}, "")
    assert (product.prices, product.price_tag) == (prices, tag)


def test_products_with_unusual_or_repeated_numbers_are_skipped(tmp_path: Path) -> None:
    odd = [{**RECORD, "asin": asin} for asin in ("nan", "B0000000011", "B000000001", "B000000001")]
    entries = list(read_entries(find_files(write(tmp_path, odd))))
    assert [product.asin for product, _ in entries] == ["B000000001"]
    assert list(read_entries(find_files(tmp_path), limit=2)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asin": 5}, r"record 0: the field 'asin' is 5"),
        ({"name": None}, r"record 0: the field 'name' is None"),
        ({"pricing": "cheap"}, r"record 0: the field 'pricing' is 'cheap'"),
        ({"pricing": "$a"}, r"record 0: the field 'pricing'"),
        ({"pricing": 7}, r"record 0: the field 'pricing'"),
        ({"small_description": [1]}, r"record 0: the field 'small_description'"),
        ({"customization_options": {"Color": [{}]}}, r"record 0: the field 'customization_options', entry 'Color'"),
        ({"customization_options": [1]}, r"record 0: the field 'customization_options'"),
        ({"query": ["x"]}, r"record 0: the field 'query'"),
    ],
)
def test_malformed_records_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_shop_data(ShopChoice(str(write(tmp_path, [{**RECORD, **change}]))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("[", "ends too early"),
        ('{"a": 1}', r"expected '\['"),
        ('[{"asin": "nan"} 2]', "expected ','"),
        ("[{'a': 1}]", "not valid JSON at character"),
        ("[5]", "a product is an object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(read_entries(find_files(write(tmp_path, text))))
    assert "items_shuffle_1000.json" in str(caught.value)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    short = {key: value for key, value in RECORD.items() if key != "product_category"}
    with pytest.raises(DataError, match=r"record 1: the field 'product_category' is missing"):
        list(read_entries(find_files(write(tmp_path, [RECORD, {**short, "asin": "B000000002"}]))))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needed are items_shuffle\.json"):
        find_files(tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        find_files(tmp_path / "x")


def test_files_that_are_not_text_are_named(tmp_path: Path) -> None:
    write(tmp_path, [RECORD])
    (tmp_path / "items_shuffle_1000.json").write_bytes(b'["\xff\xfe"]')
    with pytest.raises(DataError, match="is not UTF-8 text"):
        list(read_entries(find_files(tmp_path)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=6), st.integers(1, 9), st.booleans(), st.sampled_from([None, 1, 4]))
def test_streaming_reads_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], window: int, ascii_only: bool, indent: int | None
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    keyed = {f"k{place}": value for place, value in enumerate(values)}
    (folder / "list.json").write_text(
        json.dumps(values, ensure_ascii=ascii_only, indent=indent), "utf-8", "surrogatepass"
    )
    (folder / "dict.json").write_text(
        json.dumps(keyed, ensure_ascii=ascii_only, indent=indent), "utf-8", "surrogatepass"
    )
    before, loading.WINDOW = loading.WINDOW, window
    try:
        assert [value for _, value in stream_json(folder / "list.json", "[")] == values
        assert dict(stream_json(folder / "dict.json", "{")) == keyed
    finally:
        loading.WINDOW = before


def test_a_large_set_is_mapped_and_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    records, notes = many(3000)
    folder = str(write(tmp_path / "data", records, notes))
    small = open_env(WebShopEnv, data=folder)
    stock._load_shop_data.cache_clear()
    monkeypatch.setattr(stock, "IN_MEMORY_BYTES", 0)
    mapped = open_env(WebShopEnv, data=folder)
    assert mapped.stock.folder is not None and isinstance(mapped.stock.catalogue.low.base, np.memmap)
    assert mapped.pool.digest == small.pool.digest
    actions = ("search[lamp 17 easy use]", "click[next >]", "click[back to search]")
    for env in (small, mapped):
        env.reset(seed=4)
    assert [small.step(action) for action in actions] == [mapped.step(action) for action in actions]
    stock._load_shop_data.cache_clear()
    assert open_env(WebShopEnv, data=folder).stock.catalogue.size == 3000
    damaged = mapped.stock.folder / "catalogue" / "low.bin"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    stock._load_shop_data.cache_clear()
    with pytest.raises(DataError, match=r"low\.bin holds 23992 bytes, its header says 24000"):
        open_env(WebShopEnv, data=folder)


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    records, notes = many(2000)
    folder = write(tmp_path, records, notes)
    before = open_shop_data(ShopChoice(str(folder)))
    assert open_shop_data(ShopChoice(str(folder))) is before
    write(tmp_path, records[:1900], notes)
    assert len(open_shop_data(ShopChoice(str(folder))).catalogue) == 1900


def test_import_and_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webshop_data: Path, parity: Callable[[str], Any]
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "data"))
    with pytest.raises(FedAgentGymError, match="data add webshop"):
        open_env(WebShopEnv, data="installed")
    place = stock.import_data(webshop_data)
    with pytest.raises(DataError, match="is there already"):
        stock.import_data(webshop_data)
    installed, loaded = open_env(WebShopEnv, data="installed"), open_env(WebShopEnv, data=str(webshop_data))
    assert installed.pool.digest == loaded.pool.digest
    assert installed.pool[5] == loaded.pool[5]
    assert [g.asin for g in open_shop_data(ShopChoice("installed", goals="human")).goals] == [
        g["asin"] for g in parity("goals_seed42")["human"]
    ]
    assert open_shop_data(ShopChoice("installed", seed=9)).goals[0].price_upper > 0
    (place / "webshop.json").write_text("[]")
    stock._load_shop_data.cache_clear()
    with pytest.raises(DataError, match="import the data again"):
        open_env(WebShopEnv, data="installed")


def test_a_failed_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match="record 1"):
        stock.import_data(write(tmp_path / "raw", [RECORD, {**RECORD, "asin": "B2", "pricing": "x"}]))
    assert not any((tmp_path / "data").iterdir())


@pytest.mark.parametrize("count", [0, 3, 4, 7])
def test_progress_counts_the_records_that_were_taken(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counter(Progress):
        done = 0

        def advance(self, n: int = 1, **fields: object) -> None:
            self.done += n

    bar = Counter()
    monkeypatch.setattr(stock, "COUNT_EVERY", 4)
    monkeypatch.setattr(stock, "show_progress", lambda *args: nullcontext(bar))
    files = find_files(write(tmp_path / "raw", [{**RECORD, "asin": f"B{number}"} for number in range(count)]))
    for taken, _ in enumerate(stock._iter_with_progress(files)):
        assert bar.done <= taken
    assert bar.done == count


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{}", "not a header"),
        ('{"format": 99, "arrays": {}, "header": {}}', "format 99"),
        ('{"format": 1, "arrays": {"a": ["|O", 3]}, "header": {}}', "is not used here"),
        ('{"format": 1, "arrays": {"../a": ["|u1", 3]}, "header": {}}', "is not used here"),
        ('{"format": 1, "arrays": {"a": ["|u1", 3]}, "header": {}}', "holds -1 bytes"),
    ],
)
def test_damaged_bundles_are_refused(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "header.json").write_text(header)
    with pytest.raises(DataError, match=message):
        open_folder(tmp_path)
