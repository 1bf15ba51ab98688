r"""Compare an answer with the gold: exact arithmetic for numbers and tuples of numbers, math-verify for everything else.

1. The same text, up to spelling (`normalize`), is right.
2. A gold that is an integer, fraction, decimal, percentage, rational multiple of pi, or a tuple of these is compared exactly.
   Around the number of an answer there may be a name (`x = 7`) and words of the lists below ("The total is 7 apples"). Any
   other word may change the number (`5 short`, `12 noon`, `not 0`), so the answer is wrong.
3. All else (`\sqrt{49}`, `x^2-1`, sets, intervals) goes to the library, after checks for faults that it ignores (`8 = 7`).

Decimals are exact, with one exception. A number without a finite decimal form also equals its decimals, rounded or cut off,
if they have at least six decimal places and four significant digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

MAX_ANSWER_LENGTH = 1_000

Library = Callable[[str, str], bool]
"""Compares a gold with an answer by computer algebra; raises `Refused` if it comes to no verdict."""


class Refused(Exception):
    """There is no verdict, so the answer counts as wrong; the text is the reason."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# ---- one spelling ----------------------------------------------------------------------------------------------------

_LATEX = _set(
    "\u2212=- \u2010=- \u2011=- \u2013=- \u00f7=/ \u2217=* \u00d7=\\times \u00b7=\\cdot \u22c5=\\cdot \u221a=\\sqrt"
    " \u221e=\\infty \u03c0=\\pi \u00b1=\\pm \u2264=\\le \u2a7d=\\le \u2265=\\ge \u2a7e=\\ge \u2260=\\ne"
    " \u2248=\\approx \u2243=\\approx \u2205=\\emptyset \u2208=\\in \u222a=\\cup \u2229=\\cap \u00bd=1/2 \u00bc=1/4 \u00be=3/4"
)
_CHARACTERS = str.maketrans(dict.fromkeys("`", "") | dict.fromkeys("~\u00a0\u2009\u202f\u00a3\u20ac\u00a5", " "))
_CHARACTERS |= {ord(one[0]): f" {one[2:]} " if one[-1].isalnum() else one[2:] for one in _LATEX}
_SPELLINGS = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\*\*", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z]) *\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|mathstrut|pounds|euro)(?![a-zA-Z])", " "),
        (r"\{,\}|\\!,|,\\! ?|(?<=[0-9])\\[,!](?=[0-9]{3}(?![0-9]))", ","),
        (r"(?<!\\)\\[!,;:()\[\] ]|\\q?quad(?![a-zA-Z])|\\?\$", " "),
        (r"\^ *(?:\{ *\\circ *\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", "\u00b0"),
        (r"\\%", "%"),
        (r"\\(?:leqslant|leqq?)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geqslant|geqq?)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|\\not *=|(?<= )!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:approxeq|simeq|doteq|sim|cong)(?![a-zA-Z])", r"\\approx "),
    )
)
_PLAIN = re.compile(r"[A-Za-z0-9 .,:;()\[\]/+=_|'-]*+")
_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|up|normal|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|rm|bf) *\{((?>(?:[^{}]|\{[^{}]*+\})*))\}"
)
_SUPERSCRIPT = re.compile("[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]++")
_SUPERSCRIPTS = str.maketrans(
    "\u207a\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "+-0123456789"
)
_START = re.compile(r"(?>(?:####|[=: ]|\\(?:therefore|implies|Rightarrow|Longrightarrow|to|rightarrow)(?![a-zA-Z]))+)")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9./,])(?<![0-9./,] )[0-9]{1,3}(?>(?: [0-9]{3})+)(?![0-9/]| [0-9/])")
_SINGLE_BRACES = re.compile(r"(?<=[\^_])\{(\w)\}")
_BLANKS = re.compile(r"(?<![0-9. ]) ++| ++(?![0-9.])")
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def unreadable(text: str) -> str | None:
    """The reason why a text is not read at all, or None."""
    if len(text) > MAX_ANSWER_LENGTH:
        return "too long"
    return "not text" if _NOT_TEXT.search(text) else None


