"""The picture of README and the numbers beside it are those of the results that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.benchmarks.overview import RESULTS, draw_overview
from fedagentgym.benchmarks.skills_results import compare_pairs, load_results
from fedagentgym.experiment.result_table import half_width, mean

ROOT = Path(__file__).resolve().parents[2]
ALONE, TOGETHER, CENTRAL = "a client alone", "FedAgent, tau = 5", "centralized"


def test_readme_says_what_the_results_say() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    results = load_results(RESULTS)
    column = "held-out success"
    alone, together, central = (mean(results.get(name).row.values[column]) for name in (ALONE, TOGETHER, CENTRAL))
    assert (
        f"Alone a client reaches {alone:.2f}, federated {together:.2f}, with all tasks in one place {central:.2f}"
        in text
    )
    (found,) = compare_pairs(results, [(TOGETHER, CENTRAL)], column)
    assert f"{found.mean:.2f} ± {half_width(found.values):.2f}" in text
    assert len(results.get(TOGETHER).seeds) == 8 and "eight seeds" in text


@pytest.mark.slow
def test_the_picture_is_made_anew(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_overview(load_results(RESULTS), tmp_path / "overview.svg")
    assert (tmp_path / "overview.svg").read_bytes() == (ROOT / "docs" / "overview.svg").read_bytes()
