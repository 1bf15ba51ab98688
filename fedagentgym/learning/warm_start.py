"""The warm start: an agent imitates the expert of an environment until it produces valid actions.

The demonstrations are played on the split `warmup`, whose tasks are disjoint from all others. Some of the expert's actions are
replaced by random admissible ones: these are context, not examples, and show how the expert recovers. With `imitate_noise` they
are examples too: the agent learns right and wrong actions, like a pretrained model whose ability exceeds its success, and
reinforcement learning can improve it. With `misconceptions` some categories are mostly demonstrated wrongly
(`learning/misconceptions.py`). The episodes are in the agent's own prompts and tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.agents.players.scripted import Demonstrator
from fedagentgym.base.progress import Progress, show_progress
from fedagentgym.base.streams import derive, stream
from fedagentgym.learning.misconceptions import make_misled_experts
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import MisconceptionSettings, WarmStartSettings
from fedagentgym.learning.supervised import SupervisedTraining, make_examples
from fedagentgym.learning.trajectory import Trajectory

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv


def collect_demonstrations(
    agent: TokenAgent,
    env: TextEnv,
    count: int,
    *,
    noise: float = 0.0,
    misconceptions: MisconceptionSettings | None = None,
    seed: int = 0,
    parallel: int = 256,
    bar: Progress | None = None,
) -> list[Trajectory]:
    """The expert's episodes in the agent's tokens: the pool's tasks in random order, repeated until there are enough."""
    tasks = draw_demonstration_tasks(env, count, seed)
    experts = None if misconceptions is None else make_misled_experts(env, misconceptions)
    return collect(
        Demonstrator(agent, noise, experts),
        env,
        tasks,
        seed=derive(seed, "demonstrate"),
        parallel=parallel,
        progress=bar,
    ).trajectories


def draw_demonstration_tasks(env: TextEnv, count: int, seed: int) -> list[str]:
    """This many task ids; none occurs twice before all have occurred once."""
    order = stream(seed, "demonstrated").permutation(len(env.pool))
    return [env.pool.ids[int(order[index % len(order)])] for index in range(count)]


def warm_start(agent: TokenAgent, env: TextEnv, settings: WarmStartSettings, seed: int = 0) -> list[float]:
    """Train the agent's policy on demonstrations of `env`'s pool; returns the loss of each step."""
    from fedagentgym.learning.local import get_trainable_policy

    policy = get_trainable_policy(agent)
    with show_progress("demonstrating", total=settings.episodes) as bar:
        shown = collect_demonstrations(
            agent,
            env,
            settings.episodes,
            noise=settings.noise,
            misconceptions=settings.misconceptions,
            seed=seed,
            parallel=settings.parallel_episodes,
            bar=bar,
        )
    data = make_examples(shown, settings.observation_weight, imitate_noise=settings.imitate_noise)
    with show_progress("imitating", total=settings.steps) as bar:
        return SupervisedTraining(policy, settings).run(data, derive(seed, "imitate"), bar)
