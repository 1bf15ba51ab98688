"""Pages from Jinja templates. Python computes the values that a page shows, and a template in `templates` lays them out.

Every expression of a template is escaped, in text and in attributes. Invisible characters are shown by their numbers, and long
texts are shortened. Data for scripts is written by the filter `tojson`, so that it cannot end the script or begin a comment.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from fedagentgym.base.errors import show_invisible_characters
from fedagentgym.base.rounding import format_bytes, format_fixed, subtract_shown

MAX_TEXT_LENGTH = 2000
"""The most characters that one expression of a template writes."""
JSON_STYLE = {"ensure_ascii": True, "separators": (",", ":"), "sort_keys": True}


class Strong(str):
    """A part of a sentence that a page prints in bold."""

    __slots__ = ()


def render(template: str, **view: Any) -> str:
    """Return a whole page, made from a template and the values that it shows."""
    return load_environment().get_template(template).render(view)


def to_script_json(data: object) -> str:
    """Return JSON that is safe inside a script: it cannot end the element or begin a comment."""
    return str(htmlsafe_json_dumps(data, json.dumps, **JSON_STYLE))


@cache
def load_environment() -> Environment:
    """Return the Jinja environment of all templates."""
    environment = Environment(
        loader=PackageLoader("fedagentgym.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = JSON_STYLE
    environment.globals["asset"] = read_asset
    environment.tests["strong"] = lambda text: isinstance(text, Strong)
    environment.filters.update(
        bound=format_bound,
        bytes=format_bytes,
        percent=format_percent,
        place=format_place,
        points=format_points,
        together=keep_together,
    )
    return environment


def show(value: object) -> object:
    """Return the text that an expression of a template writes, before it is escaped.

    >>> show("\\u202e"), show(None), show(0.5)
    ('⟨U+202E⟩', '', '0.5')
    """
    if isinstance(value, Markup):
        return value
    text = "" if value is None else str(value)
    return show_invisible_characters(text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…")


def keep_together(text: object) -> Markup:
    """Return the markup of a text in which no line breaks within an interval or a percentage.

    >>> print(keep_together("a row: 61.4 % [55.7, 67.1]"))
    a row: 61.4&nbsp;% [55.7,&nbsp;67.1]
    """
    whole = re.sub(r"(?<=\d) (?=%)", "&nbsp;", str(escape(show(text))))
    return Markup(re.sub(r"\[[^\[\]]{1,40}\]", lambda found: found[0].replace(" ", "&nbsp;"), whole))


@cache
def read_asset(name: str) -> Markup:
    """Return a style sheet or a script of the package, without escaping."""
    return Markup((files("fedagentgym.pages") / "assets" / name).read_text("utf-8"))


# ---- numbers as text ------------------------------------------------------------------------------------------------


def format_percent(share: float | None, digits: int = 0) -> str:
    """
    >>> format_percent(0.7449), format_percent(None)
    ('74 %', '')
    """
    return "" if share is None else f"{format_fixed(100 * share, digits)} %"


def format_place(share: float) -> str:
    """Return a share as a length for a style attribute.

    >>> format_place(0.12345)
    '12.35%'
    """
    return f"{100 * share:.2f}%"


def format_points(after: float, before: float = 0.0, exact: float | None = None) -> str:
    """Return the difference of two shares in percentage points, so that it agrees with the rounded percentages beside it.

    >>> format_points(-0.0512), format_points(0.683, 0.438)
    ('−5', '+24')
    """
    shown = subtract_shown(100 * after, 100 * before, 0, None if exact is None else 100 * exact)
    rounded = int(format_fixed(shown))
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded)}"


def format_bound(share: float) -> str:
    """Return a bound of an interval of shares, in percentage points.

    >>> format_bound(-0.0512)
    '−5'
    """
    return format_fixed(100 * share).replace("-", "−")
