"""Figures: one for every sampler, as PNG and SVG, readable in grey, without touching pyplot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.partitions.client_split import federate
from fedagentgym.partitions.side_by_side import plot_side_by_side

pytest.importorskip("matplotlib")
GUESS = "fedagentgym/Guess-v0"
KINDS: dict[str, dict[str, Any]] = {
    "preference": {"omega": 0.9, "tasks_per_client": 20},
    "coverage": {"xi": 1.0, "mean_tasks": 20},
    "hardness": {"xi": 1.0, "tasks_per_client": 20, "labels": "pool"},
    "dirichlet": {"beta": 0.3},
}


@pytest.mark.parametrize(("name", "panels"), [("preference", 1), ("coverage", 2), ("hardness", 2), ("dirichlet", 2)])
def test_every_kind_is_drawn(name: str, panels: int, tmp_path: Path) -> None:
    made = federate(GUESS, partition=name, clients=12, **KINDS[name])
    axes = made.plot(tmp_path / "figure.png")
    assert len(axes) == panels
    assert (tmp_path / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    made.plot(tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()[:600]


def test_the_same_split_gives_the_same_file(tmp_path: Path) -> None:
    made = federate(GUESS, partition="preference", clients=5, **KINDS["preference"])
    for suffix in ("png", "svg"):
        made.plot(tmp_path / f"a.{suffix}")
        made.plot(tmp_path / f"b.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_bars_show_the_numbers() -> None:
    made = federate(GUESS, partition="preference", clients=12, **KINDS["preference"])
    (axes,) = made.plot()
    heights = np.array([[bar.get_height() for bar in group] for group in axes.containers]).T
    assert np.allclose(heights.sum(axis=1), 1) and len(heights) == 13
    shares = made.statistics().shares
    assert np.allclose(np.sort(heights[:-1, 0]), np.sort(shares[:, made.statistics().pool_shares.argmax()]))


def test_colours_differ_in_lightness() -> None:
    """Grey printers and colour-blind eyes see lightness: neighbours are well apart, in one direction."""
    from fedagentgym.partitions.plots import MAX_CATEGORIES, make_palette

    for count in range(2, MAX_CATEGORIES + 1):
        light = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue, _ in make_palette(count)]
        assert np.all(np.diff(light) > 0.45 / count)


def test_many_clients_and_categories_stay_readable() -> None:
    from fedagentgym.partitions.division import make_sampler, sample_clients
    from fedagentgym.partitions.plots import plot_mixture_bars, plot_size_bars
    from fedagentgym.partitions.statistics import compute_statistics
    from tests.partitions.conftest import make_table

    table = make_table(5000, {f"c{number:02d}": 1 / 20 for number in range(20)})
    found = compute_statistics(
        sample_clients(make_sampler("preference", {"omega": 0.5, "tasks_per_client": 20}), table, 700, 0), table, "p"
    )
    axes = plot_mixture_bars(found)
    assert len(axes.containers) == 8 and len(axes.containers[0]) == 101
    assert axes.get_legend().get_texts()[-1].get_text() == "13 others"
    assert len(plot_size_bars(found).containers[0]) == 100


def test_pyplot_is_left_alone_and_other_formats_are_refused(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    made = federate(GUESS, clients=3, tasks_per_client=5)
    with pytest.raises(OptionError, match=r"\.png or \.svg"):
        made.plot(tmp_path / "figure.gif")
    assert ("matplotlib.pyplot" in sys.modules) == before


# ---- side by side -----------------------------------------------------------------------------------------------


def test_panels_share_categories_colours_and_one_legend(tmp_path: Path) -> None:
    made = [federate(GUESS, partition=name, clients=8, **KINDS[name]) for name in ("preference", "dirichlet")]
    axes = plot_side_by_side(made, tmp_path / "both.svg")
    assert (tmp_path / "both.svg").stat().st_size > 5000
    colours = [[group[0].get_facecolor() for group in panel.containers] for panel in axes]
    names = [[group.get_label() for group in panel.containers] for panel in axes]
    assert colours[0] == colours[1] and names[0] == names[1] and len(names[0]) == 3
    assert not any(panel.get_legend() for panel in axes) and len(axes[0].figure.legends) == 1
    assert [text.get_text() for text in axes[1].texts][:2] == ["Dirichlet", "\u03b2 = 0.3"]


def test_bars_may_show_tasks() -> None:
    made = federate(GUESS, partition="dirichlet", clients=8, **KINDS["dirichlet"])
    (panel,) = plot_side_by_side([made], unit="tasks", titles=["mine"])
    heights = np.array([[bar.get_height() for bar in group] for group in panel.containers]).sum(axis=0)
    assert heights.tolist() == pytest.approx(sorted(made.statistics().sizes.tolist(), reverse=True))
    assert panel.texts[0].get_text() == "mine"


def test_only_splits_of_the_same_tasks_are_compared() -> None:
    first = federate(GUESS, clients=3, tasks_per_client=5)
    other = federate("fedagentgym/Math-v0", clients=3, tasks_per_client=5)
    with pytest.raises(OptionError, match="divides another pool"):
        plot_side_by_side([first, other])
    with pytest.raises(OptionError, match="1 to 12 splits side by side, got 0"):
        plot_side_by_side([])
    with pytest.raises(OptionError, match="1 splits were given 2 titles"):
        plot_side_by_side([first], titles=["a", "b"])
