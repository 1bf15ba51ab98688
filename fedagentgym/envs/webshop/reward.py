"""The reward of a purchase: how far the bought product and the chosen options meet the goal, times whether it is of the
wanted kind.

    reward = r_type * (matched attributes + matched options + [price within the cap]) / (attributes + options + 1)

Everything is computed in the original's order, quirks included: options are reduced to the first colour name they
contain; where a goal names its options, each is compared as a (name, value) pair, whose name then counts as one more
word.

Texts are compared as sets of words, by the token-set ratio of the library version that the original pins, which is based on
`difflib`. Later versions of the library give other numbers for a quarter of all pairs. The order of the arguments matters,
since `difflib` is not symmetric.

The nouns of two titles distinguish kinds of product. The original finds them with a statistical tagger, which is too heavy
a dependency for one test. Here the function can be chosen: `nouns="rule"` (default) is the small rule below,
`nouns="spacy"` uses a spaCy model if one is installed, and any function from a title to its nouns can be given. The choice
never affects the reward for buying the target itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

from fedagentgym.base.errors import MissingExtraError, OptionError
from fedagentgym.envs.webshop.analysis import split_list
from fedagentgym.envs.webshop.catalogue import Product
from fedagentgym.envs.webshop.goals import Goal

_NOT_WORD = re.compile(r"[^a-zA-Z0-9_]")


@lru_cache(maxsize=1 << 16)
def token_set_ratio(first: str, second: str) -> int:
    """The likeness of two texts, from 0 to 100; it is 100 if one text has all words of the other.

    >>> token_set_ratio("navy blue", "blue"), token_set_ratio("small", "medium")
    (100, 18)
    """
    if not _normalize(first) or not _normalize(second):
        return 0
    mine, theirs = set(_normalize(first).split()), set(_normalize(second).split())
    common = " ".join(sorted(mine & theirs))
    with_mine = f"{common} {' '.join(sorted(mine - theirs))}".strip()
    with_theirs = f"{common} {' '.join(sorted(theirs - mine))}".strip()
    return max(_ratio(common, with_mine), _ratio(common, with_theirs), _ratio(with_mine, with_theirs))


@lru_cache(maxsize=1 << 16)
def exceeds(first: str, second: str, threshold: int) -> bool:
    """Return whether the ratio is above a threshold; most pairs are refused by their lengths and letters alone.

    >>> exceeds("navy blue", "blue", 85), exceeds("small", "x-large", 85)
    (True, False)
    """
    mine, theirs = set(_normalize(first).split()), set(_normalize(second).split())
    if not mine or not theirs:
        return False
    if (mine <= theirs or theirs <= mine) and threshold < 100:
        return True
    common = " ".join(sorted(mine & theirs))
    with_mine = f"{common} {' '.join(sorted(mine - theirs))}".strip()
    with_theirs = f"{common} {' '.join(sorted(theirs - mine))}".strip()
    pairs = ((common, with_mine), (common, with_theirs), (with_mine, with_theirs))
    for one, other in pairs:
        # A bound of the ratio: all letters that both hold could match, in whatever order.
        shared = sum((Counter(one) & Counter(other)).values())
        bound = round(100 * (2.0 * shared / (len(one) + len(other)))) if one and other else 0
        if bound > threshold and _ratio(one, other) > threshold:
            return True
    return False


@lru_cache(maxsize=1 << 14)
def _normalize(text: str) -> str:
    ascii_only = text.encode("ascii", "ignore").decode("ascii")
    return _NOT_WORD.sub(" ", ascii_only).lower().strip()


def _ratio(first: str, second: str) -> int:
    if not first or not second:
        return 0
    return round(100 * SequenceMatcher(None, first, second).ratio())


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
    in shop titles, this is closer to taggers than a short list of adjectives would be (docs/reference/environments/webshop.md).

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
    name = next((name for name in SPACY_MODELS if spacy.util.is_package(name)), None)
    if name is None:
        raise MissingExtraError(
            f'nouns="spacy" needs an English model: run `python -m spacy download {SPACY_MODELS[-1]}`, or use nouns="rule"'
        )
    model = spacy.load(name, disable=["parser", "ner"])

    @lru_cache(maxsize=1 << 14)
    def extract_nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN"))

    return extract_nouns


MATCH_THRESHOLD = 85
COLORS = split_list(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal "
    "dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory "
    "ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom "
    "mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire "
    "seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white "
    "wine yellow"
)


class KindMatch(NamedTuple):
    """The likeness of the kinds of two products: the factor `r_type`, from search category, shop categories and titles."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float


