"""Installed data sets: the published files, copied once to where the option value `installed` finds them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import data_folder, read_json, stamp_file

INSTALLED = "installed"
RECORD = "installed.json"
FILES = "files"
"""The record of a set and the folder with its files, inside the set's own."""
Stamps = tuple[tuple[str, tuple[int, int, int]], ...]


def find_installed(name: str) -> Path:
    """The files of an installed set, which are still those that were installed."""
    home = data_folder(name)
    record = home / RECORD
    if not record.is_file():
        raise DataError(
            f"the data set {name} is not installed: `fedagentgym data add {name}` downloads it,"
            f" `fedagentgym data add {name} --from FILE_OR_FOLDER` installs a copy"
        )
    _check_files(home, stamp_file(record), _stamp_files(home / FILES))
    return home / FILES


def _stamp_files(folder: Path) -> Stamps:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return tuple((file.relative_to(folder).as_posix(), stamp_file(file)) for file in files)


@lru_cache(maxsize=32)
def _check_files(home: Path, written: tuple[int, int, int], stamps: Stamps) -> None:
    """Raise unless the files are those of the record; checked again when one of them changes."""
    expected = read_record(home)
    found = {name: file_digest(home / FILES / name) for name, _ in stamps}
    changed = sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name))
    if changed:
        raise DataError(
            f"{home / FILES / changed[0]} is not the file that was installed: remove {home} and install the set again"
        )


def read_record(home: Path) -> Mapping[str, str]:
    """The digests of the files that were installed, by their paths."""
    record = read_json(home / RECORD)
    files = record.get("files") if isinstance(record, dict) else None
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise DataError(
            f"{home / RECORD} is not the record of an installed data set: remove {home} and install it again"
        )
    return files
