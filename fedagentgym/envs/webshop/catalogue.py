"""The products of a shop: cleaned records in a fixed order, decoded on access.

A record is stored in two parts, since a page of results needs only the head (number, title, price tag) of ten products.
What a goal is made from (instruction, its attributes, or the sentences that people wrote) is stored beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.envs.webshop import arrays
from fedagentgym.envs.webshop.arrays import Bundle, TextsWriter

CACHED_PRODUCTS = 1024


class Head(NamedTuple):
    """The part of a product that a page of results shows."""

    asin: str
    title: str
    price_tag: str


class Product(NamedTuple):
    """A cleaned product. Options keep their order and their repetitions; `prices` is one price or a range of two."""

    asin: str
    title: str
    price_tag: str
    description: str
    bullets: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    query: str
    category: str
    product_category: str
    image: str
    prices: tuple[float, ...]


class Instructions(NamedTuple):
    """The source of goals: one machine-written instruction, or sentences that people wrote about the product."""

    text: str | None
    attributes: tuple[str, ...]
    human: tuple[Mapping[str, Any], ...]


class Catalogue:
    """Products by row, in the order of the file they came from."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.size = int(bundle.header["products"])
        self.category_names: tuple[str, ...] = tuple(bundle.header["categories"])
        self.query_names: tuple[str, ...] = tuple(bundle.header["queries"])
        self.category_codes: NDArray[np.int32] = bundle.arrays["category"]
        self.query_codes: NDArray[np.int32] = bundle.arrays["query"]
        self.low: NDArray[np.float64] = bundle.arrays["low"]
        self.high: NDArray[np.float64] = bundle.arrays["high"]
        self._heads, self._bodies = bundle.get_texts("head"), bundle.get_texts("body")
        self._instructions = bundle.get_texts("instruction")
        self.head = lru_cache(maxsize=CACHED_PRODUCTS)(self._read_head)
        self.product = lru_cache(maxsize=CACHED_PRODUCTS)(self.read_product)

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[Any, ...]:
        return Catalogue, (self.bundle,)

    def _read_head(self, row: int) -> Head:
        return Head(*json.loads(self._heads[row]))

    def read_product(self, row: int) -> Product:
        """The product of a row, decoded (`product` caches the last thousand)."""
        asin, title, price_tag = json.loads(self._heads[row])
        description, bullets, options, attributes, product_category, image = json.loads(self._bodies[row])
        low, high = float(self.low[row]), float(self.high[row])
        return Product(
            asin,
            title,
            price_tag,
            description,
            tuple(bullets),
            {name: tuple(values) for name, values in options},
            tuple(attributes),
            self.query_names[self.query_codes[row]],
            self.category_names[self.category_codes[row]],
            product_category,
            image,
            (low,) if isnan(high) else (low, high),
        )

    def read_instructions(self, row: int) -> Instructions:
        raw = self._instructions[row]
        if not raw:
            return Instructions(None, (), ())
        text, attributes, human = json.loads(raw)
        return Instructions(text, tuple(attributes), tuple(human))

    def list_asins(self) -> list[str]:
        """All product numbers by row; for building an index, not for playing."""
        return [json.loads(self._heads[row])[0] for row in range(self.size)]

    def find_rows(self, field: Literal["category", "query"], wanted: str) -> NDArray[np.int64]:
        """The rows of the products of a category, or of a search category."""
        names, codes = (
            (self.category_names, self.category_codes) if field == "category" else (self.query_names, self.query_codes)
        )
        return np.flatnonzero(codes == names.index(wanted)) if wanted in names else np.empty(0, dtype=np.int64)


def write_catalogue(
    entries: Iterable[tuple[Product, Instructions]], header: Mapping[str, Any], folder: Path | None = None
) -> Catalogue:
    """Store products in the order given; into a folder if one is given, else in memory."""
    heads, bodies, instructions = (TextsWriter(name, folder) for name in ("head", "body", "instruction"))
    categories: dict[str, int] = {}
    queries: dict[str, int] = {}
    category_codes: list[int] = []
    query_codes: list[int] = []
    prices: list[tuple[float, ...]] = []
    for product, instruction in entries:
        heads.add(_encode_json([product.asin, product.title, product.price_tag]))
        options = [[name, values] for name, values in product.options.items()]
        texts = (product.description, product.bullets, options, product.attributes)
        bodies.add(_encode_json([*texts, product.product_category, product.image]))
        instructions.add(_encode_json(instruction) if instruction.text is not None or instruction.human else b"")
        category_codes.append(categories.setdefault(product.category, len(categories)))
        query_codes.append(queries.setdefault(product.query, len(queries)))
        prices.append(product.prices)
    table = {
        **heads.finish(),
        **bodies.finish(),
        **instructions.finish(),
        "category": np.array(category_codes, dtype=np.int32),
        "query": np.array(query_codes, dtype=np.int32),
        "low": np.array([pair[0] for pair in prices], dtype=np.float64),
        "high": np.array([pair[1] if len(pair) > 1 else nan for pair in prices], dtype=np.float64),
    }
    described = {**header, "products": len(prices), "categories": list(categories), "queries": list(queries)}
    return Catalogue(arrays.store(folder, table, described))


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
