"""Porter's stemmer in the form of its author's own Java program, which Lucene uses.

It differs from the published paper in three rules: `bli` becomes `ble` (not only `abli`), `logi` becomes `log`, and words
of one or two letters stay as they are. Letters are told apart as consonants (c) and vowels (v); the *measure* of a stem is
how often a run of vowels is followed by a run of consonants in it.
"""

from __future__ import annotations

import re
from functools import lru_cache

_RUNS = re.compile("v+c+")
_DROP_SECOND = frozenset("lsz")

_STEP_3 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP_4 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP_5 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a lower-case word.

    >>> stem("relational"), stem("hopping"), stem("possibly"), stem("is")
    ('relat', 'hop', 'possibl', 'is')
    """
    if len(word) <= 2:
        return word
    word = _strip_plural_and_participle(word)
    if word[-1] == "y" and "v" in _classify_letters(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_3.get(word[-2:-1], ()))
    word = _replace(word, _STEP_4.get(word[-1], ()))
    word = _strip_suffix(word)
    return _tidy(word)


def _classify_letters(word: str) -> str:
    """One letter per letter: v for a vowel, c for a consonant; y is a vowel after a consonant."""
    if word.isascii() and word.isalpha() and "y" not in word:
        return word.translate(_ASCII_KINDS)
    kinds: list[str] = []
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and bool(kinds) and kinds[-1] == "c")
        kinds.append("v" if vowel else "c")
    return "".join(kinds)


_ASCII_KINDS = {code: ("v" if chr(code) in "aeiou" else "c") for code in range(128)}


def _measure(word: str) -> int:
    return len(_RUNS.findall(_classify_letters(word)))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _classify_letters(word)[-1] == "c"


def _ends_cvc(word: str) -> bool:
    return len(word) > 2 and _classify_letters(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _strip_plural_and_participle(word: str) -> str:
    if word[-1] == "s":
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif word[-2] != "s":
            word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return _restore_e(base) if "v" in _classify_letters(base) else word
    return word


def _restore_e(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_double(base):
        return base if base[-1] in _DROP_SECOND else base[:-1]
    return base + "e" if _measure(base) == 1 and _ends_cvc(base) else base


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + new if _measure(base) > 0 else word
    return word


def _strip_suffix(word: str) -> str:
    for suffix in _STEP_5.get(word[-2:-1], ()):
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if suffix == "ion" and not base.endswith(("s", "t")):
                continue
            return base if _measure(base) > 1 else word
    return word


def _tidy(word: str) -> str:
    measure = _measure(word)
    if word[-1] == "e" and (measure > 1 or (measure == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    if measure > 1 and word[-1] == "l" and _ends_double(word):
        word = word[:-1]
    return word
