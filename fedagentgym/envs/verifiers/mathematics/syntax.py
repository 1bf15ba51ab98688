"""Expressions in LaTeX or plain text, cut into tokens and parsed into trees.

The parser is small on purpose: it accepts the notation of answers, and refuses everything else, so that a
text which is not an expression is never mistaken for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

DEEPEST = 60

_SAME = (
    "sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "cis",
    "exp", "ln", "log", "abs", "sgn", "sqrt",
)  # fmt: skip
FUNCTIONS = {name: name for name in _SAME} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
TWO_ARGUMENTS = frozenset(("binom", "tbinom", "dbinom"))
SEVERAL_ARGUMENTS = frozenset(("max", "min", "gcd", "lcm"))
SERIES = frozenset(("sum", "prod", "int", "iint", "oint", "lim"))
ABOVE = frozenset(("vec", "bar", "hat", "tilde", "overline", "overrightarrow", "widehat"))
GREEK = {
    "\u03b1": "alpha", "\u03b2": "beta", "\u03b3": "gamma", "\u03b4": "delta", "\u03b5": "epsilon",
    "\u03b6": "zeta", "\u03b7": "eta", "\u03b8": "theta", "\u03ba": "kappa", "\u03bb": "lambda", "\u03bc": "mu",
    "\u03bd": "nu", "\u03be": "xi", "\u03c0": "pi", "\u03c1": "rho", "\u03c3": "sigma", "\u03c4": "tau",
    "\u03c6": "phi", "\u03c7": "chi", "\u03c8": "psi", "\u03c9": "omega", "\u0393": "Gamma", "\u0394": "Delta",
    "\u0398": "Theta", "\u039b": "Lambda", "\u03a3": "Sigma", "\u03a6": "Phi", "\u03a8": "Psi", "\u03a9": "Omega",
    "\u221e": "infty", "\u03d5": "varphi", "\u03f5": "varepsilon", "\u2113": "ell", "\u22a4": "top",
}  # fmt: skip


class NotAnExpression(Exception):
    """The text is not an expression that the parser accepts."""


class NeedsAlgebra(Exception):
    """The text holds a sum, an integral or a limit, which only computer algebra evaluates."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str


