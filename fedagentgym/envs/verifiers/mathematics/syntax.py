"""Expressions in LaTeX or plain text, parsed into trees.

The parser is small on purpose: it accepts the notation of answers, and refuses everything else, so that a
text which is not an expression is never mistaken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from fedagentgym.envs.verifiers.mathematics.tokens import (
    ABOVE,
    END,
    FUNCTIONS,
    GREEK,
    TWO_ARGUMENTS,
    NotAnExpression,
    Token,
    several_arguments,
    tokenize,
)

DEEPEST = 60


@dataclass(frozen=True, slots=True)
class Expr:
    """A node: a number, a symbol, or an operation on other nodes."""

    head: str
    parts: tuple[Expr, ...] = ()
    number: Fraction = Fraction(0)
    name: str = ""

    def walk(self) -> Iterator[Expr]:
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.parts)

    def symbols(self) -> frozenset[str]:
        return frozenset(node.name for node in self.walk() if node.head == "symbol")


_REPEATING_IN_BRACKETS = re.compile(r"(-?\s*[0-9]+\.[0-9]*)\(([0-9]+)\)")
_REPEATING_WITH_DOTS = re.compile(r"(-?\s*[0-9]+\.[0-9]*?)([0-9])\2\2+\s*(?:\.\.\.|\\[lc]?dots|\u2026)")


@lru_cache(maxsize=4096)
def parse(text: str, tight: bool = False) -> Expr:
    """The tree of an expression. `tight` reads `1/2x` as one over 2x; otherwise it is half of x.

    >>> parse("2x").head, sorted(parse("a/b").symbols())
    ('*', ['a', 'b'])
    """
    if found := _REPEATING_IN_BRACKETS.fullmatch(text) or _REPEATING_WITH_DOTS.fullmatch(text):
        text = rf"{found[1]}\overline{{{found[2]}}}"
    return _Parser(list(tokenize(text)), tight).whole()


_NO_FACTOR = frozenset(("cdot", "times", "ast", "div", "{", "}", "|", "\\", "rfloor", "rceil"))


class _Parser:
    """Recursive descent over the tokens; `depth` keeps hostile nesting away from Python's own stack."""

    def __init__(self, tokens: list[Token], tight: bool) -> None:
        self.tokens, self.position, self.tight = tokens, 0, tight
        self.depth, self.bars = 0, 0

    def whole(self) -> Expr:
        found = self.sum()
        if self.peek() is not END:
            raise NotAnExpression(self.peek().text)
        return found

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def peek(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else END

    def next(self) -> Token:
        token = self.peek()
        self.position += 1
        return token

    def sees(self, *texts: str, kind: str = "sign") -> bool:
        token = self.peek()
        return token.kind == kind and token.text in texts

    def expect(self, text: str, kind: str = "sign") -> None:
        if not self.sees(text, kind=kind):
            raise NotAnExpression(f"{text} is missing")
        self.position += 1

    # ---- sums and products ------------------------------------------------------------------------------------------

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        terms = [self.product()]
        while self.sees("+", "-"):
            minus = self.next().text == "-"
            term = self.product()
            terms.append(_negative(term) if minus else term)
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Expr("+", tuple(terms))

    def product(self) -> Expr:
        left = self.signed()
        while True:
            if self.sees("*") or self.sees("cdot", "times", "ast", kind="command"):
                self.next()
                left = Expr("*", (left, self.signed()))
            elif self.sees("/") or self.sees("div", kind="command"):
                self.next()
                right = self.signed()
                while self.tight and self.starts_factor():
                    right = Expr("*", (right, self.power()))
                left = Expr("/", (left, right))
            elif self.starts_factor():
                left = self.beside(left)
            else:
                return left

    def beside(self, left: Expr) -> Expr:
        """A factor without a sign before it; after a whole number a fraction of numbers makes a mixed number."""
        if self.peek().kind in ("number", "repeating") and self.tokens[self.position - 1].kind == "number":
            raise NotAnExpression("two numbers in a row")
        fraction = self.sees("frac", kind="command")
        right = self.power()
        mixed = fraction and left.head == "number" and left.number.denominator == 1 and right.head == "/"
        if mixed and all(part.head == "number" for part in right.parts):
            return Expr("+", (left, right))
        return Expr("*", (left, right))

    def signed(self) -> Expr:
        minus, count = False, 0
        while self.sees("+", "-"):
            minus ^= self.next().text == "-"
            count += 1
            if count > 3:
                raise NotAnExpression("signs")
        found = self.power()
        return _negative(found) if minus else found

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in ("number", "repeating", "letter", "begin"):
            return True
        if token.kind == "sign":
            return token.text in "({[" or (token.text == "|" and not self.bars)
        return token.kind == "command" and token.text not in _NO_FACTOR

    # ---- powers and what stands behind a factor ----------------------------------------------------------------------

    def power(self) -> Expr:
        return self.behind(self.factor())

    def behind(self, base: Expr) -> Expr:
        while True:
            if self.sees("!"):
                self.next()
                base = Expr("factorial", (base,))
            elif self.sees("\u00b0"):
                self.next()
                base = Expr("degree", (base,))
            elif self.sees("%"):
                self.next()
                base = Expr("percent", (base,))
            elif self.sees("^"):
                self.next()
                exponent = self.exponent()
                turned = base.head == "matrix" and exponent.name in ("T", "top")
                base = _transposed(base) if turned else Expr("^", (base, exponent))
            else:
                return base

    def exponent(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        minus = False
        if self.sees("+", "-"):
            minus = self.next().text == "-"
        found = self.factor()
        if self.sees("^"):
            self.next()
            found = Expr("^", (found, self.exponent()))
        self.depth -= 1
        return _negative(found) if minus else found

    # ---- factors ----------------------------------------------------------------------------------------------------

    def factor(self) -> Expr:
        token = self.next()
        if token.kind == "number":
            return Expr("number", number=Fraction(token.text.replace(",", "").rstrip(".")))
        if token.kind == "repeating":
            return Expr("number", number=_repeating(token.text))
        if token.kind == "letter":
            return self.symbol(token.text)
        if token.kind == "begin":
            return self.matrix(token.text)
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "sign" and token.text in "({[":
            found = self.inside()
            self.expect(")}]"["({[".index(token.text)])
            return found
        if token.kind == "sign" and token.text == "|":
            return self.absolute()
        raise NotAnExpression(token.text)

    def inside(self) -> Expr:
        """The content of a bracket: bars that were opened outside of it do not close inside."""
        outer, self.bars = self.bars, 0
        found = self.sum()
        self.bars = outer
        return found

    def absolute(self) -> Expr:
        self.bars += 1
        found = self.sum()
        self.bars -= 1
        self.expect("|")
        return Expr("abs", (found,))

    def symbol(self, name: str) -> Expr:
        if self.sees("_"):
            self.next()
            name += "_" + self.raw_argument()
        while self.sees("'"):
            self.next()
            name += "'"
        if name == "e":
            return Expr("e")
        if name == "i":
            return Expr("i")
        return Expr("symbol", name=name)

    def raw_argument(self) -> str:
        """The text of a subscript."""
        token = self.next()
        if not (token.kind == "sign" and token.text == "{"):
            return token.text
        texts = []
        while not self.sees("}"):
            if self.peek() is END:
                raise NotAnExpression("a brace is missing")
            texts.append(self.next().text)
        self.next()
        return "".join(texts)

    def command(self, name: str) -> Expr:
        if name == "pi":
            return Expr("pi")
        if name == "frac":
            return Expr("/", (self.argument(), self.argument()))
        if name in TWO_ARGUMENTS:
            return Expr("binom", (self.argument(), self.argument()))
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(FUNCTIONS[name])
        if several_arguments(name):
            return Expr(name, self.arguments())
        if name in ("lfloor", "lceil"):
            found = self.inside()
            self.expect("r" + name[1:], kind="command")
            return Expr(name[1:], (found,))
        if name in ABOVE:
            return self.symbol(f"{name} {self.raw_argument()}")
        if name in GREEK.values():
            return self.symbol(name)
        raise NotAnExpression(name)

    def argument(self) -> Expr:
        """One argument of a command: a group, or a single character as in LaTeX."""
        token = self.peek()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.position] = Token("number", token.text[1:])
            return Expr("number", number=Fraction(token.text[0]))
        return self.factor()

    def root(self) -> Expr:
        if self.sees("["):
            self.next()
            degree = self.inside()
            self.expect("]")
            return Expr("root", (self.factor(), degree))
        return Expr("sqrt", (self.factor(),))

    def function(self, name: str) -> Expr:
        """`sin 2x`, `sin(x)`, `sin^2 x`, `sin^{-1} x`, `log_2 8`."""
        base: tuple[Expr, ...] = ()
        exponent: Expr | None = None
        if self.sees("_"):
            self.next()
            base = (self.factor(),)
            if name != "log":
                raise NotAnExpression("_")
        if self.sees("^"):
            self.next()
            exponent = self.exponent()
        if self.sees("(", "{", "["):
            argument = self.factor()
        else:
            argument = self.bare_argument()
        inverse = exponent is not None and exponent.head == "number" and exponent.number == -1
        if inverse and name in ("sin", "cos", "tan"):
            return Expr("arc" + name, (argument,))
        found = Expr(name, (argument, *base))
        return found if exponent is None else Expr("^", (found, exponent))

    def bare_argument(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        minus = self.sees("-")
        if minus:
            self.next()
        found = self.power()
        while self.starts_factor() and not self.sees("(", "[") and self.peek().text not in FUNCTIONS:
            found = Expr("*", (found, self.power()))
        if self.sees("/") and found.head in ("pi", "*", "number"):
            self.next()
            found = Expr("/", (found, self.power()))
        self.depth -= 1
        return _negative(found) if minus else found

    def arguments(self) -> tuple[Expr, ...]:
        close = {"(": ")", "{": "}"}.get(self.next().text)
        found = [self.inside()]
        while self.sees(","):
            self.next()
            found.append(self.inside())
        if close is None:
            raise NotAnExpression("(")
        self.expect(close)
        return tuple(found)

    def matrix(self, begin: str) -> Expr:
        rows, row = [], [self.inside()]
        while self.peek().kind != "end":
            if self.sees("&"):
                self.next()
                row.append(self.inside())
            elif self.sees("\\", kind="command"):
                self.next()
                if self.peek().kind == "end":
                    break
                rows.append(Expr("row", tuple(row)))
                row = [self.inside()]
            else:
                raise NotAnExpression("a matrix that does not end")
        self.next()
        rows.append(Expr("row", tuple(row)))
        if len({len(each.parts) for each in rows}) != 1:
            raise NotAnExpression("rows of different lengths")
        return Expr("det" if "vmatrix" in begin else "matrix", tuple(rows))


def _transposed(matrix: Expr) -> Expr:
    columns = zip(*(row.parts for row in matrix.parts), strict=True)
    return Expr("matrix", tuple(Expr("row", column) for column in columns))


def _negative(expr: Expr) -> Expr:
    return Expr("number", number=-expr.number) if expr.head == "number" else Expr("negative", (expr,))


def _repeating(text: str) -> Fraction:
    """The value of 0.1\\overline{6} or 0.\\dot{1}4\\dot{2}."""
    whole, _, rest = text.partition(".")
    fixed, _, marked = rest.partition("\\")
    again = "".join(re.findall(r"[0-9]", marked))
    start = Fraction(int(whole or "0")) + (Fraction(int(fixed), 10 ** len(fixed)) if fixed else 0)
    return start + Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(fixed))
