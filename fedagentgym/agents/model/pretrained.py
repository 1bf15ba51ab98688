"""The models that `pretrain` made: those that come with this package, and those in the cache.

agents/shipped/NAME/     a tiny agent made by the recipe NAME: an ordinary model folder, and `pretrain.json`
cache/tiny/              the models that were made on this machine

`pretrain.json` records what a model was made from and how it scored. Its key `recipe` is a digest of what it was made from.
Models with the same digest have the same bits if they were made by the same version of torch on the same kind of processor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import cache_folder, read_json
from fedagentgym.base.process import get_logger
from fedagentgym.envs.registry import format_env_words
from fedagentgym.envs.tasks import shorten_env_id

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

log = get_logger(__name__)
PRETRAIN_NOTE = "pretrain.json"


class PretrainedModel(NamedTuple):
    """A model folder that `pretrain` made, and the content of its `pretrain.json`."""

    folder: Path
    note: Mapping[str, Any]

    @property
    def is_misled(self) -> bool:
        """True if the model imitated experts with misconceptions."""
        return "misconceptions" in self.note


def get_shipped_folder() -> Path:
    """Return the folder of the tiny agents that come with this package."""
    return Path(str(files("fedagentgym.agents") / "shipped"))


def list_shipped() -> list[PretrainedModel]:
    """Return the tiny agents of this package, by name."""
    return _read_notes(get_shipped_folder())


def list_made() -> list[PretrainedModel]:
    """Return the tiny agents that were made on this machine."""
    return _read_notes(cache_folder("tiny"))


def find_shipped(recipe: str) -> PretrainedModel | None:
    """Return the tiny agent of this package that has this recipe digest, if there is one."""
    return next((one for one in list_shipped() if one.note.get("recipe") == recipe), None)


def compute_weights_digest(folder: Path) -> str:
    """Return a digest of the weights in a folder, which identifies a model wherever it was made."""
    return digest([[file.name, file_digest(file)] for file in sorted(folder.glob("*.safetensors"))])


def get_tiny_folder(env: TextEnv) -> Path:
    """Return the folder in which `fedagentgym pretrain tiny` puts the model of an environment.

    Its name depends on the environment's id and on the source of its tasks (generator, size, seed), so it is the same for every
    split and for every client's variant of the environment.
    """
    source = digest([env.id, dict(env.pool.source)]).removeprefix("sha256:")
    return cache_folder("tiny", f"{shorten_env_id(env.id)}-{source[:12]}")


def find_tiny_folder(env: TextEnv) -> Path:
    """Return the tiny model of an environment: the model pretrained for it on this machine, else the model of this package, else
    the warm start that runs have left in the cache, if there is exactly one."""
    folder = get_tiny_folder(env)
    if folder.is_dir():
        return folder
    shipped = _choose_able(list_shipped(), env)
    if shipped:
        return shipped[0].folder
    found = [one.folder for one in _choose_able(list_made(), env)]
    if len(found) == 1:
        log.warning(
            "agent tiny: no model was pretrained for %s, so the warm start of a run is used, %s", env.id, found[0]
        )
        return found[0]
    words = format_env_words(env.id, env.options.own)
    make = f"make it with `fedagentgym pretrain tiny --env {words}`"
    if found:
        make = (
            f"choose one of {len(found)} that runs have left (--agent-set {quote_word(f'model={found[0]}')}), or {make}"
        )
    known = [one.note["options"] for one in list_shipped() if one.note.get("env") == env.id]
    others = f"; one comes with the package for --env {format_env_words(env.id, known[0])}" if known else ""
    raise DataError(f"there is no tiny model for {env.id} with these options yet: {make}{others}")


def read_player_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of prompts and decoding with which a model was made, since it knows no other prompts.

    The result is empty if the folder has no `pretrain.json`."""
    place = folder / PRETRAIN_NOTE
    note = read_json(place) if place.is_file() else {}
    agent = note.get("agent", {}) if isinstance(note, dict) else None
    if not isinstance(agent, dict):
        raise DataError(f"{place} is malformed: it is not the note of a pretrained model")
    return {key: value for key, value in agent.items() if key not in ("name", "model", "adapter")}


def _read_notes(folder: Path) -> list[PretrainedModel]:
    """Return the models in a folder. Notes that cannot be read are skipped."""
    found = []
    for path in sorted(folder.glob(f"*/{PRETRAIN_NOTE}")):
        with contextlib.suppress(FedAgentGymError):
            note = read_json(path)
            if isinstance(note, dict):
                found.append(PretrainedModel(path.parent, note))
    return found


def _choose_able(models: Iterable[PretrainedModel], env: TextEnv) -> list[PretrainedModel]:
    """Return the models that imitated the expert of this environment with the same options.

    Models that imitated misconceptions are returned only if there are no others."""
    same = [one for one in models if one.note.get("env") == env.id and one.note.get("options") == env.options.own]
    return [one for one in same if not one.is_misled] or same
