"""Learning by imitation: the warm start of small agents, and the supervised baselines.

In a warm start an agent imitates the expert of an environment until it produces valid actions. The demonstrations are played on
the split `warmup`, whose tasks are disjoint from all others. Some of the expert's actions are replaced by random admissible ones.
The random actions are context, not examples; they show how the expert recovers. With `imitate_noise` they are examples too: the
agent learns right and wrong actions, like a pretrained model whose ability exceeds its success, and reinforcement learning can
improve it. With `misconceptions` some categories are mostly demonstrated wrongly (`learning/misconceptions.py`).

An example is a whole segment. The agent's own tokens have weight 1. The tokens of observations have a small weight, because an
agent that predicts observations learns their words sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.players.scripted import Demonstrator
from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.base.errors import DataError
from fedagentgym.base.progress import Progress, show_progress
from fedagentgym.base.streams import derive, generator, stream
from fedagentgym.learning.memory import map_large_tensors
from fedagentgym.learning.misconceptions import make_misled_experts
from fedagentgym.learning.passes import clip_gradients, get_passes
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import LearningSettings, MisconceptionSettings, SupervisedSettings, WarmStartSettings
from fedagentgym.learning.trajectory import NO_IDS, Trajectory, map_tokens_to_turns
from fedagentgym.learning.weights import (
    Arrays,
    OwnedWeights,
    get_momenta,
    get_moments,
    load_momenta,
    load_moments,
    make_muon,
    make_optimizer,
)

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv


BATCHES_SORTED = 8
"""Number of batches whose examples are sorted by length together."""


class Example(NamedTuple):
    """Token ids, and the weight of predicting each of them (the first has none)."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]

    @property
    def own(self) -> NDArray[np.int64]:
        """The positions of the tokens whose weight is not 0; other tokens are not scored."""
        return np.flatnonzero(self.weights)

    @property
    def allowed_ids(self) -> NDArray[np.int32]:
        return NO_IDS

    @property
    def allowed_counts(self) -> NDArray[np.int32]:
        return NO_IDS


def make_examples(
    trajectories: Iterable[Trajectory], observation_weight: float = 0.1, *, imitate_noise: bool = False
) -> list[Example]:
    """One example per segment in which any token has a weight."""
    examples = []
    for trajectory in trajectories:
        wanted = np.array([turn.learn or imitate_noise for turn in trajectory.turns], dtype=np.bool_)
        for segment, owner in zip(trajectory.segments, map_tokens_to_turns(trajectory), strict=True):
            ids = np.concatenate([segment.prompt_ids, segment.token_ids]).astype(np.int64)
            weights = np.full(len(ids), observation_weight, dtype=np.float32)
            weights[len(segment.prompt_ids) + np.flatnonzero(segment.mask)] = wanted[owner]
            weights[:1] = 0.0
            if weights.any():
                examples.append(Example(ids, weights))
    return examples