def normalize(text: str) -> str:
    r"""One spelling of an answer: no math delimiters, spacing commands, currency signs, text wrappers or outer braces.

    >>> normalize(r"$\displaystyle \dfrac{1}{2}\text{ cm}$."), normalize("`{1,234}`")
    ('\\frac{1}{2} cm', '1,234')
    """
    text = " ".join(text.split())
    if not _PLAIN.fullmatch(text):
        text = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}} ", text).translate(_CHARACTERS)
        for pattern, spelling in _SPELLINGS:
            text = pattern.sub(spelling, text)
        while (unwrapped := _WRAPPER.sub(r" \1 ", text)) != text:
            text = unwrapped
        text = " ".join(text.split())
    if found := _START.match(text):
        text = text[found.end() :]
    while text and text[-1] in ".,;: " and not text.endswith("..."):
        text = text[:-1]
    while text.startswith("{") and _find_close(text) == len(text) - 1 and "\\choose" not in text:
        text = text[1:-1].strip()
    text = re.sub("(?<=[0-9]) x (?=[0-9])", r" \\times ", text)
    return _SPACED_THOUSANDS.sub(lambda found: found[0].replace(" ", ""), text)


def squeeze(text: str) -> str:
    """A normal form without needless blanks and braces, to compare as text. A blank between digits stays."""
    return _SINGLE_BRACES.sub(r"\1", _BLANKS.sub("", text))


def _find_close(text: str) -> int:
    """The place of the bracket that closes the one with which a text begins, or -1."""
    depth = 0
    for position, character in enumerate(text):
        if not position or text[position - 1] != "\\":
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                return position
    return -1


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators outside brackets."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == separator:
            parts.append(text[begin:position].strip(" &:"))
            begin = position + 1
    return [*parts, text[begin:].strip(" &:")]


# ---- words around a number -------------------------------------------------------------------------------------------

_SYMBOLS = _set(r"""km cm mm dm nm mi yd ft in kg mg lb lbs oz ml mL cl dL hr hrs h min mins s sec secs ms m g l L N J W V A K
    C F T Pa kPa MPa Hz kHz MHz GHz kJ MJ kW MW kWh mV kV mA eV keV MeV GeV mol rad sr Bq Gy dB atm bar cal kcal kmh kph mph
    rpm ha gal pt qt sq cu kN mN pF nF nC ly pc AU amu ppm USD EUR KB MB GB TB \mu \Omega \AA \ohm""")
_UNITS = _set(
    """kilometer kilometre centimeter centimetre millimeter millimetre meter metre mile yard foot feet inch
    inches square cubic unit second minute hour day week month year gram kilogram liter litre milliliter gallon quart pint cup
    ounce pound ton tonne degree celsius fahrenheit kelvin radian newton joule watt volt ampere ohm pascal hertz mole coulomb
    dollar cent euro penny pennies point time acre hectare calorie egg apple orange banana fruit cookie cake cupcake candy
    candies slice piece pizza sandwich sandwiches book page letter word line card stamp sticker picture pen pencil marker box
    boxes bag pack bottle can jar crate marble ball balloon bead coin ticket shell rose plant tree seed leaf leaves bird fish
    dog cat cow sheep pig horse animal person people man men woman women child children kid boy girl student pupil teacher
    friend guest player member worker employee customer passenger family families team group class classes room house table
    chair car truck bus buses train bike lap step stone block row column pair shoe glass glasses plate key phone game song
    lesson question problem answer task job side angle vertex vertices edge face diagonal digit way solution root number
    integer item object part share win vote serving meal"""
)
_AFTER = _set("""of the per each in all total altogether left remaining old older tall long wide high deep away apart ago
    together is my final result value sum correct squared cubed""")
_BEFORE = _set("""the a an so thus hence therefore then and we get gets have has had it this that these there he she they you
    is are was were be equals equal to gives give makes make must will as our my your of for with final correct total answer
    result value sum product difference quotient remainder solution number count amount cost price area perimeter volume
    length width height depth radius diameter distance speed rate age weight mass average mean median mode range probability
    ratio largest smallest greatest maximum minimum about approximately roughly finally overall angle slope measure required
    desired expected exactly""")
