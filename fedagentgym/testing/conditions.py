"""Conditions that several checks share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedagentgym.base.errors import FedAgentGymError


@contextmanager
def global_generators_untouched(who: str) -> Iterator[None]:
    """Check that whatever runs inside draws no number from the process's global generators."""
    before = (random.getstate(), repr(np.random.get_state()))
    yield
    assert (random.getstate(), repr(np.random.get_state())) == before, f"{who} draws from a global generator"


@contextmanager
def errors_as_failures() -> Iterator[None]:
    """Convert an error of this package about the checked object into a failed check."""
    try:
        yield
    except FedAgentGymError as error:
        raise AssertionError(str(error)) from error
