"""The policy step: what must not change its value, and what must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.learning.advantages import group_advantages, objective_values
from fedagentgym.learning.forward import compute_logprobs, split_decoder_and_head
from fedagentgym.learning.learner import PolicyUpdate
from fedagentgym.learning.losses import LOSSES, Tokens
from fedagentgym.learning.passes import token_losses, token_weights
from fedagentgym.learning.penalties import Penalty, Proximal, make_kl
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row, Trajectory, build_rows

from .conftest import VOCABULARY, ToyPolicy

Groups = list[tuple[Trajectory, ...]]
MakeGroups = Callable[..., Groups]

OWN_LOSSES = [name for name in LOSSES.names() if LOSSES.get(name).__module__ == "fedagentgym.learning.losses"]


def rows_of(groups: Sequence[tuple[Trajectory, ...]], settings: LearningSettings) -> list[Row]:
    return build_rows(
        groups, [group_advantages(group, objective_values(group, "score"), settings.advantage) for group in groups]
    )


def learner(policy: ToyPolicy, **options: Any) -> PolicyUpdate:
    base, decoding = options.pop("base", policy.get_weights()), options.pop("decoding", Decoding())
    penalties: list[Penalty] = [Proximal(options.pop("proximal"))] if "proximal" in options else []
    settings = LearningSettings.load({"learning_rate": 1e-2, **options})
    if settings.kl.coefficient:
        penalties.append(make_kl(settings.kl, base))
    return PolicyUpdate(policy, decoding, settings, penalties=penalties)


def after_one_step(
    groups: Groups, steps: int = 1, **options: Any
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, float]]:
    policy = ToyPolicy()
    descent = options.pop("descent", False)
    update = learner(policy, **options)
    if descent:
        update._optimizer = torch.optim.SGD(list(policy.parameters().values()), lr=1.0)
    for order in range(steps):
        metrics = update.train_step(rows_of(groups, update.settings), order=order)
    return policy.get_weights(), metrics


def distance(a: dict[str, np.ndarray[Any, Any]], b: dict[str, np.ndarray[Any, Any]]) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def full_logprobs(policy: ToyPolicy, row: Row) -> torch.Tensor:
    logits = policy.model(input_ids=torch.tensor(row.ids)[None]).logits[0]
    return torch.log_softmax(logits, -1)[torch.tensor(row.own) - 1, torch.tensor(row.ids[row.own])]


def test_scores_of_a_padded_batch_equal_a_full_forward_pass(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    rows = rows_of(make_groups(3, 4), LearningSettings())
    together = compute_logprobs(policy.model, rows, policy.device).logprobs
    alone = torch.cat([full_logprobs(policy, row) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_a_model_that_transforms_its_logits_goes_the_long_way(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    rows = rows_of(make_groups(), LearningSettings())
    short = compute_logprobs(policy.model, rows, policy.device).logprobs
    policy.model.config.final_logit_softcapping = 30.0
    assert split_decoder_and_head(policy.model) is None
    torch.testing.assert_close(compute_logprobs(policy.model, rows, policy.device).logprobs, short, atol=1e-5, rtol=0)


def test_constrained_and_tempered_scores_are_those_of_the_distribution_sampled_from(
    policy: ToyPolicy, make_groups: MakeGroups
) -> None:
    row = rows_of(make_groups(1, 1), LearningSettings())[0]
    choices = [sorted({int(token), 3, 7}) for token in row.ids[row.own]]
    flat = np.array([token for chosen in choices for token in chosen], dtype=np.int32)
    limited = replace(row, allowed_ids=flat, allowed_counts=np.array([len(c) for c in choices], dtype=np.int32))
    scores = compute_logprobs(policy.model, [limited, row], policy.device, temperature=0.5, entropy=True)
    logits = policy.model(input_ids=torch.tensor(row.ids)[None]).logits[0][torch.tensor(row.own) - 1] / 0.5
    expected, entropies = [], []
    for place, chosen in enumerate(choices):
        inside = torch.log_softmax(logits[place, torch.tensor(chosen)], -1)
        expected.append(inside[chosen.index(int(row.ids[row.own][place]))])
        entropies.append(-(inside.exp() * inside).sum())
    free = torch.log_softmax(logits, -1)
    expected += list(free.gather(1, torch.tensor(row.ids[row.own])[:, None])[:, 0])
    entropies += list(-(free.exp() * free).sum(1))
    torch.testing.assert_close(scores.logprobs, torch.stack(expected), atol=1e-5, rtol=0)
    assert scores.entropy is not None
    torch.testing.assert_close(scores.entropy, torch.stack(entropies), atol=1e-5, rtol=0)
    weights = list(policy.parameters().values())
    given = torch.autograd.grad(scores.entropy.sum(), weights)
    wanted = torch.autograd.grad(torch.stack(entropies).sum(), weights)
    torch.testing.assert_close(given, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.by_day(3)
@pytest.mark.parametrize("loss", OWN_LOSSES)
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_micro_batches_do_not_change_the_step(make_groups: MakeGroups, loss: str, kl: float) -> None:
    groups = make_groups(3, 4)
    options = {
        "loss": loss,
        "kl": kl,
        "gradient_epochs": 2,
        "minibatches": 2,
        "entropy": 0.01 if kl else 0.0,
        "descent": True,
    }
    whole, metrics = after_one_step(groups, **options)
    cut, cut_metrics = after_one_step(groups, micro_tokens=1, **options)
    assert distance(whole, ToyPolicy().get_weights()) > 1e-4
    assert distance(whole, cut) < 1e-6
    assert {name: pytest.approx(value, rel=1e-3, abs=1e-6) for name, value in metrics.items()} == cut_metrics


def test_checkpointing_does_not_change_the_step(make_groups: MakeGroups) -> None:
    plain, _ = after_one_step(make_groups(), descent=True)
    checkpointed, _ = after_one_step(make_groups(), descent=True, checkpointing=True)
    assert distance(plain, checkpointed) < 1e-6


def test_the_gradient_is_that_of_the_loss_over_all_rows(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    """One step of plain descent moves each weight by the gradient that autograd finds through the ordinary forward pass."""
    groups = make_groups(2, 4)
    groups.append(tuple(replace(trajectory, score=0.5) for trajectory in groups[0]))
    update = learner(policy, loss="sequence", gradient_clip=None)
    rows = rows_of(groups, update.settings)
    assert [row.active for row in rows[8:]] == [False] * 4
    update._optimizer = torch.optim.SGD(list(policy.parameters().values()), lr=1.0)
    twin = ToyPolicy()
    weights = token_weights(np.array([len(row.own) for row in rows]), update.settings.loss)
    total = torch.zeros(())
    for row, weight in zip(rows, weights, strict=True):
        advantages = torch.tensor(row.advantages).float()
        tokens = Tokens(full_logprobs(twin, row), torch.tensor(row.behaviour), advantages, (len(row.own),))
        parts = token_losses(tokens, update.settings)
        total = total + weight * parts.loss.sum()
    total.backward()
    before = policy.get_weights()
    update.settings = update.settings.model_copy(update={"learning_rate": 1.0})
    metrics = update.train_step(rows)
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-6)
    for name, parameter in twin.parameters().items():
        assert parameter.grad is not None
        np.testing.assert_allclose(before[name] - policy.get_weights()[name], parameter.grad.numpy(), atol=1e-5)


def test_constant_groups_leave_weights_and_moments_alone(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    groups = [tuple(replace(trajectory, score=1.0) for trajectory in group) for group in make_groups()]
    update, before = learner(policy), policy.get_weights()
    metrics = update.train_step(rows_of(groups, update.settings))
    assert metrics["update/empty"] == 1
    assert distance(before, policy.get_weights()) == 0 and update.get_optimizer_state() == {}


def test_no_rows_and_rows_without_own_tokens_are_nothing_to_learn(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    update, before = learner(policy), policy.get_weights()
    row = rows_of(make_groups(1, 1), update.settings)[0]
    nothing = np.zeros(0)
    silent = Row(
        row.ids, nothing.astype(np.int64), nothing.astype(np.float32), nothing, row.allowed_ids, row.allowed_counts
    )
    assert update.train_step([])["update/skipped"] == 0
    assert update.train_step([silent])["update/empty"] == 1
    assert distance(before, policy.get_weights()) == 0


def test_a_step_that_is_not_finite_is_skipped_and_counted(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    update = learner(policy, gradient_epochs=2)
    rows = rows_of(make_groups(), update.settings)
    rows[0].advantages[:] = np.nan
    before = policy.get_weights()
    assert update.train_step(rows)["update/skipped"] == 2
    assert distance(before, policy.get_weights()) == 0


def test_kl_pulls_back_to_its_reference(make_groups: MakeGroups) -> None:
    groups = make_groups()
    base = ToyPolicy().get_weights()
    free, _ = after_one_step(groups, steps=8)
    bound, metrics = after_one_step(groups, steps=8, kl=3.0)
    frozen, frozen_metrics = after_one_step(groups, steps=8, kl={"coefficient": 3.0, "reference": "base"}, base=base)
    assert distance(bound, base) < distance(free, base)
    assert distance(frozen, bound) == 0 and frozen_metrics == metrics
    assert metrics["kl"] > 0


def test_the_round_s_reference_moves_with_the_round_and_the_base_does_not(policy: ToyPolicy) -> None:
    other = {name: value + 0.1 for name, value in policy.get_weights().items()}
    update = learner(policy, kl=0.1)
    update.load(other, {}, {})
    assert distance(update.get_anchor_weights(), other) == 0
    with pytest.raises(DataError, match="on one side only"):
        learner(ToyPolicy(), kl={"coefficient": 0.1, "reference": "base"}, base={"x": np.zeros(1)})


def test_the_proximal_term_is_half_mu_times_the_squared_distance(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    anchor = policy.get_weights()
    moved = {name: value + 0.05 for name, value in anchor.items()}
    update = learner(policy, proximal=0.5)
    update.load(moved, {}, anchor)
    update._optimizer.zero_grad()
    (penalty,) = update._penalties
    value = penalty.add_gradients(dict(policy.parameters()))
    count = sum(array.size for array in anchor.values())
    assert value == pytest.approx(0.25 * count * 0.05**2, rel=1e-4)
    for parameter in policy.parameters().values():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.025), atol=1e-6, rtol=0)
    free, _ = after_one_step(make_groups(), steps=5)
    held, _ = after_one_step(make_groups(), steps=5, proximal=100.0)
    assert distance(held, anchor) < distance(free, anchor)


def test_a_site_moved_half_way_goes_on_bit_for_bit(make_groups: MakeGroups) -> None:
    groups = make_groups()
    options = {"kl": 0.1, "minibatches": 2}
    straight, _ = after_one_step(groups, steps=4, **options)
    first = learner(ToyPolicy(), **options)
    for order in range(2):
        first.train_step(rows_of(groups, first.settings), order=order)
    second = learner(ToyPolicy(seed=5), **options)
    second.load(first.get_weights(), first.get_optimizer_state(), first.get_anchor_weights())
    for order in range(2, 4):
        second.train_step(rows_of(groups, second.settings), order=order)
    assert distance(straight, second.get_weights()) == 0
    with pytest.raises(DataError, match="does not belong"):
        second.load(first.get_weights(), {"counts": np.ones(3)}, {})


def test_steps_too_small_for_bfloat16_are_not_lost(make_groups: MakeGroups) -> None:
    """The masters move, travel and come back exactly; the model holds their roundings."""
    policy = ToyPolicy()
    policy.model.to(torch.bfloat16)
    update = learner(policy, learning_rate=1e-6)
    before = update.get_weights()
    for order in range(20):
        update.train_step(rows_of(make_groups(), update.settings), order=order)
    after = update.get_weights()
    assert all(array.dtype == np.float32 for array in after.values())
    assert distance(before, after) > 5e-6
    name = "model.layers.0.self_attn.q_proj.weight"
    rounded = policy.parameters()[name].detach().float().numpy()
    assert not np.array_equal(rounded, after[name])
    np.testing.assert_array_equal(rounded, torch.from_numpy(after[name]).bfloat16().float().numpy())
    update.load(after, update.get_optimizer_state(), {})
    assert distance(update.get_weights(), after) == 0


def test_the_process_s_generator_is_left_alone(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    before = torch.random.get_rng_state()
    learner(policy).train_step(rows_of(make_groups(), LearningSettings()))
    assert torch.equal(before, torch.random.get_rng_state())


def test_training_a_greedy_policy_is_refused(policy: ToyPolicy) -> None:
    with pytest.raises(OptionError, match="temperature"):
        learner(policy, decoding=Decoding(temperature=0.0))


def test_rescored_log_probs_are_the_policy_s_own(policy: ToyPolicy, make_groups: MakeGroups) -> None:
    groups = make_groups()
    update = learner(policy)
    fresh = update.recompute_logprobs(groups)
    for row, old in zip(rows_of(fresh, update.settings), rows_of(groups, update.settings), strict=True):
        np.testing.assert_allclose(row.behaviour, full_logprobs(policy, row).detach(), atol=1e-5)
        assert not np.allclose(row.behaviour, old.behaviour)
    assert update.train_step(rows_of(fresh, update.settings))["ratio"] == pytest.approx(1.0, abs=1e-5)


def test_the_bias_gradient_is_that_of_a_bias_added_to_the_last_block(
    policy: ToyPolicy, make_groups: MakeGroups
) -> None:
    update = learner(policy, micro_tokens=30)
    rows = rows_of(make_groups(2, 4), update.settings)
    found = update.compute_bias_gradient(rows)
    assert found.shape == (16,) and all(p.requires_grad and p.grad is None for p in policy.parameters().values())
    direction = np.random.default_rng(0).standard_normal(16)

    def loss(step: float) -> float:
        push = torch.tensor(step * direction, dtype=torch.float32)
        handle = policy.model.model.layers[-1].register_forward_hook(lambda module, inputs, output: output + push)
        weight = token_weights(np.array([len(row.own) for row in rows]), update.settings.loss)
        total = 0.0
        for row, w in zip(rows, weight, strict=True):
            advantages = torch.tensor(row.advantages).float()
            tokens = Tokens(full_logprobs(policy, row), torch.tensor(row.behaviour), advantages, (len(row.own),))
            parts = token_losses(tokens, update.settings)
            total += float(w * parts.loss.detach().double().sum())
        handle.remove()
        return total

    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    assert float(found @ direction) == pytest.approx(slope, rel=2e-2, abs=1e-3)


def test_learning_raises_the_probability_of_rewarded_tokens(policy: ToyPolicy) -> None:
    """A bandit: the reply is one token, token 4 is paid. No environment, only the loss."""
    random = np.random.default_rng(0)
    update = learner(policy)
    prompt = np.array([1, 2, 3])
    for order in range(30):
        logits = policy.model(input_ids=torch.tensor(prompt)[None]).logits[0, -1]
        chances = torch.softmax(logits, -1).detach().numpy().astype(np.float64)
        tokens = random.choice(VOCABULARY, size=32, p=chances / chances.sum())
        paid = (tokens == 4).astype(np.float64)
        empty = np.zeros(0, dtype=np.int32)
        rows = [
            Row(
                np.append(prompt, t),
                np.array([3]),
                np.log(chances[[t]]).astype(np.float32),
                np.array([r]),
                empty,
                empty,
            )
            for t, r in zip(tokens, (paid - paid.mean()) / (paid.std() + 1e-6), strict=True)
        ]
        update.train_step(rows, order=order)
    assert chances[4] > 0.9


@pytest.mark.parametrize("fill", [False, True])
def test_steps_of_so_many_rows(policy: ToyPolicy, make_groups: MakeGroups, fill: bool) -> None:
    update = learner(policy, minibatch_rows=3, minibatch_fill=fill, gradient_epochs=2, kl=0.1)
    rows = rows_of(make_groups(), update.settings)
    update.train_step(rows)
    taken = update.get_optimizer_state()["counts"]
    assert set(taken.tolist()) == {2.0 * -(-len(rows) // 3)} and len(rows) % 3
