"""The report of a run in a real browser: nothing of a hostile episode runs, and everything can be read and reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.experiment.report.page import write_report

from .accessibility import MISSING, find_axe, find_faults
from .browser import Browser, check_quiet_and_fitting
from .runs import TASKS, write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "run"))


def read_texts(browser: Browser, selector: str) -> list[str]:
    texts: list[str] = browser.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


def choose(browser: Browser, label: str, value: str) -> None:
    browser.run(
        "const e = document.querySelector(`.episode-browser [aria-label='${arguments[0]}']`); e.value = arguments[1];"
        "e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input'))",
        label,
        value,
    )


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_quiet_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    check_quiet_and_fitting(browser, page, width, dark)
    small = browser.run(
        "return [...document.querySelectorAll('main *')].filter((e) => e.childNodes.length && e.offsetHeight"
        " && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())"
        " && parseFloat(getComputedStyle(e).fontSize) < 10).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert small == [], "text that is too small to read"


def test_the_first_sentence_states_the_result(browser: Browser, page: Path) -> None:
    browser.open(page)
    (told,) = read_texts(browser, ".result")
    assert told.startswith("50 % → 75 % on held-out tasks, +25 points ["), told
    assert "exchanged" in told
    assert {"expert 95 %", "before training (zero-shot) 50 %"} == set(read_texts(browser, "span.reference"))


def test_episodes_are_filtered_and_shown_side_by_side(browser: Browser, page: Path) -> None:
    browser.open(page)
    entries = ".tasks button"
    assert len(read_texts(browser, entries)) == TASKS + 3, "the samples of training are folded, and there"
    first = read_texts(browser, ".panes:first-of-type .pane header b")[:2]
    assert first == ["before training", "after round 6"]
    assert "The last answer of world" in read_texts(browser, ".pane .end")[0]
    shown = read_texts(browser, ".pane .world")[0]
    assert "</script><script>" in shown and "⟨U+202E⟩" in shown and "⟨U+001B⟩" in shown
    assert len(read_texts(browser, ".pane .listed")) >= 2
    first_browser = ".episode-browser[data-episodes=evaluation-episodes] .tasks button"
    for outcome, count in (("failed", 3), ("solved", 9), ("gained", 3), ("lost", 0), ("invalid", 4)):
        choose(browser, "Outcome", outcome)
        assert len(read_texts(browser, first_browser)) == count, outcome
    choose(browser, "Outcome", "all")
    choose(browser, "Category", "Heat & Cool")
    assert len(read_texts(browser, first_browser)) == TASKS // 3
    choose(browser, "Category", "")
    choose(browser, "Search the text of episodes", "world 11.")
    assert len(read_texts(browser, first_browser)) == 1


def test_the_list_is_used_with_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('.tasks button').focus()")
    browser.press("\ue015", "\ue015")  # arrow down
    assert browser.run("return document.activeElement.getAttribute('aria-current')") == "true"
    tasks = read_texts(browser, ".episode-browser:first-of-type .tasks button .task")
    assert browser.run("return document.activeElement.querySelector('.task').textContent") == tasks[2]


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser: Browser, page: Path, dark: bool) -> None:
    axe = find_axe()
    if axe is None:
        pytest.skip(MISSING)
    browser.open(page, dark=dark)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert find_faults(browser, axe) == []
