"""The record of a round: its byte counts, its validation, the part that two runs share, and `metrics.jsonl`.

Records are read from files that anybody can have edited, so everything that is computed from one (sums of bytes, tables, the
report) is validated here first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import append_line, open_plain, read_bytes, write_atomic
from fedagentgym.base.parsing import parse_json
from fedagentgym.base.process import get_logger
from fedagentgym.federation.message import KINDS, Message

Direction = Literal["up", "down"]
DIRECTIONS: tuple[Direction, Direction] = ("down", "up")
COLUMNS = (*KINDS, "framing", "report", "messages")


class Meter:
    """Exact byte counts of the messages between server and clients. `down` is server to client, `up` is client to server.

    For every direction: `weights`, `text`, `scores`, `control` are payload (array bytes and text), `framing` is the rest of
    the encoding (names, shapes, numbers among plain values), `report` is for people only.
    """

    def __init__(self, *, counting: bool = True) -> None:
        self._counting = counting
        self._counts = {direction: dict.fromkeys(COLUMNS, 0) for direction in DIRECTIONS}

    def record(self, direction: Direction, message: Message, times: int = 1) -> None:
        if not self._counting:
            return
        counts = self._counts[direction]
        payload = message.count_payload()
        report = len(message.encoded_report)
        for kind, size in payload.items():
            counts[kind] += size * times
        counts["framing"] += (message.size - sum(payload.values()) - report) * times
        counts["report"] += report * times
        counts["messages"] += times

    def get_counts(self) -> dict[str, dict[str, int]]:
        """A plain copy, as it is stored with a round."""
        return {direction: dict(columns) for direction, columns in self._counts.items()}


def payload_bytes(counts: Mapping[str, Mapping[str, int]], direction: Direction | None = None) -> int:
    """Array bytes and text, without framing."""
    chosen = DIRECTIONS if direction is None else (direction,)
    return sum(counts[way][kind] for way in chosen for kind in KINDS)


def headline_bytes(counts: Mapping[str, Mapping[str, int]], direction: Direction | None = None) -> int:
    """Payload and framing: what the algorithm would send over a network."""
    chosen = DIRECTIONS if direction is None else (direction,)
    return payload_bytes(counts, direction) + sum(counts[way]["framing"] for way in chosen)


def add_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The sum of two counts."""
    return {way: {name: first[way][name] + second[way][name] for name in COLUMNS} for way in DIRECTIONS}


Record = dict[str, Any]
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FAILURE = {"round": int, "call": int, "operation": str, "client": int, "reason": str, "message": str, "detail": str}
_TIMES = ("seconds", "seconds_total", "client_seconds")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def check_record(record: Any, where: str) -> Record:
    """A round's record, unchanged; the error names the first invalid field."""
    if not isinstance(record, dict):
        raise DataError(f"{where} is malformed: a record is an object, found {type(record).__name__}")
    for name, fits in _FIELDS.items():
        if name not in record:
            raise DataError(f"{where} is malformed: {name!r} is missing")
        if not fits(record[name]):
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
    """The part that does not depend on when and where a round is played: no times, and no sizes of reports, which hold times."""
    lasting = {name: value for name, value in record.items() if name not in _TIMES}
    for name in ("bytes", "bytes_total"):
        lasting[name] = {way: {**columns, "report": 0} for way, columns in record[name].items()}
    lasting["metrics"] = _drop_timings(record["metrics"])
    lasting["clients"] = {client: _drop_timings(numbers) for client, numbers in record["clients"].items()}
    return lasting


def _drop_timings(metrics: Mapping[str, Any]) -> Record:
    """Metrics other than times, `seconds/...`."""
    return {name: value for name, value in metrics.items() if not name.startswith("seconds")}


def check_evaluation(evaluation: Any, where: str) -> Record:
    """An evaluation, unchanged, if its success is a number and its estimates, where it has any, are well-formed."""
    if not isinstance(evaluation, dict) or not is_number(evaluation.get("success")):
        raise DataError(f"{where} is malformed: an evaluation is an object with a number 'success'")
    digest = evaluation.get("digest")
    if digest is not None and not is_digest(digest):
        raise DataError(f"{where} is malformed: 'digest' cannot be {str(digest)[:60]!r}")
    if "overall" in evaluation:
        _check_estimates(evaluation, where)
    sets = evaluation.get("sets", {})
    if not isinstance(sets, dict) or not all(isinstance(below, dict) for below in sets.values()):
        raise DataError(f"{where} is malformed: 'sets' holds the results of each evaluation set")
    for name, below in sets.items():
        _check_estimates(below, f"{where}, set {str(name)[:60]!r},")
    if not _are_metrics(evaluation.get("clients", {})):
        raise DataError(f"{where} is malformed: 'clients' holds numbers over all clients")
    return evaluation


