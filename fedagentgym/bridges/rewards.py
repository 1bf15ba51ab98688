"""The reward of an environment as a reward function, for trainers that generate themselves: TRL, Unsloth, verl.

    reward = fedagentgym.make_reward("fedagentgym/Math-v0")             # or a client: make_reward(client_split[3])
    rows = reward.env.pool.to_dataset(Template("standard"), chat=True)   # prompts, and the columns `task` and `seed`
    GRPOTrainer(model=..., reward_funcs=reward, train_dataset=rows)

A reward function sees only the task's id and the model's reply, so episodes must end after one reply. This holds for Math, QA and
Code without tools, for Skills, and for your own environments of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.errors import DataError, OptionError, show_value
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.pool import PromptTemplate
from fedagentgym.partitions.client_split import ClientSplit

__all__ = ["TaskReward", "make_reward"]

Completion = str | Sequence[Mapping[str, Any]]
"""A reply: a text, or a list of messages, of which the last is the model's. Its content is a text or a list of parts."""


class TaskReward:
    """A reward function that grades replies by an environment; `make_reward` makes it.

    The object is called as TRL calls reward functions, and returns one reward per completion. `compute_score` is for verl.

    Attributes:
        env: The environment, whose `pool` has the tasks.
    """

    def __init__(self, env: TextEnv) -> None:
        self.env = env
        self.__name__ = env.id

    def __call__(
        self,
        prompts: Sequence[object] | None = None,
        completions: Sequence[Completion] = (),
        task: Sequence[str] = (),
        seed: Sequence[int] | None = None,
        **columns: object,
    ) -> list[float]:
        """Return the rewards of replies, as `GRPOTrainer` calls a reward function.

        Args:
            prompts: Not read.
            completions: The replies: texts, or lists of messages, whose content may be a list of parts.
            task: The task id of each reply, from a column of the data set.
            seed: The seed of each episode, from a column of the data set; by default 0.
            **columns: Other columns, which are not read.

        Returns:
            The environment's reward of each reply.

        Raises:
            DataError: If a reply has no task, or is neither a text nor a list of messages.
            UnknownNameError: If the environment has no such task.
        """
        if len(task) != len(completions):
            raise DataError(
                f"there are {len(completions)} completions and {len(task)} task ids: the data set needs the column "
                "'task', as pool.to_dataset() writes it"
            )
        episodes = self.env.reset_many(task, [0] * len(task) if seed is None else [int(each) for each in seed])
        replies: list[str] = []
        for completion in completions:
            if (reply := _read_reply(completion)) is None:
                raise DataError(f"a completion must be a text or a list of messages, got {show_value(completion)}")
            replies.append(reply)
        return [float(episode.reward) for episode in self.env.step_many(episodes, replies)]

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
    ) -> float:
        """Return the reward of one reply, as verl calls it (`custom_reward_function.name`).

        Args:
            data_source: Not read.
            solution_str: The reply.
            ground_truth: The task's id, as `make_verl_rows` writes it.
            extra_info: A mapping that may hold the `seed` of the episode; by default the seed is 0.

        Returns:
            The environment's reward.

        Raises:
            UnknownNameError: If the environment has no such task.
        """
        seed = int((extra_info or {}).get("seed", 0))
        return self(completions=[solution_str], task=[ground_truth], seed=[seed])[0]

    def make_verl_rows(self, template: PromptTemplate | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
        """Make the rows of verl's parquet file: `datasets.Dataset.from_list(rows).to_parquet(path)`.

        Args:
            template: Renders the first observation as a prompt; by default the standard one.
            seed: Seed of the episodes.

        Returns:
            A row per task, without the task's answer: `data_source`, `prompt`, `ability`, `reward_model`, `extra_info`.
        """
        style, env = template or Template(), self.env
        return [
            {
                "data_source": env.id,
                "prompt": [
                    {"role": "user", "content": style.render_first(env.find_member(episode.task), episode.view)}
                ],
                "ability": episode.task.category,
                "reward_model": {"style": "rule", "ground_truth": episode.task.id},
                "extra_info": {"task": episode.task.id, "seed": seed},
            }
            for episode in env.reset_many(env.pool.ids, [seed] * len(env.pool))
        ]


def _read_reply(completion: object) -> str | None:
    """Return the text of a completion, without parts of other kinds; None if it has no text."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if isinstance(completion, Sequence) and completion else None
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) and not isinstance(content, bytes) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type", "text") == "text"]
    return "".join(map(str, texts)) if texts and all(isinstance(text, str) for text in texts) else None


def make_reward(env: EnvLike | ClientSplit, **options: Any) -> TaskReward:
    """Make a reward function from an environment, for GRPO trainers that generate themselves.

    Args:
        env: An environment, the id of an environment, a client, or a client split, whose whole pool is then used.
        **options: Options of the environment, if it is given by its id.

    Returns:
        The function, for `GRPOTrainer(reward_funcs=...)`; its method `compute_score` is for verl.

    Raises:
        OptionError: If an episode may take more than one reply, or clients of the split have variants of the environment.
        UnknownNameError: If no environment has this id.

    Examples:
        >>> reward = make_reward("fedagentgym/Math-v0", split="val")
        >>> reward(completions=["<answer> 0 </answer>"], task=[reward.env.pool.ids[0]])
        [0.0]
    """
    if isinstance(env, ClientSplit):
        if any(variant is not None for variant in env.record.variants):
            raise OptionError(
                "the clients of this split have variants: make a reward for each, make_reward(client_split[0])"
            )
        env = open_env(env.record.env_id, **env.options, split=env.record.env_split, pool=env.pool)
    opened = open_env(env, **options)
    if opened.takes != "reply" or opened.max_turns != 1:
        raise OptionError(
            f"{opened.id}: a reward function sees one reply, but an episode here has up to {opened.max_turns} turns: use "
            "fedagentgym.bridges.trl.RolloutFunction or make_environment_factory"
        )
    return TaskReward(opened)
