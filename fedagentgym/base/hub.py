"""Pushing a folder to the Hugging Face Hub and pulling it. Only a push, a pull or a download opens a connection.

The library `huggingface_hub` sets no limits: it waits as long as a server sends something or asks it to wait, and unpacks all
that it receives. Here each answer has a maximum size and a minimum speed, and each call of a pull or push has a time limit.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from fedagentgym.base.errors import DataError, OptionError, describe_error, show_value
from fedagentgym.base.files import atomic_folder
from fedagentgym.base.imports import require
from fedagentgym.base.peers import PeerError

T = TypeVar("T")
Kind = Literal["dataset", "model"]
HUB_NAME = re.compile(r"\A\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The name of a repository on the hub: OWNER/NAME."""
MAX_FILES = 5_000
"""Maximum number of files in a repository that is pulled."""
MAX_BYTES: dict[Kind, int] = {"dataset": 4 << 30, "model": 64 << 30}
"""Maximum size of the files that are pulled."""
MAX_ANSWER_BYTES = 1 << 26
"""Maximum size of an answer about a repository."""
ASKING_SECONDS, TRANSFER_SECONDS, IDLE_SECONDS = 120.0, 6 * 3600.0, 60.0
"""The time limits of a request about a repository, of a transfer, and of a pause within an answer."""
SLOWEST = 4096
"""The minimum speed of an answer in bytes a second; it is allowed the time of one pause in addition."""
SLOWEST_PUSH = 1 << 16
"""The speed, in bytes a second, from which the additional time of a push follows."""
TAKEN = frozenset(
    f".{suffix}"
    for suffix in "csv gz html jinja json jsonl md npy npz parquet png safetensors txt yaml zip".split()  # noqa: SIM905
)
"""Suffixes of files that are pulled: data and text, no pickles and no programs."""


LICENCE = "apache-2.0"
"""The default licence of generated tasks and of data made from them, which is the licence of this package."""
_LICENCE = re.compile(r"[a-z0-9]+([.+-][a-z0-9]+)*")
_SIZES = (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6), ("1M<n<10M", 10**7))


def write_head(licence: str, tags: Sequence[str], rows: int, configs: Mapping[str, str]) -> str:
    """The metadata of a data set's card, as the hub reads it. `configs` maps names to files, which have `rows` rows in all."""
    import yaml

    size = next((name for name, most in _SIZES if rows < most), "10M<n<100M")
    head = {"tags": ["fedagentgym", *tags], "license": licence, "size_categories": [size]}
    listed = [{"config_name": name, "data_files": [{"split": "test", "path": file}]} for name, file in configs.items()]
    return f"---\n{yaml.safe_dump({**head, 'configs': listed} if listed else head, sort_keys=False)}---\n"


def check_licence(name: str, setting: str = "--license") -> str:
    """Check the form of the hub's name of a licence, and return the name; no request is sent to the hub."""
    if not _LICENCE.fullmatch(name):
        raise OptionError(
            f"{setting} is the hub's name of a licence, such as {LICENCE}, mit or other, got {show_value(name)}"
        )
    return name


def check_hub_name(name: str) -> str:
    """Return the name of a repository if it has the form OWNER/NAME; otherwise raise an `OptionError`."""
    if not HUB_NAME.fullmatch(name) or ".." in name:
        raise OptionError(f"a repository of the hub is named OWNER/NAME, got {show_value(name)}")
    return name


def push_folder(folder: Path, kind: Kind, name: str, *, private: bool = False) -> str:
    """Create the repository if needed, replace its files by those of this folder in one commit, and return its address. The time
    limit is that of a pull, plus the time that the bytes need at `SLOWEST_PUSH`."""
    check_hub_name(name)
    files = [(file.relative_to(folder).as_posix(), file) for file in sorted(folder.rglob("*")) if file.is_file()]
    refused = [path for path, _ in files if not _is_taken(path)]
    if refused:
        raise DataError(
            f"{folder}: {refused[0]} cannot be pushed (only LICENSE and visible files with the suffixes"
            f" {', '.join(sorted(TAKEN))} can be)"
        )
    with open_hub(f"cannot push to {name}") as hub:
        api = hub.HfApi()
        call_within(ASKING_SECONDS, lambda: api.create_repo(name, repo_type=kind, private=private, exist_ok=True))
        added = [hub.CommitOperationAdd(path, file) for path, file in files]
        kept = {path for path, _ in files}
        there = call_within(ASKING_SECONDS, lambda: api.list_repo_files(name, repo_type=kind))
        old = [path for path in there if path not in kept and path != ".gitattributes"]
        changes = [*added, *(hub.CommitOperationDelete(path) for path in old)]
        about = {"repo_type": kind, "commit_message": "Push by fedagentgym"}
        seconds = TRANSFER_SECONDS + sum(file.stat().st_size for _, file in files) / SLOWEST_PUSH
        done = call_within(seconds, lambda: api.create_commit(name, changes, **about))
        return str(done.repo_url)


