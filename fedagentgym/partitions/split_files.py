"""Split files: one JSON file of up to a million assignments, or, for more, a folder (or a zip of it) with integer arrays.

The folder holds `header.json` and flat little-endian arrays: `offsets.bin` (int64), `items.bin` (int32, indices of the pool's
sorted ids), `digests.bin` (32 bytes per client), and, if clients play in variants, `variants.bin` with `variant_offsets.bin`.
Arrays are memory-mapped after their length has been compared with the header, and the offsets of the clients' slices are
checked before any slice is taken. Reading a client reads only its slice and checks it against the client's digest. The
digest of the split covers the clients' digests.
"""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.encoding import bytes_digest, canonical_json, file_digest
from fedagentgym.base.errors import DataError, OptionError, require_type
from fedagentgym.base.files import MAX_TEXT, atomic_folder, format_path, open_plain, parse_json, read_json, write_atomic
from fedagentgym.partitions.assignment import Assignment, compute_offsets
from fedagentgym.partitions.labels import is_count
from fedagentgym.partitions.record import (
    MAX_ASSIGNMENTS,
    MAX_CLIENTS,
    SplitRecord,
    check_header,
    is_id_list,
)

MAX_JSON_ASSIGNMENTS = 1_000_000


NOTE = "fedagentgym.json"
"""The file that names the split file of a repository."""


def save(record: SplitRecord, path: str | Path, pool_ids: Sequence[str]) -> Path:
    """Write the split: `.json` is one file, `.zip` a zip, anything else a folder. `pool_ids` are the pool's sorted ids."""
    require_type("a split is saved to a path", path, str, Path)
    path = Path(path)
    check_header({**record.to_header(), "provenance": dict(record.provenance)}, "the split")
    if len(record) > MAX_CLIENTS or record.clients.items.size > MAX_ASSIGNMENTS:
        raise OptionError(
            f"a split file holds at most {MAX_CLIENTS:,} clients and {MAX_ASSIGNMENTS:,} assignments, this split has"
            f" {len(record):,} and {record.clients.items.size:,}"
        )
    if path.suffix == ".json":
        if record.clients.items.size > MAX_JSON_ASSIGNMENTS:
            raise OptionError(
                f"{record.clients.items.size:,} assignments are too many for one JSON file (at most {MAX_JSON_ASSIGNMENTS:,}): "
                f"write a folder ({path.with_suffix('')}) or a zip ({path.with_suffix('.zip')})"
            )
        write_atomic(path, to_json(record))
    elif path.suffix == ".zip":
        with TemporaryDirectory() as scratch:
            folder = Path(scratch, "split")
            folder.mkdir()
            _write_arrays(record, folder, pool_ids)
            pack(folder, path)
    else:
        with atomic_folder(path) as folder:
            _write_arrays(record, folder, pool_ids)
    return path


def pack(folder: Path, path: Path) -> None:
    """Write the files of a split's folder as one uncompressed zip, which can be read in place of the folder."""
    with TemporaryDirectory() as scratch:
        packed = Path(scratch, "record.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(folder.iterdir()):
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
        write_atomic(path, packed.read_bytes())


def load(path: str | Path) -> SplitRecord:
    """Read a split and check that it is complete. The record of a folder or zip has no ids; they come from the pool."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        raise DataError(f"there is no split file {format_path(path)}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise DataError(f"{path} is no split: it is neither a file nor a folder")
    if stat.S_ISDIR(mode) or _is_zip(path):
        return _load_arrays(path)
    if path.suffix == ".zip":
        raise DataError(f"{path} is not a whole zip file: it was truncated or is of another format")
    return from_json(read_json(path), str(path))


def find_in(path: Path) -> Path:
    """The split file that `fedagentgym.json` in a repository's folder names; without that file, the path itself."""
    if path.is_dir() and (note := path / NOTE).is_file():
        noted = read_json(note)
        name = noted.get("split") if isinstance(noted, dict) else None
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise DataError(f"{note} does not name a split file")
        return path / name
    return path


def compute_fingerprint(path: Path) -> str:
    """Return a text that changes with the content of a split file: the digest of the file, or of the header of a folder or zip,
    which covers its arrays. An empty text means that the file cannot be read; `load` then raises the error."""
    try:
        if path.is_dir() or _is_zip(path):
            found = locate_files(path)[HEADER]
            with found.path.open("rb") as file:
                file.seek(found.start)
                return bytes_digest(file.read(found.size))
        return file_digest(path)
    except (OSError, ValueError, KeyError, DataError):
        return ""


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, ValueError):
        return False


