"""Numbers as text: every page, table and log line rounds numbers and writes units with these functions."""

from __future__ import annotations

import math


def format_fixed(value: float, digits: int = 0, sign: str = "") -> str:
    """A number with `digits` decimals; halves are rounded away from zero, and zero has no sign.

    >>> format_fixed(75.25, 1), format_fixed(24.5), format_fixed(-0.04, 1), format_fixed(0.12, 1, "+")
    ('75.3', '25', '0.0', '+0.1')
    """
    if not math.isfinite(value):
        return str(value)
    scaled = math.floor(abs(value) * 10**digits + 0.5 + 1e-9)
    text = f"{scaled / 10**digits:.{digits}f}"
    return f"{'' if not scaled else '-' if value < 0 else sign}{text}"


def subtract_shown(after: float, before: float, digits: int = 0, exact: float | None = None) -> float:
    """The difference of two numbers after rounding to `digits` decimals, so that readers who subtract the numbers shown get the
    same. An `exact` difference that is not that of the two numbers, such as one over other tasks, is returned as it is.

    >>> subtract_shown(68.3, 43.8), format_fixed(68.3 - 43.8), subtract_shown(68.3, 43.8, 0, 12.0)
    (24.0, '25', 12.0)
    """
    if exact is not None and abs(exact - (after - before)) * 10**digits > 0.5:
        return exact
    return round(float(format_fixed(after, digits)) - float(format_fixed(before, digits)), digits)


def format_share(share: float, digits: int = 0) -> str:
    """A share in percent.

    >>> format_share(0.065), format_share(0.0625, 1)
    ('7%', '6.3%')
    """
    return f"{format_fixed(100 * share, digits)}%"


def format_range(low: float, high: float, digits: int) -> str:
    """
    >>> format_range(0.0625, 0.5, 3)
    '0.063 to 0.500'
    """
    return f"{format_fixed(low, digits)} to {format_fixed(high, digits)}"


def format_bytes(count: float) -> str:
    """A number of bytes with three digits and a unit.

    >>> format_bytes(999.6), format_bytes(1500), format_bytes(2_345_678_901), format_bytes(80e9)
    ('1 kB', '1.5 kB', '2.35 GB', '80 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)):
        value = count / size
        if value >= 0.9995 or unit == "B":
            break
    text = format_fixed(value, 2 if value < 9.995 else 1 if value < 99.95 else 0)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(12.34), format_duration(114), format_duration(9000)
    ('12 s', '1.9 min', '2.5 h')
    """
    if seconds < 90:
        return f"{format_fixed(seconds)} s"
    return f"{format_fixed(seconds / 60, 1)} min" if seconds < 5400 else f"{format_fixed(seconds / 3600, 1)} h"


def count_things(number: int, one: str) -> str:
    """A number with its noun.

    >>> count_things(1, "round"), count_things(2000, "client")
    ('1 round', '2,000 clients')
    """
    return f"{number:,} {one}{'' if number == 1 else 's'}"
