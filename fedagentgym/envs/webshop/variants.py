"""The variants of WebShop: how one client's shop can differ from the others', and the shop of each variant.

`catalog_split` (content) keeps the client's own targets and a share of all other products. `index_fields` (encoding)
changes which texts are searched, and `bm25_weights` (matching) how they are weighed. `lookalikes` (content and matching)
adds near-copies of the targets that fail one term of the reward. `rank_wrapper` (rendering) shows the fifty results in
another order. Goals, prices and pages stay as they are. If a plugin's variant makes a shop of its own, its client's variant
is derived from `ShopVariant`.

A lookalike fails exactly one term of the reward (or two, for `price+color`). It has its original's texts, attributes
and options, so that it is of the wanted kind and meets every other wish. The attacked term is changed so that no
purchase of the copy can meet it: the price is above every cap that the client's goals set for the product, or the
colours (sizes) are replaced by others that match none of the wanted ones. The goals' words are put into the title,
which search reads, so that copies rank high. Every copy is checked with the reward itself; a product for which no such
copy exists gets none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.streams import Stream, derive, on_grid, stream
from fedagentgym.envs.variants import ChosenVariant, ClientVariant, Variant
from fedagentgym.envs.webshop.catalogue import Product
from fedagentgym.envs.webshop.generate import COLORS, SIZES
from fedagentgym.envs.webshop.goals import NO_CAP, Goal
from fedagentgym.envs.webshop.index import (
    FIELDS,
    build_text_index,
    check_fields,
    hash_term,
    make_document,
)
from fedagentgym.envs.webshop.reward import NounFunction, compute_purchase_reward, count_matched_options
from fedagentgym.envs.webshop.search import Rerank, Searcher, Segment, Shop
from fedagentgym.envs.webshop.stock import ShopData, get_index

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
    """The lookalike of a product, or None if an attack is not possible."""
    copy = original._replace(asin=PREFIX + original.asin, prices=(price,), price_tag=f"${round(price, 2)}")
    for attack in attacks:
        if attack == "price":
            # A price above every cap. Goals without a cap cannot be failed on price.
            highest = max(goal.price_upper for goal in goals)
            if highest >= NO_CAP:
                return None
            above = round(max(highest * PRICE_FACTOR, copy.prices[0]), 2)
            copy = copy._replace(prices=(above,), price_tag=f"${above}")
        else:
            options = _replace_option_values(copy, goals, attack, source)
            if options is None:
                return None
            copy = copy._replace(options=options)
    # The goals' own words go into the title: search reads them there, and they earn no reward.
    wishes = [goals[0].query, *(attribute for goal in goals for attribute in goal.attributes)]
    for goal in goals:
        wishes += goal.options.values() if isinstance(goal.options, Mapping) else goal.options
    return copy._replace(title=f"{copy.title}, {', '.join(dict.fromkeys(wish.title() for wish in wishes))}")


def _replace_option_values(
    product: Product, goals: Sequence[Goal], name: str, source: Stream
) -> dict[str, tuple[str, ...]] | None:
    """A product's options with other values for the named one; None if a goal does not name it, or no other value is left."""
    if name not in product.options or any(_get_wanted_value(goal, name) is None for goal in goals):
        return None
    pool = list(COLORS) if name == "color" else sorted({size for scale in SIZES.values() for size in scale})
    count = max(len(set(product.options[name])), 2)
    fresh = [value for value in source.shuffled(pool) if not _matches_any_goal(value, goals, name)][:count]
    return {**product.options, name: tuple(fresh)} if fresh else None


def _get_wanted_value(goal: Goal, name: str) -> str | None:
    return goal.options.get(name) if isinstance(goal.options, Mapping) else None


def _matches_any_goal(value: str, goals: Iterable[Goal], name: str) -> bool:
    return any(
        count_matched_options([value], {name: wanted})
        for goal in goals
        if (wanted := _get_wanted_value(goal, name)) is not None
    )


