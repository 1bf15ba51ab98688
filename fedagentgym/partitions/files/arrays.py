"""The arrays of a large split: a folder of flat files, or a zip that stores them as they are.

A file is mapped, not read, and only after its length has been compared with the header; the offsets of the clients' slices
are checked before any slice is taken. Whether the numbers are valid for the pool is checked by the caller.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import MAX_TEXT, open_plain
from fedagentgym.base.parsing import parse_json

DTYPES = {
    "offsets.bin": "<i8",
    "items.bin": "<i4",
    "digests.bin": "|u1",
    "variants.bin": "|u1",
    "variant_offsets.bin": "<i8",
}
HEADER = "header.json"
MAX_VARIANT = 1 << 20
"""Maximum size of the description of one client's variant, in bytes."""
_LOCAL_HEADER = 30
_LOCAL_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True)
class StoredFile:
    """The bytes of one member: a file of a folder, or a range of a zip."""

    path: Path
    start: int
    size: int


def locate_files(path: Path) -> dict[str, StoredFile]:
    """The members of a split folder or zip by name; other files in it are not read."""
    if path.is_file():
        return _locate_members(path)
    known = (HEADER, *DTYPES)
    return {name: StoredFile(path / name, 0, (path / name).stat().st_size) for name in known if (path / name).is_file()}


def read_header_file(files: Mapping[str, StoredFile], where: str) -> Any:
    """The JSON value of the header, of limited length."""
    if HEADER not in files:
        raise DataError(f"{where} is not a split: it holds no {HEADER}")
    found = files[HEADER]
    if found.size > MAX_TEXT:
        raise DataError(f"{where}: {HEADER} has {found.size:,} bytes, at most {MAX_TEXT:,} are read")
    with open_plain(found.path) as file:
        file.seek(found.start)
        return parse_json(file.read(found.size), f"{where}: {HEADER}")


def open_array(files: Mapping[str, StoredFile], name: str, count: int, where: str) -> NDArray[Any]:
    """An array of the split, memory-mapped; its file must exist and have the expected size."""
    dtype = np.dtype(DTYPES[name])
    if name not in files:
        raise DataError(f"{where} is not whole: {name} is missing")
    found = files[name]
    if found.size != count * dtype.itemsize:
        raise DataError(
            f"{where} is not whole: {name} has {found.size:,} bytes, {count * dtype.itemsize:,} are expected"
        )
    if not count:
        return np.zeros(0, dtype=dtype)
    try:
        return np.memmap(found.path, dtype=dtype, mode="r", offset=found.start, shape=(count,))
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: {name} cannot be read ({error})") from None


def open_offsets(files: Mapping[str, StoredFile], name: str, rows: int, total: int, where: str) -> NDArray[Any]:
    """The offsets of `rows` slices: from 0, never decreasing, to `total`."""
    offsets = open_array(files, name, rows + 1, where)
    if offsets[0] != 0 or offsets[-1] != total or bool(np.any(offsets[1:] < offsets[:-1])):
        raise DataError(f"{where}: {name} is damaged: it does not divide {total:,} entries among {rows:,} clients")
    return offsets


class StoredVariants(Sequence[Any]):
    """Variants that are read on demand."""

    def __init__(self, offsets: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        self._offsets, self._raw = offsets, raw

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        found = parse_json(
            self._raw[self._offsets[index] : self._offsets[index + 1]][: MAX_VARIANT + 1].tobytes(),
            f"the variant of client {index} in variants.bin",
        )
        if not isinstance(found, dict | None):
            raise DataError(f"the variant of client {index} in variants.bin is neither an object nor null")
        return found


def open_variants(files: Mapping[str, StoredFile], clients: int, where: str) -> StoredVariants:
    """The variants of all clients, each within the maximum size."""
    size = files["variants.bin"].size if "variants.bin" in files else 0
    offsets = open_offsets(files, "variant_offsets.bin", clients, size, where)
    if int(np.max(np.diff(offsets))) > MAX_VARIANT:
        raise DataError(f"{where}: variants.bin holds a variant of more than {MAX_VARIANT:,} bytes")
    return StoredVariants(offsets, open_array(files, "variants.bin", size, where))


def _locate_members(path: Path) -> dict[str, StoredFile]:
    """The offset of each stored member of the zip; members are not compressed, so they can be mapped in place."""
    found: dict[str, StoredFile] = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            whole = path.stat().st_size
            for member in archive.infolist():
                name = Path(member.filename).name
                if name not in (HEADER, *DTYPES):
                    continue
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise DataError(
                        f"{path}: {name} is compressed or encrypted; a split zip stores its members as they are"
                    )
                if name in found:
                    raise DataError(f"{path}: {name} is in this zip twice")
                file.seek(member.header_offset)
                head = file.read(_LOCAL_HEADER)
                if len(head) < _LOCAL_HEADER or not head.startswith(_LOCAL_MAGIC):
                    raise DataError(f"{path}: {name} is not at the place that the zip gives")
                skip = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                start = member.header_offset + _LOCAL_HEADER + skip
                if start + member.file_size > whole:
                    raise DataError(f"{path}: {name} reaches beyond the end of the zip")
                found[name] = StoredFile(path, start, member.file_size)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError) as error:
        raise DataError(f"{path} is not a whole zip file ({str(error)[:100]})") from None
    return found
