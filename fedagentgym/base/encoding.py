"""The canonical form of values: a text for digests, bytes for messages and files.

`canonical_json` gives one text per plain value, so a digest of it identifies the value. `encode` gives one byte string per
value, which may also hold numpy arrays and bytes; messages, client states and commits are made of such byte strings. Layout:

    magic "FAG1" | length of header, 8 bytes | header: canonical JSON | arrays, little-endian, C order, one after the other

The header holds the tree of plain values with a reference in place of each array, and the dtype and shape of every array.
A reader therefore knows from the header how many bytes must follow before it allocates memory for them.

A reader takes bytes from other machines, so it accepts only what `encode` makes: a header in its canonical form, nested at most
`MAX_DEPTH` deep, with whole numbers of at most `MAX_BITS` bits, well-formed Unicode, and booleans that are 0 or 1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError

MAGIC = b"FAG1"
_PREFIX = len(MAGIC) + 8
_REFERENCE = "$array"
_BYTES = "$bytes"
_ESCAPE = "$dict"
_RESERVED = (_REFERENCE, _BYTES, _ESCAPE)
DTYPES = frozenset(
    ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"],
)
MAX_HEADER = 1 << 30
MAX_DEPTH = 64
"""Maximum nesting of a value, small enough that code may walk through a decoded value by plain recursion."""
MAX_BITS = 256
"""Maximum size of a whole number: wide enough for every seed, small enough for `float` and for printing."""


def canonical_json(value: Any) -> str:
    """The one JSON text of a plain value: sorted keys, no blanks, shortest float form, no NaN or infinity."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"not a plain value that has a canonical form: {error}") from None


def digest(value: Any) -> str:
    """The identity of a plain value: sha256 over its canonical JSON.

    >>> digest({"b": 1, "a": [2]}) == digest({"a": [2], "b": 1})
    True
    """
    return bytes_digest(canonical_json(value).encode("ascii"))


def shorten_digest(text: str) -> str:
    """The beginning of a digest, for messages."""
    return text[:19] + "..." if len(text) > 22 else text


def bytes_digest(data: bytes | memoryview) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: str | Path) -> str:
    """The sha256 of a file's bytes; for a folder, that of the paths and digests of its files, sorted by path."""
    path = Path(path)
    try:
        if path.is_dir():
            files = sorted(entry for entry in path.rglob("*") if entry.is_file())
            return digest([[entry.relative_to(path).as_posix(), file_digest(entry)] for entry in files])
        with path.open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def encode(value: Any) -> bytes:
    """The canonical bytes of plain values, numpy arrays and bytes; tuples become lists, keys must be strings."""
    return encode_pieces(value, fixed=False).as_bytes


@dataclass(frozen=True, eq=False)
class Pieces:
    """The canonical bytes of a value in memory, in pieces: the head and the arrays that follow it.

    Bytes that stay in this process, are hashed, or are written to a file need not be joined first. `admitted` holds the
    declarations against which a reader has checked these bytes; the bytes cannot change, so one check is enough.
    """

    head: bytes
    arrays: tuple[np.ndarray[Any, Any], ...]
    admitted: list[object] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.head) + sum(array.nbytes for array in self.arrays)

    def iter_buffers(self) -> Iterator[bytes | memoryview]:
        """The bytes in order, without a copy."""
        yield self.head
        yield from (array.reshape(-1).view(np.uint8).data for array in self.arrays)

    @cached_property
    def as_bytes(self) -> bytes:
        """The joined bytes; the copy is made once and kept."""
        return b"".join(self.iter_buffers())

    def digest(self) -> str:
        """The `bytes_digest` of the joined bytes."""
        seen = hashlib.sha256()
        for buffer in self.iter_buffers():
            seen.update(buffer)
        return "sha256:" + seen.hexdigest()