_TOKEN = re.compile(
    r"(?P<word>\\?[A-Za-z\u00b5\u03a9\u00c5]++|\u00b0)|(?P<power>\^ ?\{? ?[-+]?[0-9] ?\}?|-[1-4](?![0-9]))|[/*(){}., ]"
)
_LEAD = re.compile(r"([A-Za-z']++) ?[:,=]? ?")


def _is_unit_word(word: str) -> bool:
    return word in _SYMBOLS or word.lower() in _UNITS or word.lower().removesuffix("s") in _UNITS


def is_unit(text: str) -> bool:
    r"""True if a text behind a number does not change the number: units, their powers, and the listed words.

    >>> is_unit(" kg m^2 s^{-2}"), is_unit(" eggs left"), is_unit(" short"), is_unit("x"), is_unit("h")
    (True, True, False, False, False)
    """
    position, last, words = 0, "", 0
    while position < len(text):
        if (found := _TOKEN.match(text, position)) is None:
            return False
        token = found[0]
        if found["word"] and token not in ("\\cdot", "\\times", "\\frac"):
            if not (token == "\u00b0" or _is_unit_word(token) or token.lower() in _AFTER):
                return False
            # behind digits without a blank, a letter is a variable; squared without a unit is a power
            is_glued = position == 0 and token != "\u00b0" and (len(token) == 1 or token in _AFTER)
            if is_glued or (not words and token in ("squared", "cubed")):
                return False
            words += 1
        elif found["power"] and not (last.isalnum() or last in (")", "}")):
            return False
        last, position = token[-1] if token != " " else last, found.end()
    is_whole = not text.endswith((" is", " of", " the", " my", " per"))
    return is_whole and words > 0 and (last.isalnum() or last in ").}\u00b0")


def strip_words(text: str) -> str:
    """A text without the listed words before its number; a name before an equals sign stays.

    >>> strip_words("Final answer: the largest n is 34"), strip_words("not 0"), strip_words("so x = 7"), strip_words("a + b")
    ('34', 'not 0', 'x = 7', 'a + b')
    """
    rest, is_phrase = text, False
    while found := _LEAD.match(rest):
        word, behind = found[1].lower(), rest[found.end() :]
        is_name = len(word) == 1 and word != "a"
        if is_name and not behind.startswith(("is ", "are ", "equals ", "was ")):
            break
        if not (is_name or word in _BEFORE or _is_unit_word(word)):
            break
        rest, is_phrase = behind, is_phrase or len(word) > 1
    return rest if is_phrase else text


# ---- exact values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """A rational number or a rational multiple of pi, with the number of its decimals, and whether it is a percentage."""

    value: Fraction
    pi: bool = False
    percent: bool = False
    places: int = 0


Value = Exact | Mapping[str, Exact]
"""A number, or the items of a tuple by their names, or by their places 0, 1, ... if they have no names."""

