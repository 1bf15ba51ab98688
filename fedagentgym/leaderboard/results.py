"""A packed result: one folder with who played which suite, the results, and every episode.

    manifest.json                 format, who, which suite, the results, the digest of every other file        `Manifest`
    suite.yaml                    the definition of the suite as it was played
    agent.yaml                    agents track: the agent's settings
    episodes/SCENARIO-seedN.jsonl.xz    the ranked episodes, one a line, in the order of their tasks
    selection/SCENARIO-seedN.jsonl.xz   methods track: the episodes on `val`, in brief, of the learning curve
    worlds/SCENARIO-seedN.jsonl.xz      the episodes in the clients' own worlds, in brief
    curves.json.xz                methods track: results and cost of every evaluated round                `Curves`
    clients.json.xz               methods track: success of every client                                `ClientTable`
    configs.json.xz               methods track: the configuration of every run                         `ConfigTable`

A cell is one scenario (an environment, on the methods track with a client split) under one seed. Brief episodes lack their seed
and the observations, which a replay gives back. On the agents track a result may hold some of the scenarios. All numbers of the
manifest, the curves and the clients follow from the episodes, except for what `verify` names as not provable. Only
`manifest.made` (date, machine, duration) differs between two runs of the same cells. What a verifier found is no part of a
result: `bench verify --to FOLDER` writes FOLDER/SUITE/ENTRY.json.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml

from fedagentgym.base.encoding import bytes_digest, file_digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import (
    atomic_folder,
    compress,
    find_below,
    format_path,
    parse_json,
    read_compressed,
    read_json_line_texts,
    read_text,
    write_atomic,
)
from fedagentgym.base.process import count_usable_cores
from fedagentgym.base.settings import Settings
from fedagentgym.base.statistics import Values
from fedagentgym.experiment.run import collect_versions
from fedagentgym.leaderboard.aggregate import (
    CellData,
    WorldGroups,
    aggregate,
    average_replicates,
    collect_ranked,
    describe_cell,
)
from fedagentgym.leaderboard.record import (
    CellClients,
    CellConfig,
    CellRecord,
    ClientTable,
    ConfigTable,
    Curve,
    Curves,
    EntryRecord,
    Made,
    Manifest,
    Measures,
    ScenarioRecord,
    Verification,
)
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite, parse_suite, to_yaml
from fedagentgym.learning.trajectory import Group, Trajectory, parse_json_lines, read_json_lines, to_json_line

FORMAT = 1
"""The newest format of packed results that this version reads."""
MANIFEST, CURVES, CLIENTS, CONFIGS = "manifest.json", "curves.json.xz", "clients.json.xz", "configs.json.xz"
SUITE, AGENT = "suite.yaml", "agent.yaml"
EPISODES, SELECTION, WORLDS = "episodes", "selection", "worlds"
MOST_DOCUMENT = 1 << 24
"""Maximum size of a document in bytes; those of large suites have some hundred thousand."""
DEEPEST = 4
"""Maximum depth below a named folder at which results are searched."""
_FLAT = re.compile(r"\{\n *([^{}\[\]]*)\n *\}")
Document = TypeVar("Document", bound=Settings)


# ---- episodes -----------------------------------------------------------------------------------------------------------


def group_by_task(trajectories: Iterable[Trajectory]) -> tuple[Group, ...]:
    """Consecutive episodes of one task."""
    return tuple(tuple(members) for _, members in groupby(trajectories, key=lambda one: one.task))


def parse_groups(text: str, where: str) -> tuple[Group, ...]:
    """The episodes of a text of JSON lines, grouped by task."""
    return group_by_task(trajectory for trajectory, _ in parse_json_lines(text.splitlines(), where))


def shorten_episodes(text: str, where: str) -> str:
    """The same episodes in brief."""
    lines = parse_json_lines(text.splitlines(), where)
    return "".join(to_json_line(trajectory, about, brief=True) + "\n" for trajectory, about in lines)


def parse_worlds(text: str, where: str) -> tuple[WorldGroups, ...]:
    """The brief episodes of a text by the clients in whose worlds they were played, each grouped by task."""
    lines = parse_json_lines(text.splitlines(), where, brief=True)
    return tuple(
        (tuple(clients), group_by_task(trajectory for trajectory, _ in members))
        for clients, members in groupby(lines, key=lambda line: line[1].get("clients"))
    )


# ---- documents ----------------------------------------------------------------------------------------------------------


def to_text(document: Settings) -> str:
    """The canonical text of a result's document."""
    return format_document(document.model_dump(mode="json"))


