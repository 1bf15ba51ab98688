"""The probes' arithmetic, and that they find what is certainly there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.membership import bootstrap_auc, collect_updates, compute_auc, cosine, flatten_arrays
from benchmarks.privacy_probes import PROBES, QUICK, Scale, run_probe
from fedagentgym.federation.message import Message

SMALL = replace(QUICK, tasks=6, outsiders=6, group=2, candidates=12)
AGENT = {"name": "untrained-tiny", "decoding": {"max_new_tokens": 40, "constrained": False}}
scores = st.lists(st.integers(-3, 3), min_size=1, max_size=8)


def figures(name: str, scale: Scale = SMALL) -> dict[str, Any]:
    (probe,) = [probe for probe in PROBES if probe.name == name]
    return {figure.name.removeprefix(f"{name}: "): figure for figure in run_probe(probe, scale, AGENT)}


@given(scores, scores)
def test_the_area_counts_pairs(inside: list[int], outside: list[int]) -> None:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert compute_auc(np.array(inside, float), np.array(outside, float)) == pytest.approx(np.mean(pairs))


def test_intervals_hold_what_they_say() -> None:
    random = np.random.default_rng(0)
    certain = bootstrap_auc([(np.arange(5.0) + 10, np.arange(7.0))] * 2, 0)
    assert (certain.area, certain.low, certain.high) == (1.0, 1.0, 1.0)
    held = 0
    for trial in range(40):
        found = bootstrap_auc([(random.normal(size=30), random.normal(size=30)) for _ in range(3)], trial)
        assert found.low <= found.area <= found.high
        held += found.low <= 0.5 <= found.high
    assert held >= 34, "a 95 % interval of nothing holds one half nearly always"


def test_vectors_are_by_name_and_nothing_has_no_direction() -> None:
    assert flatten_arrays({"b": np.array([[3.0], [4.0]]), "a": np.array([1.0])}).tolist() == [1.0, 3.0, 4.0]
    assert cosine(np.array([1.0, 0.0]), np.array([2.0, 0.0])) == 1.0
    assert cosine(np.zeros(2), np.ones(2)) == 0.0


def test_an_update_is_from_the_first_that_was_sent_to_the_last_that_came() -> None:
    first, last = {"w": np.zeros(2)}, {"w": np.ones(2)}
    ask = Message(weights=first, control={"step": 4})
    seen = [
        (1, 0, ask, Message(text={"groups": []})),
        (1, 0, Message(), Message()),
        (1, 0, Message(control={"step": 9}), Message(weights=last)),
        (1, 1, ask, Message()),
    ]
    (update,) = collect_updates(seen)
    assert (update.round, update.client, update.step) == (1, 0, 4)
    assert update.before is first and update.after is last


def test_imitated_solutions_show_in_the_update() -> None:
    found = figures("fedpetuning, sft", replace(SMALL, rounds=2))
    assert found["sees weights"].value > 0 and "sees text" not in found
    assert found["members by gradient"].value > 0.7


def test_reinforcement_is_audited_too() -> None:
    found = figures("fedmoa")
    assert {"members by loss", "members by gradient", "members by audit"} < set(found)
    assert all(0.0 <= figure.value <= 1.0 for name, figure in found.items() if name.startswith("members"))


def test_a_score_that_is_no_likelihood_gives_the_holder_away() -> None:
    found = figures("fedgrpo, reward_model")
    assert found["holders by form of scores"].value == 1.0
    assert set(found) == {"sees scores", "holders by truth of scores", "holders by form of scores"}


def test_votes_without_noise_reveal_members_and_are_all_that_is_seen() -> None:
    found = figures("dpsda-fl, epsilon 1e+06", replace(SMALL, candidates=64))
    assert found["sees scores"].value == 2 * 2 * 64 * 4 / 1e3
    assert found["members by votes"].value > 0.6
