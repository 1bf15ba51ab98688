"""`agent.yaml` in an exported folder: the part of an agent that is not in its weights.

A model answers well only with the prompt, parser and decoding that it was trained with. The file contains all of these, with
the environment and the tasks on which the run was evaluated, so that the folder suffices to play the trained agent. It refers
to no preset, since presets may change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fedagentgym.agents.foreign import MODELS, check_foreign_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.runtime import EnvSettings
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.base.files import format_yaml, parse_yaml, read_text
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.settings import Settings, assign
from fedagentgym.envs.make import read_options
from fedagentgym.envs.registry import find_env_id
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.runs.folder import RunFolder

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv

AGENT_FILE = "agent.yaml"
ADAPTER_FILE = "adapter_config.json"
_HEAD = (
    "# Prompt, parser and decoding of this model, and how it was evaluated.\n"
    "# `fedagentgym eval --agent FOLDER` and `fedagentgym.load_agent(FOLDER)` use it.\n"
)


class AgentFile(Settings):
    """The contents of `agent.yaml`."""

    format: Literal["fedagentgym/agent-1"] = Field(default="fedagentgym/agent-1", description="format of this file")
    agent: AgentSettings = Field(description="prompt, context, parser and decoding, without defaults")
    env: EnvSettings = Field(description="the environment that the agent was trained in")
    evaluation: EvaluationSettings = Field(default=EvaluationSettings(), description="how the run evaluated it")
    seed: int = Field(default=0, ge=0, description="seed of the run's evaluations")
    plugins: tuple[str, ...] = Field(
        default=(), description="modules that the run loaded; this file does not load them"
    )
    run: dict[str, Any] = Field(default_factory=dict, description="the run and the round")
    result: dict[str, float] = Field(default_factory=dict, description="the run's evaluation of this round")

    def to_yaml(self) -> str:
        """The file's text."""
        plain = self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return _HEAD + format_yaml({"format": self.format, **plain})


def describe_agent(agent: TokenAgent, settings: AgentSettings) -> AgentSettings:
    """The settings that make this agent again with its exported weights; they do not depend on presets, which may change."""
    template = agent.template
    names = ("context_length", "forward", "threads", *(("rollouts", "options") if settings.rollouts == "vllm" else ()))
    kept = {name: value for name in names if (value := getattr(settings, name)) is not None}
    # the weights' dtype as loaded: an adapter's may differ from its base's
    dtype: str | None = settings.dtype
    model = getattr(agent.policy, "model", None)
    if dtype is None and model is not None:
        loaded = str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")
        dtype = loaded if loaded in ("float32", "bfloat16") else None
    return AgentSettings.load(
        {
            "name": settings.name if settings.name in MODELS else "transformers",
            "context": agent.context,
            "history": agent.history,
            "template": template.name,
            "system": template.system,
            "request": template.request,
            "think": template.think,
            "chat": agent.chat,
            "parser": agent.parser,
            "decoding": agent.decoding.model_dump(),
            "dtype": dtype,
            **kept,
        },
        "agent",
    )


def has_agent_file(folder: str | Path) -> bool:
    """Return whether this names a folder that was exported with its agent."""
    text = str(folder)
    return "\0" not in text and Path(text).expanduser().joinpath(AGENT_FILE).is_file()


def read_agent_file(folder: str | Path) -> AgentFile:
    """The agent settings of an exported folder, with the folder itself as the model."""
    place = Path(folder).expanduser()
    path = place / AGENT_FILE
    plain = parse_yaml(read_text(path), str(path))
    if not isinstance(plain, Mapping):
        raise DataError(f"{path} does not hold a mapping")
    try:
        found = AgentFile.load(plain)
    except OptionError as error:
        raise DataError(f"{path}: {error}") from None
    check_foreign_agent(found.agent, str(path), MODELS)
    check_foreign_envs(found.env, found.evaluation, str(path))
    if (place / ADAPTER_FILE).is_file() and not (place / "config.json").is_file():
        raise DataError(
            f"{place} holds an adapter alone, without its base: export the whole model (without --adapter) to play it"
        )
    return found.model_copy(update={"agent": found.agent.model_copy(update={"model": str(place)})})


def check_foreign_envs(
    env: EnvSettings, evaluation: EvaluationSettings | None, where: str, *, paths: bool = False
) -> None:
    """Refuse an environment of another user's file if it has options that only the user of this machine decides. Environments
    that are not registered here are skipped, since they cannot be opened."""
    sets = () if evaluation is None else evaluation.sets
    for name, options in [(env.id, env.options), *((one.env or env.id, one.options or {}) for one in sets)]:
        with contextlib.suppress(UnknownNameError):
            read_options(find_env_id(name), options).refuse_foreign(where, paths=paths)


def change_agent(settings: AgentSettings, changes: list[str]) -> AgentSettings:
    """Settings updated with `key=value` changes."""
    plain: dict[str, Any] = settings.model_dump(mode="json", exclude_unset=True)
    for change in changes:
        plain = assign(plain, change)
    return AgentSettings.load(plain, "agent")


@missing_explained()
def load_agent(folder: str | Path, env: TextEnv | None = None) -> TokenAgent:
    """Load the agent of a folder that `fedagentgym export` wrote, with the prompt, parser and decoding it was trained with.

    Args:
        folder: The folder; it contains `agent.yaml`.
        env: The environment it will play. No agent of this package needs it.

    Returns:
        The agent, for `evaluate`, `collect` or further training.

    Raises:
        DataError: If the folder has no `agent.yaml`, or holds an adapter without its base model.
        MissingExtraError: If torch is not installed.
    """
    if not has_agent_file(folder):
        if RunFolder(Path(str(folder))).is_run:
            raise DataError(
                f"{folder} is a run, not an exported agent: fedagentgym.RunResult.load(...).load_agent() takes it"
            )
        raise DataError(f"there is no {AGENT_FILE} in {folder}: it comes with `fedagentgym export RUN --out FOLDER`")
    from fedagentgym.agents.model.loading import set_threads
    from fedagentgym.agents.presets import make_agent

    settings = read_agent_file(folder).agent
    set_threads(settings.threads)
    agent: Any = make_agent(settings, env)
    found: TokenAgent = agent
    return found
