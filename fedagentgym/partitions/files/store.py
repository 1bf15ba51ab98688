"""SplitRecord files on disk: one JSON up to a million assignments; above, a folder (or a zip of it) of integers.

The folder holds `header.json` and flat little-endian arrays: `offsets.bin` (int64), `items.bin` (int32, numbers among the
pool's sorted ids), `digests.bin` (32 bytes per client), and, if clients play in different variants, `variants.bin` with
`variant_offsets.bin`. A client is read by its slice alone and checked against its own digest; the digests themselves are
under the digest of the split.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder, read_json, write_atomic
from fedagentgym.partitions.assignment import Assignment, offsets_of
from fedagentgym.partitions.files.labels import Labels
from fedagentgym.partitions.files.split import SCHEMA, NoVariants, SplitRecord, record_digest

MOST_IN_JSON = 1_000_000
_ARRAYS = {
    "offsets.bin": "<i8",
    "items.bin": "<i4",
    "digests.bin": "|u1",
    "variants.bin": "|u1",
    "variant_offsets.bin": "<i8",
}
_FIELDS: dict[str, tuple[type, ...]] = {
    "env": (dict,),
    "pool_digest": (str,),
    "sampler": (dict,),
    "seed": (int,),
    "variant": (dict, type(None)),
    "server_overlap": (int, float),
    "evaluation": (list,),
    "labels": (dict, type(None)),
    "roles": (dict,),
}
_INNER: tuple[tuple[str, str, type], ...] = (
    ("env", "id", str),
    ("env", "split", str),
    ("env", "options", dict),
    ("sampler", "name", str),
    ("sampler", "parameters", dict),
)


def save(record: SplitRecord, path: str | Path, pool_ids: Sequence[str]) -> Path:
    """Write the split: `.json` is one file, `.zip` a zip, anything else a folder. `pool_ids` are the pool's sorted ids."""
    path = Path(path)
    if path.suffix == ".json":
        if record.clients.items.size > MOST_IN_JSON:
            raise OptionError(
                f"{record.clients.items.size:,} assignments are too many for one JSON file (at most {MOST_IN_JSON:,}): "
                f"write a folder ({path.with_suffix('')}) or a zip ({path.with_suffix('.zip')})"
            )
        write_atomic(path, as_json(record))
    elif path.suffix == ".zip":
        _write_zip(record, path, pool_ids)
    else:
        with atomic_folder(path) as folder:
            _write_arrays(record, folder, pool_ids)
    return path


