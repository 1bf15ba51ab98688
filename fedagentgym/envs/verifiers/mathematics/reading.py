"""The kind of answer of a text in normal form."""

from __future__ import annotations

import re
from fractions import Fraction

from fedagentgym.envs.verifiers.mathematics.kinds import (
    Answer,
    Based,
    Braces,
    Bracketed,
    Clock,
    Congruence,
    Equation,
    Inequality,
    Listing,
    Named,
    Ratio,
    Reals,
    Scalar,
    Together,
    as_set,
    intersect_sets,
    join,
    subtract_sets,
    unite_sets,
)
from fedagentgym.envs.verifiers.mathematics.numbers import number
from fedagentgym.envs.verifiers.mathematics.regions import (
    EMPTY,
    REALS,
    Region,
    expression,
    half_line,
    infinity,
    intersect,
    solve,
)
from fedagentgym.envs.verifiers.mathematics.values import TooLarge, Undefined

_BRACKET = re.compile(r"\\[{}]|[(\[{})\]\u27e8\u27e9]|\\begin|\\end")
_OPENING = frozenset(("(", "[", "{", "\\{", "\u27e8", "\\begin"))


def split_outside(
    text: str, separator: re.Pattern[str], separators: bool = False, keep_empty: bool = False
) -> list[str]:
    """The parts of a text between separators outside of brackets, or those separators themselves.

    A half-open interval has brackets that do not fit each other, so only their number counts.
    """
    found = list(separator.finditer(text))
    if not found:
        return [] if separators else [text]
    depths = _depths(text)
    outside = [each for each in found if depths[each.start()] == 0 and each.end() > each.start()]
    if separators:
        return [each[0].strip() for each in outside]
    parts, start = [], 0
    for each in outside:
        parts.append(text[start : each.start()])
        start = each.end()
    parts.append(text[start:])
    parts = [part.strip() for part in parts]
    return parts if keep_empty else [part for part in parts if part] or [""]


def _depths(text: str) -> list[int]:
    """The bracket depth of every character; the French ]0,1[ opens with a closing bracket."""
    depths, depth, position = [], 0, 0
    for found in _BRACKET.finditer(text):
        depths += [depth] * (found.start() - position)
        position = found.start()
        opens = found[0] in _OPENING
        if opens and found[0] == "[" and depth == 1 and text.startswith("]"):
            opens = False
        elif found[0] == "]" and depth == 0:
            opens = True
        depth = depth + 1 if opens else max(0, depth - 1)
    return depths + [depth] * (len(text) - position + 1)


def encloses(text: str) -> bool:
    """Does the first bracket of the text close with the last one?"""
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += 1 if found[0] in _OPENING else -1
        if depth == 0:
            return found.end() == len(text)
    return False


MOST_PARTS = 24
DEEPEST = 6


class TooManyParts(Exception):
    """More parts, or parts within parts, than any sensible answer has."""