def fails_exactly(copy: Product, goal: Goal, attacks: Sequence[str], nouns: NounFunction) -> bool:
    """Return whether the best purchase of the copy meets all of the goal except the attacked part, which it never meets."""
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
    exact = goal.options if isinstance(goal.options, Mapping) else {}
    chosen: dict[str, str] = {}
    for name, values in product.options.items():
        if values:
            scores = [
                (count_matched_options([*chosen.values(), value], goal.options), exact.get(name) == value)
                for value in values
            ]
            chosen[name] = values[scores.index(max(scores))]
    return chosen


ALL_FIELDS_K1, ALL_FIELDS_B = 1.2, 0.75


class ShopVariant(ClientVariant):
    """A client's variant that is a shop of its own."""

    @abstractmethod
    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        """The shop over this stock; `goals` are the client's own, for variants that depend on them."""


def make_unchanged_shop(stock: ShopData) -> Shop:
    """The shop of clients without a variant, or with one that makes no shop of its own."""
    return Shop(stock.catalogue, stock.goals.prices, Searcher([Segment(get_index(stock))]))


# ---- content ----------------------------------------------------------------------------------------------------


class OwnCatalogue(ShopVariant):
    """The client's targets, and each other product with probability `keep_ratio`."""

    env_div: float = Field(ge=0, le=1, description="0: all clients keep the same products; 1: each draws its own")
    keep_ratio: float = Field(ge=0, le=1, description="share of the other products that the client keeps")
    seed: int = Field(ge=0)
    client: int = Field(ge=0)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        allowed = keep_products(len(stock.catalogue), {goal.row for goal in goals if goal.known}, self)
        index = get_index(stock)
        searcher = Searcher([Segment(index, allowed=allowed[index.rows])])
        return Shop(stock.catalogue, stock.goals.prices, searcher, allowed=allowed)


class CatalogSplit(Variant):
    """Content: the client's own targets and its own part of all other products."""

    kind = "catalog_split"
    client_variant = OwnCatalogue

    env_div: float = Field(default=0.7, ge=0, le=1, description="0: all see the same distractors, 1: independent ones")
    keep_ratio: float = Field(default=0.7, gt=0, le=1, description="share of the other products that a client keeps")

    def draw(self, seed: int, client: int) -> OwnCatalogue:
        shared = derive(seed, "world", self.kind)
        return OwnCatalogue(env_div=self.env_div, keep_ratio=self.keep_ratio, seed=shared, client=client)


def keep_products(products: int, targets: Iterable[int], variant: OwnCatalogue) -> NDArray[np.bool_]:
    """A mask of the products that a client sees. A random number decides whether a distractor is kept; all clients share it or,
    with probability `env_div`, the client draws its own."""
    shared = _draw_units(stream(variant.seed, "catalog_split", "shared"), products)
    source = stream(variant.seed, "catalog_split", "client", variant.client)
    own, alone = _draw_units(source, products), _draw_units(source, products) < on_grid(variant.env_div)
    kept: NDArray[np.bool_] = np.where(alone, own, shared) < on_grid(variant.keep_ratio)
    kept[list(targets)] = True
    return kept


def _draw_units(source: Stream, count: int) -> NDArray[np.int64]:
    """Uniform numbers in units of 2**-40."""
    return (source.raw(count) >> np.uint64(24)).astype(np.int64)


# ---- encoding and matching --------------------------------------------------------------------------------------


class SearchedFields(ShopVariant):
    """The texts of a product that are searched."""

    fields: tuple[Literal["name", "description", "bullets", "features"], ...] = Field(min_length=1)
    k1: float = Field(default=ALL_FIELDS_K1, gt=0)
    b: float = Field(default=ALL_FIELDS_B, ge=0, le=1)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        searcher = Searcher([Segment(get_index(stock, check_fields(self.fields)))], self.k1, self.b)
        return Shop(stock.catalogue, stock.goals.prices, searcher)


class IndexFields(ChosenVariant):
    """Encoding: which product fields the search covers."""

    kind = "index_fields"
    client_variant = SearchedFields
    possibilities = (
        SearchedFields(fields=("name", "description", "bullets", "features")),
        SearchedFields(fields=("name",)),
        SearchedFields(fields=("description",)),
        SearchedFields(fields=("bullets",)),
        SearchedFields(fields=("features",)),
        SearchedFields(fields=("name", "bullets")),
        SearchedFields(fields=("description", "features")),
        SearchedFields(fields=("description", "bullets", "features")),
    )


