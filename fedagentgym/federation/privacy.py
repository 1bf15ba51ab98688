"""Client-level differential privacy of the global model: every update is clipped, and Gaussian noise is added to their sum.

    theta <- theta + ( sum over the clients that answered of clip(theta_k - theta, C)  +  N(0, (z C)^2) ) / M

M is the number of clients that were asked, whoever answered, so one client's influence on the sum is at most C (2 C when one
client is exchanged for another, which is what is accounted). The guarantee is about whoever sees global models and nothing
else: the server itself sees the single updates, and must be trusted. Epsilon comes from Google's dp-accounting (extra
[privacy]): Renyi accounting of sampling without replacement under exchange of one client. Sampling only helps against somebody
who does not know who took part, and the run's own records name the participants: publish models, not records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from fedagentgym.base.extras import require
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Contribution, Parameters
from fedagentgym.federation.checks import update_norm


class PrivacySettings(Settings):
    """`algorithm: {privacy: {clip_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}}`."""

    clip_norm: float = Field(gt=0.0, description="C: greatest norm of a client's update")
    noise_multiplier: float = Field(gt=0.0, description="z: standard deviation of the noise on the sum, in units of C")
    delta: float = Field(gt=0.0, lt=1.0, description="probability with which epsilon may not hold; below 1 / clients")
    secret: bool = Field(
        default=False, description="draw the noise from the operating system: private, but not repeatable"
    )


def private_mean(
    current: Parameters,
    given: Sequence[Contribution],
    asked: int,
    settings: PrivacySettings,
    random: np.random.Generator,
) -> dict[str, np.ndarray[Any, Any]]:
    """The formula at the head of this module. `random` draws the noise unless it is to be secret."""
    noise = np.random.Generator(np.random.PCG64()) if settings.secret else random
    shares = {}
    for each in given:
        norm = update_norm(current, each.parameters)
        shares[each.client] = min(1.0, settings.clip_norm / norm) if norm > 0.0 else 0.0
    ordered = sorted(given, key=lambda each: each.client)
    result = {}
    for name in sorted(current):
        wide = current[name].astype(np.float64)
        total = noise.normal(scale=settings.noise_multiplier * settings.clip_norm, size=wide.shape)
        for each in ordered:
            total += shares[each.client] * (each.parameters[name].astype(np.float64) - wide)
        result[name] = (wide + total / asked).astype(current[name].dtype)
    return result


def epsilon(settings: PrivacySettings, *, rounds: int, asked: int, clients: int) -> float:
    """What so many rounds have spent at `settings.delta`, when each drew `asked` of `clients` without replacement."""
    accounting: Any = require("dp_accounting", "privacy")
    renyi: Any = require("dp_accounting.rdp", "privacy")
    if rounds == 0:
        return 0.0
    gaussian = accounting.GaussianDpEvent(settings.noise_multiplier / 2.0)
    event = accounting.SampledWithoutReplacementDpEvent(source_dataset_size=clients, sample_size=asked, event=gaussian)
    accountant = renyi.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event if asked < clients else gaussian, rounds)
    spent = float(accountant.get_epsilon(settings.delta))
    return spent if math.isfinite(spent) else math.inf
