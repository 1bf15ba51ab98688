"""Named arrays and byte strings, in memory or in a memory-mapped folder: the format of all catalogues, indexes and goals.

A folder holds one raw little-endian file per array and `header.json` with dtypes, lengths and values that describe them.
Processes that open the same folder share its pages, so a catalogue of a million products costs memory once per machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json

FORMAT = 1
DTYPES = frozenset(["|u1", "<u2", "<i4", "<i8", "<u8", "<f4", "<f8"])
Array = NDArray[Any]


class Bundle(NamedTuple):
    """Arrays by name, and plain values that describe them."""

    arrays: Mapping[str, Array]
    header: Mapping[str, Any]

    def get_texts(self, name: str) -> Texts:
        return Texts(self.arrays[f"{name}.bytes"], self.arrays[f"{name}.ends"])


class Texts:
    """Byte strings one after the other, with the place where each ends."""

    def __init__(self, data: Array, ends: Array) -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        start = int(self._ends[index - 1]) if index else 0
        return self._data[start : int(self._ends[index])].tobytes()


class TextsWriter:
    """Collects byte strings, in memory or straight into a file of the folder under construction."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self._file: BinaryIO | None = None if folder is None else (folder / f"{name}.bytes.bin").open("wb")
        self._parts: list[bytes] = []
        self._ends: list[int] = []
        self._blocks: list[Array] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        if self._file is None:
            self._parts.append(data)
        else:
            self._file.write(data)
        self._size += len(data)
        self._ends.append(self._size)
        if len(self._ends) == 1 << 16:
            self._blocks.append(np.array(self._ends, dtype=np.int64))
            self._ends = []

    def finish(self) -> dict[str, Array | int]:
        """The two arrays; for bytes that were written to a file, their number in place of the array."""
        ends = np.concatenate([*self._blocks, np.array(self._ends, dtype=np.int64)])
        if self._file is None:
            data: Array | int = np.frombuffer(b"".join(self._parts), dtype=np.uint8)
        else:
            self._file.close()
            data = self._size
        return {f"{self.name}.bytes": data, f"{self.name}.ends": ends}


def save(folder: Path, arrays: Mapping[str, Array | int], header: Mapping[str, Any]) -> None:
    """Write a bundle; an int in place of an array means that this many bytes are already in its file."""
    table: dict[str, Any] = {}
    for name, array in arrays.items():
        if isinstance(array, int):
            table[name] = ["|u1", array]
            continue
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        np.ascontiguousarray(little).tofile(folder / f"{name}.bin")
        table[name] = [little.dtype.str, len(little)]
    text = json.dumps({"format": FORMAT, "arrays": table, "header": dict(header)}, indent=1, sort_keys=True)
    (folder / "header.json").write_text(text, encoding="utf-8")


def open_folder(folder: Path) -> Bundle:
    """Map a bundle into memory. Every file is checked against the length its header declares."""
    head = read_json(folder / "header.json")
    try:
        version, table, header = head["format"], dict(head["arrays"]), dict(head["header"])
        described = [(str(name), str(dtype), int(length)) for name, (dtype, length) in table.items()]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{folder / 'header.json'}: not a header of this package ({error!r}); remove the folder"
        ) from None
    if version != FORMAT:
        raise DataError(
            f"{folder} has format {version!r}, this version reads {FORMAT}; remove it, it will be made anew"
        )
    arrays: dict[str, Array] = {}
    for name, dtype, length in described:
        path = folder / f"{name}.bin"
        if dtype not in DTYPES or "/" in name:
            raise DataError(f"{folder / 'header.json'}: array {name!r} has the type {dtype!r}, which is not used here")
        wanted = np.dtype(dtype).itemsize * length
        found = path.stat().st_size if path.is_file() else -1
        if found != wanted:
            raise DataError(
                f"{path} holds {found} bytes, its header says {wanted}; remove the folder, it will be made anew"
            )
        empty = np.empty(0, dtype=dtype)
        arrays[name] = np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(length,))) if length else empty
    return Bundle(arrays, header)


def store(folder: Path | None, arrays: Mapping[str, Array | int], header: Mapping[str, Any]) -> Bundle:
    """Keep a bundle in memory, or write it and map what was written."""
    if folder is None:
        return Bundle({name: array for name, array in arrays.items() if not isinstance(array, int)}, dict(header))
    save(folder, arrays, header)
    return open_folder(folder)
