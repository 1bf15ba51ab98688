"""A policy step: play, compare the episodes of each task, take a gradient step on the agent's own tokens.

`LocalTraining` turns tasks into rows of tokens with advantages, and `PolicyUpdate` learns from rows. Between two messages, all
that a *site* keeps is a `SiteState`: plain arrays and numbers that can be stored, moved to another worker and loaded again::

    start = SiteState(weights=global_weights, step=round * local_steps)
    local = LocalTraining(agent, env, settings, start=start, run_steps=rounds * local_steps)
    report = local.run(local_steps, seed=derive(run_seed, "client", client))
    send(local.get_state().weights, report.metrics)

Methods that intervene call the parts of `run`::

    groups = local.collect_groups(seed)                          # play: tasks_per_step x group_size episodes
    report = local.update(groups)                                # learn from them
    report = local.update(groups, advantages=given)              # ... from advantages that another program computed
    report = local.update(groups, weights={"accuracy/math": 0.7, "format": 0.3}, gradients_of=("accuracy/math", "format"))
    groups = local.recompute_logprobs(groups)                    # log-probs of another player's tokens under this policy

The loss, over the agent's own tokens (`losses.py` has others in place of `policy`)::

    ratio  = exp(logprob - behaviour)
    policy = -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)
    k3     = exp(reference - logprob) - (reference - logprob) - 1
    loss   = sum over tokens of weight * (policy + beta * k3 - c * entropy)

With `advantage: gae` a value head learns beside the policy, in the same passes (`values.py`). For every token that was chosen
among several, v is the value of the state before it, v_old that value when the step began, and c the clipping range::

    value = mean over these tokens of max((v - target)^2, (clip(v, v_old - c, v_old + c) - target)^2) / 2

Randomness: the episodes of step s are drawn from streams of (seed, s), where s is the run-wide step of the state; the order of
mini-batches and dropout come from s alone. The same state and seed give the same result on any worker; a caller who wants new
draws per round or client derives the seed accordingly. With `task_order: epochs` tasks follow from `order_seed` and s, so that
passes over the pool go on from round to round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.agents.model.decoder import Decoder
from fedagentgym.agents.model.names import VALUE_HEAD
from fedagentgym.agents.model.policy import to_array
from fedagentgym.agents.protocols import Decoding, SharedModel, TrainablePolicy
from fedagentgym.base.errors import OptionError
from fedagentgym.base.process import report_step
from fedagentgym.base.statistics import mean
from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.learning import forward
from fedagentgym.learning.advantages import (
    GAE,
    compute_format_penalties,
    compute_training_rewards,
    group_advantages,
    is_constant,
    objective_values,
    spread_advantages,
)
from fedagentgym.learning.draws import draw_places
from fedagentgym.learning.forward import Value, find_choices, mark_choices
from fedagentgym.learning.losses import Tokens, clip_value_loss
from fedagentgym.learning.memory import PassLimits, map_large_tensors
from fedagentgym.learning.passes import Passes, clip_gradients, get_passes, split_minibatches, token_losses, weigh_rows
from fedagentgym.learning.penalties import Penalty, make_kl
from fedagentgym.learning.rollouts import Mismatch, Rollouts, collect
from fedagentgym.learning.settings import NO_ENDS, LearningSettings
from fedagentgym.learning.state import (
    AfterStep,
    LocalReport,
    SiteState,
    StepReport,
    get_trainable_policy,
    mean_metrics,
)
from fedagentgym.learning.trajectory import (
    NO_LOGPROBS,
    Group,
    PerTurn,
    Row,
    Trajectory,
    build_rows,
    build_trajectory_rows,
    leave_out_cut_replies,
)
from fedagentgym.learning.values import add_advantages, explain
from fedagentgym.learning.weights import (
    Arrays,
    OwnedWeights,
    Tensors,
    get_moments,
    list_groups,
    list_rates,
    load_moments,
    make_optimizer,
    to_parameter_tensors,
)

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv


class LocalTraining:
    """The training loop of one site, a client or the server: load a state, play, learn, read the state back.

    `run` does several steps. Methods that intervene call its parts: `collect_groups` plays, `update` learns. Several learners
    may share an agent, in any order of calls: each has its own weights. Every draw of step s follows from the seed and s, so
    that a state and a seed give the same result in any process.

    Args:
        agent: A language model whose weights are in this process.
        env: The environment with the site's tasks.
        settings: The settings of a policy step.
        start: The state to begin with; by default the weights that the agent's model holds.
        run_steps: Number of steps of the whole run, for a learning rate that decays.
        first_step: The step with which the schedule of the learning rate begins.
        penalties: Terms of the loss besides the configured ones.
        base: Weights of the reference of `kl: {reference: base}`; by default the agent's present ones.
        order_seed: Seed of the passes of `task_order: epochs`, the same in all rounds.

    Attributes:
        step: Number of steps so far.
        skipped: How many of these steps drew no tasks from the site's pool; passes over the pool do not count them.

    Raises:
        OptionError: If the agent cannot be trained.
    """

    def __init__(
        self,
        agent: TokenAgent,
        env: TextEnv,
        settings: LearningSettings,
        *,
        start: SiteState | None = None,
        run_steps: int | None = None,
        first_step: int = 0,
        penalties: Sequence[Penalty] = (),
        base: Arrays | None = None,
        order_seed: int = 0,
    ) -> None:
        if settings.mask_truncated and agent.harness is not None:
            raise OptionError(NO_ENDS)
        self._agent, self.env, self.settings = agent, env, settings
        self.step = 0 if start is None else start.step
        self.skipped, self._order_seed = 0, order_seed
        self._run_steps, self._first_step = run_steps, first_step
        policy = get_trainable_policy(agent)
        if settings.kl.coefficient > 0:
            penalties = (make_kl(settings.kl, base or policy.get_weights()), *penalties)
        given = None if start is None else _join_head(start)
        self._updater = PolicyUpdate(policy, agent.decoding, settings, start=given, penalties=penalties)

    @property
    def agent(self) -> TokenAgent:
        """The agent, with this learner's present weights in its model."""
        self._updater.acquire()
        return self._agent

    def load_state(self, state: SiteState) -> None:
        """Continue from a state.

        Args:
            state: The state.
        """
        self._updater.load(*_join_head(state))
        self.step = state.step

    def get_state(self, *, optimizer: bool | None = None, anchor: bool = False) -> SiteState:
        """Return the present state.

        Args:
            optimizer: Whether the moments of the optimizer are included; by default `settings.keep_optimizer`.
            anchor: Whether the weights at the start of the round are included, for a site that is half-way through its round.

        Returns:
            The state, with copies of the arrays. A value head that is the site's own is among the moments, not the weights.
        """
        keep = self.settings.keep_optimizer if optimizer is None else optimizer
        weights = self._updater.get_weights()
        own = {name: weights.pop(name) for name in list(weights) if name in self._updater.own}
        return SiteState(
            weights=weights,
            optimizer=(self._updater.get_optimizer_state() if keep else {}) | own,
            anchor=self._updater.get_anchor_weights() if anchor else {},
            step=self.step,
        )

    def run(
        self,
        steps: int,
        *,
        seed: int,
        weights: Mapping[str, float] | None = None,
        gradients_of: Sequence[str] = (),
        after_step: AfterStep | None = None,
    ) -> LocalReport:
        """Play and learn for several steps.

        Args:
            steps: Number of steps.
            seed: Seed of all draws.
            weights: Weights of the objectives in place of the configured ones.
            gradients_of: Objectives whose gradient at the last decoder block is computed too.
            after_step: Called with the report of each step; a mapping that it returns is the weights of the objectives from
                then on.

        Returns:
            The mean of the `metrics` (counts are summed), the metrics of each of the `steps`, and the last step's `groups`.
        """
        metrics: list[dict[str, float]] = []
        groups: tuple[Group, ...] = ()
        for number in range(1, steps + 1):
            report_step(number, steps)
            rollouts = self.collect_rollouts(seed)
            report = self.update(rollouts.groups, weights=weights, gradients_of=gradients_of)
            report = StepReport(rollouts.compute_metrics() | report.metrics, rollouts.groups, report.gradients)
            metrics.append(report.metrics)
            groups = report.groups
            answer = after_step(report) if after_step is not None else None
            weights = weights if answer is None else answer
        return LocalReport(mean_metrics(metrics), tuple(metrics), groups)

    def collect_rollouts(
        self,
        seed: int,
        *,
        tasks: Sequence[str] | None = None,
        group_size: int | None = None,
        env: TextEnv | None = None,
    ) -> Rollouts:
        """Play the episodes of the present step.

        Args:
            seed: Seed of all draws.
            tasks: Ids of the tasks; by default drawn from the site's pool, as `draw_tasks` does.
            group_size: Episodes of each task; by default the configured number.
            env: The environment of the tasks; by default the site's.

        Returns:
            The episodes in groups, and how long they took.
        """
        chosen = self.draw_tasks(seed) if tasks is None else tuple(tasks)
        played = collect(
            self.agent,
            self.env if env is None else env,
            chosen,
            group_size=group_size or self.settings.group_size,
            seed=derive(seed, "play", self.step),
            parallel=self.settings.parallel_episodes,
            drop_lost=True,
        )
        # The calls of a harness form batches by chance, so their log-probs differ in the last bits from run to run.
        by_chance = self._agent.harness is not None and self.settings.behaviour == "auto"
        if not (self._updater.scores_again or by_chance):
            return played
        # The forward pass of learning scores the episodes once more, so that the ratio starts at exactly 1.
        groups = self._updater.recompute_logprobs(played.groups, keep=self.settings.correction is not None)
        gaps = [
            np.abs(old.logprobs - new.logprobs)[old.mask]
            for before, after in zip(chain(*played.groups), chain(*groups), strict=True)
            for old, new in zip(before.segments, after.segments, strict=True)
        ]
        every = np.concatenate([np.zeros(0), *gaps])
        every = every if every.size else np.zeros(1)
        mismatch = Mismatch(float(every.mean()), float(np.quantile(every, 0.999, method="higher")))
        return played._replace(groups=groups, mismatch=mismatch)

    def collect_groups(
        self, seed: int, *, tasks: Sequence[str] | None = None, group_size: int | None = None
    ) -> tuple[Group, ...]:
        """Play the episodes of the present step, as `collect_rollouts` does.

        Args:
            seed: Seed of all draws.
            tasks: Ids of the tasks; by default drawn from the site's pool, as `draw_tasks` does.
            group_size: Episodes of each task; by default the configured number.

        Returns:
            The episodes in groups, for `update`.
        """
        return self.collect_rollouts(seed, tasks=tasks, group_size=group_size).groups

    def draw_tasks(self, seed: int) -> tuple[str, ...]:
        """Draw the tasks of the present step by `task_order`: by default with replacement.

        Args:
            seed: Seed of all draws, except for the order of `epochs`.

        Returns:
            The ids of the tasks.
        """
        places = self.draw_places(len(self.env.pool), stream(seed, "tasks", self.step))
        return tuple(self.env.pool.ids[place] for place in places)

    def draw_places(self, size: int, draws: Stream) -> list[int]:
        """Draw the tasks of the present step from one of several pools of a site.

        Args:
            size: Number of tasks in the pool.
            draws: The stream of the step.

        Returns:
            The places (indices in the pool) of the tasks.
        """
        settings, own = self.settings, self.step - self.skipped
        return draw_places(settings.task_order, size, settings.tasks_per_step, draws, seed=self._order_seed, step=own)

    def update(
        self,
        groups: Sequence[Group],
        *,
        advantages: Sequence[Sequence[float] | PerTurn] | None = None,
        weights: Mapping[str, float] | None = None,
        gradients_of: Sequence[str] = (),
    ) -> StepReport:
        """Take one policy step on episodes of any player; their log-probabilities are taken as the behaviour policy's.

        Args:
            groups: The episodes.
            advantages: For each group one number per episode, or one array over its turns, in place of those from the rewards.
            weights: Weights of the objectives in place of the configured ones.
            gradients_of: Objectives whose gradient at the last decoder block is computed too.

        Returns:
            The `metrics` of the step, the `groups`, and the `gradients` that were asked for.
        """
        # The learned reward of each turn, and the penalties of malformed replies if they are kept separate.
        returns = [self._compute_returns(group, weights) for group in groups]
        # An episode is compared with the other episodes of its task, or with the predictions of a value head.
        estimator, valued = self.settings.advantage, False
        if advantages is not None:
            chosen = [
                spread_advantages(group, given, "advantages=") for group, given in zip(groups, advantages, strict=True)
            ]
        elif isinstance(estimator, GAE):
            chosen, valued = [tuple(np.zeros(len(one.turns)) for one in group) for group in groups], True
        else:
            chosen = [
                group_advantages(group, earned, estimator, penalties)
                for group, (earned, penalties) in zip(groups, returns, strict=True)
            ]
        # For methods that weigh objectives by their gradients, each gradient is computed alone, before the weights move.
        by_episode = self._agent.harness is not None  # a harness makes any number of segments
        gradients = {}
        if gradients_of and valued:
            raise OptionError(
                "gradients of single objectives need an advantage over groups, and gae's value head predicts the sum of all"
                " objectives: name another learning.advantage"
            )
        for name in gradients_of:
            alone = [
                group_advantages(group, objective_values(group, name), self.settings.advantage) for group in groups
            ]
            alone_rows, _ = self._leave_out_cut(build_rows(groups, alone, by_episode=by_episode), groups)
            gradients[name] = self._updater.compute_bias_gradient(alone_rows)
        # A row is a text as the model saw it; each token that the agent chose has the advantage of its turn.
        rate = self.settings.schedule.compute_factor(self.step - self._first_step, self._run_steps)
        rows = build_rows(groups, chosen, by_episode=by_episode)
        if valued:
            assert isinstance(estimator, GAE)
            rows = add_advantages(rows, groups, self._updater.compute_values(rows), returns, estimator)
        learned_rows, cut = self._leave_out_cut(rows, groups)
        metrics = self._updater.train_step(learned_rows, rate, order=self.step)
        if self.settings.mask_truncated:
            metrics["replies/cut"] = cut / max(1, sum(len(one.turns) for group in groups for one in group))
        if valued and (explained := explain(rows)) is not None:
            metrics["value/explained"] = explained
        self.step += 1
        # Without a value head, a group whose episodes all earned the same teaches nothing. The number of such groups shows
        # whether the tasks suit the agent.
        constant = 0 if valued else sum(is_constant(*pair) for pair in returns)
        metrics |= {"groups": float(len(groups)), "groups/constant": float(constant)}
        for name in self.resolve_objective_weights(weights):
            metrics[f"reward/{name}"] = mean(
                [float(part.sum()) for group in groups for part in objective_values(group, name)]
            )
        learned = [
            earned if penalties is None else self.compute_rewards(group, weights)
            for group, (earned, penalties) in zip(groups, returns, strict=True)
        ]
        metrics["reward/learned"] = mean([float(part.sum()) for reward in learned for part in reward])
        return StepReport(metrics, tuple(groups), gradients)

    def _leave_out_cut(self, rows: list[Row], groups: Sequence[Group]) -> tuple[list[Row], int]:
        """The rows without the replies that were cut off, if `mask_truncated` is set, and the number of these replies."""
        if not self.settings.mask_truncated:
            return rows, 0
        return leave_out_cut_replies(rows, groups, self._agent.tokenizer.stop_ids)

    def compute_rewards(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """Compute the learned reward of each turn.

        Args:
            group: The episodes of one task.
            weights: Weights of the objectives in place of the configured ones.

        Returns:
            For each episode an array over its turns.
        """
        return compute_training_rewards(group, self.resolve_objective_weights(weights), self.settings.format_penalty)

    def compute_advantages(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """Compute the advantage of each turn.

        Args:
            group: The episodes of one task.
            weights: Weights of the objectives in place of the configured ones.

        Returns:
            For each episode an array over its turns.

        Raises:
            OptionError: If the advantages are those of tokens, as with `gae`.
        """
        if self.settings.advantage.uses_values:
            raise OptionError(
                "gae computes an advantage of every token, within a step: call update in place of compute_advantages"
            )
        rewards, penalties = self._compute_returns(group, weights)
        return group_advantages(group, rewards, self.settings.advantage, penalties)

    def _compute_returns(self, group: Group, weights: Mapping[str, float] | None) -> tuple[PerTurn, PerTurn | None]:
        """The inputs of advantages: the learned rewards, and the penalties of single turns if they are kept separate."""
        if self.settings.format_penalty_on == "episode":
            return self.compute_rewards(group, weights), None
        rewards = compute_training_rewards(group, self.resolve_objective_weights(weights), 0.0)
        return rewards, compute_format_penalties(group, self.settings.format_penalty)

    def resolve_objective_weights(self, weights: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """Return the weights of the objectives.

        Args:
            weights: Weights in place of the configured ones.

        Returns:
            The given weights, or by default the configured ones.
        """
        return {part.name: part.weight for part in self.settings.objectives} if weights is None else weights

    def recompute_logprobs(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Replace the log-probabilities of episodes by those under the present policy, so that the ratio starts at 1.

        Args:
            groups: The episodes, such as those of another player.

        Returns:
            The same episodes with other log-probabilities.
        """
        return self._updater.recompute_logprobs(groups)


def _join_head(state: SiteState) -> tuple[Arrays, Arrays, Arrays]:
    """Weights, moments and anchor of a state; a value head that is the site's own moves from the moments to the weights."""
    own = {name: array for name, array in state.optimizer.items() if name.startswith(VALUE_HEAD)}
    moments = {name: array for name, array in state.optimizer.items() if name not in own}
    return {**state.weights, **own}, moments, state.anchor


class PolicyUpdate:
    """The policy steps of one learner. It begins with the weights that the model holds, or at `start`, the arguments of `load`.

    Several learners may share a model: each has weights of its own (`learning/weights.py`).
    """

    _weights: OwnedWeights

    def __init__(
        self,
        policy: TrainablePolicy,
        decoding: Decoding,
        settings: LearningSettings,
        *,
        start: tuple[Arrays, Arrays, Arrays] | None = None,
        penalties: Sequence[Penalty] = (),
    ) -> None:
        if decoding.temperature <= 0:
            raise OptionError("training needs a sampling temperature above 0: a greedy policy does not explore")
        self.policy, self.decoding, self.settings, self._penalties = policy, decoding, settings, penalties
        self._passes = get_passes(policy)
        if isinstance(settings.advantage, GAE):
            forward.check_hidden_states(policy.model)
            policy.add_value_head()
        names = policy.parameters() if settings.keeps_head else ()
        self.own = frozenset(name for name in names if name.startswith(VALUE_HEAD))
        self.load(*(start or (None, {}, {})))

    @property
    def scores_again(self) -> bool:
        """True if the episodes are scored again before a step. `auto` does so for a `correction`, and if the recorded log-probs
        can differ from those of the step: nucleus sampling records a truncated distribution, a model in bfloat16 has another
        rounding, and another engine can have both."""
        if self.settings.behaviour != "auto":
            return self.settings.behaviour == "recomputed"
        if self.settings.correction is not None:
            return True
        if self.decoding.top_p < 1 or not isinstance(self.policy, SharedModel):
            return True
        return any(parameter.dtype != torch.float32 for parameter in self.policy.model.parameters())

    def acquire(self) -> None:
        """Load the learner's weights into the model, if another learner has used it since."""
        self._weights.acquire()

    # ---- state ------------------------------------------------------------------------------------------------------

    def load(self, weights: Arrays | None, optimizer: Arrays, anchor: Arrays) -> None:
        """Load the state of a site: the weights (None keeps the model's), the moments for a new optimizer, and the weights at the
        start of its round."""
        if weights is not None:
            if hasattr(self, "_weights"):
                del self._weights  # so that the old weights are not saved
            self.policy.set_weights(weights)
        self._weights = OwnedWeights(self.policy, weights)
        parameters = self._weights.full
        self._optimizer = make_optimizer(parameters, self.settings)
        if optimizer:
            load_moments(self._optimizer, parameters, optimizer)
        self._anchor: Tensors = {}
        shared = self._shared
        if any(penalty.uses_start for penalty in self._penalties):
            copies = {} if anchor else self._weights.clone()
            self._anchor = to_parameter_tensors(anchor, shared) if anchor else {name: copies[name] for name in shared}
        for penalty in self._penalties:
            penalty.begin(shared, self._anchor)

    @property
    def _shared(self) -> Tensors:
        """The parameters that penalties see: all but a value head of the site's own."""
        return {name: value for name, value in self._weights.full.items() if name not in self.own}

    def get_weights(self) -> dict[str, NDArray[Any]]:
        return self._weights.to_arrays()

    def get_optimizer_state(self) -> dict[str, NDArray[Any]]:
        return get_moments(self._optimizer, self._weights.full)

    def get_anchor_weights(self) -> dict[str, NDArray[Any]]:
        """The weights at the start of the round, if a penalty refers to them."""
        return {name: to_array(tensor) for name, tensor in self._anchor.items()}

    # ---- the step -----------------------------------------------------------------------------------------------------

    def train_step(self, rows: Sequence[Row], rate: float = 1.0, order: int = 0) -> dict[str, float]:
        """One policy step: `gradient_epochs` passes over the rows, each in mini-batches that move the weights.

        `rate` scales the learning rate, `order` selects the stream that shuffles. `minibatches: 4` cuts the rows into four
        mini-batches; `minibatch_rows: 64` cuts them into mini-batches of 64 rows.
        """
        settings = self.settings
        self._prepare()
        map_large_tensors(self.policy.model, self.policy.device)
        for group, own in zip(self._optimizer.param_groups, list_rates(settings), strict=True):
            group["lr"] = own * rate
        # Reference policies do not change during the step, so their log-probs are computed once, with their weights in the model.
        references: list[tuple[Penalty, list[torch.Tensor]]] = []
        for penalty in self._penalties:
            if (reference := penalty.get_reference()) is not None:
                with self._swap_weights(reference):
                    references.append((penalty, self.score_rows(rows)))
        meter, seed = _RunningMeans(), derive(order, "update")
        with self._train_mode(seed):
            for epoch in range(settings.gradient_epochs):
                for part in split_minibatches(len(rows), settings, generator(seed, epoch)):
                    given = [(penalty, [scores[place] for place in part]) for penalty, scores in references]
                    self._train_minibatch([rows[place] for place in part], given, meter)
        self.policy.bump_version()
        shared = [*_TOKEN_METRICS, *_VALUE_METRICS, *(penalty.name for penalty, _ in references)]
        return meter.compute_metrics(self._passes, shared) | {"learning_rate": settings.learning_rate * rate}

    def _train_minibatch(
        self, rows: Sequence[Row], references: Sequence[tuple[Penalty, Sequence[torch.Tensor]]], meter: _RunningMeans
    ) -> None:
        """Compute the gradient of one mini-batch and take an optimizer step."""
        # A row whose advantages are all zero adds nothing to the policy's gradient. It counts in the averages, but is computed
        # only if a term of the loss needs every token.
        choices = sum(len(find_choices(row)) for row in rows if len(row.returns))
        every_row = bool(references) or self.settings.entropy > 0 or choices > 0
        live = [place for place, row in enumerate(rows) if len(row.own) and (row.active or every_row)]
        # `empty_minibatches` alone decides whether a mini-batch from which no token learns takes a step, in every method: the
        # terms of the parameters that some methods add make no difference.
        if not any(len(find_choices(rows[place])) for place in live):
            meter.counts["update/empty"] += 1
            if self.settings.empty_minibatches == "skip":
                return
        # The weight of a token depends on the whole mini-batch, so the gradient is the same for any division of the mini-batch
        # into passes.
        weights = weigh_rows(rows, self.settings.loss)
        total = 0.0
        self._optimizer.zero_grad()
        for batch in self._passes.iter_batches([rows[place] for place in live], self._limits):
            places = [live[index] for index in batch]
            given = [(penalty, torch.cat([scores[place] for place in places])) for penalty, scores in references]
            loss = self._compute_loss([rows[place] for place in places], weights[places], given, meter, choices=choices)
            whole = loss.policy + loss.value
            if whole.requires_grad:
                whole.backward()  # type: ignore[no-untyped-call]
            total += float(loss.policy.detach())
        # Terms of the parameters are added when the gradient is complete, before it is clipped.
        self._weights.copy_gradients_from_model()
        (total,) = self._passes.add_up([total])
        terms = [penalty for penalty in self._penalties if penalty.of_parameters]
        total += sum(penalty.add_gradients(self._shared) for penalty in terms)
        if not live:  # an optimizer skips a parameter without a gradient, but a gradient of zero decays its moments
            for parameter in self._weights.full.values():
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        # The gradient of the value head is clipped by itself, since its norm says nothing about the policy's.
        values, head = list_groups(self._weights.full)
        norm, head_norm = (clip_gradients(part, self.settings.gradient_clip) for part in (values, head))
        # One gradient that is not finite would spoil weights and moments for good.
        if np.isfinite([total, norm, head_norm]).all():
            self._optimizer.step()
            self._weights.copy_to_model()
            meter.counts["optimizer_steps"] += 1
            meter.add("loss", total)
            meter.add("gradient_norm", norm)
        else:
            meter.counts["update/skipped"] += 1
        self._optimizer.zero_grad()

    def _compute_loss(
        self,
        rows: Sequence[Row],
        weights: NDArray[np.float64],
        references: Sequence[tuple[Penalty, torch.Tensor]],
        meter: _RunningMeans,
        bias: torch.Tensor | None = None,
        choices: int = 0,
    ) -> _Loss:
        """The part of the mini-batch's losses that these rows make up. `bias` is added to the last block's output; `choices` is
        the number of tokens of the mini-batch for which values are learned."""
        kept, temperature = self._limits.kept, self.decoding.temperature
        head = self._make_value() if choices else None
        scores = self._passes.score(rows, temperature, self.settings.entropy > 0, kept=kept, bias=bias, value=head)
        behaviour = self._to_tensor(np.concatenate([row.behaviour for row in rows]))
        advantages = self._to_tensor(np.concatenate([row.advantages for row in rows]))
        penalties = [
            (penalty.coefficient, penalty.compute_token_losses(scores.logprobs, reference))
            for penalty, reference in references
        ]
        tokens = Tokens(scores.logprobs, behaviour, advantages, tuple(len(row.own) for row in rows))
        if any(row.foreign for row in rows):
            said = np.repeat([row.foreign for row in rows], [len(row.own) for row in rows])
            moved = int(meter.counts["optimizer_steps"])
            tokens = replace(tokens, foreign=torch.from_numpy(said).to(scores.logprobs.device), update=moved)
        if self.settings.correction is not None:
            # the weight is 1 if log-probs were not recomputed, as for episodes of other players
            played = np.concatenate([row.played if len(row.played) else row.behaviour for row in rows])
            correction = self.settings.correction.compute_weights(tokens, self._to_tensor(played))
            tokens = replace(tokens, correction=correction)
        parts = token_losses(tokens, self.settings, penalties, scores.entropy)
        with torch.no_grad():
            seen = {"ratio": parts.ratio, "clipped": parts.clipped.float(), "surprisal": -scores.logprobs}
            seen |= {penalty.name: value for (penalty, _), value in zip(references, parts.penalties, strict=True)}
            seen |= {} if scores.entropy is None else {"entropy": scores.entropy}
            seen |= {} if tokens.correction is None else {"correction": tokens.correction}
            if not meter.counts["optimizer_steps"]:  # how far the ratio is from 1 before the weights move
                seen["ratio/start"] = parts.ratio.log().abs()
            for name, value in seen.items():
                meter.add(name, float(value.mean()), value.numel())
        policy = (parts.loss * self._to_tensor(np.repeat(weights, [len(row.own) for row in rows]))).sum()
        if scores.values is None:
            return _Loss(policy, policy.new_zeros(()))
        return _Loss(policy, self._compute_value_loss(rows, scores.values, meter) / choices)

    def _make_value(self) -> Value:
        """The value head as a function of hidden states, which receive the share `vf_coef` of its gradient."""
        assert isinstance(self.settings.advantage, GAE)
        parameters, share = self.policy.parameters(), self.settings.advantage.vf_coef
        weight, bias = parameters[f"{VALUE_HEAD}weight"], parameters[f"{VALUE_HEAD}bias"]

        def value(hidden: torch.Tensor) -> torch.Tensor:
            passed = hidden.detach().lerp(hidden, share) if share else hidden.detach()
            return torch.nn.functional.linear(passed, weight, bias).squeeze(1)

        return value

    def _compute_value_loss(self, rows: Sequence[Row], values: torch.Tensor, meter: _RunningMeans) -> torch.Tensor:
        """The sum of the clipped losses of the values of these rows' choices."""
        assert isinstance(self.settings.advantage, GAE)
        at = self._to_tensor(np.concatenate([mark_choices(row) for row in rows])) > 0
        old, target = (
            self._to_tensor(np.concatenate([getattr(row, name) for row in rows]))[at] for name in ("values", "returns")
        )
        losses, clipped = clip_value_loss(values[at], old, target, self.settings.advantage.clip)
        if len(losses):
            meter.add("value/loss", float(losses.detach().mean()), len(losses))
            meter.add("value/clipped", float(clipped.float().mean()), len(losses))
        return losses.sum()

    # ---- scores, and gradients of one bias ---------------------------------------------------------------------------

    def compute_values(self, rows: Sequence[Row]) -> list[NDArray[np.float64]]:
        """Values of the states before the own tokens of each row."""
        return [part.double().cpu().numpy() for part in self.score_rows(rows, values=True)]

    @torch.no_grad()
    def score_rows(self, rows: Sequence[Row], *, values: bool = False) -> list[torch.Tensor]:
        """Log-probs of the own tokens of each row, or with `values` the values of the states before them."""
        self._prepare()
        value = self._make_value() if values else None
        result = [torch.zeros(len(row.own), device=self.policy.device) for row in rows]
        filled = [place for place, row in enumerate(rows) if len(row.own)]
        for batch in self._passes.iter_batches([rows[place] for place in filled], self._limits):
            places = [filled[index] for index in batch]
            chosen = [rows[place] for place in places]
            scores = self._passes.score(chosen, self.decoding.temperature, kept=self._limits.kept, value=value)
            found = scores.logprobs if scores.values is None else scores.values
            parts = torch.split(found, [len(row.own) for row in chosen])
            for place, part in zip(places, parts, strict=True):
                result[place] = part
        return self._passes.add_up_tensors(result)

    def recompute_logprobs(self, groups: Sequence[Group], *, keep: bool = False) -> tuple[Group, ...]:
        """Return the groups with log-probs under the present policy. With `keep`, the former log-probs stay as `played`."""
        rows = [
            row
            for group in groups
            for trajectory in group
            for row in build_trajectory_rows(trajectory, np.zeros(len(trajectory.turns)))
        ]
        scores = iter(self.score_rows(rows))

        def renew(trajectory: Trajectory) -> Trajectory:
            segments = []
            for segment in trajectory.segments:
                logprobs = segment.logprobs.copy()
                logprobs[segment.mask] = next(scores).cpu().numpy()
                segments.append(segment._replace(logprobs=logprobs, played=segment.logprobs if keep else NO_LOGPROBS))
            return replace(trajectory, segments=tuple(segments))

        return tuple(tuple(renew(trajectory) for trajectory in group) for group in groups)

    def compute_bias_gradient(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """The gradient of the policy's loss, without penalties, for a virtual bias on the last decoder block's output.

        The bias is one vector added at every token, so its gradient is a sum over tokens and rows, and is comparable between
        batches of any shape. The blocks below need no backward pass.
        """
        self._prepare()
        model, device = self.policy.model, self.policy.device
        weights = weigh_rows(rows, self.settings.loss)
        live = [place for place, row in enumerate(rows) if row.active and len(find_choices(row))]
        width = int(model.get_input_embeddings().weight.shape[1])  # type: ignore[operator]
        total = np.zeros(width, dtype=np.float64)
        for batch in self._passes.iter_batches([rows[place] for place in live], self._limits, shared=False):
            places = [live[index] for index in batch]
            bias = torch.zeros(width, device=device, requires_grad=True)
            with self._passes.leave_out_parameters():
                chosen = [rows[place] for place in places]
                loss = self._compute_loss(chosen, weights[places], (), _RunningMeans(), bias).policy
            (gradient,) = torch.autograd.grad(loss, bias)
            total += gradient.double().cpu().numpy()
        return total

    # ---- the model around a step --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Load the learner's weights, and set the present limits of a pass."""
        self.acquire()
        limits = self._passes.find_limits(self.settings.micro_tokens)
        self._limits = PassLimits(limits.micro_tokens, 0) if self.settings.checkpointing else limits

    @contextlib.contextmanager
    def _swap_weights(self, weights: Tensors) -> Iterator[None]:
        """Other weights in the model for the duration of a block, in which no gradient is computed."""
        parameters = self.policy.parameters()
        kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        with torch.no_grad():
            try:
                for name, value in weights.items():
                    parameters[name].copy_(value)
                yield
            finally:
                for name, value in kept.items():
                    parameters[name].copy_(value)

    @contextlib.contextmanager
    def _train_mode(self, seed: int) -> Iterator[None]:
        """Train mode, with dropout from a stream of its own, so that the process's generators are not changed. The package's own
        decoder has no dropout and no train mode."""
        model: Any = self.policy.model
        if isinstance(model, Decoder):
            yield
            return
        recomputing = self.settings.checkpointing or self._passes.recomputes
        with torch.random.fork_rng(devices=[self.policy.device] if self.policy.device.type == "cuda" else []):
            torch.manual_seed((seed + self._passes.rank) % (1 << 63))
            model.train()
            if recomputing:
                forward.set_checkpointing(model, True)
            try:
                yield
            finally:
                if recomputing:
                    forward.set_checkpointing(model, False)
                model.eval()

    def _to_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.policy.device)


_TOKEN_METRICS = ("ratio", "ratio/start", "clipped", "surprisal", "entropy", "correction")
_VALUE_METRICS = ("value/loss", "value/clipped")


class _Loss(NamedTuple):
    """The loss of the policy with its penalties, and that of the values."""

    policy: torch.Tensor
    value: torch.Tensor


@dataclass(eq=False)
class _RunningMeans:
    """Means of the mini-batches' metrics, weighted by tokens for metrics of tokens."""

    counts: dict[str, float] = field(
        default_factory=lambda: {"update/skipped": 0.0, "update/empty": 0.0, "optimizer_steps": 0.0}, init=False
    )
    _sums: dict[str, float] = field(default_factory=dict, init=False)
    _weights: dict[str, float] = field(default_factory=dict, init=False)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def compute_metrics(self, passes: Passes, shared: Sequence[str]) -> dict[str, float]:
        """The means. The metrics in `shared` are summed over all shares of the rows; all others are equal in every share."""
        names = dict.fromkeys(shared)
        sums = passes.add_up([self._sums.get(name, 0.0) for name in names])
        weights = passes.add_up([self._weights.get(name, 0.0) for name in names])
        for name, total, weight in zip(names, sums, weights, strict=True):
            if weight:
                self._sums[name], self._weights[name] = total, weight
        return {name: total / self._weights[name] for name, total in self._sums.items()} | self.counts
