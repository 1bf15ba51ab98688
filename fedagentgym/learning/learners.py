"""Learners of a policy: on this process's device, or on several devices for a sharded policy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from fedagentgym.agents.protocols import Decoding, Policy, TrainablePolicy
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.supervised import SupervisedTraining
from fedagentgym.learning.update import PolicyUpdate

Arrays = Mapping[str, NDArray[Any]]


@runtime_checkable
class SpreadPolicy(Protocol):
    """A policy that is on several devices while it is trained (`learning/sharding`)."""

    def open_update(
        self, decoding: Decoding, settings: LearningSettings, proximal: float, base: Arrays | None
    ) -> PolicyUpdate:
        """The policy's learner."""
        ...

    def open_imitation(self, settings: SupervisedSettings) -> SupervisedTraining:
        """The policy's imitation."""
        ...

    def put_together(self) -> AbstractContextManager[None]:
        """Inside this context, the model here has all its weights."""
        ...


def open_update(
    policy: TrainablePolicy, decoding: Decoding, settings: LearningSettings, proximal: float, base: Arrays | None
) -> PolicyUpdate:
    """The learner of a policy."""
    if isinstance(policy, SpreadPolicy):
        return policy.open_update(decoding, settings, proximal, base)
    return PolicyUpdate(policy, decoding, settings, proximal=proximal, base=base)


def open_imitation(policy: TrainablePolicy, settings: SupervisedSettings) -> SupervisedTraining:
    """The supervised training of a policy."""
    if isinstance(policy, SpreadPolicy):
        return policy.open_imitation(settings)
    return SupervisedTraining(policy, settings)


def put_together(policy: Policy) -> AbstractContextManager[None]:
    """Inside this context, the policy's model can be run here like any model."""
    return policy.put_together() if isinstance(policy, SpreadPolicy) else nullcontext()