def format_document(plain: Any) -> str:
    """Indented JSON, in which a mapping that holds no other is one line.

    >>> print(format_document({"b": {"mean": 0.5, "runs": 2}, "a": []}), end="")
    {
     "a": [],
     "b": {"mean": 0.5, "runs": 2}
    }
    """
    text = json.dumps(plain, sort_keys=True, indent=1, allow_nan=False)
    return _FLAT.sub(lambda found: "{" + re.sub(r"\n *", " ", found[1]) + "}", text) + "\n"


def read_document(kind: type[Document], path: Path) -> Document:
    """A document of a result; any text but that of `to_text` is refused."""
    read = read_compressed if path.suffix == ".xz" else read_text
    text, where = read(path, MOST_DOCUMENT), format_path(path)
    plain = parse_json(text, where)
    if kind is Manifest and isinstance(plain, dict):
        number = plain.get("format")
        if not isinstance(number, int) or number < 1:
            raise DataError(f"{where}: the manifest of a packed result names its format, found {str(number)[:40]!r}")
        if number > FORMAT:
            raise DataError(f"{where} has format {number}, this version reads {FORMAT}: install a newer fedagentgym")
    try:
        found = kind.load(plain, "")
    except OptionError as error:
        raise DataError(f"{where}: {error}") from None
    if to_text(found) != text:
        raise DataError(f"{where}: not written as this package writes it: a number or the layout was edited")
    return found


def format_settings(plain: Mapping[str, Any]) -> str:
    """Settings as a YAML file."""
    text: str = yaml.safe_dump(dict(plain), sort_keys=True, allow_unicode=True)
    return text


