"""A catalogue with prices and a search, possibly perturbed: what one client's site sells and how it ranks it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import stream
from fedagentgym.envs.webshop.catalogue import Catalogue, Head, Product
from fedagentgym.envs.webshop.index import hash_term
from fedagentgym.envs.webshop.search import Searcher

RESULTS = 50
REMEMBERED = 256

Rerank = Callable[[str, list[int]], list[int]]


class Shop:
    """Products by row; rows beyond the catalogue are additional products of a perturbed environment.

    `allowed` says which rows can be found at all; `rerank` puts the best fifty of a query in another order.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        prices: NDArray[np.float64],
        searcher: Searcher,
        *,
        extra: Sequence[Product] = (),
        allowed: NDArray[np.bool_] | None = None,
        rerank: Rerank | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.searcher = searcher
        self.extra = tuple(extra)
        self.allowed = allowed
        self._prices = prices
        self._rerank = rerank
        self._found: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.catalogue) + len(self.extra)

    def get_head(self, row: int) -> Head:
        if row < len(self.catalogue):
            return self.catalogue.head(row)
        product = self.extra[row - len(self.catalogue)]
        return Head(product.asin, product.title, product.price_tag)

    def get_product(self, row: int) -> Product:
        return self.catalogue.product(row) if row < len(self.catalogue) else self.extra[row - len(self.catalogue)]

    def get_price(self, row: int) -> float:
        """The price that the reward compares with the goal's cap."""
        return (
            float(self._prices[row]) if row < len(self.catalogue) else self.extra[row - len(self.catalogue)].prices[0]
        )

    def find(self, query: str, seed: int) -> Sequence[int] | None:
        """Rows that answer a query, best first. Besides free text there are the original's special forms: `<r>` fifty
        random products (fixed by the episode's seed, so that pages agree), `<c> category`, `<q> query`. None where the
        original fails: for `<a>`, and for `<c>` without a category."""
        mode, _, rest = query.partition(" ")
        if mode == "<r>":
            return self._draw_random_rows(query, seed)
        if mode == "<a>" or (mode == "<c>" and not rest):
            return None
        if mode == "<c>":
            return self._filter_allowed(
                self.catalogue.find_category_rows(rest.partition(" ")[0].strip()), "category", rest
            )
        if mode == "<q>":
            return self._filter_allowed(self.catalogue.find_query_rows(rest.strip()), "query", rest.strip())
        found = self._found.get(query)
        if found is None:
            ranked = self.searcher.search(query, RESULTS)
            found = tuple(self._rerank(query, ranked) if self._rerank else ranked)
            self._found[query] = found
            if len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return found

    def _draw_random_rows(self, query: str, seed: int) -> list[int]:
        rows = np.arange(len(self)) if self.allowed is None else np.flatnonzero(self.allowed)
        chosen = stream(seed, "webshop", "random products", hash_term(query)).choice(len(rows), min(RESULTS, len(rows)))
        return [int(row) for row in rows[chosen]]

    def _filter_allowed(self, rows: NDArray[np.int64], field: str, wanted: str) -> list[int]:
        kept = rows if self.allowed is None else rows[self.allowed[rows]]
        first = len(self.catalogue)
        added = [first + place for place, product in enumerate(self.extra) if getattr(product, field) == wanted]
        return [*kept.tolist(), *added]
