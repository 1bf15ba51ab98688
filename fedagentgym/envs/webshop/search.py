"""BM25 in single precision, operation by operation as Lucene computes it, and the k best documents without a full sort.

For a query term of document frequency n among N documents, weight w = count * ln(1 + (N - n + 0.5) / (n + 0.5)); a
document that holds it f times and is L long gains w - w / (1 + f / (k1 * ((1 - b) + b * L / average))). Sums are taken
in double precision and rounded once.

In a large collection, frequent terms are not read completely. Terms are added in descending order of their largest possible
gain. Once the remaining terms together cannot lift a new document above the k-th best so far, they are only looked up in
the documents that can still be among the best k. The result is the same.

A `Shop` is a catalogue with prices and such a search. A client's variant may change what its shop sells and how its search
ranks the products.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import log
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import stream
from fedagentgym.envs.webshop.analysis import analyze_text
from fedagentgym.envs.webshop.catalogue import Catalogue, Head, Product
from fedagentgym.envs.webshop.index import Index, decode_lengths, hash_term

K1, B = 0.9, 0.4
READ_ALL_BELOW = 1 << 16
BLOCK = 1024
SLACK = 1e-5
REMEMBERED_TERMS = 1 << 12

Floats = NDArray[np.float32]


class Segment(NamedTuple):
    """One index of a collection. Its row r is row `offset` + r of the shop; `allowed` says which documents may be found."""

    postings: Index
    offset: int = 0
    allowed: NDArray[np.bool_] | None = None


class _Term(NamedTuple):
    """A query term in one segment: its weight, an upper bound of its gain, and the range of its postings."""

    weight: np.float32
    bound: float
    start: int
    stop: int


class Searcher:
    """Ranks the products of one or more segments, whose statistics are pooled, for given (k1, b)."""

    def __init__(
        self, segments: Sequence[Segment], k1: float = K1, b: float = B, asin: Callable[[int], str] | None = None
    ) -> None:
        self.segments = tuple(segments)
        self._asin = asin
        self._documents = sum(segment.postings.size for segment in segments)
        total = sum(segment.postings.total_terms for segment in segments)
        # 1 + occurrences / (k1 * ((1 - b) + b * length / average)) for every code, in the order of operations of Lucene.
        average = np.float32(total / max(self._documents, 1))
        one, sharpness, slope = np.float32(1), np.float32(k1), np.float32(b)
        inverse = one / (sharpness * ((one - slope) + slope * decode_lengths() / average))
        self._denominators: Floats = (one + np.arange(256, dtype=np.float32)[:, None] * inverse[None, :]).ravel()
        self._inverse = self._denominators[256:512] - one
        self._bounds: dict[tuple[int, int], float] = {}
        self._place = lru_cache(maxsize=REMEMBERED_TERMS)(self._find_spans)

    def search(self, query: str, k: int) -> list[int]:
        """Rows of the k best products, best first. A product that shares no term with the query is not found."""
        counts = Counter(analyze_text(query))
        found: list[tuple[float, str, int]] = []
        places = {text: self._place(text) for text in counts}
        for number, segment in enumerate(self.segments):
            chosen: list[_Term] = []
            for text, count in counts.items():
                idf, spans = places[text]
                start, stop = spans[number]
                if start < stop:
                    weight = np.float32(count) * idf
                    chosen.append(_Term(weight, self._bound_gain(segment, weight, start, stop), start, stop))
            scores, documents = self._rank_segment(segment, chosen, k)
            rows = segment.postings.rows[documents].tolist()
            if len(self.segments) == 1:
                return [row + segment.offset for row in rows]
            asin = self._asin or str
            shifted = [row + segment.offset for row in rows]
            found += [(-score, asin(place), place) for score, place in zip(scores.tolist(), shifted, strict=True)]
        return [place for _, _, place in sorted(found)[:k]]

    def _find_spans(self, text: str) -> tuple[np.float32, list[tuple[int, int]]]:
        """Return the inverse document frequency of a term, and the range of its postings in each segment."""
        spans = [segment.postings.find_span(hash_term(text)) for segment in self.segments]
        frequency = sum(stop - start for start, stop in spans)
        return np.float32(log(1 + (self._documents - frequency + 0.5) / (frequency + 0.5))), spans

    def _bound_gain(self, segment: Segment, weight: np.float32, start: int, stop: int) -> float:
        """An upper bound of a term's gain in any document; cached per term, since queries share their frequent terms."""
        if segment.postings.size < READ_ALL_BELOW:
            return 0.0
        key = (id(segment.postings), start)
        factor = self._bounds.get(key)
        if factor is None:
            if len(self._bounds) > 1 << 14:
                self._bounds.clear()
            highest = self._denominators[segment.postings.codes[start:stop]].max()
            unbounded = len(segment.postings.over_at) > 0 and highest >= self._denominators[255 * 256 : 256 * 256].min()
            factor = self._bounds[key] = 1.0 if unbounded else float(1 - 1 / highest)
        return float(weight) * factor * (1 + 1e-6)

    def _compute_gain(
        self, index: Index, weight: np.float32, codes: NDArray[np.uint16], places: slice | NDArray[np.int64]
    ) -> Floats:
        gain: Floats = self._denominators.take(codes)
        if len(index.over_at):
            # The true denominators where a document holds the term more often than a code can express.
            wanted = np.arange(places.start, places.stop) if isinstance(places, slice) else places
            at = np.minimum(np.searchsorted(index.over_at, wanted), len(index.over_at) - 1)
            hit = np.flatnonzero(index.over_at[at] == wanted)
            often = index.over[at[hit]].astype(np.float32)
            gain[hit] = np.float32(1) + often * self._inverse[codes[hit] & 255]
        np.divide(weight, gain, out=gain)
        np.subtract(weight, gain, out=gain)
        return gain

    def _rank_segment(self, segment: Segment, chosen: list[_Term], k: int) -> tuple[Floats, NDArray[np.int64]]:
        """The k best documents of a segment, best first, with their scores."""
        if not chosen:
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
        index, sums = segment.postings, np.zeros(segment.postings.size)
        if index.size < READ_ALL_BELOW:
            for part in chosen:
                self._add(index, part, sums)
            return _select_top(_mask_disallowed(segment, sums).astype(np.float32), None, k)
        # Read terms by descending bound until the remaining ones cannot add a new document.
        chosen.sort(key=lambda part: -part.bound)
        rest, unread = sum(part.bound for part in chosen), sum(part.stop - part.start for part in chosen)
        floor, done = 0.0, 0
        while done < len(chosen) and rest >= floor - SLACK:
            self._add(index, chosen[done], sums)
            rest -= chosen[done].bound
            unread -= chosen[done].stop - chosen[done].start
            done += 1
            if unread > index.size // 4:
                floor = _bound_kth_score(_mask_disallowed(segment, sums), k)
        sums = _mask_disallowed(segment, sums)
        floor = max(floor, _bound_kth_score(sums, k))
        documents = np.flatnonzero(sums > max(floor - max(rest, 0.0) - SLACK, 0.0))
        scores = sums[documents]
        # Look the remaining terms up in the documents that can still be among the best k.
        for part in chosen[done:]:
            if len(scores) > k:
                floor = np.partition(scores, len(scores) - k)[len(scores) - k]
                kept = np.flatnonzero(scores >= floor - max(rest, 0.0) - SLACK)
                documents, scores = documents[kept], scores[kept]
            self._look_up(index, part, documents, scores)
            rest -= part.bound
        return _select_top(scores.astype(np.float32), documents, k)

    def _add(self, index: Index, part: _Term, sums: NDArray[np.float64]) -> None:
        places = slice(part.start, part.stop)
        sums[index.documents[places]] += self._compute_gain(index, part.weight, index.codes[places], places)

    def _look_up(self, index: Index, part: _Term, documents: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
        held = index.documents[part.start : part.stop]
        at = np.searchsorted(held, documents.astype(np.int32))
        hit = np.flatnonzero(held[np.minimum(at, len(held) - 1)] == documents)
        places = at[hit] + part.start
        scores[hit] += self._compute_gain(index, part.weight, index.codes[places], places)


def _mask_disallowed(segment: Segment, sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores with those of documents that may not be found set to zero."""
    return sums if segment.allowed is None else sums * segment.allowed


def _bound_kth_score(sums: NDArray[np.float64], k: int) -> float:
    """A number that at least k entries reach: the k-th best of the best of each block."""
    blocks = len(sums) // BLOCK
    if blocks < k:
        return float(np.partition(sums, len(sums) - k)[len(sums) - k]) if len(sums) > k else 0.0
    best = sums[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
    return float(np.partition(best, blocks - k)[blocks - k])


def _select_top(scores: Floats, documents: NDArray[np.int64] | None, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """The k highest scores above zero with their documents; equal scores by document."""
    if len(scores) > k:
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero((scores >= edge) & (scores > 0))
    else:
        kept = np.flatnonzero(scores > 0)
    kept = kept[np.argsort(-scores[kept], kind="stable")[:k]]
    return scores[kept], kept if documents is None else documents[kept]


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
            rows = np.arange(len(self)) if self.allowed is None else np.flatnonzero(self.allowed)
            draws = stream(seed, "webshop", "random products", hash_term(query))
            return [int(row) for row in rows[draws.choice(len(rows), min(RESULTS, len(rows)))]]
        if mode == "<a>" or (mode == "<c>" and not rest):
            return None
        if mode == "<c>":
            return self._find_rows("category", rest.partition(" ")[0].strip(), rest)
        if mode == "<q>":
            return self._find_rows("query", rest.strip(), rest.strip())
        found = self._found.get(query)
        if found is None:
            ranked = self.searcher.search(query, RESULTS)
            found = tuple(self._rerank(query, ranked) if self._rerank else ranked)
            self._found[query] = found
            if len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return found

    def _find_rows(self, field: Literal["category", "query"], wanted: str, wanted_of_extra: str) -> list[int]:
        rows = self.catalogue.find_rows(field, wanted)
        kept = rows if self.allowed is None else rows[self.allowed[rows]]
        first = len(self.catalogue)
        added = [
            first + place for place, product in enumerate(self.extra) if getattr(product, field) == wanted_of_extra
        ]
        return [*kept.tolist(), *added]
