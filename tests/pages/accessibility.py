"""Faults that axe-core, the usual checker of accessibility, finds on the page that a browser shows."""

from __future__ import annotations

import os
from pathlib import Path

from .browser import Browser

MISSING = "needs axe-core: npm install --no-save axe-core in the checkout, or AXE_CORE=/path/to/axe.min.js"


def find_axe() -> Path | None:
    """The checker's script, where it is installed."""
    named = os.environ.get("AXE_CORE")
    place = Path(named) if named else Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
    return place if place.is_file() else None


def find_faults(browser: Browser, axe: Path) -> list[str]:
    """The rules that the page breaks, each with the first place."""
    browser.run(axe.read_text("utf-8") + "; return 1")
    found = browser.wait_for(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, { resultTypes: ['violations'] })"
        ".then((r) => done(r.violations), (e) => done([{id: String(e), nodes: []}]))"
    )
    return [
        f"{one['id']}: {[(node['html'][:120], node['failureSummary'][:200]) for node in one['nodes'][:2]]}"
        for one in found
    ]
