"""`pretrain tiny`: a small agent for one world, made from nothing but the world itself.

1. a tokenizer of the world's words and an untrained model (`agents/engines/tiny.py`);
2. demonstrations of the world's expert on its `warmup` split, in the agent's own tokens;
3. imitation for a fixed number of steps: no clock decides anything, so the same settings give the same weights;
4. a look at what came out, on the validation split.

The result is an ordinary model folder. A note in it says what it was made from; asking again for the same thing finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedagentgym.agents.engines.threads import use_threads
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import canonical_json, digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder, read_json
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.misconceptions import describe_misconceptions
from fedagentgym.learning.settings import EvaluationSettings, WarmStartSettings
from fedagentgym.learning.warm_start import warm_start

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv

METADATA_FILE = "pretrain.json"
VERSION = 4


class PretrainResult(NamedTuple):
    """Where the model is, whether it was there already, and how well it does."""

    folder: Path
    reused: bool
    note: dict[str, Any]


def pretrain_tiny(
    env_id: str,
    options: Mapping[str, Any],
    settings: WarmStartSettings | None = None,
    *,
    agent: AgentSettings | None = None,
    evaluation: EvaluationSettings | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
) -> PretrainResult:
    """Make the tiny agent of a world, or find it if it was made from the same settings before."""
    from fedagentgym.agents.presets import get_tiny_folder

    chosen, judged = settings or WarmStartSettings(), evaluation or EvaluationSettings(tasks=100)
    player = agent or AgentSettings(name="tiny")
    if player.adapter is not None:
        raise OptionError("a warm start trains all weights: leave the adapter out, and add it when you train")
    env = open_env(env_id, **{**options, "split": "warmup"})
    target = Path(folder) if folder is not None else get_tiny_folder(env)
    recipe = digest(
        [VERSION, env_id, env.pool.digest, chosen.model_dump(mode="json"), player.model_dump(mode="json"), seed]
    )
    if target.exists() and not force:
        note = _read_metadata(target)
        if note.get("recipe") == recipe:
            return PretrainResult(target, True, note)
    with use_threads(player.threads):
        made = _make_untrained_agent(env, chosen, player, seed)
        losses = warm_start(made, env, chosen, derive(seed, "warm start"))
        unseen = open_env(env_id, **{**options, "split": judged.split})
        found = evaluate(made, unseen, judged, seed=seed)
    note = {
        "recipe": recipe,
        "env": env_id,
        "options": dict(options),
        "seed": seed,
        "loss": losses[-1],
        "success": found.overall["success"].mean,
        "score": found.overall["score"].mean,
        "format_broken": found.overall["format_broken"].mean,
        **describe_misconceptions(env, chosen.misconceptions, unseen, found.groups),
    }
    _save(made, target, note)
    return PretrainResult(target, False, note)


def _make_untrained_agent(env: TextEnv, settings: WarmStartSettings, agent: AgentSettings, seed: int) -> TokenAgent:
    """A tiny model with random weights behind the tiny agent's prompts and decoding."""
    import tempfile

    from fedagentgym.agents.engines.tiny import make_tiny_model
    from fedagentgym.agents.engines.torch_policy import TorchPolicy
    from fedagentgym.agents.make import make_agent

    model, tokenizer = make_tiny_model(
        env.vocabulary(), settings.size, settings.context_length, derive(seed, "weights")
    )
    init_weights(model, derive(seed, "spread"))
    with tempfile.TemporaryDirectory() as scratch:
        TorchPolicy(model, tokenizer).save(scratch)
        chosen = AgentSettings.load(merge(agent.model_dump(exclude_unset=True), {"name": "tiny", "model": scratch}))
        made: TokenAgent = make_agent(chosen, env, seed)  # type: ignore[assignment]
    return made


def init_weights(model: Any, seed: int) -> None:
    """Draw every matrix at standard deviation 1 / sqrt(width): at the library's 0.02 a narrow model needs twice the steps to
    find out that words are to be copied."""
    import torch

    random = torch.Generator().manual_seed(seed)
    scale = float(model.config.hidden_size) ** -0.5
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)


def _save(agent: TokenAgent, target: Path, note: Mapping[str, Any]) -> None:
    """Write the folder whole; an older model of ours in its place goes only when the new one is complete."""
    from fedagentgym.learning.local import get_trainable_policy

    fresh = target.with_name(f"{target.name}.fresh")
    _remove(fresh)
    with atomic_folder(fresh) as scratch:
        get_trainable_policy(agent).save(scratch)
        (scratch / METADATA_FILE).write_text(canonical_json(note) + "\n", "utf-8")
    if target.exists():
        _read_metadata(target)
        _remove(target)
    fresh.replace(target)


def _read_metadata(folder: Path) -> dict[str, Any]:
    """What a folder says it was made from; a folder that is not ours is not touched."""
    if not (folder / METADATA_FILE).is_file():
        raise DataError(f"{folder} exists and was not made by `fedagentgym pretrain`: choose another --output")
    note = read_json(folder / METADATA_FILE)
    return note if isinstance(note, dict) else {}


def _remove(folder: Path) -> None:
    import shutil

    if folder.exists():
        shutil.rmtree(folder)
