"""Original data: what there is, how it comes to this machine, and what is found in it.

Every group of data sets (`DATA_SETS` in the registry) is a mapping from names to `DataSet`s. Installed data lies in
`data_folder(NAME)`, and worlds find it by the word `installed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedagentgym.base.errors import DataError, unknown_name_error
from fedagentgym.base.files import data_folder
from fedagentgym.envs.registry import DATA_SETS

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Findings:
    """What a data set holds: its tasks by split, the identity of the data, and what of it is not used.

    `skipped` says of every unusable row where it stands and why, `left_out` how many others were left out for which reason.
    """

    place: Path
    tasks: Counts
    digest: str
    rows: int
    columns: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    left_out: Counts = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """One data set. `use` are the options that play it; `published` the numbers of tasks of each form it is published in.

    `install` takes files or a folder and a configuration, `download` a configuration, `check` both; where a set has no
    configurations they are given None.
    """

    name: str
    about: str
    licence: str
    columns: str
    splits: str
    use: str
    published: tuple[Counts, ...]
    install: Callable[[Path, str | None], Path]
    check: Callable[[Path | None, str | None], Findings]
    download: Callable[[str | None], Path] | None = None

    @property
    def folder(self) -> Path:
        """Where it lies once it is installed."""
        return data_folder(self.name)

    def add(self, source: Path | None, subset: str | None = None) -> Path:
        """Install a copy, or download the set; returns its folder."""
        if self.folder.exists():
            raise DataError(
                f"{self.name} is installed already, in {self.folder}: remove that folder to install it anew"
            )
        if source is not None:
            return self.install(source, subset)
        if self.download is None:
            raise DataError(f"{self.name} cannot be downloaded by itself: name a copy with --from FOLDER")
        return self.download(subset)


def list_data_sets() -> dict[str, DataSet]:
    """Every data set by its name."""
    found: dict[str, DataSet] = {}
    for group in DATA_SETS:
        found.update(DATA_SETS.get(group))
    return dict(sorted(found.items()))


def find_data_set(name: str) -> DataSet:
    """The data set of a name, as people write it."""
    from fedagentgym.base.errors import UnknownNameError
    from fedagentgym.envs.reasoning.sources import find_source

    known = list_data_sets()
    if name.lower() in known:
        return known[name.lower()]
    try:
        return known[find_source(name)]
    except UnknownNameError:
        raise unknown_name_error("data set", name, known) from None
