"""Equality, by the kind of the gold answer. `docs/reference/mathematics.md` describes the rules in words."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from fedagentgym.envs.verifiers.mathematics.equality import (
    as_fraction,
    equal_scalars,
    proportional,
    same_equations,
    same_inequalities,
    solves,
)
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
    union_of,
)
from fedagentgym.envs.verifiers.mathematics.numbers import number
from fedagentgym.envs.verifiers.mathematics.reading import read
from fedagentgym.envs.verifiers.mathematics.regions import bound, expression, same_regions
from fedagentgym.envs.verifiers.mathematics.values import TooLarge, Undefined

Algebra = Callable[[str, str], bool]


class Rules:
    """The comparison of one answer with one gold; `algebra` compares what only computer algebra evaluates."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.reason = ""

    def equal(self, gold: Answer, answer: Answer) -> bool:
        """Return whether the answer equals the gold."""
        name = type(gold).__name__.lower()
        self.reason = self.reason or name
        if gold == answer:
            return True
        rule: Callable[[Answer, Answer], bool] = getattr(self, f"_equal_{name}")
        return rule(gold, answer)

    # ---- one value --------------------------------------------------------------------------------------------------

    def _equal_scalar(self, gold: Scalar, answer: Answer) -> bool:
        """A value, also with a name before it, at the end of a true chain, or alone in a set."""
        if isinstance(answer, Scalar):
            return equal_scalars(gold.text, answer.text, self.algebra)
        if isinstance(answer, Named):
            if answer.element and not isinstance(answer.of, Braces):
                return gold == answer.of and gold.text.startswith("\\mathbb")
            return self.equal(gold, answer.of)
        if isinstance(answer, Equation):
            return self._true_chain(gold, answer)
        if isinstance(answer, Braces):
            return len(answer.items) == 1 and self.equal(gold, answer.items[0])
        # a matrix may be written as a list of rows
        if isinstance(answer, Bracketed) and gold.text.startswith("\\begin") and "(" not in answer.brackets:
            rows = [row.items for row in answer.items if isinstance(row, Bracketed)]
            if len(rows) == len(answer.items) and len({len(row) for row in rows}) == 1:
                inner = r" \\ ".join(" & ".join(entry.text for entry in row) for row in rows)
                return equal_scalars(gold.text, rf"\begin{{pmatrix}} {inner} \end{{pmatrix}}", self.algebra)
        return False

    def _true_chain(self, gold: Scalar, answer: Equation) -> bool:
        """3 + 4 = 7 counts for 7; after an approximation sign decimals of the value before it may stand."""
        found = False
        for sign, left, right in zip(answer.signs, answer.sides, answer.sides[1:], strict=False):
            exact = equal_scalars(left, right, self.algebra)
            if not exact and (sign == "=" or not _is_rounded(left, right)):
                return False
            sides = [left] if not exact and number(left) is not None else [left, right]
            found = found or any(equal_scalars(gold.text, side, self.algebra) for side in sides)
        return found

    def _equal_named(self, gold: Named, answer: Answer) -> bool:
        """A name and its value; the bare value counts too, another name does not."""
        if isinstance(answer, Named):
            if answer.name != gold.name:
                return self._same_equation(gold, answer)
            if gold.element != answer.element:
                return self.equal(as_set(gold.text, gold.of), as_set(answer.text, answer.of))
            return self.equal(gold.of, answer.of)
        if isinstance(answer, Equation):
            return self._same_equation(gold, answer) or (
                isinstance(gold.of, Scalar) and self._true_chain(gold.of, answer)
            )
        if isinstance(answer, Together):
            stems = {_stem(value.name) for value in answer.values}
            return stems == {gold.name} and self.equal(gold.of, answer)
        if isinstance(answer, Reals) and answer.name and answer.name != gold.name:
            return False
        if isinstance(answer, Ratio) and not isinstance(gold.of, Ratio):
            return False
        return self.equal(gold.of, answer)

    def _same_equation(self, gold: Named, answer: Named | Equation) -> bool:
        """`y = 2x + 1` and `2x - y + 1 = 0`; but `2x = 6` is not the solution `x = 3`."""
        given = (answer.name, answer.value) if isinstance(answer, Named) else answer.sides
        if gold.element or not isinstance(gold.of, Scalar) or len(given) != 2:
            return False
        value, left, right = expression(gold.value), expression(given[0]), expression(given[1])
        if value is None or left is None or right is None:
            return False
        return solves(gold.name, value, left, right)

    def _equal_together(self, gold: Together, answer: Answer) -> bool:
        """The same names with the same values, in any order; or the values alone, in the order of the names."""
        if isinstance(answer, Together):
            values = {value.name: value.of for value in answer.values}
            return values.keys() == {value.name for value in gold.values} and all(
                self.equal(value.of, values[value.name]) for value in gold.values
            )
        ordered = _in_order(gold.values)
        if isinstance(answer, Bracketed) and answer.brackets == "()":
            return self._one_by_one(ordered, answer.items)
        if isinstance(answer, Listing) and not any(isinstance(item, Named) for item in answer.items):
            return self._one_by_one(ordered, answer.items)
        return False

    def _equal_equation(self, gold: Equation, answer: Answer) -> bool:
        """An equivalent equation; a true chain of numbers is its value."""
        trees = [expression(side) for side in gold.sides]
        if all(tree is not None and not tree.symbols() for tree in trees):
            return self.equal(Scalar(gold.sides[-1]), answer)
        if isinstance(answer, Equation):
            sides: tuple[str, ...] = answer.sides
        elif isinstance(answer, Named) and not answer.element:
            sides = (answer.name, answer.value)
        else:
            return False
        return len(gold.sides) == len(sides) == 2 and same_equations(gold.sides, sides)

    def _equal_inequality(self, gold: Inequality, answer: Answer) -> bool:
        return isinstance(answer, Inequality) and same_inequalities(
            (gold.sides, gold.signs), (answer.sides, answer.signs)
        )

    def _equal_ratio(self, gold: Ratio, answer: Answer) -> bool:
        """Proportional terms; a fraction is not a ratio."""
        if isinstance(answer, Named):
            return isinstance(answer.of, Ratio) and self.equal(gold, answer.of)
        return isinstance(answer, Ratio) and proportional(gold.terms, answer.terms)

    def _equal_based(self, gold: Based, answer: Answer) -> bool:
        """The same digits in the same base."""
        if isinstance(answer, Named):
            return self.equal(gold, answer.of)
        if isinstance(answer, Equation):
            # the last side of a true chain between numbers in different bases
            last, values = read(answer.sides[-1]), []
            if not (isinstance(last, Based) and self.equal(gold, last)):
                return False
            for side in answer.sides:
                kind, plain = read(side), number(side)
                if isinstance(kind, Based):
                    try:
                        values.append(int(kind.digits, kind.base) if kind.base <= 36 else None)
                    except ValueError:
                        return False
                else:
                    values.append(int(plain.value) if plain and plain.value.denominator == 1 else None)
            return None not in values and len(set(values)) == 1
        return isinstance(answer, Based) and (gold.digits, gold.base) == (answer.digits, answer.base)

    def _equal_clock(self, gold: Clock, answer: Answer) -> bool:
        """The same time of day."""
        if isinstance(answer, Ratio) and len(answer.terms) == 2 and all(term.isdecimal() for term in answer.terms):
            hour, minute = (int(term) for term in answer.terms)
            return hour > 12 and 60 * hour + minute == gold.minutes
        return isinstance(answer, Clock) and gold.minutes == answer.minutes

    def _equal_congruence(self, gold: Congruence, answer: Answer) -> bool:
        """The same residue class; the name may be left out."""
        if not isinstance(answer, Congruence) or gold.modulus != answer.modulus:
            return False
        same_name = gold.name == answer.name or not (gold.name and answer.name)
        return same_name and (int(gold.rest) - int(answer.rest)) % max(1, int(gold.modulus)) == 0

    # ---- several values ---------------------------------------------------------------------------------------------

    def _equal_bracketed(self, gold: Bracketed, answer: Answer) -> bool:
        """A point or tuple in its order; a pair may be an interval too, and brackets that differ make it one."""
        if isinstance(answer, Named):
            return self.equal(gold, answer.of)
        if isinstance(answer, Bracketed):
            if gold.brackets != answer.brackets or len(gold.items) != len(answer.items):
                return False
            return self._one_by_one(gold.items, answer.items)
        if isinstance(answer, Reals):
            region = as_region(gold)
            return region is not None and same_regions(region, answer.region)
        if isinstance(answer, Inequality) and len(gold.items) == 2:
            return self._interval_with_letters(gold, answer)
        if isinstance(answer, Braces) and len(answer.items) == 1:
            return self.equal(gold, answer.items[0])
        if is_surely_interval(gold) or gold.brackets != "()":
            return False
        if isinstance(answer, Together):
            return self._one_by_one(gold.items, _in_order(answer.values))
        return isinstance(answer, Listing) and self._one_by_one(gold.items, answer.items)

    def _interval_with_letters(self, gold: Bracketed, answer: Inequality) -> bool:
        """`(a,b]` is `a < x \\le b` for any name x that is no bound."""
        if len(answer.signs) != 2:
            return False
        sides: tuple[str, ...] = answer.sides
        signs: tuple[str, ...] = answer.signs
        if signs[0] in (">", "\\ge"):
            turned = {">": "<", "\\ge": "\\le"}
            sides, signs = sides[::-1], tuple(turned.get(sign, "") for sign in reversed(signs))
        brackets = {"<": "(", "\\le": "["}.get(signs[0], "") + {"<": ")", "\\le": "]"}.get(signs[1], "")
        return (
            re.fullmatch(r"[a-zA-Z]", sides[1]) is not None
            and brackets == gold.brackets
            and self._one_by_one(gold.items, (read(sides[0]), read(sides[2])))
        )

    def _equal_braces(self, gold: Braces, answer: Answer) -> bool:
        """The same elements, in any order and however often; braces may be left out where nothing is repeated."""
        if isinstance(answer, Named):
            return self.equal(gold, as_set(answer.text, answer.of))
        if isinstance(answer, Braces):
            return self._contains(gold.items, answer.items) and self._contains(answer.items, gold.items)
        if isinstance(answer, Reals):
            region = as_region(gold, points=True)
            return region is not None and same_regions(region, answer.region)
        if isinstance(answer, Listing):
            return len(answer.items) <= len(gold.items) and self._matched(gold.items, answer.items)
        if isinstance(answer, Together) and len({_stem(value.name) for value in answer.values}) == 1:
            return self._matched(gold.items, [value.of for value in answer.values])
        return len(gold.items) == 1 and not isinstance(answer, Together) and self.equal(gold.items[0], answer)

    def _equal_listing(self, gold: Listing, answer: Answer) -> bool:
        """The same items as often, in any order; names and round brackets of three or more bring an order."""
        if isinstance(answer, Named):
            return self.equal(gold, answer.of)
        if isinstance(answer, Listing | Braces):
            return self._matched(gold.items, answer.items)
        if isinstance(answer, Together):
            values = _in_order(answer.values)
            stems = {_stem(value.name) for value in answer.values}
            if len(stems) == 1:
                return self._matched(gold.items, values)
            return self._one_by_one(gold.items, values)
        if isinstance(answer, Bracketed) and len(answer.items) > 2 and answer.brackets == "()":
            return self._one_by_one(gold.items, answer.items)
        if isinstance(answer, Reals):
            region = union_of(gold.items)
            return region is not None and same_regions(region, answer.region)
        return False

    def _equal_reals(self, gold: Reals, answer: Answer) -> bool:
        """The same set of real numbers, as an interval, inequality, union or symbol; two unknowns must not differ."""
        if isinstance(answer, Reals) and gold.name and answer.name and gold.name != answer.name:
            return False
        if isinstance(answer, Named) and gold.name and answer.name != gold.name:
            return False
        if isinstance(answer, Listing):
            region = union_of(answer.items)
        else:
            if isinstance(answer, Named) and not answer.element:
                answer = answer.of
            points = len(gold.region) > 0 and all(one.low == one.high for one in gold.region)
            region = as_region(answer, points=points)
        return region is not None and same_regions(gold.region, region)

    def _equal_union(self, gold: Union, answer: Answer) -> bool:
        if isinstance(answer, Named) and answer.element:
            answer = answer.of
        return isinstance(answer, Union) and self._matched(gold.items, answer.items)

    # ---- pairing ----------------------------------------------------------------------------------------------------

    def _one_by_one(self, wanted: Sequence[Answer], given: Sequence[Answer]) -> bool:
        return len(wanted) == len(given) and all(self.equal(*pair) for pair in zip(wanted, given, strict=True))

    def _matched(self, wanted: Sequence[Answer], given: Sequence[Answer]) -> bool:
        """Can every wanted item be paired with a given one of its own?"""
        if len(wanted) != len(given):
            return False
        left = list(given)
        for item in wanted:
            found = next((place for place, other in enumerate(left) if self.equal(item, other)), None)
            if found is None:
                return False
            del left[found]
        return True

    def _contains(self, items: Sequence[Answer], others: Sequence[Answer]) -> bool:
        return all(any(self.equal(item, other) for item in items) for other in others)


