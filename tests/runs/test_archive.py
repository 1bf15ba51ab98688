"""An archive is the same bytes for the same content, gives back what was written, and is refused in one sentence otherwise."""

from __future__ import annotations

import io
import json
import lzma
import os
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedagentgym.base import files as base_files
from fedagentgym.base.encoding import bytes_digest, canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.runs.archive import LIST, TAR, Archive, is_archive, join_archives, write_archive

Files = dict[str, bytes]
Content = tuple[Files, dict[str, Files]]

RUN = "uniform-seed0"
DOCUMENTS: Files = {"suite.yaml": b"name: tiny\n", "entry.json": b'{"name":"fedavg"}\n'}
RUNS: dict[str, Files] = {
    RUN: {
        "result.json": b'{"reached":0.5}\n',
        "config.yaml": b"seed: 0\n",
        "evaluation/ranked.jsonl": bytes(range(256)) * 5,
        "evaluation/0003.jsonl": b"",
    },
    "skewed-seed10": {"config.yaml": b"seed: 10\n" * 60},
}


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@cache
def pack_once() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder, "a.zip"), DOCUMENTS, RUNS.items())
        return Path(folder, "a.zip").read_bytes()


def read_files(folder: Path) -> Files:
    found = sorted(file for file in folder.rglob("*") if not file.is_dir())
    assert not any(file.is_symlink() for file in found)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def read_all(path: Path) -> Content:
    """Everything that an archive holds, through all that reads it."""
    archive = Archive(path)
    documents = {one.name: archive.read(one.name) for one in archive.digests.documents}
    runs = {}
    for run in archive.runs:
        with archive.unpack(run) as folder:
            runs[run] = read_files(folder)
    return documents, runs


# ---- what is written is read ------------------------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path, temp: Path) -> None:
    path = tmp_path / "below" / "a.zip"
    digest = write_archive(path, DOCUMENTS, RUNS.items())
    assert read_all(path) == (DOCUMENTS, RUNS)
    archive = Archive(path)
    archive.check()
    assert archive.digest == digest
    assert archive.runs == tuple(RUNS)
    archive.extract(RUN, tmp_path / "run")
    assert read_files(tmp_path / "run") == RUNS[RUN]
    assert [each.name for each in path.parent.iterdir()] == ["a.zip"]
    assert not list(temp.iterdir())
    assert path.stat().st_mode & 0o777 == 0o644


def test_other_programs_read_it(tmp_path: Path) -> None:
    data = pack_once()
    with zipfile.ZipFile(io.BytesIO(data)) as inside:
        assert inside.testzip() is None
        members = inside.infolist()
        assert [one.filename for one in members] == [LIST, "entry.json", "suite.yaml", *(run + TAR for run in RUNS)]
        for one in members:
            assert (one.compress_type, one.date_time, one.extra) == (zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0), b"")
            assert one.external_attr == 0o100644 << 16
        listed = inside.read(LIST)
        packed = inside.read(RUN + TAR)
    assert bytes_digest(listed) == write_archive(tmp_path / "a.zip", DOCUMENTS, RUNS.items())
    assert json.loads(listed)["format"] == 1
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as tar:
        found = tar.getmembers()
        assert [one.name for one in found] == list(RUNS[RUN])
        assert all((one.isreg(), one.mode, one.mtime, one.uid, one.uname) == (True, 0o644, 0, 0, "") for one in found)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    turned = {name: DOCUMENTS[name] for name in reversed(DOCUMENTS)}
    digest = write_archive(tmp_path / "b.zip", turned, iter(RUNS.items()))
    assert (tmp_path / "b.zip").read_bytes() == pack_once()
    other = {**RUNS, RUN: {**RUNS[RUN], "result.json": b"{}\n"}}
    assert write_archive(tmp_path / "c.zip", DOCUMENTS, other.items()) != digest