class SupervisedTraining:
    """Weighted cross-entropy, in batches drawn without replacement, pass after pass.

    Training begins with the weights that the model holds. `moments` and `step` continue an earlier training; the learning-rate
    schedule then spans both, with `settings.steps` steps in all.
    """

    def __init__(
        self, policy: TrainablePolicy, settings: SupervisedSettings, *, moments: Arrays | None = None, step: int = 0
    ) -> None:
        self.policy, self.settings = policy, settings
        self._passes = get_passes(policy)
        self._weights = OwnedWeights(policy)
        self.step = step
        adam = LearningSettings(learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
        inner = set() if settings.matrix_rate is None else find_layer_matrices(policy)
        full = self._weights.full
        self._others = {name: value for name, value in full.items() if name not in inner}
        self._matrices = {name: value for name, value in full.items() if name in inner}
        self._optimizers = [make_optimizer(self._others, adam)]
        if settings.matrix_rate is not None:
            self._optimizers.insert(0, make_muon([*self._matrices.values()], settings.matrix_rate))
        if moments:
            load_moments(self._optimizers[-1], self._others, moments)
            load_momenta(self._optimizers[0], self._matrices, moments)

    def run(
        self, data: Sequence[Example], seed: int, progress: Progress | None = None, *, steps: int | None = None
    ) -> list[float]:
        """Take all steps of the settings, or only `steps`; return the loss of each."""
        if not data:
            raise DataError("there are no demonstrations")
        losses = []
        lengths = [len(example.ids) for example in data]
        sorted_at_a_time = BATCHES_SORTED if self.settings.sort_lengths else 1
        batches = _iter_batches(lengths, self.settings.batch_size, sorted_at_a_time, generator(seed, "batches"))
        for _, batch in zip(range(self.settings.steps if steps is None else steps), batches, strict=False):
            losses.append(self.train_step([data[index] for index in batch]))
            if progress is not None:
                progress.advance(loss=losses[-1])
        return losses

    def train_step(self, batch: Sequence[Example]) -> float:
        """Take one step and return its loss; weights change only if the loss and the gradient are finite."""
        self._weights.acquire()
        settings = self.settings
        factor = settings.schedule.compute_factor(self.step, settings.steps)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * optimizer.defaults["lr"]
            optimizer.zero_grad()
        total = float(sum(example.weights.sum() for example in batch))
        loss_value = 0.0
        map_large_tensors(self.policy.model, self.policy.device)
        limits = self._passes.find_limits(settings.micro_tokens)
        for part in self._passes.iter_batches(batch, limits):
            examples = [batch[index] for index in part]
            scores = self._passes.score(examples, kept=limits.kept)
            weights = np.concatenate([example.weights[example.own] for example in examples])
            loss = -(scores.logprobs * torch.from_numpy(weights).to(self.policy.device)).sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_value += float(loss.detach())
        self._weights.copy_gradients_from_model()
        (loss_value,) = self._passes.add_up([loss_value])
        norm = clip_gradients(list(self._weights.full.values()), settings.gradient_clip)
        if np.isfinite(loss_value) and np.isfinite(norm):
            for optimizer in self._optimizers:
                optimizer.step()
            self._weights.copy_to_model()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self.policy.bump_version()
        self.step += 1
        return loss_value

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights, in full precision."""
        return self._weights.to_arrays()

    def get_moments(self) -> dict[str, NDArray[Any]]:
        """Copies of the optimizers' moments and momenta."""
        own = get_moments(self._optimizers[-1], self._others)
        return own | get_momenta(self._optimizers[0], self._matrices)


def find_layer_matrices(policy: TrainablePolicy) -> set[str]:
    """Names of the matrices inside the layers: all but the embeddings and the output head, for which Muon is not suited."""
    model: Any = policy.model
    ends = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings())]
    inner = {n: p for n, p in policy.parameters().items() if p.dim() == 2}
    return {name for name, parameter in inner.items() if all(parameter is not end for end in ends)}


def _iter_batches(lengths: Sequence[int], size: int, count: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Endless batches of examples of similar length, for little padding. Each pass has a new order. The examples of `count`
    batches are drawn at a time (they may end one pass and begin the next), sorted by length, cut into batches, and shuffled."""
    queue: list[int] = []
    while True:
        while len(queue) < size * count:
            queue += rng.permutation(len(lengths)).tolist()
        drawn = sorted(queue[: size * count], key=lambda index: (lengths[index], index))
        queue = queue[size * count :]
        for first in rng.permutation(count).tolist():
            yield drawn[first * size : (first + 1) * size]


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
    """Play `count` episodes of the expert in the agent's tokens: the pool's tasks in random order, repeated if too few."""
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
    """Draw `count` task ids; a task is repeated only after every task of the pool has occurred."""
    order = stream(seed, "demonstrated").permutation(len(env.pool))
    return [env.pool.ids[int(order[index % len(order)])] for index in range(count)]


def warm_start(agent: TokenAgent, env: TextEnv, settings: WarmStartSettings, seed: int = 0) -> list[float]:
    """Train the agent's policy on demonstrations of `env`'s pool; returns the loss of each step."""
    from fedagentgym.learning.state import get_trainable_policy

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