_OR = re.compile(r"\s*,?\s+or\s+|\s*\\(?:lor|vee)(?![a-z])\s*")
_AND = re.compile(r"\s*,?\s+and\s+|\s*\\(?:land|wedge)(?![a-z])\s*|\s*;\s*|\s*,\s*")
_UNION = re.compile(r"\s*\\cup(?![a-z])\s*|\s*(?<=[\])}])\s*U\s*(?=[(\[\\{])")
_INTERSECTION = re.compile(r"\s*\\cap(?![a-z])\s*")
_DIFFERENCE = re.compile(r"\s*\\(?:setminus|backslash)(?![a-z])\s*|(?<=\\mathbb\{R\})\s*-\s*(?=\\\{)")
_RELATION = re.compile(r"\\(?:le|ge|ne|approx|in)(?![a-zA-Z])|[<>=]")
_ORDER = frozenset(("<", ">", "\\le", "\\ge", "\\ne"))
_LETTER = r"(?:[A-Za-z]|\\(?!in|pi|infty)[a-z]{2,8}(?![a-z]))(?:_\{?\w+\}?)?'*"
_NAME = re.compile(
    rf"{_LETTER}|(?:[fghpqFGHPQEVNS]|\\(?:phi|varphi|sigma|tau|mu|pi|Phi|Gamma))\s*_?[0-9]?'*\s*[(\[][^()\[\]]{{1,30}}[)\]]"
    r"|\\(?:vec|hat|bar|overrightarrow)\s*\{\w+\}|(?:sum|age|ans|avg|cost|tax)"
    r"|(?:m\s*)?\\(?:angle|triangle|measuredangle)\s*[A-Z]{1,3}|[A-Z]{2,4}|\|[A-Z]{2}\||\\overline\s*\{[A-Z]{2}\}"
    r"|(?=[A-Za-z ]*[A-Za-z]{4})[A-Za-z][A-Za-z ]{3,40}"
)
_NO_NAME = frozenset(("e", "i", "\\pi"))
_TUPLE_OF_NAMES = re.compile(rf"\(\s*{_LETTER}(?:\s*,\s*{_LETTER})+\s*\)")
_RATIO_OF_NAMES = re.compile(rf"{_LETTER}(?:\s*:\s*{_LETTER})+")
_POINT = re.compile(r"(?:(?:the )?point\s*[A-Z]?|[A-Z])\s*(?=\([^()]*[0-9][^()]*,[^()]*\)$)")
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])|\\mp(?![a-z])")
_PLUS_OR_MINUS, _MINUS_PLUS = re.compile(r"\\pm(?![a-z])"), re.compile(r"\\mp(?![a-z])")
_BUILDER = re.compile(rf"\s*(?P<name>{_LETTER})\s*(?:\\in\s*(?P<domain>[^|:]+?))?\s*[|:]\s*(?P<condition>.+)")
_BASE = re.compile(
    r"\(?\s*(?P<digits>[0-9][0-9A-Fa-f]*|[A-F][0-9A-Fa-f]*[0-9][0-9A-Fa-f]*|[A-Fa-f]{2,8}(?=_\{?16(?![0-9]))|\\overline\s*\{[0-9A-Fa-f]+\})\s*\)?"
    r"(?:\s*_\s*\{?\s*\(?\s*(?P<base>[0-9]{1,3}|[a-z]+)\s*\)?\s*\}?|\s*\(?(?:in\s+)?base[- ](?P<said>[0-9]{1,2}|[a-z]+)\)?)"
)
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_CLOCK = re.compile(r"(?P<hour>[0-9]{1,2})(?:\s*:\s*(?P<minute>[0-9]{2}))?\s*(?P<half>[aApP])\.?\s*[mM]\.?")
_CONGRUENCE = re.compile(
    r"(?:(?P<name>[a-z])\s*\\equiv\s*)?(?P<rest>-?[0-9]+)\s*(?:\(|\\pmod|\\bmod|\\mod|\\;)*\s*(?:mod)?\s*\{?\s*(?P<modulus>[0-9]+)\s*\}?\s*\)?"
)
_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?|none|(?:the )?(?:empty|null) set", re.IGNORECASE
)
_ALL_REALS = re.compile(
    r"(?:the set of )?(?:all )?(?:real numbers|reals)(?: [a-z])?|any real(?: number)?|all real", re.IGNORECASE
)
_ALL_INTEGERS = re.compile(r"(?:the set of )?(?:all|the) integers", re.IGNORECASE)
_ELLIPSIS = re.compile(r"\.\.\.|\\[lc]?dots(?:c|b)?|\u2026")
_HALF_OF_REALS = re.compile(r"\\mathbb\{R\}\s*[\^_]\s*\{?\s*([-+]|[<>]\s*0)\s*\}?")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_COMMA_IN_NUMBER = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


def read(text: str, depth: int = 0) -> Answer:
    """The kind of an answer.

    >>> type(read("x=1, y=2")).__name__, type(read("(1,2)")).__name__, type(read("x>2")).__name__
    ('Together', 'Bracketed', 'Reals')
    """
    text = text.strip()
    if depth > DEEPEST:
        raise TooManyParts
    if special := _special(text):
        return special
    parts = split_outside(text, _OR)
    if len(parts) > 1:
        return join(text, [read(part, depth + 1) for part in parts], alternatives=True)
    if _THOUSANDS.fullmatch(text):
        return Scalar(text)
    if ", " in text or "; " in text:
        text = _COMMA_IN_NUMBER.sub("", text)
    parts = split_outside(text, _AND)
    if len(parts) > 1:
        if len(parts) > MOST_PARTS:
            raise TooManyParts
        return join(text, [read(part, depth + 1) for part in parts], alternatives=False)
    return _read_one(text, depth)


def _special(text: str) -> Answer | None:
    """Kinds that are recognised from the whole text."""
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}", "{}") or _NO_SOLUTION.fullmatch(text):
        return Braces(text, ())
    if found := _HALF_OF_REALS.fullmatch(text):
        return Reals(text, half_line(Fraction(0), ">" if "+" in found[1] or ">" in found[1] else "<"))
    if text == "\\mathbb{R}" or _ALL_REALS.fullmatch(text):
        return Reals(text, REALS)
    if _ALL_INTEGERS.fullmatch(text):
        return Scalar("\\mathbb{Z}")
    if found := _CLOCK.fullmatch(text):
        hour, minute = int(found["hour"]) % 12 + 12 * (found["half"] in "pP"), int(found["minute"] or 0)
        return Clock(text, 60 * hour + minute)
    if found := _BASE.fullmatch(text):
        return _based(text, found)
    if "mod" in text and (found := _CONGRUENCE.fullmatch(text)):
        return Congruence(text, found["name"] or "", found["rest"], found["modulus"])
    return None


