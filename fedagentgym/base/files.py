"""Files that are whole or absent: everything is written beside its place, synced, and renamed into it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Replace the file at `path` by `data`; a reader sees the old file or the new one, never a part."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder, a file is expected")
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Fill a temporary folder in the `with` block; it takes the name `path` only if the block ends well."""
    path = Path(path)
    if path.exists():
        raise DataError(f"cannot create the folder {path}: it exists already")
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
        temporary.chmod(0o755)
        yield temporary
        for entry in [*temporary.rglob("*"), temporary]:
            sync_folder(entry) if entry.is_dir() else _sync_file(entry)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(f"cannot write the folder {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, or one sentence that says why not."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"cannot read {path}: it is a folder, a file is expected")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: not UTF-8 text (byte {error.start})") from None


def read_json(path: str | Path) -> Any:
    """The value of a JSON file; a fault names the line."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise DataError(f"{path}: not usable JSON, it is nested too deeply") from None


def read_jsonl(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and value of each non-empty line of a JSON-lines file."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"cannot read {path}: it is a folder, a file is expected")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse_line(path, number, line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _parse_line(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{path}, line {number}: not valid JSON: {reason}") from None


def cache_folder(*parts: str) -> Path:
    """Where derived files live that can be made again: $FEDAGENTGYM_CACHE, else ~/.cache/fedagentgym."""
    root = os.environ.get("FEDAGENTGYM_CACHE")
    return Path(root).joinpath(*parts) if root else Path.home().joinpath(".cache", "fedagentgym", *parts)


def data_folder(*parts: str) -> Path:
    """Where imported data sets live: $FEDAGENTGYM_DATA, else the folder `data` of the cache."""
    root = os.environ.get("FEDAGENTGYM_DATA")
    return Path(root).joinpath(*parts) if root else cache_folder("data", *parts)


def sync_folder(path: Path) -> None:
    """Make a rename inside `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
