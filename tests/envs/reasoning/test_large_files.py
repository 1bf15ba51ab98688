"""Data files that hold more than they seem to: each is one sentence before the memory is full."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import MAX_CONTAINERS, parse_json
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.sources import rows

MB = 1 << 20


def pack(make: Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda path: void(path.write_bytes(gzip.compress(make(), 1)))


def void(_: object) -> None:
    return None


def write_parquet(column: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"question": column(arrow), "answer": ["1"] * 200}), path, compression="zstd")

    return write


LARGE = {
    "blanks.jsonl.gz": pack(lambda: b" " * 80 * MB),
    "ends of lines.jsonl.gz": pack(lambda: b"\n" * 8 * MB),
    "empty rows.jsonl.gz": pack(lambda: b"{}\n" * MB),
    "rows.jsonl.gz": pack(
        lambda: json.dumps({"question": "1 + 1? " + "!" * 5000, "answer": "2"}).encode().ljust(5100) * 20_000
    ),
    "blanks.json.gz": pack(lambda: b" " * 80 * MB),
    "empty lists.json.gz": pack(lambda: b"[" + b"[]," * 8 * MB + b"[]]"),
    "blanks.csv.gz": pack(lambda: b" " * 80 * MB),
    "columns.csv.gz": pack(lambda: b",".join(b"%d" % number for number in range(200_000)) + b"\n"),
    "lines.csv.gz": pack(lambda: b"question,answer\n" + b"1,1\n" * MB),
    "one text.parquet": write_parquet(lambda arrow: ["?" * MB] * 200),
    "texts in lists.parquet": write_parquet(lambda arrow: [["?" * MB] * 2] * 200),
    "texts in records.parquet": write_parquet(lambda arrow: [{"a": "?" * MB}] * 200),
    "texts in a map.parquet": write_parquet(
        lambda arrow: arrow.array([[("a", "?" * MB)]] * 200, arrow.map_(arrow.string(), arrow.string()))
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_with_much_in_it_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 4_000)
    LARGE[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size < 2 * MB
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"longer than|more than|at most"):
            open_env(MathEnv, data=tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 400 * MB
    finally:
        tracemalloc.stop()


def test_packed_texts_of_a_parquet_file_are_what_they_were(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = [
        {
            "question": f"{number % 7} + 1?" if number % 5 else None,
            "answer": str(number),
            "more": {"name": "café", "values": [1.5, None]},
            "words": [["a", None], ["b"]][: number % 3],
            "raw": b"\xff",
        }
        for number in range(2500)
    ]
    parquet.write_table(arrow.Table.from_pylist(records), tmp_path / "rows.parquet")
    read = [fields for _, _, fields in rows.read_records(tmp_path, [tmp_path / "rows.parquet"])]
    assert read == records


@pytest.mark.parametrize("text", ["[" + "[]," * MAX_CONTAINERS + "[]]", '{"a":[' + "{}," * MAX_CONTAINERS + "{}]}"])
def test_a_text_of_very_many_lists_is_not_parsed(text: str) -> None:
    with pytest.raises(DataError, match="lists and mappings"):
        parse_json(text, "here")
