"""Numbers as text: every page, table and line of a log rounds and names units by these functions."""

from __future__ import annotations

import math


def format_fixed(value: float, digits: int = 0, sign: str = "") -> str:
    """A number with so many decimals: halves are rounded up, as people and the scripts of our pages do, and zero has no sign.

    >>> format_fixed(75.25, 1), format_fixed(24.5), format_fixed(-0.04, 1), format_fixed(0.12, 1, "+")
    ('75.3', '25', '0.0', '+0.1')
    """
    if not math.isfinite(value):
        return str(value)
    scaled = math.floor(abs(value) * 10**digits + 0.5 + 1e-9)
    text = f"{scaled / 10**digits:.{digits}f}"
    return f"{'' if not scaled else '-' if value < 0 else sign}{text}"


def subtract_shown(after: float, before: float, digits: int = 0, exact: float | None = None) -> float:
    """A difference that is shown beside its two numbers, all with so many decimals: that of the rounded numbers, which readers
    find who subtract them. An `exact` difference that is not theirs, as of other tasks, is kept.

    >>> subtract_shown(68.3, 43.8), format_fixed(68.3 - 43.8), subtract_shown(68.3, 43.8, 0, 12.0)
    (24.0, '25', 12.0)
    """
    if exact is not None and abs(exact - (after - before)) * 10**digits > 0.5:
        return exact
    return round(float(format_fixed(after, digits)) - float(format_fixed(before, digits)), digits)


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(12.34), format_duration(114), format_duration(9000)
    ('12 s', '1.9 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count_things(number: int, one: str) -> str:
    """A number with its noun.

    >>> count_things(1, "round"), count_things(2000, "client")
    ('1 round', '2,000 clients')
    """
    return f"{number:,} {one}{'' if number == 1 else 's'}"