def encode_pieces(value: Any, *, fixed: bool = True) -> Pieces:
    """The bytes of `encode`, in pieces. If `fixed`, they cannot change afterwards: an array that is still writable is copied."""
    arrays: list[np.ndarray[Any, Any]] = []
    tree = _flatten(value, arrays, 0)
    header = {"tree": tree, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    head = canonical_json(header).encode("ascii")
    if fixed:
        arrays = [array if is_fixed(array) else array.copy() for array in arrays]
        for array in arrays:
            array.flags.writeable = False
    return Pieces(b"".join([MAGIC, len(head).to_bytes(8, "little"), head]), tuple(arrays))


def split_pieces(data: bytes) -> Pieces:
    """The pieces of bytes that are already joined, without copying the arrays."""
    header = read_header(data)
    return Pieces(data[: header.offset], tuple(_view_arrays(memoryview(data), header)))


def join_pieces(data: bytes | Pieces) -> bytes:
    return data.as_bytes if isinstance(data, Pieces) else data


def is_fixed(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array's memory is read-only: the array itself and everything that it is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    return owner is None or isinstance(owner, bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """The declarations in the header of an encoded value: the tree, and dtype and shape of each array."""

    tree: Any
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    sizes: tuple[int, ...]
    """Bytes of each array."""
    offset: int
    total: int
    """Length of the whole encoded value in bytes."""


def read_header(data: bytes | memoryview, *, limit: int | None = None, header_limit: int | None = None) -> Header:
    """Check and read the header; a value that declares more than `limit` bytes in all is refused.

    `header_limit` bounds the header alone, since decoded plain values need many times their encoded size in memory.
    """
    view = memoryview(data)
    if len(view) < _PREFIX or view[: len(MAGIC)] != MAGIC:
        found = bytes(view[: len(MAGIC)])
        raise DataError(f"not an encoded value of version {MAGIC.decode()}: it begins with {found!r}")
    length = int.from_bytes(view[len(MAGIC) : _PREFIX], "little")
    if length > len(view) - _PREFIX:
        raise DataError(f"encoded value declares a header of {length} bytes, {len(view) - _PREFIX} are there")
    admitted = min(each for each in (MAX_HEADER, limit, header_limit) if each is not None)
    if length > admitted:
        raise DataError(f"encoded value declares a header of {length} bytes, at most {admitted} are allowed")
    head = bytes(view[_PREFIX : _PREFIX + length])
    try:
        raw = json.loads(head, parse_constant=_reject_constant)
        if not isinstance(raw, dict) or set(raw) != {"arrays", "tree"} or not isinstance(raw["arrays"], list):
            raise ValueError("not a header")
        arrays: list[tuple[str, tuple[int, ...]]] = []
        for dtype, shape in raw["arrays"]:
            if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > 32:
                raise ValueError("an array of unknown dtype or shape")
            if not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
                raise ValueError("an array of impossible shape")
            if math.prod(max(size, 1) for size in shape) >= 1 << 48:
                raise ValueError("an array of impossible shape")
            arrays.append((dtype, tuple(shape)))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"encoded value has a malformed header: {str(error)[:200]}") from None
    if canonical_json(raw).encode("ascii") != head:
        raise DataError("encoded value has a header that is not in its canonical form")
    sizes = tuple(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in arrays)
    header = Header(raw["tree"], tuple(arrays), sizes, _PREFIX + length, _PREFIX + length + sum(sizes))
    if limit is not None and header.total > limit:
        raise DataError(f"encoded value declares {header.total} bytes, at most {limit} are allowed")
    return header


def decode(data: bytes | memoryview | Pieces, *, limit: int | None = None, header_limit: int | None = None) -> Any:
    """The inverse of `encode`; arrays are read-only views of `data`. Data of a wrong length are refused before decoding."""
    header = read_header(data.head if isinstance(data, Pieces) else data, limit=limit, header_limit=header_limit)
    if len(data) != header.total:
        raise DataError(f"encoded value declares {header.total} bytes, {len(data)} are there")
    arrays = list(data.arrays) if isinstance(data, Pieces) else _view_arrays(memoryview(data), header)
    used: list[int] = []
    value = _restore(header.tree, arrays, used, 0)
    if len(used) != len(arrays):
        raise DataError("encoded value holds an array that nothing refers to")
    return value


def _view_arrays(view: memoryview, header: Header) -> list[np.ndarray[Any, Any]]:
    """The arrays that follow a header, without copying."""
    arrays = []
    offset = header.offset
    for (dtype, shape), size in zip(header.arrays, header.sizes, strict=True):
        part = view[offset : offset + size]
        if dtype == "|b1" and size and np.frombuffer(part, dtype=np.uint8).max() > 1:
            raise DataError("encoded value holds a boolean that is neither 0 nor 1")
        arrays.append(np.frombuffer(part, dtype=dtype).reshape(shape))
        offset += size
    return arrays


def _flatten(value: Any, arrays: list[np.ndarray[Any, Any]], depth: int) -> Any:
    _check_depth(depth)
    if value is None or isinstance(value, bool | int | str):
        return _check_leaf(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {_ESCAPE: repr(value)}
    if isinstance(value, np.generic):
        return _flatten(value.item(), arrays, depth)
    if isinstance(value, np.ndarray | bytes):
        array = np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
        little = np.require(array, dtype=array.dtype.newbyteorder("<"), requirements="C")
        if little.dtype.str not in DTYPES:
            raise DataError(f"an array of dtype {array.dtype} has no canonical encoding")
        arrays.append(little)
        return {_BYTES if isinstance(value, bytes) else _REFERENCE: len(arrays) - 1}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise DataError("a mapping is encoded with string keys only")
        flat = {_check_leaf(key): _flatten(value[key], arrays, depth + 1) for key in sorted(value)}
        return {_ESCAPE: flat} if len(flat) == 1 and next(iter(flat)) in _RESERVED else flat
    if isinstance(value, list | tuple):
        return [_flatten(item, arrays, depth + 1) for item in value]
    raise DataError(f"a value of type {type(value).__name__} has no canonical encoding")


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise DataError(f"a value nested deeper than {MAX_DEPTH} levels has no canonical encoding")


def _check_leaf(value: Any) -> Any:
    """The plain value, which is not a container, or a `DataError` if it has no encoding."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("a text with half a character (a lone surrogate) has no canonical encoding") from None
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise DataError(f"a whole number of more than {MAX_BITS} bits has no canonical encoding")
    return value


def _restore(tree: Any, arrays: list[np.ndarray[Any, Any]], used: list[int], depth: int) -> Any:
    _check_depth(depth)
    if isinstance(tree, list):
        return [_restore(item, arrays, used, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return _check_leaf(tree)
    if len(tree) == 1:
        ((key, inner),) = tree.items()
        if key in (_REFERENCE, _BYTES):
            if type(inner) is not int or inner != len(used) or inner >= len(arrays):
                raise DataError(
                    f"encoded value refers to array {ascii(inner)[:50]}, which it does not hold or holds in another place"
                )
            used.append(inner)
            array = arrays[inner]
            if key == _REFERENCE:
                return array
            if array.dtype != np.uint8 or array.ndim != 1:
                raise DataError("encoded value refers to an array as bytes, but the array does not hold bytes")
            return array.tobytes()
        if key == _ESCAPE:
            if isinstance(inner, dict) and len(inner) == 1 and next(iter(inner)) in _RESERVED:
                return {key: _restore(item, arrays, used, depth + 1) for key, item in inner.items()}
            if inner in ("nan", "inf", "-inf"):
                return float(inner)
            raise DataError(f"encoded value has a malformed escape {str(inner)[:50]!r}")
    return {_check_leaf(key): _restore(item, arrays, used, depth + 1) for key, item in tree.items()}


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not plain JSON")


def to_plain_numbers(value: Any) -> Any:
    """The value with Python's numbers in place of NumPy's, also inside plain lists, tuples and mappings.

    >>> import numpy as np
    >>> to_plain_numbers({"seed": np.int64(7), "sizes": [np.int32(1), 2]})
    {'seed': 7, 'sizes': [1, 2]}
    """
    if type(value) is dict:
        return {key: to_plain_numbers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_plain_numbers(item) for item in value)
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value
