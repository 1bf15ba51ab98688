"""The words and signs of the expression parser."""

from __future__ import annotations

_SAME = (
    "sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "cis",
    "exp", "ln", "log", "abs", "sgn", "sqrt",
)  # fmt: skip
FUNCTIONS = {name: name for name in _SAME} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
TWO_ARGUMENTS = frozenset(("binom", "tbinom", "dbinom"))
SERIES = frozenset(("sum", "prod", "int", "iint", "oint", "lim"))
ABOVE = frozenset(("vec", "bar", "hat", "tilde", "overline", "overrightarrow", "widehat"))
GREEK = {
    "\u03b1": "alpha",
    "\u03b2": "beta",
    "\u03b3": "gamma",
    "\u03b4": "delta",
    "\u03b5": "epsilon",
    "\u03b6": "zeta",
    "\u03b7": "eta",
    "\u03b8": "theta",
    "\u03ba": "kappa",
    "\u03bb": "lambda",
    "\u03bc": "mu",
    "\u03bd": "nu",
    "\u03be": "xi",
    "\u03c0": "pi",
    "\u03c1": "rho",
    "\u03c3": "sigma",
    "\u03c4": "tau",
    "\u03c6": "phi",
    "\u03c7": "chi",
    "\u03c8": "psi",
    "\u03c9": "omega",
    "\u0393": "Gamma",
    "\u0394": "Delta",
    "\u0398": "Theta",
    "\u039b": "Lambda",
    "\u03a3": "Sigma",
    "\u03a6": "Phi",
    "\u03a8": "Psi",
    "\u03a9": "Omega",
    "\u221e": "infty",
    "\u03d5": "varphi",
    "\u03f5": "varepsilon",
    "\u2113": "ell",
    "\u22a4": "top",
}


def several_arguments(name: str) -> bool:
    """Is this a function of any number of arguments in brackets?"""
    return name in ("max", "min", "gcd", "lcm")
