"""Numbers as text: every page, table and line of a log rounds and names units by these functions."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(12.34), format_duration(114), format_duration(9000)
    ('12 s', '1.9 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
