"""The byte counter agrees with the closed forms of what the methods send."""

from __future__ import annotations

import pytest

from fedagentgym.benchmarks import BENCHMARKS
from fedagentgym.benchmarks.communication import (
    RANK,
    SHAPES,
    count_fedgrpo_bytes,
    count_payload_bytes,
    make_adapter_message,
)


@pytest.mark.parametrize(
    ("name", "per_rank"), [("Qwen2.5-1.5B", 1_154_048), ("Qwen2.5-3B", 1_870_848), ("Qwen2.5-7B", 2_523_136)]
)
def test_an_adapter_is_rank_times_the_widths_of_its_layers(name: str, per_rank: int) -> None:
    assert count_payload_bytes(make_adapter_message(SHAPES[name])) == 4 * RANK * per_rank


def test_fedgrpo_sends_four_bytes_per_score_and_one_bit_per_example() -> None:
    assert count_fedgrpo_bytes()["up"] == 2000 * 2 * 8 * 4 + 10 * 13


def test_the_benchmark_shows_them_beside_the_papers_numbers() -> None:
    figures = BENCHMARKS.get("communication")(quick=True)
    assert any("2.4 MB" in figure.bar for figure in figures) and any("6.1 GB" in figure.bar for figure in figures)