def test_joined_archives_have_the_bytes_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for number, (run, files) in enumerate(RUNS.items()):
        write_archive(tmp_path / f"{number}.zip", DOCUMENTS, [(run, files)])
        parts.append(Archive(tmp_path / f"{number}.zip"))
    with monkeypatch.context() as patch:
        patch.setattr(lzma, "compress", None)
        patch.setattr(lzma, "LZMACompressor", None)
        digest = join_archives(tmp_path / "a.zip", DOCUMENTS, parts)
    assert (tmp_path / "a.zip").read_bytes() == pack_once()
    assert digest == Archive(tmp_path / "a.zip").digest
    with refused(tmp_path):
        join_archives(tmp_path / "b.zip", DOCUMENTS, [parts[0], *parts])


def test_runs_are_taken_one_after_the_other(tmp_path: Path) -> None:
    """A run is packed and written before the next one is made."""
    held = list[str]()

    class Held(dict[str, bytes]):
        def __init__(self, run: str) -> None:
            super().__init__({"config.yaml": run.encode()})
            held.append(run)

        def __del__(self) -> None:
            held.pop()

    def make() -> Iterator[tuple[str, Files]]:
        for number in range(3):
            yield f"run-seed{number}", Held(f"run-seed{number}")
            assert len(held) <= 1

    write_archive(tmp_path / "a.zip", {}, make())
    assert Archive(tmp_path / "a.zip").runs == ("run-seed0", "run-seed1", "run-seed2")


def test_reading_stops_after_the_last_file_that_is_asked_for(tmp_path: Path) -> None:
    damaged = tar_of(("config.yaml", b"seed: 0\n"), ("result.json", b"{}\n"))
    head = lzma.compress(damaged[:1024])[:-20]  # the block is cut behind the first file
    listed = [list_file("config.yaml", b"seed: 0\n"), list_file("result.json", b"{}\n")]
    path = tmp_path / "a.zip"
    path.write_bytes(forge(packed=head, files=listed))
    with Archive(path).unpack(RUN, ["config.yaml"]) as folder:
        assert read_files(folder) == {"config.yaml": b"seed: 0\n"}
    for only in (["result.json"], None):
        with refused(tmp_path), Archive(path).unpack(RUN, only):
            pass