def _stem(name: str) -> str:
    return name.partition("_")[0]


def _in_order(values: Sequence[Named]) -> list[Answer]:
    """The values in the order of their names: x, y, z and a_1, a_2 by the alphabet, other names as they are written."""
    names = [value.name for value in values]
    letters = all(re.fullmatch(r"[a-zA-Z]", name) for name in names)
    if letters and ord(max(names)) - ord(min(names)) <= 3:
        values = sorted(values, key=lambda value: value.name)
    elif all(re.fullmatch(r"[a-zA-Z]_?[0-9]+", name) for name in names):
        values = sorted(values, key=lambda value: (value.name[0], int(re.sub(r"\D", "", value.name))))
    return [value.of for value in values]


def _is_rounded(exact: str, decimals: str) -> bool:
    """Return whether this is a plain number that equals the value before it, rounded to this many places."""
    shown, value = number(decimals), bound(exact)
    if shown is None or value is None or isinstance(value, float):
        return False
    error = (shown.value - as_fraction(value)) * 10**shown.places
    cut_off = abs(shown.value) <= abs(as_fraction(value)) and abs(error) < 1
    return abs(error) <= Fraction(1, 2) or cut_off


_EQUAL = re.compile(r"&?\s*(?<![<>\\])[:=]?=\s*&?")
_SENTENCE = re.compile(r"^[A-Za-z ,']*\b(?:is|are|equals|get)\b(?!\s*=)|[*.]+$|^\*+")
_TIMES = re.compile(r"(?<=\d)\s+x\s+(?=\d)")


def contradicts_itself(text: str) -> bool:
    """Return whether a chain of equations says that two different numbers are equal.

    >>> contradicts_itself("1 = 2 = 42"), contradicts_itself("7 = x = 42"), contradicts_itself("x = 6 * 7 = 42")
    (True, True, False)
    """
    sides = [_SENTENCE.sub("", _TIMES.sub(" * ", side.strip())).strip() for side in _EQUAL.split(text)]
    known = [side for side in sides if (tree := expression(side)) is not None and not tree.symbols()]
    for left, right in itertools.pairwise(known):
        with contextlib.suppress(Undefined, TooLarge):
            if not equal_scalars(left, right, lambda *_: True):
                return True
    return False
