"""Checks of agents that others chose: in an exported folder, a run folder, a suite, a result, or a server's recipe.

Such settings may not name a server, a key, code or an argument of another library. Only the user who runs a command may name
those, on the command line or in a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedagentgym.agents import AGENTS
from fedagentgym.agents.presets import DEFAULT_MODELS
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError, join_names

MODELS = ("tiny", "transformers", "vllm", *DEFAULT_MODELS)
"""Agents that are loaded from a model folder."""
SAFE_AGENTS = (*MODELS, "untrained-tiny", "expert", "random")
"""Agents of this package that others may name."""
SAFE_OPTIONS = ("noise", "memory", "parallel", "sleep", "eager", "batch_invariant")
"""Agent options that others may set: the noise of an expert, and how vLLM uses its GPUs."""


def check_foreign_agent(settings: AgentSettings, where: str, known: Sequence[str] = SAFE_AGENTS) -> None:
    """Refuse an agent that only the user of this machine may choose. `known` are the names that are allowed at `where`.

    With the default `known`, agents that a plugin registered are allowed too, since the user has loaded the plugin.
    """
    if settings.name not in known and (known is not SAFE_AGENTS or not AGENTS.is_added(settings.name)):
        raise DataError(
            f"{where}: agent {settings.name[:80]!r} cannot be chosen by others, only {join_names(known, 20)}: name it yourself"
        )
    if settings.harness is not None and settings.harness.runs_code:
        raise DataError(
            f"{where}: agent.harness.command runs a program, which others cannot choose: only harness: {{name: owner}} may"
            " stand there"
        )
    if unsafe := next((key for key in settings.options if key not in SAFE_OPTIONS), None):
        refused = f"the agent's option {unsafe[:80]!r} cannot be chosen by others, only {join_names(SAFE_OPTIONS)}"
        raise DataError(f"{where}: {refused}: set it yourself")


def find_agents(settings: object, where: str) -> Iterator[tuple[str, AgentSettings]]:
    """Yield the key and the settings of every agent in a tree of settings."""
    inside: Iterable[tuple[object, object]] = ()
    if isinstance(settings, AgentSettings):
        yield where, settings
    elif isinstance(settings, BaseModel):
        inside = settings
    elif isinstance(settings, Mapping):
        inside = settings.items()
    elif isinstance(settings, list | tuple):
        for one in settings:
            yield from find_agents(one, where)
    for key, value in inside:
        yield from find_agents(value, f"{where}.{key}")


def replace_agents(settings: Any, change: Callable[[AgentSettings], AgentSettings]) -> Any:
    """A tree of settings in which `change` replaced every agent that `find_agents` finds. Parts without a changed agent are the
    same objects."""
    if isinstance(settings, AgentSettings):
        return change(settings)
    if isinstance(settings, BaseModel):
        new = {key: replace_agents(value, change) for key, value in settings}
        changed = {key: value for key, value in new.items() if value is not getattr(settings, key)}
        return settings.model_copy(update=changed) if changed else settings
    if isinstance(settings, Mapping):
        new = {key: replace_agents(value, change) for key, value in settings.items()}
        return new if any(new[key] is not value for key, value in settings.items()) else settings
    if isinstance(settings, list | tuple):
        each = [replace_agents(one, change) for one in settings]
        return type(settings)(each) if any(a is not b for a, b in zip(each, settings, strict=True)) else settings
    return settings