def load(path: str | Path) -> SplitRecord:
    """Read a split and check that it is whole; ids of a folder come with the pool."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no split file {path}")
    if path.is_dir() or zipfile.is_zipfile(path):
        return _load_arrays(path)
    if path.suffix == ".zip":
        raise DataError(f"{path} is not a whole zip file: it was cut off or is something else")
    return from_json(read_json(path), str(path))


def as_json(record: SplitRecord) -> str:
    """One line per entry and per client, so that two splits can be compared line by line."""
    header = record.header()
    rows = [json.dumps(list(ids)) for ids in record.held()]
    variants = (
        None if isinstance(record.variants, NoVariants) else [canonical_json(variant) for variant in record.variants]
    )
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in header.items()]
    lines.append(f'"digest": {json.dumps(record.digest)}')
    lines.append(f'"provenance": {json.dumps(dict(record.provenance), sort_keys=True)}')
    lines.append('"variants": ' + ("null" if variants is None else "[\n" + ",\n".join(variants) + "\n]"))
    lines.append('"clients": [\n' + ",\n".join(rows) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(data: Any, where: str) -> SplitRecord:
    header, extra = _checked_header(data, where)
    clients = data.get("clients")
    if not isinstance(clients, list) or not clients or not all(_is_id_list(row) for row in clients):
        raise DataError(f'{where}: "clients" must be a list with one list of task ids per client')
    ids = sorted({name for row in clients for name in row})
    number = {name: index for index, name in enumerate(ids)}
    assignment = Assignment.from_lists([number[name] for name in row] for row in clients)
    variants = data.get("variants")
    if variants is not None and not _are_variants(variants, len(clients)):
        raise DataError(f'{where}: "variants" must be null or hold one entry (an object or null) per client')
    record = _make_record(
        header, extra, assignment, ids, NoVariants(len(clients)) if variants is None else variants, None
    )
    if record.digest != data.get("digest"):
        raise _changed(where)
    return record


def _is_id_list(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(name, str) for name in row)


def _are_variants(variants: Any, clients: int) -> bool:
    known = isinstance(variants, list) and len(variants) == clients
    return known and all(variant is None or isinstance(variant, dict) for variant in variants)


def _changed(where: str) -> DataError:
    return DataError(f"{where} does not match its own digest: its content was changed after it was made")


def _checked_header(data: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise DataError(f"{where} is not a split file of schema {SCHEMA!r} (found {str(found)[:40]!r})")
    for key, kind in _FIELDS.items():
        if key not in data:
            raise DataError(f"{where}: the field {key!r} is missing")
        if not isinstance(data[key], kind):
            raise DataError(f"{where}: the field {key!r} has the wrong type ({type(data[key]).__name__})")
    for place, key, wanted in _INNER:
        if not isinstance(data[place].get(key), wanted):
            raise DataError(f"{where}: the field '{place}.{key}' is missing or has the wrong type")
    if not all(_is_id_list(ids) for ids in data["roles"].values()):
        raise DataError(f"{where}: every role must hold a list of task ids")
    header = {"schema": SCHEMA, **{key: data[key] for key in _FIELDS}}
    provenance = data.get("provenance")
    return header, {"digest": data.get("digest"), "provenance": provenance if isinstance(provenance, dict) else {}}


def _make_record(
    header: Mapping[str, Any],
    extra: Mapping[str, Any],
    clients: Assignment,
    ids: Sequence[str] | None,
    variants: Sequence[Any],
    digests: bytes | None,
) -> SplitRecord:
    return SplitRecord(
        env_id=header["env"]["id"],
        env_split=header["env"]["split"],
        env_options=header["env"]["options"],
        pool_digest=header["pool_digest"],
        sampler=header["sampler"]["name"],
        parameters=header["sampler"]["parameters"],
        seed=header["seed"],
        clients=clients,
        ids=ids,
        variants=variants,
        variant=header["variant"],
        roles={name: tuple(role) for name, role in header["roles"].items()},
        server_overlap=header["server_overlap"],
        evaluation=tuple(header["evaluation"]),
        labels=None if header["labels"] is None else Labels.from_record(header["labels"]),
        provenance=extra["provenance"],
        stored_digests=digests,
    )


# ---- folder and zip ---------------------------------------------------------------------------------------------


class StoredVariants(Sequence[Any]):
    """Worlds that are read when asked for."""

    def __init__(self, offsets: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        self._offsets, self._raw = offsets, raw

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            return json.loads(self._raw[self._offsets[index] : self._offsets[index + 1]].tobytes())
        except ValueError:
            raise DataError(f"the variant of client {index} cannot be read: variants.bin was changed") from None


def _write_arrays(record: SplitRecord, folder: Path, pool_ids: Sequence[str]) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "offsets.bin": record.clients.offsets,
        "items.bin": _pool_numbers(record, pool_ids),
        "digests.bin": np.frombuffer(record.client_digests, dtype=np.uint8),
    }
    if not isinstance(record.variants, NoVariants):
        texts = [canonical_json(variant).encode("ascii") for variant in record.variants]
        arrays["variants.bin"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        arrays["variant_offsets.bin"] = offsets_of(np.array([len(text) for text in texts], dtype=np.int64))
    for name, array in arrays.items():
        array.astype(_ARRAYS[name]).tofile(folder / name)
    sizes = {
        "clients": len(record),
        "assignments": int(record.clients.items.size),
        "variants": "variants.bin" in arrays,
    }
    header = {**record.header(), **sizes, "digest": record.digest, "provenance": dict(record.provenance)}
    (folder / "header.json").write_text(json.dumps(header, sort_keys=True, indent=1) + "\n", encoding="ascii")


def _pool_numbers(record: SplitRecord, pool_ids: Sequence[str]) -> NDArray[np.int64]:
    """The items as numbers among all sorted ids of the pool, whatever they were numbered by."""
    if record.ids is None or record.ids is pool_ids:
        return np.asarray(record.clients.items)
    place = {name: number for number, name in enumerate(pool_ids)}
    names = np.array([place[name] for name in record.ids], dtype=np.int64)
    return names[record.clients.items]


def _write_zip(record: SplitRecord, path: Path, pool_ids: Sequence[str]) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "split"
        folder.mkdir()
        _write_arrays(record, folder, pool_ids)
        packed = Path(scratch) / "record.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(folder.iterdir()):
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
        write_atomic(path, packed.read_bytes())


def _load_arrays(path: Path) -> SplitRecord:
    where = str(path)
    files = _zipped(path) if path.is_file() else {file.name: (file, 0, file.stat().st_size) for file in path.iterdir()}
    if "header.json" not in files:
        raise DataError(f"{where} is not a split: it holds no header.json")
    file, start, size = files["header.json"]
    with file.open("rb") as handle:
        handle.seek(start)
        raw = handle.read(size)
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise DataError(f"{where}: header.json is not valid JSON ({error})") from None
    header, extra = _checked_header(data, where)
    clients, assignments = data.get("clients"), data.get("assignments")
    if not isinstance(clients, int) or not isinstance(assignments, int) or clients < 1 or assignments < 0:
        raise DataError(f"{where}: header.json does not say how many clients and assignments there are")
    offsets = _array(files, "offsets.bin", clients + 1, where)
    items = _array(files, "items.bin", assignments, where)
    digests = _array(files, "digests.bin", 32 * clients, where).tobytes()
    if offsets[0] != 0 or offsets[-1] != assignments or np.any(np.diff(offsets) < 0):
        raise DataError(f"{where}: offsets.bin is damaged: it does not divide {assignments:,} assignments")
    variants: Sequence[Any] = NoVariants(clients)
    if data.get("variants"):
        variant_offsets = _array(files, "variant_offsets.bin", clients + 1, where)
        variants = StoredVariants(variant_offsets, _array(files, "variants.bin", int(variant_offsets[-1]), where))
    if record_digest(header, digests) != extra["digest"]:
        raise _changed(where)
    return _make_record(header, extra, Assignment(offsets, items), None, variants, digests)


def _array(files: Mapping[str, tuple[Path, int, int]], name: str, count: int, where: str) -> NDArray[Any]:
    dtype = np.dtype(_ARRAYS[name])
    if name not in files:
        raise DataError(f"{where} is not whole: {name} is missing")
    file, start, size = files[name]
    if size != count * dtype.itemsize:
        raise DataError(f"{where} is not whole: {name} has {size:,} bytes, {count * dtype.itemsize:,} are expected")
    if not count:
        return np.zeros(0, dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=start, shape=(count,))


def _zipped(path: Path) -> dict[str, tuple[Path, int, int]]:
    """Where each stored member of the zip begins; members are not compressed, so they can be mapped in place."""
    found: dict[str, tuple[Path, int, int]] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise DataError(f"{path}: {member.filename} is compressed; a split zip stores its members as they are")
            file.seek(member.header_offset + 26)
            lengths = file.read(4)
            skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            found[Path(member.filename).name] = (path, member.header_offset + 30 + skip, member.file_size)
    return found
