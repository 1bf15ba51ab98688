"""Units of measurement after a number: `cm`, `m/s^2`, `kg \\cdot m^{2} s^{-2}`, `square feet`.

Units are not compared; all that matters is whether a text consists of units.
"""

from __future__ import annotations

import re

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
    """Whether this consists of units.

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
