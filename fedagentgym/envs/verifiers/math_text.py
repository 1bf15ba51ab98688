"""Reading mathematical answers as text: extraction from a reply, and the normal form."""

from __future__ import annotations

import re

from fedagentgym.envs.verifiers.formats import ANSWER, last_block

LONGEST_ANSWER = 1_000
_BOX = re.compile(r"\\(?:boxed|framebox|fbox)\s*\{")


def extract_answer(reply: str) -> str | None:
    """The answer of a reply: its last answer block, else its last box; inside the block too the last box counts.

    >>> extract_answer("so \\\\boxed{3} or rather \\\\boxed{4}")
    '4'
    >>> extract_answer("<think> 3 ? </think> <answer> 18 eggs </answer>")
    '18 eggs'
    """
    block = last_block(reply, ANSWER)
    if block is None:
        return last_box(reply)
    boxed = last_box(block)
    return block if boxed is None else boxed


def last_box(text: str) -> str | None:
    """The content of the last complete box, with balanced braces."""
    boxes = [found.end() for found in _BOX.finditer(text)]
    if not boxes:
        return None
    start, depth = boxes[-1], 1
    for position in range(start, min(len(text), start + 4 * LONGEST_ANSWER)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":
            depth += 1 if character == "{" else -1
            if not depth:
                return text[start:position].strip()
    return None


# ---- normal form ----------------------------------------------------------------------------------------------------

_REPLACED = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|limits|mathstrut)(?![a-zA-Z])\s*\.?"),
        "",
    ),
    (re.compile(r"\{,\}|\\!,|,\\!|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"(?:\\q?quad(?![a-zA-Z])\s*)+(?=[a-zA-Z](?:_\{?\w\}?)?\s*=)"), ", "),
    (re.compile(r"(?<!\\)\\[!,;: ]|\\q?quad(?![a-zA-Z])|~|[\u00a0\u2009\u202f]"), " "),
    (re.compile(r"(?<=\\\\)\s*\[[0-9a-z. ]*\]"), " "),
    (re.compile(r"(?<!\\)\\[()\[\]]|\\?\$|[\u00a3\u20ac\u00a5]|\\(?:pounds|euro)(?![a-zA-Z])"), " "),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])"), "\u00b0"),
    (re.compile(r"[\u2212\u2010\u2011\u2013]"), "-"),
    (re.compile(r"[\u00d7\u00b7\u22c5\u2217]"), r"\\times "),
    (re.compile(r"\u00f7"), "/"),
    (re.compile(r"\u221a"), r"\\sqrt "),
    (re.compile(r"\u221e"), r"\\infty "),
    (re.compile(r"\u03c0"), r"\\pi "),
    (re.compile(r"\u00b1"), r"\\pm "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\leqslant(?![a-zA-Z])|\\leqq?(?![a-zA-Z])|\u2264|\u2a7d|<="), r"\\le "),
    (re.compile(r"\\geqslant(?![a-zA-Z])|\\geqq?(?![a-zA-Z])|\u2265|\u2a7e|>="), r"\\ge "),
    (re.compile(r"\\neq(?![a-zA-Z])|\\not\s*=|\u2260|(?<=\s)!="), r"\\ne "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:approx|approxeq|simeq|doteq|sim|cong)(?![a-zA-Z])|[\u2248\u2243]"), r"\\approx "),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])|\u2205"), r"\\emptyset "),
    (re.compile(r"\\mathbf\s*\{\s*R\s*\}"), r"\\mathbb{R}"),
    (re.compile(r"\\(?:mathbb|Bbb)\s*\{?\s*([A-Z])\s*\}?"), r"\\mathbb{\1}"),
    (re.compile(r"\\(?:reals|R)(?![a-zA-Z])|\u211d"), r"\\mathbb{R}"),
    (re.compile(r"\u2208"), r"\\in "),
    (re.compile(r"\u222a"), r"\\cup "),
    (re.compile(r"\u2229"), r"\\cap "),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])|\u2223"), "|"),
    (re.compile(r"\\langle(?![a-zA-Z])|\u27e8"), "\u27e8"),
    (re.compile(r"\\rangle(?![a-zA-Z])|\u27e9"), "\u27e9"),
    (re.compile(r"\\colon(?![a-zA-Z])"), ":"),
    (re.compile(r"\*\*([^*]{1,80})\*\*"), r"\1"),
)
_NEEDS_NO_REPLACING = re.compile(r"[A-Za-z0-9 .,:;()\[\]/+=_|'-]*")
_WORDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textup|mathrm|mathbf|mathit|mbox|operatorname|rm|bf)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_CASES = re.compile(r"\\begin\s*\{(?:cases|aligned|gathered)\}(.*?)\\end\s*\{(?:cases|aligned|gathered)\}", re.DOTALL)
_SUPERSCRIPT = re.compile("[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_SUPERSCRIPTS = str.maketrans(
    "\u207a\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "+-0123456789"
)
_FRACTIONS = {"\u00bd": "1/2", "\u00bc": "1/4", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3", "\u2155": "1/5"}
UNIT_MARK = "\u2060"
_SPACED_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")
_START = re.compile(r"(?:####|[=:\s]|\\(?:therefore|implies|Rightarrow|Longrightarrow|to|rightarrow)(?![a-zA-Z]))+")
_SINGLE_BRACES = re.compile(r"(?<=[\^_])\{(\w)\}")
_BLANKS = re.compile(r"(?<![0-9.])\s+|\s+(?![0-9.])")


def normal(text: str) -> str:
    """One spelling of an answer: no math delimiters, spacing commands, currency signs or text wrappers."""
    if not _NEEDS_NO_REPLACING.fullmatch(text):
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        text = _WORDS.sub(unwrapped, text)
        text = _CASES.sub(lambda found: found[1].replace("\\\\", ", ").replace("&", " "), text)
        if not text.isascii():
            text = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}} ", text)
            for character, fraction in _FRACTIONS.items():
                text = text.replace(character, f" {fraction} ")
    text = " ".join(text.split())
    if text and (found := _START.match(text)):
        text = text[found.end() :]
    if " " in text and _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    while text and text[-1] in ".,;:" and not text.endswith("..."):
        text = text[:-1].rstrip()
    return text


def unwrapped(found: re.Match[str]) -> str:
    """The words of a text wrapper. A unit in a single letter is marked, since outside of a wrapper it would be a variable."""
    words = found[1].strip()
    mark = UNIT_MARK if len(words) == 1 and words in "mgsLlNJWVAKCFhT" and found.start() else ""
    return f" {mark}{words} "


def squeezed(text: str) -> str:
    """A normal form without needless blanks and braces, for comparing as strings. A blank between digits is not needless."""
    return _SINGLE_BRACES.sub(r"\1", _BLANKS.sub("", text.replace(UNIT_MARK, "")))


def unreadable(text: str) -> str | None:
    """Why a text is not even brought into normal form, or None."""
    if len(text) > LONGEST_ANSWER:
        return "too long"
    if any(
        (ord(character) < 32 and character not in "\t\n\r") or 0xD800 <= ord(character) < 0xE000 for character in text
    ):
        return "not text"
    return None
