"""Numbers and names as markup. Every text that a page takes from elsewhere is escaped by `show`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedagentgym.base.text import show_invisible_characters

LONGEST = 2000


def show(text: object) -> str:
    """A text as markup: escaped, without invisible characters or those that change the direction, and of limited length.

    >>> show("<b>\\u202e")
    '&lt;b&gt;⟨U+202E⟩'
    """
    plain = str(text)
    shortened = plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"
    return escape(show_invisible_characters(shortened), quote=True)


def format_percent(share: float, digits: int = 0) -> str:
    """
    >>> format_percent(0.7449)
    '74 %'
    """
    return f"{100 * share:.{digits}f} %"


def format_points(difference: float) -> str:
    """A difference of two shares, in points.

    >>> format_points(-0.0512)
    '−5'
    """
    rounded = round(100 * difference)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(rounded)}"


def format_bound(share: float) -> str:
    """The end of an interval of shares, in points.

    >>> format_bound(-0.0512)
    '−5'
    """
    return f"{100 * share:.0f}".replace("-", "−")


def format_bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def format_duration(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def fold(title: str, body: str, *, opened: bool = False) -> str:
    """A folded part of the page; `title` is plain text."""
    return f"<details{' open' if opened else ''}><summary>{show(title)}</summary>{body}</details>"


def render_table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], label: str) -> str:
    """A table that scrolls within its own frame. A head is a name and whether its column is numeric; cells are markup."""
    names = "".join(f'<th scope="col"{" class=n" if numeric else ""}>{show(name)}</th>' for name, numeric in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if numeric else ''}>{cell}</td>" for cell, (_, numeric) in zip(row, heads, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{show(label)}">'
        f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )
