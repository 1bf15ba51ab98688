"""TRL: trains in an environment with `GRPOTrainer`, by tools that the model calls or by this package's own rollouts.

TRL offers two ways, both of which it calls experimental (tested with TRL 1.16):

* `make_environment_factory(env)`: TRL generates, and the model acts by calling the tool `act`. This needs a model and a chat
  template that support tool calls. `make_tool_rows` makes the rows of the data set.
* `RolloutFunction(env, agent)`: episodes are played by `collect`, as everywhere in this package. TRL gets the exact tokens, the
  mask of the tokens that the model generated, and their log-probs. This works with any causal language model. `make_task_rows`
  makes the rows.

`datasets.Dataset.from_list` makes a data set of these rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Protocol

from fedagentgym.agents.presets import apply_defaults, make_token_agent
from fedagentgym.agents.protocols import Completion, Decoding, Policy, Session
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer, TextTokenizer
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.view import Episode, describe, first_message, next_message
from fedagentgym.learning.rollouts import collect

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.learning.trajectory import Trajectory

__all__ = ["RolloutFunction", "get_episode_reward", "make_environment_factory", "make_task_rows", "make_tool_rows"]

Row = dict[str, Any]
TOOL_FORM = "Act by calling the tool `act`, one action at a time."


class Trainer(Protocol):
    """The part of TRL's `GRPOTrainer` that a rollout needs."""

    model: Any
    accelerator: Any
    processing_class: Any
    state: Any
    use_vllm: bool
    vllm_generation: Any
    temperature: float
    top_p: float
    num_generations: int
    num_generations_eval: int


# ---- the model calls tools --------------------------------------------------------------------------------------


class ToolEnvironment:
    """One rollout's episode as a TRL environment: every public method except `reset` and `get_reward` is a tool."""

    def __init__(self, env: TextEnv, draw: Callable[[int], tuple[str, int]] | None = None) -> None:
        self._env, self._draw = env, draw
        self._drawn = 0
        self._episode: Episode | None = None
        self._reward = 0.0

    def reset(self, task: str | None = None, seed: int = 0, **columns: object) -> str:
        """Start the episode that a row of `make_tool_rows` names or, without a data set, the next episode that is drawn."""
        drawn = task is None
        if task is None:
            if self._draw is None:
                raise OptionError(
                    "a rollout has no task: train on make_tool_rows(env), or without a data set on "
                    "make_environment_factory(env, group_size=num_generations)"
                )
            task, seed = self._draw(self._drawn)
            self._drawn += 1
        (self._episode,) = self._env.reset_many([task], [seed])
        self._reward = 0.0
        opening, rest = render_tool_prompt(self._env, self._episode)
        return f"{opening}{rest}" if drawn else rest

    def act(self, action: str) -> str:
        """Take one action and see what it leads to.

        Args:
            action: The action, written as it is listed or described.

        Returns:
            What is seen after the action.
        """
        if self._episode is None or self._episode.over:
            raise OptionError("the episode is over: no further action can be taken")
        before = self._episode
        (self._episode,) = self._env.step_many([before], [action])
        self._reward += self._episode.reward
        if self._episode.over:
            return f"{self._episode.view.observation}\nThe episode is over."
        return next_message(self._env.find_member(self._episode.task), self._episode.view, before.view.admissible)

    def get_reward(self) -> float:
        """Return the reward of the episode so far. TRL calls this after the rollout."""
        return self._reward


