"""The kind of answer of a text in normal form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import reduce

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
    Union,
    as_region,
    as_set,
    is_surely_interval,
    numbers_of,
    union_of,
)
from fedagentgym.envs.verifiers.mathematics.numbers import number
from fedagentgym.envs.verifiers.mathematics.regions import (
    EMPTY,
    REALS,
    Region,
    complement,
    expression,
    half_line,
    infinity,
    intersect,
    solve,
    unite,
)
from fedagentgym.envs.verifiers.mathematics.values import TooLarge, Undefined

_BRACKET = re.compile(r"\\[{}]|[(\[{})\]\u27e8\u27e9]|\\begin|\\end")
_OPENING = frozenset(("(", "[", "{", "\\{", "\u27e8", "\\begin"))


def _split(text: str, separator: re.Pattern[str], separators: bool = False, keep_empty: bool = False) -> list[str]:
    """The parts of a text between separators outside of brackets, or those separators themselves.

    A half-open interval has brackets that do not fit each other, so only their number counts.
    """
    found = list(separator.finditer(text))
    if not found:
        return [] if separators else [text]
    # the bracket depth of every character; the French ]0,1[ opens with a closing bracket
    depths, depth = [], 0  # type: list[int], int
    for bracket in _BRACKET.finditer(text):
        depths += [depth] * (bracket.start() - len(depths))
        opens = bracket[0] in _OPENING
        if opens and bracket[0] == "[" and depth == 1 and text.startswith("]"):
            opens = False
        elif bracket[0] == "]" and depth == 0:
            opens = True
        depth = depth + 1 if opens else max(0, depth - 1)
    depths += [depth] * (len(text) - len(depths) + 1)
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


def _encloses(text: str) -> bool:
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
_COLON = re.compile(r"\s*:\s*|\s+to\s+")
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
    parts = _split(text, _OR)
    if len(parts) > 1:
        return _join(text, [read(part, depth + 1) for part in parts], alternatives=True)
    if _THOUSANDS.fullmatch(text):
        return Scalar(text)
    if ", " in text or "; " in text:
        text = _COMMA_IN_NUMBER.sub("", text)
    parts = _split(text, _AND)
    if len(parts) > 1:
        if len(parts) > MOST_PARTS:
            raise TooManyParts
        return _join(text, [read(part, depth + 1) for part in parts], alternatives=False)
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
        written_base = found["base"] or found["said"]
        digits = re.sub(r"[^0-9A-Fa-f]", "", found["digits"].replace("\\overline", "")).upper().lstrip("0") or "0"
        base = int(written_base) if written_base.isdigit() else _BASES.get(written_base)
        if base == 10 and digits.isdigit():
            return Scalar(digits)
        return None if base is None else Based(text, digits, base)
    if "mod" in text and (found := _CONGRUENCE.fullmatch(text)):
        return Congruence(text, found["name"] or "", found["rest"], found["modulus"])
    return None


def _read_one(text: str, depth: int) -> Answer:
    """An answer without commas, `and` or `or` outside of brackets."""
    if signs := _split(text, _RELATION, separators=True):
        return _relation(text, tuple(signs), depth)
    for separator, combine in ((_UNION, _unite_sets), (_INTERSECTION, _intersect_sets), (_DIFFERENCE, _subtract_sets)):
        pieces = _split(text, separator)
        if len(pieces) > 1 and all(pieces):
            return combine(text, [read(piece, depth + 1) for piece in pieces])
    if text.startswith("\\{") and text.endswith("\\}") and _encloses(text):
        return _braces(text, text[2:-2], depth)
    if text.startswith("{") and text.endswith("}") and _encloses(text):
        inner = _split(text[1:-1], _AND)
        return _braces(text, text[1:-1], depth) if len(inner) > 1 else read(text[1:-1], depth + 1)
    text = _POINT.sub("", text)
    if text[:1] in ("(", "[", "]", "\u27e8") and text[-1:] in (")", "]", "[", "\u27e9") and len(text) > 2:
        items = _split(text[1:-1], _AND)
        if len(items) > 1 and (_encloses(text) or text[0] == "]" or text[-1] == "["):
            if len(items) > MOST_PARTS:
                raise TooManyParts
            brackets = "()" if text[0] == "\u27e8" else text[0].replace("]", "(") + text[-1].replace("[", ")")
            return Bracketed(text, brackets, tuple(read(item, depth + 1) for item in items))
        if len(items) == 1 and text[0] == "(" and text[-1] == ")" and _encloses(text):
            return read(text[1:-1], depth + 1)
    if _PLUS_MINUS.search(text) and not text.startswith("\\begin"):
        # both values; with `\mp` beside it the signs belong together
        both = [
            _MINUS_PLUS.sub(minus_plus, _PLUS_OR_MINUS.sub(plus_minus, text))
            for plus_minus, minus_plus in (("+", "-"), ("-", "+"))
        ]
        return Listing(text, tuple(Scalar(value.strip().removeprefix("+").strip()) for value in both))
    if len(terms := _split(text, _COLON)) > 1 and all(terms):
        return Ratio(text, tuple(terms))
    return Scalar(text)


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
    items = _written_out(_split(inner, _AND))
    if len(items) > MOST_PARTS:
        raise TooManyParts
    return Braces(text, _flat([read(item, depth + 1) for item in items]))


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


def _relation(text: str, signs: tuple[str, ...], depth: int) -> Answer:
    sides = tuple(side.strip() for side in _split(text, _RELATION, keep_empty=True))
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


_FUNCTION = re.compile(r"(?:sin|cos|tan|log|ln|sqrt|exp|pi)\b|\\(?:sin|cos|tan|log|ln|sqrt|exp|frac)\b")


def _is_name(text: str) -> bool:
    named = _NAME.fullmatch(text) is not None and text not in _NO_NAME and _FUNCTION.match(text) is None
    return named and number(text) is None


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
    if _is_name(sides[0]):
        value = sides[1] + "".join(f" {sign} {side}" for sign, side in zip(signs[1:], sides[2:], strict=True))
        return Named(text, _plain_name(sides[0]), read(value, depth + 1), value)
    if len(sides) > 2 and _is_name(sides[-1]) and signs[-1] == "=":
        sides, signs = sides[:-1], signs[:-1]
    elif len(sides) == 2 and _is_name(sides[1]) and signs[0] == "=":
        return Named(text, _plain_name(sides[1]), read(sides[0], depth + 1), sides[0])
    return Equation(text, sides, signs)


def _plain_name(name: str) -> str:
    name = re.sub(r"_\{(\w+)\}", r"_\1", " ".join(name.split()))
    return name if re.search(r"[A-Za-z]{3} |[a-z]{4}", name) is None or "\\" in name else name.lower()


def _inequality(text: str, sides: tuple[str, ...], signs: tuple[str, ...]) -> Answer:
    """A region when every step can be solved for the same unknown, else the inequality unchanged."""
    if signs == ("\\ne",) and _PLUS_MINUS.match(sides[1]):
        bound = _PLUS_MINUS.sub("", sides[1])
        sides, signs = (f"-({bound})", sides[0], bound), ("\\ne", "\\ne")
    region, names = REALS, set()  # type: Region, set[str]
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        trees, infinite = [expression(left), expression(right)], [infinity(left), infinity(right)]
        step: Region | None = None
        try:
            if infinite != [None, None]:
                known = trees[0] if infinite[0] is None else trees[1]
                outer = infinite[0] if infinite[0] is not None else infinite[1]
                below = (sign in ("<", "\\le")) == (infinite[1] is not None)
                if known is not None and known.head == "symbol" and sign != "\\ne" and outer is not None:
                    step = REALS if (outer > 0) == below else EMPTY
                    names |= known.symbols()
            elif trees[0] is not None and trees[1] is not None:
                step = solve(trees[0], sign, trees[1])
                names |= trees[0].symbols() | trees[1].symbols()
        except (Undefined, TooLarge):
            pass
        if step is None:
            return Inequality(text, sides, signs)
        region = intersect(region, step)
    return Reals(text, region, names.pop()) if len(names) == 1 else Inequality(text, sides, signs)


# ---- several answers side by side -----------------------------------------------------------------------------------


def _join(text: str, items: Sequence[Answer], alternatives: bool) -> Answer:
    """One answer of several that stand beside each other, or are `alternatives` of which one is true."""
    # `x \in \mathbb{R}` beside other conditions on x is one of them
    items = [
        Reals(item.text, item.of.region, item.name)
        if isinstance(item, Named) and item.element and isinstance(item.of, Reals)
        else item
        for item in items
    ]
    first, *rest = items
    # `x \ne 1, 2` leaves out both numbers
    if isinstance(first, Reals) and "\\ne" in first.text and all(isinstance(item, Scalar) for item in rest):
        excluded = numbers_of(rest)
        if excluded is not None:
            return Reals(text, intersect(first.region, complement(excluded)), first.name)
    conditions = [item for item in items if isinstance(item, Reals) and item.name]
    if len(conditions) == len(items):
        if len({item.name for item in conditions}) > 1:
            return Listing(text, tuple(items))
        common = reduce(intersect, [item.region for item in conditions])
        united = unite([piece for item in conditions for piece in item.region])
        return Reals(text, united if alternatives or not common else common, conditions[0].name)
    if any(isinstance(item, Named) and not item.element for item in items):
        return _join_names(text, items)
    flat = _flat(items)
    if any(is_surely_interval(item) for item in flat) and (region := union_of(flat)) is not None:
        return Reals(text, region)
    return Listing(text, flat)


def _join_names(text: str, items: Sequence[Answer]) -> Answer:
    """`x = 1, y = 2` are values of different names, `x = 1, x = 2` and `x = 1, 2` are alternatives of one."""
    named = [item for item in items if isinstance(item, Named)]
    names = {item.name for item in named}
    if len(named) == len(items) and len(names) == len(items):
        return Together(text, tuple(named))
    if isinstance(items[0], Named) and len(names) == 1 and all(isinstance(item, Named | Scalar) for item in items):
        values = _flat([item.of if isinstance(item, Named) else item for item in items])
        return Named(text, named[0].name, Listing(text, values), text)
    return Listing(text, tuple(items))


def _flat(items: Iterable[Answer]) -> tuple[Answer, ...]:
    """The items, with those of listings among them in their place."""
    return tuple(part for item in items for part in (item.items if isinstance(item, Listing) else (item,)))


def _unite_sets(text: str, items: Sequence[Answer]) -> Answer:
    united = union_of(items, points=True)
    if united is None:
        return Union(text, tuple(items))
    braces = [item for item in items if isinstance(item, Braces)]
    if len(braces) == len(items):
        return Braces(text, tuple(part for item in braces for part in item.items))
    return Reals(text, united)


def _intersect_sets(text: str, items: Sequence[Answer]) -> Answer:
    regions = [region for item in items if (region := as_region(item, points=True)) is not None]
    return Reals(text, reduce(intersect, regions, REALS)) if len(regions) == len(items) else Scalar(text)


def _subtract_sets(text: str, items: Sequence[Answer]) -> Answer:
    regions = [region for item in items if (region := as_region(item, points=True)) is not None]
    if len(regions) < len(items):
        return Scalar(text)
    return Reals(text, reduce(intersect, [regions[0], *map(complement, regions[1:])]))
