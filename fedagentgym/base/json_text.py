"""JSON that others wrote, read within limits.

The parser of the standard library admits what the rest of a program cannot bear: lists nested thousands deep, and numbers whose
digits fill pages. Everything that reads JSON from outside comes through here.
"""

from __future__ import annotations

import json
from typing import Any

from fedagentgym.base.errors import DataError

MOST_DEEP = 100
"""Levels of lists and mappings within each other; what this package writes has about ten."""


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; a fault is one sentence that begins with `where`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid JSON: it is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise DataError(f"{where}: not usable JSON: it is nested more than {MOST_DEEP} levels deep") from None
    except ValueError:
        raise DataError(f"{where}: not usable JSON: it holds a number with thousands of digits") from None
    if is_too_deep(value):
        raise DataError(f"{where}: not usable JSON: it is nested more than {MOST_DEEP} levels deep")
    return value


def is_too_deep(value: object) -> bool:
    """Whether lists and mappings lie within each other on more than `MOST_DEEP` levels; looks level by level, so that the
    depth of the value costs no stack."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(MOST_DEEP):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, list | dict)
        ]
    return bool(level)
