"""The pictures of README and the documentation are what the scripts draw, with two sets of colours and words that can be read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from statistics import mean

import pytest

from benchmarks import averaging
from benchmarks.averaging import Panel, compare, describe_averaging
from benchmarks.pictures import PICTURES, draw_all
from benchmarks.pictures.averaging import draw_averaging
from benchmarks.pictures.canvas import COLORS, Drawing, spread_apart
from benchmarks.pictures.recording import draw_recording, record
from fedagentgym.leaderboard.results import Result
from tests.committed import RESULTS

SVG = "{http://www.w3.org/2000/svg}"
READABLE = 15


@pytest.mark.slow
def test_every_picture_is_what_its_script_draws(tmp_path: Path) -> None:
    draw_all(folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in PICTURES.glob("*.svg")}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (PICTURES / path.name).read_bytes(), f"{path.name}: make pictures draws it again"


def test_every_picture_is_small_and_readable_on_light_and_dark() -> None:
    for path in PICTURES.glob("*.svg"):
        text = path.read_text("utf-8")
        assert len(text) < 60_000 and "prefers-color-scheme:dark" in text and COLORS["card"][1] in text, path.name
        sizes = [float(size) for size in re.findall(r'font-size[:=]"?([\d.]+)', text)]
        assert sizes and min(sizes) >= READABLE, path.name
        root = ElementTree.fromstring(text)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for word in root.iter(f"{SVG}text"):
            assert 0 < float(word.attrib["x"]) < width and 0 < float(word.attrib["y"]) < height, (path.name, word.text)


def test_words_of_the_pictures_of_readme_are_readable_on_a_phone() -> None:
    """Of 360 pixels a page leaves some 330 to a picture."""
    names = re.findall(r"/docs/pictures/([\w-]+\.svg)", (PICTURES.parents[1] / "README.md").read_text("utf-8"))
    assert len(names) == 3
    for name in names:
        width = float(ElementTree.fromstring((PICTURES / name).read_text("utf-8")).attrib["width"])
        assert READABLE * min(1.0, 330 / width) >= 11, name


def test_a_recording_without_animation_shows_its_last_lines() -> None:
    """Lines that stay are visible without their animation, passing ones are not."""
    style = (PICTURES / "demo.svg").read_text("utf-8").partition("</style>")[0]
    assert "opacity:0" not in re.findall(r"\.l\{([^}]*)\}", style)[0] and "backwards" in style
    assert ".p{opacity:0;" in style and "(prefers-reduced-motion:reduce){.l,.p{animation:none}}" in style


def test_every_picture_is_shown_on_a_page() -> None:
    root = PICTURES.parents[1]
    shown = "".join(page.read_text("utf-8") for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))))
    assert [path.name for path in sorted(PICTURES.iterdir()) if f"pictures/{path.name}" not in shown] == []


def test_a_recording_shows_the_last_lines_and_passing_progress() -> None:
    drawn = draw_recording(
        "go", [(0.0, "one\r\n"), (1.0, "\r\x1b[2Kstep 1"), (2.0, "\r\x1b[2Kstep 2"), (3.0, "\r\x1b[2Ktwo <&>\r\n")]
    )
    words = [word.text for word in ElementTree.fromstring(drawn.format()).iter(f"{SVG}text")]
    assert words == ["$ go", "one", "two <&>", "step 1", "step 2"]


def test_a_command_is_recorded_as_a_terminal_of_80_columns_shows_it() -> None:
    events = list(record(["stty", "size"]))
    assert "".join(text for _, text in events).split() == ["50", "80"]


def test_labels_are_moved_apart_in_their_order() -> None:
    places = spread_apart([10.0, 12.0, 50.0], 19)
    assert places[1] - places[0] == pytest.approx(19, abs=0.1) and places[2] == pytest.approx(50)


def test_words_are_escaped() -> None:
    drawing = Drawing('a "title" <b>', 50)
    drawing.add_text(5, 20, "<script>&")
    assert "<script>" not in drawing.format() and ElementTree.fromstring(drawing.format()) is not None


def test_differences_of_rules_are_paired_by_world(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite stands for those of adapters: its numbers are read again by hand."""
    panel = Panel("four clients", "methods-small-skills-v1", "fedagent", ["fedprox"])
    first, base = (
        Result(RESULTS / panel.suite / f"{name}.zip").numbers.list_runs("success") for name in ("fedprox", "fedagent")
    )
    ((title, spread),) = compare(panel, RESULTS)
    assert title == "FedProx" and spread.mean == pytest.approx(mean(first) - mean(base))
    assert spread.low is not None and spread.high is not None and spread.low < spread.mean < spread.high
    monkeypatch.setattr(averaging, "PANELS", (panel,))
    drawn = draw_averaging(RESULTS)
    assert drawn is not None and "four clients" in drawn.format() and "FedProx" in drawn.format()
    assert draw_averaging(root / "nowhere") is None
    assert f"| FedProx | {100 * spread.mean:+.1f} (" in describe_averaging(RESULTS)
