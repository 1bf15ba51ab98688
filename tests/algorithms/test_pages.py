"""Every method has a page, with its own settings and their defaults, and commands that run that method."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.experiment.config import load_config
from fedagentgym.leaderboard.results import Result
from tests.committed import RESULTS, needs_all_results

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference" / "methods"
EXPERIMENTS = ROOT / "docs" / "experiments"
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| ", re.MULTILINE)
COMMAND = re.compile(r"^fedagentgym train ([\w.:,-]+)", re.MULTILINE)
MEASURED = re.compile(r"\*\*Measured:\*\*(.*?)(?:\n\n|\Z)", re.DOTALL)
COUNTED = re.compile(r"\b(one|two|three|four|five|six|seven|eight) suites?\b")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
SHARED = {*AveragingSettings.model_fields, "aggregation"}
"""Settings of averaging methods, which the page of FedAgent describes for all."""


def read_rows(page: str) -> dict[str, str]:
    """Setting -> default, from a page's tables."""
    found = {}
    for names, defaults in ROW.findall(page):
        keys = re.findall(r"`(\w+)`", names)
        values = re.findall(r"`([^`]*)`", defaults) or [defaults] * len(keys)
        assert len(keys) == len(values), f"{names} and {defaults} are not of equal number"
        found.update(zip(keys, values, strict=True))
    return found


def show_default(field: Any) -> str | None:
    """A default as a page writes it; None for settings of several keys."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return getattr(value, "name", None)
    return str(value) if isinstance(value, str | float) and not isinstance(value, bool) else json.dumps(value)


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_page_lists_every_setting_with_its_default(name: str) -> None:
    fields = ALGORITHMS.get(name).settings_class.model_fields
    rows = read_rows((PAGES / f"{name}.md").read_text("utf-8"))
    own = set(fields) - {"name"} - (SHARED if name != "fedagent" else set())
    assert own <= set(rows), f"docs/reference/methods/{name}.md lacks {sorted(own - set(rows))}"
    assert set(rows) <= set(fields), f"docs/reference/methods/{name}.md has settings that {name} lacks"
    for key, written in rows.items():
        default = show_default(fields[key])
        assert default in (None, written), f"docs/reference/methods/{name}.md: {key} is {default} by default"


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_the_commands_of_a_page_run_its_method(name: str) -> None:
    commands = COMMAND.findall((PAGES / f"{name}.md").read_text("utf-8"))
    assert commands and {load_config(command).algorithm["name"] for command in commands} == {name}


@cache
def list_suites_played() -> dict[str, set[str]]:
    """The suites whose committed results have a row of a method."""
    found: dict[str, set[str]] = {}
    for archive in RESULTS.glob("methods-*/*.zip"):
        result = Result(archive)
        with result.open_run(result.keys[0]) as run:
            found.setdefault(run.config["algorithm"]["name"], set()).add(archive.parent.name)
    return found


@cache
def list_pages_played() -> dict[str, set[str]]:
    """The pages of experiments with a table that has a row of a method."""
    found: dict[str, set[str]] = {}
    for page in EXPERIMENTS.glob("*.md"):
        for command in re.findall(r"^\| .* \| `fedagentgym train ([^`]+)` \|", page.read_text("utf-8"), re.MULTILINE):
            found.setdefault(load_config(command).algorithm["name"], set()).add(page.name)
    return found


def find_contradiction(text: str, suites: set[str], pages: set[str]) -> str | None:
    """What a page says of its measurements that committed results contradict."""
    said = MEASURED.search(text)
    if said is None:
        return "measured, and its page does not say where" if suites or pages else None
    if "nothing" in said[1]:
        return f"has rows in {sorted(suites | pages)}" if suites or pages else None
    if not re.search(r"\]\(\.\./\.\./(experiments|explanation)/", said[1]):
        return "names no page of experiments"
    if (counted := COUNTED.search(said[1])) and counted[1] != NUMBERS[len(suites)]:
        return f"{counted[0]}, where results of {sorted(suites)} are committed"
    return None


@needs_all_results
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_what_a_page_says_was_measured_agrees_with_the_committed_results(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text("utf-8")
    suites, pages = list_suites_played().get(name, set()), list_pages_played().get(name, set())
    assert find_contradiction(page, suites, pages) is None


def test_a_page_that_is_out_of_date_is_found() -> None:
    link = "[there](../../experiments/suites.md)"
    for said in ("", "**Measured:** nothing yet.", "**Measured:** somewhere.", f"**Measured:** in two suites, {link}."):
        assert find_contradiction(said, {"methods-tiny-skills-v2"}, set()) is not None
        assert said == "" or find_contradiction(said + "\n", {"a", "b", "c"}, {"methods.md"}) is not None
    assert find_contradiction("**Measured:** nothing yet.", set(), set()) is None
