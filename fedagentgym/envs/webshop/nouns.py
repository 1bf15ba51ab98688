"""Which words of a product's title are nouns. The reward compares the nouns of two titles to tell kinds of product apart.

The original asks a statistical tagger that is too heavy a dependency for one test, so the function can be chosen:
`nouns="rule"` (default) is the small rule below, `nouns="spacy"` uses a spaCy model if one is installed, and any function
from a title to its nouns is taken as it is. Buying the target itself is never affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fedagentgym.base.errors import MissingExtraError, OptionError
from fedagentgym.envs.webshop.lists import split_list

NounFunction = Callable[[str], tuple[str, ...]]
SPACY_MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")
_WORD = re.compile(r"[^\W\d_]+")
_FUNCTION_WORDS = frozenset(
    split_list(
        "a about above across after all along also although among an and any are around as at be because before behind below "
        "beside between both but by can could do does down during each either every few for from had has have he her here his "
        "how i if in inside into is it its just like may me might more most much my near no nor not of off on once one only or "
        "other our out outside over own per she should since so some such than that the their them then there these they this "
        "those through to too under until up upon us very was we were what when where which while who will with within without "
        "would you your s t"
    )
)


@lru_cache(maxsize=1 << 14)
def extract_nouns_by_rule(title: str) -> tuple[str, ...]:
    """Words of two letters or more that are not function words, lower-case, with repetitions. Adjectives count as nouns:
    in shop titles that is nearer to what taggers say than any short list of them (docs/environments/webshop.md has the numbers).

    >>> extract_nouns_by_rule("Rusticware 921ORB Kitchen and Bath Cabinet Knob")
    ('rusticware', 'orb', 'kitchen', 'bath', 'cabinet', 'knob')
    """
    return tuple(word for word in _WORD.findall(title.lower()) if len(word) > 1 and word not in _FUNCTION_WORDS)


def get_noun_function(choice: str | NounFunction) -> NounFunction:
    """The function that an option names."""
    if callable(choice):
        return choice
    if choice == "rule":
        return extract_nouns_by_rule
    if choice == "spacy":
        return _load_spacy_nouns()
    raise OptionError(f'nouns is "rule", "spacy" or a function from a title to its nouns, got {choice!r}')


@lru_cache(maxsize=1)
def _load_spacy_nouns() -> NounFunction:
    try:
        import spacy
    except ImportError:
        raise MissingExtraError(
            'nouns="spacy" needs spaCy and one of its English models; nouns="rule" needs neither'
        ) from None
    for name in SPACY_MODELS:
        if spacy.util.is_package(name):
            return _make_noun_function(spacy.load(name, disable=["parser", "ner"]))
    raise MissingExtraError(
        f'nouns="spacy" needs an English model: run `python -m spacy download {SPACY_MODELS[-1]}`, or use nouns="rule"'
    )


def _make_noun_function(model: Any) -> NounFunction:
    @lru_cache(maxsize=1 << 14)
    def extract_nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN"))

    return extract_nouns
