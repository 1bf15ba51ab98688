"""YAML and JSON from outside, read within limits: a plain value, or one sentence.

The parsers of Python accept values that break other code: aliases that expand a few lines to gigabytes, values that contain
themselves or are nested thousands deep, numbers with millions of digits, `NaN`, duplicate keys, tags that construct objects.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedagentgym.base.errors import DataError, describe_error, is_clean_text

MOST_DEEP = 100
"""Maximum nesting of lists and mappings; what this package writes has about ten levels."""
MOST_CHARACTERS = 1 << 16
"""Maximum length of a YAML text: it is written by hand, and the parser needs seconds for much more."""
MOST_VALUES = 20_000
"""Maximum number of values in a YAML text; the values behind an alias are counted each time."""
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text with unique keys and finite numbers only; an error begins with `where`."""
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
        value = None
    else:
        if not _is_too_deep(value):
            return value
    raise DataError(f"{where}: not usable JSON: it is nested more than {MOST_DEEP} levels deep")


def parse_yaml(text: str, where: str) -> Any:
    """The plain value of a YAML text, in which a date is a text; an error begins with `where`."""
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"{where}: not usable YAML: {len(text):,} characters, at most {MOST_CHARACTERS:,} are admitted")
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise DataError(f"{where}: not YAML: {describe_error(error, named=False)}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: not usable YAML: {describe_error(error, named=False)}") from None
    except RecursionError:
        value = None
    else:
        if not _is_too_deep(value):
            return value
    raise DataError(f"{where}: not usable YAML: it is nested more than {MOST_DEEP} levels deep")


def _is_too_deep(value: object) -> bool:
    """Whether lists and mappings are nested more than `MOST_DEEP` levels deep; goes level by level, without recursion."""
    level = [value]
    for _ in range(MOST_DEEP + 1):
        containers = [node for node in level if isinstance(node, list | dict)]
        if not containers:
            return False
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
    return True


# ---- JSON -------------------------------------------------------------------------------------------------------------


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


# ---- YAML -------------------------------------------------------------------------------------------------------------


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without dates."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _count_values(node: Node, counted: dict[int, int | None]) -> int:
    """The number of values that a node expands to; refuses what is not plain. `counted` holds None for nodes that are still
    being counted, so meeting one of them again means a cycle."""
    if id(node) in counted:
        if (known := counted[id(node)]) is None:
            raise ValueError("a value contains itself")
        return known
    counted[id(node)] = None
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _KINDS:
        raise ValueError(f"the tag {node.tag!r} makes no plain value")
    total = 1
    if isinstance(node, ScalarNode) and not is_clean_text(str(node.value)):
        raise ValueError("a text holds a character that no file can hold")
    if isinstance(node, SequenceNode):
        total += sum(_count_values(child, counted) for child in node.value)
    elif isinstance(node, MappingNode):
        total += sum(_count_values(key, counted) + _count_values(child, counted) for key, child in node.value)
    if total > MOST_VALUES:
        raise ValueError(f"it expands to more than {MOST_VALUES:,} values")
    counted[id(node)] = total
    return total