# ---- reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultFolder:
    """A packed result on disk. Documents are read when they are asked for; nothing here trusts or verifies them.

    `verified` is a folder of what its reader found about results: a result's own files have no say in it.
    """

    path: Path
    verified: Path | None = None

    @cached_property
    def manifest(self) -> Manifest:
        return read_document(Manifest, self.path / MANIFEST)

    @cached_property
    def suite(self) -> Suite:
        """The definition of the suite as it was played."""
        found = parse_suite(read_text(self.path / SUITE), format_path(self.path / SUITE))
        if found.digest != self.manifest.suite.digest:
            raise DataError(f"{format_path(self.path)}: {SUITE} is not the suite that the manifest names")
        return found

    @cached_property
    def curves(self) -> Curves:
        """The learning curves; empty on the agents track."""
        place = self.path / CURVES
        return read_document(Curves, place) if place.exists() else Curves(cells=())

    @cached_property
    def clients(self) -> ClientTable:
        """The clients; empty on the agents track."""
        place = self.path / CLIENTS
        return read_document(ClientTable, place) if place.exists() else ClientTable(cells=())

    @cached_property
    def configs(self) -> ConfigTable:
        """The configurations; empty on the agents track."""
        place = self.path / CONFIGS
        return read_document(ConfigTable, place) if place.exists() else ConfigTable(cells=())

    @property
    def verification_file(self) -> Path:
        """The reader's file with what was found about this result."""
        if self.verified is None or self.verified.resolve().is_relative_to(self.path.resolve()):
            raise OptionError("what is found about a result is kept in a folder of its own, outside of the result")
        return self.verified / self.manifest.suite.name / f"{self.name}.json"

    @cached_property
    def verification(self) -> Verification | None:
        """The findings about this manifest, if the reader keeps it."""
        if self.verified is None or not self.verification_file.is_file():
            return None
        found = read_document(Verification, self.verification_file)
        return found if found.manifest == file_digest(self.path / MANIFEST) else None

    @property
    def name(self) -> str:
        return self.manifest.entry.name

    @property
    def is_whole(self) -> bool:
        """True if every scenario of the suite was played."""
        return len(self.manifest.scenarios) == len(self.suite.scenarios)

    @property
    def overall(self) -> Measures:
        """The measures over all scenarios; nothing if some were not played, since these numbers are about all."""
        return self.manifest.overall if self.is_whole else {}

    def get_episodes_file(self, cell: CellRecord, kind: str = EPISODES) -> Path:
        """The file of a cell's ranked episodes, or of those on `val` (`SELECTION`)."""
        return self.path / kind / f"{cell.key}.jsonl.xz"

    def read_groups(self, cell: CellRecord) -> tuple[Group, ...]:
        """The ranked episodes of a cell, grouped by task."""
        return group_by_task(trajectory for trajectory, _ in read_json_lines(self.get_episodes_file(cell)))

    def read_cell(self, cell: CellRecord) -> CellData:
        """A cell's ranked episodes in the order of the tasks' ids, with its recorded curve and clients."""
        groups = tuple(sorted(self.read_groups(cell), key=lambda group: group[0].task))
        if len({len(group) for group in groups}) != 1 or len({group[0].task for group in groups}) != len(groups):
            raise DataError(f"{format_path(self.path)}: cell {cell.key} has no episodes, or not as many for every task")
        key = (cell.scenario, cell.seed)
        points = next((one.points for one in self.curves.cells if (one.scenario, one.seed) == key), ())
        clients = next((one.clients for one in self.clients.cells if (one.scenario, one.seed) == key), ())
        worlds: tuple[WorldGroups, ...] = ()
        if self.suite.in_own_worlds:
            place = self.get_episodes_file(cell, WORLDS)
            text = "\n".join(line for _, _, line in read_json_line_texts(place))
            worlds = parse_worlds(text, format_path(place))
        return CellData(
            *key, groups, cell.spent, points, clients, usage=cell.usage, epsilon=cell.epsilon, worlds=worlds
        )

    def read_values(self) -> Mapping[str, Values]:
        """The ranked measure by scenario: one row for each seed, one column for each task, in the order of their ids."""
        cells, ranked = [self.read_cell(cell) for cell in self.manifest.cells], self.manifest.ranked
        if (found := collect_ranked(self.suite, cells, ranked)) is None:
            raise DataError(f"{format_path(self.path)}: {ranked!r} cannot be found from its episodes")
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


@dataclass(frozen=True)
class SuiteEntries:
    """All entries of one suite."""

    suite: Suite
    entries: Sequence[ResultFolder]

    def read_values(self) -> dict[str, Mapping[str, Values]]:
        """The ranked measure of every entry, by scenario."""
        return {entry.name: entry.read_values() for entry in self.entries}

    @property
    def key(self) -> str:
        """The suite's name in file names: with its version, unless its name contains it."""
        tail = f"-v{self.suite.version}"
        return self.suite.name if self.suite.name.endswith(tail) else f"{self.suite.name}{tail}"


def read_suites(places: Iterable[Path], verified: Path | None = None) -> list[SuiteEntries]:
    """The results in these folders and below them, by suite; agents first, then methods, each by name. `verified` is the folder
    of what the reader found about them."""
    found: dict[str, list[ResultFolder]] = {}
    for folder in dict.fromkeys(folder.resolve() for place in places for folder in _find_results(place, DEEPEST)):
        entry = ResultFolder(folder, verified)
        reference = entry.manifest.suite
        found.setdefault(f"{reference.track} {reference.name} {reference.version:06d}", []).append(entry)
    return [_group(entries) for _, entries in sorted(found.items())]


def _group(entries: Sequence[ResultFolder]) -> SuiteEntries:
    ordered = sorted(entries, key=lambda entry: entry.name)
    first = ordered[0]
    for entry in ordered[1:]:
        name = first.manifest.suite.name
        if entry.manifest.suite.digest != first.manifest.suite.digest:
            raise DataError(f"{entry.path} was played under another definition of {name} than {first.path}")
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise DataError(f"{before.path} and {after.path} are both called {after.name}: leave one out")
    return SuiteEntries(_find_definition(first), ordered)


