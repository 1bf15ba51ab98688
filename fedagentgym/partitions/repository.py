"""A client split as a repository of the Hugging Face Hub: its file, a card, a table of clients and tasks, Croissant metadata."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from zipfile import is_zipfile

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import MissingExtraError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.hub import write_head
from fedagentgym.base.rounding import count_things
from fedagentgym.base.tables import write_rows
from fedagentgym.partitions import split_files
from fedagentgym.partitions.record import SplitRecord
from fedagentgym.version import __version__

FIGURE, CLIENTS, CROISSANT = "split.png", "clients.parquet", "croissant.json"
"""The files of a repository with its figure, its table of clients and tasks (which the Hub's viewer shows) and its metadata."""


class Holder(Protocol):
    """A client's number and the ids of its tasks."""

    @property
    def index(self) -> int: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...


class OpenedSplit(Protocol):
    """A split whose pool is open, such as a `ClientSplit`."""

    def __iter__(self) -> Iterator[Holder]: ...
    def plot(self, path: str | Path | None = None) -> Any: ...


def write_repository(
    path: Path, record: SplitRecord, opened: OpenedSplit | None, folder: Path, name: str, licence: str
) -> None:
    """Write the stored split, its card and its metadata to a new folder. A figure is added if the opened split is given and
    matplotlib is installed, a table if the opened split is given and pyarrow is installed."""
    folder.mkdir()
    if path.is_dir():
        stored = folder / "split.zip"
        split_files.pack(path, stored)
    else:
        stored = Path(shutil.copyfile(path, folder / ("split.zip" if is_zipfile(path) else "split.json")))
    (folder / split_files.NOTE).write_text(json.dumps({"split": stored.name, "version": __version__}) + "\n", "utf-8")
    if opened is not None:
        with suppress(MissingExtraError):
            opened.plot(folder / FIGURE)
        with suppress(MissingExtraError):
            rows = [{"client": client.index, "task": task} for client in opened for task in client.tasks]
            write_rows(rows, folder / CLIENTS)
    (folder / "README.md").write_text(write_card(record, folder, name, licence), "utf-8")
    described = describe_split(record, stored, name, licence)
    (folder / CROISSANT).write_text(json.dumps(described, indent=2) + "\n", "utf-8")


def write_card(record: SplitRecord, folder: Path, name: str, licence: str) -> str:
    """The text of the card. It shows the figure and the table if `folder` holds them."""
    shown = {"default": CLIENTS} if (folder / CLIENTS).exists() else {}
    head = write_head(licence, ("federated-learning",), int(record.clients.items.size), shown)
    parameters = ", ".join(f"{key} {value}" for key, value in record.parameters.items()) or "no parameters"
    rows = {
        "environment": record.env_id,
        "split of the environment": record.env_split,
        "clients": f"{len(record):,}",
        "sampler": f"{record.sampler} ({parameters})",
        "seed": record.seed,
        "digest of the split": record.digest,
        "digest of the pool": record.pool_digest,
    }
    return "\n".join(
        [
            head,
            f"# {escape_markdown(name)}\n",
            "The tasks of each client of a federation. The file holds ids only: the environment makes or loads the tasks.\n",
            "| | |\n|---|---|",
            *(f"| {key} | {escape_markdown(str(value))} |" for key, value in rows.items()),
            f"\n![Tasks of the clients]({FIGURE})\n" if (folder / FIGURE).exists() else "",
            f'```python\nimport fedagentgym\n\nclient_split = fedagentgym.load_client_split("{name}")\n'
            "env = client_split[0].make()\n```\n",
        ]
    )


CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "conformsTo": "dct:conformsTo",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes"  # noqa: SIM905
        " isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator"
        " source subField transform".split()
    },
}
"""The JSON-LD context that the specification of Croissant 1.0 requires."""
TYPES = {".json": "application/json", ".zip": "application/zip", ".parquet": "application/x-parquet"}


def describe_split(record: SplitRecord, stored: Path, name: str, licence: str) -> dict[str, Any]:
    """The Croissant metadata of a repository: its files and the columns of its table, in the vocabulary of MLCommons."""
    table = stored.with_name(CLIENTS)
    described = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name.rpartition("/")[2],
        "description": f"A division of tasks of {record.env_id} among {count_things(len(record), 'client')} by {record.sampler}."
        f" Digest of the split: {record.digest}.",
        "license": {"@type": "sc:CreativeWork", "name": licence},
        "url": f"https://huggingface.co/datasets/{name}",
        "version": "1.0.0",
        "distribution": [_describe_file(file) for file in (stored, table) if file.exists()],
    }
    if "date" in record.provenance:
        described["dateCreated"] = str(record.provenance["date"])
    if table.exists():
        columns = (
            ("client", "sc:Integer", "Number of the client, from 0 on."),
            ("task", "sc:Text", "Id of a task that the client holds."),
        )
        described["recordSet"] = [
            {
                "@type": "cr:RecordSet",
                "@id": "clients",
                "name": "clients",
                "description": "One row for each task of each client.",
                "field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"clients/{column}",
                        "name": column,
                        "description": about,
                        "dataType": kind,
                        "source": {"fileObject": {"@id": CLIENTS}, "extract": {"column": column}},
                    }
                    for column, kind, about in columns
                ],
            }
        ]
    return described


def _describe_file(file: Path) -> dict[str, str]:
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "encodingFormat": TYPES[file.suffix],
        "sha256": file_digest(file).removeprefix("sha256:"),
    }
