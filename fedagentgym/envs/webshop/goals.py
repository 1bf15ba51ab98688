"""The goals of the shop, in the original's order for a seed.

Prices, caps and orders are drawn from instances of `random.Random`, call by call as the original draws them from the
global generator, so a seed gives the original's goals. (In a fresh process, the original's console library takes one
number from that generator before the first price. The reference lists contain this draw for synthetic goals, but not for
human ones.)

Only a few numbers per product are stored. A goal is made when it is requested, so the seven million goals of a catalogue of
a million products are not held in memory.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.envs.webshop import arrays
from fedagentgym.envs.webshop.arrays import Array, Bundle, TextsWriter
from fedagentgym.envs.webshop.catalogue import Catalogue

CAPS = [10.0 * step for step in range(1, 100)]
NO_CAP = 1000000.0
WEBSHOP_SHUFFLE = 233
DRAWS_BEFORE_PRICES = {"synthetic": 1, "human": 0}
KINDS = ("synthetic", "human")
ORDERS = ("webshop", "fedagent")


class Goal(NamedTuple):
    """One shopping task. `options` maps option names to the wanted values (synthetic goals) or lists the values alone (human
    ones); `row` is the target's index in the catalogue, -1 if the client does not know the answer."""

    number: int
    row: int
    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    price_upper: float
    options: Mapping[str, str] | tuple[str, ...]
    weight: float

    @property
    def known(self) -> bool:
        return self.row >= 0

    def without_answer(self) -> Goal:
        """The goal without its answer; number, category and instruction remain."""
        return self._replace(
            row=-1,
            asin="",
            query="",
            name="",
            product_category="",
            attributes=(),
            price_upper=NO_CAP,
            options=(),
            weight=0.0,
        )


class Goals(Sequence[Goal]):
    """The goals of a catalogue, in the order in which the splits index them."""

    def __init__(self, catalogue: Catalogue, bundle: Bundle) -> None:
        self._catalogue = catalogue
        self.bundle = bundle
        self._order: NDArray[np.int32] = bundle.arrays["order"]
        self._starts: NDArray[np.int64] = bundle.arrays["starts"]
        self._caps: NDArray[np.float64] = bundle.arrays["cap"]
        self.category_codes: NDArray[np.int32] = bundle.arrays["category"]
        self.prices: NDArray[np.float64] = bundle.arrays["price"]
        self._human = bundle.header["kind"] == "human"
        if self._human:
            self._written = bundle.get_texts("written")
        else:
            self._weights: NDArray[np.float64] = bundle.arrays["weight"]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        native = int(self._order[place])
        row = int(np.searchsorted(self._starts, native, side="right")) - 1
        product = self._catalogue.product(row)
        known = (place, row, product.asin, product.category, product.query, product.title, product.product_category)
        if self._human:
            text, attributes, options = json.loads(self._written[native])
            cap = float(self._caps[native])
            return Goal(*known, text + format_cap(cap), tuple(attributes), cap, tuple(options), 1.0)
        instructions, cap = self._catalogue.read_instructions(row), float(self._caps[row])
        # The goal's number within its product encodes one value per option, with option names in alphabetical order; the
        # last option varies fastest.
        number, chosen = native - int(self._starts[row]), dict[str, str]()
        for name in sorted(product.options, reverse=True):
            number, at = divmod(number, len(product.options[name]))
            chosen[name] = product.options[name][at]
        chosen = dict(reversed(chosen.items()))
        wanted = " with " + ", and ".join(f"{name}: {value}" for name, value in chosen.items()) if chosen else ""
        text = f"{instructions.text}{wanted}{format_cap(cap)}"
        return Goal(*known, text, instructions.attributes, cap, chosen, float(self._weights[row]))


def format_cap(cap: float) -> str:
    """Return how an instruction names its price cap."""
    return "" if cap == NO_CAP else f", and price lower than {cap:.2f} dollars"


def make_goals(catalogue: Catalogue, kind: str, order: str, seed: int, folder: Path | None = None) -> Goals:
    """Draw prices, caps and the order of a seed. With the order `fedagent`, the generator is seeded again before the caps
    of synthetic goals and then shuffles the goals; with `webshop`, the shuffle has a seed of its own."""
    source = random.Random(seed)
    for _ in range(DRAWS_BEFORE_PRICES[kind]):
        source.randint(0, 999_999)
    prices = catalogue.low.copy()
    for row in np.flatnonzero(~np.isnan(catalogue.high)).tolist():
        prices[row] = source.uniform(float(catalogue.low[row]), float(catalogue.high[row]))
    if kind == "human":
        table, targets = _make_human_table(catalogue, prices, source)
    else:
        if order == "fedagent":
            source = random.Random(seed)
        table, targets = _make_synthetic_table(catalogue, prices, source)
    permutation = list(range(len(targets)))
    (random.Random(WEBSHOP_SHUFFLE) if order == "webshop" else source).shuffle(permutation)
    places = np.array(permutation, dtype=np.int32)
    table |= {"order": places, "category": catalogue.category_codes[targets[places]], "price": prices}
    return Goals(catalogue, arrays.store(folder, table, {"kind": kind, "order": order, "seed": seed}))


def _draw_cap(price: float, source: random.Random) -> float:
    """The higher of two random ones of the next four round prices; `NO_CAP` if fewer than two are above the product's price."""
    first = bisect(CAPS, price)
    above = CAPS[first : first + 4]
    return max(source.sample(above, 2)) if len(above) >= 2 else NO_CAP


def _make_synthetic_table(
    catalogue: Catalogue, prices: NDArray[np.float64], source: random.Random
) -> tuple[dict[str, Array | int], NDArray[np.int64]]:
    counts, caps = np.zeros(len(catalogue), dtype=np.int64), np.full(len(catalogue), NO_CAP)
    carried: dict[str, int] = {}
    for row in range(len(catalogue)):
        instructions = catalogue.read_instructions(row)
        if instructions.text is None:
            continue
        caps[row] = _draw_cap(float(prices[row]), source)
        ways = prod(len(values) for values in catalogue.read_product(row).options.values())
        counts[row] = ways
        for attribute in instructions.attributes:
            carried[attribute] = carried.get(attribute, 0) + ways
    weights = np.zeros(len(catalogue))
    for row in np.flatnonzero(counts).tolist():
        wanted = catalogue.read_instructions(row).attributes
        weights[row] = sum(1.0 / carried[attribute] for attribute in wanted) / len(wanted)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64) if len(counts) else counts
    table: dict[str, Array | int] = {"starts": starts, "cap": caps, "weight": weights}
    return table, np.repeat(np.arange(len(catalogue)), counts)


def _make_human_table(
    catalogue: Catalogue, prices: NDArray[np.float64], source: random.Random
) -> tuple[dict[str, Array | int], NDArray[np.int64]]:
    counts = np.zeros(len(catalogue), dtype=np.int64)
    caps: list[float] = []
    written = TextsWriter("written", None)
    for row in range(len(catalogue)):
        for entry in catalogue.read_instructions(row).human:
            if not entry["attributes"]:
                continue
            caps.append(_draw_cap(float(prices[row]), source))
            goal = [entry["instruction"].strip("."), entry["attributes"], entry["options"]]
            written.add(json.dumps(goal).encode("ascii"))
            counts[row] += 1
    if not caps:
        raise DataError(
            'there are no goals that people wrote: items_human_ins.json is missing or empty; use goals="synthetic"'
        )
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    table: dict[str, Array | int] = {"starts": starts, "cap": np.array(caps, dtype=np.float64), **written.finish()}
    return table, np.repeat(np.arange(len(catalogue)), counts)
