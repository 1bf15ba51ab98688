"""Atomic writing of files and folders, and reading of YAML and JSON within limits; every error is one sentence.

Files and folders are written under a temporary name in the same folder, synced, and renamed; only `append_line` adds to a file.

The parsers of Python accept values that break other code: aliases that expand a few lines to gigabytes, values that contain
themselves or are nested thousands deep, numbers with millions of digits, `NaN`, duplicate keys, tags that construct objects.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import lzma
import math
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedagentgym.base.errors import DataError, OptionError, describe_error, is_clean_text

MAX_TEXT = 1 << 28
"""The largest text or JSON file that is read at once: 256 MiB."""
MAX_LINE = 1 << 26
"""The longest line of a JSON-lines file: 64 MiB."""
MAX_UNPACKED = 1 << 33
"""Maximum number of bytes of lines read from one file."""
CHUNK, UNPACKING_MEMORY = 1 << 20, 1 << 27
"""The bytes that are unpacked at a time, and the most memory that a compressed file may ask for."""
PART = ".part"
"""Suffix of a file or folder that is still being written; its name also begins with a dot."""


def write_atomic(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Replace the file at `path` by `data`, as `atomic_file` does."""
    with atomic_file(path, mode=mode) as file:
        file.write(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)


@contextlib.contextmanager
def atomic_file(path: str | Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Fill a temporary file in the `with` block, which replaces the file at `path` only if the block succeeds; a reader sees the
    old file or the new one, never a part.

    Only a plain file is replaced: renaming over a device, a pipe or a link would destroy it.
    """
    path = Path(path)
    temporary: str | None = None
    try:
        try:
            _refuse_special(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=PART)
        except ValueError as error:  # the name holds a null character
            raise DataError(f"cannot write {format_path(path)}: {_explain(error)}") from error
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
        temporary = None
        sync(path.parent)
    except OSError as error:
        raise DataError(f"cannot write {format_path(path)}: {_explain(error)}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add a line to a plain file and sync it; a link is not followed."""
    try:
        _refuse_special(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
            file.write(line.encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot write {format_path(path)}: {_explain(error)}") from error


def _refuse_special(path: Path) -> None:
    """Raise unless the path is free or holds a plain file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise DataError(f"cannot write {format_path(path)}: it is {_name_kind(mode)}, a plain file is expected")


def _name_kind(mode: int) -> str:
    """The kind of a file that is not a plain file, in words."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISLNK(mode):
        return "a link"
    return "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"


def _explain(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the name holds a character that no file name can have"


def format_path(path: str | Path) -> str:
    """A path for a message: as it is if it can be printed, otherwise escaped, and at most a few lines long."""
    text = str(path)
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= 300 else shown[:300] + "..."


def get_name(path: Path) -> str:
    """The name of a file or folder, also of `.` and `..`, whose paths have none."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def locate_replaced(folder: Path) -> Path:
    """The absolute path of a folder that is about to be replaced; refused if the current directory is the folder or below it."""
    place = folder.resolve()
    if Path.cwd().is_relative_to(place):
        raise OptionError(f"{format_path(folder)} cannot be replaced, since you are in it: name a folder below it")
    return place


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Fill a temporary folder in the `with` block; it is renamed to `path` only if the block succeeds."""
    path = Path(path)
    temporary: Path | None = None
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write the folder {format_path(path)}: {_explain(error)}") from error
    else:
        raise DataError(f"cannot create the folder {format_path(path)}: it exists already")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=PART))
        temporary.chmod(0o755)
        yield temporary
        for entry in [*temporary.rglob("*"), temporary]:
            sync(entry)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise DataError(f"cannot write the folder {format_path(path)}: {_explain(error)}") from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


MAX_CONTAINERS_IN_LINE = 200_000
"""Maximum number of lists and mappings in a line; an episode of a thousand turns has some thousands."""
MAX_FOLDERS = 10_000
"""Maximum number of folders that a search goes through."""


def find_below(folder: Path, name: str, depth: int, skipped: str = "") -> Iterator[Path]:
    """The folders that hold a file of this name: the folder itself, or those at most `depth` levels below it. The search does
    not follow links, and does not go into a folder that it has found or that is called `skipped`."""
    waiting, searched = [(folder, depth)], 0
    while waiting:
        place, levels = waiting.pop()
        searched += 1
        if searched > MAX_FOLDERS:
            raise DataError(
                f"{format_path(folder)} holds more than {MAX_FOLDERS:,} folders: name the one that is meant"
            )
        if (place / name).is_file():
            yield place
        elif levels and place.is_dir():
            try:
                below = [entry for entry in place.iterdir() if entry.is_dir() and not entry.is_symlink()]
            except OSError as error:
                raise DataError(f"cannot read the folder {format_path(place)}: {_explain(error)}") from None
            waiting += [(entry, levels - 1) for entry in below if entry.name != skipped]


def remove_partial(folder: Path) -> None:
    """Remove the unfinished files of killed processes anywhere below a folder."""
    for entry in sorted(folder.rglob(f".*{PART}")) if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


@contextlib.contextmanager
def open_plain(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a plain file for reading; anything else is refused, since a pipe may block for ever and a device may never end."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise DataError(f"cannot read {format_path(path)}: it is {_name_kind(mode)}, a file is expected")
        with path.open("rb") as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"cannot read {format_path(path)}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {format_path(path)}: {_explain(error)}") from error
    except MemoryError:
        raise DataError(f"cannot read {format_path(path)}: there is not enough memory for it") from None


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """The bytes of a file, or a `DataError`; a file larger than `limit` bytes is refused."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise DataError(f"cannot read {format_path(path)}: it has {size:,} bytes, at most {limit:,} are read")
        return file.read() if limit is None else file.read(size or limit)  # read(n) allocates n bytes at once


def read_text(path: str | Path, limit: int = MAX_TEXT) -> str:
    """The UTF-8 text of a file; a file larger than `limit` bytes is refused."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {format_path(path)}: not UTF-8 text (byte {error.start})") from None


def read_json(path: str | Path) -> Any:
    """The value of a JSON file; an error names the line."""
    return parse_json(read_text(path), format_path(path))


def read_jsonl(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and value of each non-empty line of a JSON-lines file."""
    for number, where, line in _read_lines(path):
        if line.strip():
            yield number, parse_json(line, where)


def read_json_line_texts(path: str | Path, *, halves: bool = False) -> Iterator[tuple[str, Any, str]]:
    """The location, the value and the text of every line of a JSON-lines file; an empty line is an error."""
    for _, where, line in _read_lines(path):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not valid JSON: not UTF-8 text (byte {error.start})") from None
        value = parse_json(text, where, halves=halves)
        if not text.endswith("\n"):
            raise DataError(f"{where}: the end of the line is missing")
        yield where, value, text[:-1]


def _read_lines(path: str | Path) -> Iterator[tuple[int, str, bytes]]:
    with open_plain(path) as file:
        total = 0
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
            where = f"{format_path(path)}, line {number}"
            check_line(line, where)
            total += len(line)
            if total > MAX_UNPACKED:
                raise DataError(f"{where}: the file holds more than the {MAX_UNPACKED:,} bytes that are read")
            yield number, where, line


def check_line(line: bytes, where: str) -> None:
    """Refuse a line that is too long or has too many lists and mappings, before it is parsed."""
    if len(line) > MAX_LINE:
        raise DataError(f"{where}: longer than the {MAX_LINE:,} bytes that a line may have")
    if line.count(b"[") + line.count(b"{") > MAX_CONTAINERS_IN_LINE:  # an empty list of two bytes takes sixty of memory
        raise DataError(f"{where}: more than the {MAX_CONTAINERS_IN_LINE:,} lists and mappings that are read")


def unpack_parts(file: IO[bytes], where: str) -> Iterator[bytes]:
    """The content of an xz stream in parts of at most `CHUNK` bytes; an error begins with `where`."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKING_MEMORY)
    try:
        while not unpacker.eof:
            data = file.read(CHUNK) if unpacker.needs_input else b""
            if unpacker.needs_input and not data:
                raise DataError(f"{where} is not a whole xz file: its end is missing")
            yield unpacker.decompress(data, CHUNK)
    except lzma.LZMAError as error:
        raise DataError(f"{where} is not a whole xz file: {error}") from None
    if unpacker.unused_data or file.read(1):
        raise DataError(f"{where}: something follows the end of the compressed file")


def cache_folder(*parts: str) -> Path:
    """The folder of derived files that can be made again: $FEDAGENTGYM_CACHE, else ~/.cache/fedagentgym."""
    root = os.environ.get("FEDAGENTGYM_CACHE")
    return Path(root).joinpath(*parts) if root else Path.home().joinpath(".cache", "fedagentgym", *parts)


def data_folder(*parts: str) -> Path:
    """The folder of imported data sets: $FEDAGENTGYM_DATA, else the folder `data` of the cache."""
    root = os.environ.get("FEDAGENTGYM_DATA")
    return Path(root).joinpath(*parts) if root else cache_folder("data", *parts)


_NOT_OFFERED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""Error numbers by which a file system says that it does not offer an operation."""


def sync(path: Path) -> None:
    """Make the content of a file, or a rename in a folder, survive a power cut. Some file systems cannot sync folders."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_OFFERED or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)


def lock_file(file: IO[bytes] | IO[str] | int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed. Return False if another process holds the lock and `wait` is false, None
    if the file system has no locks, and True otherwise."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NOT_OFFERED:
            return None
        raise
    return True


def check_format(found: object, expected: str, where: str, what: str) -> None:
    """Raise unless a file has the expected format. A format is a name with a number: `fedagentgym/client-split/1`."""
    if found == expected:
        return
    name, _, number = expected.rpartition("/")
    text = found if isinstance(found, str) else ""
    newer = text.removeprefix(f"{name}/")
    if newer != text and newer.isdecimal() and len(newer) < 10 and int(newer) > int(number):
        raise DataError(
            f"{where} is {what} of format {newer}, this version of fedagentgym reads format {number}: install a newer version"
        )
    named = "it names no format" if found is None else f"found {str(found)[:40]!r}"
    raise DataError(f"{where} is not {what} of format {expected!r} ({named})")


Stamps = tuple[tuple[str, tuple[int, int, int]], ...]
"""Files, each with what `stamp_file` returns."""


def stamp_file(path: str | Path) -> tuple[int, int, int]:
    """Return a file's size, modification time and change time; every write sets the last, which cannot be set back."""
    status = os.stat(path)  # noqa: PTH116 - called for thousands of files
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


# ---- reading YAML and JSON within limits ----------------------------------------------------------------------------

MAX_CONTAINERS = 1 << 22
"""Maximum number of lists and mappings in a JSON text: an empty one of two bytes takes sixty of memory."""
MAX_DEPTH = 100
"""Maximum nesting of lists and mappings; what this package writes has about ten levels."""
MAX_CHARACTERS = 1 << 16
"""Maximum length of a YAML text: such texts are written by hand, and the parser needs seconds for longer ones."""
MAX_VALUES = 20_000
"""Maximum number of values in a YAML text; the values behind an alias are counted each time."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")


def parse_json(text: str | bytes, where: str, *, halves: bool = False, deepest: int = MAX_DEPTH) -> Any:
    """The value of a JSON text with unique keys and finite numbers only, nested at most `deepest` levels deep; an error begins
    with `where`. `halves` admits halves of characters (lone surrogates), which UTF-8 cannot encode."""
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        containers = text.count("[") + text.count("{")
        if containers > MAX_CONTAINERS:
            raise DataError(f"{where}: not usable JSON: more than {MAX_CONTAINERS:,} lists and mappings")
        value = _DECODER.decode(text)
        if not halves and _SURROGATE.search(text) is not None:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        encoding = re.sub(r"utf-(\d+).*", r"UTF-\1", error.encoding)  # such as utf-16-le
        raise DataError(f"{where}: not valid JSON: not {encoding} text (byte {error.start})") from None
    except UnicodeEncodeError:
        raise DataError(f"{where}: not usable JSON: a text holds half of a character (a lone surrogate)") from None
    except ValueError as error:
        raise DataError(f"{where}: not usable JSON: {str(error)[:200]}") from None
    except RecursionError:
        value = None
    else:
        if containers <= deepest or not _is_too_deep(value, deepest):
            return value
    raise DataError(f"{where}: not usable JSON: it is nested more than {deepest} levels deep")


def parse_yaml(text: str, where: str) -> Any:
    """The plain value of a YAML text, in which a date is a text; an error begins with `where`."""
    if len(text) > MAX_CHARACTERS:
        raise DataError(f"{where}: not usable YAML: {len(text):,} characters, at most {MAX_CHARACTERS:,} are admitted")
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise DataError(f"{where}: not YAML: {describe_error(error, named=False)}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: not usable YAML: {describe_error(error, named=False)}") from None
    except RecursionError:
        value = None
    else:
        if not _is_too_deep(value, MAX_DEPTH):
            return value
    raise DataError(f"{where}: not usable YAML: it is nested more than {MAX_DEPTH} levels deep")


def format_yaml(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """The YAML text of plain values, in their order."""
    plain = dict(value) if isinstance(value, Mapping) else list(value)
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def _is_too_deep(value: object, deepest: int) -> bool:
    """Return whether lists and mappings are nested more than `deepest` levels deep; goes level by level, without recursion."""
    level = [value]
    for _ in range(deepest + 1):
        containers = [node for node in level if isinstance(node, list | dict)]
        if not containers:
            return False
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
    return True


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats([key for key, _ in pairs], "object")
    return dict(pairs)


def _refuse_repeats(keys: Sequence[str], what: str) -> None:
    """Raise if a key stands twice in an object or a mapping, of which only the last value would be kept."""
    if len(set(keys)) < len(keys):
        twice = Counter(keys).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one {what}")


_DECODER = json.JSONDecoder(parse_constant=_parse_float, parse_float=_parse_float, object_pairs_hook=_make_object)
"""Shared by all texts, since `json.loads` would build a decoder for every line."""


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without dates."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _count_values(node: Node, counted: dict[int, int | None]) -> int:
    """The number of values that a node expands to; a value that is not plain is refused. `counted` holds None for nodes that are
    still being counted, so meeting one of them again means a cycle."""
    if id(node) in counted:
        if (known := counted[id(node)]) is None:
            raise ValueError("a value contains itself")
        return known
    counted[id(node)] = None
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _KINDS:
        raise ValueError(f"the tag {node.tag!r} makes no plain value")
    total = 1
    if isinstance(node, ScalarNode) and not is_clean_text(str(node.value)):
        raise ValueError("a text holds a NUL or half of a character")
    if isinstance(node, SequenceNode):
        total += sum(_count_values(child, counted) for child in node.value)
    elif isinstance(node, MappingNode):
        _refuse_repeats([str(key.value) for key, _ in node.value if isinstance(key, ScalarNode)], "mapping")
        total += sum(_count_values(key, counted) + _count_values(child, counted) for key, child in node.value)
    if total > MAX_VALUES:
        raise ValueError(f"it expands to more than {MAX_VALUES:,} values")
    counted[id(node)] = total
    return total
