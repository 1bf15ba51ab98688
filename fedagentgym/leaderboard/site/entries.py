"""Results as the page shows them: read from their folders, grouped by suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_path, read_text
from fedagentgym.base.statistics import Values
from fedagentgym.leaderboard.aggregate import CellData, average_replicates, collect_ranked
from fedagentgym.leaderboard.record import (
    EPISODES,
    MANIFEST,
    SUITE,
    VERIFICATION,
    CellRecord,
    ClientTable,
    Curves,
    Manifest,
    Measures,
    Verification,
    read_clients,
    read_curves,
    read_document,
    read_manifest,
)
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite, parse_suite
from fedagentgym.learning.trajectory import Group, Trajectory
from fedagentgym.pages.episodes import ShownEpisode, read_episodes

DEEPEST = 4
"""Maximum depth below a named folder at which results are searched."""


@dataclass(frozen=True)
class Entry:
    """A result with the files next to its manifest. `verification` is None if there is none for this manifest."""

    folder: Path
    manifest: Manifest
    verification: Verification | None

    @property
    def name(self) -> str:
        return self.manifest.entry.name

    @property
    def is_whole(self) -> bool:
        """Whether every scenario of the suite was played."""
        return len(self.manifest.scenarios) == len(self.suite.scenarios)

    @property
    def overall(self) -> Measures:
        """The measures over all scenarios; nothing if some were not played, since these numbers are about all."""
        return self.manifest.overall if self.is_whole else {}

    @cached_property
    def suite(self) -> Suite:
        """The definition of the suite as it was played."""
        found = parse_suite(read_text(self.folder / SUITE), format_path(self.folder / SUITE))
        if found.digest != self.manifest.suite.digest:
            raise DataError(f"{format_path(self.folder)}: {SUITE} is not the suite that the manifest names")
        return found

    @cached_property
    def curves(self) -> Curves:
        return read_curves(self.folder)

    @cached_property
    def clients(self) -> ClientTable:
        return read_clients(self.folder)

    def read_episodes(self, cell: CellRecord) -> list[ShownEpisode]:
        """The ranked episodes of a cell."""
        return read_episodes(self.folder / EPISODES / f"{cell.key}.jsonl.gz")

    def read_values(self) -> Mapping[str, Values]:
        """The ranked measure by scenario: one row for each seed, one column for each task, in the order of their ids."""
        cells, ranked = [self._read_cell(cell) for cell in self.manifest.cells], self.manifest.ranked
        if (found := collect_ranked(self.suite, cells, ranked)) is None:
            raise DataError(f"{format_path(self.folder)}: {ranked!r} cannot be found from its episodes")
        return found

    def list_runs(self, measure: str, scenario: str = "") -> list[float]:
        """A measure in each run of a method, in one scenario or in the mean over all; nothing if some cell lacks it."""
        if self.manifest.suite.track == "agents":
            return []
        names = [scenario] if scenario else [one.name for one in self.manifest.scenarios]
        rows = [[cell.measures.get(measure) for cell in self.manifest.cells if cell.scenario == name] for name in names]
        if any(one is None for row in rows for one in row):
            return []
        return average_replicates([[one.mean for one in row if one is not None] for row in rows])

    def _read_cell(self, cell: CellRecord) -> CellData:
        by_task: dict[str, list[Trajectory]] = {}
        for shown in self.read_episodes(cell):
            by_task.setdefault(shown.trajectory.task, []).append(shown.trajectory)
        groups: tuple[Group, ...] = tuple(tuple(by_task[task]) for task in sorted(by_task))
        if not groups or len({len(group) for group in groups}) != 1:
            raise DataError(
                f"{format_path(self.folder)}: cell {cell.key} has no episodes, or not as many for every task"
            )
        curve = [one.points for one in self.curves.cells if (one.scenario, one.seed) == (cell.scenario, cell.seed)]
        clients = [one.clients for one in self.clients.cells if (one.scenario, one.seed) == (cell.scenario, cell.seed)]
        return CellData(
            cell.scenario,
            cell.seed,
            groups,
            cell.spent,
            points=curve[0] if curve else (),
            clients=clients[0] if clients else (),
            usage=cell.usage,
            epsilon=cell.epsilon,
        )


@dataclass(frozen=True)
class SuiteEntries:
    """All entries of one suite."""

    suite: Suite
    entries: Sequence[Entry]

    def read_values(self) -> dict[str, Mapping[str, Values]]:
        """The ranked measure of every entry, by scenario."""
        return {entry.name: entry.read_values() for entry in self.entries}

    @property
    def key(self) -> str:
        """The suite's name in file names: with its version, unless its name contains it."""
        tail = f"-v{self.suite.version}"
        return self.suite.name if self.suite.name.endswith(tail) else f"{self.suite.name}{tail}"


def read_suites(places: Iterable[Path]) -> list[SuiteEntries]:
    """The results in these folders and below them, by suite; agents first, then methods, each by name."""
    found: dict[str, list[Entry]] = {}
    for folder in dict.fromkeys(folder.resolve() for place in places for folder in _find_results(place, DEEPEST)):
        entry = read_entry(folder)
        reference = entry.manifest.suite
        found.setdefault(f"{reference.track} {reference.name} {reference.version:06d}", []).append(entry)
    return [_group(entries) for _, entries in sorted(found.items())]


def read_entry(folder: Path) -> Entry:
    """A result with its verification, if that belongs to the same manifest."""
    manifest = read_manifest(folder)
    verification = None
    if (folder / VERIFICATION).is_file():
        read = read_document(Verification, folder / VERIFICATION)
        verification = read if read.manifest == file_digest(folder / MANIFEST) else None
    return Entry(folder, manifest, verification)


def _group(entries: Sequence[Entry]) -> SuiteEntries:
    ordered = sorted(entries, key=lambda entry: entry.name)
    first = ordered[0]
    for entry in ordered[1:]:
        if entry.manifest.suite.digest != first.manifest.suite.digest:
            raise DataError(
                f"{entry.folder} was played under another definition of {first.manifest.suite.name} than {first.folder}"
            )
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise DataError(f"{before.folder} and {after.folder} are both called {after.name}: leave one out")
    return SuiteEntries(_find_definition(first), ordered)


def _find_definition(entry: Entry) -> Suite:
    """The package's own definition if it is of what was played: descriptions that come with results may say anything."""
    name = entry.manifest.suite.name
    own = load_suite(name) if name in list_suites() else None
    return own if own is not None and own.digest == entry.manifest.suite.digest else entry.suite


def _find_results(place: Path, depth: int) -> Iterator[Path]:
    if not place.is_dir():
        raise DataError(f"{format_path(place)} is not a folder of results")
    if (place / MANIFEST).is_file():
        yield place
        return
    if depth:
        for below in sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from _find_results(below, depth - 1)