END = Token("end", "")


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<repeating>[0-9]*\.[0-9]*\\(?:overline|bar)\s*\{\s*[0-9]+\s*\}
                | [0-9]*\.[0-9]*\\dot\s*\{?\s*[0-9]\s*\}?(?:[0-9]*\\dot\s*\{?\s*[0-9]\s*\}?)?)
  | (?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)? | [0-9]+(?:\.[0-9]*)? | \.[0-9]+)
  | (?P<begin>\\begin\s*\{\s*(?:[pbBv]?matrix|smallmatrix|array\s*\}\s*\{[lcr|\s]*)\s*\})
  | (?P<end>\\end\s*\{\s*(?:[pbBv]?matrix|smallmatrix|array)\s*\})
  | (?P<command>\\(?:[A-Za-z]+|\\|\{|\}|\|))
  | (?P<word>[A-Za-z]+)
  | (?P<greek>[\u0391-\u03c9])
  | (?P<sign>\*\*|[-+*/^_(){}\[\]|!%&,'\u00b0])
  )""",
    re.VERBOSE,
)


_FUNCTION_OF_LETTER = re.compile(r"(sin|cos|tan|sec|csc|cot|ln|log)([a-z])")


def tokenize(text: str) -> Iterator[Token]:
    position, text = 0, text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise NotAnExpression(text[position : position + 20])
        position = found.end()
        kind, token = found.lastgroup, found[found.lastgroup]
        if kind == "command" and token[1:] in SERIES:
            raise NeedsAlgebra(token)
        if kind == "command":
            yield Token("command", token[1:])
        elif kind == "greek":
            yield Token("command", GREEK.get(token, token))
        elif kind != "word":
            yield Token(kind, "^" if token == "**" else token)
        # a word is a function, a constant, or letters that are multiplied
        elif token in FUNCTIONS or token in TWO_ARGUMENTS or token in GREEK.values() or token in SEVERAL_ARGUMENTS:
            yield Token("command", token)
        elif token in ("inf", "infinity", "Infinity", "oo"):
            yield Token("command", "infty")
        elif glued := _FUNCTION_OF_LETTER.fullmatch(token):
            yield Token("command", glued[1])
            yield Token("letter", glued[2])
        elif token.startswith("pi") and len(token) == 3:
            yield Token("command", "pi")
            yield Token("letter", token[2])
        elif len(token) <= 4:
            for letter in token:
                yield Token("letter", letter)
        else:
            raise NotAnExpression(token)


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

    def has(self, head: str) -> bool:
        return any(node.head == head for node in self.walk())


def negative(expr: Expr) -> Expr:
    return Expr("number", number=-expr.number) if expr.head == "number" else Expr("negative", (expr,))


def difference(left: Expr, right: Expr) -> Expr:
    return Expr("+", (left, Expr("negative", (right,))))


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
    parser = _Parser(list(tokenize(text)), tight)
    tree = parser.sum()
    if parser.peek() is not END:
        raise NotAnExpression(parser.peek().text)
    return tree


_NO_FACTOR = frozenset(("cdot", "times", "ast", "div", "{", "}", "|", "\\", "rfloor", "rceil"))
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class _Parser:
    """Recursive descent over the tokens; `depth` keeps hostile nesting away from Python's own stack."""

    def __init__(self, tokens: list[Token], tight: bool) -> None:
        self.tokens, self.position, self.tight = tokens, 0, tight
        self.depth, self.bars = 0, 0

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

    def take(self, *texts: str, kind: str = "sign") -> str:
        """The next token if it is one of these, else nothing."""
        return self.next().text if self.sees(*texts, kind=kind) else ""

    def expect(self, text: str, kind: str = "sign") -> None:
        if not self.take(text, kind=kind):
            raise NotAnExpression(f"{text} is missing")

    # ---- sums and products ------------------------------------------------------------------------------------------

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        terms = [self.product()]
        while sign := self.take("+", "-"):
            term = self.product()
            terms.append(negative(term) if sign == "-" else term)
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Expr("+", tuple(terms))

    def product(self) -> Expr:
        left = self.signed()
        while True:
            if self.take("*") or self.take("cdot", "times", "ast", kind="command"):
                left = Expr("*", (left, self.signed()))
            elif self.take("/") or self.take("div", kind="command"):
                right = self.signed()
                while self.tight and self.starts_factor():
                    right = Expr("*", (right, self.power()))
                left = Expr("/", (left, right))
            elif self.starts_factor():
                if self.peek().kind in ("number", "repeating") and self.tokens[self.position - 1].kind == "number":
                    raise NotAnExpression("two numbers in a row")
                fraction = self.sees("frac", kind="command")
                right = self.power()
                # after a whole number a fraction of numbers makes a mixed number
                mixed = fraction and left.head == "number" and left.number.denominator == 1 and right.head == "/"
                mixed = mixed and all(part.head == "number" for part in right.parts)
                left = Expr("+" if mixed else "*", (left, right))
            else:
                return left

    def signed(self) -> Expr:
        minus, count = False, 0
        while sign := self.take("+", "-"):
            minus ^= sign == "-"
            count += 1
            if count > 3:
                raise NotAnExpression("signs")
        found = self.power()
        return negative(found) if minus else found

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in ("number", "repeating", "letter", "begin"):
            return True
        if token.kind == "sign":
            return token.text in "({[" or (token.text == "|" and not self.bars)
        return token.kind == "command" and token.text not in _NO_FACTOR

    # ---- powers -----------------------------------------------------------------------------------------------------

    def power(self) -> Expr:
        """A factor with what stands behind it: powers, and the signs for factorials, degrees and percent."""
        base = self.factor()
        while sign := self.take("!", "\u00b0", "%", "^"):
            if sign != "^":
                base = Expr({"!": "factorial", "\u00b0": "degree", "%": "percent"}[sign], (base,))
                continue
            exponent = self.exponent()
            if base.head == "matrix" and exponent.name in ("T", "top"):
                columns = zip(*(row.parts for row in base.parts), strict=True)
                base = Expr("matrix", tuple(Expr("row", column) for column in columns))
            else:
                base = Expr("^", (base, exponent))
        return base

    def exponent(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        minus = self.take("+", "-") == "-"
        found = self.factor()
        if self.take("^"):
            found = Expr("^", (found, self.exponent()))
        self.depth -= 1
        return negative(found) if minus else found

    # ---- factors ----------------------------------------------------------------------------------------------------

    def factor(self) -> Expr:
        token = self.next()
        if token.kind == "number":
            return Expr("number", number=Fraction(token.text.replace(",", "").rstrip(".")))
        if token.kind == "repeating":  # 0.1\overline{6} or 0.\dot{1}4\dot{2}
            whole, _, rest = token.text.partition(".")
            fixed, _, marked = rest.partition("\\")
            again = "".join(re.findall(r"[0-9]", marked))
            start = Fraction(int(whole or "0")) + (Fraction(int(fixed), 10 ** len(fixed)) if fixed else 0)
            return Expr("number", number=start + Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(fixed)))
        if token.kind == "letter":
            return self.symbol(token.text)
        if token.kind == "begin":
            return self.matrix(token.text)
        if token.kind == "command":
            return self.command(token.text)
        if token.kind == "sign" and token.text in _CLOSING:
            found = self.inside()
            self.expect(_CLOSING[token.text])
            return found
        if token.kind == "sign" and token.text == "|":
            self.bars += 1
            found = self.sum()
            self.bars -= 1
            self.expect("|")
            return Expr("abs", (found,))
        raise NotAnExpression(token.text)

    def inside(self) -> Expr:
        """The content of a bracket: bars that were opened outside of it do not close inside."""
        outer, self.bars = self.bars, 0
        found = self.sum()
        self.bars = outer
        return found

    def symbol(self, name: str) -> Expr:
        if self.take("_"):
            name += "_" + self.raw_argument()
        while self.take("'"):
            name += "'"
        return Expr(name) if name in ("e", "i") else Expr("symbol", name=name)

    def raw_argument(self) -> str:
        """The text of a subscript."""
        token = self.next()
        if not (token.kind == "sign" and token.text == "{"):
            return token.text
        texts = []
        while not self.take("}"):
            if self.peek() is END:
                raise NotAnExpression("a brace is missing")
            texts.append(self.next().text)
        return "".join(texts)

    def command(self, name: str) -> Expr:
        if name == "pi":
            return Expr("pi")
        if name == "frac":
            return Expr("/", (self.argument(), self.argument()))
        if name in TWO_ARGUMENTS:
            return Expr("binom", (self.argument(), self.argument()))
        if name == "sqrt":
            if not self.take("["):
                return Expr("sqrt", (self.factor(),))
            degree = self.inside()
            self.expect("]")
            return Expr("root", (self.factor(), degree))
        if name in FUNCTIONS:
            return self.function(FUNCTIONS[name])
        if name in SEVERAL_ARGUMENTS:
            opening = self.next().text
            arguments = [self.inside()]
            while self.take(","):
                arguments.append(self.inside())
            if opening not in ("(", "{"):
                raise NotAnExpression("(")
            self.expect(_CLOSING[opening])
            return Expr(name, tuple(arguments))
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

    def function(self, name: str) -> Expr:
        """`sin 2x`, `sin(x)`, `sin^2 x`, `sin^{-1} x`, `log_2 8`."""
        base: tuple[Expr, ...] = ()
        if self.take("_"):
            base = (self.factor(),)
            if name != "log":
                raise NotAnExpression("_")
        exponent = self.exponent() if self.take("^") else None
        argument = self.factor() if self.sees("(", "{", "[") else self.bare_argument()
        inverse = exponent is not None and exponent.head == "number" and exponent.number == -1
        if inverse and name in ("sin", "cos", "tan"):
            return Expr("arc" + name, (argument,))
        found = Expr(name, (argument, *base))
        return found if exponent is None else Expr("^", (found, exponent))

    def bare_argument(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("too deep")
        minus = self.take("-")
        found = self.power()
        while self.starts_factor() and not self.sees("(", "[") and self.peek().text not in FUNCTIONS:
            found = Expr("*", (found, self.power()))
        if found.head in ("pi", "*", "number") and self.take("/"):
            found = Expr("/", (found, self.power()))
        self.depth -= 1
        return negative(found) if minus else found

    def matrix(self, begin: str) -> Expr:
        rows = [[self.inside()]]
        while self.peek().kind != "end":
            if self.take("&"):
                rows[-1].append(self.inside())
            elif self.take("\\", kind="command"):
                if self.peek().kind == "end":
                    break
                rows.append([self.inside()])
            else:
                raise NotAnExpression("a matrix that does not end")
        self.next()
        if len({len(row) for row in rows}) != 1:
            raise NotAnExpression("rows of different lengths")
        return Expr("det" if "vmatrix" in begin else "matrix", tuple(Expr("row", tuple(row)) for row in rows))
