"""Split files on disk: one JSON up to a million assignments; above, a folder (or a zip of it) of integers.

The folder holds `header.json` and flat little-endian arrays: `offsets.bin` (int64), `items.bin` (int32, numbers among the
pool's sorted ids), `digests.bin` (32 bytes per client), and, if clients play different worlds, `worlds.bin` with
`world_offsets.bin`. A client is read by its slice alone and checked against its own digest; the digests themselves are
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
from fedagentgym.partitions.files.split import SCHEMA, NoWorlds, Split, split_digest

MOST_IN_JSON = 1_000_000
_ARRAYS = {
    "offsets.bin": "<i8",
    "items.bin": "<i4",
    "digests.bin": "|u1",
    "worlds.bin": "|u1",
    "world_offsets.bin": "<i8",
}
_FIELDS: dict[str, tuple[type, ...]] = {
    "env": (dict,),
    "pool_digest": (str,),
    "sampler": (dict,),
    "seed": (int,),
    "world": (dict, type(None)),
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


def save(split: Split, path: str | Path, pool_ids: Sequence[str]) -> Path:
    """Write the split: `.json` is one file, `.zip` a zip, anything else a folder. `pool_ids` are the pool's sorted ids."""
    path = Path(path)
    if path.suffix == ".json":
        if split.clients.items.size > MOST_IN_JSON:
            raise OptionError(
                f"{split.clients.items.size:,} assignments are too many for one JSON file (at most {MOST_IN_JSON:,}): "
                f"write a folder ({path.with_suffix('')}) or a zip ({path.with_suffix('.zip')})"
            )
        write_atomic(path, as_json(split))
    elif path.suffix == ".zip":
        _write_zip(split, path, pool_ids)
    else:
        with atomic_folder(path) as folder:
            _write_arrays(split, folder, pool_ids)
    return path


def load(path: str | Path) -> Split:
    """Read a split and check that it is whole; ids of a folder come with the pool."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no split file {path}")
    if path.is_dir() or zipfile.is_zipfile(path):
        return _load_arrays(path)
    if path.suffix == ".zip":
        raise DataError(f"{path} is not a whole zip file: it was cut off or is something else")
    return from_json(read_json(path), str(path))


def as_json(split: Split) -> str:
    """One line per entry and per client, so that two splits can be compared line by line."""
    header = split.header()
    rows = [json.dumps(list(ids)) for ids in split.held()]
    worlds = None if isinstance(split.worlds, NoWorlds) else [canonical_json(world) for world in split.worlds]
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in header.items()]
    lines.append(f'"digest": {json.dumps(split.digest)}')
    lines.append(f'"provenance": {json.dumps(dict(split.provenance), sort_keys=True)}')
    lines.append('"worlds": ' + ("null" if worlds is None else "[\n" + ",\n".join(worlds) + "\n]"))
    lines.append('"clients": [\n' + ",\n".join(rows) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(data: Any, where: str) -> Split:
    header, extra = _checked_header(data, where)
    clients = data.get("clients")
    if not isinstance(clients, list) or not clients or not all(_is_id_list(row) for row in clients):
        raise DataError(f'{where}: "clients" must be a list with one list of task ids per client')
    ids = sorted({name for row in clients for name in row})
    number = {name: index for index, name in enumerate(ids)}
    assignment = Assignment.from_lists([number[name] for name in row] for row in clients)
    worlds = data.get("worlds")
    if worlds is not None and not _are_worlds(worlds, len(clients)):
        raise DataError(f'{where}: "worlds" must be null or hold one entry (an object or null) per client')
    split = _split(header, extra, assignment, ids, NoWorlds(len(clients)) if worlds is None else worlds, None)
    if split.digest != data.get("digest"):
        raise _changed(where)
    return split


def _is_id_list(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(name, str) for name in row)


def _are_worlds(worlds: Any, clients: int) -> bool:
    known = isinstance(worlds, list) and len(worlds) == clients
    return known and all(world is None or isinstance(world, dict) for world in worlds)


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


def _split(
    header: Mapping[str, Any],
    extra: Mapping[str, Any],
    clients: Assignment,
    ids: Sequence[str] | None,
    worlds: Sequence[Any],
    digests: bytes | None,
) -> Split:
    return Split(
        env_id=header["env"]["id"],
        env_split=header["env"]["split"],
        env_options=header["env"]["options"],
        pool_digest=header["pool_digest"],
        sampler=header["sampler"]["name"],
        parameters=header["sampler"]["parameters"],
        seed=header["seed"],
        clients=clients,
        ids=ids,
        worlds=worlds,
        world=header["world"],
        roles={name: tuple(role) for name, role in header["roles"].items()},
        server_overlap=header["server_overlap"],
        evaluation=tuple(header["evaluation"]),
        labels=None if header["labels"] is None else Labels.from_record(header["labels"]),
        provenance=extra["provenance"],
        stored_digests=digests,
    )


# ---- folder and zip ---------------------------------------------------------------------------------------------


class StoredWorlds(Sequence[Any]):
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
            raise DataError(f"the world of client {index} cannot be read: worlds.bin was changed") from None


def _write_arrays(split: Split, folder: Path, pool_ids: Sequence[str]) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "offsets.bin": split.clients.offsets,
        "items.bin": _pool_numbers(split, pool_ids),
        "digests.bin": np.frombuffer(split.client_digests, dtype=np.uint8),
    }
    if not isinstance(split.worlds, NoWorlds):
        texts = [canonical_json(world).encode("ascii") for world in split.worlds]
        arrays["worlds.bin"] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        arrays["world_offsets.bin"] = offsets_of(np.array([len(text) for text in texts], dtype=np.int64))
    for name, array in arrays.items():
        array.astype(_ARRAYS[name]).tofile(folder / name)
    sizes = {"clients": len(split), "assignments": int(split.clients.items.size), "worlds": "worlds.bin" in arrays}
    record = {**split.header(), **sizes, "digest": split.digest, "provenance": dict(split.provenance)}
    (folder / "header.json").write_text(json.dumps(record, sort_keys=True, indent=1) + "\n", encoding="ascii")


def _pool_numbers(split: Split, pool_ids: Sequence[str]) -> NDArray[np.int64]:
    """The items as numbers among all sorted ids of the pool, whatever they were numbered by."""
    if split.ids is None or split.ids is pool_ids:
        return np.asarray(split.clients.items)
    place = {name: number for number, name in enumerate(pool_ids)}
    names = np.array([place[name] for name in split.ids], dtype=np.int64)
    return names[split.clients.items]


def _write_zip(split: Split, path: Path, pool_ids: Sequence[str]) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "split"
        folder.mkdir()
        _write_arrays(split, folder, pool_ids)
        packed = Path(scratch) / "split.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(folder.iterdir()):
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
        write_atomic(path, packed.read_bytes())


def _load_arrays(path: Path) -> Split:
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
    worlds: Sequence[Any] = NoWorlds(clients)
    if data.get("worlds"):
        world_offsets = _array(files, "world_offsets.bin", clients + 1, where)
        worlds = StoredWorlds(world_offsets, _array(files, "worlds.bin", int(world_offsets[-1]), where))
    if split_digest(header, digests) != extra["digest"]:
        raise _changed(where)
    return _split(header, extra, Assignment(offsets, items), None, worlds, digests)


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
