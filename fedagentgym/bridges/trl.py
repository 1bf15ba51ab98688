"""TRL: train in an environment with its `GRPOTrainer`, by tools that the model calls or by this package's own rollouts.

Two ways, as TRL has two (both are experimental there; tried with TRL 1.16):

* `make_environment_factory(env)`: TRL generates, and the model acts by calling the tool `act`. Needs a model and a chat template
  that call tools.
* `RolloutFunction(env, agent)`: episodes are played by `collect`, as everywhere in this package, and TRL is given the exact
  tokens, which of them are the model's, and their log-probs. Works with any causal language model.

Rows for either come from `make_tool_rows` and `make_task_rows`; `datasets.Dataset.from_list` makes a dataset of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from fedagentgym.agents.presets import apply_general_defaults, make_token_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import derive
from fedagentgym.envs.core import Episode, TextEnv
from fedagentgym.learning.rollouts import collect

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.learning.trajectory import Trajectory

__all__ = ["RolloutFunction", "get_episode_reward", "make_environment_factory", "make_task_rows", "make_tool_rows"]

Row = dict[str, Any]


class Trainer(Protocol):
    """The part of TRL's `GRPOTrainer` that a rollout needs."""

    model: Any
    accelerator: Any
    processing_class: Any
    state: Any
    temperature: float
    top_p: float
    num_generations: int
    num_generations_eval: int


# ---- the model calls tools --------------------------------------------------------------------------------------


class ToolEnvironment:
    """One rollout's episode as a TRL environment: every public method except `reset` and `get_reward` is a tool."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env
        self._episode: Episode | None = None
        self._reward = 0.0

    def reset(self, task: str, seed: int = 0, **columns: object) -> str:
        """Start the episode named by a row of `make_tool_rows`; rows of one group begin alike."""
        (self._episode,) = self._env.reset_many([task], [seed])
        self._reward = 0.0
        return f"\n\n{self._describe(self._episode)}"

    def act(self, action: str) -> str:
        """Take one action and see what it leads to.

        Args:
            action: The action, written as it is listed or described.

        Returns:
            What is seen after the action.
        """
        if self._episode is None or self._episode.over:
            raise OptionError("the episode is over: no further action can be taken")
        (self._episode,) = self._env.step_many([self._episode], [action])
        self._reward += self._episode.reward
        return self._describe(self._episode)

    def get_reward(self) -> float:
        """The reward of the episode so far; TRL calls this when the rollout has ended."""
        return self._reward

    def _describe(self, episode: Episode) -> str:
        view = episode.view
        if episode.over:
            return f"{view.observation}\nThe episode is over."
        if view.admissible is None:
            return view.observation
        return "\n".join([view.observation, "Possible actions:", *(f"- {action}" for action in view.admissible)])


def make_environment_factory(env: TextEnv) -> Callable[[], ToolEnvironment]:
    """Make the argument of `GRPOTrainer(environment_factory=...)`: the model acts by calling the tool `act`.

    Args:
        env: The environment; parallel rollouts share its pool, each has its own episode.

    Returns:
        The factory.
    """
    return partial(ToolEnvironment, env)


def make_tool_rows(env: TextEnv, tasks: Iterable[str] | None = None, *, seed: int = 0) -> list[Row]:
    """Make the rows of a data set for a trainer with `make_environment_factory(env)`.

    Args:
        env: The environment.
        tasks: Ids of its tasks; by default all.
        seed: Seed of the episodes.

    Returns:
        One row per task, for `datasets.Dataset.from_list`.
    """
    content = f"{env.role}\n{env.action_help}\nAct by calling the tool `act`, one action at a time."
    return [
        {"prompt": [{"role": "user", "content": content}], "task": task, "seed": derive(seed, "trl", task)}
        for task in (env.pool.ids if tasks is None else tasks)
    ]


# ---- episodes are played here -----------------------------------------------------------------------------------


def make_task_rows(env: TextEnv, tasks: Iterable[str] | None = None) -> list[Row]:
    """Make the rows of a data set for a trainer with a `RolloutFunction`, whose prompts are the ids of tasks.

    Args:
        env: The environment.
        tasks: Ids of its tasks; by default all.

    Returns:
        One row per task, for `datasets.Dataset.from_list`.
    """
    return [{"prompt": task} for task in (env.pool.ids if tasks is None else tasks)]


class RolloutFunction:
    """The argument of `GRPOTrainer(rollout_func=...)`: episodes are played by `collect` with the trainer's model.

    An episode is one row of tokens. The trainer needs `reward_funcs=[get_episode_reward]`.

    Args:
        env: The environment.
        agent: How the model is prompted and how long a reply may be; temperature and top-p are the trainer's.
        seed: Seed of the episodes.
        parallel: Episodes that are played at the same time.

    Raises:
        OptionError: If the settings ask for another context than a session, or for constrained decoding.
    """

    def __init__(
        self, env: TextEnv, agent: AgentSettings | Mapping[str, Any] | None = None, *, seed: int = 0, parallel: int = 64
    ) -> None:
        given = agent if isinstance(agent, AgentSettings) else AgentSettings.load({"name": "trl", **(agent or {})})
        self.settings = apply_general_defaults(given)
        if self.settings.context != "session":
            raise OptionError("TRL takes an episode as one row of tokens: set context: session")
        if self.settings.decoding is not None and self.settings.decoding.constrained:
            raise OptionError("TRL computes log-probs over all tokens: set decoding.constrained: false")
        self.env, self.seed, self.parallel = env, seed, parallel
        self._agent: TokenAgent | None = None
        self._calls = 0

    def __call__(self, prompts: Sequence[str], trainer: Trainer) -> dict[str, list[Any]]:
        """Play an episode per prompt; neighbours with the same prompt are a group that begins alike."""
        training = trainer.model.training
        size = trainer.num_generations if training else trainer.num_generations_eval
        tasks = find_group_tasks(prompts, size)
        agent = self._make_agent(trainer)
        process = int(trainer.accelerator.process_index)
        seed = derive(self.seed, "trl", int(trainer.state.global_step), self._calls, process)
        self._calls += 1
        try:
            played = collect(agent, self.env, tasks, group_size=size, seed=seed, parallel=self.parallel)
        finally:
            trainer.model.train(training)
        rows = [convert_trajectory(each, min(agent.tokenizer.stop_ids)) for each in played.trajectories]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _make_agent(self, trainer: Trainer) -> TokenAgent:
        """The trainer's model at play; made once, as its weights are changed in place."""
        from fedagentgym.agents.engines.loading import get_stop_ids
        from fedagentgym.agents.engines.torch_policy import TorchPolicy

        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._agent is None or getattr(self._agent.policy, "model", None) is not model:
            tokenizer = HuggingFaceTokenizer(trainer.processing_class, get_stop_ids(model))
            policy = TorchPolicy(model, tokenizer, name="trl", context_length=self.settings.context_length)
            made = make_token_agent(self.settings, policy, tokenizer)
            drawn = {"temperature": float(trainer.temperature), "top_p": float(trainer.top_p)}
            self._agent = replace(made, decoding=made.decoding.model_copy(update=drawn))
        return self._agent


