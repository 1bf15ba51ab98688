"""`metrics.jsonl`: one line per committed round, for people and their tools.

The commits determine its content: when a run resumes, the file is compared with them and rewritten where it differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import append_line, open_plain, read_bytes, write_atomic
from fedagentgym.base.json_text import parse_json
from fedagentgym.base.logs import get_logger
from fedagentgym.federation.records import Record, is_whole

_MAX_LINE = 1 << 26


class MetricsLog:
    """The file and its records."""

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
