"""Is this answer that number, expression, tuple, set or interval?

The kind of the gold answer determines the rule of equality; the rules are in `docs/reference/mathematics.md`. Most answers
are graded here, in this process, by exact numbers and by the values of expressions. Only sums, integrals and
limits go to math-verify, in a worker with a clock and a memory limit.

Nothing here raises or hangs, whatever the reply; `Verdict.reason` states how it was graded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from fedagentgym.base.errors import unknown_name_error
from fedagentgym.envs.verifiers import Verdict, right, wrong
from fedagentgym.envs.verifiers.math_pool import WorkerPool
from fedagentgym.envs.verifiers.math_text import (
    extract_answer,
    normal,
    refusal,
    refusal_of_algebra,
    same_words,
    squeezed,
    unreadable,
    words_of_gold,
)
from fedagentgym.envs.verifiers.mathematics.numbers import gold_number, number, same_number
from fedagentgym.envs.verifiers.mathematics.reading import TooManyParts, read
from fedagentgym.envs.verifiers.mathematics.rules import Rules, contradicts_itself
from fedagentgym.envs.verifiers.mathematics.syntax import NeedsAlgebra
from fedagentgym.envs.verifiers.mathematics.values import TooLarge

RULES = "rules"
LIBRARY = "math-verify"
LIBRARY_ON_REPLY = "math-verify-reply"
VERIFIERS = (RULES, LIBRARY, LIBRARY_ON_REPLY)
LONGEST_REPLY = 100_000
RULES_VERSION = 2


def math_verifier_version(verifier: str = RULES) -> str:
    """Name and version of the verifier, for results: the rules here with the library behind them, or the library alone."""
    try:
        library = f"math-verify-{version('math-verify')}"
    except PackageNotFoundError:
        library = "math-verify"
    if verifier == LIBRARY_ON_REPLY:
        return library.replace(LIBRARY, LIBRARY_ON_REPLY)
    return library if verifier == LIBRARY else f"math/{RULES_VERSION}+{library}"


class _Unsettled(Exception):
    """No verdict is possible (time, memory, shape): the whole comparison counts as wrong."""


class MathVerifier:
    """Grades answers of mathematics with worker processes of its own; `grade_math` uses a shared one. Close it after use.

    Args:
        clock: Seconds that the library may take for one answer.
        memory: Bytes of memory of a worker.
        workers: Number of workers; by default, one for each core.
        verifier: As for `grade_math`.

    Raises:
        UnknownNameError: If there is no such verifier.
    """

    def __init__(
        self, clock: float = 1.0, memory: int = 512 << 20, workers: int | None = None, verifier: str = RULES
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
        comparison, shown = _Comparison(self.pool), answer[:200]
        try:
            if reason := unreadable(answer):
                return wrong(reason, shown)
            if self.verifier != LIBRARY:
                equal = comparison.equal(gold, answer)
            elif _states_a_falsehood(answer):
                return wrong("a false equation", shown)
            else:
                equal = comparison.library(gold, answer)
        except _Unsettled as unsettled:
            return wrong(str(unsettled), shown)
        except NeedsAlgebra:
            return wrong("not readable", shown)
        except TooLarge:
            return wrong("a power too large", shown)
        except TooManyParts:
            return wrong("too many parts", shown)
        except RecursionError:
            return wrong("too deep", shown)
        return right(comparison.reason, shown) if equal else wrong(comparison.reason, shown)

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
        if len(reply) > LONGEST_REPLY:
            return wrong("too long", shown)
        if answer is not None and _states_a_falsehood(answer):
            return wrong("a false equation", shown)
        verdict = wrong("no gold answer", shown)
        for gold in golds:
            said = self.pool.compare(gold, reply, whole=True).said
            if said == "equal":
                return right(LIBRARY_ON_REPLY, (answer or reply)[:200])
            verdict = wrong(LIBRARY_ON_REPLY if said == "different" else said, shown)
        return verdict

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()


class _Comparison:
    """One verdict: records how it was reached and how much time is left for further workers."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool, self.left, self.reason = pool, pool.clock, "equal text"

    def equal(self, gold: str, answer: str) -> bool:
        wanted, given = normal(gold), normal(answer)
        if not wanted or not given:
            self.reason = "empty"
            return False
        if squeezed(wanted) == squeezed(given):
            return True
        # exact numbers are compared at once; a name is left to the rules
        if "=" not in wanted and (exact := gold_number(wanted)) is not None and (plain := number(given)) is not None:
            self.reason = "numbers"
            return same_number(exact, plain)
        if (words := words_of_gold(gold, wanted)) is not None:
            self.reason = "words"
            return same_words(words, given)
        if reason := refusal(given):
            raise _Unsettled(reason)
        if reason := refusal(wanted):
            raise _Unsettled(f"gold: {reason}")
        rules = Rules(self.algebra)
        equal = rules.equal(read(wanted), read(given))
        self.reason = rules.reason
        return equal

    def algebra(self, gold: str, answer: str) -> bool:
        """Compare expressions that need computer algebra: sums, integrals, limits."""
        for text, whose in ((answer, ""), (gold, "gold: ")):
            if reason := refusal_of_algebra(text):
                raise _Unsettled(whose + reason)
        return self.library(gold.replace("%", "\\%"), answer.replace("%", "\\%"))

    def library(self, gold: str, answer: str) -> bool:
        if self.left <= 0:
            raise _Unsettled("timeout")
        self.reason = LIBRARY
        outcome = self.pool.compare(gold, answer, self.left)
        self.left -= outcome.seconds
        if outcome.said not in ("equal", "different"):
            raise _Unsettled(outcome.said)
        return outcome.said == "equal"


def _states_a_falsehood(answer: str) -> bool:
    """Return whether an answer such as `7 = 42` contradicts itself; the library would take its last side."""
    text = normal(answer)
    if "=" not in text or unreadable(answer) or refusal(text):
        return False
    try:
        return contradicts_itself(text)
    except (NeedsAlgebra, TooLarge, RecursionError):
        return False


_shared: dict[str, MathVerifier] = {}
_shared_lock = threading.Lock()


def default_verifier(verifier: str = RULES) -> MathVerifier:
    """The verifier that this process shares; its workers start with the first answer that needs them."""
    with _shared_lock:
        if verifier not in _shared:
            _shared[verifier] = MathVerifier(verifier=verifier)
        return _shared[verifier]


def grade_math(reply: str, golds: str | Iterable[str], verifier: str = RULES) -> Verdict:
    """Grade a reply to a problem of mathematics: is its answer that number, expression, tuple, set or interval?

    Args:
        reply: The whole reply; the last answer block or box in it counts.
        golds: The right answer, or several of which one suffices.
        verifier: `rules` of this package; `math-verify`, that library on the answer; `math-verify-reply`, the library on the
            whole reply, as published training code uses it.

    Returns:
        The verdict. No reply raises or hangs.

    Raises:
        UnknownNameError: If there is no such verifier.

    Examples:
        >>> grade_math("<think> 3 + 4 = 7 </think> <answer> 7 eggs </answer>", "7").correct
        True
    """
    return default_verifier(verifier).grade(reply, golds)
