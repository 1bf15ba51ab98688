"""The search index: for every term the products that contain it, with its frequency and their lengths.

Documents are numbered in the order of product numbers, so equal scores are settled by the smaller document, as in the
original. Per posting two things are stored: the document, and one 16-bit code of (occurrences, quantised length), which is
all that the score needs. Occurrences above 255 are kept in a short side table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.envs.webshop import arrays
from fedagentgym.envs.webshop.analysis import analyze_token, tokenize
from fedagentgym.envs.webshop.arrays import Array, Bundle
from fedagentgym.envs.webshop.catalogue import Catalogue, Product
from fedagentgym.version import ISSUES

FIELDS = ("name", "description", "bullets", "features")
ORIGINAL_FIELDS = ("name", "description", "first_bullet", "features")
CHUNK_TOKENS = 1 << 21
EXACT_LENGTHS = 24
SCRATCH_SUFFIX = ".part"


def make_document(product: Product, fields: Sequence[str] = ORIGINAL_FIELDS) -> str:
    """The text of a product that is searched. The original searches only the first bullet point. `features` is the grid of
    options, which contains colours and sizes."""
    return " ".join(_FIELD_TEXT[field](product) for field in fields).lower()


_FIELD_TEXT: dict[str, Callable[[Product], str]] = {
    "name": lambda product: product.title,
    "description": lambda product: product.description,
    "first_bullet": lambda product: product.bullets[0] if product.bullets else "",
    "bullets": lambda product: " ".join(product.bullets),
    "features": lambda product: ", and ".join(f"{name}: {', '.join(v)}" for name, v in product.options.items()),
}


def check_fields(fields: Iterable[str]) -> tuple[str, ...]:
    """Field names in canonical order."""
    wanted = list(fields)
    if not wanted or any(field not in _FIELD_TEXT for field in wanted):
        raise OptionError(f"index fields are some of {join_names(FIELDS)}, got {wanted!r}")
    return tuple(field for field in _FIELD_TEXT if field in wanted)


class Index(NamedTuple):
    """Postings of a set of documents, and the sums that term weights are made of."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    codes: NDArray[np.uint16]
    rows: NDArray[np.int32]
    over_at: NDArray[np.int64]
    over: NDArray[np.int32]
    total_terms: int

    @property
    def size(self) -> int:
        return len(self.rows)

    def find_span(self, hashed: int) -> tuple[int, int]:
        """Begin and end of the postings of a term; an empty range if no document holds it."""
        place = int(np.searchsorted(self.hashes, np.uint64(hashed)))
        if place == len(self.hashes) or int(self.hashes[place]) != hashed:
            return 0, 0
        return int(self.starts[place]), int(self.starts[place + 1])


def open_index(bundle: Bundle) -> Index:
    parts: dict[str, Any] = {name: bundle.arrays[name] for name in Index._fields if name != "total_terms"}
    return Index(**parts, total_terms=int(bundle.header["total_terms"]))


@lru_cache(maxsize=1 << 16)
def hash_term(text: str) -> int:
    """64 bits that represent a term; building checks that no two terms of an index share them."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def build_index(catalogue: Catalogue, fields: Sequence[str] = ORIGINAL_FIELDS, folder: Path | None = None) -> Index:
    """Index a catalogue; into a folder if one is given, else in memory."""
    asins = catalogue.list_asins()
    order = np.array(sorted(range(len(asins)), key=asins.__getitem__), dtype=np.int32)
    del asins
    return build_text_index(
        (make_document(catalogue.read_product(row), fields) for row in order.tolist()), order, folder
    )


def build_text_index(texts: Iterable[str], rows: NDArray[np.int32], folder: Path | None = None) -> Index:
    """Index texts that come in the order of their product numbers; `rows` gives the product of each one."""
    lexicon = _Lexicon()
    chunks: list[_Chunk] = []
    lengths: list[int] = []
    tokens: list[int] = []
    ends: list[int] = []
    for text in texts:
        found = [number for number in map(lexicon.__getitem__, tokenize(text)) if number >= 0]
        tokens += found
        lengths.append(len(found))
        ends.append(len(tokens))
        if len(tokens) >= CHUNK_TOKENS:
            chunks.append(_chunk(tokens, ends, len(lengths)))
            tokens, ends = [], []
    chunks.append(_chunk(tokens, ends, len(lengths)))
    quantised = quantise(np.array(lengths, dtype=np.int64))
    table: dict[str, Array | int] = {**_merge(chunks, lexicon, quantised, folder), "rows": rows}
    bundle = arrays.store(folder, table, {"total_terms": sum(lengths)})
    for name in ("documents", "codes"):
        if folder is not None:
            (folder / f"{name}{SCRATCH_SUFFIX}").unlink(missing_ok=True)
    return open_index(bundle)


class _Lexicon(dict[str, int]):
    """Words as they stand in texts -> number of their term, -1 for stop words; filled as words are met."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        found = analyze_token(word)
        number = -1 if found is None else self.terms.setdefault(found, len(self.terms))
        self[word] = number
        return number


