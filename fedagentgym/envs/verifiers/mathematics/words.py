"""Golds that are words: a name, yes or no, the letter of a choice. They are compared as words, in any case."""

from __future__ import annotations

import re

_WRAPPED = re.compile(
    r"\s*\$?\s*\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{\s*\(?([A-Za-z][A-Za-z\s.'-]*)\)?\s*\}\s*\$?\s*\.?\s*"
)
_PHRASE = re.compile(r"[A-Za-z\s.'-]+")
_FUNCTIONS = re.compile(r"sqrt|infty|sin|cos|tan|log|pi\b|theta|alpha|beta|infinity")
_SHORT = re.compile(
    r"yes|no|odd|even|true|false|none|red|blue|man|men|boy|cat|dog|sun|mon|tue|wed|thu|fri|sat", re.IGNORECASE
)
_NAME = re.compile(r"[A-Z][a-z]+")
_CHOICE = re.compile(r"\(?([A-H])\)?")
_CHOSEN = re.compile(
    r"\(([A-Ha-h])\)(?:\s.*)?|([A-Ha-h])(?:[.):]+(?:\s.*)?)?|(?:choice|option)\s*\(?([A-Ha-h])\)?", re.IGNORECASE
)
_LEADING = re.compile(
    r"(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?(?:answer|result|it|this|that)\b\s*(?:is|=|:)+\s*:?\s*",
    re.IGNORECASE,
)
_ARTICLES = frozenset(("a", "an", "the"))
_SETS = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?(?:empty|null) set|.*\breals?\b.*", re.IGNORECASE
)


def words_of_gold(gold: str, normal_gold: str) -> tuple[str, ...] | None:
    """The words of a gold that is a word or phrase; None when it is an expression or the name of a set.

    >>> words_of_gold("Evelyn", "Evelyn"), words_of_gold("xy", "xy")
    (('evelyn',), None)
    """
    if _SETS.fullmatch(normal_gold):
        return None
    if found := _CHOICE.fullmatch(normal_gold):
        return (found[1],)
    if _WRAPPED.fullmatch(gold):
        return words(normal_gold)
    if not _PHRASE.fullmatch(normal_gold) or _FUNCTIONS.search(normal_gold):
        return None
    parts = re.findall(r"[A-Za-z]+", normal_gold)
    if not parts:
        return None
    is_phrase = (
        max(map(len, parts)) > 3
        or any(_SHORT.fullmatch(part) for part in parts)
        or all(_NAME.fullmatch(part) for part in parts)
    )
    return words(normal_gold) if is_phrase else None


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without articles."""
    found = re.findall(r"[^\W_]+", text.lower())
    return tuple(word for word in found if word not in _ARTICLES) or tuple(found)


def same_words(gold: tuple[str, ...], answer: str) -> bool:
    """Is the answer the same words, perhaps after `the answer is`? A choice may have its text behind its letter."""
    bare = _LEADING.sub("", answer, count=1)
    if len(gold) == 1 and len(gold[0]) == 1 and gold[0].isupper():
        found = _CHOSEN.fullmatch(bare.strip())
        return found is not None and next(letter for letter in found.groups() if letter).upper() == gold[0]
    return words(answer) == gold or words(bare) == gold