_S = "[ ]?"
_N = r"(?:(?:[0-9]{1,3}(?>(?:,[0-9]{3})+)(?![0-9])|[0-9]++)(?:\.[0-9]*+)?|\.[0-9]++|\.(?=\\overline))(?:\\overline\{[0-9]++\})?"
_PI = r"\\?pi(?![a-zA-Z])"
_BY = rf"{_S}(?:\*|\\cdot|\\times)?{_S}"
_A = rf"(?:{_N}(?:{_BY}{_PI})?|{_PI})"
_TEN = rf"10{_S}\^{_S}\{{?{_S}(?P<ten_%d>[-+]?[0-9]{{1,2}})(?:{_S}\}})?(?![0-9])"
_EXACT = re.compile(
    rf"""(?P<sign>[-+]?){_S}(?:
    (?P<open>\({_S})?(?P<whole>[0-9]++)?{_S}\\frac{_S}(?:\{{{_S}(?P<over_1>[-+]?{_S}{_A}){_S}\}}|(?P<over_2>[0-9]))
        {_S}(?:\{{{_S}(?P<under_1>[-+]?{_S}{_N}){_S}\}}|(?P<under_2>[0-9]))(?(open){_S}\))
  | (?P<mixed>[0-9]++)[ ](?P<over_3>[0-9]++){_S}/{_S}(?P<under_3>[0-9]++)
  | (?:\((?P<over_4>[-+]?{_A})\)|\{{(?P<over_5>[-+]?{_A})\}}|(?P<over_6>{_A})){_S}
        /{_S}(?:\((?P<under_4>[-+]?{_N})\)|\{{(?P<under_5>[-+]?{_N})\}}|(?P<under_6>{_N}))
  | {_TEN % 1}
  | (?P<number>{_A})(?:{_BY}{_TEN % 2}|[eE](?P<ten_3>[-+]?[0-9]{{1,2}})(?![0-9]))?
  )(?P<pi>{_BY}{_PI})?(?P<scale>[ ](?:hundred|thousand|million|billion|trillion)(?![a-z]))?
  (?P<percent>{_S}%|[ ](?:percent|per[ ]cent|percentage|pct)(?![a-z]))?""",
    re.VERBOSE,
)
_NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"""
_WORDS = re.findall("[a-z]+", _NUMBER_WORDS)
_SPELLED = {word: place if place < 20 else 10 * (place - 18) for place, word in enumerate(_WORDS)}
_SPELLED |= {f"{ten} {one}": _SPELLED[ten] + _SPELLED[one] for ten in _WORDS[20:] for one in _WORDS[1:10]}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_REPEATING = re.compile(r"\A([-+]?)([0-9]*)\.([0-9]*)\\overline\{([0-9]+)\}")
_PI_DIGITS = Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
_NAMED = re.compile(r"([A-Za-z]|\\(?!pi)[a-z]+)(?:_?\{?[A-Za-z0-9]{1,2}\}?)? ?= ?")


def _read_part(text: str) -> tuple[Fraction, bool]:
    """The value of a numerator, denominator or plain number, and whether pi is a factor of it."""
    digits = re.sub(r"[ ,*]|\\(?:cdot|times)", "", text)
    plain = re.sub(_PI, "", digits)
    if found := _REPEATING.fullmatch(plain):
        sign, whole, decimals, period = found.groups()
        shown = Fraction(f"{whole or 0}.{decimals}0") + Fraction(
            int(period), (10 ** len(period) - 1) * 10 ** len(decimals)
        )
        return -shown if sign == "-" else shown, plain != digits
    return Fraction(plain + "1" if plain in ("", "+", "-") else plain.removesuffix(".")), plain != digits


def read_number(text: str) -> tuple[Exact, str] | None:
    r"""The exact number with which a text in normal form begins, and the rest of the text.

    >>> read_number("1,234.50 per month"), read_number(r"-\frac{3\pi}{4}")[0].value, read_number("1 1/2")[0].value
    ((Exact(value=Fraction(2469, 2), pi=False, percent=False, places=2), ' per month'), Fraction(-3, 4), Fraction(3, 2))
    """
    if (found := _EXACT.match(text)) is None:
        return None
    parts = {name.partition("_")[0]: part for name, part in found.groupdict().items() if part}
    over, ten = parts.get("over", parts.get("number", "1")), int(parts.get("ten", 0))
    (top, has_pi), (bottom, _) = _read_part(over), _read_part(parts.get("under", "1"))
    whole = Fraction(parts.get("whole", parts.get("mixed", "0")))
    if not bottom or (whole and (has_pi or top <= 0 or bottom < 0)) or (has_pi and "pi" in parts):
        return None
    ten += _SCALES.get(parts.get("scale", "").strip(), 0)
    value = (whole + top / bottom) * Fraction(10) ** ten
    decimals = re.search(r"(?<=\.)[0-9]*", over) if "under" not in parts else None
    places = max(0, len(decimals[0]) - ten) if decimals else 0
    exact = Exact(-value if parts.get("sign") == "-" else value, has_pi or "pi" in parts, "percent" in parts, places)
    return exact, text[found.end() :]


def read_value(text: str) -> Value | None:
    r"""The number, or the tuple of numbers, that a text in normal form states, without units behind it; else None.

    >>> read_value("7 eggs").value, [item.value for item in read_value("(-11, 8/1)").values()], read_value("5 short")
    (Fraction(7, 1), [Fraction(-11, 1), Fraction(8, 1)], None)
    """
    text = text.replace("\\langle", "(").replace("\\rangle", ")").strip()
    while text[:1] + text[-1:] in ("()", "{}") and _find_close(text) == len(text) - 1:
        inner = text[1:-1].strip()
        if text[0] == "(" and "," in inner:
            return read_items(inner)
        text = inner
    if (spelled := _SPELLED.get(text.lower().replace("-", " "))) is not None:
        return Exact(Fraction(spelled))
    found = read_number(text)
    return found[0] if found and (not found[1].strip() or is_unit(found[1])) else None


def read_items(text: str) -> Mapping[str, Exact] | None:
    """The numbers between commas, by name or else by place; None if a part is no number, or only some have names."""
    text = re.sub(r" ?; ?|,? and ", ", ", text)
    parts = text.split(", ") if ", " in text else text.split(",")
    items = {}
    for place, part in enumerate(parts):
        named = _NAMED.match(part.strip())
        found = read_number(part.strip()[named.end() if named else 0 :])
        if found is None or found[1].strip():
            return None
        items[named[1] if named else str(place)] = found[0]
    is_named = [not name.isdecimal() for name in items]
    return items if 2 <= len(items) == len(parts) and all(is_named) == any(is_named) else None


def same_value(gold: Value, answer: Value) -> bool:
    """True if these are the same numbers; if one of them is written as a percentage, 50% equals both 50 and 0.5.

    >>> third = Exact(Fraction(1, 3))
    >>> same_value(third, read_value("0.333333")), same_value(third, read_value("0.33"))
    (True, False)
    """
    if isinstance(gold, Mapping) and isinstance(answer, Mapping):
        if len(gold) != len(answer) or (gold.keys() != answer.keys() and "0" not in {**gold, **answer}):
            return False
        # if only one tuple has names, those of an answer are taken in alphabetical order, those of a gold as they stand
        names = gold if gold.keys() == answer.keys() else sorted(answer)
        return all(same_value(one, answer[name]) for one, name in zip(gold.values(), names, strict=True))
    if isinstance(gold, Mapping) or isinstance(answer, Mapping):
        return False
    if gold.percent == answer.percent:
        return _same_number(gold, answer)
    marked, bare = (gold, answer) if gold.percent else (answer, gold)
    hundredth = replace(marked, value=marked.value / 100, places=marked.places and marked.places + 2)
    return _same_number(hundredth, bare) or _same_number(marked, bare)


def _same_number(one: Exact, other: Exact) -> bool:
    if (one.value, one.pi or not one.value) == (other.value, other.pi or not other.value):
        return True
    # different numbers count as equal if one is the decimals of the other, which must have no finite decimal form
    values = [number.value * (_PI_DIGITS if number.pi else 1) for number in (one, other)]
    ends = [not n.pi and pow(10, n.value.denominator.bit_length(), n.value.denominator) == 0 for n in (one, other)]
    if ends[0] == ends[1]:
        return False
    places = (one if ends[0] else other).places
    shown, wanted = (value * Fraction(10) ** places for value in (values if ends[0] else reversed(values)))
    is_cut_off = shown * wanted > 0 and 0 <= abs(wanted) - abs(shown) < 1
    return places >= 6 and abs(shown) >= 1000 and (is_cut_off or abs(shown - wanted) <= Fraction(1, 2))


# ---- the verdict -----------------------------------------------------------------------------------------------------

_COMMAND = re.compile(r"\\[a-zA-Z]++")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_WORD = re.compile(r"[A-Za-z]++")
_ARITHMETIC = _set(
    "e i pi sqrt ln log exp sin cos tan cot sec csc arcsin arccos arctan floor ceil abs max min gcd lcm infty"
)
_OPERATIONS = _set(
    """frac sqrt cdot times div ast pi e infty circ binom choose sum prod int lim ln log lg exp sin cos tan cot sec csc sinh
    cosh tanh arcsin arccos arctan min max gcd lcm floor ceil lfloor rfloor lceil rceil lvert rvert vert overline
    operatorname over dots ldots cdots mu Omega ohm AA"""
)
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|xi|varphi|phi|psi|rho|sigma|tau|omega|ell|Delta|Omega"
_SUBSCRIPT = r"(?:_\{?[A-Za-z0-9]{1,3}\}?|[0-9]{1,2})?'*"
_NAME = re.compile(
    rf"(?:[A-Za-z]|[A-Z]{{2,4}}|\\(?:{_GREEK})|\\(?:angle|triangle|overline|widehat|vec) ?\{{?[A-Za-z]{{1,3}}\}}?){_SUBSCRIPT}"
    rf"|[fghpquvFGHPTEVSA]{_SUBSCRIPT}\([^()=]{{1,20}}\)|\|[A-Z]{{1,3}}\||\([a-z](?:, ?[a-z])+\)"
)
_LITERAL = re.compile(r"\A(?:[0-9]+(?: ?: ?[0-9]+)+.*|[0-9A-Za-z]+_\{?[0-9]+\}?|[0-9:. ]+[aApP]\.? ?[mM]\.?)")
_OTHER_KIND = re.compile(r"[:<>?]|\\(?:le|ge|ne|pm|mp|in|pmod|bmod|mid|cup|cap)(?![a-z])|\bor\b|!!")
_BOUND = re.compile(r"(?:\\(?:sum|prod|lim|int)(?![a-z])[^A-Za-z\\]{0,3}|(?<![A-Za-z\\])d ?)([A-Za-z])")
_RELATION = re.compile(r"[<>=|]|\\(?:le|ge|ne|in|mid|cup|cap|setminus)(?![a-z])|\bor\b|\band\b")
_POLYNOMIAL = re.compile(r"(?>(?:[A-Za-z0-9^{}() .*/+-]|\\(?:pi|frac|sqrt|cdot|times)(?![a-z]))+)")
_OPEN_END = re.compile(r"\\infty ?\]|\[ ?-\\infty")


def _is_name(side: str) -> bool:
    """True if a side of an equation is a name, such as `x`, `f(2)` or `(x, y)`; a tuple's names must be in alphabetical order."""
    names = _LETTER.findall(side) if side.startswith("(") else []
    return _NAME.fullmatch(side) is not None and side not in ("e", "i") and names == sorted(names)


