"""Messages between server and clients: arrays and plain values by kind, in one canonical encoding and of a declared form.

A `Message` has one section per kind, because bytes are counted by kind: `weights`, `text`, `scores`, `control`. A fifth
section, `report`, is for people (metrics, a sampled episode). A method uses only those of its metrics that it declares, and its
bytes are counted separately, outside the headline number. A client's state and the server's global state have the same form.
Further arrays beside the weights, such as an optimizer's moments, are in named `sets`. They count as weights and are encoded
among them: the array NAME of the set SET is `weights/SET/NAME`.

Every operation declares a `Form` for its message and its reply. An encoded message whose header declares more than twice as many
bytes is refused before memory is allocated; a decoded message whose arrays differ from the form is refused before it is used.
Plain values, which take many times their bytes of memory, and the report have bounds of their own. Errors quote a message only
in part, since an error is kept in the run's record.

Arithmetic on a message reads each array once, block by block, so that a block stays in the processor's cache. One pass computes
both whether an array is finite and its distance from another one, since a finite distance proves that both arrays are finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.encoding import Pieces, decode, encode, encode_pieces, split_pieces
from fedagentgym.base.errors import DataError
from fedagentgym.base.shorten import show_fields

Array = NDArray[Any]
Parameters = Mapping[str, Array]
MAX_BLOCK = 1 << 17
_MIN_BLOCK = 1 << 10
_ROW = 1 << 13


def blocks(size: int, longest: int | None = None) -> Iterator[slice]:
    """Blocks of a long vector that stay in a processor's cache during several passes."""
    step = MAX_BLOCK if longest is None else max(longest, _MIN_BLOCK)
    for start in range(0, size, step):
        yield slice(start, min(size, start + step))


def squared_length(vector: Array) -> float:
    """Sum of squares, computed in rows that are too short for a linear algebra library to divide among its threads."""
    whole = vector.size // _ROW * _ROW
    rows, rest = vector[:whole].reshape(-1, _ROW), vector[whole:]
    return float(np.vecdot(rows, rows).sum()) + float(np.dot(rest, rest))


def squared_distance(start: Array, end: Array) -> float:
    """Sum of the squares of `end - start`, two arrays of one shape; not finite if either of them is not."""
    first, second = start.reshape(-1), end.reshape(-1)
    change = np.empty(min(first.size, MAX_BLOCK), dtype=np.promote_types(first.dtype, np.float32))
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(first.size):
            part = change[: block.stop - block.start]
            np.subtract(second[block], first[block], out=part, dtype=part.dtype)
            total += squared_length(part)
    return total


def update_norm(
    current: Parameters, parameters: Parameters, known: Mapping[str, float] = MappingProxyType({})
) -> float:
    """Euclidean norm of `parameters - current` over all arrays; squared distances in `known` are not computed again."""
    total = 0.0
    for name, value in current.items():
        total += known[name] if name in known else squared_distance(value, parameters[name])
    return math.sqrt(total)


