"""The pages of the environments list every option with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.envs import ENVIRONMENTS, TextEnv

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "environments"
REASONING = dict.fromkeys(("Math", "QA", "Code", "Mixture"), "reasoning")
PAGE = {"WebShop": "webshop", "ALFWorld": "alfworld", "Skills": "skills", "Guess": "index", **REASONING}
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ((?:`[^`]+`(?:, )?)+) \| ", re.MULTILINE)


def read_defaults(page: str) -> dict[str, set[str]]:
    """Option -> the defaults that a page's tables name; two where environments of one page differ."""
    found: dict[str, set[str]] = {}
    for names, defaults in ROW.findall((PAGES / f"{page}.md").read_text("utf-8")):
        keys, values = re.findall(r"`(\w+)`", names), re.findall(r"`([^`]+)`", defaults)
        for number, key in enumerate(keys):
            found[key] = {values[number]} if len(keys) > 1 else set(values)
    return found


def list_options(cls: type[TextEnv]) -> dict[str, Any]:
    """The options of a class and of its base classes, but for those of every environment."""
    classes = [
        one for one in cls.__mro__ if issubclass(one, TextEnv) and one is not TextEnv and "__init__" in vars(one)
    ]
    found: dict[str, Any] = {}
    for one in classes:
        for name, parameter in inspect.signature(one.__init__).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                found.setdefault(name, parameter.default)
    return found


@pytest.mark.parametrize("name", PAGE)
def test_a_page_lists_every_option_with_its_default(name: str) -> None:
    page = PAGE[name]
    listed = read_defaults(page)
    for option, default in list_options(ENVIRONMENTS.get(f"fedagentgym/{name}-v0")).items():
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        assert shown in listed.get(option, set()), f"{page}.md: {option} is {shown} by default"


def test_the_overview_lists_the_options_of_every_environment() -> None:
    listed = read_defaults("index")
    parameters = inspect.signature(TextEnv.__init__).parameters.values()
    assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} <= set(listed)
