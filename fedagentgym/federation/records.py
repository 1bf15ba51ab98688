"""Records of rounds: their byte counts, their validation, their part without times, and the file `metrics.jsonl`.

Records are read from files that anyone can have edited, so a record is validated here before anything (sums of bytes, tables, the
report) is computed from it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AllowInfNan, BaseModel, Field, TypeAdapter, ValidationError

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, join_names
from fedagentgym.base.files import MAX_LINE, append_line, open_plain, parse_json, read_bytes, write_atomic
from fedagentgym.base.process import get_logger
from fedagentgym.federation.message import KINDS, Message

Direction = Literal["up", "down"]
DIRECTIONS: tuple[Direction, Direction] = ("down", "up")
COLUMNS = (*KINDS, "framing", "report", "messages")


@dataclass
class Meter:
    """Exact byte counts of the messages between server and clients. `down` is server to client, `up` is client to server.

    For every direction: `weights`, `text`, `scores`, `control` are payload (array bytes and text), `framing` is the rest of
    the encoding (names, shapes, numbers among plain values), `report` is for people only.
    """

    counting: bool = True
    counts: dict[str, dict[str, int]] = field(
        default_factory=lambda: {way: dict.fromkeys(COLUMNS, 0) for way in DIRECTIONS}
    )

    def record(self, direction: Direction, message: Message) -> None:
        if not self.counting:
            return
        counts = self.counts[direction]
        payload = message.count_payload()
        report = len(message.encoded_report)
        for kind, size in payload.items():
            counts[kind] += size
        counts["framing"] += message.size - sum(payload.values()) - report
        counts["report"] += report
        counts["messages"] += 1


def headline_bytes(counts: Mapping[str, Mapping[str, int]], direction: Direction | None = None) -> int:
    """Payload and framing, without reports: what the algorithm would send over a network."""
    chosen = DIRECTIONS if direction is None else (direction,)
    return sum(counts[way][column] for way in chosen for column in (*KINDS, "framing"))


def add_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The sum of two counts."""
    return {way: {name: first[way][name] + second[way][name] for name in COLUMNS} for way in DIRECTIONS}


Record = dict[str, Any]
Whole = Annotated[int, Field(ge=0, lt=1 << 62)]
"""A whole number from 0 on that fits into 64-bit arrays, also as a sum."""
Number = Annotated[int, Field(gt=-(1 << 62), lt=1 << 62)] | Annotated[float, AllowInfNan(False)]
Duration = Annotated[Number, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
ClientKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,17})$")]
"""The number of a client as a key."""
Metrics = dict[str, Number]


def _with_keys(names: Collection[str], *, others: bool = False) -> AfterValidator:
    """A validator that requires these keys of a mapping, and allows further keys only with `others`."""

    def check(found: dict[str, Any]) -> dict[str, Any]:
        if not set(names) <= set(found) or (len(found) > len(names) and not others):
            raise ValueError(f"the keys must be {join_names(names)}{', with any others' if others else ''}")
        return found

    return AfterValidator(check)


class _FailureLine(BaseModel, extra="forbid"):
    round: int
    call: int
    operation: str
    client: int
    reason: str
    message: str
    detail: str


Counts = Annotated[dict[str, Annotated[dict[str, Whole], _with_keys(COLUMNS)]], _with_keys(DIRECTIONS)]
Estimate = Annotated[Metrics, _with_keys(("mean", "low", "high"))]
Estimates = Annotated[dict[str, Estimate], _with_keys(("success", "score", "turns"), others=True)]
"""Means with the ends of their intervals, by name; `success`, `score` and `turns` are in every evaluation."""
_FIELDS: dict[str, Any] = {
    "round": Whole,
    "participants": list[Whole],
    "metrics": Metrics,
    "clients": dict[ClientKey, Metrics],
    "client_seconds": dict[ClientKey, Duration],
    "failures": list[_FailureLine],
    "bytes": Counts,
    "bytes_total": Counts,
    "seconds": Duration,
    "seconds_total": Duration,
    "digest": Digest,
}


def fits(kind: Any, value: object) -> bool:
    """Return whether a value of a file has this type, without any conversion."""
    try:
        _make_adapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


_make_adapter = cache(TypeAdapter[Any])
_TIMES = ("seconds", "seconds_total", "client_seconds")


def check_record(record: Any, where: str) -> Record:
    """Return a round's record unchanged if it is valid; otherwise the error names the first invalid field."""
    if not isinstance(record, dict):
        raise DataError(f"{where} is malformed: a record is an object, found {type(record).__name__}")
    for name, kind in _FIELDS.items():
        if name not in record:
            raise DataError(f"{where} is malformed: {name!r} is missing")
        if not fits(kind, record[name]):
            raise DataError(f"{where} is malformed: {name!r} cannot be {str(record[name])[:60]!r}")
    if unknown := sorted(set(record) - set(_FIELDS)):
        raise DataError(f"{where} is malformed: {unknown[0][:60]!r} is not part of a record")
    return record


def check_totals(record: Mapping[str, Any], before: Mapping[str, Any] | None, where: str) -> None:
    """Check that the running sums of a record are those of the previous record plus its own numbers."""
    bytes_total = record["bytes"] if before is None else add_counts(before["bytes_total"], record["bytes"])
    seconds_total = record["seconds"] + (0.0 if before is None else before["seconds_total"])
    if record["bytes_total"] != bytes_total:
        raise DataError(f"{where} is malformed: 'bytes_total' is not the sum of the rounds so far")
    if record["seconds_total"] != seconds_total:
        raise DataError(f"{where} is malformed: 'seconds_total' is not the sum of the rounds so far")


def drop_times(record: Mapping[str, Any]) -> Record:
    """The part of a record that does not depend on when and where the round is played. It has no times, and no sizes of reports,
    which hold times."""
    lasting = {name: value for name, value in record.items() if name not in _TIMES}
    for name in ("bytes", "bytes_total"):
        lasting[name] = {way: {**columns, "report": 0} for way, columns in record[name].items()}
    lasting["metrics"] = {name: value for name, value in record["metrics"].items() if not name.startswith("seconds")}
    lasting["clients"] = {
        client: {name: value for name, value in numbers.items() if not name.startswith("seconds")}
        for client, numbers in record["clients"].items()
    }
    return lasting


def check_evaluation(evaluation: Any, where: str) -> Record:
    """Return an evaluation unchanged if its `success` is a number and its estimates, if it has any, are well-formed."""
    if not isinstance(evaluation, dict) or not fits(Number, evaluation.get("success")):
        raise DataError(f"{where} is malformed: an evaluation is an object with a number 'success'")
    if not fits(Duration, evaluation.get("seconds", 0.0)):
        raise DataError(f"{where} is malformed: 'seconds' cannot be {str(evaluation['seconds'])[:60]!r}")
    digest = evaluation.get("digest")
    if digest is not None and not fits(Digest, digest):
        raise DataError(f"{where} is malformed: 'digest' cannot be {str(digest)[:60]!r}")
    if "overall" in evaluation:
        _check_estimates(evaluation, where)
    sets = evaluation.get("sets", {})
    if not fits(dict[str, dict[str, Any]], sets):
        raise DataError(f"{where} is malformed: 'sets' holds the results of each evaluation set")
    for name, below in sets.items():
        _check_estimates(below, f"{where}, set {str(name)[:60]!r},")
    if not fits(Metrics, evaluation.get("clients", {})):
        raise DataError(f"{where} is malformed: 'clients' holds numbers over all clients")
    return evaluation


def _check_estimates(found: Mapping[str, Any], where: str) -> None:
    if not fits(Estimates, found.get("overall")):
        raise DataError(
            f"{where} is malformed: 'overall' holds means with their intervals, of success, score and turns at least"
        )
    if not fits(dict[str, Estimates], found.get("categories")):
        raise DataError(f"{where} is malformed: 'categories' holds means with their intervals by category")
    if not fits(Whole, found.get("tasks")) or not fits(Whole, found.get("episodes")):
        raise DataError(f"{where} is malformed: an evaluation counts its tasks and its episodes")


def count_episodes(records: Iterable[Mapping[str, Any]]) -> int:
    """The number of episodes that were played in these rounds to learn from or only to be scored, preparation included.
    Evaluations are not counted."""
    return sum_counts(records, "episodes", "scored")


def sum_counts(records: Iterable[Mapping[str, Any]], *names: str) -> int:
    """The sum of the metrics `names` over rounds; negative numbers are no counts and are left out."""
    total: float = sum(max(0.0, record["metrics"].get(name, 0.0)) for record in records for name in names)
    return round(total)


@dataclass(eq=False)
class MetricsLog:
    """`metrics.jsonl`: one line per committed round, for people and their tools.

    The commits determine its content: when a run resumes, the file is compared with them and rewritten if it differs.
    """

    path: Path
    records: list[Record] = field(default_factory=list, init=False)

    def restore(self, records: Sequence[Record], expected: int) -> None:
        """Make the file contain these records, with a warning if it contained others.

        `expected` is the number of final lines that an interrupted run may lack without a warning.
        """
        self.records = list(records)
        lines = [canonical_json(record) + "\n" for record in records]
        found = read_bytes(self.path).decode("utf-8", "replace").splitlines(keepends=True) if self.path.exists() else []
        if found == lines:
            return
        same = next(
            (n for n, (a, b) in enumerate(zip(found, lines, strict=False)) if a != b), min(map(len, (found, lines)))
        )
        torn = len(found) <= same + 1 and not "".join(found[same:]).endswith("\n")
        if len(lines) - same > expected or (len(found) > same and not torn):
            get_logger(__name__).warning(
                "%s differed from the committed rounds from line %d on and was rewritten",
                self.path,
                same + 1,
            )
        write_atomic(self.path, "".join(lines))

    def append(self, record: Record) -> None:
        """Add the record of a round to the file, and to `records` in the form in which it is read from the file."""
        line = canonical_json(record)
        self.records.append(json.loads(line))
        append_line(self.path, line)


def read_metrics_log(path: Path) -> Iterator[Record]:
    """The records of a metrics file, up to the first line that is incomplete or invalid."""
    if not path.is_file():
        return
    with open_plain(path) as file:
        while (line := file.readline(MAX_LINE)).endswith(b"\n"):
            try:
                record = parse_json(line, str(path))
            except DataError:
                return
            if not isinstance(record, dict) or not fits(Whole, record.get("round")):
                return
            yield record


def best_rounds(records: Sequence[Mapping[str, Any]]) -> set[int]:
    """A set of one round, whose evaluation has the highest `choice`, or `success` if it has no `choice`; the earliest of equals.
    The set is empty if no round was evaluated or every `choice` is null."""
    evaluations = [(record["evaluation"], record["round"]) for record in records if "evaluation" in record]
    choices = [(found.get("choice", found["success"]), -number) for found, number in evaluations]
    choosing = [(choice, number) for choice, number in choices if choice is not None]
    return {-max(choosing)[1]} if choosing else set()