def _check_estimates(found: Mapping[str, Any], where: str) -> None:
    categories = found.get("categories")
    if not _are_estimates(found.get("overall")):
        raise DataError(
            f"{where} is malformed: 'overall' holds means with their intervals, of success, score and turns at least"
        )
    if not isinstance(categories, dict) or not all(map(_are_estimates, categories.values())):
        raise DataError(f"{where} is malformed: 'categories' holds means with their intervals by category")
    if not is_whole(found.get("tasks")) or not is_whole(found.get("episodes")):
        raise DataError(f"{where} is malformed: an evaluation counts its tasks and its episodes")


# ---- valid values ------------------------------------------------------------------------------------------------------


def is_digest(value: object) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def is_whole(value: object) -> bool:
    """A whole number from 0 on that arrays can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def is_number(value: object) -> bool:
    """A finite number that a float can hold, however long a whole number is written."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_client(name: object) -> bool:
    """The number of a client as a key."""
    return isinstance(name, str) and _NUMBER.fullmatch(name) is not None


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and is_number(value) and value >= 0


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(is_number(number) for number in value.values())


def _are_estimates(value: object) -> bool:
    """Means with the ends of their intervals, by name; some are in every evaluation."""
    return (
        isinstance(value, dict)
        and {"success", "score", "turns"} <= set(value)
        and all(
            isinstance(estimate, dict) and set(estimate) == {"mean", "low", "high"} and _are_metrics(estimate)
            for estimate in value.values()
        )
    )


def _are_clients(value: object) -> bool:
    return isinstance(value, dict) and all(is_client(name) and _are_metrics(below) for name, below in value.items())


def _are_durations(value: object) -> bool:
    return isinstance(value, dict) and all(is_client(name) and _is_duration(below) for name, below in value.items())


def _are_counts(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != set(DIRECTIONS):
        return False
    return all(
        isinstance(columns, dict) and set(columns) == set(COLUMNS) and all(map(is_whole, columns.values()))
        for columns in value.values()
    )


def _are_failures(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(failure, dict)
        and set(failure) == set(_FAILURE)
        and all(isinstance(failure[name], kind) for name, kind in _FAILURE.items())
        for failure in value
    )


def _are_participants(value: object) -> bool:
    return isinstance(value, list) and all(map(is_whole, value))


_FIELDS: dict[str, Callable[[object], bool]] = {
    "round": is_whole,
    "participants": _are_participants,
    "metrics": _are_metrics,
    "clients": _are_clients,
    "client_seconds": _are_durations,
    "failures": _are_failures,
    "bytes": _are_counts,
    "bytes_total": _are_counts,
    "seconds": _is_duration,
    "seconds_total": _is_duration,
    "digest": is_digest,
}


_MAX_LINE = 1 << 26


class MetricsLog:
    """`metrics.jsonl`: one line per committed round, for people and their tools.

    The commits determine its content: when a run resumes, the file is compared with them and rewritten where it differs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []

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
        self.records.append(record)
        append_line(self.path, canonical_json(record))


def read_metrics_log(path: Path) -> Iterator[Record]:
    """The complete lines of a metrics file, up to the first incomplete one."""
    if not path.is_file():
        return
    with open_plain(path) as file:
        while (line := file.readline(_MAX_LINE)).endswith(b"\n"):
            try:
                record = parse_json(line, str(path))
            except DataError:
                return
            if not isinstance(record, dict) or not is_whole(record.get("round")):
                return
            yield record


def best_rounds(records: Sequence[Mapping[str, Any]]) -> set[int]:
    """The evaluated round with the highest success, the earliest of equals; empty before any evaluation."""
    evaluated = [(record["evaluation"]["success"], -record["round"]) for record in records if "evaluation" in record]
    return {-max(evaluated)[1]} if evaluated else set()
