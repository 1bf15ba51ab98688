"""Near-copies of target products that fail exactly one term of the reward (or two, for `price+color`).

A copy has its original's texts, attributes and options, so that it is of the wanted kind and meets every other wish. What is
attacked is changed so that no way of buying the copy can meet it: the price stands above every cap that the client's goals
set for the product, or the colours (sizes) are replaced by others that match none of the wanted ones. The goals' words are put
into the title, which search reads, so that copies rank high. Every copy is checked with the reward
itself; a product for which no such copy exists gets none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.webshop.catalogue import Product
from fedagentgym.envs.webshop.goals import NO_CAP, Goal
from fedagentgym.envs.webshop.lexicon import COLORS, SIZES
from fedagentgym.envs.webshop.nouns import NounFunction
from fedagentgym.envs.webshop.reward import compute_purchase_reward, count_matched_options
from fedagentgym.envs.webshop.stock import ShopData

PREFIX = "LK"
PRICE_FACTOR = 1.25


def make_lookalikes(
    stock: ShopData, goals: Sequence[Goal], attack: str, seed: int, nouns: NounFunction
) -> list[Product]:
    """One copy for each target of the goals that can be attacked, in the order of first appearance."""
    by_target: dict[int, list[Goal]] = {}
    for goal in goals:
        if goal.known:
            by_target.setdefault(goal.row, []).append(goal)
    copies: list[Product] = []
    for row, own in by_target.items():
        original, price = stock.catalogue.product(row), float(stock.goals.prices[row])
        source = stream(seed, "lookalikes", attack, original.asin)
        copy = _copy(original, price, own, attack.split("+"), source)
        if copy is not None and all(fails_exactly(copy, goal, attack.split("+"), nouns) for goal in own):
            copies.append(copy)
    return copies


def _copy(
    original: Product, price: float, goals: Sequence[Goal], attacks: Sequence[str], source: Stream
) -> Product | None:
    copy = original._replace(asin=PREFIX + original.asin, prices=(price,), price_tag=f"${round(price, 2)}")
    for attack in attacks:
        attacked = (
            _raise_price(copy, goals) if attack == "price" else _replace_option_values(copy, goals, attack, source)
        )
        if attacked is None:
            return None
        copy = attacked
    return copy._replace(title=f"{copy.title}, {_join_goal_words(goals)}")


def _join_goal_words(goals: Sequence[Goal]) -> str:
    """The goals' own words, for the title: search reads them there, and they earn no reward."""
    values = [
        value
        for goal in goals
        for value in (goal.options.values() if isinstance(goal.options, Mapping) else goal.options)
    ]
    wishes = [goals[0].query, *(attribute for goal in goals for attribute in goal.attributes), *values]
    return ", ".join(dict.fromkeys(wish.title() for wish in wishes))


def _raise_price(copy: Product, goals: Sequence[Goal]) -> Product | None:
    """A price above every cap. Goals without a cap cannot be failed on price."""
    highest = max(goal.price_upper for goal in goals)
    if highest >= NO_CAP:
        return None
    price = round(max(highest * PRICE_FACTOR, copy.prices[0]), 2)
    return copy._replace(prices=(price,), price_tag=f"${price}")


def _replace_option_values(copy: Product, goals: Sequence[Goal], name: str, source: Stream) -> Product | None:
    """Other values for an option that every goal names; the wanted ones move into the title."""
    options = dict(copy.options)
    wanted = [value for goal in goals if (value := _get_wanted_value(goal, name)) is not None]
    if name not in options or len(wanted) < len(goals):
        return None
    pool = list(COLORS) if name == "color" else sorted({size for scale in SIZES.values() for size in scale})
    count = max(len(set(options[name])), 2)
    fresh = [value for value in source.shuffled(pool) if not _matches_any_goal(value, goals, name)][:count]
    if not fresh:
        return None
    return copy._replace(options={**options, name: tuple(fresh)})


def _get_wanted_value(goal: Goal, name: str) -> str | None:
    return goal.options.get(name) if isinstance(goal.options, Mapping) else None


def _matches_any_goal(value: str, goals: Iterable[Goal], name: str) -> bool:
    return any(
        count_matched_options([value], {name: wanted})
        for goal in goals
        if (wanted := _get_wanted_value(goal, name)) is not None
    )


def fails_exactly(copy: Product, goal: Goal, attacks: Sequence[str], nouns: NounFunction) -> bool:
    """Whether the best purchase of the copy meets everything the goal wants except the attacked part, which it never meets."""
    lost = [attack for attack in attacks if attack != "price"]
    values = [value for offered in copy.options.values() for value in offered]
    if any(_matches_any_goal(value, [goal], name) for name in lost for value in values):
        return False
    bought = compute_purchase_reward(copy, copy.prices[0], choose_best_options(copy, goal), goal, nouns)
    return (
        bought.kind.r_type == 1.0
        and bought.attributes == len(goal.attributes)
        and bought.price == ("price" not in attacks)
        and bought.options == len(goal.options) - len(lost)
    )


def choose_best_options(product: Product, goal: Goal) -> dict[str, str]:
    """For each option the value that meets most of the goal's wishes. Wishes are met by values one by one, so choosing the
    best value of each option is the best choice."""
    chosen: dict[str, str] = {}
    for name, values in product.options.items():
        if values:
            chosen[name] = max(values, key=lambda value: _score_choice(value, name, chosen, goal))
    return chosen


def _score_choice(value: str, name: str, chosen: Mapping[str, str], goal: Goal) -> tuple[int, bool]:
    exact = isinstance(goal.options, Mapping) and goal.options.get(name) == value
    return count_matched_options([*chosen.values(), value], goal.options), exact
