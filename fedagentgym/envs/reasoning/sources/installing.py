"""Installing the reasoning environments' data sets: published files are checked and copied, or downloaded.

$FEDAGENTGYM_DATA/NAME/installed.json   the digests of the files, and the number of tasks in each split
$FEDAGENTGYM_DATA/NAME/files/...        the files, under their original names and folders
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.files import atomic_folder, data_folder
from fedagentgym.envs.data_sets import DataSet, Findings
from fedagentgym.envs.options import INSTALLED
from fedagentgym.envs.reasoning.sources.catalogue import SOURCES, Source
from fedagentgym.envs.reasoning.sources.loading import (
    FILES,
    RECORD,
    Request,
    check_subset,
    download_parts,
    load,
)
from fedagentgym.envs.reasoning.sources.rows import choose_subset, list_data_files, name_file

WORLDS = {"math": "Math", "qa": "QA", "code": "Code"}


def install_files(name: str, given: Path, subset: str | None = None) -> Path:
    """Check that the data files of a set contain tasks, and copy them to the folder from which its environment reads."""
    given = given.expanduser()
    files = list_data_files(given)
    chosen = check_subset(name, subset)
    if chosen is not None and subset is not None:
        files = choose_subset(given, files, SOURCES[name].subsets, chosen)
    found = load(Request(name, str(given), subset=chosen))
    target = data_folder(name)
    with atomic_folder(target) as fresh:
        for file in files:
            copy = fresh / FILES / name_file(given, file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        _write_record(fresh, found.count_tasks())
    return target


def download_files(name: str, subset: str | None = None) -> Path:
    """Download a set from the hub and store it as JSON lines, one file per split."""
    chosen = check_subset(name, subset)
    parts = download_parts(SOURCES[name].hub, chosen)
    target = data_folder(name)
    with atomic_folder(target) as fresh:
        home = fresh / FILES if chosen is None else fresh / FILES / chosen
        home.mkdir(parents=True)
        for part, table in parts.items():
            lines = (json.dumps(dict(row), default=_drop_value) + "\n" for row in table)
            with (home / f"{part}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(lines)
        found = load(Request(name, str(fresh / FILES), subset=chosen))
        _write_record(fresh, found.count_tasks())
    return target


def _drop_value(value: object) -> None:
    """Replace a value that JSON cannot represent (a picture) by null; no reader uses it."""


def _write_record(home: Path, tasks: Mapping[str, int]) -> None:
    files = sorted(file for file in (home / FILES).rglob("*") if file.is_file())
    digests = {file.relative_to(home / FILES).as_posix(): file_digest(file) for file in files}
    (home / RECORD).write_text(json.dumps({"files": digests, "tasks": dict(tasks)}), encoding="utf-8")


def check_files(name: str, given: Path | None, subset: str | None = None) -> Findings:
    """The content of an installed set, or of files before they are installed."""
    chosen = check_subset(name, subset)
    data = INSTALLED if given is None else str(given)
    found = load(Request(name, data, subset=chosen, bad_rows=1.0))
    # repeated questions count more, or leak the test into training
    places: dict[Any, list[str]] = {}
    for task in found.tasks:
        places.setdefault(task.question, []).append(task.split)
    repeated = sum(len(splits) - 1 for splits in places.values())
    seen = sum("train" in splits and len(set(splits)) > 1 for splits in places.values())
    notes = [f"{repeated:,} tasks repeat another one"] if repeated else []
    notes += [f"{seen:,} training tasks are in another split too"] if seen else []
    return Findings(
        place=data_folder(name) if given is None else given,
        tasks=found.count_tasks(),
        digest=digest(found.source),
        rows=found.rows,
        columns=found.columns,
        skipped=found.bad,
        left_out=found.left_out,
        notes=tuple(notes),
    )


def _describe(name: str, source: Source) -> DataSet:
    """The description of a set of the table, in the form that all data sets share."""
    there = dict.fromkeys(split for counts in source.published for split in counts)
    splits = "test only" if source.test_only else ", ".join(there) or "train"
    if source.hides_answers:
        splits += " (the published test comes without answers)"
    return DataSet(
        name=name,
        about=f"fedagentgym/{WORLDS[source.task]}-v0, {source.hub} on the Hugging Face hub",
        licence=source.licence,
        columns=source.columns,
        splits=splits + (f"; configurations {', '.join(source.subsets)}" if source.subsets else ""),
        use=f"source: {name}, data: installed",
        published=source.published,
        install=partial(install_files, name),
        check=partial(check_files, name),
        download=partial(download_files, name),
    )


DATA_SETS: Mapping[str, DataSet] = {name: _describe(name, source) for name, source in SOURCES.items()}
