"""Shapes that no sensible answer has, refused before any computation."""

from __future__ import annotations

import re

_LONG_NUMBER = re.compile(r"[0-9]{41}")
_POWER = re.compile(r"\^\s*[{(]?\s*[-+]?\s*([0-9]+)")
_POWER_OF_POWER = re.compile(r"\^\s*[{(]?[0-9.\s]*[})]?\s*\^|\^\s*[{(][^{}]{0,40}[0-9)}]\s*\^")
_POWER_OF_SUM = re.compile(r"[)}\]]\s*\^\s*[{(]?\s*(?:1[3-9]|[2-9][0-9]|[0-9]{3})")
_FACTORIAL = re.compile(r"([0-9]+|[^0-9\s])\s*!")
_LETTER = re.compile(r"[A-Za-z]")
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
_MATHEMATICAL = re.compile(
    r"and|sqrt|sin|cos|tan|cot|sec|csc|log|exp|infty|infinity|mod|max|min|gcd|lcm|arcsin|arccos|arctan|for|all"
    r"|[pbv]?matrix|array|begin|end",
    re.IGNORECASE,
)
_SERIES = re.compile(r"\\(?:binom|choose|sum|prod|int|lim)(?![a-z])")


def refusal(text: str) -> str | None:
    """Why an answer in normal form goes no further, or None."""
    if "\\boxed" in text or text.count("{") != text.count("}"):
        return "braces do not match"
    if _deepest(text) > 12:
        return "too deep"
    if text.count("=") > 24 or text.count("^") > 24 or text.count("\\") > 120 or len(_SERIES.findall(text)) > 4:
        return "too many parts"
    if _LONG_NUMBER.search(text):
        return "a number too long"
    if any(len(power) > 4 for power in _POWER.findall(text)):
        return "a power too large"
    if len([word for word in _LONG_WORD.findall(text) if not _MATHEMATICAL.fullmatch(word)]) > 5:
        return "prose"
    factorials = _FACTORIAL.findall(text)
    if len(factorials) > 4 or not all(_modest_factorial(argument) for argument in factorials):
        return "a factorial too large"
    return None


def refusal_of_algebra(text: str) -> str | None:
    """Why an expression is not given to computer algebra, which would multiply it out, or None."""
    if _POWER_OF_POWER.search(text) or (_POWER_OF_SUM.search(text) and _LETTER.search(text)):
        return "a power too large"
    return None


def _modest_factorial(argument: str) -> bool:
    return argument.isalpha() or argument in ")}]" or (argument.isdecimal() and len(argument) <= 3)


def _deepest(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
