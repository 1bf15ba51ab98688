"""Lengths and gaps of rounds: rules whose step is known exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.merge_table import QUICK, QUICK_CHANGES, find_step, make_config, play_rounds
from fedagentgym.agents.model.names import HIGH, LOW
from fedagentgym.experiment.opened import Run
from fedagentgym.federation.algorithm import ServerState


@pytest.mark.parametrize(
    ("plain", "length", "gap"),
    [
        ({"name": "fedex-lora"}, 1.0, 0.0),
        ({"name": "flora"}, 1.0, 0.0),
        ({"name": "flora", "draw": "first", "server_step": 2.0}, 2.0, 1.0),
    ],
)
def test_exact_rules_move_by_the_mean_in_every_round(
    plain: Mapping[str, Any], length: float, gap: float, tmp_path: Path
) -> None:
    run = Run.open(make_config(QUICK.source, 0, rank=2, changes=QUICK_CHANGES), tmp_path / "run")
    rounds = play_rounds({**plain, "local_steps": 1}, run, seed=0, rounds=2, folder=tmp_path / "run")
    assert list(rounds) == [1, 2]
    for one in rounds.values():
        np.testing.assert_allclose(find_step(one.state, one.updates, one.after), (length, gap), atol=1e-5)


def test_a_step_is_measured_on_products() -> None:
    """B A was 2, the clients return 6 and 0, so their mean change is 1; the policy moves by 3."""
    of = {
        product: {f"layer{LOW}weight": np.array([[2.0]]), f"layer{HIGH}weight": np.array([[product / 2]])}
        for product in (0.0, 2.0, 5.0, 6.0)
    }
    step = find_step(ServerState(of[2.0]), [of[6.0], of[0.0]], ServerState(of[5.0]))
    np.testing.assert_allclose(step, (3.0, 2.0))
