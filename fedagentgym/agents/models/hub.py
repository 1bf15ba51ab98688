"""Models of the hub: exactly the files of one commit that a causal language model needs, downloaded into a folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError, describe_error
from fedagentgym.base.extras import require

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = re.compile(r"[^/]+\.(json|safetensors|model|txt|jinja)|LICEN[CS]E[^/]*|README\.md")


class HubFiles(NamedTuple):
    """The fetched model: its commit, and the licence on the model's page."""

    commit: str
    licence: str | None


def fetch_from_hub(hub_id: str, folder: Path, revision: str | None = None) -> HubFiles:
    """Download a model into a folder; files of an earlier attempt are not fetched again."""
    hub = require("huggingface_hub", "train")
    logging = require("huggingface_hub.utils", "train")
    logging.disable_progress_bars()
    try:
        about = hub.HfApi().model_info(hub_id, revision=revision)
        names = choose_files([file.rfilename for file in about.siblings or ()], hub_id)
        for name in names:
            hub.hf_hub_download(hub_id, name, revision=about.sha, local_dir=folder)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"cannot fetch {hub_id} from the hub: {describe_error(error)}") from error
    finally:
        logging.enable_progress_bars()
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
