"""`fedagentgym data add webshop --from FOLDER`: the original's files, checked, and stored in the form that is memory-mapped.

Afterwards `data="installed"` finds them. Products, index and goals are built once here; a full import reads several
gigabytes and takes some minutes, opening what it made takes a moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import atomic_folder, data_folder
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.data_sets import DataSet, Findings
from fedagentgym.envs.webshop.catalogue import Instructions, Product, write_catalogue
from fedagentgym.envs.webshop.goals import make_goals
from fedagentgym.envs.webshop.index import ORIGINAL_FIELDS, build_index
from fedagentgym.envs.webshop.loading import Files, find_files, read_entries
from fedagentgym.envs.webshop.stock import (
    IMPORTED,
    INSTALLED,
    ShopOptions,
    goals_folder,
    index_folder,
    open_shop_data,
)

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
            choice = ShopOptions(goals=kind)
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
        for number, entry in enumerate(read_entries(files)):
            if number % COUNT_EVERY == 0:
                bar.advance(COUNT_EVERY)
            yield entry


def check_shop(folder: Path | None) -> Findings:
    """The goals of the imported shop, or of the shop that a folder holds, by split."""
    stock = open_shop_data(ShopOptions(INSTALLED if folder is None else str(folder)))
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
    )
}
