"""Votes that may be published: the Gaussian noise that makes a histogram of private examples (epsilon, delta)-private.

Each private example votes once per iteration, so adding or removing it changes one count by one: the histogram's sensitivity is
1 in Euclidean norm. One release with noise of deviation sigma is (1 / (2 sigma^2))-zCDP; T releases add up; and rho-zCDP is
(rho + 2 sqrt(rho ln(1 / delta)), delta)-differentially private (Bun and Steinke 2016, proposition 1.3). Solved for sigma:

    rho = (sqrt(ln(1 / delta) + epsilon) - sqrt(ln(1 / delta)))^2        sigma = sqrt(T / (2 rho))

The noise comes from the run's reproducible streams, not from a cryptographic source, and is a float64 Gaussian: suited to
experiments about utility under a given budget, not to protecting real secrets.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream

Floats = NDArray[np.float64]


def compute_noise_deviation(epsilon: float, delta: float, iterations: int) -> float:
    """sigma for this many releases under a total budget of (epsilon, delta)."""
    if not epsilon > 0 or not 0 < delta < 1 or iterations < 1:
        raise OptionError(
            f"epsilon > 0, 0 < delta < 1 and iterations >= 1 are needed, got {epsilon}, {delta}, {iterations}"
        )
    return math.sqrt(iterations / (2 * compute_zcdp_rho(epsilon, delta)))


def compute_zcdp_rho(epsilon: float, delta: float) -> float:
    """The rho that (epsilon, delta) allows."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


def compute_epsilon(deviation: float, delta: float, iterations: int) -> float:
    """The epsilon of this many releases with this noise."""
    rho = iterations / (2 * deviation**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def count_votes(private: Floats, candidates: Floats) -> NDArray[np.int64]:
    """How many private examples are nearest to each candidate, by cosine; the lower index first among equals."""
    winners = np.argmax(private @ candidates.T, axis=1) if len(private) else np.zeros(0, dtype=np.int64)
    return np.bincount(winners, minlength=len(candidates)).astype(np.int64)


def add_noise(votes: NDArray[np.int64], deviation: float, draw: Stream) -> Floats:
    """The histogram with noise, which may be published."""
    return votes + draw.normal(0.0, deviation, size=len(votes))
