"""JSON from untrusted sources, read within limits.

The parser of the standard library accepts values that break other code: lists nested thousands deep, numbers with
millions of digits, `NaN`, duplicate keys. All JSON from outside is read by this module.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from fedagentgym.base.errors import DataError

MOST_DEEP = 100
"""Maximum nesting of lists and mappings; what this package writes has about ten levels."""


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text with unique keys and finite numbers only; `where` is used in the message."""
    try:
        value = json.loads(
            text, parse_constant=_refuse_number, parse_float=_parse_float, object_pairs_hook=_make_object
        )
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON, line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid JSON: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise DataError(f"{where}: not usable JSON: {str(error)[:200]}") from None
    except RecursionError:
        raise DataError(f"{where}: not usable JSON: it is nested more than {MOST_DEEP} levels deep") from None
    if is_too_deep(value):
        raise DataError(f"{where}: not usable JSON: it is nested more than {MOST_DEEP} levels deep")
    return value


def is_too_deep(value: object) -> bool:
    """Whether lists and mappings are nested more than `MOST_DEEP` levels deep. Goes level by level, so it needs no deep
    stack."""
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


def _refuse_number(name: str) -> float:
    raise ValueError(f"{name[:40]} is no finite number")


def _parse_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found
