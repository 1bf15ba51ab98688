"""Compressed files of lines are read within limits, and refused in one sentence where they are not whole."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from fedagentgym.base import files
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import compress, read_compressed, read_jsonl

TEXT = "".join(f'{{"a": {number}}}\n' for number in range(500))
WHOLE = compress(TEXT)
HUNGRY = lzma.compress(b"1\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}])
ODD = {
    "empty": (b"", "its end is missing"),
    "cut short": (WHOLE[:-9], "its end is missing"),
    "another format": (gzip.compress(b"1\n"), "not a whole xz file"),
    "not compressed": (b"1\n", "not a whole xz file|its end is missing"),
    "something behind it": (WHOLE + b"1", "something follows"),
    "two of them": (WHOLE + WHOLE, "something follows"),
    "asks for 512 MiB": (HUNGRY, "not a whole xz file: Memory usage limit"),
}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_what_was_written_is_read(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", chunk)
    file = tmp_path / "lines.jsonl.xz"
    file.write_bytes(WHOLE)
    assert [value["a"] for _, value in read_jsonl(file)] == list(range(500))
    assert read_compressed(file) == TEXT


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_refused(name: str, tmp_path: Path) -> None:
    data, message = ODD[name]
    file = tmp_path / "lines.jsonl.xz"
    file.write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(read_jsonl(file))
    with pytest.raises(DataError, match=message):
        read_compressed(file)


def test_a_file_that_expands_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.jsonl.xz"
    file.write_bytes(compress("0" * (1 << 22)))
    monkeypatch.setattr(files, "MAX_LINE", 1 << 20)
    with pytest.raises(DataError, match="longer than"):
        list(read_jsonl(file))
    with pytest.raises(DataError, match="holds more than"):
        read_compressed(file, limit=1 << 20)
    with pytest.raises(DataError, match="no such file"):
        read_compressed(tmp_path / "missing.xz")
