"""The ways in which one client's shop can differ from the others': five kinds of world, each a plain JSON object.

Content (`catalog_split`): the client's own targets and a share of everything else. Encoding (`index_fields`): which texts
are searched. Matching (`bm25_weights`): how they are weighed. Content and matching (`lookalikes`): added near-copies of the
targets that fail one term of the reward. Rendering (`rank_wrapper`): the fifty results in another order. Goals, prices and
pages stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError, unknown
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream, on_grid, stream
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.index import (
    FIELDS,
    ORIGINAL_FIELDS,
    Index,
    build_index_of,
    check_fields,
    document,
    hash_term,
)
from fedagentgym.envs.webshop.lookalikes import make_lookalikes
from fedagentgym.envs.webshop.nouns import NounFunction
from fedagentgym.envs.webshop.search import Searcher, Segment
from fedagentgym.envs.webshop.shop import Rerank, Shop
from fedagentgym.envs.webshop.stock import Stock, index_of

ALL_FIELDS_K1, ALL_FIELDS_B = 1.2, 0.75


class CatalogSplit(Settings):
    """The client sees its own targets and, of all other products, each with probability `keep_ratio`."""

    kind: Literal["catalog_split"] = "catalog_split"
    env_div: float = Field(ge=0, le=1, description="0: all clients keep the same products; 1: each draws its own")
    keep_ratio: float = Field(ge=0, le=1, description="share of the products that are no targets of the client")
    seed: int = Field(ge=0)
    client: int = Field(ge=0)


class IndexFields(Settings):
    """Which texts of a product are searched."""

    kind: Literal["index_fields"] = "index_fields"
    fields: tuple[str, ...] = Field(min_length=1, description=f"some of {', '.join(FIELDS)}")
    k1: float = Field(default=ALL_FIELDS_K1, gt=0)
    b: float = Field(default=ALL_FIELDS_B, ge=0, le=1)


class Bm25Weights(Settings):
    """All texts of a product are searched, weighed by other constants."""

    kind: Literal["bm25_weights"] = "bm25_weights"
    k1: float = Field(gt=0)
    b: float = Field(ge=0, le=1)


class Lookalikes(Settings):
    """Near-copies of the client's targets that fail one term of the reward."""

    kind: Literal["lookalikes"] = "lookalikes"
    attack: Literal["price", "color", "size", "price+color"]
    seed: int = Field(default=0, ge=0)


class RankWrapper(Settings):
    """The results of a search in another order, fixed for a query."""

    kind: Literal["rank_wrapper"] = "rank_wrapper"
    mode: Literal["as_ranked", "shuffle", "reverse", "random_half"]
    seed: int = Field(default=0, ge=0)
    client: int = Field(default=0, ge=0)


World = CatalogSplit | IndexFields | Bm25Weights | Lookalikes | RankWrapper
KINDS: dict[str, type[World]] = {
    "catalog_split": CatalogSplit,
    "index_fields": IndexFields,
    "bm25_weights": Bm25Weights,
    "lookalikes": Lookalikes,
    "rank_wrapper": RankWrapper,
}


def check_world(world: Mapping[str, Any] | None) -> World | None:
    """The typed world of a plain object; None is the unperturbed shop."""
    if world is None:
        return None
    if not isinstance(world, Mapping) or "kind" not in world:
        raise OptionError(
            f"a world is an object with the key 'kind', one of {', '.join(KINDS)}; got {str(world)[:80]!r}"
        )
    if world["kind"] not in KINDS:
        raise unknown("kind of WebShop world", world["kind"], KINDS)
    checked: World = KINDS[world["kind"]].load(dict(world), "world")
    if isinstance(checked, IndexFields) and not set(checked.fields) <= set(FIELDS):
        raise OptionError(f"world.fields are some of {', '.join(FIELDS)}, got {list(checked.fields)!r}")
    return checked


def build_shop(stock: Stock, world: World | None, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
    """The shop of a world. `goals` are the client's own, read only by worlds that depend on them."""
    match world:
        case CatalogSplit():
            allowed = kept_products(len(stock.catalogue), {goal.row for goal in goals if goal.known}, world)
            index = index_of(stock)
            searcher = Searcher([Segment(index, allowed=allowed[index.rows])])
            return Shop(stock.catalogue, stock.goals.prices, searcher, allowed=allowed)
        case IndexFields():
            return _searched(stock, Searcher([Segment(index_of(stock, check_fields(world.fields)))], world.k1, world.b))
        case Bm25Weights():
            return _searched(stock, Searcher([Segment(index_of(stock, FIELDS))], world.k1, world.b))
        case Lookalikes():
            return _with_lookalikes(stock, world, goals, nouns)
        case RankWrapper():
            return Shop(stock.catalogue, stock.goals.prices, _plain(stock), rerank=reranker(world))
        case None:
            return _searched(stock, _plain(stock))


def _plain(stock: Stock) -> Searcher:
    return Searcher([Segment(index_of(stock, ORIGINAL_FIELDS))])


def _searched(stock: Stock, searcher: Searcher) -> Shop:
    return Shop(stock.catalogue, stock.goals.prices, searcher)


def kept_products(products: int, targets: Iterable[int], world: CatalogSplit) -> NDArray[np.bool_]:
    """Which products a client sees. Each distractor is kept or not by a number that all clients share or, with probability
    `env_div`, by one of the client's own."""
    shared = _units(stream(world.seed, "catalog_split", "shared"), products)
    source = stream(world.seed, "catalog_split", "client", world.client)
    own, alone = _units(source, products), _units(source, products) < on_grid(world.env_div)
    kept: NDArray[np.bool_] = np.where(alone, own, shared) < on_grid(world.keep_ratio)
    kept[list(targets)] = True
    return kept


def _units(source: Stream, count: int) -> NDArray[np.int64]:
    """Uniform numbers in units of 2**-40."""
    return (source.raw(count) >> np.uint64(24)).astype(np.int64)


def reranker(world: RankWrapper) -> Rerank | None:
    """The order in which a world shows results: a function of query and rows."""
    if world.mode == "as_ranked":
        return None
    if world.mode == "reverse":
        return lambda query, rows: rows[::-1]

    def shuffled(query: str, rows: list[int]) -> list[int]:
        source = stream(world.seed, "rank_wrapper", world.client, hash_term(query))
        if world.mode == "random_half" and source.integers(2):
            return rows
        return source.shuffled(rows)

    return shuffled


def _with_lookalikes(stock: Stock, world: Lookalikes, goals: Iterable[Goal], nouns: NounFunction) -> Shop:
    extra = make_lookalikes(stock, list(goals), world.attack, world.seed, nouns)
    first = len(stock.catalogue)
    shop_index: list[Segment] = [Segment(index_of(stock))]
    if extra:
        shop_index.append(Segment(_index_of_extra(extra), first))
    heads = stock.catalogue.head

    def asin(row: int) -> str:
        return heads(row).asin if row < first else extra[row - first].asin

    return Shop(stock.catalogue, stock.goals.prices, Searcher(shop_index, asin=asin), extra=extra)


def _index_of_extra(extra: list[Any]) -> Index:
    order = sorted(range(len(extra)), key=lambda place: extra[place].asin)
    return build_index_of((document(extra[place]) for place in order), np.array(order, dtype=np.int32))