def judge(gold: str, answer: str, library: Library) -> tuple[bool, str]:
    """Compare an answer with a gold. Return whether it is right, and how that was found; raise `Refused` without a verdict."""
    wanted, given = normalize(gold), normalize(answer)
    if not wanted or not given:
        return False, "empty"
    if squeeze(wanted) == squeeze(given):
        return True, "equal text"
    if _LITERAL.fullmatch(wanted):
        return False, "other text"
    wanted, given = strip_words(wanted), strip_words(given)
    before, _, after = (part.strip() for part in given.partition("\\approx"))
    exact, shown = read_value(before), read_value(after)
    if isinstance(exact, Exact) and isinstance(shown, Exact) and not _is_about(exact, shown):
        return False, "other decimals"
    given = after if after and (not before or _is_name(before)) else before
    gold_sides, sides = split(wanted, "="), split(given, "=")
    golds, stated = ([side for side in chain if not _is_name(side)] for chain in (gold_sides, sides))
    value = read_value(golds[0]) if len(golds) == 1 else read_items(wanted) if len(gold_sides) > 2 else None
    if value is None:
        return _judge_expression(wanted, given, library)
    if len(sides) > 2 and (items := read_items(given)) is not None:
        return same_value(value, items), "numbers"
    gold_names, names = set(gold_sides) - set(golds), set(sides) - set(stated)
    if not stated or (len(golds) == 1 and gold_names and names and not gold_names & names):
        return False, "another name"
    for side in stated:
        found = read_value(side)
        if found is None and isinstance(value, Mapping):
            found = read_items(side)
        if found is not None:
            if not same_value(value, found):
                return False, "numbers"
        elif not _may_equal(value, side):
            return False, "not a number"
        elif not library(golds[0], side):
            return False, "math-verify"
    return True, "numbers"


