"""Reading mathematical answers as text: where the answer stands, its normal form, exact numbers, and what is refused unread.

Everything here is linear in the text and needs no computer algebra; most answers are decided by it alone.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from fedagentgym.envs.verifiers.formats import ANSWER, last_block

LONGEST_ANSWER = 1_000
_BOX = re.compile(r"\\(?:boxed|framebox|fbox)\s*\{")


def extract_answer(reply: str) -> str | None:
    """The answer of a reply: its last answer block, else its last box; inside the block too the last box counts.

    >>> extract_answer("so \\\\boxed{3} or rather \\\\boxed{4}")
    '4'
    >>> extract_answer("<think> 3 ? </think> <answer> 18 eggs </answer>")
    '18 eggs'
    """
    block = last_block(reply, ANSWER)
    if block is None:
        return last_box(reply)
    boxed = last_box(block)
    return block if boxed is None else boxed


def last_box(text: str) -> str | None:
    """The content of the last complete box, with balanced braces."""
    boxes = [found.end() for found in _BOX.finditer(text)]
    if not boxes:
        return None
    start, depth = boxes[-1], 1
    for position in range(start, min(len(text), start + 4 * LONGEST_ANSWER)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":
            depth += 1 if character == "{" else -1
            if not depth:
                return text[start:position].strip()
    return None


# ---- normal form ----------------------------------------------------------------------------------------------------

_REPLACED = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|big|Big|bigl|bigr|Bigl|Bigr|displaystyle)(?![a-zA-Z])"), ""),
    (re.compile(r"\{,\}|\\!,|,\\!|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"\\[!,;: ]|\\q?quad(?![a-zA-Z])|~|[\u00a0\u2009\u202f]"), " "),
    (re.compile(r"\\[()\[\]]|\\?\$|[\u00a3\u20ac\u00a5]|\\(?:pounds|euro)(?![a-zA-Z])"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])|\u00b0"), " "),
    (re.compile(r"[\u2212\u2010\u2011\u2013]"), "-"),
    (re.compile(r"\u00d7"), r"\\times "),
    (re.compile(r"\u221e"), r"\\infty "),
    (re.compile(r"\u03c0"), r"\\pi "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\leq(?![a-zA-Z])|\u2264"), r"\\le "),
    (re.compile(r"\\geq(?![a-zA-Z])|\u2265"), r"\\ge "),
    (re.compile(r"\*\*([^*]{1,80})\*\*"), r"\1"),
)
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SINGLE_BRACES = re.compile(r"(?<=[\^_])\{(\w)\}")


def normal(text: str) -> str:
    """One spelling of an answer: no math delimiters, spacing commands, currency signs or text wrappers."""
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _WORDS.sub(lambda found: f" {found[1]} ", text)
    text = " ".join(text.split()).removeprefix("####").lstrip("= ")
    while text and text[-1] in ".,;:":
        text = text[:-1].rstrip()
    return text


def squeezed(text: str) -> str:
    """A normal form without blanks and needless braces, for comparing as strings."""
    return _SINGLE_BRACES.sub(r"\1", text.replace(" ", ""))


# ---- exact numbers --------------------------------------------------------------------------------------------------

_N = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_VALUE = rf"""(?P<sign>[-+]?)\s*(?:
    (?P<whole>[0-9]+)?\s*\\frac\s*(?:\{{\s*(?P<over>[-+]?\s*(?:{_N}))\s*\}}\s*\{{\s*(?P<under>[-+]?(?:{_N}))\s*\}}
                               |\s*(?P<digits>[0-9]\s*[0-9]|[0-9]\s*\{{[0-9]+\}}))
  | (?P<whole2>[0-9]+)\s+(?P<over2>[0-9]+)\s*/\s*(?P<under2>[0-9]+)
  | (?P<over3>{_N})\s*/\s*(?P<under3>{_N})
  | (?P<number>{_N})(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?[0-9]{{1,2}})\s*\}}?
                     |[eE](?P<exponent>[-+]?[0-9]{{1,2}}))?
)"""
_NUMBER = re.compile(_VALUE, re.VERBOSE)
_ASSIGNED = re.compile(r"([A-Za-z]\w{0,2}|\\[a-z]{2,8})\s*=\s*")
_LEADING = re.compile(
    r"(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?(?:answer|result)\b\s*(?:is|=|:)*\s*:?\s*",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per cent\b|pct\b)", re.IGNORECASE)
_UNIT_POWER = re.compile(r"(?<=[a-z]{2})\s*\^\s*\{?\s*[23]\s*\}?\Z")
_WORD = re.compile(r"[A-Za-z]+")
_PROSE = re.compile(r"[A-Za-z\s.,;:'\"\u2019!?()/-]*")
_LOOSE_SIGN = re.compile(r"(?<![A-Za-z])[-/]|[-/](?![A-Za-z])|!\s*[^\s]|\(\s*\)")
_ATTACHED = re.compile(r"[,;:.]\s|[-/][A-Za-z]{2}|/[smhl]\b")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SHORT = _set(
    """m s g l L h A V N J W K C F a km cm mm nm kg mg lb oz ft in yd mi ml mL cl dl hr am pm AM PM st nd rd th of is
    it he me we us at by on as so an up to US Hz kW MB GB KB TB Pa au"""
)
_GLUED = _set(
    """m s g l L h km cm mm nm kg mg lb lbs oz ft in yd mi ml mL hr hrs min mins sec secs mph kmh am pm st nd rd th Hz"""
)
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_CHANGES_THE_VALUE = _set(
    """pi sqrt root roots squared cubed power plus minus negative positive divided mod modulo factorial log ln sin cos
    tan exp infinity infinite half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths
    seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths double
    doubled twice triple tripled not no never nor or except least most wrong incorrect zero one two three four
    five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    twenty thirty forty fifty sixty seventy eighty ninety base hundreds thousands millions billions"""
)
_CHANGES_WHAT_FOLLOWS = _set(
    """times over square cube sum difference product than more less fewer greater larger smaller above below under
    between from without add subtract every nearly almost last first if"""
)


class Number(NamedTuple):
    """An exact value; `percent` says that it was written as one, `places` how many decimals it was written with."""

    value: Fraction
    percent: bool = False
    places: int = 0


def number(text: str) -> Number | None:
    """The exact value of a plain number in normal form, with units or a sentence around it, if it surely is one.

    >>> number(normal("\\\\$1,234.50 per month."))
    Number(value=Fraction(2469, 2), percent=False, places=2)
    >>> number("1 1/2").value, number("\\\\frac12").value, number("18 - x")
    (Fraction(3, 2), Fraction(1, 2), None)
    """
    text = _LEADING.sub("", text, count=1) if text[:1].isalpha() else text
    if assigned := _ASSIGNED.match(text):
        text = text[assigned.end() :]
    found = _NUMBER.match(text) or _first_number(text)
    if found is None or not _is_words(text[: found.start()], before=True):
        return None
    value = _value(found)
    if value is None:
        return None
    places = len(found["number"].partition(".")[2]) if found["number"] else 0
    rest = _UNIT_POWER.sub("", text[found.end() :])
    percent = _PERCENT.match(rest)
    if percent:
        rest = rest[percent.end() :]
    scale = 1
    words = _WORD.findall(rest)
    if words and words[0].lower() in _SCALES and rest.lstrip().lower().startswith(words[0].lower()):
        scale = _SCALES[words[0].lower()]
        rest = rest.lstrip()[len(words[0]) :]
    return Number(value * scale, percent is not None, places) if _is_words(rest, before=False) else None


def _first_number(text: str) -> re.Match[str] | None:
    digit = re.search(r"[0-9.\\]", text)
    if digit is None:
        return None
    start = digit.start()
    if start and text[start - 1] in "-+":
        start -= 1
    return _NUMBER.match(text, start)


def _is_words(text: str, before: bool) -> bool:
    """Is this nothing but units or a sentence that leaves the number beside it as it is?"""
    if not text.strip():
        return True
    if not _PROSE.fullmatch(text) or _LOOSE_SIGN.search(text if before else text[1:]):
        return False
    words = _WORD.findall(text)
    lowered = {word.lower() for word in words}
    if (
        lowered & _CHANGES_THE_VALUE
        or lowered & _SCALES.keys()
        or any(len(word) < 3 and word not in _SHORT for word in words)
    ):
        return False
    if before:
        return text[-1].isspace() and not lowered & _CHANGES_WHAT_FOLLOWS
    if text[0].isalpha():
        return words[0] in _GLUED
    if not text[0].isspace() and not _ATTACHED.match(text):
        return False
    return words[-1:] != ["a"] and text.count("(") == text.count(")")


def _value(found: re.Match[str]) -> Fraction | None:
    parts = found.groupdict()
    if sum(len(part) for part in parts.values() if part) > LONGEST_ANSWER:
        return None
    if parts["digits"]:
        digits = re.sub(r"[\s{}]", "", parts["digits"])
        over, under, whole = digits[0], digits[1:], parts["whole"]
    elif parts["over"]:
        over, under, whole = parts["over"], parts["under"], parts["whole"]
    elif parts["over2"]:
        over, under, whole = parts["over2"], parts["under2"], parts["whole2"]
    elif parts["over3"]:
        over, under, whole = parts["over3"], parts["under3"], None
    else:
        over, under, whole = parts["number"], "1", None
    divisor = _decimal(under)
    if not divisor or (whole and _decimal(over) < 0):
        return None
    value = (Fraction(int(whole)) if whole else Fraction(0)) + _decimal(over) / divisor
    ten = parts["power"] or parts["exponent"]
    if ten:
        value *= Fraction(10) ** int(ten)
    return -value if parts["sign"] == "-" else value


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[,\s]", "", text))


def same_number(gold: Number, answer: Number) -> bool:
    """Equal exactly; a fraction without a finite decimal form also equals its decimals when six or more are right.

    50%, 50 and 0.5 are the same answer when one of the two is written as a percentage.
    """
    if gold.value == answer.value:
        return True
    if gold.percent != answer.percent:
        hundredth = Fraction(1, 100)
        left = gold.value * (hundredth if gold.percent else 1)
        right = answer.value * (hundredth if answer.percent else 1)
        return left == right
    if _terminates(gold.value) and _terminates(answer.value):
        return False
    places = max(gold.places, answer.places)
    return places >= 6 and abs(gold.value - answer.value) < Fraction(1, 10**6)


def _terminates(value: Fraction) -> bool:
    divisor = value.denominator
    for prime in (2, 5):
        while divisor % prime == 0:
            divisor //= prime
    return divisor == 1


# ---- what is refused before anybody works on it ---------------------------------------------------------------------

_LONG_NUMBER = re.compile(r"[0-9]{41}")
_POWER = re.compile(r"\^\s*[{(]?\s*[-+]?\s*([0-9]+)")
_POWER_OF_POWER = re.compile(r"\^\s*[{(]?[0-9.\s]*[})]?\s*\^|\^\s*[{(][^{}]{0,40}[0-9)}]\s*\^")
_POWER_OF_SUM = re.compile(r"[)}\]]\s*\^\s*[{(]?\s*(?:1[3-9]|[2-9][0-9]|[0-9]{3})")
_FACTORIAL = re.compile(r"([0-9]+|[^0-9\s])\s*!")
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
_MATHEMATICAL = _set(
    "and sqrt sin cos tan cot sec csc log exp infty infinity mod max min gcd lcm arcsin arccos arctan for all"
)
_SERIES = re.compile(r"\\(?:binom|choose|sum|prod|int|lim)(?![a-z])")


def unreadable(text: str) -> str | None:
    """Why a text is not even brought into normal form, or None."""
    if len(text) > LONGEST_ANSWER:
        return "too long"
    if any(
        (ord(character) < 32 and character not in "\t\n\r") or 0xD800 <= ord(character) < 0xE000 for character in text
    ):
        return "not text"
    return None


def refusal(text: str) -> str | None:
    """Why an answer in normal form goes no further, or None: shapes that no sensible answer has and that algebra chokes on."""
    if "\\boxed" in text or text.count("{") != text.count("}"):
        return "braces do not match"
    if _deepest(text) > 12:
        return "too deep"
    if text.count("=") > 3 or text.count("^") > 24 or text.count("\\") > 120 or len(_SERIES.findall(text)) > 4:
        return "too many parts"
    if _LONG_NUMBER.search(text):
        return "a number too long"
    if _POWER_OF_POWER.search(text) or any(len(power) > 4 for power in _POWER.findall(text)):
        return "a power too large"
    if _POWER_OF_SUM.search(text) and _WORD.search(text):
        return "a power too large"
    if len([word for word in _LONG_WORD.findall(text) if word.lower() not in _MATHEMATICAL]) > 5:
        return "prose"
    factorials = _FACTORIAL.findall(text)
    if len(factorials) > 4 or not all(_modest_factorial(argument) for argument in factorials):
        return "a factorial too large"
    return None


def _modest_factorial(argument: str) -> bool:
    return argument.isalpha() or (argument.isdecimal() and len(argument) <= 2 and int(argument) <= 60)


def _deepest(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
