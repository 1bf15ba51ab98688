"""The agent from which a run starts: a tiny one from scratch, a pretrained model, or one after imitation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedagentgym.agents.models.pretrained import compute_weights_digest
from fedagentgym.agents.models.store import find_model
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.learning.settings import WarmStartSettings


def prepare_agent(
    agent: AgentSettings, env_id: str, options: Mapping[str, Any], warm_start: WarmStartSettings | None
) -> tuple[AgentSettings, dict[str, Any]]:
    """The settings to load the agent by, and a note of its origin; missing models are made.

    The same settings give the same bits on the same kind of processor; `weights` in the note is their digest.
    Imitation is done once and shared by all runs with the same settings; the models of some recipes come with the package.
    """
    from fedagentgym.learning.pretrain import pretrain_model, start_tiny
    from fedagentgym.learning.recipe import find_recipe

    if starts_from_nothing(agent):
        recipe = find_recipe(env_id)
        settings = warm_start or (recipe.warm_start if recipe is not None else WarmStartSettings())
        made = start_tiny(env_id, options, settings, agent.model_copy(update={"adapter": None}))
    elif warm_start is not None:
        settings = warm_start
        made = pretrain_model(agent, env_id, options, settings)
    else:
        return agent, _describe_model(agent)
    note: dict[str, Any] = {
        "warm_start": settings.model_dump(mode="json"),
        "success": made.note.get("success"),
        **{key: value for key, value in made.note.items() if key in ("misconceptions", "beliefs")},
        "weights": compute_weights_digest(made.folder),
    }
    return agent.model_copy(update={"model": str(made.folder)}), note


def _describe_model(agent: AgentSettings) -> dict[str, Any]:
    """Identify the model; a name may refer to another model later, so its files are identified too."""
    model = get_model(agent)
    if model is None:
        return {}
    stored = find_model(model)
    return {"model": model} if stored is None else {"model": model, "source": stored.source, "files": stored.digest}
