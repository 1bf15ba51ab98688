"""The folder of a run, the only form in which a run is stored on disk.

    config.yaml                the resolved configuration: of a training run, or of an evaluation
    result.json                the record of the finished run                                         `RunRecord`
    metrics.jsonl              training: one line a round
    evaluation/NNNN.jsonl      training: the episodes that were played after round NNNN
    evaluation/ranked.jsonl    the episodes of the ranked tasks
    evaluation/worlds.jsonl    training: the ranked tasks in the clients' own variants
    rounds/, states/           training: commits and clients' states, from which a killed run is resumed
    progress.json              the progress of an unfinished evaluation; ignored once there is a record
    trajectories/, background.json, report.html      for people
    tracked.txt                the run's id and name in trackers

Others need the files above `rounds/` to check every number; `publish` returns these in the form of an archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import format_path, format_yaml, parse_json, parse_yaml, read_bytes, read_text, write_atomic
from fedagentgym.base.settings import Settings, merge
from fedagentgym.learning.trajectory import Line, format_line, read_lines
from fedagentgym.runs.record import FORMAT, RunRecord

CONFIG, RECORD, METRICS = "config.yaml", "result.json", "metrics.jsonl"
EVALUATION = "evaluation"
RANKED, WORLDS = f"{EVALUATION}/ranked.jsonl", f"{EVALUATION}/worlds.jsonl"
PUBLISHED_FOLDER = "runs/run"
"""The run's folder in a published configuration, wherever the run was made."""
MAX_DOCUMENT_BYTES = 1 << 24
"""Maximum size of a document in bytes."""
Document = TypeVar("Document", bound=Settings)


def format_document(document: Settings) -> str:
    """The text of a document; its reader accepts no other text."""
    return canonical_json(document.model_dump(mode="json")) + "\n"


def read_document(kind: type[Document], place: Path) -> Document:
    """A document of a run or a result, written as this package writes it."""
    return parse_document(kind, read_text(place, MAX_DOCUMENT_BYTES).encode(), format_path(place))


def parse_document(kind: type[Document], text: bytes, where: str) -> Document:
    """A document from the bytes of its file, or of a member of an archive; an error begins with `where`."""
    plain = parse_json(text, where)
    number = plain.get("format") if isinstance(plain, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise DataError(
            f"{where} has format {str(number)[:20]}, this version reads {FORMAT}: install a newer fedagentgym"
        )
    try:
        found = kind.load(plain, "", parsed=True)
    except OptionError as error:
        raise DataError(f"{where}: malformed, not what this version reads: {error}") from None
    if format_document(found).encode() != text:
        raise DataError(f"{where}: not written as this package writes it: a number or the layout was edited")
    return found


def publish_config(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration without the folder in which it ran here."""
    return merge(plain, {"output": {"folder": PUBLISHED_FOLDER}}) if "output" in plain else dict(plain)


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Its parts are read on first use; this class does not verify them."""

    path: Path

    @property
    def is_run(self) -> bool:
        return (self.path / CONFIG).is_file()

    @property
    def is_evaluation(self) -> bool:
        """True if an agent was evaluated here: there are no rounds and nothing that was trained."""
        return self.is_run and "partition" not in self.config and "evaluation" in self.config

    def refuse_evaluation(self) -> None:
        """Refuse the folder of an evaluation where a training run is expected."""
        if self.is_evaluation:
            place = quote_word(self.path)
            raise DataError(
                f"{format_path(self.path)} is an evaluation, not a training run: fedagentgym episodes {place} shows it, and"
                f" fedagentgym compare {place} OTHER compares it"
            )

    @property
    def is_finished(self) -> bool:
        return (self.path / RECORD).is_file()

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration as plain values; nothing that it names is imported."""
        where = format_path(self.path / CONFIG)
        plain = parse_yaml(read_text(self.path / CONFIG), where)
        if not isinstance(plain, Mapping) or not isinstance(plain.get("env"), Mapping):
            raise DataError(f"{where}: a configuration is a mapping of sections")
        return plain

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that the configuration names, for commands that are printed."""
        found = self.config.get("plugins")
        return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()

    @cached_property
    def record(self) -> RunRecord:
        return read_document(RunRecord, self.path / RECORD)

    def write_record(self, record: RunRecord) -> None:
        """Write the record, with which the run is finished."""
        if not self.is_run:
            raise DataError(
                f"the run folder {format_path(self.path)} was moved or removed: the run's record cannot be written"
            )
        write_atomic(self.path / RECORD, format_document(record))

    def get_evaluation(self, number: int) -> Path:
        """The file of the episodes that were played after a round."""
        return self.path / EVALUATION / f"{number:04d}.jsonl"

    def list_evaluations(self) -> dict[int, Path]:
        """The files of episodes by round, oldest first."""
        return _sort_by_number((self.path / EVALUATION).glob("*.jsonl"))

    def find_episodes(self) -> Path | None:
        """The episodes by which the run is evaluated: the ranked ones, or those of its last evaluation."""
        if (self.path / RANKED).is_file():
            return self.path / RANKED
        return next(reversed(self.list_evaluations().values()), None)

    def read_evaluated(self) -> Iterator[Line]:
        """The episodes by which the run is evaluated, if there are any."""
        file = self.find_episodes()
        return iter(()) if file is None else read_lines(file)

    def read_samples(self) -> Iterator[Line]:
        """The sampled training episodes; a line names its environment and its round."""
        for number, file in _sort_by_number(self.path.glob("trajectories/*.jsonl")).items():
            more = {"env": self.config["env"].get("id"), "round": number}
            yield from (line._replace(about={**line.about, **more}) for line in read_lines(file))

    def publish(self) -> dict[str, bytes]:
        """The files of the run in the order of an archive: those that are read most often come first.

        Episodes of the learning curve and of clients' own variants are brief: a replay restores the fields that they lack.
        """
        found = {RECORD: read_bytes(self.path / RECORD), CONFIG: format_yaml(publish_config(self.config)).encode()}
        found |= {name: read_bytes(self.path / name) for name in (RANKED, METRICS) if (self.path / name).is_file()}
        brief = [self.path / WORLDS] if (self.path / WORLDS).is_file() else []
        for file in [*brief, *self.list_evaluations().values()]:
            lines = (format_line(line.trajectory, line.about, brief=True) + "\n" for line in read_lines(file))
            found[f"{EVALUATION}/{file.name}"] = "".join(lines).encode()
        return found


def _sort_by_number(files: Iterable[Path]) -> dict[int, Path]:
    """The files whose names are numbers (of rounds), the smallest first."""
    return dict(sorted((int(file.stem), file) for file in files if file.stem.isdecimal()))


def find_runs(path: Path) -> list[RunFolder]:
    """A run itself, or the runs in a folder."""
    own = RunFolder(path)
    return [own] if own.is_run else [RunFolder(place.parent) for place in sorted(path.glob(f"*/{CONFIG}"))]
