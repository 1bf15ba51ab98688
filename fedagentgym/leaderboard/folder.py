"""A result on disk: written atomically, with the same bytes for the same episodes except for date and machine."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedagentgym.base.encoding import bytes_digest
from fedagentgym.base.files import atomic_folder, compress, write_atomic
from fedagentgym.base.process import count_usable_cores
from fedagentgym.experiment.run import collect_versions
from fedagentgym.leaderboard.aggregate import CellData, aggregate, describe_cell
from fedagentgym.leaderboard.record import (
    AGENT,
    CLIENTS,
    CONFIGS,
    CURVES,
    EPISODES,
    MANIFEST,
    SELECTION,
    SUITE,
    CellClients,
    ClientTable,
    Curve,
    Curves,
    EntryRecord,
    Made,
    Manifest,
    ScenarioRecord,
    to_text,
)
from fedagentgym.leaderboard.suite import Suite, to_yaml


@dataclass(frozen=True)
class PackedCell:
    """A cell with its files, as texts."""

    data: CellData
    episodes: str
    selection: str | None = None
    config: str | None = None


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
        found[f"{EPISODES}/{key}.jsonl.gz"] = compress(cell.episodes)
        if cell.selection is not None:
            found[f"{SELECTION}/{key}.jsonl.gz"] = compress(cell.selection)
        if cell.config is not None:
            found[f"{CONFIGS}/{key}.yaml"] = cell.config.encode()
    if suite.track == "agents":
        found[AGENT] = format_settings(result.entry.agent.settings).encode()
    else:
        found[CURVES] = to_text(make_curves([cell.data for cell in cells])).encode()
        found[CLIENTS] = to_text(make_client_table([cell.data for cell in cells])).encode()
    return dict(sorted(found.items()))


def format_settings(plain: Mapping[str, Any]) -> str:
    """Settings as a YAML file."""
    text: str = yaml.safe_dump(dict(plain), sort_keys=True, allow_unicode=True)
    return text


def make_curves(cells: Sequence[CellData]) -> Curves:
    return Curves(cells=tuple(Curve(scenario=one.scenario, seed=one.seed, points=one.points) for one in cells))


def make_client_table(cells: Sequence[CellData]) -> ClientTable:
    return ClientTable(
        cells=tuple(CellClients(scenario=one.scenario, seed=one.seed, clients=one.clients) for one in cells)
    )


def make_manifest(result: Result, files: Mapping[str, str]) -> Manifest:
    """The manifest of cells whose files have these digests."""
    cells = [cell.data for cell in result.cells]
    overall, by_scenario = aggregate(result.suite, cells)
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
        made=describe_making(result),
    )


def describe_making(result: Result) -> Made:
    """Date, machine and versions."""
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    machine = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": str(count_usable_cores()),
    }
    return Made(
        date=now.isoformat(),
        seconds=result.seconds,
        versions=dict(result.versions) or collect_versions(),
        machine=machine,
        revision=result.revision,
    )