def _is_about(exact: Exact, shown: Exact) -> bool:
    return abs(exact.value * (_PI_DIGITS if exact.pi else 1) - shown.value) * Fraction(10) ** shown.places <= 1


def has_other_commands(text: str) -> bool:
    r"""True if an expression has a command that is no operation; the library ignores the meaning of such commands.

    >>> [has_other_commands(text) for text in (r"\frac{1}{2} \cdot \sqrt{3}", r"2 \lor 1", r"\neg 1")]
    [False, True, True]
    """
    commands = {command[1:] for command in _COMMAND.findall(text)}
    return not commands <= (_OPERATIONS | {"to", "rightarrow"} if "lim" in commands else _OPERATIONS)


def _may_equal(value: Value, text: str) -> bool:
    """True if a text may be an arithmetic expression, or, if the value is a tuple, a tuple of such expressions."""
    if has_other_commands(text) or "&" in text:
        return False
    if isinstance(value, Mapping):
        return not text.startswith(("[", "\\{")) and is_arithmetic(text)
    return not _OTHER_KIND.search(text) and len(split(text, ",")) == 1 and is_arithmetic(text)


def is_arithmetic(text: str) -> bool:
    """True if an expression has no words and variables, except functions, constants and bound variables."""
    bare = _COMMAND.sub(" ", re.sub("(?<=[0-9])E(?=[-+0-9])", " ", text))
    bound = _BOUND.findall(text)
    known = {*_ARITHMETIC, *bound, *(f"d{name}" for name in bound)}
    return known.issuperset(_WORD.findall(bare)) and ("_" not in bare or "\\" in text)


