"""Compare an answer of mathematics with the right one: a number, an expression, a tuple, a set or an interval.

`math_exact` describes how answers are compared. Answers that need computer algebra go to math-verify, in a worker process
with limits on time and memory. No reply makes a function here raise or hang; `Verdict.reason` states how it was graded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from fedagentgym.base.errors import unknown_name_error
from fedagentgym.envs.verifiers import Verdict, right, wrong
from fedagentgym.envs.verifiers.formats import extract_answer, last_box
from fedagentgym.envs.verifiers.math_exact import (
    Refused,
    is_arithmetic,
    is_unit,
    judge,
    normalize,
    read_value,
    split,
    states_a_falsehood,
    unreadable,
)
from fedagentgym.envs.verifiers.math_pool import WorkerPool
from fedagentgym.envs.verifiers.qa import find_words, same_words

EXACT = "exact"
LIBRARY = "math-verify"
LIBRARY_ON_REPLY = "math-verify-reply"
VERIFIERS = (EXACT, LIBRARY, LIBRARY_ON_REPLY)
MAX_REPLY_LENGTH = 100_000
EXACT_VERSION = 1


def math_verifier_version(verifier: str = EXACT) -> str:
    """Name and version of the verifier, for results: exact arithmetic with the library behind it, or the library alone."""
    try:
        library = f"math-verify-{version('math-verify')}"
    except PackageNotFoundError:
        library = "math-verify"
    if verifier == LIBRARY_ON_REPLY:
        return library.replace(LIBRARY, LIBRARY_ON_REPLY)
    return library if verifier == LIBRARY else f"{EXACT}/{EXACT_VERSION}+{library}"


_LIMITS = (
    (re.compile(r"[0-9]{41}"), "a number too long"),
    (re.compile(r"\^ ?[{(]? ?[-+]? ?[0-9]{5}"), "a power too large"),
    (re.compile(r"\^ ?[{(]?[0-9. ]{0,40}[})]? ?\^|\^ ?[{(][^{}]{0,40}[0-9)}] ?\^"), "a power too large"),
    (re.compile(r"[0-9]{4} ?!"), "a factorial too large"),
)
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_POWER = re.compile(r"\^ ?([-+]?[0-9]++)")
_PERCENT = re.compile(r"(?<!\\)%")
_POWER_OF_SUM = re.compile(r"[)}\]] ?\^ ?[{(]? ?(?:1[3-9]|[2-9][0-9]|[0-9]{3})")
_MATHEMATICS = re.compile(
    r"(?<!\$)\$++([^$]++)\$++|\\\(((?>(?:[^\\]|\\(?![()]))+))\\\)|\\\[((?>(?:[^\\]|\\(?![\[\]]))+))\\\]"
)
_NEGATION = re.compile(r"\b(?:not|never|no|nor|isn|except|wrong|incorrect|false)\b|n't\b", re.IGNORECASE)


def find_stated(text: str) -> str:
    r"""The part of an answer that states the result: its only box, or the last formula of a sentence without a negation.

    In all other cases, the whole answer.

    >>> find_stated(r"Therefore $x \geq 5$ is the solution."), find_stated("not $7$"), find_stated("$7$ eggs")
    ('x \\geq 5', 'not $7$', '7')
    """
    if boxed := last_box(text):
        return boxed if text.count("boxed") == 1 else text
    found = list(_MATHEMATICS.finditer(text))
    around = _MATHEMATICS.sub(" ", text)
    if not found or not any(map(str.isalpha, around)) or _NEGATION.search(around):
        return text
    behind = text[found[-1].end() :].strip(" .")
    return text if behind and not is_unit(f" {behind}") else next(filter(None, found[-1].groups()))


_GREEK = "pi|infty|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|varphi|omega"
_TOKEN = re.compile(
    r"(?P<number>[0-9]++(?>(?:,[0-9]{3}(?![0-9]))*)(?:\.[0-9]++)?|\.[0-9]++)|(?P<opening>[({\[]|\\l(?:floor|ceil|vert)(?![a-z]))"
    r"|(?P<closing>[)}\]]|\\r(?:floor|ceil|vert)(?![a-z]))|(?P<binary>[*/^,]|\\(?:cdot|times|pm|mp|mod|choose)(?![a-z]))"
    rf"|(?P<sign>[-+])|(?P<behind>[!%\u00b0'])|(?P<bar>\|)|(?P<operand>[A-Za-z]|\\(?:{_GREEK})(?![a-zA-Z]))|(?P<function>\\[A-Za-z]++)"
)
_SUBSCRIPT = re.compile(r"_ ?(?:\{[^{}]*+\}|\w)")
_FUNCTIONS = "ln|log|exp|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|floor|ceil|abs|max|min|gcd|lcm"
_RAISED = re.compile(rf"\\(?:sum|prod|int|{_FUNCTIONS})(?![a-z])(?: ?\^ ?(?:\{{[^{{}}]*+\}}|\\?\w+))?")
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])(?=(?:pi|sqrt|{_FUNCTIONS})(?![A-Za-z]))")
_OTHER_NOTATION = re.compile(
    r"[<>=&:;]|\\[{}]|\\(?:begin|le|ge|ne|in|cup|cap|setminus|mid|emptyset|mathbb|to|overline|[lcd]?dots)(?![a-z])|\b(?:and|or)\b"
)


def is_well_formed(text: str) -> bool:
    r"""True if an expression has operands exactly where it needs them. The library ignores superfluous parts.

    Relations, sets and similar notation are not checked.

    >>> [is_well_formed(text) for text in (r"2\sqrt{3} - |x|", r"\frac{1}{2}(3 + 4)!", "12 0", "3 -3 -", "/ 12", "6 | 6")]
    [True, True, False, False, False, False]
    """
    text = _RAISED.sub(r"\\sin ", _FUNCTION.sub(r"\\", _SUBSCRIPT.sub(" ", text)))
    if _OTHER_NOTATION.search(text):
        return True
    needed, bars, position = True, 0, 0
    while position < len(text):
        if text[position] == " ":
            position += 1
            continue
        if (found := _TOKEN.match(text, position)) is None:
            return False
        kind = found.lastgroup
        if kind == "bar":
            is_closing = not needed and bars > 0
            bars, needed = bars + (-1 if is_closing else 1), not is_closing
        elif kind in (("closing", "binary", "behind") if needed else ("number",)) and text[position - 1] != "}":
            return False
        else:
            needed = kind in ("opening", "binary", "sign", "function")
        position = found.end()
    return not needed and bars == 0


def find_refusal(text: str) -> str | None:
    """The reason why a text in normal form is not given to computer algebra, such as a power too large, or None."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if not 0 <= depth <= 12:
            return "too deep" if depth > 0 else "brackets do not match"
    if depth or text.count("{") != text.count("}"):
        return "brackets do not match"
    series = len(re.findall(r"\\(?:binom|choose|sum|prod|int|lim)(?![a-z])", text))
    if text.count("=") > 24 or text.count("^") > 24 or text.count("\\") > 120 or text.count("!") > 4 or series > 4:
        return "too many parts"
    if _POWER_OF_SUM.search(text) and _LETTER.search(text):
        return "a power too large"
    return next((reason for pattern, reason in _LIMITS if pattern.search(text)), None)


