"""The Hugging Face Hub: a folder as a repository. Only what is called a push, a pull or a download opens a connection."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fedagentgym.base.errors import DataError, OptionError, describe_error, show_value
from fedagentgym.base.files import atomic_folder
from fedagentgym.base.imports import require

Kind = Literal["dataset", "model"]
HUB_NAME = re.compile(r"\A\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""An owner and a name, as the hub has it."""
MOST_FILES = 5_000
"""Maximum number of files in a repository that is pulled."""
MOST_BYTES: dict[Kind, int] = {"dataset": 4 << 30, "model": 64 << 30}
"""Maximum size of the files that are pulled."""
TAKEN = frozenset(
    f".{suffix}"
    for suffix in "csv gz html jinja json jsonl md npy npz parquet png safetensors txt yaml zip".split()  # noqa: SIM905
)
"""Suffixes of files that are pulled: data and text, no pickles and no programs."""


def check_hub_name(name: str) -> str:
    """The name of a repository."""
    if not HUB_NAME.fullmatch(name) or ".." in name:
        raise OptionError(f"a repository of the hub is named OWNER/NAME, got {show_value(name)}")
    return name


def push_folder(folder: Path, kind: Kind, name: str, *, private: bool = False) -> str:
    """Make the repository if it is not there and let it hold this folder's files, in one commit; returns its address."""
    check_hub_name(name)
    files = [(file.relative_to(folder).as_posix(), file) for file in sorted(folder.rglob("*")) if file.is_file()]
    refused = [path for path, _ in files if not _is_taken(path)]
    if refused:
        raise DataError(f"{folder}: {refused[0]} is of no kind that is pushed: {', '.join(sorted(TAKEN))}")
    with open_hub(f"cannot push to {name}") as hub:
        api = hub.HfApi()
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        added = [hub.CommitOperationAdd(path, file) for path, file in files]
        kept = {path for path, _ in files}
        old = [
            path for path in api.list_repo_files(name, repo_type=kind) if path not in kept and path != ".gitattributes"
        ]
        changes = [*added, *(hub.CommitOperationDelete(path) for path in old)]
        done = api.create_commit(name, changes, repo_type=kind, commit_message="Push by fedagentgym")
        return str(done.repo_url)


def pull_folder(name: str, folder: Path, check: Callable[[Path], object], *, revision: str | None = None) -> Kind:
    """Write the files of a repository into a new folder, if they pass the check; all of it or nothing."""
    check_hub_name(name)
    with atomic_folder(folder) as made, tempfile.TemporaryDirectory(prefix="fedagentgym-hub-") as cache:
        with open_hub(f"cannot pull {name}") as hub:
            kind: Kind
            api, missing = hub.HfApi(), require("huggingface_hub.errors", "train").RepositoryNotFoundError
            try:
                kind, about = "dataset", api.dataset_info(name, revision=revision, files_metadata=True)
            except missing:
                kind, about = "model", api.model_info(name, revision=revision, files_metadata=True)
            sizes = {file.rfilename: file.size or 0 for file in about.siblings or () if _is_taken(file.rfilename)}
            if not sizes or len(sizes) > MOST_FILES:
                raise DataError(f"{name} holds {len(sizes):,} files that are pulled, of 1 to {MOST_FILES:,}")
            _check_size(name, kind, sizes)
            for path in sizes:
                got = hub.hf_hub_download(name, path, repo_type=kind, revision=about.sha, cache_dir=cache)
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                sizes[path] = Path(shutil.copyfile(got, made / path)).stat().st_size
                _check_size(name, kind, sizes)
        check(made)
    return kind


def _check_size(name: str, kind: Kind, sizes: dict[str, int]) -> None:
    if sum(sizes.values()) > MOST_BYTES[kind]:
        raise DataError(f"{name} holds more than {MOST_BYTES[kind]:,} bytes, the most that is pulled of a {kind}")


def _is_taken(path: str) -> bool:
    """Return whether a file is data, and its path stays inside the folder."""
    parts = PurePosixPath(path).parts
    inside = bool(parts) and not path.startswith("/") and all(part not in ("..", ".") for part in parts)
    return inside and (PurePosixPath(path).suffix in TAKEN or parts[-1] == "LICENSE") and not parts[-1].startswith(".")


@contextmanager
def open_hub(failure: str) -> Iterator[Any]:
    """The library; whatever it raises is one sentence."""
    hub = require("huggingface_hub", "train")
    settings = require("huggingface_hub.utils", "train")
    settings.disable_progress_bars()
    verbosity = settings.logging.get_verbosity()
    settings.logging.set_verbosity_error()
    try:
        yield hub
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{failure}: {' '.join(describe_error(error).split())}") from error
    finally:
        settings.enable_progress_bars()
        settings.logging.set_verbosity(verbosity)
