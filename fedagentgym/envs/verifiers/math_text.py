"""Mathematical answers as text: extraction from a reply, the normal form, what is refused before any computation, and words.

Golds that are words (a name, yes or no, the letter of a choice) are compared as words, in any case.
"""

from __future__ import annotations

import re

from fedagentgym.envs.verifiers.formats import last_answer

LONGEST_ANSWER = 1_000
_BOX = re.compile(r"\\(?:boxed|framebox|fbox)\s*\{")


def extract_answer(reply: str) -> str | None:
    """The answer of a reply: its last answer block that is not empty, else its last box; inside a block too the last box counts.

    >>> extract_answer("so \\\\boxed{3} or rather \\\\boxed{4}")
    '4'
    >>> extract_answer("<think> 3 ? </think> <answer> 18 eggs </answer>")
    '18 eggs'
    """
    block = last_answer(reply)
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


_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def unreadable(text: str) -> str | None:
    """The reason why a text is not even brought into normal form, or None."""
    if len(text) > LONGEST_ANSWER:
        return "too long"
    return "not text" if _NOT_TEXT.search(text) else None


_LONG_NUMBER = re.compile(r"[0-9]{41}")
_POWER = re.compile(r"\^\s*[{(]?\s*[-+]?\s*([0-9]+)")
_POWER_OF_POWER = re.compile(r"\^\s*[{(]?[0-9.\s]*[})]?\s*\^|\^\s*[{(][^{}]{0,40}[0-9)}]\s*\^")
_POWER_OF_SUM = re.compile(r"[)}\]]\s*\^\s*[{(]?\s*(?:1[3-9]|[2-9][0-9]|[0-9]{3})")
_FACTORIAL = re.compile(r"([0-9]+|[^0-9\s])\s*!")
_LETTER = re.compile(r"[A-Za-z]")
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
_MATHEMATICAL = re.compile(
    r"and|sqrt|sin|cos|tan|cot|sec|csc|log|exp|infty|infinity|mod|max|min|gcd|lcm|arcsin|arccos|arctan|for|all"
    r"|[pbv]?matrix|array|begin|end",
    re.IGNORECASE,
)
_SERIES = re.compile(r"\\(?:binom|choose|sum|prod|int|lim)(?![a-z])")


def refusal(text: str) -> str | None:
    """The reason why an answer in normal form goes no further, or None."""
    if "\\boxed" in text or text.count("{") != text.count("}"):
        return "braces do not match"
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > 12:
            return "too deep"
    if text.count("=") > 24 or text.count("^") > 24 or text.count("\\") > 120 or len(_SERIES.findall(text)) > 4:
        return "too many parts"
    if _LONG_NUMBER.search(text):
        return "a number too long"
    if any(len(power) > 4 for power in _POWER.findall(text)):
        return "a power too large"
    if len([word for word in _LONG_WORD.findall(text) if not _MATHEMATICAL.fullmatch(word)]) > 5:
        return "prose"
    factorials = _FACTORIAL.findall(text)
    modest = [one.isalpha() or one in ")}]" or (one.isdecimal() and len(one) <= 3) for one in factorials]
    if len(modest) > 4 or not all(modest):
        return "a factorial too large"
    return None


def refusal_of_algebra(text: str) -> str | None:
    """The reason why an expression is not given to computer algebra, which would multiply it out, or None."""
    if _POWER_OF_POWER.search(text) or (_POWER_OF_SUM.search(text) and _LETTER.search(text)):
        return "a power too large"
    return None


_WRAPPED = re.compile(
    r"\s*\$?\s*\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{\s*\(?([A-Za-z][A-Za-z\s.'-]*)\)?\s*\}\s*\$?\s*\.?\s*"
)
_PHRASE = re.compile(r"[A-Za-z\s.'-]+")
_FUNCTIONS = re.compile(r"sqrt|infty|sin|cos|tan|log|pi\b|theta|alpha|beta|infinity")
_SHORT = re.compile(
    r"yes|no|odd|even|true|false|none|red|blue|man|men|boy|cat|dog|sun|mon|tue|wed|thu|fri|sat", re.IGNORECASE
)
_NAME = re.compile(r"[A-Z][a-z]+")
_CHOICE = re.compile(r"\(?([A-H])\)?")
_CHOSEN = re.compile(
    r"\(([A-Ha-h])\)(?:\s.*)?|([A-Ha-h])(?:[.):]+(?:\s.*)?)?|(?:choice|option)\s*\(?([A-Ha-h])\)?", re.IGNORECASE
)
_LEADING = re.compile(
    r"(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?(?:answer|result|it|this|that)\b\s*(?:is|=|:)+\s*:?\s*",
    re.IGNORECASE,
)
_ARTICLES = frozenset(("a", "an", "the"))
_SETS = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?(?:empty|null) set|.*\breals?\b.*", re.IGNORECASE
)


def words_of_gold(gold: str, normal_gold: str) -> tuple[str, ...] | None:
    """The words of a gold that is a word or phrase; None when it is an expression or the name of a set.

    >>> words_of_gold("Evelyn", "Evelyn"), words_of_gold("xy", "xy")
    (('evelyn',), None)
    """
    if _SETS.fullmatch(normal_gold):
        return None
    if found := _CHOICE.fullmatch(normal_gold):
        return (found[1],)
    if _WRAPPED.fullmatch(gold):
        return words(normal_gold)
    if not _PHRASE.fullmatch(normal_gold) or _FUNCTIONS.search(normal_gold):
        return None
    parts = re.findall(r"[A-Za-z]+", normal_gold)
    if not parts:
        return None
    is_phrase = (
        max(map(len, parts)) > 3
        or any(_SHORT.fullmatch(part) for part in parts)
        or all(_NAME.fullmatch(part) for part in parts)
    )
    return words(normal_gold) if is_phrase else None


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without articles."""
    found = re.findall(r"[^\W_]+", text.lower())
    return tuple(word for word in found if word not in _ARTICLES) or tuple(found)


def same_words(gold: tuple[str, ...], answer: str) -> bool:
    """Is the answer the same words, perhaps after `the answer is`? A choice may have its text behind its letter."""
    bare = _LEADING.sub("", answer, count=1)
    if len(gold) == 1 and len(gold[0]) == 1 and gold[0].isupper():
        found = _CHOSEN.fullmatch(bare.strip())
        return found is not None and next(letter for letter in found.groups() if letter).upper() == gold[0]
    return words(answer) == gold or words(bare) == gold
