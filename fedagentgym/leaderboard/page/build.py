"""A folder of static files made from results. The same results give the same bytes.

index.html                      the page; opens from disk and needs no network
README.md                       the settings of a static Space of the Hugging Face Hub
overview.md                     every suite: the best federated method beside its baselines, and the agents
SUITE.md, SUITE.csv             the tables
episodes/SUITE/ENTRY.js         episodes for the page's episode browser, compressed and loaded on demand
results/SUITE/ENTRY.zip         copies of the results, unless the page links to them
"""

from __future__ import annotations

import base64
import gzip
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder, format_path, get_name, locate_replaced, write_atomic
from fedagentgym.leaderboard.page.index import View, read_published, view_suite
from fedagentgym.leaderboard.page.tables import (
    AGENT_HEADS,
    METHOD_HEADS,
    list_overview,
    write_csv,
    write_markdown,
    write_overview,
)
from fedagentgym.leaderboard.rank import Place, compare_suite, rank
from fedagentgym.leaderboard.results import SuiteEntries, pack, read_suites
from fedagentgym.leaderboard.suite import WHOLE
from fedagentgym.pages.episodes import Source, make_browser_data, read_episodes
from fedagentgym.pages.render import render, to_script_json
from fedagentgym.runs.folder import RANKED

MARK = ".fedagentgym-leaderboard"
"""A file that marks a folder as a page of the leaderboard, so that a newer page may replace it."""
MARK_TEXT = "This folder was written by `fedagentgym leaderboard build` and is replaced by it.\n"
README = """\
---
title: fedagentgym leaderboard
sdk: static
tags: [leaderboard, fedagentgym]
---

Results of the suites of fedagentgym, as static files: open `index.html`.
"""
MAX_EPISODE_CHARACTERS = 400_000


def build_site(
    places: Sequence[Path], out: Path, *, link: str | None = None, verified: Sequence[Path] = ()
) -> list[SuiteEntries]:
    """Write the page of these results; returns the results by suite. `link` is the address of the results relative to the page,
    `verified` are folders of findings about them."""
    found = read_suites(places, verified)
    if not found:
        searched = ", ".join(map(format_path, places))
        raise DataError(f"there is no result in {searched}: `fedagentgym bench pack` makes one")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise OptionError(f"--out {format_path(out)}: it exists and is not a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        problem = "the folder holds other files than a leaderboard's; choose another"
        raise OptionError(f"--out {format_path(out)}: {problem}")
    out = locate_replaced(out)
    fresh = out.with_name(f"{out.name}.new")
    if (fresh / MARK).is_file():
        shutil.rmtree(fresh)
    with atomic_folder(fresh) as place:
        found.sort(key=lambda one: one.suite.track == "agents")  # the page opens on methods
        written, (papers, cautions) = [_write_suite(one, place, link) for one in found], read_published()
        methods, agents = list_overview([(one, places) for one, (_, places) in zip(found, written, strict=True)])
        write_atomic(place / "overview.md", write_overview(methods, agents))
        groups = {
            title: [view for view, _ in written if view["suite"].track == track]
            for title, track in (("Methods", "methods"), ("Agents", "agents"))
        }
        overview = {
            "methods": methods,
            "agents": agents,
            "method_heads": [(head, False) for head in METHOD_HEADS],
            "agent_heads": [(head, False) for head in AGENT_HEADS],
        }
        page = render("leaderboard.html", groups=groups, overview=overview, papers=papers, cautions=cautions)
        write_atomic(place / "index.html", page)
        write_atomic(place / "README.md", README)
        write_atomic(place / MARK, MARK_TEXT)
    if out.exists():
        shutil.rmtree(out)
    fresh.replace(out)
    return found


def _write_suite(found: SuiteEntries, place: Path, link: str | None) -> tuple[View, Mapping[str, Place]]:
    """Write a suite's tables, the scripts with its entries' episodes (of the first seed in each scenario) and, without `link`,
    copies of its results. Returns the suite's part of the page and the places over all scenarios."""
    values = found.tabulate()
    differences = compare_suite(found.suite, values)
    places = rank(found.suite, values, differences)
    write_atomic(place / f"{found.key}.md", write_markdown(found, places[WHOLE], differences))
    write_atomic(place / f"{found.key}.csv", write_csv(found, places[WHOLE]))
    links = {}
    for entry in found.entries:
        cells: dict[str, object] = {}
        for scenario, seed in entry.keys:
            if scenario not in cells:
                with entry.open_run((scenario, seed), RANKED) as run:
                    source = Source(entry.entry.title, read_episodes(run.path / RANKED))
                cells[scenario] = make_browser_data([source], most=MAX_EPISODE_CHARACTERS)
        # compression reduces episodes to a twelfth, and browsers can decompress without a library
        packed = base64.b64encode(gzip.compress(to_script_json(cells).encode(), mtime=0)).decode()
        data = to_script_json({"suite": found.key, "entry": entry.name, "packed": packed})
        script = place / "episodes" / found.key / f"{entry.name}.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(script, f"receiveEpisodes({data});\n")
        if link is not None:
            links[entry.name] = f"{link.rstrip('/')}/{quote(found.suite.name)}/{quote(get_name(entry.path))}"
            continue
        copy = place / "results" / found.key / f"{entry.name}.zip"
        copy.parent.mkdir(parents=True, exist_ok=True)
        if entry.archive is None:
            pack(entry, copy)
        else:
            shutil.copyfile(entry.path, copy)
        links[entry.name] = f"results/{found.key}/{quote(copy.name)}"
    return view_suite(found, places, links, differences), places[WHOLE]
