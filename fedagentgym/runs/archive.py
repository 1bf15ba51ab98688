"""One archive of many runs: a zip whose members are a list of digests, some documents, and a compressed tar for each run.

    digests.json         format; name, size and digest of every document, and of every file of every run, unpacked
    suite.yaml, ...      documents
    RUN.tar.xz           the files of a run, in the order of `RunFolder.publish`

The same content gives the same bytes. Members are stored without compression by the zip, so that a run is found, copied and
unpacked without the others. Others may have written an archive, so it is not trusted: its members and files must be those
of the list, in the same order, with the size and the digest that the list names, and lie in the folder of their run.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedagentgym.base.encoding import bytes_digest
from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.base.files import atomic_file, atomic_folder, format_path, open_plain, unpack_parts
from fedagentgym.base.settings import Settings
from fedagentgym.federation.records import Digest, fits
from fedagentgym.learning.trajectory import Line, read_lines
from fedagentgym.runs.folder import RANKED, RunFolder, find_runs, format_document, parse_document

LIST, TAR = "digests.json", ".tar.xz"
MAX_LIST_BYTES = 1 << 22
"""Maximum size of the list of digests in bytes."""
MAX_RUN_BYTES = 1 << 30
"""Maximum size of an unpacked file in bytes, and of all files of a run."""
_CHUNK = 1 << 16
FileName = Annotated[str, Field(pattern=r"^(?:[a-z]{1,40}/)?[A-Za-z0-9][A-Za-z0-9_.+=-]{0,99}$")]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,119}$")]
Listed = dict[str, Any]
"""A part of the list of digests before it is checked."""


class ListedFile(Settings):
    """A file as it is unpacked."""

    name: FileName
    bytes: int = Field(ge=0, le=MAX_RUN_BYTES)
    digest: Digest


class ListedRun(Settings):
    """A run, with its files in their order."""

    name: RunName
    files: tuple[ListedFile, ...] = Field(fail_fast=True)


class ListedDocument(ListedFile):
    """A document, which is a member of the archive as it is."""

    name: RunName


class Digests(Settings):
    """`digests.json`: documents by name, and runs in their order; no two members, and no two files of a run, share a name."""

    format: Literal[1] = 1
    documents: tuple[ListedDocument, ...] = Field(fail_fast=True)
    runs: tuple[ListedRun, ...] = Field(fail_fast=True)

    @cached_property
    def members(self) -> list[str]:
        """The names of the archive's members in their order."""
        return [LIST, *(one.name for one in self.documents), *(run.name + TAR for run in self.runs)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len(set(self.members)) < len(self.members):
            raise ValueError("a member is named twice")
        if [one.name for one in self.documents] != sorted(one.name for one in self.documents):
            raise ValueError("the documents are not in the order of their names")
        for run in self.runs:
            files = {file.name for file in run.files}
            if len(files) < len(run.files) or any(name.split("/")[0] in files for name in files if "/" in name):
                raise ValueError(f"the run {run.name} has two files, or a file and a folder, of one name")
            if sum(file.bytes for file in run.files) > MAX_RUN_BYTES:
                raise ValueError(f"the run {run.name} has more than the {MAX_RUN_BYTES:,} bytes that are read")
        return self


def is_archive(path: Path) -> bool:
    """True if a path has the name of an archive, whether the file exists or not."""
    return path.suffix == ".zip" and not path.is_dir()


def write_archive(path: Path, documents: Mapping[str, bytes], runs: Iterable[tuple[str, Mapping[str, bytes]]]) -> str:
    """Write a new archive of documents and of the files of each run, by name, and return the digest of its list of digests. The
    archive is complete or absent, and only one run is in memory at a time. A name that cannot be a file's name is refused."""

    def compress() -> Iterator[tuple[Listed, bytes]]:
        for run, files in runs:
            out = BytesIO()
            with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for name, data in files.items():
                    if not fits(FileName, name):
                        raise DataError(f"{run}: an archive cannot hold a file with the name {show_value(name)}")
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(data), 0o644
                    tar.addfile(member, BytesIO(data))
            packed = lzma.compress(out.getvalue(), preset=6 | lzma.PRESET_EXTREME)
            yield {"name": run, "files": [_list(*file) for file in files.items()]}, packed

    return _write(path, documents, compress())


def join_archives(path: Path, documents: Mapping[str, bytes], parts: Sequence[Archive]) -> str:
    """Join several archives into one: the archives are checked, and their runs copied in this order. The bytes are those that
    `write_archive` of the same runs would write."""

    def copy() -> Iterator[tuple[Listed, bytes]]:
        for part in parts:
            part.check()
            for run in part.digests.runs:
                yield run.model_dump(), part.read_member(run.name + TAR)

    return _write(path, documents, copy())


def _list(name: str, data: bytes) -> Listed:
    return {"name": name, "bytes": len(data), "digest": bytes_digest(data)}


def _write(path: Path, documents: Mapping[str, bytes], packed: Iterable[tuple[Listed, bytes]]) -> str:
    """Write the list of digests, the documents, and the packed runs; these are in a temporary file until all are known."""
    if os.path.lexists(path):
        raise DataError(f"cannot create {format_path(path)}: it exists already")
    with atomic_file(path) as file, tempfile.TemporaryFile() as aside:
        listed, sizes = list[Listed](), list[int]()
        for run, data in packed:
            aside.write(data)
            listed.append(run)
            sizes.append(len(data))
        aside.seek(0)
        heads = [_list(*document) for document in sorted(documents.items())]
        try:
            digests = Digests.load({"documents": heads, "runs": listed})
        except OptionError as error:
            raise DataError(f"cannot write {format_path(path)}: {error}") from None
        text = format_document(digests).encode()
        plain = {LIST: text, **documents}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as out:
            for member in digests.members:
                data = plain[member] if member in plain else aside.read(sizes.pop(0))
                about = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
                about.external_attr, about.create_system = 0o100644 << 16, 3
                out.writestr(about, data)
    return bytes_digest(text)


@dataclass(frozen=True)
class Archive:
    """An archive on disk. The parts that are read are checked, and any fault is a `DataError`."""

    path: Path

    @property
    def where(self) -> str:
        return format_path(self.path)

    @cached_property
    def digest(self) -> str:
        """The digest of the list of digests, and so of the whole content."""
        return bytes_digest(self._list)

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs."""
        return tuple(run.name for run in self.digests.runs)

    @cached_property
    def digests(self) -> Digests:
        """The list of digests; the archive holds the members that it names, in its order, and nothing besides."""
        found = parse_document(Digests, self._list, f"{self.where}, {LIST}")
        expected = found.members
        if (names := list(self._members)) != expected:
            wrong = next(
                (name for name in [*names, *expected] if names.count(name) != expected.count(name)), "their order"
            )
            raise DataError(
                f"{self.where}: its members are not those of {LIST}: {wrong[:120]!r} is missing, unknown or wrong"
            )
        return found

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        """The members, stored one after the other from the first byte to the directory at the end, without gaps."""
        with open_plain(self.path) as file, self._one_fault(), zipfile.ZipFile(file) as inside:
            found = {member.filename: member for member in inside.infolist()}
            place = 0
            for member in inside.infolist():
                name = member.orig_filename.encode("ascii")
                usual = (zipfile.ZIP_STORED, 0, 0o100644 << 16, member.file_size, b"", b"", place)
                here = (member.compress_type, member.flag_bits, member.external_attr, member.compress_size)
                if (*here, member.extra, member.comment, member.header_offset) != usual:
                    raise DataError(
                        f"{self.where}: the member {member.filename[:120]!r} is not stored as this package does"
                    )
                file.seek(place)
                head = file.read(30 + len(name))
                if head[26:] != len(name).to_bytes(2, "little") + bytes(2) + name:
                    raise DataError(f"{self.where}: the head of {member.filename[:120]!r} is not that of its directory")
                place += 30 + len(name) + member.file_size
            size = file.seek(0, os.SEEK_END)
            if inside.comment or len(found) < len(inside.infolist()) or place != inside.start_dir:
                raise DataError(f"{self.where}: something besides its members, or a member twice")
            if size != place + sum(46 + len(name.encode()) for name in found) + 22:
                raise DataError(f"{self.where}: something follows the archive, or stands within its directory")
            return found

    @cached_property
    def _list(self) -> bytes:
        if next(iter(self._members), None) != LIST:
            raise DataError(f"{self.where} is no archive of runs: it does not begin with {LIST}")
        if self._members[LIST].file_size > MAX_LIST_BYTES:
            raise DataError(f"{self.where}: {LIST} has more than the {MAX_LIST_BYTES:,} bytes that are read")
        return self.read_member(LIST)

    def read(self, name: str) -> bytes:
        """A document, checked against its digest in the list."""
        listed = next((one for one in self.digests.documents if one.name == name), None)
        if listed is None:
            raise DataError(f"{self.where} holds no {name}")
        if self._members[name].file_size != listed.bytes:
            raise DataError(f"{self.where}: {name} is not of the size that {LIST} names")
        data = self.read_member(name)
        if bytes_digest(data) != listed.digest:
            raise DataError(f"{self.where}: {name} is not the file that {LIST} names")
        return data

    def read_member(self, name: str) -> bytes:
        """The stored bytes of a member."""
        with open_plain(self.path) as file, self._one_fault(), zipfile.ZipFile(file) as inside:
            return inside.read(name)

    @contextlib.contextmanager
    def unpack(self, run: str, only: Collection[str] | None = None) -> Iterator[Path]:
        """A temporary folder with the files of a run, or with those named in `only`; it is removed afterwards. Reading ends with
        the last file that is needed."""
        with tempfile.TemporaryDirectory(prefix="fedagentgym-unpacked-") as folder:
            self._unpack(run, only, partial(_create, Path(folder)))
            yield Path(folder)

    def read_file(self, run: str, name: str, most: int) -> bytes:
        """A file of a run; a file of more than `most` bytes is refused."""
        held = BytesIO()
        sizes = {file.name: file.bytes for one in self.digests.runs if one.name == run for file in one.files}
        if sizes.get(name, 0) > most:
            raise DataError(f"{self.where}, {run}: {name} has more than the {most:,} bytes that are read")
        self._unpack(run, [name], lambda _: contextlib.nullcontext(held))
        return held.getvalue()

    def check(self) -> None:
        """Read the whole archive, and check every document and every file of every run against its digest in the list."""
        for document in self.digests.documents:
            self.read(document.name)
        for run in self.runs:
            with self.unpack(run):
                pass

    def extract(self, run: str, folder: Path) -> None:
        """Write a run into a new folder, all of it or nothing."""
        with atomic_folder(folder) as part:
            self._unpack(run, None, partial(_create, part))

    def _unpack(
        self,
        run: str,
        only: Collection[str] | None,
        create: Callable[[str], contextlib.AbstractContextManager[IO[bytes]]],
    ) -> None:
        """Write the files of a run, or those named in `only`, each to the file object that `create` opens for its name."""
        listed = next((one.files for one in self.digests.runs if one.name == run), None)
        if listed is None:
            raise DataError(f"{self.where} holds no run {run!r}")
        left = {file.name for file in listed} if only is None else set(only)
        if missing := left.difference(file.name for file in listed):
            raise DataError(f"{self.where}, {run} holds no {min(missing)!r}")
        with (
            open_plain(self.path) as file,
            self._one_fault(),
            zipfile.ZipFile(file) as inside,
            inside.open(run + TAR) as member,
        ):
            stream = _Stream(unpack_parts(member, f"{self.where}, {run}{TAR}"))
            for due in listed:
                found = tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "ascii", "strict")
                if found.type != tarfile.REGTYPE or found.name != due.name or found.size != due.bytes:
                    raise DataError(
                        f"{self.where}, {run}: {found.name[:120]!r} of {found.size:,} bytes is there, a plain file {due.name} of"
                        f" {due.bytes:,} belongs there"
                    )
                state, rest = hashlib.sha256(), due.bytes
                with contextlib.ExitStack() as stack:
                    out = stack.enter_context(create(due.name)) if due.name in left else None
                    while rest and (data := stream.read(min(rest, _CHUNK))):
                        rest -= len(data)
                        state.update(data)
                        if out is not None:
                            out.write(data)
                padding = -due.bytes % tarfile.BLOCKSIZE
                digest = f"sha256:{state.hexdigest()}"
                if rest or stream.read(padding) != bytes(padding) or digest != due.digest:
                    raise DataError(f"{self.where}, {run}: {due.name} is not the file that {LIST} names")
                left.discard(due.name)
                if not left and only is not None:
                    return
            blocks = sum(1 + -(-one.bytes // tarfile.BLOCKSIZE) for one in listed) + 2
            filled = -(-blocks * tarfile.BLOCKSIZE // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
            end = filled - (blocks - 2) * tarfile.BLOCKSIZE
            if stream.read(end + 1) != bytes(end):
                raise DataError(
                    f"{self.where}, {run}: something follows the files that {LIST} names, or their end is missing"
                )

    @contextlib.contextmanager
    def _one_fault(self) -> Iterator[None]:
        """Turn a library's error on a damaged archive into a `DataError`."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.where} is damaged, or no archive of runs: {type(error).__name__}") from None


def read_evaluated(place: Path) -> Iterator[Line]:
    """The episodes by which a run is evaluated, or every run of a folder or an archive; or those of a file."""
    if is_archive(place):
        archive = Archive(place)
        for name in archive.runs:
            with archive.unpack(name, [RANKED]) as folder:
                yield from RunFolder(folder).read_evaluated()
    elif place.is_dir():
        runs = find_runs(place)
        if not any(run.find_episodes() for run in runs):
            raise DataError(f"{format_path(place)} is neither a run with evaluated episodes nor a folder of such runs")
        for run in runs:
            yield from run.read_evaluated()
    else:
        yield from read_lines(place)


def _create(folder: Path, name: str) -> IO[bytes]:
    (folder / name).parent.mkdir(exist_ok=True)
    return (folder / name).open("xb")


class _Stream:
    """A reader of bytes over the parts of an unpacked file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._waiting = parts, b""

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end."""
        while len(self._waiting) < size and (part := next(self._parts, None)) is not None:
            self._waiting += part
        found, self._waiting = self._waiting[:size], self._waiting[size:]
        return found