def _find_definition(entry: ResultFolder) -> Suite:
    """The package's own definition if it is of what was played: descriptions that come with results may say anything."""
    name = entry.manifest.suite.name
    own = load_suite(name) if name in list_suites() else None
    return own if own is not None and own.digest == entry.manifest.suite.digest else entry.suite


def _find_results(place: Path, depth: int) -> Iterator[Path]:
    if not place.is_dir():
        raise DataError(f"{format_path(place)} is not a folder of results")
    yield from sorted(find_below(place, MANIFEST, depth))


# ---- writing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedCell:
    """A cell with its files, as texts."""

    data: CellData
    episodes: str
    selection: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    worlds: str = ""


@dataclass(frozen=True)
class Result:
    """All of an entry's cells."""

    suite: Suite
    entry: EntryRecord
    scenarios: tuple[ScenarioRecord, ...]
    cells: tuple[PackedCell, ...]
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None


def write_result(result: Result, folder: Path) -> Manifest:
    """Write a result into a new folder; it is complete or absent."""
    files = list_files(result)
    manifest = make_manifest(result, {name: bytes_digest(data) for name, data in files.items()})
    with atomic_folder(folder) as place:
        for name, data in files.items():
            write_atomic(place / name, data)
        write_atomic(place / MANIFEST, to_text(manifest))
    return manifest


def list_files(result: Result) -> dict[str, bytes]:
    """Every file but the manifest, by its name in the folder."""
    suite, cells = result.suite, result.cells
    found = {SUITE: to_yaml(suite).encode()}
    for cell in cells:
        key = f"{cell.data.scenario}-seed{cell.data.seed}"
        found[f"{EPISODES}/{key}.jsonl.xz"] = compress(cell.episodes)
        if cell.selection is not None:
            found[f"{SELECTION}/{key}.jsonl.xz"] = compress(cell.selection)
        if cell.worlds:
            found[f"{WORLDS}/{key}.jsonl.xz"] = compress(cell.worlds)
    if suite.track == "agents":
        found[AGENT] = format_settings(result.entry.agent.settings).encode()
    else:
        found[CURVES] = compress(to_text(make_curves([cell.data for cell in cells])))
        found[CLIENTS] = compress(to_text(make_client_table([cell.data for cell in cells])))
        found[CONFIGS] = compress(to_text(make_config_table(cells)))
    return dict(sorted(found.items()))


def make_curves(cells: Sequence[CellData]) -> Curves:
    return Curves(cells=tuple(Curve(scenario=one.scenario, seed=one.seed, points=one.points) for one in cells))


def make_client_table(cells: Sequence[CellData]) -> ClientTable:
    found = (CellClients(scenario=one.scenario, seed=one.seed, clients=one.clients) for one in cells)
    return ClientTable(cells=tuple(found))


def make_config_table(cells: Sequence[PackedCell]) -> ConfigTable:
    found = (CellConfig(scenario=one.data.scenario, seed=one.data.seed, config=dict(one.config)) for one in cells)
    return ConfigTable(cells=tuple(found))


def make_manifest(result: Result, files: Mapping[str, str]) -> Manifest:
    """The manifest of cells whose files have these digests."""
    cells = [cell.data for cell in result.cells]
    overall, by_scenario = aggregate(result.suite, cells)
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    machine = {"system": platform.system(), "machine": platform.machine(), "cores": str(count_usable_cores())}
    return Manifest(
        suite=result.suite.reference,
        entry=result.entry,
        scenarios=result.scenarios,
        seeds=tuple(seed for seed in result.suite.seeds if any(cell.seed == seed for cell in cells)),
        ranked=result.suite.rank_by,
        overall=overall,
        by_scenario=by_scenario,
        cells=tuple(describe_cell(result.suite, cell) for cell in cells),
        files=dict(files),
        made=Made(
            date=now.isoformat(),
            seconds=result.seconds,
            versions=dict(result.versions) or collect_versions(),
            machine=machine,
            revision=result.revision,
        ),
    )
