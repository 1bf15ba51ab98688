"""Bounds on the effect of one client: checks of its update, clipping, and differential privacy.

Dtype, shape and finiteness are checked when a reply is decoded. This module compares the size of an update with a fixed bound and
with the updates of the other clients; it clips updates, which shortens them instead of refusing them; and it adds noise.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_path, read_text, write_atomic
from fedagentgym.base.imports import require
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Failure, ServerState
from fedagentgym.federation.message import Array, Parameters


class UpdateChecks(Settings):
    """Bounds on the distance that a client's parameters may move in one round (Euclidean norm over all of them)."""

    max_norm: float | None = Field(default=None, gt=0.0, description="refuse an update with a greater norm")
    max_ratio: float | None = Field(
        default=20.0,
        gt=1.0,
        description="refuse an update whose norm exceeds this multiple of the lower median norm of the clients that learned in"
        " the round",
    )
    clip_norm: float | None = Field(default=None, gt=0.0, description="shorten a greater update to this norm")

    def find_refused(self, norms: Mapping[int, float], idle: Collection[int] = ()) -> list[Failure]:
        """A failure for every client whose update is too long, given the norms of all updates of the round. The median ignores
        `idle` clients unless all are idle: they had no signal to learn from, so only the optimizer's decay moved them."""
        learners = {client: norm for client, norm in norms.items() if client not in idle} or norms
        moved = sorted(norm for norm in learners.values() if norm > 0.0 and math.isfinite(norm))
        bound = float(np.finfo(np.float64).max) if self.max_norm is None else self.max_norm
        if self.max_ratio is not None and moved:
            bound = min(bound, self.max_ratio * moved[(len(moved) - 1) // 2])
        return [
            Failure(client, "refused", f"update of norm {norm:.4g}: at most {bound:.4g} is allowed")
            for client, norm in norms.items()
            if not norm <= bound
        ]

    def clip(self, current: Parameters, parameters: Parameters, norm: float) -> Parameters:
        """The parameters, moved back towards `current` if their update is longer than `clip_norm`."""
        if self.clip_norm is None or norm <= self.clip_norm:
            return parameters
        return scale_update(current, parameters, self.clip_norm / norm)


def scale_update(current: Parameters, parameters: Parameters, factor: float) -> dict[str, Array]:
    """`current` moved by `factor` times the update."""
    result = {}
    for name, value in current.items():
        wide = value.astype(np.float64)
        result[name] = (wide + factor * (parameters[name].astype(np.float64) - wide)).astype(value.dtype)
    return result


class PrivacySettings(Settings):
    """Options of differential privacy, as in `algorithm: {privacy: {clip_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}}`."""

    clip_norm: float = Field(gt=0.0, description="C: greatest norm of a client's update")
    noise_multiplier: float = Field(
        gt=0.0, le=1e4, description="z: standard deviation of the noise on the sum, in units of C"
    )
    delta: float = Field(gt=0.0, lt=1.0, description="probability with which epsilon may not hold; below 1 / clients")
    secret: bool = Field(
        default=True,
        description="draw participants and noise from a secret of the run; false: from its seed, repeatable, without an epsilon",
    )


class PrivateMean:
    """Client-level differential privacy of the global model: every update is clipped, and Gaussian noise is added to their sum.

        theta <- theta + ( sum over the clients that answered of clip(theta_k - theta, C)  +  N(0, (z C)^2) ) / M

    M is the number of clients that were called, however many replied, so one client's influence on the sum is at most C. If one
    client is exchanged for another, as the accountant assumes, the sum changes by at most 2 C. The guarantee holds against
    observers of global models and of the run's records; the server itself sees the single updates, and must be trusted. Epsilon
    comes from Google's dp-accounting (extra [privacy]): Renyi accounting of sampling without replacement under exchange of one
    client. Sampling only protects against an observer who does not know the participants, so they are drawn from the run's
    secret, and the run's records do not name them.

    This is an accumulator, in which an update's weight is `clip_factor` of its norm. `asked` is the number of clients that were
    called; `random` draws the noise. Noise is added even if no client replies, so that the model does not reveal it.
    """

    def __init__(self, state: ServerState, asked: int, settings: PrivacySettings, random: np.random.Generator) -> None:
        self._state, self._asked = state, asked
        scale = settings.noise_multiplier * settings.clip_norm
        self._start = {name: state.parameters[name].astype(np.float64) for name in sorted(state.parameters)}
        self._sums = {name: random.normal(scale=scale, size=start.shape) for name, start in self._start.items()}

    def add(self, update: Parameters, weight: float) -> None:
        for name, start in self._start.items():
            self._sums[name] += weight * (update[name].astype(np.float64) - start)

    def finish(self) -> ServerState:
        current = self._state.parameters
        moved = {name: start + self._sums[name] / self._asked for name, start in self._start.items()}
        return replace(self._state, parameters={name: wide.astype(current[name].dtype) for name, wide in moved.items()})


ASSUMED = (
    "one client is exchanged for another",
    "who took part is known to nobody but the server",
    "nothing is published but models, what follows from them, and records of a private run",
)
"""The accountant's assumptions, which are shown with every epsilon."""


def format_privacy(found: Mapping[str, Any]) -> str:
    """An epsilon with the assumptions of its accountant, from the record in a result.

    >>> format_privacy({"epsilon": 3.681, "delta": 0.001, "assumed": ["one client is exchanged for another"]})
    'private: epsilon 3.68 at delta 0.001, if one client is exchanged for another'
    """
    epsilon, delta = float(found["epsilon"]), float(found["delta"])
    return f"private: epsilon {epsilon:.3g} at delta {delta:g}, if {'; '.join(map(str, found['assumed']))}"


SECRET = "secret.key"
"""The file of a run's folder from which a private run draws participants and noise: it is never published."""


def load_secret(folder: Path, *, begun: bool) -> int:
    """The secret of a private run, drawn when the run begins and kept, so that a killed run continues with the same draws."""
    place = folder / SECRET
    if not place.exists():
        if begun:
            raise DataError(
                f"{format_path(place)} is missing: this private run draws from it, and cannot continue without it"
            )
        write_atomic(place, secrets.token_hex(32) + "\n", mode=0o600)
    text = read_text(place).strip()
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise DataError(f"{format_path(place)}: malformed, not the secret of a private run")
    return int(text, 16)


def clip_factor(settings: PrivacySettings, norm: float) -> float:
    """The factor that shortens an update of this norm to the bound."""
    return min(1.0, settings.clip_norm / norm) if norm > 0.0 else 0.0


def compute_epsilon(settings: PrivacySettings, *, rounds: int, asked: int, clients: int) -> float:
    """The epsilon at `settings.delta` after this many rounds, each of which drew `asked` of `clients` without replacement."""
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
