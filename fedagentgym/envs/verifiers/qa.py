"""Comparison of texts: exact match and F1 after SQuAD's normalisation, and multiple choice."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

from fedagentgym.envs.verifiers import Verdict, wrong
from fedagentgym.envs.verifiers.formats import extract_answer
from fedagentgym.envs.verifiers.math_exact import normalize

QA_VERIFIER_VERSION = "qa/1"
MAX_ANSWER_LENGTH = 4_000
CLOSED = frozenset({"yes", "no", "noanswer"})
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LETTER = re.compile(r"\(([A-Za-z])\)|([A-Za-z])(?:[.):,]|\Z)")
_SHORT = frozenset(
    (
        "yes",
        "no",
        "odd",
        "even",
        "true",
        "false",
        "none",
        "red",
        "blue",
        "man",
        "men",
        "boy",
        "cat",
        "dog",
        "sun",
        "mon",
        "tue",
        "wed",
        "thu",
        "fri",
        "sat",
    )
)
_NOT_WORDS = re.compile(
    r"sqrt|infty|sin|cos|tan|log|pi\b|theta|alpha|beta|infinity|solution|\b(?:empty|null) set|\breals?\b"
)
_CHOSEN = re.compile(
    r"\(([A-H])\)(?: .*)?|([A-H])(?:[.):]+(?: .*)?)?|(?:choice|option) ?\(?([A-H])\)?", re.I | re.DOTALL
)
_SAYS_LETTER = re.compile(r"(?:answer|option|choice)(?:\s++is)?\s*+:?\s*+\(?([A-Z])\)?(?![A-Za-z])", re.IGNORECASE)


def normalise(text: str) -> str:
    """A text in lower case, without punctuation, articles and superfluous blanks.

    >>> normalise("The  Beatles' first L.P.")
    'beatles first lp'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> bool:
    return normalise(answer) == normalise(gold)


def f1(answer: str, gold: str) -> float:
    """F1 of the two bags of words. As in HotpotQA, an answer or a gold of `yes`, `no` or `noanswer` gets no partial credit."""
    given, wanted = normalise(answer), normalise(gold)
    if given != wanted and (given in CLOSED or wanted in CLOSED):
        return 0.0
    given_words, wanted_words = given.split(), wanted.split()
    if not given_words or not wanted_words:
        return float(given_words == wanted_words)
    common = sum((Counter(given_words) & Counter(wanted_words)).values())
    return 2 * common / (len(given_words) + len(wanted_words))


def verify_qa(answer: str, golds: str | Iterable[str]) -> Verdict:
    """`correct` is an exact match with one of the golds, `score` the best F1."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return wrong("too long", answer[:200])
    candidates = [golds] if isinstance(golds, str) else list(golds)
    candidates = [gold for gold in candidates if normalise(gold)]
    if not candidates:
        return wrong("no gold answer", answer[:200])
    matched = any(exact_match(answer, gold) for gold in candidates)
    return Verdict(
        matched, max(f1(answer, gold) for gold in candidates), answer[:200], "exact" if matched else "overlap"
    )


def grade_qa(reply: str, golds: str | Iterable[str]) -> Verdict:
    """Grade a reply to a question by its words, after SQuAD's normalisation.

    Args:
        reply: The whole reply; the last answer block or box in it counts.
        golds: The right answer, or several of which one suffices.

    Returns:
        The verdict: `correct` is an exact match, `score` the best F1.

    Examples:
        >>> grade_qa("<answer>the Eiffel Tower</answer>", ["Eiffel Tower", "La tour Eiffel"]).correct
        True
    """
    answer = extract_answer(reply)
    return wrong("no answer") if answer is None or not answer.strip() else verify_qa(answer, golds)


def chosen_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option that an answer names by its letter, by its letter and text, or by a text that no other has."""
    text = normalize(answer[:MAX_ANSWER_LENGTH])
    same = [letter for letter, option in options.items() if exact_match(text, option)]
    same = same or [letter for letter, option in options.items() if exact_match(text, f"{letter} {option}")]
    if len(same) == 1:
        return same[0]
    found = _LETTER.match(text) or _SAYS_LETTER.search(text)
    letter = next(group for group in found.groups() if group).upper() if found else None
    return letter if letter in options else None


def grade_choice(reply: str, gold: str, options: Mapping[str, str]) -> Verdict:
    """Grade a reply to a multiple-choice question.

    Args:
        reply: The whole reply; the last answer block or box in it counts.
        gold: Letter of the right option.
        options: The text of each option by its letter. An answer may give either.

    Returns:
        The verdict.

    Examples:
        >>> grade_choice("<answer>(B) aspirin</answer>", "B", {"A": "opium", "B": "aspirin"}).correct
        True
    """
    answer = extract_answer(reply)
    if answer is None or not answer.strip():
        return wrong("no answer")
    letter = chosen_letter(answer, options)
    correct = letter is not None and letter == gold
    return Verdict(correct, float(correct), answer[:200], f"chose {letter}" if letter else "no option")


def find_words(gold: str) -> tuple[str, ...] | None:
    """The words of a gold in normal form, if it is a word, a phrase or the letter of a choice; None if it is mathematics.

    >>> find_words("Evelyn"), find_words("xy"), find_words("(C)")
    (('evelyn',), None, ('C',))
    """
    if re.fullmatch(r"[A-H]|\([A-H]\)", gold):
        return (gold.strip("()"),)
    parts = re.findall("[A-Za-z]+", gold)
    if not parts or not re.fullmatch(r"[A-Za-z .'-]+", gold) or _NOT_WORDS.search(gold.lower()):
        return None
    is_phrase = any(len(part) > 3 or part.lower() in _SHORT for part in parts)
    return _list_words(gold) if is_phrase or all(len(part) > 1 and part.istitle() for part in parts) else None


def _list_words(text: str) -> tuple[str, ...]:
    found = re.findall(r"[^\W_]+", text.lower())
    return tuple(word for word in found if word not in ("a", "an", "the")) or tuple(found)


def same_words(gold: tuple[str, ...], answer: str) -> bool:
    """True if the answer has the same words, perhaps after "the answer is"; the letter of a choice may precede its text."""
    bare = re.sub(
        r"(?i)(?:so,? |thus,? |hence,? )?(?:the |my )?(?:final |correct )?(?:answer|result|it)\b ?(?:is|=|:)+ ?",
        "",
        answer,
    )
    if len(gold[0]) == 1 and gold[0].isupper():
        found = _CHOSEN.fullmatch(bare.strip())
        return found is not None and next(letter for letter in found.groups() if letter).upper() == gold[0]
    return gold in (_list_words(answer), _list_words(bare))
