"""Is this answer that number, expression, tuple, set or interval?

The question is answered by the cheapest means that is sure:

1. equal strings in normal form, and plain numbers (integers, decimals, fractions, percentages, with units or a sentence
   around them), are decided here, exactly, without computer algebra;
2. the outer structure is compared here too: an ordered tuple component by component, an interval with its brackets, lists
   and sets in any order, unions part by part. (math-verify alone merges several boxes into a set and may compare ordered
   tuples unordered.);
3. what is left, a single expression, equation or inequality, goes to math-verify in a worker with a clock and a memory limit,
   unless its size or shape is such that no sensible answer looks like it.

Nothing here raises or hangs, whatever the reply; `Verdict.reason` says how it was decided.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from fedagentgym.envs.verifiers import Verdict, right, wrong
from fedagentgym.envs.verifiers.math_pool import WorkerPool
from fedagentgym.envs.verifiers.math_text import (
    extract_answer,
    normal,
    number,
    refusal,
    same_number,
    squeezed,
    unreadable,
)

MOST_PARTS = 24


def math_verifier_version() -> str:
    """Version of the rules here and of the library behind them, for results."""
    try:
        return f"math/1+math-verify-{version('math-verify')}"
    except PackageNotFoundError:
        return "math/1"


class Parts(NamedTuple):
    """The outer structure of an answer: a kind, the brackets, and what is between the commas."""

    kind: str
    brackets: str
    items: tuple[str, ...]


class _Unsettled(Exception):
    """The verdict cannot be given (clock, memory, shape): the whole comparison counts as wrong."""


class MathVerifier:
    """Compares answers, with a pool of workers of its own."""

    def __init__(self, clock: float = 1.0, memory: int = 512 << 20, workers: int | None = None) -> None:
        self.pool = WorkerPool(clock, memory, workers)

    def verify(self, gold: str, answer: str) -> Verdict:
        """Does `answer` (without tags or box) say the same as `gold`?"""
        comparison = _Comparison(self.pool)
        try:
            if reason := unreadable(answer):
                return wrong(reason, _shown(answer))
            wanted, given = normal(gold), normal(answer)
            equal = comparison.plainly(wanted, given)
            if equal is None:
                if reason := refusal(given):
                    return wrong(reason, _shown(answer))
                equal = comparison.equal(wanted, given)
        except _Unsettled as unsettled:
            return wrong(str(unsettled), _shown(answer))
        except RecursionError:
            return wrong("too deep", _shown(answer))
        return right(comparison.reason, _shown(answer)) if equal else wrong(comparison.reason, _shown(answer))

    def grade(self, reply: str, golds: str | Iterable[str]) -> Verdict:
        """The verdict on a whole reply: its last answer block or box, against any of the golds."""
        answer = extract_answer(reply)
        if answer is None or not answer.strip():
            return wrong("no answer")
        verdict = wrong("no gold answer")
        for gold in (golds,) if isinstance(golds, str) else golds:
            verdict = self.verify(gold, answer)
            if verdict.correct:
                break
        return verdict

    def close(self) -> None:
        self.pool.close()


class _Comparison:
    """One verdict: remembers how it was decided and how much of the clock is left for further workers."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool, self.left, self.reason = pool, pool.clock, "equal text"

    def equal(self, gold: str, answer: str, depth: int = 0) -> bool:
        decided = self.plainly(gold, answer)
        if decided is not None:
            return decided
        wanted, given = split(gold), split(answer)
        if depth < 4 and (wanted.kind != "one" or given.kind != "one"):
            decided = self._by_parts(wanted, given, gold, answer, depth)
            if decided is not None:
                return decided
        return self._by_algebra(gold, answer)

    def plainly(self, gold: str, answer: str) -> bool | None:
        """Decide by strings and exact numbers, if that is sure."""
        self.reason = "equal text"
        if not gold or not answer:
            self.reason = "empty"
            return False
        if squeezed(gold) == squeezed(answer):
            return True
        wanted = number(gold)
        if wanted is not None and (given := number(answer)) is not None:
            self.reason = "numbers"
            if "=" in gold and "=" in answer and _name(gold) != _name(answer):
                return False
            return same_number(wanted, given)
        self.reason = "words"
        if _is_text(gold):
            return _words_of(gold) == _words_of(answer)
        based_gold, based_answer = _BASED.fullmatch(squeezed(gold)), _BASED.fullmatch(squeezed(answer))
        if based_gold:
            self.reason = "number with a base"
            if based_answer:
                return based_gold.groups() == based_answer.groups()
            return squeezed(answer) == based_gold[1]
        return None

    def _by_parts(self, wanted: Parts, given: Parts, gold: str, answer: str, depth: int) -> bool | None:
        self.reason = "parts"
        if max(len(wanted.items), len(given.items)) > MOST_PARTS:
            raise _Unsettled("too many parts")
        if wanted.kind == "union" or given.kind == "union":
            return self._any_order(wanted.items, given.items, depth) if len(wanted.items) == len(given.items) else False
        if wanted.kind == "one":
            return self._single_in(given, gold, depth)
        if wanted.kind == "tuple":
            fits = given.kind in ("tuple", "list") and (given.brackets == wanted.brackets or given.kind == "list")
            if fits and len(given.items) == len(wanted.items):
                return all(self.equal(*pair, depth + 1) for pair in zip(wanted.items, given.items, strict=True))
            return None if given.kind == "one" and len(wanted.items) == 2 else False
        if given.kind == "tuple":
            same_length = len(given.items) == len(wanted.items)
            return same_length and all(
                self.equal(*pair, depth + 1) for pair in zip(wanted.items, given.items, strict=True)
            )
        if len(given.items) != len(wanted.items):
            return False
        return self._any_order(wanted.items, given.items, depth)

    def _single_in(self, given: Parts, gold: str, depth: int) -> bool | None:
        """A gold of one part against an answer of several: only a set of one, or an interval for an inequality."""
        if given.kind == "set" and len(given.items) == 1:
            return self.equal(gold, given.items[0], depth + 1)
        inequality = re.search(r"[<>]|\\[lg]e(?![a-z])|\\ne", gold)
        return None if given.kind == "tuple" and len(given.items) == 2 and inequality else False

    def _any_order(self, wanted: Sequence[str], given: Sequence[str], depth: int) -> bool:
        """Can every wanted part be paired with a given one of its own?"""
        left = list(given)
        for part in wanted:
            exact = next((other for other in left if self.plainly(part, other)), None)
            found = (
                exact
                if exact is not None
                else next((other for other in left if self.equal(part, other, depth + 1)), None)
            )
            if found is None:
                return False
            left.remove(found)
        return True

    def _by_algebra(self, gold: str, answer: str) -> bool:
        self.reason = "math-verify"
        if self.left <= 0:
            raise _Unsettled("timeout")
        if reason := refusal(gold):
            raise _Unsettled(f"gold: {reason}")
        outcome = self.pool.compare(_for_algebra(gold), _for_algebra(answer), self.left)
        self.left -= outcome.seconds
        if outcome.said not in ("equal", "different", "not readable"):
            raise _Unsettled(outcome.said)
        if outcome.said == "not readable":
            self.reason = "not readable"
        return outcome.said == "equal"


