"""Penalties: terms that are added to the policy loss, and corrections of its gradient.

    Proximal    mu / 2 * |theta - start|^2                               FedProx: stay near the start of the round
    KL          beta * KL(policy || reference), estimated by k3          the reference is the start of the round, or a frozen base

A method passes its own penalties to `Site.open_learner`; SCAFFOLD and FedDyn consist of penalties. They are created for each
round, so a method keeps values that must outlast the round in the client's state. If a penalty refers to the weights at the start
of the round, these are kept with the state of the learner (`SiteState.anchor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedagentgym.agents.model.names import VALUE_HEAD
from fedagentgym.base.errors import OptionError
from fedagentgym.learning.losses import MAX_LOG_RATIO
from fedagentgym.learning.settings import KLSettings

if TYPE_CHECKING:
    from torch import Tensor

    from fedagentgym.learning.weights import Arrays, Tensors


class Penalty:
    """A term of the loss of every policy step; subclass it and override what the term needs.

    A term of the parameters sets `of_parameters` and overrides `add_gradients`, which is called after the gradient of the
    policy's loss is complete, before the gradient is clipped and the optimizer steps. A term that compares the log-probs of the
    tokens with those of another policy overrides `get_reference` and `compute_token_losses`.

    Examples:
        >>> class Decay(Penalty):
        ...     of_parameters = True
        ...     def add_gradients(self, parameters):
        ...         for value in parameters.values():
        ...             add_gradient(value, 0.01 * value.detach())
        ...         return sum(0.005 * float(value.detach().square().sum()) for value in parameters.values())
    """

    name: ClassVar[str] = ""
    """Name of the metric that reports a term of the tokens."""
    uses_start: bool = False
    """True if the term refers to the weights at the start of the round."""
    of_parameters: ClassVar[bool] = False
    coefficient: float = 1.0

    def begin(self, parameters: Tensors, start: Tensors) -> None:
        """Prepare the term; called when the learner has loaded a state.

        Args:
            parameters: The parameters that the optimizer updates, by name.
            start: The weights at the start of the round; empty unless a penalty of the learner uses it.
        """

    def add_gradients(self, parameters: Tensors) -> float:
        """Add the term's gradient to the `grad` of each parameter.

        Args:
            parameters: The parameters that the optimizer updates; `grad` is None if the policy's loss has no gradient for one.

        Returns:
            The value of the term, which is reported as part of the loss.
        """
        return 0.0

    def get_reference(self) -> Tensors | None:
        """Return the weights of the policy to compare log-probabilities with; None for a term of the parameters alone."""
        return None

    def compute_token_losses(self, logprobs: Tensor, reference: Tensor) -> Tensor:
        """Return the term of each token; the learner multiplies it by `coefficient`.

        Args:
            logprobs: Log-probability of each token under the policy.
            reference: The same under the reference.

        Returns:
            One value for each token.
        """
        raise NotImplementedError


class Proximal(Penalty):
    """The proximal term of FedProx: `mu / 2 * |theta - start|^2`, where `start` are the weights at the start of the round.

    Args:
        mu: Weight of the term, at least 0.
    """

    uses_start = True
    of_parameters = True

    def __init__(self, mu: float) -> None:
        if not np.isfinite(mu) or mu < 0:
            raise OptionError(f"the proximal coefficient must be a number of at least 0, got {mu}")
        self.coefficient = mu
        self._start: Tensors = {}

    def begin(self, parameters: Tensors, start: Tensors) -> None:
        self._start = start

    def add_gradients(self, parameters: Tensors) -> float:
        from fedagentgym.learning.passes import to_number

        value = 0.0
        for name, parameter in parameters.items():
            difference = parameter.detach() - self._start[name]
            value += self.coefficient / 2 * to_number(difference.double().square().sum())
            add_gradient(parameter, self.coefficient * difference)
        return value


class KL(Penalty):
    """The k3 estimate of KL(policy || reference) at each token.

    Args:
        coefficient: Weight of the term.
        base: Weights of the reference; by default those at the start of the round.
    """

    name = "kl"

    def __init__(self, coefficient: float, base: Arrays | None = None) -> None:
        self.coefficient, self.uses_start = coefficient, base is None
        self._base = base
        self._reference: Tensors = {}

    def begin(self, parameters: Tensors, start: Tensors) -> None:
        from fedagentgym.learning.weights import to_parameter_tensors

        if self._base is None:
            self._reference = start
            return
        # a value head changes no log-prob, and the reference may be older than the head
        policy = {name: value for name, value in parameters.items() if not name.startswith(VALUE_HEAD)}
        base = {name: value for name, value in self._base.items() if not name.startswith(VALUE_HEAD)}
        self._reference = to_parameter_tensors(base, policy)

    def get_reference(self) -> Tensors:
        return self._reference

    def compute_token_losses(self, logprobs: Tensor, reference: Tensor) -> Tensor:
        return compute_k3(logprobs, reference)


def compute_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference) at each token; the exponent is bounded, so that nothing overflows."""
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


def make_kl(settings: KLSettings, base: Arrays) -> KL:
    """The configured KL term; `base` are the weights of the agent as first loaded."""
    return KL(settings.coefficient, base if settings.reference == "base" else None)


def add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a parameter's gradient, which may be None; for `Penalty.add_gradients`.

    Args:
        parameter: The parameter.
        gradient: The gradient to add.
    """
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)
