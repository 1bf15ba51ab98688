"""The rows of a data set on the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.extras import require

SPLITS = {"train": "train", "test": "test", "validation": "val", "dev": "val", "val": "val"}


def download_parts(hub: str, subset: str | None) -> dict[str, Any]:
    """The tables of a data set by the names that the hub gives them."""
    datasets = require("datasets", "data")
    try:
        return dict(datasets.load_dataset(hub, subset))
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot load {hub} from the Hugging Face hub ({first[:160]}): give a local file with data=FILE, or install one"
            " with `fedagentgym data add NAME --from FILE`"
        ) from None


def download_rows(hub: str, subset: str | None) -> tuple[list[tuple[str, str | None, object]], dict[str, Any]]:
    """Every record with its place and its split, and the identity of the data."""
    parts = download_parts(hub, subset)
    found = [
        (f"{hub}, {part}, record {number}", SPLITS.get(part), record)
        for part, table in parts.items()
        for number, record in enumerate(table, start=1)
    ]
    prints = {part: str(getattr(table, "_fingerprint", "")) for part, table in parts.items()}
    return found, {"hub": hub, "rows": len(found), "fingerprints": prints}