_CONNECTIVE = re.compile(r"\\(?:l(?:or|and|not)|vee|wedge|neg|oplus|implies|Rightarrow|iff)(?![a-zA-Z])")


def _denies_or_hedges(gold: str, answer: str) -> bool:
    r"""True if the gold is a number and the answer has a negation or a logical connective, which the library ignores.

    >>> [_denies_or_hedges("7", answer) for answer in (r"7 \text{ is wrong}", r"9 \lor 7", r"\therefore 7")]
    [True, True, False]
    """
    spelled = normalize(answer)
    said = _NEGATION.search(spelled) or _CONNECTIVE.search(spelled)
    return said is not None and read_value(normalize(gold)) is not None


def _states_a_falsehood(answer: str, is_gold: Callable[[str], bool]) -> bool:
    """True if an answer is unreadable or equates different numbers, as in `3 + 4 = 42`; the library reads the last side only."""
    if unreadable(answer) or states_a_falsehood(spelled := normalize(answer)):
        return True
    sides = [side for side in split(spelled, "=") if is_arithmetic(side)]
    return len(sides) > 1 and not all(map(is_gold, sides))


class MathVerifier:
    """Grades answers of mathematics in its own worker processes; `grade_math` uses a shared verifier. Close it after use.

    Args:
        clock: Seconds of processor time that the library may take to compare an answer with one gold.
        memory: Bytes of memory of a worker.
        workers: Number of workers; by default, one for each core.
        verifier: As for `grade_math`.

    Raises:
        UnknownNameError: If there is no such verifier.
    """

    def __init__(
        self, clock: float = 0.8, memory: int = 512 << 20, workers: int | None = None, verifier: str = EXACT
    ) -> None:
        if verifier not in VERIFIERS:
            raise unknown_name_error("verifier of mathematics", verifier, VERIFIERS)
        self.verifier = verifier
        self.pool = WorkerPool(clock, memory, workers)

    def verify(self, gold: str, answer: str) -> Verdict:
        """Compare a bare answer with the right one.

        Args:
            gold: The right answer.
            answer: The answer, without tags or box.

        Returns:
            The verdict.
        """
        left, shown = self.pool.clock, answer[:200]

        def ask(gold: str, answer: str) -> bool:
            nonlocal left
            if self.verifier == EXACT and not is_well_formed(answer):
                raise Refused("not well formed")
            for text, whose in ((answer, ""), (gold, "gold: ")):
                if reason := find_refusal(text):
                    raise Refused(whose + reason)
            if left <= 0:
                raise Refused("timeout")
            texts = [_POWER.sub(r"^{\1}", _PERCENT.sub(r"\\%", text)) for text in (gold, answer)]
            outcome = self.pool.compare(texts[0], texts[1], left)
            left -= outcome.seconds
            if outcome.said not in ("equal", "different"):
                raise Refused(outcome.said)
            return outcome.said == "equal"

        gold, answer = last_box(gold) or gold, find_stated(answer)
        if reason := unreadable(answer):
            return wrong(reason, shown)
        words = find_words(normalize(gold))
        try:
            if self.verifier == LIBRARY:
                refused = _denies_or_hedges(gold, answer) or not ask(gold, answer)
                equal, reason = not (refused or _states_a_falsehood(answer, partial(ask, gold))), LIBRARY
            elif words is not None:
                equal, reason = same_words(words, normalize(answer)), "words"
            else:
                equal, reason = judge(gold, answer, ask)
        except Refused as refused:
            return wrong(str(refused), shown)
        return right(reason, shown) if equal else wrong(reason, shown)

    def grade(self, reply: str, golds: str | Iterable[str]) -> Verdict:
        """Grade a whole reply.

        Args:
            reply: The reply; the last answer block or box in it counts.
            golds: The right answer, or several of which one suffices.

        Returns:
            The verdict.
        """
        answer = extract_answer(reply)
        golds = (golds,) if isinstance(golds, str) else golds
        if self.verifier == LIBRARY_ON_REPLY:
            return self._grade_reply(reply, answer, golds)
        if answer is None or not answer.strip():
            return wrong("no answer")
        verdict = wrong("no gold answer")
        for gold in golds:
            verdict = self.verify(gold, answer)
            if verdict.correct:
                break
        return verdict

    def _grade_reply(self, reply: str, answer: str | None, golds: Iterable[str]) -> Verdict:
        """The verdict if the library itself extracts the answer from the reply."""
        shown = None if answer is None else answer[:200]
        if len(reply) > MAX_REPLY_LENGTH:
            return wrong("too long", shown)
        verdict = wrong("no gold answer", shown)
        for gold in golds:
            said = self.pool.compare(gold, reply, whole=True).said
            if said == "equal":
                if answer is not None and _states_a_falsehood(answer, partial(self._is_gold, gold)):
                    return wrong("a false equation", shown)
                return right(LIBRARY_ON_REPLY, (answer or reply)[:200])
            verdict = wrong(LIBRARY_ON_REPLY if said == "different" else said, shown)
        return verdict

    def _is_gold(self, gold: str, side: str) -> bool:
        return self.pool.compare(gold, side).said == "equal"

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()


_shared: dict[str, MathVerifier] = {}
_shared_lock = threading.Lock()


def default_verifier(verifier: str = EXACT) -> MathVerifier:
    """The verifier that this process shares; its workers start with the first answer that needs them."""
    with _shared_lock:
        if verifier not in _shared:
            _shared[verifier] = MathVerifier(verifier=verifier)
        return _shared[verifier]


def grade_math(reply: str, golds: str | Iterable[str], verifier: str = EXACT) -> Verdict:
    """Grade a reply to a problem of mathematics, whose answer is a number, an expression, a tuple, a set or an interval.

    Args:
        reply: The whole reply; the last answer block or box in it counts.
        golds: The right answer, or several of which one suffices.
        verifier: `exact` compares numbers by exact arithmetic, and other answers with math-verify. `math-verify` applies this
            library to the answer, `math-verify-reply` to the whole reply, as published training code does.

    Returns:
        The verdict. No reply makes this raise or hang.

    Raises:
        UnknownNameError: If there is no such verifier.

    Examples:
        >>> grade_math("<think> 3 + 4 = 7 </think> <answer> 7 eggs </answer>", "7").correct
        True
    """
    return default_verifier(verifier).grade(reply, golds)
