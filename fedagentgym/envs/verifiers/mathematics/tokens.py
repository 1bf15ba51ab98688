"""Cutting an expression into tokens: numbers, letters, commands, signs; and the words and signs that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SAME = (
    "sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "cis",
    "exp", "ln", "log", "abs", "sgn", "sqrt",
)  # fmt: skip
FUNCTIONS = {name: name for name in _SAME} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
TWO_ARGUMENTS = frozenset(("binom", "tbinom", "dbinom"))
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


def several_arguments(name: str) -> bool:
    """Is this a function of any number of arguments in brackets?"""
    return name in ("max", "min", "gcd", "lcm")


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
        if kind == "word":
            yield from _split_word(token)
        elif kind == "command" and token[1:] in SERIES:
            raise NeedsAlgebra(token)
        elif kind == "command":
            yield Token("command", token[1:])
        elif kind == "greek":
            yield Token("command", GREEK.get(token, token))
        else:
            yield Token(kind, "^" if token == "**" else token)


def _split_word(word: str) -> Iterator[Token]:
    """A word is a function, a constant or letters that are multiplied."""
    if word in FUNCTIONS or word in TWO_ARGUMENTS or word in GREEK.values() or several_arguments(word):
        yield Token("command", word)
    elif word in ("inf", "infinity", "Infinity", "oo"):
        yield Token("command", "infty")
    elif found := _FUNCTION_OF_LETTER.fullmatch(word):
        yield Token("command", found[1])
        yield Token("letter", found[2])
    elif word.startswith("pi") and len(word) == 3:
        yield Token("command", "pi")
        yield Token("letter", word[2])
    elif len(word) <= 4:
        for letter in word:
            yield Token("letter", letter)
    else:
        raise NotAnExpression(word)
