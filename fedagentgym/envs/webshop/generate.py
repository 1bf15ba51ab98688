"""A shop made from a seed: any number of raw records in the schema of the original's files.

Products come in families of near-duplicates: same kind, mostly the same attributes, one of which differs from member to
member, so that a query which leaves out one constraint often finds a sibling first. Options form grids as wide as the real
shop's in each category, so the goals are skewed towards fashion as they are there. Titles, bullet points and
descriptions are written by a grammar that mentions an attribute only sometimes, as sellers do; their words are in
`data/lexicon.json`.

Every family has a random stream of its own, so product number n of a seed is the same in a shop of any size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from fedagentgym.base.streams import stream
from fedagentgym.envs.webshop.analysis import split_list
from fedagentgym.envs.webshop.catalogue import Instructions, Product
from fedagentgym.envs.webshop.loading import clean

VERSION = 1
FAMILY_SIZE = 4
WORDS_PER_PRODUCT = 160
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ASINS = len(ALPHABET) ** 8
ASIN_STEP = 1_532_495_540_865

T = TypeVar("T")


class ProductKind(NamedTuple):
    """A kind of product: its search category, its category path, its names in titles, its price range, its scale of sizes."""

    query: str
    path: str
    nouns: tuple[str, ...]
    low: int
    high: int
    sizes: str


class Department(NamedTuple):
    """A category: its share among products, its kinds, and the words its sellers use."""

    name: str
    share: float
    kinds: tuple[ProductKind, ...]
    attributes: tuple[str, ...]
    looks: tuple[str, ...]
    materials: tuple[str, ...]
    uses: tuple[str, ...]
    parts: tuple[str, ...]
    choices: tuple[str, ...]
    instructed: float


def _parse_department(plain: Mapping[str, Any]) -> Department:
    """A department of the lexicon; each kind is a line `query | path | nouns | lowest price | highest price [| sizes]`."""
    kinds: list[ProductKind] = []
    for line in plain["kinds"]:
        query, path, nouns, low, high, *own = (part.strip() for part in line.split("|"))
        place = " › ".join(part.strip() for part in path.split(">"))
        sizes = own[0] if own else plain["sizes"]
        kinds.append(ProductKind(query, place, split_list(f"{nouns},")[:-1], int(low), int(high), sizes))
    words = ("attributes", "looks", "materials", "uses", "parts", "choices")
    return Department(
        name=plain["name"],
        share=plain["share"],
        kinds=tuple(kinds),
        instructed=plain["instructed"],
        **{name: split_list(plain[name]) for name in words},
    )


_LEXICON = json.loads(files(__package__).joinpath("data/lexicon.json").read_text(encoding="utf-8"))
"""Plain vocabulary: kinds of product, their descriptions, and their options."""
SIZES: Mapping[str, tuple[str, ...]] = {name: split_list(text) for name, text in _LEXICON["sizes"].items()}
VALUES: Mapping[str, tuple[str, ...]] = {name: split_list(text) for name, text in _LEXICON["values"].items()}
COLORS = VALUES["color"]
DEPARTMENTS = tuple(_parse_department(plain) for plain in _LEXICON["departments"])
TITLE_OPENERS, CLAIMS, CAUTIONS, SYLLABLES, BRAND_ENDINGS = (
    split_list(_LEXICON[name]) for name in ("title openers", "claims", "cautions", "syllables", "brand endings")
)


class ShopLayout(NamedTuple):
    """The layout of a size preset: whether all products carry an instruction, and all departments have wide option grids."""

    all_instructed: bool = False
    wide: bool = False


DEFAULT_LAYOUT = ShopLayout()


class WordStream:
    """A sequence of random 64-bit words, used one after the other."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words, self._next = words, 0

    def draw_below(self, n: int) -> int:
        word = self._words[self._next % len(self._words)]
        self._next += 1
        return (word >> 16) % n

    def draw_bool(self, p: float) -> bool:
        return self.draw_below(1 << 20) < p * (1 << 20)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.draw_below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Distinct items in random order."""
        left = list(items)
        return [left.pop(self.draw_below(len(left))) for _ in range(min(count, len(left)))]

    def pick_neighbours(self, items: Sequence[T], count: int) -> list[T]:
        """Neighbouring items, such as the sizes in which one product is offered."""
        count = min(count, len(items))
        start = self.draw_below(len(items) - count + 1)
        return list(items[start : start + count])


class _Family(NamedTuple):
    department: Department
    kind: ProductKind
    noun: str
    attributes: list[str]
    spare: list[str]
    price: float


def generate(products: int, seed: int, layout: ShopLayout = DEFAULT_LAYOUT) -> Iterator[tuple[Product, Instructions]]:
    """Products with the instructions for their goals, cleaned by the same rules as loaded ones."""
    for position, (record, notes) in enumerate(generate_records(products, seed, layout)):
        instruction = notes.get("instruction")
        attributes = tuple(notes.get("instruction_attributes", ()))
        yield clean(record, notes, f"generated product {position}"), Instructions(instruction, attributes, ())


def generate_records(
    products: int, seed: int, layout: ShopLayout = DEFAULT_LAYOUT
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Raw records, each with its entry in the file of attributes."""
    shift = stream(seed, "webshop", "asins").integers(ASINS)
    for family_number in range(-(-products // FAMILY_SIZE)):
        source = stream(seed, "webshop", "family", family_number)
        words: list[int] = source.raw(WORDS_PER_PRODUCT * (FAMILY_SIZE + 1)).tolist()
        family = _make_family(WordStream(words[:WORDS_PER_PRODUCT]), family_number)
        for member in range(min(FAMILY_SIZE, products - FAMILY_SIZE * family_number)):
            draw = WordStream(words[WORDS_PER_PRODUCT * (member + 1) : WORDS_PER_PRODUCT * (member + 2)])
            # A product number that no other product of the shop has.
            value, asin = ((FAMILY_SIZE * family_number + member) * ASIN_STEP + shift) % ASINS, "B0"
            for _ in range(8):
                value, digit = divmod(value, len(ALPHABET))
                asin += ALPHABET[digit]
            yield _make_member(draw, family, member, asin, layout)


def _make_family(draw: WordStream, number: int) -> _Family:
    # Shares are kept closely at every size, by a sequence that covers the unit interval evenly.
    position, department = (number * 0.6180339887498949) % 1.0, DEPARTMENTS[-1]
    for candidate in DEPARTMENTS:
        position -= candidate.share
        if position < 0:
            department = candidate
            break
    kind = draw.pick(department.kinds)
    chosen = draw.sample(department.attributes, 8)
    price = kind.low * (kind.high / kind.low) ** (draw.draw_below(1000) / 1000)
    return _Family(department, kind, draw.pick(kind.nouns), chosen[:4], chosen[4:], price)


def _make_member(
    draw: WordStream, family: _Family, member: int, asin: str, layout: ShopLayout
) -> tuple[dict[str, Any], dict[str, Any]]:
    attributes = list(family.attributes)
    if member:
        attributes[(member - 1) % len(attributes)] = family.spare[member % len(family.spare)]
    options = _draw_options(draw, family, layout)
    brand = (draw.pick(SYLLABLES) + draw.pick(SYLLABLES) + draw.pick(SYLLABLES) + draw.pick(BRAND_ENDINGS)).capitalize()
    record = {
        "asin": asin,
        "name": _write_title(draw, family, attributes, brand),
        "full_description": _write_description(draw, family, attributes, brand) if draw.draw_bool(0.7) else "",
        "small_description": _write_bullets(draw, family, attributes),
        "pricing": _draw_price(draw, family.price),
        "images": [f"https://images.example/{asin}.jpg"],
        "product_category": family.kind.path,
        "category": family.department.name,
        "query": family.kind.query,
        "customization_options": {name: [{"value": value} for value in values] for name, values in options.items()},
    }
    notes: dict[str, Any] = {"attributes": attributes}
    if layout.all_instructed or draw.draw_bool(family.department.instructed):
        # The instruction names the kind of product, with some attributes before it and some after it.
        wanted = draw.sample(attributes, 2 + draw.draw_below(len(attributes) - 1))
        before = 1 + draw.draw_below(len(wanted) - 1)
        opening = draw.pick(("Find me", "I am looking for", "Show me", "I want to buy"))
        text = f"{opening} {', '.join(wanted[:before])} {family.kind.query} with {', '.join(wanted[before:])}"
        notes |= {"instruction": text, "instruction_attributes": wanted}
    return record, notes


def _draw_options(draw: WordStream, family: _Family, layout: ShopLayout) -> Mapping[str, Sequence[str]]:
    """The options of a product: in fashion a grid of colours and sizes, elsewhere usually one short list or none."""
    if family.department.name == "fashion":
        return {
            "Color": draw.sample(VALUES["color"], 4 + draw.draw_below(6)),
            "Size": draw.pick_neighbours(SIZES[family.kind.sizes], 4 + draw.draw_below(5)),
        }
    wide = layout.wide or family.department.name == "garden"
    if not wide and draw.draw_bool(0.5):
        return {}
    names = draw.sample(family.department.choices, 2 if wide and draw.draw_bool(0.7) else 1)
    chosen: dict[str, Sequence[str]] = {}
    for name in names:
        count = 2 + draw.draw_below(5 if wide else 3)
        if name == "size":
            chosen["Size"] = draw.pick_neighbours(SIZES[family.kind.sizes], count)
        else:
            chosen[name.title()] = draw.sample(VALUES[name], count)
    return chosen


def _write_title(draw: WordStream, family: _Family, attributes: Sequence[str], brand: str) -> str:
    department = family.department
    parts = [brand]
    if draw.draw_bool(0.4):
        parts.append(draw.pick(TITLE_OPENERS))
    parts += draw.sample(department.looks, 1 + draw.draw_below(2))
    parts += [attribute for attribute in attributes if draw.draw_bool(0.45)]
    if draw.draw_bool(0.5):
        parts.append(draw.pick(department.materials))
    who = next((word for word in ("women's", "men's") if family.kind.query.startswith(word)), "")
    parts += [who, family.noun] if who else [family.noun]
    title = " ".join(parts)
    title = " ".join(word if word.startswith(brand) else word.capitalize() for word in title.split())
    if draw.draw_bool(0.6):
        title += f" for {draw.pick(department.uses).title()}"
    if draw.draw_bool(0.35):
        title += f", {draw.pick(department.looks).title()} {draw.pick(family.kind.nouns).title()}"
    if draw.draw_bool(0.3):
        title += f" - {draw.pick('ABCDEFGHKLMNPRSTVWXYZ')}{draw.draw_below(9000) + 1000}"
    return title


def _write_bullets(draw: WordStream, family: _Family, attributes: Sequence[str]) -> list[str]:
    department, noun = family.department, family.noun
    bullets = [
        f"{draw.pick(department.materials).capitalize()} and {draw.pick(department.materials)}, {draw.pick(CLAIMS)} ",
        f"{draw.pick(department.looks).capitalize()} {noun} with {draw.pick(department.parts)} you will notice ",
        f"Great for {draw.pick(department.uses)} and {draw.pick(department.uses)} ",
    ]
    bullets += [f"{attribute.capitalize()}: {draw.pick(CLAIMS)} " for attribute in attributes if draw.draw_bool(0.5)]
    if draw.draw_bool(0.6):
        bullets.append(f"Note: {draw.pick(CAUTIONS)}. ")
    order = draw.sample(range(len(bullets)), len(bullets))
    return [bullets[place] for place in order]


def _write_description(draw: WordStream, family: _Family, attributes: Sequence[str], brand: str) -> str:
    department, noun = family.department, family.noun
    sentences = [
        f"Meet the {draw.pick(department.looks)} {noun} by {brand}, {draw.pick(CLAIMS)}.",
        f"Its {draw.pick(department.parts)} and {draw.pick(department.parts)} are {draw.pick(CLAIMS)}.",
        f"We chose {draw.pick(department.materials)} because it suits {draw.pick(department.uses)}.",
        f"Take it along for {draw.pick(department.uses)}, or keep it for {draw.pick(department.uses)}.",
        f"Another {draw.pick(family.kind.nouns)} from our range: {draw.pick(department.looks)}, {draw.pick(CLAIMS)}.",
        f"Please note: {draw.pick(CAUTIONS)}.",
    ]
    sentences += [f"It is known for {attribute}." for attribute in attributes if draw.draw_bool(0.35)]
    return " ".join(draw.sample(sentences, 3 + draw.draw_below(len(sentences) - 2)))


def _draw_price(draw: WordStream, around: float) -> str:
    """Mostly one price, sometimes a range, sometimes none, as in the real shop."""
    if draw.draw_bool(0.09):
        return ""
    price = around * (0.85 + draw.draw_below(300) / 1000)
    low = f"${int(price)}.{draw.pick(('99', '95', '49', '00', '89'))}"
    return f"{low}${int(price * 1.35) + 2}.99" if draw.draw_bool(0.1) else low