def find_group_tasks(prompts: Sequence[str], size: int) -> list[str]:
    """The task of each group of `size` equal neighbours, as TRL lines them up."""
    tasks: list[str] = []
    for prompt, copies in groupby(prompts):
        if not isinstance(prompt, str):
            raise DataError("a rollout's prompts are task ids: make the dataset with make_task_rows")
        count = len(list(copies))
        if count % size:
            raise OptionError(
                f"this process was given {count} of a task's {size} generations: let the batch of each process hold whole groups"
            )
        tasks += [prompt] * (count // size)
    return tasks


def convert_trajectory(trajectory: Trajectory, end: int) -> Row:
    """One completion in TRL's form. An episode without any token of the model is a row without a learning signal."""
    outcome = {"episode_reward": trajectory.reward, "success": trajectory.success}
    if not trajectory.segments:
        return {"prompt_ids": [end], "completion_ids": [end], "logprobs": [0.0], "env_mask": [0], **outcome}
    (segment,) = trajectory.segments
    return {
        "prompt_ids": segment.prompt_ids.tolist(),
        "completion_ids": segment.token_ids.tolist(),
        "logprobs": segment.logprobs.tolist(),
        "env_mask": segment.mask.astype(int).tolist(),
        **outcome,
    }


def get_episode_reward(prompts: Sequence[str], episode_reward: Sequence[float], **columns: object) -> list[float]:
    """Return the reward of each episode: the reward function of a trainer with a `RolloutFunction`.

    Args:
        prompts: The tasks.
        episode_reward: The column that the rollouts fill.
        **columns: Other columns.

    Returns:
        The rewards.
    """
    return list(episode_reward)