def pull_folder(name: str, folder: Path, check: Callable[[Path], object], *, revision: str | None = None) -> Kind:
    """Write the files of a repository into a new folder if they pass `check`, otherwise write nothing; return the kind."""
    check_hub_name(name)
    with atomic_folder(folder) as made, tempfile.TemporaryDirectory(prefix="fedagentgym-hub-") as cache:
        with open_hub(f"cannot pull {name}") as hub:
            kind: Kind
            api, missing = hub.HfApi(), require("huggingface_hub.errors", "train").RepositoryNotFoundError
            asked = {"revision": revision, "files_metadata": True}
            try:
                kind, about = "dataset", call_within(ASKING_SECONDS, lambda: api.dataset_info(name, **asked))
            except missing:
                kind, about = "model", call_within(ASKING_SECONDS, lambda: api.model_info(name, **asked))
            sizes = {file.rfilename: file.size or 0 for file in about.siblings or () if _is_taken(file.rfilename)}
            if not sizes or len(sizes) > MAX_FILES:
                raise DataError(
                    f"{name} holds {len(sizes):,} files that can be pulled: 1 to {MAX_FILES:,} are expected"
                )
            check_sizes(name, kind, sizes)

            for path in sizes:
                (made / path).parent.mkdir(parents=True, exist_ok=True)

            def fetch() -> None:  # makes no folder, so that it fails soon if it is given up and `made` is removed
                for path in sizes:
                    got = hub.hf_hub_download(name, path, repo_type=kind, revision=about.sha, cache_dir=cache)
                    sizes[path] = Path(shutil.copyfile(got, made / path)).stat().st_size
                    check_sizes(name, kind, sizes)

            call_within(TRANSFER_SECONDS, fetch)
        check(made)
    return kind


def check_sizes(name: str, kind: Kind, sizes: dict[str, int]) -> None:
    """Refuse a repository that is larger than a pull may be."""
    if sum(sizes.values()) > MAX_BYTES[kind]:
        raise DataError(f"{name} holds more than {MAX_BYTES[kind]:,} bytes, the most that is pulled of a {kind}")


def _is_taken(path: str) -> bool:
    """True if a file has a suffix that is pulled, and its path stays inside the folder."""
    parts = PurePosixPath(path).parts
    inside = bool(parts) and not path.startswith("/") and all(part not in ("..", ".") for part in parts)
    return inside and (PurePosixPath(path).suffix in TAKEN or parts[-1] == "LICENSE") and not parts[-1].startswith(".")


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """Return the value of a call or raise its error; raise a `PeerError` if it takes longer than `seconds`. Such a call continues
    in a background thread, since a running function cannot be stopped."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise PeerError(f"no end within {seconds:g} s")
    return found[0]


@contextmanager
def open_hub(failure: str) -> Iterator[Any]:
    """Yield `huggingface_hub` with limits on its answers; errors in the block become a `DataError` that begins with `failure`."""
    hub = require("huggingface_hub", "train")
    settings = require("huggingface_hub.utils", "train")
    shown = not settings.are_progress_bars_disabled()
    settings.disable_progress_bars()
    verbosity = settings.logging.get_verbosity()
    settings.logging.set_verbosity_error()
    try:
        with limit_answers():
            yield hub
    except PeerError as error:
        raise DataError(f"{failure}: {error}") from None
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{failure}: {' '.join(describe_error(error).split())}") from error
    finally:
        if shown:
            settings.enable_progress_bars()
        settings.logging.set_verbosity(verbosity)


@contextmanager
def limit_answers() -> Iterator[None]:
    """Bound the size and the speed of every answer that the library reads, also for libraries that use it. Compressed answers
    are refused, so that the size is the number of bytes sent."""
    hub = require("huggingface_hub", "train")
    library = require("huggingface_hub.utils._http", "train")  # the factory in use has no public name
    usual = library._GLOBAL_CLIENT_FACTORY

    def make_limited() -> Any:
        client = usual()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks.get("response", []), _limit_answer]}
        client.timeout = IDLE_SECONDS
        client.headers["Accept-Encoding"] = "identity"
        return client

    hub.set_client_factory(make_limited)
    try:
        yield
    finally:
        hub.set_client_factory(usual)


def _limit_answer(answer: Any) -> None:
    """Make the body of an answer of the library's client raise a `PeerError` when it is too long or too slow."""
    coding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise PeerError(f"an answer is compressed by {show_value(coding)}, which was not asked for")
    body = answer.stream
    most = MAX_ANSWER_BYTES if "/api/" in answer.url.path else max(MAX_BYTES.values())
    stream: Any = next(base for base in type(body).__mro__ if base.__name__ == "SyncByteStream")

    class Limited(stream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            received, begun = 0, time.monotonic()
            for part in body:
                received += len(part)
                if received > most:
                    raise PeerError(f"an answer is longer than the {most:,} bytes that are read")
                if time.monotonic() - begun > IDLE_SECONDS + received / SLOWEST:
                    raise PeerError(f"an answer comes at less than {SLOWEST:,} bytes a second")
                yield part

        def close(self) -> None:
            body.close()

    answer.stream = Limited()
