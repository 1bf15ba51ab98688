"""Plain numbers: their exact value, with units or a sentence around them, and the rule for decimals.

Units (`cm`, `m/s^2`, `kg \\cdot m^{2} s^{-2}`, `square feet`) are not compared; all that matters is whether a text
consists of units.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from fedagentgym.envs.verifiers.math_text import LONGEST_ANSWER

_NAMES = """kilometers? kilometres? centimeters? centimetres? millimeters? millimetres? meters? metres? miles? yards?
    feet foot inch(?:es)? square cubic sq cu units? seconds? minutes? hours? days? weeks? months? years? grams?
    kilograms? liters? litres? milliliters? gallons? quarts? pints? cups? ounces? pounds? tons? tonnes? degrees?
    celsius fahrenheit kelvin radians? newtons? joules? watts? volts? amperes? amps? ohms? pascals? hertz moles?
    coulombs? dollars? cents? euros? km/h mph kph rpm lbs? hrs? mins? secs? yd ft oz in mi gal atm bar cal kcal
    eV keV MeV GeV mol rad sr Bq Gy dB kWh amu ly pc AU ha"""
_SYMBOLS = "(?:[munkMGTcdh]?(?:m|g|s|L|l|N|J|W|V|A|K|C|F|T|Pa|Hz|eV|mol|B|H|Wb|S))"
_POWER = r"(?:\s*\^\s*\{?\s*[-+]?[0-9]\s*\}?|-[1-4](?![0-9]))?"
_ONE = (
    rf"(?:\u2060?(?:{'|'.join(sorted(_NAMES.split(), key=len, reverse=True))}|{_SYMBOLS}|\u00b0\s*[CFK]?"
    r"|\u2060?\\(?:mu|Omega|AA|ohm)(?![a-zA-Z])\s*[a-zA-Z]?|\u00b5[a-zA-Z]|\u03a9|\u00c5)(?![A-Za-z])" + _POWER + ")"
)
_BETWEEN = r"(?:\s*(?:\\cdot|\\times|\*|/|\bper\b)\s*|\s+)"
_UNITS = re.compile(rf"\s*[/(]?\s*{_ONE}(?:{_BETWEEN}\(?{_ONE}\)?)*\s*\)?\s*")

_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_FRACTION = re.compile(rf"\\frac\s*{_GROUP}\s*{_GROUP}")
_BEFORE_UNITS = re.compile(r"(?<=[0-9})\]a-z!])\s+(?=[A-Za-z\\\u2060\u00b5\u03a9\u00c5])")
_HAS_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]|\\pi")
_BARE_LETTER = re.compile(r"\s*[A-Za-z](?![A-Za-z])")


def is_units(text: str) -> bool:
    """Return whether this consists of units.

    >>> is_units(" kg m^2 s^{-2}"), is_units("cm"), is_units(" x")
    (True, True, False)
    """
    if "\\frac" in text:
        text = _FRACTION.sub(r"\1/\2", text)
    return _UNITS.fullmatch(text) is not None


def without_units(text: str, letters: bool = False) -> str | None:
    """An expression without the units behind it, or None when there are none.

    A single letter that stands apart is a unit where a text wrapper marked it, behind plain digits, or with `letters`.

    >>> without_units("\\\\sqrt{3} cm^2"), without_units("x+1"), without_units("2r h")
    ('\\\\sqrt{3}', None, None)
    """
    for found in _BEFORE_UNITS.finditer(text):
        rest = text[found.start() :]
        known = letters or not _BARE_LETTER.match(rest) or not _HAS_LETTERS.search(text[: found.start()])
        if known and is_units(rest):
            return text[: found.start()]
    return None


_N = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_VALUE = rf"""(?P<sign>[-+]?)\s*(?:
    (?P<whole>[0-9]+)?\s*\\frac\s*(?:\{{\s*(?P<over>[-+]?\s*(?:{_N}))\s*\}}\s*\{{\s*(?P<under>[-+]?(?:{_N}))\s*\}}
                               |\s*(?P<digits>[0-9]\s*[0-9]|[0-9]\s*\{{[0-9]+\}}))
  | (?P<whole2>[0-9]+)\s+(?P<over2>[0-9]+)\s*/\s*(?P<under2>[0-9]+)
  | (?P<over3>{_N})\s*/\s*(?P<under3>{_N})
  | (?P<number>{_N})(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?[0-9]{{1,2}})\s*\}}?
                     |[eE](?P<exponent>[-+]?[0-9]{{1,2}}))?
)"""
_NUMBER = re.compile(_VALUE, re.VERBOSE)
_ASSIGNED = re.compile(r"(?![ei]\s*=|\\pi\b)(?:[A-Za-z](?:_?[0-9]{1,2})?|[A-Z]{2,4}|\\[a-z]{2,8})\s*=\s*")
_HALF_OF_DAY = re.compile(r"\s*[ap]\.?\s?m\b", re.IGNORECASE)
_LEADING = re.compile(
    r"(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?(?:answer|result)\b\s*(?:is|=|:)*\s*:?\s*"
    r"|(?:(?:the\s+)?value\s+of\s+)?[a-z]\s+(?:is|equals)\s+(?:equal\s+to\s+)?",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per cent\b|pct\b)", re.IGNORECASE)
_UNIT_POWER = re.compile(r"(?<=[a-z]{2})\s*\^\s*\{?\s*[23]\s*\}?\Z")
_GLUED_UNIT = re.compile(r"[A-Za-z]{2}|[msglLh](?![A-Za-z])")
_GLUED_LETTER = re.compile(r"[-+]?[0-9.,]+[A-Za-z]")
_WORD = re.compile(r"[A-Za-z]+")
_PROSE = re.compile(r"[A-Za-z\s.,;:'\"\u2019!?()/-]*")
_LOOSE_SIGN = re.compile(r"(?<![A-Za-z])[-/]|[-/](?![A-Za-z])|!\s*[^\s]|\(\s*\)")
_ATTACHED = re.compile(r"[,;:.]\s|[-/][A-Za-z]{2}|/[smhl]\b")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SHORT = _set(
    """m s g l L h A V N J W K C F a km cm mm nm kg mg lb oz ft in yd mi ml mL cl dl hr st nd rd th of is
    it he me we us at by on as so an up to US Hz kW MB GB KB TB Pa au"""
)
_GLUED = _set(
    """m s g l L h km cm mm nm kg mg lb lbs oz ft in yd mi ml mL hr hrs min mins sec secs mph kmh st nd rd th Hz"""
)
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_CHANGES_THE_VALUE = _set(
    """pi sqrt root roots squared cubed power plus minus negative positive divided mod modulo factorial log ln sin cos
    tan exp infinity infinite half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths
    seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths double
    doubled twice triple tripled not no never nor or except least most wrong incorrect zero one two three four
    five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    twenty thirty forty fifty sixty seventy eighty ninety base hundreds thousands millions billions am pm noon
    midnight fold"""
)
_CHANGES_WHAT_PRECEDES = _set("""less fewer more greater smaller larger short over under above below too""")
_CHANGES_WHAT_FOLLOWS = _set(
    """times over square cube sum difference product than more less fewer greater larger smaller above below under
    between from without add subtract every nearly almost last first if"""
)


_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELLED = re.compile(
    rf"(?:(?P<tens>{'|'.join(_TENS.split())})(?:[- ](?P<unit>one|two|three|four|five|six|seven|eight|nine))?"
    rf"|(?P<ones>{'|'.join(sorted(_ONES.split(), key=len, reverse=True))}))",
    re.IGNORECASE,
)


class Number(NamedTuple):
    """An exact value; `percent` says that it was written as one, `places` how many decimals it was written with."""

    value: Fraction
    percent: bool = False
    places: int = 0


def number(text: str) -> Number | None:
    """The exact value of a plain number in normal form, with units or a sentence around it, if it surely is one.

    >>> number("1,234.50 per month")
    Number(value=Fraction(2469, 2), percent=False, places=2)
    >>> number("1 1/2").value, number("\\\\frac12").value, number("18 - x")
    (Fraction(3, 2), Fraction(1, 2), None)
    """
    if text[:1].isalpha():
        text = _LEADING.sub("", text, count=1)
        if (spelled := _SPELLED.fullmatch(text)) is not None:
            tens, unit, ones = (word and word.lower() for word in spelled.group("tens", "unit", "ones"))
            small = _ONES.split().index(ones or unit or "zero")
            return Number(Fraction(small + (10 * _TENS.split().index(tens) + 20 if tens else 0)))
    if assigned := _ASSIGNED.match(text):
        if _SPELLED.fullmatch(assigned[0].partition("=")[0].strip()) is not None:
            return None
        text = text[assigned.end() :]
    found = _NUMBER.match(text)
    if found is None and (digit := re.search(r"[0-9.\\]", text)) is not None:
        signed = digit.start() > 0 and text[digit.start() - 1] in "-+"
        found = _NUMBER.match(text, digit.start() - signed)
    if found is None or not _is_words(text[: found.start()], before=True):
        return None
    value = _value(found)
    if value is None:
        return None
    places = 0
    if found["number"]:
        ten = found["power"] or found["exponent"]
        places = max(0, len(found["number"].partition(".")[2]) - (int(ten) if ten else 0))
    rest = text[found.end() :]
    if _HALF_OF_DAY.match(rest):
        return None
    if rest and is_units(rest) and (not rest[0].isalpha() or _GLUED_UNIT.match(rest)):
        return Number(value, False, places)
    rest = _UNIT_POWER.sub("", rest)
    percent = _PERCENT.match(rest)
    if percent:
        rest = rest[percent.end() :]
    scale = 1
    words = _WORD.findall(rest)
    if words and words[0].lower() in _SCALES and rest.lstrip().lower().startswith(words[0].lower()):
        scale = _SCALES[words[0].lower()]
        rest = rest.lstrip()[len(words[0]) :]
    return Number(value * scale, percent is not None, places) if _is_words(rest, before=False) else None


def gold_number(text: str) -> Number | None:
    """As `number`, but a letter that touches the digits is a variable: in a gold, 2h is twice h."""
    return None if _GLUED_LETTER.fullmatch(text) else number(text)


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
    if lowered & _CHANGES_WHAT_PRECEDES:
        return False
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
    if gold.percent == answer.percent:
        return _same(gold.value, gold.places, answer.value, answer.places)
    marked, bare = (gold, answer) if gold.percent else (answer, gold)
    hundredth = marked.value / 100
    return _same(hundredth, marked.places + 2, bare.value, bare.places) or marked.value == bare.value


def _same(one: Fraction, its_places: int, other: Fraction, other_places: int) -> bool:
    if one == other:
        return True
    # a decimal form ends where the denominator divides a power of ten
    ends = [pow(10, value.denominator.bit_length(), value.denominator) == 0 for value in (one, other)]
    if ends[0] == ends[1]:
        return False
    return is_decimal_of(one, its_places, other) if ends[0] else is_decimal_of(other, other_places, one)


def is_decimal_of(decimal: Fraction, places: int, exact: Fraction) -> bool:
    """Are these the decimals of an exact value, rounded or cut off, six or more of them and four that count?"""
    if places < 6:
        return False
    scale = Fraction(10) ** places
    shown, wanted = decimal * scale, exact * scale
    if abs(shown) < 1000:
        return False
    return abs(shown - wanted) <= Fraction(1, 2) or (abs(shown) <= abs(wanted) < abs(shown) + 1 and shown * wanted > 0)