# ---- structure ------------------------------------------------------------------------------------------------------

_UNION = re.compile(r"\\cup(?![a-z])|\u222a|\bU\b")
_ELEMENT = re.compile(r"^[a-zA-Z]\s*\\in\s*")
_OR = re.compile(r"\s+or\s+")
_AND_OR = re.compile(r",?\s+(?:and|or)\s+|;")
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])|\u00b1")
_ASSIGNMENT = re.compile(r"[a-zA-Z](?:_\{?\w\}?)?\s*=\s*")
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_BASED = re.compile(r"([0-9A-F]+)_\{?([0-9]{1,2})\}?")
_FUNCTIONS = re.compile(r"sqrt|infty|sin|cos|tan|log|pi\b|theta|alpha|beta")


def split(text: str) -> Parts:
    """The outer structure of an answer in normal form.

    >>> split("(1, 2)"), split(r"\\{3, 4\\}").kind, split("1, 2").kind, split("(x+1)(x+2)").kind
    (Parts(kind='tuple', brackets='()', items=('1', '2')), 'set', 'list', 'one')
    """
    text = _ELEMENT.sub("", text)
    pieces = [piece.strip() for piece in _UNION.split(text)]
    if len(pieces) > 1 and all(pieces):
        return Parts("union", "", tuple(pieces))
    if len(alternatives := _OR.split(text)) > 1 and all(
        re.search(r"[<>]|\\[lg]e(?![a-z])", part) for part in alternatives
    ):
        return Parts("union", "", tuple(part.strip() for part in alternatives))
    if text.startswith("\\{") and text.endswith("\\}"):
        return Parts("set", "{}", _items(text[2:-2]))
    if text[:1] in "([" and text[-1:] in ")]" and len(text) > 2 and _encloses(text):
        items = _items(text[1:-1])
        if len(items) > 1:
            return Parts("tuple", text[0] + text[-1], items)
    plus_minus = _PLUS_MINUS.findall(text)
    if len(plus_minus) == 1 and "," not in text:
        bare = _ASSIGNMENT.sub("", text) if _ASSIGNMENT.match(text) else text
        return Parts("list", "", tuple(_PLUS_MINUS.sub(sign, bare).lstrip("+ ") for sign in ("+", "-")))
    if not _THOUSANDS.fullmatch(text):
        items = tuple(
            part for item in _items(text) for part in (piece.strip() for piece in _AND_OR.split(item)) if part
        )
        if len(items) > 1:
            return Parts(
                "list", "", tuple(_ASSIGNMENT.sub("", item) if _ASSIGNMENT.match(item) else item for item in items)
            )
    return Parts("one", "", (text,))


def _items(text: str) -> tuple[str, ...]:
    """What is between the commas outside of all brackets."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position].strip())
            start = position + 1
    items.append(text[start:].strip())
    return tuple(item for item in items if item)


def _encloses(text: str) -> bool:
    """Does the first bracket close with the last one?"""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position == len(text) - 1
    return False


def _is_text(gold: str) -> bool:
    """Is the gold a word or phrase rather than an expression?"""
    words = re.findall(r"[A-Za-z]+", gold)
    return (
        bool(words)
        and re.fullmatch(r"[A-Za-z\s.'-]+", gold) is not None
        and max(map(len, words)) > 3
        and not _FUNCTIONS.search(gold)
    )


def _name(text: str) -> str:
    return text.partition("=")[0].strip()


def _words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _for_algebra(text: str) -> str:
    return text.replace("%", "\\%")


def _shown(answer: str) -> str:
    return answer[:200]


_default: MathVerifier | None = None
_default_lock = threading.Lock()


def default_verifier() -> MathVerifier:
    """The verifier that this process shares; its workers start with the first answer that needs them."""
    global _default
    with _default_lock:
        if _default is None:
            _default = MathVerifier()
        return _default


def grade_math(reply: str, golds: str | Iterable[str]) -> Verdict:
    """Grade a whole reply with the shared verifier.

    >>> grade_math("<think> 3 + 4 = 7 </think> <answer> 7 eggs </answer>", "7").correct
    True
    """
    return default_verifier().grade(reply, golds)
