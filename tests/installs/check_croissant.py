"""Run by `test_bridges_apart.py`: the Croissant metadata of a pushed split, read by the library of MLCommons."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version

import mlcroissant


class Heard(logging.Handler):
    """Keeps what the library says against a file."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main(path: str, rows: int) -> None:
    heard = Heard()
    logging.getLogger().addHandler(heard)
    opened = mlcroissant.Dataset(path)
    about = opened.metadata
    assert about.name == "my-split" and about.url == "https://huggingface.co/datasets/me/my-split", about.name
    assert [one.name for one in about.license] == ["mit"], about.license
    assert not [said for said in heard.said if "not standard" in said or ("Found" in said and "error" in said)], (
        heard.said
    )
    found = list(opened.records("clients"))
    assert len(found) == rows and {type(one["clients/client"]).__name__ for one in found} <= {"int", "int64"}, found[:2]
    sys.stdout.write(f"checked with mlcroissant {version('mlcroissant')}: {heard.said}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
