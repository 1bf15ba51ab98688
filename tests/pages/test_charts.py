"""Charts: they are well-formed whatever the numbers and names, and stand where their axes say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from fedagentgym.base.statistics import Estimate
from fedagentgym.pages.charts import Chart, Dumbbell, Reference, Series, compute_ticks
from fedagentgym.pages.render import load_environment

SAME = [(5.0, -1.0)] * 3


def draw(chart: Chart) -> ElementTree.Element:
    """The chart as a page has it, which is also XML."""
    return ElementTree.fromstring(load_environment().get_template("charts.html").module.chart(chart))


@pytest.mark.parametrize("points", [[(0, 0.0)], [(1, 5.0), (1, 5.0)], [(0, -3.0), (7, 1e9)], [(0, 1e-9), (1, 2e-9)]])
def test_unusual_numbers_can_be_drawn(points: list[tuple[float, float]]) -> None:
    drawn = draw(Chart("x", [Series("a & b", points, labels=["<round>"])]))
    assert drawn.find("ul/li").text is None and drawn.find("ul/li/i").tail == "a & b"
    assert [one.text for one in drawn.iter("title")] == ["<round>"]


@pytest.mark.parametrize("points", [[(0.0, 0.0)], SAME, [(-1e9, 0.0), (1e-9, 1.0)]])
def test_a_plane_can_have_points_that_are_all_the_same(points: list[tuple[float, float]]) -> None:
    path = Series("path", points, "path", labels=["<round>"] * len(points), key="'>")
    drawn = draw(Chart("x", [path], plane=True))
    assert drawn.find(".//g[@data-key]").get("data-key") == "'>"
    assert [one.text for one in drawn.iter("span")].count("<round>") == 1, "the end of the path has a label"


def test_reference_lines_stand_at_their_values_and_their_names_apart() -> None:
    chart = Chart(
        "x", [Series("s", [(0, 0.0)])], limits=(0.0, 1.0), references=[Reference("a", 0.5), Reference("b", 0.51)]
    )
    drawn = draw(chart)
    assert [one.get("d") for one in drawn.iter("path") if one.get("class") == "reference"] == [
        "M0 500.0H1000",
        "M0 490.0H1000",
    ]
    styles = {one.text: one.get("style") for one in drawn.iter("span") if one.get("class") == "reference"}
    assert styles == {"b": "bottom:51.00%", "a": "bottom:43.50%"}


def test_nothing_to_show_is_said() -> None:
    assert "nothing to show" in draw(Chart("x", [Series("a", [])])).text
    assert compute_ticks(0, 3, whole=True) == [0.0, 1.0, 2.0, 3.0]
    assert compute_ticks(0, 0.3)[-1] == 0.3


@pytest.mark.parametrize("paired", [False, True])
def test_differences_are_those_of_the_numbers_beside_them(paired: bool) -> None:
    for before in range(0, 1000, 37):
        for after in range(0, 1000, 53):
            change = Estimate((after - before) / 1000, -1.0, 1.0) if paired else None
            shown = Dumbbell("x", *(Estimate(each / 1000, 0.0, 1.0) for each in (before, after)), change)
            first, second = (int(part) for part in shown.value.replace(" %", "").split(" → "))
            difference = shown.difference.split()[0].replace("−", "-").replace("±", "")
            assert int(difference) == second - first