def is_finite(array: Array) -> bool:
    """Return whether an array is free of NaN and infinity."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        sure = math.isfinite(squared_length(flat))  # reads the array once; only after an overflow a second time
    return sure or bool(np.isfinite(flat).all())


KINDS = ("weights", "text", "scores", "control")
FORMAT = "fedagentgym/message"
VERSION = 1
REPORT_BYTES = 1 << 20
_FRAMING = 512
_FRAMING_PER_ARRAY = 128
_HEADER_PER_TEXT = 6
"""Maximum number of bytes in the header per declared byte of text: JSON writes a control character as six."""


@dataclass(frozen=True, eq=False)
class Message:
    """A message between a server and a client, or a stored state: arrays and plain values by kind.

    Bytes are counted by kind. The bytes of the report are counted separately, because it is for people: a method uses its
    metrics only if the method's card says so (`needs_metrics`).

    Attributes:
        weights: Parameters of models; their names hold no slash.
        sets: Further sets of such arrays, by the name of the set, such as `optimizer`; an empty set counts as absent.
        text: Texts, such as episodes and answers.
        scores: Numbers that grade something.
        control: Plain values, such as step counts.
        report: Metrics and sampled episodes, for people.

    Examples:
        >>> import numpy as np
        >>> message = Message(weights={"w": np.zeros(3, "float32")}, control={"step": 4})
        >>> Message.decode(message.encoded).control
        {'step': 4}
    """

    weights: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    control: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return show_fields(self)

    @cached_property
    def pieces(self) -> Pieces:
        """The canonical bytes in memory; computed once, and fixed from then on.

        Raises:
            DataError: If a name of the weights has a slash, which separates a set from its arrays.
        """
        if "encoded" in self.__dict__:
            return split_pieces(self.encoded)
        if clash := next((name for name in self.weights if "/" in name), None):
            raise DataError(f"a parameter cannot be called {clash!r}: the part before a slash is the name of a set")
        value: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        value.update((kind, values) for kind, values in self.kinds.items() if values)
        if self.report:
            value["report"] = self.encoded_report
        return encode_pieces(value)

    @cached_property
    def encoded(self) -> bytes:
        """The joined canonical bytes."""
        return self.pieces.as_bytes

    @property
    def size(self) -> int:
        """Number of bytes of the encoded message."""
        return len(self.encoded) if "encoded" in self.__dict__ else len(self.pieces)

    @cached_property
    def encoded_report(self) -> bytes:
        """The bytes of the report; empty if there is none."""
        return encode(self.report) if self.report else b""

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical bytes."""
        return self.pieces.digest()

    @property
    def empty(self) -> bool:
        """True if the message holds nothing."""
        return not self.report and not any(self.kinds.values())

    @property
    def kinds(self) -> dict[str, Mapping[str, Any]]:
        """The values of each kind as they are encoded; the arrays of the sets are among the weights, as SET/NAME."""
        sets = {f"{name}/{key}": value for name, values in self.sets.items() for key, value in values.items()}
        return {"weights": {**self.weights, **sets}, "text": self.text, "scores": self.scores, "control": self.control}

    def get_arrays(self) -> dict[str, Array]:
        """Return every array by `kind/name`, those of sets by `weights/set/name`."""
        return {
            f"{kind}/{name}": value
            for kind, values in self.kinds.items()
            for name, value in values.items()
            if isinstance(value, np.ndarray)
        }

    def count_payload(self) -> dict[str, int]:
        """Return the bytes of arrays and texts by kind, without names and structure, as papers count them."""
        return {kind: sum(map(count_bytes, values.values())) for kind, values in self.kinds.items()}

    def measure_distance(self, start: Parameters) -> float:
        """Measure the distance of the weights from other weights.

        Args:
            start: The other weights, under the same names.

        Returns:
            The Euclidean norm of the difference over all arrays.
        """
        known_start, known = self.__dict__.get("measured", (None, {}))
        return update_norm(start, self.weights, known if known_start is start else {})

    @classmethod
    def decode(
        cls,
        data: bytes | memoryview | Pieces,
        form: Form | None = None,
        start: Parameters | None = None,
    ) -> Message:
        """Decode a message.

        Args:
            data: The bytes.
            form: The declaration of what the message may hold; by default anything.
            start: Weights from which the distance is measured in the same pass.

        Returns:
            The message; its arrays are read-only views of the bytes.

        Raises:
            DataError: If the bytes are no message, or do not match the form.
        """
        limit, header_limit = (None, None) if form is None else form.limits
        value = decode(data, limit=limit, header_limit=header_limit)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError("these bytes are an encoded value but not a message")
        if type(value.get("version")) is not int or value["version"] != VERSION:
            raise DataError(f"message of version {quote(value.get('version'))}: this program reads version {VERSION}")
        unknown = set(value) - {"format", "version", "report", *KINDS}
        if unknown or not all(isinstance(value.get(kind, {}), dict) for kind in KINDS):
            raise DataError(f"message with malformed sections {quote(sorted(unknown) or sorted(value))}")
        report = {}
        if "report" in value:
            if not isinstance(value["report"], bytes):
                raise DataError("message whose report is not encoded")
            if form is not None and len(value["report"]) > form.report:
                raise DataError(
                    f"message with a report of {len(value['report'])} bytes: at most {form.report} are allowed"
                    " (output.sampled_episodes says how many episodes it shows)"
                )
            report = decode(value["report"])
            if not isinstance(report, dict):
                raise DataError("message whose report is not a mapping")
        weights: dict[str, Any] = {}
        sets: dict[str, dict[str, Any]] = {}
        for name, array in value.get("weights", {}).items():
            before, slash, after = name.partition("/")
            if slash:
                sets.setdefault(before, {})[after] = array
            else:
                weights[name] = array
        message = cls(weights, sets, value.get("text", {}), value.get("scores", {}), value.get("control", {}), report)
        admitted = data.admitted if isinstance(data, Pieces) else []
        if form is not None and not any(form is known for known in admitted):
            measured = form.check(message, len(data), start)
            if start is not None:
                message.__dict__["measured"] = (start, measured)
            admitted.append(form)
        if not isinstance(data, memoryview):  # the received bytes are the canonical ones
            message.__dict__["pieces" if isinstance(data, Pieces) else "encoded"] = data
        return message


