"""Original data sets: which exist, how they are installed, and what they contain.

Every group of data sets (`DATA_SETS` in the registry) is a mapping from names to `DataSet`s. Installed data is stored in
`data_folder(NAME)`, and environments load it with the option value `installed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedagentgym.base.errors import DataError, UnknownNameError, unknown_name_error
from fedagentgym.base.files import data_folder
from fedagentgym.envs.registry import DATA_SETS

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Findings:
    """The content of a data set: its tasks by split, the digest of the data, and the rows that are not used.

    `skipped` gives the place of every unusable row and the reason; `left_out` counts other unused rows by reason.
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
    """One data set. `use` names the options that play it; `published` holds the number of tasks by split for each published form.

    `install` and `check` take a path (a file or a folder) and a configuration, `download` takes a configuration only. For a data
    set without configurations, the configuration is None.
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
    origin: str = ""
    """The page from which users fetch the files of a data set that cannot be downloaded automatically."""

    @property
    def folder(self) -> Path:
        """The folder of the installed data set."""
        return data_folder(self.name)

    def add(self, source: Path | None, subset: str | None = None) -> Path:
        """Install a local copy, or download the data set without one; return its folder."""
        if self.folder.exists():
            raise DataError(
                f"{self.name} is installed already, in {self.folder}: remove that folder to install it again"
            )
        if source is not None:
            return self.install(source, subset)
        if self.download is None:
            where = f"fetch {self.columns} from {self.origin}, then " if self.origin else ""
            raise DataError(f"{self.name} cannot be downloaded automatically: {where}name the copy with --from FOLDER")
        return self.download(subset)


def list_data_sets() -> dict[str, DataSet]:
    """Every data set by its name."""
    found: dict[str, DataSet] = {}
    for group in DATA_SETS:
        found.update(DATA_SETS.get(group))
    return dict(sorted(found.items()))


def find_data_set(name: str) -> DataSet:
    """The data set with this name; case and separators are ignored."""
    from fedagentgym.envs.reasoning.sources import find_source

    known = list_data_sets()
    if name.lower() in known:
        return known[name.lower()]
    try:
        return known[find_source(name)]
    except UnknownNameError:
        raise unknown_name_error("data set", name, known) from None
