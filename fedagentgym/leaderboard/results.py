"""A result: the runs of one entry of a suite, in one archive or in a folder.

    suite.yaml             the definition of the suite as it was played
    entry.json             the entry that played
    SCENARIO-seedN         a run for each scenario and seed, as `train` or `eval` wrote it (`runs.folder`)

A folder holds the runs as folders. `pack` makes the archive ENTRY.zip of it (`runs.archive`); the same runs give the same bytes.
On the agents track a result may hold only some of the scenarios. The findings of a verifier are no part of a result: `bench
verify --out FOLDER` writes them to FOLDER/SUITE/ENTRY.json.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedagentgym.base.errors import DataError
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import find_below, format_path, read_text
from fedagentgym.base.settings import Settings
from fedagentgym.base.statistics import Values
from fedagentgym.base.tables import write_rows
from fedagentgym.federation.records import Digest
from fedagentgym.leaderboard.entries import Entry
from fedagentgym.leaderboard.metrics import Measures
from fedagentgym.leaderboard.rank import Numbers, measure_entry
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite, parse_suite, to_yaml
from fedagentgym.learning.trajectory import Group, group_by_task, read_lines
from fedagentgym.runs.archive import Archive, is_archive, join_archives, write_archive
from fedagentgym.runs.folder import (
    MAX_DOCUMENT_BYTES,
    RANKED,
    RECORD,
    RunFolder,
    format_document,
    parse_document,
    read_document,
)
from fedagentgym.runs.record import Name, RunRecord, Text

SUITE, ENTRY = "suite.yaml", "entry.json"
MAX_SEARCH_DEPTH = 4
"""Maximum depth below a named folder to which results are searched."""
RunKey = tuple[str, int]
"""A run of a result: its scenario and its seed."""


def name_run(key: RunKey) -> str:
    """The name of a run in file names."""
    return f"{key[0]}-seed{key[1]}"


def parse_run(name: str, where: str) -> RunKey:
    """The scenario and the seed in the name of a run."""
    scenario, _, seed = name.rpartition("-seed")
    if not scenario or not seed.isdecimal() or name != f"{scenario}-seed{int(seed)}":
        raise DataError(f"{where}: {name[:80]!r} names no run: SCENARIO-seedN is expected")
    return scenario, int(seed)


class Claim(Settings):
    """A claim of a result, and whether it was proven."""

    name: Name
    status: Literal["proven", "not provable", "refuted"]
    about: Text


class Rerun(Settings):
    """The measures of an entry that maintainers ran again, on the public tasks and on those of the secret twin."""

    date: Text
    by: Text
    public: Measures = Field(default_factory=dict)
    secret: Measures = Field(default_factory=dict)
    secret_suite: Digest | None = None


class Verification(Settings):
    """The findings of a verifier about one archive, which `result` names by its digest."""

    format: Literal[1] = 1
    result: Digest
    version: Text = Field(description="of the package that checked")
    claims: tuple[Claim, ...]
    rerun: Rerun | None = None

    @property
    def replayed(self) -> bool:
        """True if it was proven that replaying every episode gives the recorded rewards."""
        return any(claim.name == "replayed" and claim.status == "proven" for claim in self.claims)


@dataclass(frozen=True)
class Result:
    """A result on disk. Its parts are read on access and are not verified here.

    `verified` are the reader's folders of findings. The first folder with findings about this archive counts; files inside the
    result never do. If `only` names a run, the others are left out.
    """

    path: Path
    verified: Sequence[Path] = ()
    only: RunKey | None = None

    @cached_property
    def archive(self) -> Archive | None:
        """The archive; None for a folder."""
        return Archive(self.path) if is_archive(self.path) else None

    @cached_property
    def suite(self) -> Suite:
        """The definition of the suite as it was played."""
        where = f"{format_path(self.path)}, {SUITE}"
        if self.archive is None:
            return parse_suite(read_text(self.path / SUITE), where)
        try:
            return parse_suite(self.archive.read(SUITE).decode(), where)
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None

    @cached_property
    def entry(self) -> Entry:
        if self.archive is None:
            return read_document(Entry, self.path / ENTRY)
        return parse_document(Entry, self.archive.read(ENTRY), f"{format_path(self.path)}, {ENTRY}")

    @cached_property
    def digest(self) -> str:
        """The digest of the archive; for a folder, a digest of zeros."""
        return "sha256:" + 64 * "0" if self.archive is None else self.archive.digest

    @property
    def name(self) -> str:
        return self.entry.name

    @cached_property
    def keys(self) -> tuple[RunKey, ...]:
        """The finished runs of the result, in the order of the suite. Runs of other scenarios or seeds come last."""
        here = [place.parent.name for place in self.path.glob(f"*/{RECORD}")]
        names = here if self.archive is None else self.archive.runs
        found = [parse_run(name, format_path(self.path)) for name in names]
        found = found if self.only is None else [self.only]
        order = [(scenario, seed) for scenario in self.suite.scenarios for seed in self.suite.seeds]
        return tuple(sorted(found, key=lambda key: (order.index(key) if key in order else len(order), key)))

    @property
    def scenarios(self) -> list[str]:
        """The scenarios that were played, in the order of the suite."""
        return list(dict.fromkeys(scenario for scenario, _ in self.keys))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.keys})

    @property
    def is_whole(self) -> bool:
        """True if every scenario of the suite was played."""
        return len(self.scenarios) == len(self.suite.scenarios)

    @contextlib.contextmanager
    def open_run(self, key: RunKey, *only: str) -> Iterator[RunFolder]:
        """Open a run as a folder. A run in an archive is unpacked to a temporary folder: the files `only`, or all by default."""
        if self.archive is None:
            yield RunFolder(self.path / name_run(key))
            return
        with self.archive.unpack(name_run(key), only or None) as folder:
            yield RunFolder(folder)

    @cached_property
    def records(self) -> Mapping[RunKey, RunRecord]:
        """The record of every run."""
        return {key: self._read_record(name_run(key)) for key in self.keys}

    def _read_record(self, run: str) -> RunRecord:
        where = f"{format_path(self.path)}, {run}/{RECORD}"
        if self.archive is None:
            record = RunFolder(self.path / run).record
        else:
            record = parse_document(RunRecord, self.archive.read_file(run, RECORD, MAX_DOCUMENT_BYTES), where)
        if record.ranked is None or record.tasks is None or not record.ranked.episodes:
            raise DataError(f"{where}: the run ranks nothing; a result must have ranked episodes")
        return record

    def read_groups(self, key: RunKey) -> tuple[Group, ...]:
        """The ranked episodes of a run, grouped by task, in the order of the tasks' ids."""
        with self.open_run(key, RANKED) as run:
            groups = group_by_task(line.trajectory for line in read_lines(run.path / RANKED))
        found = tuple(sorted(groups, key=lambda group: group[0].task))
        if len({len(group) for group in found}) != 1 or len({group[0].task for group in found}) != len(found):
            where = f"{format_path(self.path)}, {name_run(key)}"
            raise DataError(f"{where}: no ranked episodes, or not as many for every task")
        return found

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of the entry, from the records of its runs."""
        return measure_entry(self.suite, self.records, self.read_groups)

    def list_findings(self) -> list[Path]:
        """The paths at which the reader's folders keep findings about this result; the files need not exist."""
        return [folder / self.suite.name / f"{self.name}.json" for folder in self.verified]

    @cached_property
    def verification(self) -> Verification | None:
        """The findings about this archive in the reader's folders; None if there are none."""
        for file in self.list_findings() if self.archive is not None else ():
            if file.is_file() and (found := read_document(Verification, file)).result == self.digest:
                return found
        return None


