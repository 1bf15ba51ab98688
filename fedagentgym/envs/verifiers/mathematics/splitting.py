"""Cutting a text at separators that stand outside of all brackets."""

from __future__ import annotations

import re

_BRACKET = re.compile(r"\\[{}]|[(\[{})\]\u27e8\u27e9]|\\begin|\\end")
_OPENING = frozenset(("(", "[", "{", "\\{", "\u27e8", "\\begin"))


def split_outside(
    text: str, separator: re.Pattern[str], separators: bool = False, keep_empty: bool = False
) -> list[str]:
    """The parts of a text between separators outside of brackets, or those separators themselves.

    A half-open interval has brackets that do not fit each other, so only their number counts.
    """
    found = list(separator.finditer(text))
    if not found:
        return [] if separators else [text]
    depths = _depths(text)
    outside = [each for each in found if depths[each.start()] == 0 and each.end() > each.start()]
    if separators:
        return [each[0].strip() for each in outside]
    parts, start = [], 0
    for each in outside:
        parts.append(text[start : each.start()])
        start = each.end()
    parts.append(text[start:])
    parts = [part.strip() for part in parts]
    return parts if keep_empty else [part for part in parts if part] or [""]


def _depths(text: str) -> list[int]:
    """The bracket depth of every character; the French ]0,1[ opens with a closing bracket."""
    depths, depth, position = [], 0, 0
    for found in _BRACKET.finditer(text):
        depths += [depth] * (found.start() - position)
        position = found.start()
        opens = found[0] in _OPENING
        if opens and found[0] == "[" and depth == 1 and text.startswith("]"):
            opens = False
        elif found[0] == "]" and depth == 0:
            opens = True
        depth = depth + 1 if opens else max(0, depth - 1)
    return depths + [depth] * (len(text) - position + 1)


def encloses(text: str) -> bool:
    """Does the first bracket of the text close with the last one?"""
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += 1 if found[0] in _OPENING else -1
        if depth == 0:
            return found.end() == len(text)
    return False