def _based(text: str, found: re.Match[str]) -> Answer | None:
    written_base = found["base"] or found["said"]
    digits = re.sub(r"[^0-9A-Fa-f]", "", found["digits"].replace("\\overline", "")).upper().lstrip("0") or "0"
    if written_base.isdigit():
        base = int(written_base)
    elif written_base in _BASES:
        base = _BASES[written_base]
    else:
        return None
    if base == 10 and digits.isdigit():
        return Scalar(digits)
    return Based(text, digits, base)


def _read_one(text: str, depth: int) -> Answer:
    """An answer without commas, `and` or `or` outside of brackets."""
    if split_outside(text, _RELATION, separators=True):
        return _relation(text, depth)
    for separator, combine in ((_UNION, unite_sets), (_INTERSECTION, intersect_sets), (_DIFFERENCE, subtract_sets)):
        pieces = split_outside(text, separator)
        if len(pieces) > 1 and all(pieces):
            return combine(text, [read(piece, depth + 1) for piece in pieces])
    if text.startswith("\\{") and text.endswith("\\}") and encloses(text):
        return _braces(text, text[2:-2], depth)
    if text.startswith("{") and text.endswith("}") and encloses(text):
        inner = split_outside(text[1:-1], _AND)
        return _braces(text, text[1:-1], depth) if len(inner) > 1 else read(text[1:-1], depth + 1)
    text = _POINT.sub("", text)
    if text[:1] in ("(", "[", "]", "\u27e8") and text[-1:] in (")", "]", "[", "\u27e9") and len(text) > 2:
        items = split_outside(text[1:-1], _AND)
        if len(items) > 1 and (encloses(text) or text[0] == "]" or text[-1] == "["):
            if len(items) > MOST_PARTS:
                raise TooManyParts
            return Bracketed(text, _brackets(text), tuple(read(item, depth + 1) for item in items))
        if len(items) == 1 and text[0] == "(" and text[-1] == ")" and encloses(text):
            return read(text[1:-1], depth + 1)
    if len(_PLUS_MINUS.findall(text)) and not text.startswith("\\begin"):
        return _both_signs(text)
    if len(terms := split_outside(text, re.compile(r"\s*:\s*|\s+to\s+"))) > 1 and all(terms):
        return Ratio(text, tuple(terms))
    return Scalar(text)


def _brackets(text: str) -> str:
    opening, closing = text[0], text[-1]
    if opening == "\u27e8":
        return "()"
    return ("(" if opening == "]" else opening) + (")" if closing == "[" else closing)


def _both_signs(text: str) -> Answer:
    """`a \\pm b` is both values; with `\\mp` beside it the signs belong together."""
    both = []
    for plus_minus, minus_plus in (("+", "-"), ("-", "+")):
        found = _MINUS_PLUS.sub(minus_plus, _PLUS_OR_MINUS.sub(plus_minus, text))
        both.append(Scalar(found.strip().removeprefix("+").strip()))
    return Listing(text, tuple(both))


def _braces(text: str, inner: str, depth: int) -> Answer:
    """A set by its elements or by a condition."""
    if not inner.strip():
        return Braces(text, ())
    if found := _BUILDER.fullmatch(inner):
        condition = read(found["condition"], depth + 1)
        domain = (found["domain"] or "\\mathbb{R}").strip()
        if isinstance(condition, Reals) and domain == "\\mathbb{R}" and condition.name in ("", found["name"]):
            return Reals(text, condition.region, "")
        if isinstance(condition, Named) and condition.name == found["name"]:
            return as_set(text, condition.of)
        return Scalar(text)
    items = _written_out(split_outside(inner, _AND))
    if len(items) > MOST_PARTS:
        raise TooManyParts
    found_items: list[Answer] = []
    for item in (read(item, depth + 1) for item in items):
        found_items += list(item.items) if isinstance(item, Listing) else [item]
    return Braces(text, tuple(found_items))


def _written_out(items: list[str]) -> list[str]:
    """`1, 2, \\ldots, 5` with all its whole numbers; anything else as it is."""
    if len(items) < 4 or not _ELLIPSIS.fullmatch(items[-2]):
        return items
    try:
        first, second, last = int(items[-4]), int(items[-3]), int(items[-1])
    except ValueError:
        return items
    step = second - first
    if step == 0 or (last - second) % step or not 1 <= (last - second) // step <= MOST_PARTS:
        return items
    return [*items[:-2], *(str(number) for number in range(second + step, last + step, step))]