def pack(result: Result, path: Path) -> str:
    """Write the archive of a result atomically; returns its digest."""

    def publish() -> Iterator[tuple[str, Mapping[str, bytes]]]:
        for key in result.keys:
            with result.open_run(key) as run:
                yield name_run(key), run.publish()

    if not result.keys:
        raise DataError(f"{format_path(result.path)} holds no finished run")
    return write_archive(path, format_documents(result.suite, result.entry), publish())


def format_documents(suite: Suite, entry: Entry) -> dict[str, bytes]:
    """The documents of a result's archive."""
    return {SUITE: to_yaml(suite).encode(), ENTRY: format_document(entry.publish()).encode()}


def join(parts: Sequence[Result], path: Path) -> str:
    """Join the archives of single runs of an entry, given in the suite's order, into one, without packing the runs again."""
    first = parts[0]
    for part in parts[1:]:
        if part.suite.digest != first.suite.digest or part.entry.publish() != first.entry.publish():
            raise DataError(f"{format_path(part.path)} is of another suite or entry than {format_path(first.path)}")
    archives = [part.archive for part in parts if part.archive is not None]
    return join_archives(path, format_documents(first.suite, first.entry), archives)


# ---- finding results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteEntries:
    """All entries of one suite."""

    suite: Suite
    entries: Sequence[Result]

    def tabulate(self) -> dict[str, dict[str, Values]]:
        """The ranked measure of every entry, by scenario: `values[seed, task]`."""
        found = {}
        for entry in self.entries:
            if (values := entry.numbers.tabulate(self.suite.rank_by)) is None:
                raise DataError(f"{format_path(entry.path)}: {self.suite.rank_by!r} cannot be computed from its runs")
            found[entry.name] = values
        return found

    @property
    def key(self) -> str:
        """The suite's name in file names: with its version, unless the name ends with it."""
        tail = f"-v{self.suite.version}"
        return self.suite.name if self.suite.name.endswith(tail) else f"{self.suite.name}{tail}"


