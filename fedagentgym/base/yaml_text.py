"""YAML from untrusted sources, read within limits.

A setting is a plain value: text, number, boolean, null, or lists and mappings of these. A YAML parser accepts far more:
aliases that expand a few lines to gigabytes, values that contain themselves, lists nested thousands deep (which take
minutes to parse), tags that construct objects, dates. All of this is refused, or read as plain text.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedagentgym.base.errors import DataError, describe_error
from fedagentgym.base.json_text import MOST_DEEP
from fedagentgym.base.text import is_clean_text

MOST_CHARACTERS = 1 << 16
"""Maximum length of a text: YAML is written by hand, and the parser needs seconds for much more."""
MOST_VALUES = 20_000
"""Maximum number of values in a text; the values behind an alias are counted each time."""
MOST_DIGITS = 80
"""Maximum length of a number as written, in any of YAML's notations."""
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map", "merge")


def parse_yaml(text: str, where: str) -> Any:
    """The plain value of a YAML text; an error is one sentence that begins with `where`."""
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"{where}: not usable YAML: {len(text):,} characters, at most {MOST_CHARACTERS:,} are admitted")
    try:
        loader = _PlainLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_values(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise DataError(f"{where}: not YAML: {describe_error(error, named=False)}") from None
    except (_NotPlain, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: not usable YAML: {describe_error(error, named=False)}") from None


class _NotPlain(Exception):
    """A YAML text whose value is not a plain value of bounded size."""


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader with a limit on depth, and without tags and dates."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._depth += 1
        if self._depth > MOST_DEEP:
            raise _NotPlain(f"it is nested more than {MOST_DEEP} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _count_values(node: Node, counted: dict[int, int | None]) -> int:
    """The number of values that a node expands to, counting each alias as what it refers to. Refuses values that are not plain.

    `counted` holds the visited nodes; None marks those still being counted, so meeting one of them again means a cycle. An
    alias refers back, so the recursion is no deeper than the text is nested.
    """
    if id(node) in counted:
        known = counted[id(node)]
        if known is None:
            raise _NotPlain("a value contains itself")
        return known
    counted[id(node)] = None
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _KINDS:
        raise _NotPlain(f"the tag {node.tag!r} makes no plain value")
    total = 1
    if isinstance(node, ScalarNode):
        _check_scalar(node)
    elif isinstance(node, SequenceNode):
        total += sum(_count_values(child, counted) for child in node.value)
    elif isinstance(node, MappingNode):
        total += sum(_count_values(key, counted) + _count_values(child, counted) for key, child in node.value)
    if total > MOST_VALUES:
        raise _NotPlain(f"it expands to more than {MOST_VALUES:,} values")
    counted[id(node)] = total
    return total


def _check_scalar(node: ScalarNode) -> None:
    """Refuse text that cannot be written to a file, and numbers that are too long."""
    text = str(node.value)
    if not is_clean_text(text):
        raise _NotPlain("a text holds a character that no file can hold")
    if node.tag.endswith((":int", ":float")) and len(text) > MOST_DIGITS:
        raise _NotPlain(f"a number of {len(text):,} characters")
