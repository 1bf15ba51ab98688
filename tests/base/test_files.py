"""Files are whole or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import (
    atomic_file,
    atomic_folder,
    cache_folder,
    data_folder,
    get_name,
    locate_replaced,
    lock_file,
    parse_json,
    read_json,
    read_json_line_texts,
    read_jsonl,
    read_text,
    stamp_file,
    write_atomic,
)


def test_a_stamp_changes_with_the_contents_even_if_the_time_is_set_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    before, times = stamp_file(path), path.stat()
    time.sleep(0.02)  # more than the resolution of the file system's clock
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert stamp_file(path)[:2] == before[:2] and stamp_file(path) != before


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


def test_only_plain_files_are_written_over(tmp_path: Path) -> None:
    """As root, a rename over /dev/null would replace the device for all users."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "device").symlink_to("/dev/null")
    before = Path("/dev/null").stat()
    for path, what in (
        (tmp_path / "pipe", "pipe"),
        (tmp_path / "link", "link"),
        (tmp_path / "dangling", "link"),
        (tmp_path / "device", "link"),
        (Path("/dev/null"), "device"),
        (Path("/dev/full"), "device"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(DataError, match=f"it is a {what}.*a plain file is expected"):
            write_atomic(path, "x")
    assert Path("/dev/null").stat().st_rdev == before.st_rdev
    assert (tmp_path / "precious").read_text() == "kept" and not list(tmp_path.glob(".*"))
    for name in ("pipe", "link", "dangling"):
        with pytest.raises(DataError, match="exists already"), atomic_folder(tmp_path / name):
            pass


IMPOSSIBLE = ["a\0b", "x" * 300, "\ud800", "/".join(["y" * 200] * 40), "\x1b[2J\0", "a\nb\0", "é" * 200]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_are_one_sentence(tmp_path: Path, name: str) -> None:
    def fill() -> None:
        with atomic_folder(tmp_path / name):
            pass

    for use in (lambda: write_atomic(tmp_path / name, "x"), fill, lambda: read_json(tmp_path / name)):
        with pytest.raises(DataError, match=r"^cannot (write|read)") as caught:
            use()
        assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    with pytest.raises(DataError):
        list(read_jsonl(tmp_path / name))
    assert not list(tmp_path.glob("**/.*"))


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "." * 250, "a b\nc", "-rf", "[red]"])
def test_unusual_names_that_can_be_are_written(tmp_path: Path, name: str) -> None:
    write_atomic(tmp_path / name, "x")
    assert read_text(tmp_path / name) == "x" and os.listdir(tmp_path) == [name]


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/tty")):
        for read in (read_text, read_json, lambda path: list(read_jsonl(path))):
            with pytest.raises(DataError, match="cannot read"):
                read(path)
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 42)
    for read in (read_text, read_json):
        with pytest.raises(DataError, match="at most"):
            read(tmp_path / "holes")
    with pytest.raises(DataError, match="line 1: longer than"):
        list(read_jsonl(tmp_path / "holes"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 5000, "not usable JSON"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' stands twice"),
        ("[NaN]", "NaN is no finite number"),
        ("[-Infinity]", "no finite number"),
        ("1e999", "1e999 is no finite number"),
        ('{"a":' * 50_000, "nested"),
    ],
)
def test_json_that_two_readers_would_read_differently(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_json(tmp_path / "x.json")
    assert len(str(caught.value)) < 600
    with pytest.raises(DataError, match="line 1"):
        list(read_jsonl(tmp_path / "x.json"))


def fail_with(number: int, calls: list[object], only: int | None = None) -> Callable[..., None]:
    def fail(file: int, *rest: object) -> None:
        calls.append(file)
        if only is None or stat.S_IFMT(os.fstat(file).st_mode) == only:
            raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_syncs_no_folders_holds_files(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(os, "fsync", fail_with(number, calls, stat.S_IFDIR))
    write_atomic(tmp_path / "file", "text")
    with atomic_folder(tmp_path / "folder") as made:
        (made / "one").write_text("1")
    assert (tmp_path / "file").read_text() == "text" and (tmp_path / "folder/one").read_text() == "1"
    assert len(calls) == 5


def test_other_failures_to_sync_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO, [], stat.S_IFDIR))
    with pytest.raises(DataError, match="Input/output error"):
        write_atomic(tmp_path / "file", "text")
    monkeypatch.setattr(os, "fsync", fail_with(errno.EINVAL, [], stat.S_IFREG))
    with pytest.raises(DataError, match="Invalid argument"):
        write_atomic(tmp_path / "file", "text")


def test_a_lock_is_held_by_one_and_absent_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert lock_file(first) is True and lock_file(second) is False
    with (tmp_path / "lock").open("w") as file:
        for number in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            monkeypatch.setattr(fcntl, "flock", lambda file, how, number=number: fail_with(number, [])(file.fileno()))
            assert lock_file(file) is None
        monkeypatch.setattr(fcntl, "flock", lambda file, how: fail_with(errno.EIO, [])(file.fileno()))
        with pytest.raises(OSError, match="Input/output"):
            lock_file(file)


@pytest.mark.parametrize("text", ['"\\ud83d"', '{"\\uDE00": 1}', '["a", ["\\udfff\\ud800"]]', '"\ud83d"'])
def test_half_of_a_character_is_no_value(text: str) -> None:
    with pytest.raises(DataError, match=r"a file: not usable JSON: a text holds half of a character"):
        parse_json(text, "a file")


def test_a_whole_character_in_two_halves_is_read() -> None:
    assert parse_json('"\\ud83d\\ude00 \\\\ud83d"', "a file") == "\N{GRINNING FACE} \\ud83d"
    with pytest.raises(DataError, match="not UTF-8 text"):
        parse_json(b'"\xed\xa0\xbd"', "a file")


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16", "UTF-16-LE", "UTF-16-BE", "UTF-32", "UTF-32-LE"])
def test_the_message_about_a_broken_text_names_its_encoding(encoding: str) -> None:
    text = '["a", "ü"]'.encode(encoding)
    assert parse_json(text, "a file") == ["a", "ü"]
    broken = text[:-1] if "-8" not in encoding else text.replace(b"\xc3", b"\xff")
    with pytest.raises(DataError, match=f"a file: not valid JSON: not {encoding[:6].rstrip('-')} text"):
        parse_json(broken, "a file")


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-BE", "UTF-32", "latin-1"])
def test_lines_have_one_meaning(encoding: str, tmp_path: Path) -> None:
    """A line whose text is kept is UTF-8, also where JSON can be recognised in another encoding."""
    file = tmp_path / "lines.jsonl"
    file.write_bytes('{"a": "ü"}\n'.encode(encoding))
    with pytest.raises(DataError, match=r"line 1: not valid JSON") as refused:
        list(read_json_line_texts(file))
    assert "\n" not in str(refused.value)


def test_an_error_of_the_writer_is_not_one_of_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seven"), atomic_file(tmp_path / "file"):
        raise ValueError("seven")
    assert not list(tmp_path.iterdir())


def test_the_folder_in_which_one_is_has_a_name_and_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "outer" / "inner")
    assert [get_name(Path(one)) for one in (".", "..", "../inner", "new")] == ["inner", "outer", "inner", "new"]
    assert locate_replaced(Path("new")) == tmp_path / "outer" / "inner" / "new"
    assert locate_replaced(Path("../new")) == tmp_path / "outer" / "new"
    for one in (".", "..", "../inner", str(tmp_path)):
        with pytest.raises(OptionError, match="cannot be replaced, since you are in it"):
            locate_replaced(Path(one))