@pytest.mark.parametrize("only", [["evaluation/0003.jsonl"], ["evaluation/ranked.jsonl", "result.json"], []])
def test_only_some_files_are_unpacked(only: list[str], tmp_path: Path, temp: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(pack_once())
    with Archive(path).unpack(RUN, only) as folder:
        assert read_files(folder) == {name: RUNS[RUN][name] for name in only}
    assert not list(temp.iterdir())


def test_a_file_is_read_as_it_is_unpacked(tmp_path: Path, temp: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(pack_once())
    for run, files in RUNS.items():
        for name, content in files.items():
            assert Archive(path).read_file(run, name, len(content)) == content
            if content:
                with pytest.raises(DataError, match="more than the"):
                    Archive(path).read_file(run, name, len(content) - 1)
        with refused(tmp_path):
            Archive(path).read_file(run, "no.json", 100)
    assert not list(temp.iterdir())


def test_an_error_in_the_block_is_not_taken_for_one_of_the_archive(tmp_path: Path, temp: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(pack_once())
    with pytest.raises(OSError, match="mine"), Archive(path).unpack(RUN):
        raise OSError("mine")
    assert not list(temp.iterdir())


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_parts_of_any_size_give_the_same(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpacker gives parts of no bytes while it reads what has no content."""
    monkeypatch.setattr(base_files, "CHUNK", chunk)
    (tmp_path / "a.zip").write_bytes(pack_once())
    assert read_all(tmp_path / "a.zip") == (DOCUMENTS, RUNS)


def test_what_an_archive_is_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    (tmp_path / "b.zip").mkdir()
    assert is_archive(tmp_path / "a.zip")
    assert not is_archive(tmp_path / "b.zip")
    assert not is_archive(tmp_path / "a.json")


# ---- what cannot be written -------------------------------------------------------------------------------------------


class refused:
    """Expects one error of this package, of one line, that leaves nothing behind in the folder or that of temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        self.before = sorted(self.folder.rglob("*"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        assert kind is not None, "nothing was refused"
        if not issubclass(kind, DataError):
            return False
        assert len(str(error).splitlines()) == 1, str(error)
        assert str(error).isprintable(), str(error)
        assert len(str(error)) < 1000
        assert sorted(self.folder.rglob("*")) == self.before
        return True


ODD_NAMES = {
    "empty": "",
    "above": "../evil",
    "absolute": "/evil",
    "hidden": ".evil",
    "two folders": "a/b/c",
    "long": "a" * 121,
    "line": "evil\n",
    "blank": "e vil",
    "letters": "évil",
    "zero": "evil\0",
    "backslash": "a\\b",
}


@pytest.mark.parametrize("odd", ODD_NAMES)
@pytest.mark.parametrize("what", ["document", "run", "file"])
def test_unusual_names_are_not_written(what: str, odd: str, tmp_path: Path) -> None:
    name = ODD_NAMES[odd]
    documents = {name: b""} if what == "document" else {}
    run = name if what == "run" else RUN
    file = name if what == "file" else "config.yaml"
    with refused(tmp_path):
        write_archive(tmp_path / "a.zip", documents, [(run, {file: b""})])


def test_a_file_name_that_a_tar_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot hold a file with the name 'fff"):
        write_archive(tmp_path / "a.zip", {}, [(RUN, {"f" * 101: b""})])


WRITES: dict[str, Callable[[Path], object]] = {
    "a run twice": lambda path: write_archive(path, {}, [(RUN, {"a": b""}), (RUN, {"a": b""})]),
    "a file and a folder of one name": lambda path: write_archive(path, {}, [(RUN, {"a": b"", "a/b": b""})]),
    "a document called as the list": lambda path: write_archive(path, {LIST: b""}, [(RUN, {"a": b""})]),
    "a document called as a run": lambda path: write_archive(path, {RUN + TAR: b""}, [(RUN, {"a": b""})]),
    "a document in a folder": lambda path: write_archive(path, {"a/b": b""}, [(RUN, {"a": b""})]),
    "below a file": lambda path: write_archive(path.parent / "file" / "a.zip", {}, [(RUN, {"a": b""})]),
    "over a file": lambda path: write_archive(path.parent / "file", {}, [(RUN, {"a": b""})]),
    "over a folder": lambda path: write_archive(path.parent / "temp", {}, [(RUN, {"a": b""})]),
    "over a link to nothing": lambda path: write_archive(path.parent / "link", {}, [(RUN, {"a": b""})]),
    "name that no file can have": lambda path: write_archive(path / "a\0", {}, [(RUN, {"a": b""})]),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("nowhere")
    with refused(tmp_path):
        WRITES[name](tmp_path / "a.zip")
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_fault_between_two_runs_leaves_nothing(tmp_path: Path) -> None:
    def make() -> Iterator[tuple[str, Files]]:
        yield RUN, RUNS[RUN]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "a.zip", DOCUMENTS, make())
    assert read_files(tmp_path) == {}


def test_the_longest_names_are_written_and_read(tmp_path: Path) -> None:
    """A name that the writer takes is one that the reader takes."""
    run, file = "r" * 120, "e" * 40 + "/" + "f" * 100
    write_archive(tmp_path / "a.zip", {"d" * 100: b"1"}, [(run, {file: b"2"})])
    assert read_all(tmp_path / "a.zip") == ({"d" * 100: b"1"}, {run: {file: b"2"}})


# ---- forged archives --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A member of a zip, in which everything may be stated wrongly."""

    name: bytes
    data: bytes
    local_name: bytes | None = None
    size: int | None = None
    method: int = 0
    flags: int = 0
    mode: int = 0o100644
    local_extra: bytes = b""
    extra: bytes = b""
    comment: bytes = b""
    crc: int | None = None
    offset: int | None = None
    before: bytes = b""


def zip_of(
    members: Sequence[Member], *, start: bytes = b"", end: bytes = b"", comment: bytes = b"", turned: bool = False
) -> bytes:
    out, directory = bytearray(start), []
    for one in members:
        out += one.before
        offset = len(out) if one.offset is None else one.offset
        size = len(one.data) if one.size is None else one.size
        crc = zlib.crc32(one.data) if one.crc is None else one.crc
        common = (one.flags, one.method, 0, 33, crc, size, size)
        local = one.name if one.local_name is None else one.local_name
        out += struct.pack("<4s5H3L2H", b"PK\3\4", 20, *common, len(local), len(one.local_extra))
        out += local + one.local_extra + one.data
        sizes = (len(one.name), len(one.extra), len(one.comment))
        head = struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20 | 3 << 8, 20, *common, *sizes, 0, 0, (one.mode & 0xFFFF) << 16, offset
        )
        directory.append(head + one.name + one.extra + one.comment)
    listed = b"".join(reversed(directory) if turned else directory)
    count = len(directory)
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(listed), len(out), len(comment))
    return bytes(out) + listed + tail + comment + end


Entry = tuple[str | tarfile.TarInfo, bytes]


def tar_of(*entries: Entry, form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for about, data in entries:
            if isinstance(about, str):
                about = tarfile.TarInfo(about)
                about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> Entry:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = kind, target
    return about, b""


def list_file(name: str, data: bytes, **other: object) -> dict[str, Any]:
    return {"name": name, "bytes": len(data), "digest": bytes_digest(data), **other}


ONE = b"seed: 0\n"
FILES: Sequence[Entry] = [("config.yaml", ONE), ("evaluation/ranked.jsonl", b"{}\n")]
LISTED = [list_file(str(name), data) for name, data in FILES]
SUITE = Member(b"suite.yaml", DOCUMENTS["suite.yaml"])
PACKED = lzma.compress(tar_of(*FILES), preset=0)


def list_of(**other: object) -> dict[str, Any]:
    documents = [list_file("suite.yaml", SUITE.data)]
    return {"format": 1, "documents": documents, "runs": [{"name": RUN, "files": LISTED}], **other}


def to_bytes(plain: object) -> bytes:
    return canonical_json(plain).encode() + b"\n"


def forge(
    *,
    listed: bytes | None = None,
    files: list[dict[str, Any]] | None = None,
    packed: bytes | None = None,
    tar: bytes | None = None,
    edit: Callable[[list[Member]], list[Member]] = lambda members: members,
    **zipped: Any,
) -> bytes:
    """An archive of one run and one document that is whole except for what is given."""
    if listed is None:
        listed = to_bytes(list_of() if files is None else list_of(runs=[{"name": RUN, "files": files}]))
    if packed is None:
        packed = PACKED if tar is None else lzma.compress(tar, preset=0)
    members = [Member(LIST.encode(), listed), SUITE, Member(f"{RUN}{TAR}".encode(), packed)]
    return zip_of(edit(members), **zipped)


def change(place: int, **given: Any) -> bytes:
    """An archive with one member changed."""
    return forge(edit=lambda whole: [replace(one, **given) if at == place else one for at, one in enumerate(whole)])


def swap(whole: list[Member], *order: int) -> list[Member]:
    return [whole[place] for place in order]


def add(name: bytes, data: bytes = b"x") -> bytes:
    return forge(edit=lambda whole: [*whole, Member(name, data)])


def only_file(name: str) -> bytes:
    """A run of one file of this name, in the list and in the tar."""
    return forge(tar=tar_of((name, ONE)), files=[list_file(name, ONE)])


def expand(first: bytes) -> bytes:
    """An xz stream of three gigabytes of zeros behind a first part: a block that is repeated, without an end."""

    def cut(data: bytes) -> bytes:
        packed = lzma.compress(data, check=lzma.CHECK_CRC32, preset=0)
        index = (int.from_bytes(packed[-8:-4], "little") + 1) * 4
        return packed[12 : -12 - index]

    return lzma.compress(b"", check=lzma.CHECK_CRC32, preset=0)[:12] + cut(first) + cut(bytes(1 << 24)) * 200


def broken_tar(place: int, value: bytes) -> bytes:
    data = bytearray(tar_of(*FILES))
    data[place : place + len(value)] = value
    return bytes(data)


def long_tar() -> bytes:
    about = tarfile.TarInfo("config.yaml")
    about.size, about.pax_headers = len(ONE), {"path": "../evil"}
    return tar_of((about, ONE), FILES[1], form=tarfile.PAX_FORMAT)


def lies(size: int) -> bytes:
    """A tar whose first header states another size than the list."""
    about = tarfile.TarInfo("config.yaml")
    about.size = size
    return about.tobuf(tarfile.USTAR_FORMAT) + tar_of(*FILES)[512:]


BIG = 1 << 30
HUNGRY = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
DEEP = b'{"documents":' + b"[" * 50_000 + b"]" * 50_000 + b',"format":1,"runs":[]}\n'
KEY_TWICE = to_bytes(list_of()).replace(b'"format":1,', b'"format":1,"format":1,')
CONFIG, RANKED = FILES
PLACE = f"{RUN}{TAR}".encode()

HOSTILE: dict[str, Callable[[], bytes]] = {
    # the zip
    "empty": lambda: b"",
    "no zip": lambda: b"result " * 100,
    "an empty zip": lambda: zip_of([]),
    "bytes before": lambda: forge(start=b"#!/bin/sh\n"),
    "bytes behind": lambda: forge(end=b"\0"),
    "a comment": lambda: forge(comment=b"hello"),
    "two archives": lambda: forge() + forge(),
    "bytes between members": lambda: change(1, before=b"gap"),
    "bytes before the directory": lambda: change(2, size=len(PACKED) - 1),
    "a member that is longer than the file": lambda: change(2, size=len(PACKED) + 1),
    "a member of four gigabytes": lambda: change(2, size=0xFFFFFFFE),
    "a list of four gigabytes": lambda: change(0, size=0xFFFFFFFE),
    "members that overlap": lambda: change(2, offset=0),
    "a member twice": lambda: forge(edit=lambda whole: [*whole, whole[2]]),
    "a member twice in one place": lambda: forge(edit=lambda whole: [*whole, replace(whole[2], data=b"", offset=0)]),
    "deflated": lambda: change(1, method=8),
    "an unknown method": lambda: change(1, method=99),
    "encrypted": lambda: change(1, flags=1),
    "a descriptor behind the data": lambda: change(1, flags=8),
    "an extra field": lambda: change(1, extra=b"\1\0\0\0"),
    "an extra field in front of the data": lambda: change(1, local_extra=b"\1\0\0\0"),
    "a zip64 field": lambda: change(2, extra=struct.pack("<2H", 1, 4) + bytes(4), size=0xFFFFFFFF),
    "a comment at a member": lambda: change(1, comment=b"hello"),
    "two names of a member": lambda: change(1, local_name=b"SUITE.yaml"),
    "a link in the zip": lambda: change(1, mode=0o120777),
    "another checksum": lambda: change(1, crc=1),
    "another checksum of a run": lambda: change(2, crc=1),
    "another checksum of the list": lambda: change(0, crc=1),
    "above the folder, in the zip": lambda: add(b"../evil"),
    "absolute, in the zip": lambda: add(b"/tmp/evil"),
    "a zero in a name": lambda: change(1, name=b"suite.yaml\0.exe"),
    "no ASCII": lambda: add(b"\xff\xfe"),
    "half a letter": lambda: forge(edit=lambda whole: [*whole, Member(b"\xff", b"", flags=0x800)]),
    "a member too many": lambda: add(b"readme.txt"),
    "a run too many": lambda: add(b"other-seed0.tar.xz", PACKED),
    "a document is missing": lambda: forge(edit=lambda whole: swap(whole, 0, 2)),
    "a run is missing": lambda: forge(edit=lambda whole: swap(whole, 0, 1)),
    "no list": lambda: forge(edit=lambda whole: swap(whole, 1, 2)),
    "the list is not first": lambda: forge(edit=lambda whole: swap(whole, 1, 0, 2)),
    "a run before the document": lambda: forge(edit=lambda whole: swap(whole, 0, 2, 1)),
    "a turned directory": lambda: forge(turned=True),
    "sixty thousand members": lambda: forge(
        edit=lambda whole: [*whole, *(Member(b"%d" % n, b"") for n in range(60_000))]
    ),
    # the list
    "no JSON": lambda: forge(listed=b"{"),
    "no text": lambda: forge(listed=b'"\xff"'),
    "no mapping": lambda: forge(listed=b"[]\n"),
    "a number that is none": lambda: forge(listed=to_bytes(list_of()).replace(b'"format":1', b'"format":NaN')),
    "deep": lambda: forge(listed=DEEP),
    "a key twice": lambda: forge(listed=KEY_TWICE),
    "larger than a list may be": lambda: forge(listed=to_bytes(list_of()) + b" " * (1 << 22)),
    "another layout": lambda: forge(listed=json.dumps(list_of(), indent=1).encode()),
    "no newline": lambda: forge(listed=to_bytes(list_of())[:-1]),
    "a newer format": lambda: forge(listed=to_bytes(list_of(format=2))),
    "a newer format of another kind": lambda: forge(listed=to_bytes({"format": 3})),
    "a format of thousands of digits": lambda: forge(listed=b'{"format":' + b"9" * 4000 + b"}\n"),
    "no format": lambda: forge(listed=to_bytes({"documents": [], "runs": []})),
    "a format that is true": lambda: forge(listed=to_bytes(list_of(format=True))),
    "a format that is a text": lambda: forge(listed=to_bytes(list_of(format="1"))),
    "an older format": lambda: forge(listed=to_bytes(list_of(format=0))),
    "a key too many": lambda: forge(listed=to_bytes(list_of(more=1))),
    "a name that is a control character": lambda: forge(listed=to_bytes(list_of(**{"a\nb\x1b": 1}))),
    "a negative size": lambda: forge(files=[{**LISTED[0], "bytes": -1}, LISTED[1]]),
    "half a byte": lambda: forge(files=[{**LISTED[0], "bytes": 8.0}, LISTED[1]]),
    "a size that is true": lambda: forge(files=[{**LISTED[0], "bytes": True}, LISTED[1]]),
    "a file larger than a run may be": lambda: forge(files=[{**LISTED[0], "bytes": BIG + 1}, LISTED[1]]),
    "a run larger than it may be": lambda: forge(files=[{**LISTED[0], "bytes": BIG}, LISTED[1]]),
    "no digest": lambda: forge(files=[{**LISTED[0], "digest": "sha256:0"}, LISTED[1]]),
    "a run twice": lambda: forge(listed=to_bytes(list_of(runs=[{"name": RUN, "files": LISTED}] * 2))),
    "a file twice": lambda: forge(tar=tar_of(CONFIG, CONFIG), files=[LISTED[0]] * 2),
    "a document twice": lambda: forge(
        listed=to_bytes(list_of(documents=[list_file("suite.yaml", SUITE.data)] * 2)),
        edit=lambda whole: swap(whole, 0, 1, 1, 2),
    ),
    "documents that are not sorted": lambda: forge(
        listed=to_bytes(list_of(documents=[list_file("suite.yaml", SUITE.data), list_file("entry.json", ONE)])),
        edit=lambda whole: [whole[0], whole[1], Member(b"entry.json", ONE), whole[2]],
    ),
    "a document called as the list": lambda: forge(
        listed=to_bytes(list_of(documents=[list_file(LIST, ONE)])), edit=lambda whole: [whole[0], whole[0], whole[2]]
    ),
    "a document in a folder": lambda: forge(
        listed=to_bytes(list_of(documents=[list_file("a/b", ONE)])),
        edit=lambda whole: [whole[0], Member(b"a/b", ONE), whole[2]],
    ),
    "a run above the folder": lambda: forge(
        listed=to_bytes(list_of(runs=[{"name": "../evil", "files": LISTED}])),
        edit=lambda whole: [*whole[:2], replace(whole[2], name=b"../evil.tar.xz")],
    ),
    "millions of lists": lambda: forge(listed=b'{"documents":[' + b"[]," * 1_300_000 + b'[]],"format":1,"runs":[]}\n'),
    "millions of wrong files": lambda: forge(files=[{}] * 1_300_000),
    # names of files, which the list and the tar agree on
    "above the folder": lambda: only_file("../evil"),
    "above a folder": lambda: only_file("a/../../evil"),
    "absolute": lambda: only_file("/tmp/evil"),
    "itself": lambda: only_file("."),
    "two folders": lambda: only_file("a/b/c"),
    "a name that ends in a line": lambda: only_file("evil\n"),
    "a name with a backslash": lambda: only_file("..\\evil"),
    "a file that is also a folder": lambda: forge(
        tar=tar_of(("a", ONE), ("a/b", ONE)), files=[list_file("a", ONE), list_file("a/b", ONE)]
    ),
    "a folder that is also a file": lambda: forge(
        tar=tar_of(("a/b", ONE), ("a", ONE)), files=[list_file("a/b", ONE), list_file("a", ONE)]
    ),
    # the content
    "another document": lambda: change(1, data=b"name: ting\n"),
    "a shorter document": lambda: change(1, data=b"name\n"),
    "a longer document": lambda: change(1, data=SUITE.data + b"\n"),
    "another file": lambda: forge(tar=tar_of(("config.yaml", b"seed: 1\n"), RANKED)),
    "a shorter file": lambda: forge(tar=tar_of(("config.yaml", ONE[:-1]), RANKED)),
    "a longer file": lambda: forge(tar=tar_of(("config.yaml", ONE + b"\n"), RANKED)),
    "a file is missing": lambda: forge(tar=tar_of(CONFIG)),
    "the first file is missing": lambda: forge(tar=tar_of(RANKED)),
    "all files are missing": lambda: forge(tar=tar_of()),
    "a file too many": lambda: forge(tar=tar_of(*FILES, ("evil", b""))),
    "a file above the folder too many": lambda: forge(tar=tar_of(*FILES, ("../evil", ONE))),
    "the wrong order": lambda: forge(tar=tar_of(RANKED, CONFIG)),
    "the same file twice": lambda: forge(tar=tar_of(CONFIG, *FILES)),
    # the tar
    "a path in the tar": lambda: forge(tar=tar_of(("../config.yaml", ONE), RANKED)),
    "an absolute path in the tar": lambda: forge(tar=tar_of(("/config.yaml", ONE), RANKED)),
    "a link": lambda: forge(tar=tar_of(special("config.yaml", tarfile.SYMTYPE, "/etc/passwd"), RANKED)),
    "a link instead of a folder": lambda: forge(tar=tar_of(special("evaluation", tarfile.SYMTYPE, "/tmp"), *FILES)),
    "a hard link": lambda: forge(tar=tar_of(special("config.yaml", tarfile.LNKTYPE, "/etc/passwd"), RANKED)),
    "a device": lambda: forge(tar=tar_of(special("config.yaml", tarfile.CHRTYPE), RANKED)),
    "a disk": lambda: forge(tar=tar_of(special("config.yaml", tarfile.BLKTYPE), RANKED)),
    "a pipe": lambda: forge(tar=tar_of(special("config.yaml", tarfile.FIFOTYPE), RANKED)),
    "a folder": lambda: forge(tar=tar_of(special("config.yaml", tarfile.DIRTYPE), RANKED)),
    "an empty link": lambda: forge(
        tar=tar_of(special("config.yaml", tarfile.SYMTYPE, "/etc/passwd")), files=[list_file("config.yaml", b"")]
    ),
    "an empty pipe": lambda: forge(
        tar=tar_of(special("config.yaml", tarfile.FIFOTYPE)), files=[list_file("config.yaml", b"")]
    ),
    "another name in a further header": lambda: forge(tar=long_tar()),
    "a long name": lambda: forge(tar=tar_of(("e" * 300, ONE), RANKED, form=tarfile.GNU_FORMAT)),
    "a sparse file": lambda: forge(tar=broken_tar(156, b"S")),
    "a wrong checksum": lambda: forge(tar=broken_tar(148, b"0000000")),
    "a size of gigabytes": lambda: forge(tar=lies(1 << 32)),
    "a size beyond octal digits": lambda: forge(tar=broken_tar(124, b"\x80" + b"\xff" * 11)),
    "a negative size in the tar": lambda: forge(tar=broken_tar(124, b"\xff" * 12)),
    "no number as size": lambda: forge(tar=broken_tar(124, b"zzzzzzzzzzz\0")),
    "something between files": lambda: forge(tar=broken_tar(512 + len(ONE), b"evil")),
    "something behind the files": lambda: forge(tar=tar_of(*FILES)[:2048] + b"evil".ljust(8192, b"\0")),
    "something behind the tar": lambda: forge(tar=tar_of(*FILES) + b"evil"),
    "zeros behind the tar": lambda: forge(tar=tar_of(*FILES) + bytes(512)),
    "a tar without its end": lambda: forge(tar=tar_of(*FILES)[:2048]),
    "half a header": lambda: forge(tar=tar_of(*FILES)[:1200]),
    "half a file": lambda: forge(tar=tar_of(*FILES)[:515]),
    "no tar": lambda: forge(tar=b"config.yaml"),
    # the compression
    "no xz": lambda: forge(packed=tar_of(*FILES)),
    "nothing": lambda: forge(packed=b""),
    "another compression": lambda: forge(packed=lzma.compress(tar_of(*FILES), format=lzma.FORMAT_ALONE)),
    "cut short": lambda: forge(packed=PACKED[:-1]),
    "something behind it": lambda: forge(packed=PACKED + b"evil"),
    "zeros behind it": lambda: forge(packed=PACKED + bytes(4)),
    "two streams": lambda: forge(packed=PACKED + PACKED),
    "asks for 512 MiB": lambda: forge(packed=lzma.compress(tar_of(*FILES), filters=HUNGRY)),
    "three gigabytes of zeros": lambda: forge(packed=expand(b"")),
    "three gigabytes in a file": lambda: forge(packed=expand(lies(1 << 31)[:512])),
    "three gigabytes behind the files": lambda: forge(packed=expand(tar_of(*FILES))),
    "a gigabyte that is listed": lambda: forge(
        tar=lies(1 << 20)[:600], files=[{**LISTED[0], "bytes": BIG - 3}, LISTED[1]]
    ),
}


def test_what_was_forged_rightly_is_read(tmp_path: Path) -> None:
    """All the forged archives below differ from one that is read."""
    (tmp_path / "a.zip").write_bytes(forge())
    Archive(tmp_path / "a.zip").check()
    written = {str(name): data for name, data in FILES}
    assert read_all(tmp_path / "a.zip") == ({"suite.yaml": SUITE.data}, {RUN: written})
    write_archive(tmp_path / "b.zip", {"suite.yaml": SUITE.data}, [(RUN, written)])
    whole = (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "b.zip") as inside:
        assert forge(packed=inside.read(RUN + TAR)) == whole


SECONDS = ("millions of lists", "sixty thousand members")
"""Forgeries that take seconds to read; by day "millions of wrong files" stands for them."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SECONDS else name for name in HOSTILE]
)
def test_a_forged_archive_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(HOSTILE[name]())
    with refused(tmp_path):
        read_all(path)
    with refused(tmp_path):
        Archive(path).check()
    with refused(tmp_path):
        join_archives(tmp_path / "b.zip", {}, [Archive(path)])


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(HOSTILE["a newer format"]())
    with pytest.raises(DataError, match=r"a\.zip.* format 2, .*install a newer"):
        Archive(tmp_path / "a.zip").check()


def test_what_is_asked_for_and_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(pack_once())
    archive = Archive(path)
    for name in ("missing.json", LIST, RUN + TAR, "../a.zip", ""):
        with refused(tmp_path):
            archive.read(name)
    for only in (None, ["config.yaml"]):
        with refused(tmp_path), archive.unpack("missing-seed0\n", only):
            pass
    with refused(tmp_path), archive.unpack(RUN, ["config.yaml", "missing.jsonl"]):
        pass
    with refused(tmp_path):
        archive.extract("missing-seed0", tmp_path / "run")
    (tmp_path / "run").mkdir()
    with refused(tmp_path):
        archive.extract(RUN, tmp_path / "run")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing", "odd"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = {"device": Path("/dev/zero"), "odd": tmp_path / "\0.zip"}.get(kind, tmp_path / "a.zip")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with refused(tmp_path):
        read_all(path)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    data = pack_once()
    path = tmp_path / "a.zip"
    cuts = {len(data) * part // 100 for part in range(100)} | set(range(0, len(data), 100))
    for cut in sorted(cuts | {len(data) - 1}):
        path.write_bytes(data[:cut])
        with refused(tmp_path):
            read_all(path)


FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FLIPS)
def test_flipped_bytes_are_refused_or_harmless(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    data = bytearray(pack_once())
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    try:
        found = read_all(path)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert found == (DOCUMENTS, RUNS)
        assert Archive(path).digest == bytes_digest(to_bytes(json.loads(zipfile.ZipFile(path).read(LIST))))
    assert sorted(tmp_path.rglob("*")) == [path, tmp_path / "temp"]
