from __future__ import annotations

import math

import numpy as np
import pytest

from fedagentgym.base.errors import MissingExtraError
from fedagentgym.federation.aggregation import Contribution
from fedagentgym.federation.checks import update_norm
from fedagentgym.federation.privacy import PrivacySettings, epsilon, private_mean

SIZE = 20_000
START = {"w": np.zeros(SIZE, np.float32)}
QUIET = PrivacySettings(clip_norm=1.0, noise_multiplier=1e-9, delta=1e-3)


def moved(norm: float, seed: int) -> dict[str, np.ndarray]:
    step = np.random.default_rng(seed).normal(size=SIZE)
    return {"w": (step * norm / np.linalg.norm(step)).astype(np.float32)}


def test_no_client_moves_the_model_further_than_its_share() -> None:
    calm = [Contribution(k, moved(0.5, k)) for k in range(4)]
    wild = [*calm, Contribution(9, moved(1e6, 9))]
    first = private_mean(START, calm, 5, QUIET, np.random.default_rng(0))
    second = private_mean(START, wild, 5, QUIET, np.random.default_rng(0))
    assert update_norm(first, second) == pytest.approx(1.0 / 5, rel=1e-3)
    small = [Contribution(k, moved(0.5, k)) for k in range(4)]
    plain = np.sum([each.parameters["w"] for each in small], axis=0) / 4
    assert np.allclose(private_mean(START, small, 4, QUIET, np.random.default_rng(0))["w"], plain, atol=1e-6)


def test_the_noise_has_the_size_that_is_accounted() -> None:
    settings = PrivacySettings(clip_norm=0.5, noise_multiplier=2.0, delta=1e-3)
    still = [Contribution(k, START) for k in range(3)]
    noise = private_mean(START, still, 10, settings, np.random.default_rng(0))["w"]
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.03)
    again = private_mean(START, still, 10, settings, np.random.default_rng(0))["w"]
    assert np.array_equal(noise, again)
    hidden = settings.model_copy(update={"secret": True})
    one, two = (private_mean(START, still, 10, hidden, np.random.default_rng(0))["w"] for _ in range(2))
    assert not np.array_equal(one, two)


def test_without_the_accountant_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtraError, match=r"\[privacy\]"):
        epsilon(QUIET, rounds=1, asked=2, clients=10)


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_with_sampling() -> None:
    pytest.importorskip("dp_accounting")

    def spent(noise: float, rounds: int, asked: int) -> float:
        settings = PrivacySettings(clip_norm=1.0, noise_multiplier=noise, delta=1e-3)
        return epsilon(settings, rounds=rounds, asked=asked, clients=100)

    assert spent(4.0, 0, 2) == 0.0
    assert spent(4.0, 1, 2) < spent(4.0, 70, 2) < spent(2.0, 70, 2)
    assert spent(4.0, 70, 2) < spent(4.0, 70, 100)
    gaussian = min(70 * a / (2 * 2.0**2) + math.log(1 / 1e-3) / (a - 1) for a in np.arange(1.1, 50, 0.1))
    assert spent(4.0, 70, 100) <= gaussian * 1.001
