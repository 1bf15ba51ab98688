"""The reward of a purchase: how far the bought product and the chosen options meet the goal, times whether it is of the
wanted kind.

    reward = r_type * (matched attributes + matched options + [price within the cap]) / (attributes + options + 1)

Everything is computed in the original's order, quirks included: options are reduced to the first colour name they contain;
where a goal names its options, each is compared as a (name, value) pair, whose name then counts as one more word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from fedagentgym.envs.webshop.catalogue import Product
from fedagentgym.envs.webshop.fuzzy import exceeds
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.lists import split_list
from fedagentgym.envs.webshop.nouns import NounFunction

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
    """Whether two products are of one kind: same search category, two common shop categories, similar titles."""

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
    """A title without any common noun makes the purchase worthless, even of the right category."""
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
    """How many wanted attributes the product lists, or has literally in its title, bullet points or description."""
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
    """How many wanted options some chosen value meets."""
    values = [normalize_color(value) for value in chosen]
    goals = (
        [_reduce_pair(*pair) for pair in wanted.items()]
        if isinstance(wanted, Mapping)
        else map(normalize_color, wanted)
    )
    return sum(any(exceeds(value, goal, MATCH_THRESHOLD) for value in values) for goal in goals)


@lru_cache(maxsize=1 << 14)
def normalize_color(text: str) -> str:
    """The first colour name, in alphabetical order, that a text contains; else the text.

    >>> normalize_color("navy blue"), normalize_color("powdered"), normalize_color("xl")
    ('blue', 'red', 'xl')
    """
    return next((color for color in COLORS if color in text), text)


def _reduce_pair(name: str, value: str) -> str:
    """A named option as the original compares it: a colour only if name or value is exactly one, else the printed pair."""
    return next((color for color in COLORS if color in (name, value)), str((name, value)))
