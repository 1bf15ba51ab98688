"""From text to index terms, as Lucene's English analyser does it: words by Unicode's rules, no possessives, lower case, no
stop words, Porter stems.

Words follow UAX #29 in the reading of Lucene's StandardTokenizer, written as one regular expression: runs of letters
and digits, held together by a full stop, an apostrophe or a colon between letters and by a point or comma between
digits; one token per Han or Hiragana character and per pictograph. Number forms such as a half or a circled one belong
to no word.

The stemmer is Porter's in the form of its author's own Java program, which Lucene uses. It differs from the published
paper in three rules: `bli` becomes `ble` (not only `abli`), `logi` becomes `log`, and words of one or two letters stay
as they are. Letters are consonants (c) or vowels (v); the *measure* of a stem is how often a run of
vowels is followed by a run of consonants in it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache
from itertools import chain


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a list: separated by blanks, or by commas where an entry has blanks in it.

    >>> split_list("red blue"), split_list("navy blue, red")
    (('red', 'blue'), ('navy blue', 'red'))
    """
    parts = text.split(",") if "," in text else text.split()
    return tuple(" ".join(part.split()) for part in parts)


_RUNS = re.compile("v+c+")

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
    # 1. Plurals; then -ed and -ing, after which an e comes back or a doubled letter is taken off.
    if word[-1] == "s":
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif word[-2] != "s":
            word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    elif word.endswith(("ed", "ing")):
        base = word[:-2] if word.endswith("ed") else word[:-3]
        if "v" in _classify_letters(base):
            word = base
            if base.endswith(("at", "bl", "iz")):
                word += "e"
            elif _ends_double(base):
                word = base if base[-1] in "lsz" else base[:-1]
            elif _measure(base) == 1 and _ends_cvc(base):
                word += "e"
    # 2. to 4. A final y becomes i, and longer endings become shorter ones.
    if word[-1] == "y" and "v" in _classify_letters(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_3.get(word[-2:-1], ()))
    word = _replace(word, _STEP_4.get(word[-1], ()))
    # 5. Endings are removed from longer stems; -ion only after s and t.
    for suffix in _STEP_5.get(word[-2:-1], ()):
        if word.endswith(suffix) and (suffix != "ion" or word.endswith(("sion", "tion"))):
            base = word[: -len(suffix)]
            word = base if _measure(base) > 1 else word
            break
    # 6. A final e is removed, and one of two final l.
    measure = _measure(word)
    if word[-1] == "e" and (measure > 1 or (measure == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    return word[:-1] if measure > 1 and word[-1] == "l" and _ends_double(word) else word


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


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + new if _measure(base) > 0 else word
    return word


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


@lru_cache(maxsize=1)
def _get_word_pattern() -> re.Pattern[str]:
    """The pattern of a word in texts that are not ASCII; compiled at first use, since reading Unicode's tables takes a while."""
    # Number forms and marks, each as ranges of characters for use inside a character class.
    kinds = {"No": 0, "Mn": 1, "Mc": 1, "Me": 1, "Cf": 1}
    found: tuple[list[list[int]], list[list[int]]] = ([], [])
    for code in chain(range(UNASSIGNED_FROM), range(UNASSIGNED_TO, sys.maxunicode + 1)):
        kind = kinds.get(unicodedata.category(chr(code)))
        if kind is None:
            continue
        runs = found[kind]
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    numbers, marks = ("".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs) for runs in found)
    extend = f"[{marks}{_SOUND_MARKS}]*"
    letter = f"(?![{numbers}{_IDEOGRAPH}{_SOUND_MARKS}])[^\\W\\d_]"
    lone = f"[{_IDEOGRAPH}]{extend}"
    picture = f"[{_PICTOGRAPH}](?:[\U0001f3fb-\U0001f3ff])?{extend}(?:(?<=\u200d)[{_PICTOGRAPH}]{extend})*"
    flags = "[\U0001f1e6-\U0001f1ff]{1,2}"
    unit = f"(?:(?:{letter}|\\d|_){extend})"
    after_letter = f"(?<=[^\\W\\d_])[{_MID_LETTER}{_MID_BOTH}](?={letter})"
    after_digit = f"(?<=\\d)[{_MID_NUMBER}{_MID_BOTH}](?=\\d)"
    return re.compile(f"{lone}|{picture}|{flags}|{unit}+(?:(?:{after_letter}|{after_digit}){unit}+)*")


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
