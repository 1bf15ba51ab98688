from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedagentgym.base.errors import DataError, MissingExtraError
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.checks import (
    SECRET,
    PrivacySettings,
    PrivateMean,
    clip_factor,
    compute_epsilon,
    load_secret,
)
from fedagentgym.federation.message import update_norm

SIZE = 20_000
START = {"w": np.zeros(SIZE, np.float32)}
QUIET = PrivacySettings(clip_norm=1.0, noise_multiplier=1e-9, delta=1e-3)


def moved(norm: float, seed: int) -> dict[str, np.ndarray]:
    step = np.random.default_rng(seed).normal(size=SIZE)
    return {"w": (step * norm / np.linalg.norm(step)).astype(np.float32)}


def private_mean(
    start: dict[str, np.ndarray], given: list[dict[str, np.ndarray]], asked: int, settings: PrivacySettings, seed: int
) -> dict[str, np.ndarray]:
    accumulator = PrivateMean(ServerState(start), asked, settings, np.random.default_rng(seed))
    for update in given:
        accumulator.add(update, clip_factor(settings, update_norm(start, update)))
    return dict(accumulator.finish().parameters)


def test_no_client_moves_the_model_further_than_its_share() -> None:
    calm = [moved(0.5, k) for k in range(4)]
    wild = [*calm, moved(1e6, 9)]
    first = private_mean(START, calm, 5, QUIET, 0)
    second = private_mean(START, wild, 5, QUIET, 0)
    assert update_norm(first, second) == pytest.approx(1.0 / 5, rel=1e-3)
    small = [moved(0.5, k) for k in range(4)]
    plain = np.sum([update["w"] for update in small], axis=0) / 4
    assert np.allclose(private_mean(START, small, 4, QUIET, 0)["w"], plain, atol=1e-6)


def test_the_noise_has_the_size_that_is_accounted() -> None:
    settings = PrivacySettings(clip_norm=0.5, noise_multiplier=2.0, delta=1e-3)
    still = [START for _ in range(3)]
    noise = private_mean(START, still, 10, settings, 0)["w"]
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.03)
    again = private_mean(START, still, 10, settings, 0)["w"]
    assert np.array_equal(noise, again)


def test_a_secret_is_drawn_once_and_missed_later(tmp_path: Path) -> None:
    first = load_secret(tmp_path, begun=False)
    place = tmp_path / SECRET
    assert place.stat().st_mode & 0o777 == 0o600 and load_secret(tmp_path, begun=True) == first
    assert load_secret(tmp_path / "other", begun=False) != first
    place.write_text("f00")
    with pytest.raises(DataError, match="not the secret of a private run"):
        load_secret(tmp_path, begun=True)
    place.unlink()
    with pytest.raises(DataError, match="draws from it"):
        load_secret(tmp_path, begun=True)


def test_without_the_accountant_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtraError, match=r"\[privacy\]"):
        compute_epsilon(QUIET, rounds=1, asked=2, clients=10)


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_with_sampling() -> None:
    pytest.importorskip("dp_accounting")

    def spent(noise: float, rounds: int, asked: int) -> float:
        settings = PrivacySettings(clip_norm=1.0, noise_multiplier=noise, delta=1e-3)
        return compute_epsilon(settings, rounds=rounds, asked=asked, clients=100)

    assert spent(4.0, 0, 2) == 0.0
    assert spent(4.0, 1, 2) < spent(4.0, 70, 2) < spent(2.0, 70, 2)
    assert spent(4.0, 70, 2) < spent(4.0, 70, 100)
    gaussian = min(70 * a / (2 * 2.0**2) + math.log(1 / 1e-3) / (a - 1) for a in np.arange(1.1, 50, 0.1))
    assert spent(4.0, 70, 100) <= gaussian * 1.001


def bound(noise: float, rounds: int, asked: int, *, delta: float = 1e-3, clients: int = 100) -> float:
    """Epsilon computed anew: Renyi divergence of the Gaussian mechanism, amplified by sampling without replacement
    (Wang, Balle and Kasiviswanathan 2019, theorem 9), composed, and turned into (epsilon, delta) at the best whole order."""
    share, scale = asked / clients, noise / 2

    def divergence(order: int) -> float:
        return order / (2 * scale**2)

    def amplified(order: int) -> float:
        if share == 1.0:
            return divergence(order)
        at_two = divergence(2)
        terms = [0.0, math.log(math.comb(order, 2)) + 2 * math.log(share)]
        terms[1] += min(math.log(4) + math.log(math.expm1(at_two)), math.log(2) + at_two)
        for power in range(3, order + 1):
            chosen = math.log(math.comb(order, power)) + power * math.log(share)
            terms.append(chosen + (power - 1) * divergence(power) + math.log(2))
        return float(np.logaddexp.reduce(terms)) / (order - 1)

    return min(
        rounds * amplified(order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in range(2, 200)
    )


KNOWN = [
    (2.0, 70, 2, 1.420189),
    (1.0, 70, 2, 8.514067),
    (4.0, 70, 2, 0.498813),
    (4.0, 1, 2, 0.092607),
    (4.0, 200, 5, 2.615919),
    (4.0, 70, 100, 22.839031),
]
"""Noise, rounds, clients asked of 100, and epsilon at 1e-3 by dp-accounting 0.6.0."""


@pytest.mark.parametrize(("noise", "rounds", "asked", "known"), KNOWN)
def test_the_accountant_keeps_within_what_theory_says(noise: float, rounds: int, asked: int, known: float) -> None:
    """It tries orders between whole ones and a tighter bound too, so it may say a little less."""
    computed = bound(noise, rounds, asked)
    assert computed * 0.9 <= known <= computed * 1.000001


def test_what_is_reported_is_what_the_accountant_says() -> None:
    pytest.importorskip("dp_accounting")
    for noise, rounds, asked, known in KNOWN:
        settings = PrivacySettings(clip_norm=1.0, noise_multiplier=noise, delta=1e-3)
        assert compute_epsilon(settings, rounds=rounds, asked=asked, clients=100) == pytest.approx(known, rel=1e-4)