class SearchWeights(ShopVariant):
    """All texts of a product are searched, weighed by other constants."""

    k1: float = Field(gt=0)
    b: float = Field(ge=0, le=1)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        searcher = Searcher([Segment(get_index(stock, FIELDS))], self.k1, self.b)
        return Shop(stock.catalogue, stock.goals.prices, searcher)


class Bm25Weights(ChosenVariant):
    """Matching: how the search weighs repetition (k1) and length (b)."""

    kind = "bm25_weights"
    client_variant = SearchWeights
    possibilities = (
        SearchWeights(k1=1.2, b=0.75),
        SearchWeights(k1=1.2, b=0.0),
        SearchWeights(k1=0.3, b=0.75),
        SearchWeights(k1=5.0, b=0.75),
        SearchWeights(k1=0.1, b=0.75),
        SearchWeights(k1=1.2, b=1.0),
        SearchWeights(k1=2.0, b=0.5),
        SearchWeights(k1=0.3, b=0.0),
    )


# ---- content and matching ---------------------------------------------------------------------------------------


class AddedLookalikes(ShopVariant):
    """Near-copies of the client's targets that fail one term of the reward."""

    attack: Literal["price", "color", "size", "price+color"]
    seed: int = Field(default=0, ge=0)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        extra = make_lookalikes(stock, list(goals), self.attack, self.seed, nouns)
        first = len(stock.catalogue)
        segments: list[Segment] = [Segment(get_index(stock))]
        if extra:
            order = sorted(range(len(extra)), key=lambda place: extra[place].asin)
            texts = (make_document(extra[place]) for place in order)
            segments.append(Segment(build_text_index(texts, np.array(order, dtype=np.int32)), first))
        heads = stock.catalogue.head

        def asin(row: int) -> str:
            return heads(row).asin if row < first else extra[row - first].asin

        return Shop(stock.catalogue, stock.goals.prices, Searcher(segments, asin=asin), extra=extra)


class Lookalikes(ChosenVariant):
    """Content and matching: near-copies of targets that rank high and miss one term of the reward."""

    kind = "lookalikes"
    client_variant = AddedLookalikes
    possibilities = (
        AddedLookalikes(attack="price"),
        AddedLookalikes(attack="color"),
        AddedLookalikes(attack="size"),
        AddedLookalikes(attack="price+color"),
    )

    def draw(self, seed: int, client: int) -> ClientVariant:
        return super().draw(seed, client).model_copy(update={"seed": derive(seed, "world", self.kind)})


# ---- rendering --------------------------------------------------------------------------------------------------


class ResultOrder(ShopVariant):
    """The results of a search in another order, fixed for a query."""

    mode: Literal["as_ranked", "shuffle", "reverse", "random_half"]
    seed: int = Field(default=0, ge=0)
    client: int = Field(default=0, ge=0)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        searcher = Searcher([Segment(get_index(stock))])
        return Shop(stock.catalogue, stock.goals.prices, searcher, rerank=choose_order(self))


class RankWrapper(ChosenVariant):
    """Rendering: in which order results are shown."""

    kind = "rank_wrapper"
    client_variant = ResultOrder
    possibilities = (
        ResultOrder(mode="as_ranked"),
        ResultOrder(mode="shuffle"),
        ResultOrder(mode="reverse"),
        ResultOrder(mode="random_half"),
    )

    def draw(self, seed: int, client: int) -> ClientVariant:
        shared = derive(seed, "world", self.kind)
        return super().draw(seed, client).model_copy(update={"seed": shared, "client": client})


def choose_order(variant: ResultOrder) -> Rerank | None:
    """The order in which results are shown: a function of query and rows."""
    if variant.mode == "as_ranked":
        return None
    if variant.mode == "reverse":
        return lambda query, rows: rows[::-1]

    def shuffle(query: str, rows: list[int]) -> list[int]:
        source = stream(variant.seed, "rank_wrapper", variant.client, hash_term(query))
        if variant.mode == "random_half" and source.integers(2):
            return rows
        return source.shuffled(rows)

    return shuffle


WEBSHOP_VARIANTS: tuple[type[Variant], ...] = (CatalogSplit, IndexFields, Bm25Weights, Lookalikes, RankWrapper)