# ---- relations ------------------------------------------------------------------------------------------------------


def _relation(text: str, depth: int) -> Answer:
    sides = tuple(side.strip() for side in split_outside(text, _RELATION, keep_empty=True))
    signs = tuple(_signs_outside(text))
    if len(sides) != len(signs) + 1 or len(sides) > 8:
        return Scalar(text)
    if signs[0] == "\\approx" and not sides[0] and len(sides) == 2:
        return read(sides[1], depth + 1)
    if not all(sides):
        return Scalar(text)
    if signs == ("\\in",):
        return Named(text, sides[0], read(sides[1], depth + 1), sides[1], element=True)
    if all(sign in _ORDER for sign in signs):
        return _inequality(text, sides, signs)
    if all(sign in ("=", "\\approx") for sign in signs):
        return _equation(text, sides, signs, depth)
    return Scalar(text)


def _signs_outside(text: str) -> list[str]:
    return split_outside(text, _RELATION, separators=True)


def is_name(text: str) -> bool:
    return (
        _NAME.fullmatch(text) is not None and text not in _NO_NAME and not _is_function(text) and number(text) is None
    )


def _is_function(text: str) -> bool:
    return re.match(r"(?:sin|cos|tan|log|ln|sqrt|exp|pi)\b|\\(?:sin|cos|tan|log|ln|sqrt|exp|frac)\b", text) is not None


def _equation(text: str, sides: tuple[str, ...], signs: tuple[str, ...], depth: int) -> Answer:
    if _TUPLE_OF_NAMES.fullmatch(sides[0]) and len(sides) == 2:
        names = [name.strip() for name in sides[0][1:-1].split(",")]
        right = read(sides[1], depth + 1)
        if isinstance(right, Bracketed) and len(right.items) == len(names):
            values = tuple(
                Named(f"{name}={item.text}", name, item, item.text)
                for name, item in zip(names, right.items, strict=True)
            )
            return Together(text, values)
        return Named(text, sides[0], right, sides[1])
    if _RATIO_OF_NAMES.fullmatch(sides[0]) and len(sides) == 2:
        return Named(text, sides[0], read(sides[1], depth + 1), sides[1])
    if is_name(sides[0]):
        value = sides[1] + "".join(f" {sign} {side}" for sign, side in zip(signs[1:], sides[2:], strict=True))
        return Named(text, _plain_name(sides[0]), read(value, depth + 1), value)
    if len(sides) > 2 and is_name(sides[-1]) and signs[-1] == "=":
        sides, signs = sides[:-1], signs[:-1]
    elif len(sides) == 2 and is_name(sides[1]) and signs[0] == "=":
        return Named(text, _plain_name(sides[1]), read(sides[0], depth + 1), sides[0])
    return Equation(text, sides, signs)


def _plain_name(name: str) -> str:
    name = re.sub(r"_\{(\w+)\}", r"_\1", " ".join(name.split()))
    return name if re.search(r"[A-Za-z]{3} |[a-z]{4}", name) is None or "\\" in name else name.lower()


def _inequality(text: str, sides: tuple[str, ...], signs: tuple[str, ...]) -> Answer:
    """A region when every step can be solved for the same unknown, else the inequality unchanged."""
    if len(signs) == 1 and signs[0] == "\\ne" and _PLUS_MINUS.match(sides[1]):
        bound = _PLUS_MINUS.sub("", sides[1])
        sides, signs = (sides[1], sides[0], bound), ("\\ne", "\\ne")
        sides = (f"-({bound})", sides[1], bound)
    region: Region = REALS
    names: set[str] = set()
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        solved = _solve(left, sign, right)
        if solved is None:
            return Inequality(text, sides, signs)
        names |= solved[1]
        region = intersect(region, solved[0])
    return Reals(text, region, names.pop()) if len(names) == 1 else Inequality(text, sides, signs)


def _solve(left: str, sign: str, right: str) -> tuple[Region, frozenset[str]] | None:
    trees = [expression(left), expression(right)]
    infinite = [infinity(left), infinity(right)]
    try:
        if infinite[0] is not None or infinite[1] is not None:
            known = trees[0] if infinite[0] is None else trees[1]
            outer = infinite[0] if infinite[0] is not None else infinite[1]
            below = (sign in ("<", "\\le")) == (infinite[1] is not None)
            if known is None or known.head != "symbol" or sign == "\\ne" or outer is None:
                return None
            return (REALS if (outer > 0) == below else EMPTY), known.symbols()
        if trees[0] is None or trees[1] is None:
            return None
        region = solve(trees[0], sign, trees[1])
    except (Undefined, TooLarge):
        return None
    return None if region is None else (region, trees[0].symbols() | trees[1].symbols())