def find_results(place: Path) -> list[Path]:
    """The results at or below a path: archives, and folders of runs. Links are not followed."""
    if is_archive(place):
        return [place]
    if not place.is_dir():
        raise DataError(f"{format_path(place)} is neither a result nor a folder of results")
    folders = sorted(find_below(place, ENTRY, MAX_SEARCH_DEPTH))
    archives = [
        file
        for depth in range(1, MAX_SEARCH_DEPTH + 1)
        for file in place.glob("/".join(["*"] * depth) + ".zip")
        if file.is_file()
        and not any(one.is_symlink() for one in (file, *file.parents[: depth - 1]))
        and not any(folder in file.parents for folder in folders)
    ]
    return sorted({*folders, *archives})


def read_suites(places: Iterable[Path], verified: Sequence[Path] = ()) -> list[SuiteEntries]:
    """Read the results at or below these paths, grouped by suite: the agents track first, then methods, each by name. `verified`
    are the reader's folders of findings."""
    for folder in verified:
        if not folder.is_dir():
            raise DataError(
                f"there is no folder {folder}: `fedagentgym bench verify RESULT --out {quote_word(folder)}` makes one"
            )
    groups: dict[str, list[Result]] = {}
    for path in dict.fromkeys(path.resolve() for place in places for path in find_results(place)):
        entry = Result(path, verified)
        suite = entry.suite
        groups.setdefault(f"{suite.track} {suite.name} {suite.version:06d}", []).append(entry)
    found = []
    for _, group in sorted(groups.items()):
        entries = sorted(group, key=lambda entry: entry.name)
        first, suite = entries[0], entries[0].suite
        for entry in entries[1:]:
            if entry.suite.digest != suite.digest:
                raise DataError(f"{entry.path} was played under another definition of {suite.name} than {first.path}")
        for before, after in pairwise(entries):
            if before.name == after.name:
                raise DataError(f"{before.path} and {after.path} are both called {after.name}: leave one out")
        # descriptions in results may say anything: if the package has the suite, its own are shown
        own = load_suite(suite.name) if suite.name in list_suites() else suite
        found.append(SuiteEntries(own if own.digest == suite.digest else suite, entries))
    return found


def write_parquet(places: Sequence[Path], file: Path) -> int:
    """Write a Parquet file with one row for each run of the results at or below these paths; returns the number of rows.

    Columns: `suite`, `version`, `entry`, `title`, `scenario`, `seed`, `algorithm`, `agent`, `success` with `low` and `high`,
    `measure` and `value` of the suite's ranking, costs (`episodes`, `env_steps`, `bytes`, `optimizer_steps`, `seconds`), and the
    digests `config`, `pool`, `client_split`, `policy`, and `result` (of the archive; null for a folder).
    """
    rows = []
    for suite in read_suites(places):
        for entry in suite.entries:
            for (scenario, seed), record in entry.records.items():
                assert record.ranked is not None and record.tasks is not None
                success, means = record.ranked.overall["success"], entry.numbers.runs[scenario][seed].means
                rows.append(
                    {
                        "suite": suite.suite.name,
                        "version": suite.suite.version,
                        "entry": entry.name,
                        "title": entry.entry.title,
                        "scenario": scenario,
                        "seed": seed,
                        "algorithm": record.algorithm,
                        "agent": record.agent.model or str(record.agent.settings.get("name")),
                        "success": success["mean"],
                        "low": success["low"],
                        "high": success["high"],
                        "measure": suite.suite.rank_by,
                        "value": means.get(suite.suite.rank_by),
                        "episodes": record.spent.episodes,
                        "env_steps": record.spent.env_steps,
                        "bytes": record.spent.bytes,
                        "optimizer_steps": record.spent.optimizer_steps,
                        "seconds": record.made.seconds,
                        "config": record.config_digest,
                        "pool": record.tasks.pool,
                        "client_split": None if record.client_split is None else record.client_split.digest,
                        "policy": record.ranked.policy,
                        "result": None if entry.archive is None else entry.digest,
                    }
                )
    if not rows:
        raise DataError(f"there is no result in {', '.join(map(format_path, places))}")
    write_rows(rows, file)
    return len(rows)