class _Chunk(NamedTuple):
    """Postings of a run of documents, sorted by term, then document."""

    terms: NDArray[np.int32]
    counts: NDArray[np.int64]
    documents: NDArray[np.int32]
    occurrences: NDArray[np.int32]


def _chunk(tokens: list[int], ends: list[int], after: int) -> _Chunk:
    first = after - len(ends)
    bounds = np.array([0, *ends], dtype=np.int64)
    sizes = bounds[1:] - bounds[:-1]
    owner = np.repeat(np.arange(len(ends), dtype=np.int64), sizes)
    width = max(len(ends), 1)
    keys, occurrences = np.unique(np.array(tokens, dtype=np.int64) * width + owner, return_counts=True)
    terms, counts = np.unique(keys // width, return_counts=True)
    counts = counts.astype(np.int64)
    documents = (keys % width + first).astype(np.int32)
    return _Chunk(terms.astype(np.int32), counts, documents, occurrences.astype(np.int32))


def _merge(
    chunks: list[_Chunk], lexicon: _Lexicon, quantised: NDArray[np.uint8], folder: Path | None
) -> dict[str, Array | int]:
    """Lay the chunks' postings out term by term, terms in the order of their hashes."""
    hashes = np.fromiter(map(hash_term, lexicon.terms), dtype=np.uint64, count=len(lexicon.terms))
    by_hash = np.argsort(hashes)
    hashes = hashes[by_hash]
    if len(hashes) > 1 and (hashes[1:] == hashes[:-1]).any():
        raise DataError(f"two terms of the index have the same hash; please report this catalogue: {ISSUES}")
    place = np.empty(len(by_hash), dtype=np.int64)
    place[by_hash] = np.arange(len(by_hash))
    frequencies = np.zeros(len(hashes), dtype=np.int64)
    for chunk in chunks:
        frequencies[place[chunk.terms]] += chunk.counts
    starts = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)
    total, free = int(starts[-1]), starts[:-1].copy()
    documents, codes = (
        _allocate_postings("documents", "<i4", total, folder),
        _allocate_postings("codes", "<u2", total, folder),
    )
    beyond: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    while chunks:
        chunk = chunks.pop(0)
        owners = place[chunk.terms]
        within = np.arange(len(chunk.documents)) - np.repeat(np.cumsum(chunk.counts) - chunk.counts, chunk.counts)
        target = np.repeat(free[owners], chunk.counts) + within
        documents[target] = chunk.documents
        often = np.minimum(chunk.occurrences, 255).astype(np.uint16)
        codes[target] = (often << np.uint16(8)) | quantised[chunk.documents]
        free[owners] += chunk.counts
        above = chunk.occurrences > 255
        beyond.append((target[above], chunk.occurrences[above]))
    over_at = np.concatenate([at for at, _ in beyond])
    order = np.argsort(over_at)
    return {
        "hashes": hashes,
        "starts": starts,
        "documents": documents,
        "codes": codes,
        "over_at": over_at[order],
        "over": np.concatenate([count for _, count in beyond])[order],
    }


def _allocate_postings(name: str, dtype: str, length: int, folder: Path | None) -> Array:
    """An array for postings, in memory or mapped to a file, so that building needs no second copy."""
    if folder is None or not length:
        return np.empty(length, dtype=dtype)
    return np.memmap(folder / f"{name}{SCRATCH_SUFFIX}", dtype=dtype, mode="w+", shape=(length,))


def quantise(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Document lengths as the original's engine stores them in a byte: exact below 40, then four significant bits."""
    above = np.maximum(lengths - EXACT_LENGTHS, 0)
    bits = np.frexp(above.astype(np.float64))[1]
    shift = np.maximum(bits - 4, 0)
    packed = np.where(bits < 4, above, (((above >> shift) & 7) | ((shift + 1) << 3)))
    return np.where(lengths < EXACT_LENGTHS, lengths, EXACT_LENGTHS + packed).astype(np.uint8)


def decode_lengths() -> NDArray[np.float32]:
    """The length that each of the 256 bytes represents."""
    packed = np.maximum(np.arange(256, dtype=np.int64) - EXACT_LENGTHS, 0)
    mantissa, shift = packed & 7, (packed >> 3) - 1
    large = (mantissa | 8) << np.maximum(shift, 0)
    decoded = EXACT_LENGTHS + np.where(shift < 0, mantissa, large)
    return np.where(np.arange(256) < EXACT_LENGTHS, np.arange(256), decoded).astype(np.float32)
