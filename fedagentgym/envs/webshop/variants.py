"""The variants of WebShop: how one client's shop can differ from the others', and the shop of each variant.

Content (`catalog_split`): the client's own targets and a share of everything else. Encoding (`index_fields`): which texts
are searched. Matching (`bm25_weights`): how they are weighed. Content and matching (`lookalikes`): added near-copies of the
targets that fail one term of the reward. Rendering (`rank_wrapper`): the fifty results in another order. Goals, prices and
pages stay as they are. A plugin's variant that makes a shop of its own derives its client's part from `ShopVariant`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.streams import Stream, derive, on_grid, stream
from fedagentgym.envs.variants import ChosenVariant, ClientVariant, Variant
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.index import (
    FIELDS,
    ORIGINAL_FIELDS,
    Index,
    build_text_index,
    check_fields,
    hash_term,
    make_document,
)
from fedagentgym.envs.webshop.lookalikes import make_lookalikes
from fedagentgym.envs.webshop.nouns import NounFunction
from fedagentgym.envs.webshop.search import Searcher, Segment
from fedagentgym.envs.webshop.shop import Rerank, Shop
from fedagentgym.envs.webshop.stock import ShopData, get_index

ALL_FIELDS_K1, ALL_FIELDS_B = 1.2, 0.75


class ShopVariant(ClientVariant):
    """A client's variant that is a shop of its own."""

    @abstractmethod
    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        """The shop over this stock; `goals` are the client's own, for variants that depend on them."""


def make_unchanged_shop(stock: ShopData) -> Shop:
    """The shop as it is for everybody whose variant makes no other."""
    return _make_shop(stock, _search_as_original(stock))


# ---- content ----------------------------------------------------------------------------------------------------


class OwnCatalogue(ShopVariant):
    """The client's targets and, of all other products, each with probability `keep_ratio`."""

    env_div: float = Field(ge=0, le=1, description="0: all clients keep the same products; 1: each draws its own")
    keep_ratio: float = Field(ge=0, le=1, description="share of the products that are no targets of the client")
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
    """Which products a client sees. Each distractor is kept or not by a number that all clients share or, with probability
    `env_div`, by one of the client's own."""
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
    """Which texts of a product are searched."""

    fields: tuple[Literal["name", "description", "bullets", "features"], ...] = Field(min_length=1)
    k1: float = Field(default=ALL_FIELDS_K1, gt=0)
    b: float = Field(default=ALL_FIELDS_B, ge=0, le=1)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        return _make_shop(stock, Searcher([Segment(get_index(stock, check_fields(self.fields)))], self.k1, self.b))


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
        return _make_shop(stock, Searcher([Segment(get_index(stock, FIELDS))], self.k1, self.b))


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
            segments.append(Segment(_index_extra(extra), first))
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


def _index_extra(extra: list[Any]) -> Index:
    order = sorted(range(len(extra)), key=lambda place: extra[place].asin)
    return build_text_index((make_document(extra[place]) for place in order), np.array(order, dtype=np.int32))


# ---- rendering --------------------------------------------------------------------------------------------------


class ResultOrder(ShopVariant):
    """The results of a search in another order, fixed for a query."""

    mode: Literal["as_ranked", "shuffle", "reverse", "random_half"]
    seed: int = Field(default=0, ge=0)
    client: int = Field(default=0, ge=0)

    def build_shop(self, stock: ShopData, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
        return Shop(stock.catalogue, stock.goals.prices, _search_as_original(stock), rerank=choose_order(self))


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


# ---- shops ------------------------------------------------------------------------------------------------------


def _search_as_original(stock: ShopData) -> Searcher:
    return Searcher([Segment(get_index(stock, ORIGINAL_FIELDS))])


def _make_shop(stock: ShopData, searcher: Searcher) -> Shop:
    return Shop(stock.catalogue, stock.goals.prices, searcher)


WEBSHOP_VARIANTS: tuple[type[Variant], ...] = (CatalogSplit, IndexFields, Bm25Weights, Lookalikes, RankWrapper)
