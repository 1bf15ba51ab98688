"""Similarity of two short texts as sets of words: WebShop's reward compares attributes and options by it.

It is the token-set ratio on top of `difflib`, in the version the original pins; later versions of that library give other
numbers for a quarter of all pairs. The order of the arguments matters, since `difflib` is not symmetric.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache

_NOT_WORD = re.compile(r"[^a-zA-Z0-9_]")


@lru_cache(maxsize=1 << 16)
def token_set_ratio(first: str, second: str) -> int:
    """0 to 100; 100 as soon as the words of one are all found in the other.

    >>> token_set_ratio("navy blue", "blue"), token_set_ratio("small", "medium")
    (100, 18)
    """
    if not _normalize(first) or not _normalize(second):
        return 0
    mine, theirs = set(_normalize(first).split()), set(_normalize(second).split())
    common = " ".join(sorted(mine & theirs))
    with_mine = f"{common} {' '.join(sorted(mine - theirs))}".strip()
    with_theirs = f"{common} {' '.join(sorted(theirs - mine))}".strip()
    return max(_ratio(common, with_mine), _ratio(common, with_theirs), _ratio(with_mine, with_theirs))


@lru_cache(maxsize=1 << 16)
def exceeds(first: str, second: str, threshold: int) -> bool:
    """Whether the ratio is above a threshold; most pairs are refused by their lengths and letters alone.

    >>> exceeds("navy blue", "blue", 85), exceeds("small", "x-large", 85)
    (True, False)
    """
    mine, theirs = set(_normalize(first).split()), set(_normalize(second).split())
    if not mine or not theirs:
        return False
    if (mine <= theirs or theirs <= mine) and threshold < 100:
        return True
    common = " ".join(sorted(mine & theirs))
    with_mine = f"{common} {' '.join(sorted(mine - theirs))}".strip()
    with_theirs = f"{common} {' '.join(sorted(theirs - mine))}".strip()
    pairs = ((common, with_mine), (common, with_theirs), (with_mine, with_theirs))
    return any(_bound_ratio(a, b) > threshold and _ratio(a, b) > threshold for a, b in pairs)


def _bound_ratio(first: str, second: str) -> int:
    """A bound of the ratio: all letters that both hold could match, in whatever order."""
    if not first or not second:
        return 0
    shared = sum((Counter(first) & Counter(second)).values())
    return round(100 * (2.0 * shared / (len(first) + len(second))))


@lru_cache(maxsize=1 << 14)
def _normalize(text: str) -> str:
    ascii_only = text.encode("ascii", "ignore").decode("ascii")
    return _NOT_WORD.sub(" ", ascii_only).lower().strip()


def _ratio(first: str, second: str) -> int:
    if not first or not second:
        return 0
    return round(100 * SequenceMatcher(None, first, second).ratio())
