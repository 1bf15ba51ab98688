"""Opening a shop's data: generated from a seed, or read from the original's files; in memory or, if large, memory-mapped.

Opened data is cached, so that a hundred clients in one process share one catalogue. Large data is built once into the
cache folder under a name that is a digest of everything it was made from, and mapped from there by every process.

`fedagentgym data add webshop --from FOLDER` checks the original's files and stores them in the form that is
memory-mapped. Afterwards `data="installed"` finds them. The import builds products, index and goals once. A full
import reads several gigabytes and takes some minutes; opening its result takes a moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.base.files import Stamps, atomic_folder, cache_folder, data_folder, read_json, stamp_file
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.data_sets import DataSet, Findings
from fedagentgym.envs.options import INSTALLED
from fedagentgym.envs.webshop import generate
from fedagentgym.envs.webshop.arrays import open_folder
from fedagentgym.envs.webshop.catalogue import Catalogue, Instructions, Product, write_catalogue
from fedagentgym.envs.webshop.goals import KINDS, ORDERS, Goals, make_goals
from fedagentgym.envs.webshop.index import ORIGINAL_FIELDS, Index, build_index, open_index
from fedagentgym.envs.webshop.loading import Files, find_files, read_entries

IN_MEMORY_BYTES = 64 << 20
IN_MEMORY_PRODUCTS = 20_000
IMPORTED = "webshop.json"
PUBLISHED_GOALS = 6_910
"""The number of synthetic goals of the original's 1,000 products."""
LOADED_SPLITS = (500, 1000, 0)
"""The numbers of goals of test, val and warmup for loaded data."""
LAYOUT_VERSION = 1

Entries = Callable[[], Iterable[tuple[Product, Instructions]]]


class Preset(NamedTuple):
    """A size of generated shop: the number of products, their layout, and the number of goals of each split."""

    products: int
    layout: generate.ShopLayout
    test: int
    val: int
    warmup: int


PRESETS = {
    "default": Preset(1000, generate.ShopLayout(), test=500, val=1000, warmup=500),
    "tiny": Preset(60, generate.ShopLayout(all_instructed=True, wide=True), test=100, val=200, warmup=200),
    "small": Preset(60, generate.ShopLayout(all_instructed=True, wide=True), test=100, val=100, warmup=500),
}


class ShopChoice(NamedTuple):
    """The options that determine the products of the shop and the order of its goals."""

    data: str | None = None
    size: str = "default"
    products: int | None = None
    goals: str = "synthetic"
    goal_order: str = "webshop"
    seed: int = 42


@dataclass(frozen=True, eq=False)
class ShopData:
    """An opened shop: products, goals, which goals belong to which split, and what it was made from. Compared by
    identity, so it can be a cache key."""

    catalogue: Catalogue
    goals: Goals
    splits: Mapping[str, range]
    source: Mapping[str, Any]
    folder: Path | None