def _judge_expression(gold: str, answer: str, library: Library) -> tuple[bool, str]:
    """Compare answers that are not numbers: expressions, equations, sets, intervals."""
    if states_a_falsehood(answer):
        return False, "a false equation"
    words = [word for word in _WORD.findall(_COMMAND.sub(" ", answer)) if word not in _ARITHMETIC and len(word) > 2]
    if len(words) > 8:
        raise Refused("prose")
    lists = [None if _find_kind(text) != "list" else read_items(text) for text in (gold, answer)]
    if lists[0] and lists[1] and "0" in lists[0] and "0" in lists[1]:
        keys = [sorted((item.value, item.pi) for item in items.values()) for items in lists if items]
        return keys[0] == keys[1], "numbers"
    if _is_another_kind(gold, answer):
        return False, "another kind"
    gold_sides, sides = split(gold, "="), split(answer, "=")
    if len(gold_sides) > 1 and len(sides) == 1 and not _is_name(gold_sides[0]):
        return False, "no equation"
    if len(gold_sides) == 1 and len(sides) > 1 and "list" not in (_find_kind(gold), _find_kind(answer)):
        stated = [side for side in sides if not _is_name(side)][:4]
        return bool(stated) and all(library(gold, side) for side in stated), "math-verify"
    return library(gold, answer), "math-verify"


def _find_kind(text: str) -> str | None:
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _find_close(text) == len(text) - 1 and "," in text:
        return "tuple or interval"
    if text.startswith("\\{") and text.endswith("\\}"):
        return "set"
    return "list" if len(split(text, ",")) > 1 or "\\pm" in text else None


def _is_another_kind(gold: str, answer: str) -> bool:
    """True if one is a tuple or region and the other a list or set, only the answer has a closed infinite end, or a letter of a
    polynomial gold is missing."""
    wanted, given = _find_kind(gold), _find_kind(answer)
    has_relation = _RELATION.search(gold) is not None
    if wanted in ("list", "set") and not has_relation and given == "tuple or interval":
        return True
    is_region = "<" in gold or ">" in gold or gold.startswith("[") or gold.endswith("]") or "\\infty" in gold
    if is_region and given in ("list", "set") and not _RELATION.search(answer):
        return True
    if _OPEN_END.search(answer) and not _OPEN_END.search(gold):
        return True
    letters = [set(_LETTER.findall(_COMMAND.sub(" ", text))) - {"e", "i"} for text in (gold, answer)]
    return _POLYNOMIAL.fullmatch(gold) is not None and not letters[0] <= letters[1]


def states_a_falsehood(text: str) -> bool:
    """Return whether numbers that a text in normal form states as equal differ, as in `7 = 42`."""
    values = [value for side in split(text, "=") if isinstance(value := read_value(side), Exact)]
    return any(not same_value(values[0], value) for value in values[1:])
