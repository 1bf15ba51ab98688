"""The original's three data files, read record by record and cleaned by its rules.

`items_shuffle[_1000].json` holds the products, `items_ins_v2[_1000].json` attributes and machine-written instructions,
`items_human_ins.json` (optional) instructions that people wrote. The full product file is several gigabytes, so no
file is ever held as a whole: each is read through a window, and instructions are kept as compact bytes only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError, describe_error
from fedagentgym.base.files import MAX_TEXT
from fedagentgym.envs.webshop.catalogue import Instructions, Product

WINDOW = 1 << 20
MAX_ASIN = 10
NO_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)
_NOT_NUMBER = re.compile(r"[^\d.]")
_BLANK = re.compile(r"\s*")


class Files(NamedTuple):
    """The data files of a folder."""

    products: Path
    instructions: Path
    human: Path | None

    def list_present(self) -> list[Path]:
        return [self.products, self.instructions, *([self.human] if self.human else [])]


def find_files(folder: Path) -> Files:
    """The data files of a folder; the full set is preferred to the one of 1,000 products."""
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: give the one that holds items_shuffle.json or items_shuffle_1000.json"
        )
    human = folder / "items_human_ins.json"
    for suffix in ("", "_1000"):
        products, instructions = folder / f"items_shuffle{suffix}.json", folder / f"items_ins_v2{suffix}.json"
        if products.is_file() and instructions.is_file():
            return Files(products, instructions, human if human.is_file() else None)
    raise DataError(
        f"{folder} does not hold WebShop's data: needed are items_shuffle.json and items_ins_v2.json "
        "(or both with the ending _1000), and items_human_ins.json for goals that people wrote"
    )


def read_entries(files: Files, limit: int | None = None) -> Iterator[tuple[Product, Instructions]]:
    """Cleaned products with the sources of their goals, in file order; `limit` counts raw records."""
    machine = _compact(files.instructions)
    human = _compact(files.human) if files.human else {}
    seen: set[str] = set()
    for position, (_, record) in enumerate(stream_json(files.products, "[")):
        if limit is not None and position >= limit:
            return
        where = f"{files.products.name}, record {position}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: a product is an object, found {_shorten_repr(record)}")
        asin = _get_string(record, "asin", where)
        if asin == "nan" or len(asin) > MAX_ASIN or asin in seen:
            continue
        seen.add(asin)
        notes = json.loads(machine[asin]) if asin in machine else {}
        written = json.loads(human[asin]) if asin in human else []
        try:
            yield clean(record, notes, where), _parse_instructions(notes, written, asin)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise DataError(f"{where} (asin {asin}): cannot be read as a product: {error!r}") from None


def clean(record: Mapping[str, Any], notes: Mapping[str, Any], where: str) -> Product:
    """One raw record as a product; `notes` is its entry in the file of attributes."""
    bullets = record.get("small_description")
    listed = bullets if isinstance(bullets, list) else [bullets or ""]
    if not all(isinstance(bullet, str) for bullet in listed):
        raise DataError(f"{where}: the field 'small_description' holds something that is not text")
    prices, tag = _parse_prices(record.get("pricing"), where)
    images = record.get("images") or [""]
    attributes = notes.get("attributes", NO_ATTRIBUTES)
    return Product(
        asin=_get_string(record, "asin", where),
        title=_get_string(record, "name", where),
        price_tag=tag,
        description=_get_string(record, "full_description", where, empty=True),
        bullets=tuple(listed),
        options=_parse_options(record.get("customization_options"), where),
        attributes=tuple(attributes),
        query=_get_string(record, "query", where).lower().strip(),
        category=_get_string(record, "category", where),
        product_category=_get_string(record, "product_category", where, empty=True),
        image=str(images[0]),
        prices=prices,
    )


def _parse_instructions(notes: Mapping[str, Any], written: list[Mapping[str, Any]], asin: str) -> Instructions:
    text = notes.get("instruction")
    attributes = tuple(notes.get("instruction_attributes") or ())
    if text is not None and not attributes:
        raise DataError(f"the instruction of {asin} has no 'instruction_attributes': a goal needs at least one")
    human = [
        {
            "instruction": str(entry["instruction"]),
            "attributes": list(entry["instruction_attributes"]),
            "options": list(entry["instruction_options"]),
        }
        for entry in written
    ]
    return Instructions(text, attributes, tuple(human))


def _parse_prices(pricing: Any, where: str) -> tuple[tuple[float, ...], str]:
    if not pricing:
        return (NO_PRICE,), f"${NO_PRICE}"
    try:
        values = [float(_NOT_NUMBER.sub("", piece)) for piece in pricing.split("$")[1:]]
        first = values[0]
    except (AttributeError, ValueError, IndexError):
        raise DataError(
            f"{where}: the field 'pricing' is {_shorten_repr(pricing)}, expected like '$9.99' or '$5.00$7.50'"
        ) from None
    if len(values) == 1:
        return (first,), f"${first}"
    return (first, values[1]), f"${first} to ${values[1]}"


def _parse_options(raw: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not raw:
        return {}
    if not isinstance(raw, dict):
        raise DataError(f"{where}: the field 'customization_options' is {_shorten_repr(raw)}, expected an object")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        try:
            values = tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        except (TypeError, KeyError, AttributeError):
            raise DataError(
                f"{where}: the field 'customization_options', entry {name!r}, is not a list of objects with a 'value'"
            ) from None
        options[name.lower()] = values
    return options


def _get_string(record: Mapping[str, Any], field: str, where: str, empty: bool = False) -> str:
    if field not in record:
        raise DataError(f"{where}: the field {field!r} is missing")
    value = record[field]
    if value is None and empty:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: the field {field!r} is {_shorten_repr(value)}, expected text")
    return value


def _shorten_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _compact(path: Path) -> dict[str, bytes]:
    """The entries of a large JSON object as small byte strings by key."""
    return {key: json.dumps(value, separators=(",", ":")).encode("ascii") for key, value in stream_json(path, "{")}


def stream_json(path: Path, opening: str) -> Iterator[tuple[str, Any]]:
    """The members of the one JSON array or object that a file holds, with at most a window of it in memory."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8") as file:
            window = _Window(file, path)
            window.expect(opening)
            closing = "]" if opening == "[" else "}"
            if window.peek() == closing:
                return
            while True:
                key = ""
                if opening == "{":
                    key = window.read_value(decoder)
                    window.expect(":")
                yield key, window.read_value(decoder)
                if window.peek() == closing:
                    return
                window.expect(",")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start} of a block") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _Window:
    """The part of a file that is being read."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._at, self._before = "", 0, 0

    def _read_more(self) -> bool:
        if len(self._text) - self._at > MAX_TEXT:
            raise DataError(f"{self._path}: one value is longer than the {MAX_TEXT:,} characters that are read")
        block = self._file.read(max(WINDOW, len(self._text) - self._at))
        self._before += self._at
        self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)

    def peek(self) -> str:
        while True:
            found = _BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                raise DataError(
                    f"{self._path} ends too early (after {self._before + self._at} characters): is the file complete?"
                )

    def expect(self, symbol: str) -> None:
        if self.peek() != symbol:
            raise DataError(
                f"{self._path}: not valid JSON at character {self._before + self._at}: "
                f"expected {symbol!r}, found {self._text[self._at : self._at + 20]!r}"
            )
        self._at += 1

    def read_value(self, decoder: json.JSONDecoder) -> Any:
        self.peek()
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._read_more():
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if not self._read_more():
                    place = self._before + error.pos
                    raise DataError(f"{self._path}: not valid JSON at character {place}: {error.msg}") from None
            except RecursionError:
                raise DataError(f"{self._path}: not usable JSON, it is nested too deeply") from None
            except ValueError as error:
                raise DataError(f"{self._path}: not usable JSON: {describe_error(error, named=False)}") from None