def freeze(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Mark new arrays as read-only, so that a message of them need not copy them.

    Args:
        arrays: Arrays that are not changed afterwards.

    Returns:
        The same arrays.
    """
    for array in arrays.values():
        array.flags.writeable = False
    return dict(arrays)


def quote(value: object) -> str:
    """A value from another machine for an error message: printable, and cut."""
    return ascii(value)[:80]


def count_bytes(value: Any, structure: int = 0) -> int:
    """The bytes of the arrays and of the text inside a value.

    Args:
        value: The value.
        structure: Bytes to count for each number and each container; with 0, names inside the value are not counted either.
    """
    if isinstance(value, np.ndarray):
        size = int(value.nbytes)
    elif isinstance(value, str):
        size = len(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        size = len(value)
    elif isinstance(value, Mapping):
        names = sum(map(len, value)) if structure else 0
        return structure + names + sum(count_bytes(item, structure) for item in value.values())
    elif isinstance(value, list | tuple):
        return structure + sum(count_bytes(item, structure) for item in value)
    else:
        size = 0
    return size or structure


class AtMost(NamedTuple):
    """A dimension of any size up to this one."""

    size: int


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The declaration of one array of a message.

    Attributes:
        dtype: Its type, by numpy's name.
        shape: Its shape.
        finite: Whether NaN and infinity are refused.
        optional: Whether it may be missing.
    """

    dtype: str
    shape: tuple[int | AtMost, ...]
    finite: bool = True
    optional: bool = False

    @property
    def nbytes(self) -> int:
        """Maximum size of the array in bytes."""
        sizes = (size.size if isinstance(size, AtMost) else size for size in self.shape)
        return int(np.dtype(self.dtype).itemsize * math.prod(sizes))

    def check(self, name: str, array: Array, start: Array | None = None) -> float | None:
        """Compare an array with the declaration.

        Args:
            name: Its name, for the error.
            array: The array.
            start: An array from which the distance is measured, if its shape is the same.

        Returns:
            The squared distance from `start`, or None if it was not measured.

        Raises:
            DataError: If type or shape differ, or a number is not finite.
        """
        if array.dtype != np.dtype(self.dtype):
            raise DataError(f"array {quote(name)} has dtype {array.dtype}, declared is {self.dtype}")
        fits = len(array.shape) == len(self.shape) and all(
            size <= form.size if isinstance(form, AtMost) else size == form
            for size, form in zip(array.shape, self.shape, strict=True)
        )
        if not fits:
            declared = ", ".join(f"<={size.size}" if isinstance(size, AtMost) else str(size) for size in self.shape)
            raise DataError(f"array {quote(name)} has shape {array.shape}, declared is ({declared})")
        distance = None if start is None or start.shape != array.shape else squared_distance(start, array)
        if self.finite and not (distance is not None and math.isfinite(distance)) and not is_finite(array):
            raise DataError(f"array {quote(name)} holds numbers that are not finite")
        return distance


class Limits(NamedTuple):
    """Maximum numbers of bytes of an encoded message, about twice the declared ones: in total, and outside of its arrays (names,
    shapes, numbers, text)."""

    total: int
    header: int


@dataclass(frozen=True)
class Form:
    """The declaration of a message: its arrays, and the maximum size of everything else.

    A message that is longer, or has other arrays, is refused before it is used.

    Attributes:
        weights: The arrays of the weights by name.
        sets: The arrays of further sets, by the name of the set and the name of the array.
        scores: The arrays of the scores by name.
        text: Maximum number of bytes of texts and plain values.
        report: Maximum number of bytes of the report.

    Examples:
        >>> Form({"w": ArrayForm("float32", (2, 3))}, text=100).payload
        124
    """

    weights: Mapping[str, ArrayForm] = field(default_factory=dict)
    _: KW_ONLY
    sets: Mapping[str, Mapping[str, ArrayForm]] = field(default_factory=dict)
    scores: Mapping[str, ArrayForm] = field(default_factory=dict)
    text: int = 0
    report: int = REPORT_BYTES

    def __repr__(self) -> str:
        return show_fields(self)

    @cached_property
    def arrays(self) -> dict[str, ArrayForm]:
        """All arrays, named as by `Message.get_arrays`."""
        sets = {f"weights/{name}/{key}": form for name, forms in self.sets.items() for key, form in forms.items()}
        weights = {f"weights/{name}": form for name, form in self.weights.items()}
        return {**weights, **sets, **{f"scores/{name}": form for name, form in self.scores.items()}}

    @cached_property
    def payload(self) -> int:
        """Maximum number of bytes of the arrays and texts, without names, structure and report."""
        return sum(form.nbytes for form in self.arrays.values()) + self.text

    @cached_property
    def limits(self) -> Limits:
        """Maximum numbers of bytes of the encoded message: in all, and outside its arrays."""
        framing = _FRAMING + sum(_FRAMING_PER_ARRAY + len(name) for name in self.arrays)
        header = 2 * (_HEADER_PER_TEXT * self.text + framing)
        return Limits(2 * (self.payload + framing) + self.report, header)

    def check(self, message: Message, encoded_size: int, start: Parameters | None = None) -> dict[str, float]:
        """Compare a message with the declaration.

        Args:
            message: The message.
            encoded_size: Its size in bytes.
            start: Arrays from which the distance of the weights is measured.

        Returns:
            The squared distance of each array of the weights from that of `start` with the same name.

        Raises:
            DataError: If an array is missing, not declared or different, or the message is too long.
        """
        found, kinds = message.get_arrays(), message.kinds
        origins = {f"weights/{name}": array for name, array in (start or {}).items()}
        distances = {}
        for name, array in found.items():
            if name not in self.arrays:
                raise DataError(f"message holds an array {quote(name)} that was not declared")
            distance = self.arrays[name].check(name, array, origins.get(name))
            if distance is not None:
                distances[name.removeprefix("weights/")] = distance
        for name, form in self.arrays.items():
            kind, _, key = name.partition("/")
            if name not in found and key in kinds[kind]:
                raise DataError(f"message holds a plain value in place of the declared array {name!r}")
            if name not in found and not form.optional:
                raise DataError(f"message lacks the declared array {name!r}")
        if encoded_size > (most := self.limits.total):
            raise DataError(f"message of {encoded_size} bytes: at most {most} are allowed by its declaration")
        plain = sum(
            len(name) + count_bytes(value, structure=8)
            for values in kinds.values()
            for name, value in values.items()
            if not isinstance(value, np.ndarray)
        )
        if plain > 2 * self.text + _FRAMING:
            raise DataError(f"message with {plain} bytes of plain values: {self.text} were declared")
        return distances
