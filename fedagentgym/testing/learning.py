"""Checks of advantage estimators and objectives on made-up groups of episodes, and of policy losses on made-up tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.base.imports import Registry
from fedagentgym.base.streams import Stream, stream
from fedagentgym.learning.advantages import (
    ADVANTAGES,
    OBJECTIVES,
    AdvantageEstimator,
    group_advantages,
    group_objective,
    objective_values,
)
from fedagentgym.learning.losses import LOSSES, BaseLoss, Clip, PolicyTerms, Tokens, compute_terms
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group, Trajectory, Turn
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (8, 5, 2, 1)
ADVANTAGE_DUTY = "an estimator has estimate(group, rewards), which returns an array over the turns for each episode"
OBJECTIVE_DUTY = "an objective is called as objective(group) and returns one number for each episode of the group"
LOSS_DUTY = "a loss has compute(tokens, clip), which returns PolicyTerms(loss, ratio) with one value for each token"
WORDS = ("go", "to", "the", "left", "lamp", "red", "door")


def sample_groups() -> list[Group]:
    """Return groups of several sizes with episodes of 1 to 5 turns. In the last group all rewards are zero."""
    draws = stream(0, "sample groups")
    groups = [tuple(_episode(draws, number, sample) for sample in range(size)) for number, size in enumerate(SIZES)]
    return [*groups, tuple(_episode(draws, len(SIZES), sample, paid=False) for sample in range(4))]


def _episode(draws: Stream, number: int, sample: int, *, paid: bool = True) -> Trajectory:
    length = 1 + draws.integers(5)
    success = paid and draws.uniform() < 0.5
    turns = []
    for turn in range(length):
        last = turn == length - 1
        reward = draws.uniform() if paid and not last else float(success and last)
        words = [draws.pick(WORDS) for _ in range(1 + draws.integers(12))]
        observation = f"place {draws.integers(3)}"
        turns.append(
            Turn(observation, " ".join(words), (words[0],), reward, True, draws.uniform() < 0.8, tokens=len(words))
        )
    return Trajectory(
        f"check/train/{number:05d}",
        number,
        tuple(turns),
        category="check",
        sample=sample,
        score=float(success),
        success=success,
        terminated=True,
    )


def check_advantage(name: str, **settings: object) -> None:
    """Check a registered advantage estimator on made-up groups of episodes.

    The estimator must give one finite number per turn, and the same numbers each time. It must not change the rewards, use the
    global random generators, or depend on the order of a group's episodes. Its settings must survive a configuration file.

    Args:
        name: The name under which it is registered.
        **settings: Settings of the estimator.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_advantage
        >>> check_advantage("grpo", std="sample")
    """
    with errors_as_failures(ADVANTAGE_DUTY, partial(ADVANTAGES.get, name), who=f"the advantage estimator {name!r}"):
        estimator: AdvantageEstimator = _load(
            ADVANTAGES, "advantage", name, settings, AdvantageEstimator, "AdvantageEstimator"
        )
        with global_generators_untouched(name):
            for group in sample_groups():
                rewards = objective_values(group, "reward")
                given = tuple(part.copy() for part in rewards)
                first = group_advantages(group, given, estimator)
                assert all(map(np.array_equal, given, rewards)), f"{name} changes the rewards that it is given"
                again = group_advantages(group, given, estimator)
                assert all(map(np.array_equal, first, again)), f"{name} gives the same group other advantages each time"
                turned = group_advantages(group[::-1], given[::-1], estimator)[::-1]
                assert all(map(np.allclose, first, turned)), f"{name} depends on the order of a group's episodes"


def _load(registry: Registry, key: str, name: str, settings: Mapping[str, object], base: type[Any], public: str) -> Any:
    """A registered part of the learner with these settings, which must survive a file."""
    found = registry.get(name)
    assert isinstance(found, type) and issubclass(found, base), (
        f"{name} is not a class derived from fedagentgym.learning.{public}"
    )
    part = getattr(LearningSettings.load({key: {"name": name, **settings}}, "learning"), key)
    again = getattr(LearningSettings.load({key: part.model_dump(mode="json")}, "learning"), key)
    assert again == part, f"the settings of {name} do not survive a file"
    return part


def check_objective(name: str) -> None:
    """Check a registered objective on made-up groups of episodes.

    The objective must give one finite number per episode, and the same numbers each time. It must not use the global random
    generators or depend on the order of a group's episodes.

    Args:
        name: The name under which it is registered.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_objective
        >>> check_objective("length")
    """
    assert name not in ("reward", "score"), f"{name!r} is the environment's reward: choose another name"
    known = errors_as_failures(OBJECTIVE_DUTY, partial(OBJECTIVES.get, name), who=f"the objective {name!r}")
    with known, global_generators_untouched(name):
        for group in sample_groups():
            first = group_objective(group, name)
            assert group_objective(group, name) == first, f"{name} gives the same group other values each time"
            turned = group_objective(group[::-1], name)[::-1]
            assert np.allclose(first, turned), f"{name} depends on the order of a group's episodes"


LENGTHS = (3, 7, 1, 5)


def check_loss(name: str, **settings: object) -> None:
    """Check a registered policy loss on made-up rows of tokens.

    The loss must give every token a finite loss and ratio, also if a probability has changed by many orders of magnitude, and
    the same ones each time. Its gradient must make tokens with a positive advantage more likely, and be zero for tokens without
    advantage. The loss must not change its tokens or use the global random generators. The loss of a row must not depend on other
    rows, and the settings must survive a file.

    Args:
        name: The name under which it is registered.
        **settings: Settings of the loss.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_loss
        >>> check_loss("gspo", clip=[0.1, 0.2])
    """
    with errors_as_failures(LOSS_DUTY, partial(LOSSES.get, name), who=f"the policy loss {name!r}"):
        import torch

        loss: BaseLoss = _load(LOSSES, "loss", name, settings, BaseLoss, "PolicyLoss")
        played, moved, advantages = _make_tokens()
        none, far = torch.zeros_like(advantages), 1e4 * (torch.arange(len(moved)) % 2)
        cases = {
            "usual": (moved, played, advantages),
            "played": (played, played, advantages),
            "without advantages": (moved, played, none),
            "became unlikely": (moved - far, played, advantages),
            "became likely": (moved, played - far, advantages),
        }
        with global_generators_untouched(name):
            for case, (logprobs, behaviour, given) in cases.items():
                terms, gradient = _compute(loss, logprobs, behaviour, given)
                for part, value in {"loss": terms.loss, "ratio": terms.ratio, "gradient": gradient}.items():
                    assert value.shape == logprobs.shape, (
                        f"{name} gives a {part} of shape {tuple(value.shape)}, not one per token"
                    )
                    assert torch.isfinite(value).all(), f"{name} gives a {part} that is not finite"
                assert torch.equal(terms.loss, _compute(loss, logprobs, behaviour, given)[0].loss), (
                    f"{name} gives the same tokens another loss each time"
                )
                if case == "played":
                    assert float((gradient * given).sum()) < 0, (
                        f"{name} does not make tokens with a positive advantage more likely"
                    )
                if case == "without advantages":
                    assert not gradient.any(), (
                        f"{name} gives a gradient to tokens without advantage, which have no effect"
                    )
            terms, _ = _compute(loss, moved, played, advantages)
            for row, places in enumerate(torch.split(torch.arange(len(moved)), list(LENGTHS))):
                alone, _ = _compute(loss, moved[places], played[places], advantages[places], LENGTHS[row])
                assert torch.allclose(alone.loss, terms.loss[places]), (
                    f"{name} gives a row another loss if there are other rows"
                )


def _make_tokens() -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probs of the policy that played, log-probs of a changed policy, and advantages that differ within a row."""
    import torch

    draws, count = stream(0, "sample tokens"), sum(LENGTHS)
    numbers = torch.tensor([[draws.uniform() for _ in range(count)] for _ in range(3)], dtype=torch.float32)
    return -3 * numbers[0], -3 * numbers[0] + numbers[1] - 0.5, 2 * numbers[2] - 1


def _compute(
    loss: BaseLoss, logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *lengths: int
) -> tuple[PolicyTerms, Tensor]:
    """Return the terms, and the gradient of the sum of the losses."""
    import torch

    given = (logprobs.clone().requires_grad_(), behaviour.clone(), advantages.clone())
    terms = compute_terms(loss, Tokens(*given, lengths or LENGTHS), Clip())
    assert all(map(torch.equal, given, (logprobs, behaviour, advantages))), (
        f"{loss.name} changes the tokens that it is given"
    )
    assert terms.loss.requires_grad, f"{loss.name} gives a loss without gradient"
    (gradient,) = torch.autograd.grad(terms.loss.sum(), given[0])
    return terms, gradient