class PurchaseReward(NamedTuple):
    """A purchase's reward and its parts."""

    total: float
    kind: KindMatch
    attributes: int
    options: int
    price: bool
    wanted_attributes: int
    wanted_options: int

    def details(self) -> dict[str, float | bool]:
        """The original's verbose record: components and their weights."""
        count = self.wanted_attributes + self.wanted_options + 1
        record: dict[str, float | bool] = {
            "r_type": self.kind.r_type,
            "r_att": self.attributes / self.wanted_attributes,
            "w_att": self.wanted_attributes / count,
            "query_match": self.kind.query_match,
            "category_match": self.kind.category_match,
            "title_score": self.kind.title_score,
        }
        if self.wanted_options:
            record |= {"r_option": self.options / self.wanted_options, "w_option": self.wanted_options / count}
        return record | {"r_price": self.price, "w_price": 1 / count}


def compute_purchase_reward(
    product: Product, price: float, chosen: Mapping[str, str], goal: Goal, nouns: NounFunction
) -> PurchaseReward:
    """The reward of buying `product` with the options `chosen` for the goal `goal`."""
    kind = match_kind(product, goal, nouns)
    attributes, options = (
        count_matched_attributes(product, goal.attributes),
        count_matched_options(chosen.values(), goal.options),
    )
    cheap = price <= goal.price_upper
    total = (attributes + options + cheap) / (len(goal.attributes) + len(goal.options) + 1) * kind.r_type
    return PurchaseReward(total, kind, attributes, options, cheap, len(goal.attributes), len(goal.options))


def match_kind(product: Product, goal: Goal, nouns: NounFunction) -> KindMatch:
    """Compare the kinds of product and goal. Without a common noun in the titles even the right category earns nothing."""
    query_match = product.query == goal.query
    shared = _split_path(product.product_category) & _split_path(goal.product_category)
    category_match = len(shared) >= 2
    wanted = nouns(goal.name)
    title_score = len(set(nouns(product.title)) & set(wanted)) / len(wanted) if wanted else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return KindMatch(r_type, query_match, category_match, title_score)


def _split_path(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("›")}


def count_matched_attributes(product: Product, wanted: Iterable[str]) -> int:
    """Return how many wanted attributes the product lists, or has literally in its title, bullet points or description."""
    texts: tuple[str, ...] | None = None
    count = 0
    for attribute in wanted:
        if any(exceeds(listed, attribute, MATCH_THRESHOLD) for listed in product.attributes):
            count += 1
            continue
        if texts is None:
            texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
        count += any(attribute in text for text in texts)
    return count


def count_matched_options(chosen: Iterable[str], wanted: Mapping[str, str] | Iterable[str]) -> int:
    """Return how many of the wanted options a chosen value meets."""
    values = [normalize_color(value) for value in chosen]
    if isinstance(wanted, Mapping):
        # A named option as the original compares it: a colour only if name or value is exactly one, else the printed pair.
        goals = [next((color for color in COLORS if color in pair), str(pair)) for pair in wanted.items()]
    else:
        goals = [normalize_color(value) for value in wanted]
    return sum(any(exceeds(value, goal, MATCH_THRESHOLD) for value in values) for goal in goals)


@lru_cache(maxsize=1 << 14)
def normalize_color(text: str) -> str:
    """The first colour name, in alphabetical order, that a text contains; else the text.

    >>> normalize_color("navy blue"), normalize_color("powdered"), normalize_color("xl")
    ('blue', 'red', 'xl')
    """
    return next((color for color in COLORS if color in text), text)
