"""What the repository of a client split on the Hugging Face Hub holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import fedagentgym
from fedagentgym.base.errors import OptionError
from fedagentgym.partitions import client_split as client_split_module
from fedagentgym.partitions import repository, split_files
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.repository import CONTEXT, describe_split, write_repository


@pytest.fixture(scope="module")
def split() -> ClientSplit:
    return fedagentgym.federate("fedagentgym/Guess-v0", clients=3, tasks_per_client=8)


def test_the_metadata_has_the_form_of_croissant(split: ClientSplit, tmp_path: Path) -> None:
    """As the specification asks for; `tests/installs/check_croissant.py` reads it with its library."""
    pytest.importorskip("pyarrow")
    folder = tmp_path / "out"
    write_repository(split.save(tmp_path / "mine.v2.json"), split.record, split, folder, "me/my-split", "cc-by-4.0")
    found = json.loads((folder / "croissant.json").read_text())
    assert found["@context"] == CONTEXT and found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert found["name"] == "my-split" and found["url"] == "https://huggingface.co/datasets/me/my-split"
    assert (
        found["license"] == {"@type": "sc:CreativeWork", "name": "cc-by-4.0"} and split.digest in found["description"]
    )
    assert [file["name"] for file in found["distribution"]] == ["split.json", "clients.parquet"]
    for file in found["distribution"]:
        assert file["sha256"] == hashlib.sha256((folder / file["contentUrl"]).read_bytes()).hexdigest()
        assert file["@id"] == file["name"] and "/" in file["encodingFormat"]
    (rows,) = found["recordSet"]
    assert [(field["name"], field["dataType"]) for field in rows["field"]] == [
        ("client", "sc:Integer"),
        ("task", "sc:Text"),
    ]
    assert all(field["source"]["fileObject"]["@id"] == "clients.parquet" for field in rows["field"])


def test_a_split_whose_tasks_are_not_here_has_no_table(split: ClientSplit, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_repository(split.save(tmp_path / "mine.zip"), split.record, None, folder, "me/my-split", "mit")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "croissant.json",
        "fedagentgym.json",
        "split.zip",
    ]
    assert "recordSet" not in describe_split(split.record, folder / "split.zip", "me/my-split", "mit")
    assert split_files.load(split_files.find_in(folder)).digest == split.digest


def test_a_split_pushes_what_the_command_pushes(
    split: ClientSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[Any] = []

    def push(folder: Path, kind: str, name: str, *, private: bool) -> str:
        pushed.append((kind, name, private, sorted(path.name for path in folder.iterdir())))
        assert split_files.load(split_files.find_in(folder)).digest == split.digest
        return f"https://hub.test/{name}"

    monkeypatch.setattr(client_split_module, "push_folder", push)
    assert split.push_to_hub("me/clinics", private=True, licence="mit") == "https://hub.test/me/clinics"
    monkeypatch.setattr(split_files, "MAX_JSON_ASSIGNMENTS", 3)
    split.push_to_hub("me/clinics")
    assert [one[:3] for one in pushed] == [("dataset", "me/clinics", True), ("dataset", "me/clinics", False)]
    assert "split.json" in pushed[0][3] and "split.zip" in pushed[1][3]
    for wrong in ({"name": "clinics"}, {"name": "me/clinics", "licence": "My Own"}, {"name": 3}):
        with pytest.raises(OptionError):
            split.push_to_hub(**wrong)  # type: ignore[arg-type]
    assert len(pushed) == 2 and repository.CLIENTS == "clients.parquet"