def make_environment_factory(
    env: EnvLike, *, group_size: int | None = None, seed: int = 0
) -> Callable[[], ToolEnvironment]:
    """Make the argument of `GRPOTrainer(environment_factory=...)`: the model acts by calling the tool `act`.

    For several environments, such as one per client, give the trainer a dict of factories, and rows that hold the key of their
    factory (`make_tool_rows(env, environment=key)`).

    Args:
        env: The environment. Parallel rollouts share its pool, and each has its own episode.
        group_size: The `num_generations` of a trainer without a data set. Each group of this many rollouts starts the same
            episode.
        seed: Seed with which tasks are drawn without a data set.

    Returns:
        The factory.

    Raises:
        OptionError: If the group size is below 1.
    """
    world = open_env(env)
    if group_size is None:
        return partial(ToolEnvironment, world)
    if group_size < 1:
        raise OptionError(f"group_size must be at least 1, got {group_size}")
    numbers = count()
    return lambda: ToolEnvironment(world, partial(_draw_task, world, seed, next(numbers) // group_size))


def _draw_task(env: TextEnv, seed: int, group: int, turn: int) -> tuple[str, int]:
    """Return the task and the seed of a group's next episode. Each process of a distributed trainer draws separately."""
    drawn = stream(seed, "trl", os.environ.get("RANK", "0"), group, turn)
    return env.pool.ids[drawn.integers(len(env.pool))], drawn.integers(1 << 62)


def render_tool_prompt(env: TextEnv, episode: Episode) -> tuple[str, str]:
    """Return the prompt of an agent that acts by calling the tool `act`, in two parts: the row's prompt, and the text that
    `reset` adds."""
    member = env.find_member(episode.task)
    row = describe(member)
    whole = first_message(member, episode.view, TOOL_FORM)
    return row, whole.removeprefix(row) + (f"\n\n{TOOL_FORM}" if env.takes == "reply" else "")


def make_tool_rows(
    env: EnvLike, tasks: Iterable[str] | None = None, *, seed: int = 0, environment: str | None = None
) -> list[Row]:
    """Make the rows of a data set for a trainer with `make_environment_factory(env)`.

    Args:
        env: The environment.
        tasks: Ids of its tasks; by default all.
        seed: Seed from which the seeds of the episodes are derived.
        environment: The key of this environment in a dict of factories.

    Returns:
        One row per task, for `datasets.Dataset.from_list`.
    """
    world = open_env(env)
    named = {} if environment is None else {"environment": environment}
    return [
        {
            "prompt": [{"role": "user", "content": describe(world.find_member(world.pool[task]))}],
            "task": task,
            "seed": derive(seed, "trl", task),
            **named,
        }
        for task in (world.pool.ids if tasks is None else tasks)
    ]


# ---- episodes are played here -----------------------------------------------------------------------------------


def make_task_rows(env: EnvLike, tasks: Iterable[str] | None = None) -> list[Row]:
    """Make the rows of a data set for a trainer with a `RolloutFunction`. The prompts of these rows are task ids.

    Args:
        env: The environment.
        tasks: Ids of its tasks; by default all.

    Returns:
        One row per task, for `datasets.Dataset.from_list`.
    """
    return [{"prompt": task} for task in (open_env(env).pool.ids if tasks is None else tasks)]


class RolloutFunction:
    """The argument of `GRPOTrainer(rollout_func=...)`: episodes are played by `collect` with the trainer's model.

    An episode is one row of tokens. The trainer needs `reward_funcs=[get_episode_reward]`.

    Args:
        env: The environment.
        agent: Settings of prompts and of the length of replies. Temperature and top-p are taken from the trainer.
        seed: Seed of the episodes.
        parallel: Number of episodes that are played at the same time.

    Raises:
        OptionError: If the context is not `session`, decoding is constrained, or a setting is given that only an agent of this
            package has, such as `model`.
    """

    def __init__(
        self, env: EnvLike, agent: AgentSettings | Mapping[str, Any] | None = None, *, seed: int = 0, parallel: int = 64
    ) -> None:
        given = agent.model_dump(exclude_unset=True) if isinstance(agent, AgentSettings) else dict(agent or {})
        for name in ("name", "options", "harness"):
            if given.get(name):
                raise OptionError(f"the trainer's model plays, and takes no agent.{name}: leave it out")
        self.settings = apply_defaults(AgentSettings.load({**given, "name": "trl"}, "agent"))
        if self.settings.context != "session":
            raise OptionError("TRL takes an episode as one row of tokens: set context to session")
        if self.settings.decoding is not None and self.settings.decoding.constrained:
            raise OptionError("TRL computes log-probs over all tokens: set decoding.constrained to false")
        self.env, self.seed, self.parallel = open_env(env), seed, parallel
        self._agent: TokenAgent | None = None
        self._calls = 0

    def __call__(self, prompts: Sequence[str], trainer: Trainer) -> dict[str, list[Any]]:
        """Play one episode per prompt. Adjacent copies of a prompt form a group of episodes with the same start."""
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
        rows = [convert_trajectory(each, agent.tokenizer.end_id) for each in played.trajectories]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _make_agent(self, trainer: Trainer) -> TokenAgent:
        """Return the agent of the trainer's model, which generates by the trainer's vLLM if it has one.

        The agent is made once for a model, since the model's weights are changed in place."""
        from fedagentgym.agents.model.loading import get_stop_ids
        from fedagentgym.agents.model.policy import TorchPolicy

        model = trainer.accelerator.unwrap_model(trainer.model)
        if self._agent is None or getattr(self._agent.policy, "model", None) is not model:
            tokenizer = HuggingFaceTokenizer(trainer.processing_class, get_stop_ids(model))
            length = self.settings.context_length
            policy: Policy = TorchPolicy(model, tokenizer, name="trl", context_length=length)
            if trainer.use_vllm:
                policy = TrainerVllm(trainer.vllm_generation, model, tokenizer, policy.context_length)
            made = make_token_agent(self.settings, policy, tokenizer)
            drawn = {"temperature": float(trainer.temperature), "top_p": float(trainer.top_p)}
            self._agent = replace(made, decoding=made.decoding.model_copy(update=drawn))
        return self._agent


class TrainerVllm:
    """Implements `protocols.Policy` with the vLLM of a `GRPOTrainer`, which updates the weights before each rollout."""

    name, version = "trl", 0

    def __init__(self, generation: Any, model: Any, tokenizer: TextTokenizer, context_length: int) -> None:
        if int(getattr(generation, "tensor_parallel_size", 1) or 1) > 1 or (
            generation.mode == "server" and generation.accelerator.num_processes > 1
        ):
            raise OptionError(
                "episodes differ in their numbers of turns, so a vLLM that several processes share cannot play them: set "
                "vllm_mode='colocate' and vllm_tensor_parallel_size=1"
            )
        self.generation, self.model, self.tokenizer = generation, model, tokenizer
        self.context_length = min(context_length, getattr(generation, "max_model_length", None) or context_length)

    def open_session(self) -> Session:
        from fedagentgym.agents.model.vllm import VllmSession

        return VllmSession(self)

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        decoding: Decoding,
        adapters: Sequence[Any] | None = None,
    ) -> list[Completion]:
        """Return a reply to each prompt. vLLM ignores the seeds, and uses the trainer's temperature and weights."""
        assert adapters is None
        asked, stops = self.generation, self.tokenizer.stop_ids
        before = asked.max_completion_length, asked.generation_kwargs
        asked.max_completion_length = decoding.max_new_tokens
        asked.generation_kwargs = {**(before[1] or {}), "stop_token_ids": sorted(stops)}
        try:
            _, replies, logprobs, _ = asked.generate([list(ids) for ids in prompts], None, 1)
        finally:
            asked.max_completion_length, asked.generation_kwargs = before
        return [
            Completion(
                tuple(ids), tuple(float(step[0]) for step in each), "stop" if ids and ids[-1] in stops else "length"
            )
            for ids, each in zip(replies, logprobs, strict=True)
        ]

    def close(self) -> None:
        """Do nothing, since the engine belongs to the trainer."""


def find_group_tasks(prompts: Sequence[str], size: int) -> list[str]:
    """Return the task of each group of `size` adjacent equal prompts, as TRL orders them."""
    tasks: list[str] = []
    for prompt, copies in groupby(prompts):
        if not isinstance(prompt, str):
            raise DataError("a rollout's prompts are task ids: make the dataset with make_task_rows")
        count = len(list(copies))
        if count % size:
            raise OptionError(
                f"this process got {count} of a task's {size} generations: the batch of each process must hold whole groups"
            )
        tasks += [prompt] * (count // size)
    return tasks


def convert_trajectory(trajectory: Trajectory, end: int) -> Row:
    """Return an episode in TRL's format. An episode without generated tokens becomes a row without a learning signal."""
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
    """Return the reward of each episode. This is the reward function for a trainer with a `RolloutFunction`.

    Args:
        prompts: The tasks, which are not read.
        episode_reward: The column of rewards that `RolloutFunction` returns.
        **columns: Other columns, which are not read.

    Returns:
        The rewards.
    """
    return list(episode_reward)
