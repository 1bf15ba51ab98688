"""From text to index terms, as Lucene's English analyser does it: words by Unicode's rules, no possessives, lower case,
no stop words, Porter stems.

Words follow UAX #29 in the reading of Lucene's StandardTokenizer, written as one regular expression: runs of letters and
digits, held together by a full stop, an apostrophe or a colon between letters and by a point or comma between digits; one
token per Han or Hiragana character and per pictograph. Number forms such as a half or a circled one belong to no word.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from itertools import chain

from fedagentgym.envs.webshop.lists import split_list
from fedagentgym.envs.webshop.porter import stem

STOP_WORDS = frozenset(
    split_list(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to "
        "was will with"
    )
)
MAX_TOKEN = 255
UNASSIGNED_FROM, UNASSIGNED_TO = 0x3FFFE, 0xE0000
_POSSESSIVES = ("'s", "’s", "＇s")

_ASCII_WORD = re.compile(
    r"[0-9a-z_]+(?:(?<=[a-z])[:.'](?=[a-z])[0-9a-z_]+|(?<=[0-9])[,.;'](?=[0-9])[0-9a-z_]+)*", re.ASCII
)

_MID_LETTER = ":··‧︓﹕："
_MID_NUMBER = ",;;։،⁄︐︔﹐﹔，；"
_MID_BOTH = ".'‘’․﹒＇．"
_SOUND_MARKS = "\uff9e\uff9f"
_IDEOGRAPH = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_IDEOGRAPH += "\U00020000-\U0003ffff\U0001b001-\U0001b11e"
_PICTOGRAPH = (
    "©®‼⁉™ℹ↔-↙↩↪⌚⌛⌨⎈⏏⏩-⏳⏸-⏺Ⓜ▪▫▶◀◻-◾☀-★☇-☒☔-⚅⚐-✅✈-✒✔✖✝✡✨✳✴❄❇❌❎❓-❕❗❣-❧➕-➗➡➰➿⤴⤵⬅-⬇⬛⬜⭐⭕〰〽㊗㊙"
    "\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff"
)


def _build_character_classes(*groups: tuple[str, ...]) -> list[str]:
    """The characters of some groups of Unicode categories, each as ranges for use inside a character class."""
    found: list[list[int]] = [[] for _ in groups]
    number = {category: place for place, group in enumerate(groups) for category in group}
    assigned = (range(UNASSIGNED_FROM), range(UNASSIGNED_TO, sys.maxunicode + 1))
    for code in chain(*assigned):
        place = number.get(unicodedata.category(chr(code)))
        if place is not None:
            found[place].append(code)
    return ["".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _iter_runs(codes)) for codes in found]


def _iter_runs(codes: list[int]) -> Iterator[tuple[int, int]]:
    """First and last number of every run of neighbours."""
    starts = [place for place, code in enumerate(codes) if place == 0 or code != codes[place - 1] + 1]
    for start, following in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield codes[start], codes[following - 1]


_unicode_word: re.Pattern[str] | None = None


def _get_word_pattern() -> re.Pattern[str]:
    """Compiled when the first text that is not ASCII comes: reading the tables of Unicode takes a while."""
    global _unicode_word
    if _unicode_word is None:
        numbers, marks = _build_character_classes(("No",), ("Mn", "Mc", "Me", "Cf"))
        extend = f"[{marks}{_SOUND_MARKS}]*"
        letter = f"(?![{numbers}{_IDEOGRAPH}{_SOUND_MARKS}])[^\\W\\d_]"
        lone = f"[{_IDEOGRAPH}]{extend}"
        picture = f"[{_PICTOGRAPH}](?:[\U0001f3fb-\U0001f3ff])?{extend}(?:(?<=\u200d)[{_PICTOGRAPH}]{extend})*"
        flags = "[\U0001f1e6-\U0001f1ff]{1,2}"
        unit = f"(?:(?:{letter}|\\d|_){extend})"
        after_letter = f"(?<=[^\\W\\d_])[{_MID_LETTER}{_MID_BOTH}](?={letter})"
        after_digit = f"(?<=\\d)[{_MID_NUMBER}{_MID_BOTH}](?=\\d)"
        _unicode_word = re.compile(f"{lone}|{picture}|{flags}|{unit}+(?:(?:{after_letter}|{after_digit}){unit}+)*")
    return _unicode_word


def tokenize(text: str) -> list[str]:
    """The words of a lower-case text.

    >>> tokenize("men's t-shirt 3.5oz, u.s.a. (1,000 pcs)")
    ["men's", 't', 'shirt', '3.5oz', 'u.s.a', '1,000', 'pcs']
    """
    found = (_ASCII_WORD if text.isascii() else _get_word_pattern()).findall(text)
    if found and max(map(len, found)) > MAX_TOKEN:
        found = [word[start : start + MAX_TOKEN] for word in found for start in range(0, len(word), MAX_TOKEN)]
    return found


def analyze_token(word: str) -> str | None:
    """The index term of a word; None if it is a stop word or holds neither letter nor digit.

    >>> analyze_token("women's"), analyze_token("the"), analyze_token("running")
    ('women', None, 'run')
    """
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    if not word or word in STOP_WORDS or not word.strip("_"):
        return None
    return stem(word)


def analyze_text(text: str) -> list[str]:
    """The index terms of a text, in order, with repetitions."""
    return [found for word in tokenize(text.lower()) if (found := analyze_token(word)) is not None]
