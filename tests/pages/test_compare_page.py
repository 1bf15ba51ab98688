"""The page of `fedagentgym compare` in a real browser, with hostile names, categories and scenarios."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedagentgym.leaderboard.compare import compare, load_played
from fedagentgym.leaderboard.comparison import write_comparison
from tests.leaderboard.samples import write_methods_sample

from .accessibility import MISSING, find_axe, find_faults
from .browser import Browser, check_quiet_and_fitting
from .runs import HOSTILE, ROUNDS, write_run

NAMES = (f"before {HOSTILE}", "after", "a name that is far too long to be shown in one line of a table on a phone")


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("compared") / "run")
    played = [
        load_played(run / "evaluation" / f"{number:04d}.jsonl", name)
        for number, name in zip((0, ROUNDS, 0), NAMES[: request.param], strict=False)
    ]
    write_methods_sample(run.parent / "method", "method")
    played[0] = replace(played[0], curves=load_played(run.parent / "method" / "uniform-seed0").curves)
    place = run / "comparison.html"
    place.write_text(write_comparison(compare(played), place), "utf-8")
    return place


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_quiet_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    check_quiet_and_fitting(browser, page, width, dark)
    told = browser.run("return document.querySelector('.result').textContent")
    assert "25 points above" in told or "25.0 points above" in told, told
    wide = "return [...document.querySelectorAll('.scroll')].filter((one) => one.offsetHeight && one.tabIndex !== 0).length"
    assert browser.run(wide) == 0, "a table that scrolls is reached with the keyboard"


def test_axe_finds_nothing(browser: Browser, page: Path) -> None:
    axe = find_axe()
    if axe is None:
        pytest.skip(MISSING)
    for dark in (False, True):
        browser.open(page, dark=dark)
        browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
        assert find_faults(browser, axe) == []
