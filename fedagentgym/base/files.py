"""Files that are whole or absent: everything is written beside its place, synced, and renamed into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fedagentgym.base.errors import DataError
from fedagentgym.base.json_text import parse_json

MOST_BYTES = 1 << 29
"""Of a file that is read as a whole."""
MOST_BYTES_OF_LINE = 1 << 26
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe"}


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


@contextlib.contextmanager
def open_file(path: str | Path) -> Iterator[BinaryIO]:
    """A plain file for reading; a folder, a device or a pipe is refused, since reading one may never end."""
    path = Path(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            kind = stat.S_IFMT(os.fstat(file.fileno()).st_mode)
            if kind != stat.S_IFREG:
                what = _KINDS.get(kind, "a special file")
                raise DataError(f"cannot read {path}: it is {what}, a file is expected")
            yield file
    except IsADirectoryError:
        raise DataError(f"cannot read {path}: it is a folder, a file is expected") from None
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"cannot read {str(path)!r}: {error}") from None


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, or one sentence that says why not."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise DataError(f"cannot read {path}: it has {size:,} bytes, at most {MOST_BYTES:,} are read at once")
        return file.read()


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: not UTF-8 text (byte {error.start})") from None


def read_json(path: str | Path) -> Any:
    """The value of a JSON file; a fault names the line."""
    return parse_json(read_text(path), str(path))


def read_jsonl(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and value of each non-empty line of a JSON-lines file."""
    with open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES_OF_LINE + 1), b""), start=1):
            if len(line) > MOST_BYTES_OF_LINE:
                raise DataError(f"{path}, line {number}: longer than {MOST_BYTES_OF_LINE:,} bytes")
            if line.strip():
                yield number, parse_json(line, f"{path}, line {number}")


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to would be waited for until somebody does."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