def to_json(record: SplitRecord) -> str:
    """The text of a split's JSON file. Every field and every client has its own line, so that splits can be compared by line."""
    header = record.to_header()
    rows = [json.dumps(list(ids)) for ids in record.iter_tasks()]
    is_varied = any(variant is not None for variant in record.variants)
    variants = [canonical_json(variant) for variant in record.variants] if is_varied else None
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in header.items()]
    lines.append(f'"digest": {json.dumps(record.digest)}')
    lines.append(f'"provenance": {json.dumps(dict(record.provenance), sort_keys=True)}')
    lines.append('"variants": ' + ("null" if variants is None else "[\n" + ",\n".join(variants) + "\n]"))
    lines.append('"clients": [\n' + ",\n".join(rows) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(data: Any, where: str) -> SplitRecord:
    fields = check_header(data, where)
    clients, variants = data.get("clients"), data.get("variants")
    if not isinstance(clients, list) or not clients or not all(is_id_list(row) for row in clients):
        raise DataError(f'{where}: "clients" must be a list with one list of task ids per client')
    if "assignments" in data:
        raise DataError(f"{where}: the field 'assignments' belongs to a folder, not to a JSON file")
    for client, row in enumerate(clients):
        if any(first >= second for first, second in pairwise(row)):
            raise DataError(f'{where}: "clients" holds the tasks of client {client} out of order, or one of them twice')
    ids = sorted({name for row in clients for name in row})
    number = {name: index for index, name in enumerate(ids)}
    assignment = Assignment.from_lists([number[name] for name in row] for row in clients)
    if variants is None:
        variants = [None] * len(clients)
    elif (
        not isinstance(variants, list)
        or len(variants) != len(clients)
        or not all(isinstance(variant, dict | None) for variant in variants)
    ):
        raise DataError(f'{where}: "variants" must be null or hold one entry (an object or null) per client')
    return _check_digest(SplitRecord(**fields, clients=assignment, ids=ids, variants=variants), data, where)


def _check_digest(record: SplitRecord, data: Mapping[str, Any], where: str) -> SplitRecord:
    if record.digest != data.get("digest"):
        raise DataError(f"{where} does not match its own digest: its content was changed after it was made")
    return record


# ---- folder and zip ---------------------------------------------------------------------------------------------


def _write_arrays(record: SplitRecord, folder: Path, pool_ids: Sequence[str]) -> None:
    items = np.asarray(record.clients.items)
    if record.ids is not None and record.ids is not pool_ids:  # renumber from the record's ids to the pool's
        place = {name: number for number, name in enumerate(pool_ids)}
        items = np.array([place[name] for name in record.ids], dtype=np.int64)[items]
    arrays: dict[str, NDArray[Any]] = {
        "offsets.bin": record.clients.offsets,
        "items.bin": items,
        "digests.bin": np.frombuffer(record.client_digests, dtype=np.uint8),
    }
    if any(variant is not None for variant in record.variants):
        texts = [canonical_json(variant).encode("ascii") for variant in record.variants]
        arrays["variants.bin"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        arrays["variant_offsets.bin"] = compute_offsets(np.array([len(text) for text in texts], dtype=np.int64))
    for name, array in arrays.items():
        array.astype(DTYPES[name]).tofile(folder / name)
    sizes = {
        "clients": len(record),
        "assignments": int(record.clients.items.size),
        "variants": "variants.bin" in arrays,
    }
    header = {**record.to_header(), **sizes, "digest": record.digest, "provenance": dict(record.provenance)}
    (folder / HEADER).write_text(json.dumps(header, sort_keys=True, indent=1) + "\n", encoding="ascii")


def _load_arrays(path: Path) -> SplitRecord:
    where, files = str(path), locate_files(path)
    if HEADER not in files:
        raise DataError(f"{where} is not a split: it holds no {HEADER}")
    found = files[HEADER]
    if found.size > MAX_TEXT:
        raise DataError(f"{where}: {HEADER} has {found.size:,} bytes, at most {MAX_TEXT:,} are read")
    with open_plain(found.path) as file:
        file.seek(found.start)
        data = parse_json(file.read(found.size), f"{where}: {HEADER}")
    fields = check_header(data, where)
    clients, assignments, varied = data.get("clients"), data.get("assignments"), data.get("variants")
    if not is_count(clients, MAX_CLIENTS) or not is_count(assignments, MAX_ASSIGNMENTS) or not clients:
        raise DataError(
            f"{where}: {HEADER} does not say how many clients (1 to {MAX_CLIENTS:,}) and assignments (up to"
            f" {MAX_ASSIGNMENTS:,}) there are"
        )
    if not isinstance(varied, bool):
        raise DataError(f"{where}: the field 'variants' of {HEADER} must be true or false")
    offsets = open_offsets(files, "offsets.bin", clients, assignments, where)
    items = open_array(files, "items.bin", assignments, where)
    digests = open_array(files, "digests.bin", 32 * clients, where).tobytes()
    variants: Sequence[Any] = (None,) * clients
    if varied:
        size = files["variants.bin"].size if "variants.bin" in files else 0
        starts = open_offsets(files, "variant_offsets.bin", clients, size, where)
        if int(np.max(np.diff(starts))) > MAX_VARIANT:
            raise DataError(f"{where}: variants.bin holds a variant of more than {MAX_VARIANT:,} bytes")
        variants = StoredVariants(starts, open_array(files, "variants.bin", size, where))
    divided = Assignment(offsets, items)
    record = SplitRecord(**fields, clients=divided, ids=None, variants=variants, stored_digests=digests)
    return _check_digest(record, data, where)


# ---- the arrays of a folder or zip ------------------------------------------------------------------------------------


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


class StoredFile(NamedTuple):
    """The location of a member: a file of a folder, or a byte range of a zip."""

    path: Path
    start: int
    size: int


def locate_files(path: Path) -> dict[str, StoredFile]:
    """Locate the members of a split folder or zip, by name; other files are ignored. Members of a zip must not be compressed, so
    that they can be mapped in place."""
    known, found = (HEADER, *DTYPES), dict[str, StoredFile]()
    if not path.is_file():
        files = [path / name for name in known if (path / name).is_file()]
        return {file.name: StoredFile(file, 0, file.stat().st_size) for file in files}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            whole = path.stat().st_size
            for member in archive.infolist():
                name = Path(member.filename).name
                if name not in known:
                    continue
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise DataError(
                        f"{path}: {name} is compressed or encrypted; members of a split zip must be stored unchanged"
                    )
                if name in found:
                    raise DataError(f"{path}: {name} is in this zip twice")
                file.seek(member.header_offset)
                head = file.read(_LOCAL_HEADER)
                if len(head) < _LOCAL_HEADER or not head.startswith(_LOCAL_MAGIC):
                    raise DataError(f"{path}: {name} is not at the offset that the zip gives")
                skip = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                start = member.header_offset + _LOCAL_HEADER + skip
                if start + member.file_size > whole:
                    raise DataError(f"{path}: {name} reaches beyond the end of the zip")
                found[name] = StoredFile(path, start, member.file_size)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError) as error:
        raise DataError(f"{path} is not a whole zip file ({str(error)[:100]})") from None
    return found


def open_array(files: Mapping[str, StoredFile], name: str, count: int, where: str) -> NDArray[Any]:
    """Memory-map an array of a split; its file must exist and have the expected size."""
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
    """Memory-map the offsets of `rows` slices; they must start at 0, never decrease and end at `total`."""
    offsets = open_array(files, name, rows + 1, where)
    if offsets[0] != 0 or offsets[-1] != total or bool(np.any(offsets[1:] < offsets[:-1])):
        raise DataError(f"{where}: {name} is damaged: it does not divide {total:,} entries among {rows:,} clients")
    return offsets


class StoredVariants(Sequence[Any]):
    """The variants of the clients in a split's arrays, each parsed on access."""

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
