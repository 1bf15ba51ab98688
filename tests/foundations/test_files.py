"""Files are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import (
    atomic_folder,
    cache_folder,
    data_folder,
    read_json,
    read_jsonl,
    read_text,
    write_atomic,
)


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_text() == "two" and os.listdir(path.parent) == ["file.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DataError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_a_folder_appears_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "round"
    with pytest.raises(ZeroDivisionError), atomic_folder(target) as folder:
        (folder / "part").write_text("x")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    with atomic_folder(target) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "part").write_text("x")
    assert (target / "inner" / "part").read_text() == "x"
    with pytest.raises(DataError, match="exists already"), atomic_folder(target):
        pass


def test_unwritable_places_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "below", Path("/proc/nowhere/file")):
        with pytest.raises(DataError, match="cannot write"):
            write_atomic(path, "x")
    with pytest.raises(DataError, match="cannot write"), atomic_folder(Path("/proc/nowhere/folder")):
        pass


def test_reading_names_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n "a": 1,\n "b" 2}')
    with pytest.raises(DataError, match="line 3"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(DataError):
        read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_text(path)
    with pytest.raises(DataError, match="folder"):
        read_json(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "absent")
    path.write_text('{"a": 1}\n\n{"a": 2}\n{oops}\n')
    rows = read_jsonl(path)
    assert [next(rows), next(rows)] == [(1, {"a": 1}), (3, {"a": 2})]
    with pytest.raises(DataError, match="line 4"):
        next(rows)


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", "/somewhere")
    monkeypatch.delenv("FEDAGENTGYM_DATA", raising=False)
    assert cache_folder("a", "b") == Path("/somewhere/a/b")
    assert data_folder("c") == Path("/somewhere/data/c")
    monkeypatch.setenv("FEDAGENTGYM_DATA", "/elsewhere")
    assert data_folder("c") == Path("/elsewhere/c")
