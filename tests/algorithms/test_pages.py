"""Every method has a page, with its own settings and their defaults, and commands that run that method."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.experiment.config import load_config

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "methods"
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| ", re.MULTILINE)
COMMAND = re.compile(r"^fedagentgym train ([\w.:,-]+)", re.MULTILINE)
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