def check_shop_options(choice: ShopChoice) -> ShopChoice:
    """The options with every value checked."""
    for name, value, allowed in (
        ("size", choice.size, tuple(PRESETS)),
        ("goals", choice.goals, KINDS),
        ("goal_order", choice.goal_order, ORDERS),
    ):
        if value not in allowed:
            raise OptionError(f"{name} must be one of {join_names(allowed)}, got {value!r}")
    for name, number in (("products", choice.products), ("seed", choice.seed)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise OptionError(f"{name} must be an integer, got {number!r}")
    if choice.products is not None and choice.products < 1:
        raise OptionError(f"products must be at least 1, got {choice.products}")
    if choice.seed < 0:
        raise OptionError(f"seed must be at least 0, got {choice.seed}")
    if choice.data is None and choice.goals == "human":
        raise OptionError(
            'goals="human" needs the sentences that people wrote: give data="FOLDER" with items_human_ins.json'
        )
    if choice.data is not None and choice.size != "default":
        raise OptionError(f"size={choice.size!r} is for generated shops; with data= use products=N to take the first N")
    return choice


def open_shop_data(choice: ShopChoice) -> ShopData:
    """Open a shop; the same options in the same process give the same object."""
    check_shop_options(choice)
    if choice.data is None:
        return _generate_shop_data(choice)
    folder = data_folder("webshop") if choice.data == INSTALLED else Path(choice.data).expanduser().resolve()
    if choice.data == INSTALLED and not folder.is_dir():
        raise DataError(
            f"no WebShop data is imported ({folder}): run `fedagentgym data add webshop --from FOLDER` first"
        )
    # Names, sizes and times of the data files: when they change, cached data is no longer valid.
    record = folder / IMPORTED
    files = [record] if record.is_file() else find_files(folder).list_present()
    stamps = tuple((path.name, stamp_file(path)) for path in files)
    return _load_shop_data(choice._replace(data=str(folder)), stamps)


@lru_cache(maxsize=8)
def _generate_shop_data(choice: ShopChoice) -> ShopData:
    preset = PRESETS[choice.size]
    products = choice.products or preset.products
    generator = f"webshop-{generate.VERSION}"
    made_of = {"generator": generator, "size": choice.size, "products": products, "seed": choice.seed}
    source = {**made_of, "goal_order": choice.goal_order}
    large = products > IN_MEMORY_PRODUCTS
    entries: Entries = lambda: generate.generate(products, choice.seed, preset.layout)  # noqa: E731
    folder = cache_folder("webshop", digest([made_of, LAYOUT_VERSION])[7:23]) if large else None
    catalogue = _open_or_build_catalogue(entries, made_of, folder)
    goals = _open_or_build_goals(catalogue, choice, folder)
    splits = compute_split_ranges(len(goals), choice.goal_order, (preset.test, preset.val, preset.warmup))
    return ShopData(catalogue, goals, splits, source, folder)


@lru_cache(maxsize=8)
def _load_shop_data(choice: ShopChoice, state: Stamps) -> ShopData:
    original = Path(str(choice.data))
    folder: Path | None
    if (original / IMPORTED).is_file():
        record = read_json(original / IMPORTED)
        if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
            raise DataError(f"{original / IMPORTED} is not a record of imported data: import the data again")
        files, folder = record["files"], original
        catalogue = Catalogue(open_folder(original / "catalogue"))
        if choice.products not in (None, len(catalogue)):
            raise OptionError(f"products={choice.products}: imported data is used whole ({len(catalogue)} products)")
    else:
        found = find_files(original)
        digests = _digest_files(original, state)
        files = {path.name: digests[path.name] for path in found.list_present()}
        large = found.products.stat().st_size > IN_MEMORY_BYTES
        folder = cache_folder("webshop", digest([files, choice.products, LAYOUT_VERSION])[7:23]) if large else None
        catalogue = _open_or_build_catalogue(lambda: read_entries(found, choice.products), {"files": files}, folder)
    goals = _open_or_build_goals(catalogue, choice, folder)
    source = {
        "files": files,
        "products": len(catalogue),
        "goals": choice.goals,
        "goal_order": choice.goal_order,
        "seed": choice.seed,
    }
    return ShopData(
        catalogue, goals, compute_split_ranges(len(goals), choice.goal_order, LOADED_SPLITS), source, folder
    )


@lru_cache(maxsize=8)
def _digest_files(folder: Path, state: Stamps) -> dict[str, str]:
    return {name: file_digest(folder / name) for name, _ in state}


def _open_or_build_catalogue(entries: Entries, header: Mapping[str, Any], folder: Path | None) -> Catalogue:
    if folder is None:
        return write_catalogue(entries(), header)
    place = folder / "catalogue"
    if not place.exists():
        _build(place, lambda target: write_catalogue(entries(), header, target))
    return Catalogue(open_folder(place))


def _open_or_build_goals(catalogue: Catalogue, choice: ShopChoice, folder: Path | None) -> Goals:
    if folder is None:
        return make_goals(catalogue, choice.goals, choice.goal_order, choice.seed)
    place = goals_folder(folder, choice)
    if not os.access(folder, os.W_OK) and not place.exists():
        return make_goals(catalogue, choice.goals, choice.goal_order, choice.seed)
    if not place.exists():
        _build(place, lambda target: make_goals(catalogue, choice.goals, choice.goal_order, choice.seed, target))
    return Goals(catalogue, open_folder(place))


def goals_folder(folder: Path, choice: ShopChoice) -> Path:
    return folder / f"goals-{choice.goals}-{choice.goal_order}-{choice.seed}"


def index_folder(folder: Path, fields: tuple[str, ...]) -> Path:
    return folder / f"index-{'-'.join(fields)}"


def _build(place: Path, fill: Callable[[Path], object]) -> None:
    """Fill a new folder and move it to `place`; if another process was faster, its folder is kept."""
    get_logger(__name__).info("building %s (once)", place)
    try:
        with atomic_folder(place) as target:
            fill(target)
    except DataError:
        if not (place / "header.json").is_file():
            raise


def get_index(stock: ShopData, fields: tuple[str, ...] = ORIGINAL_FIELDS) -> Index:
    """The search index of a stock over some fields; built at first use."""
    return _open_or_build_index(stock.catalogue, fields, stock.folder)


@lru_cache(maxsize=16)
def _open_or_build_index(catalogue: Catalogue, fields: tuple[str, ...], folder: Path | None) -> Index:
    if folder is None:
        return build_index(catalogue, fields)
    place = index_folder(folder, fields)
    if not place.exists():
        if not os.access(folder, os.W_OK):
            return build_index(catalogue, fields)
        _build(place, lambda target: build_index(catalogue, fields, target))
    return open_index(open_folder(place))


def compute_split_ranges(goals: int, order: str, sizes: tuple[int, int, int]) -> dict[str, range]:
    """The goals of each split. The order `webshop` has test, val and train; `fedagent` has val (as many goals as `webshop`
    has in test) and train. Warmup goals come last in both. Shops too small for the sizes of their preset use those of `tiny`."""
    test, val, warmup = sizes
    if warmup and goals < test + val + 2 * warmup:
        test, val, warmup = (PRESETS["tiny"].test, PRESETS["tiny"].val, PRESETS["tiny"].warmup)
    end = max(goals - warmup, 0)
    ends = [0, test, test + val] if order == "webshop" else [0, 0, test]
    first, second, third = (min(edge, end) for edge in ends)
    return {
        "test": range(first, second),
        "val": range(second, third),
        "train": range(third, end),
        "warmup": range(end, goals),
    }


COUNT_EVERY = 1000


def import_data(folder: Path) -> Path:
    """Import the files of a folder; every record is validated, and nothing is left behind if one is malformed."""
    target = data_folder("webshop")
    if target.exists():
        raise DataError(f"WebShop's data is there already, in {target}; remove that folder to import it anew")
    files = find_files(Path(folder))
    digests = {path.name: file_digest(path) for path in files.list_present()}
    with atomic_folder(target) as fresh:
        (fresh / "catalogue").mkdir()
        catalogue = write_catalogue(_iter_with_progress(files), {"files": digests}, fresh / "catalogue")
        if not len(catalogue):
            raise DataError(f"{files.products} holds no product")
        for kind in ("synthetic", *(["human"] if files.human else [])):
            choice = ShopChoice(goals=kind)
            place = goals_folder(fresh, choice)
            place.mkdir()
            make_goals(catalogue, kind, choice.goal_order, choice.seed, place)
        place = index_folder(fresh, ORIGINAL_FIELDS)
        place.mkdir()
        build_index(catalogue, ORIGINAL_FIELDS, place)
        (fresh / IMPORTED).write_text(json.dumps({"files": digests, "products": len(catalogue)}), encoding="utf-8")
    get_logger(__name__).info("%d WebShop products imported", len(catalogue))
    return target


def _iter_with_progress(files: Files) -> Iterator[tuple[Product, Instructions]]:
    with show_progress("importing WebShop products", None) as bar:
        number = 0
        for number, entry in enumerate(read_entries(files), start=1):
            yield entry
            if number % COUNT_EVERY == 0:
                bar.advance(COUNT_EVERY)
        bar.advance(number % COUNT_EVERY)


def check_shop(folder: Path | None) -> Findings:
    """The goals of the imported shop, or of the shop that a folder holds, by split."""
    stock = open_shop_data(ShopChoice(INSTALLED if folder is None else str(folder)))
    categories = ", ".join(stock.catalogue.category_names)
    return Findings(
        place=data_folder("webshop") if folder is None else folder,
        tasks={split: len(places) for split, places in stock.splits.items() if len(places)},
        digest=digest(stock.source),
        rows=len(stock.catalogue),
        columns=tuple(stock.source["files"]),
        notes=(f"goals=synthetic in the order of the original; {len(stock.catalogue):,} products of {categories}",),
    )


DATA_SETS: Mapping[str, DataSet] = {
    "webshop": DataSet(
        name="webshop",
        about="fedagentgym/WebShop-v0, the products and instructions of WebShop",
        licence="MIT",
        columns="items_shuffle[_1000].json, items_ins_v2[_1000].json, items_human_ins.json",
        splits="train, val, test: goals of the products, in the order of `goal_order`",
        use="data: installed",
        published=({"train": 5410, "val": 1000, "test": 500},),
        install=lambda folder, subset: import_data(folder),
        check=lambda folder, subset: check_shop(folder),
        origin="the links in setup.sh of github.com/princeton-nlp/WebShop",
    )
}
