"""`index.html`: a tab for each suite, with its table, its figures, its episodes, and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fedagentgym.experiment.report.episodes import read_assets, to_script_json
from fedagentgym.experiment.report.markup import fold, format_bytes, show
from fedagentgym.leaderboard.record import Interval, Measures, Rerun
from fedagentgym.leaderboard.site.bands import Place
from fedagentgym.leaderboard.site.differences import Compared, render_differences
from fedagentgym.leaderboard.site.entries import Entry, SuiteEntries
from fedagentgym.leaderboard.site.figures import render_figures
from fedagentgym.leaderboard.site.published import describe_cautions, find_paper, read_published, render_paper
from fedagentgym.leaderboard.site.tables import find_metric, format_value, list_measures, order_entries, tell_status
from fedagentgym.leaderboard.suite import Suite

PUBLISHED = "published"
TITLE = "fedagentgym leaderboard"
CHECKED = (
    "Every task of a suite has known digests, and an episode is fixed by its task, its seed and its actions. So a result"
    " marked <b>replayed</b> was played again, action by action, and earned what it says; its numbers were computed again"
    " from those episodes. Whose actions they were cannot be shown that way: results marked <b>run again by the"
    " maintainers</b> were produced a second time, where there is a secret twin also on tasks that had never been published."
)


@dataclass(frozen=True)
class SuitePage:
    """A suite with the ranks of its entries, by scenario, and where each entry's files lie."""

    found: SuiteEntries
    places: Mapping[str, Mapping[str, Place]]
    links: Mapping[str, str]
    differences: list[Compared]

    @property
    def ordered(self) -> list[Entry]:
        """The entries, best first."""
        return order_entries(self.found.entries, self.places[""])


def render_site(pages: Sequence[SuitePage]) -> str:
    """The whole page."""
    folder = files("fedagentgym.leaderboard.site")
    base = (files("fedagentgym.experiment.report") / "report.css").read_text("utf-8")
    browser_style, browser_script = read_assets()
    style = base + browser_style + (folder / "site.css").read_text("utf-8")
    script = browser_script + (folder / "site.js").read_text("utf-8")
    names = [(page.found.key, page.found.suite.title) for page in pages]
    tabs = "".join(
        f'<button type="button" role="tab" id="tab-{show(key)}" aria-controls="panel-{show(key)}">{show(title)}</button>'
        for key, title in [*names, (PUBLISHED, "Published numbers")]
    )
    panels = "".join(_render_panel(page) for page in pages) + _render_published()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><style>{style}</style></head><body><main><header class="site">'
        f'<h1>fedagentgym</h1><p class="result"><b>Leaderboard</b></p>'
        '<p class="about">Federated reinforcement learning of language agents: agents, and methods that train them, on'
        " fixed tasks. Every row is a folder that anybody can check.</p></header>"
        f'<div class="tabs" role="tablist" aria-label="Suites">{tabs}</div>{panels}</main>'
        f"<script>{script}</script></body></html>\n"
    )


# ---- a suite ----------------------------------------------------------------------------------------------------------


def _render_panel(page: SuitePage) -> str:
    suite, key = page.found.suite, show(page.found.key)
    paper = find_paper(suite.paper)
    published = f"<h2>Published beside it</h2>{render_paper(paper)}" if paper is not None else ""
    figures = render_figures(page.found, page.ordered)
    return (
        f'<section class="suite" role="tabpanel" id="panel-{key}" aria-labelledby="tab-{key}" data-suite="{key}">'
        f'<h2 class="title">{show(suite.title)}</h2><p class="result">{_tell_leader(page)}</p>'
        f'<p class="about">{show(suite.about)}</p>{_render_facts(page)}{_render_expected(suite)}'
        '<div class="board"><noscript>The table is drawn by a script; the same numbers are in'
        f' <a href="{key}.md">{key}.md</a>.</noscript></div>'
        f'<p class="note">The same table as <a href="{key}.md">Markdown</a>, every number as <a href="{key}.csv">CSV</a>.'
        f" Entries of one band do not differ significantly from the first of it ({_tell_test()}).</p>"
        f"{_render_differences(page)}{'<h2>Figures</h2>' if figures else ''}{figures}"
        '<h2>Episodes</h2><div class="episode-choice"></div><div class="episode-place"></div>'
        f"{published}{_render_checks(page)}"
        f'<script type="application/json" id="data-{key}">{to_script_json(describe_suite(page))}</script></section>'
    )


def _render_differences(page: SuitePage) -> str:
    titles = {entry.name: entry.manifest.entry.title for entry in page.found.entries}
    return render_differences(page.found.suite, titles, page.differences)


def _tell_test() -> str:
    return "paired on tasks and seeds, 5 %, Holm's correction"


def _tell_leader(page: SuitePage) -> str:
    """The leading entry, in a sentence."""
    places = page.places[""]
    if not places:
        return "No entry has played all of it: choose a scenario to compare those that played it."
    ordered = page.ordered
    first = ordered[0].manifest
    ranked, metric = first.overall[first.ranked], find_metric(first.ranked)
    band = [entry for entry in ordered if entry.name in places and places[entry.name].band == 1]
    shared = ""
    if len(band) > 1:
        shared = f" {len(band) - 1} more {'is' if len(band) == 2 else 'are'} not significantly worse."
    ends = f" [{format_value(ranked.low, metric)}, {format_value(ranked.high, metric)}]"
    interval = ends if ranked.low < ranked.high else ""
    return (
        f"<b>{show(first.entry.title)}</b> leads with {format_value(ranked.mean, metric)} {show(metric.title)}"
        f"{interval}.{shared}"
    )


def _render_facts(page: SuitePage) -> str:
    suite = page.found.suite
    facts = [
        ("entries", f"{len(page.found.entries)}"),
        ("scenarios", f"{len(suite.scenarios)}"),
        ("seeds", ", ".join(map(str, suite.seeds))),
        ("track", suite.track),
        ("ranked by", f"{find_metric(suite.rank_by).title}, split {suite.ranking.split}"),
    ]
    facts += [("budget", _tell_budget(suite))] if _tell_budget(suite) else []
    facts.append(("secret twin", "held back by the maintainers" if suite.secret else "none"))
    cells = "".join(f"<div><dt>{show(name)}</dt><dd>{show(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>{_render_scenarios(suite)}'


def _tell_budget(suite: Suite) -> str:
    budget = suite.budget
    told = [
        f"{budget.rounds:,} rounds" if budget.rounds is not None else "",
        f"{budget.episodes:,} episodes" if budget.episodes is not None else "",
        format_bytes(budget.bytes) if budget.bytes is not None else "",
    ]
    return ", ".join(part for part in told if part)


def _render_scenarios(suite: Suite) -> str:
    items = "".join(
        f"<li><b>{show(name)}</b>{': ' + show(one.about) if one.about else ''}"
        f"{'' if one.methods_differ else ' <span class=badge>methods do not differ here</span> ' + show(one.because)}</li>"
        for name, one in suite.scenarios.items()
    )
    return fold("Scenarios", f'<ul class="scenarios">{items}</ul><p class="note"><code>{suite.digest}</code></p>')


def _render_expected(suite: Suite) -> str:
    """What was expected before anything was played."""
    items = "".join(f"<li>{show(one)}</li>" for one in suite.expected)
    return fold("What was expected, written down before it was played", f"<ul>{items}</ul>") if items else ""


def _render_checks(page: SuitePage) -> str:
    """The checks of the entries, and the claims that cannot be proven."""
    unproven: dict[str, set[str]] = {}
    for entry in page.found.entries:
        for claim in entry.verification.claims if entry.verification is not None else ():
            if claim.status == "not provable":
                unproven.setdefault(claim.name, set()).add(claim.about)
    items = "".join(
        f"<li><b>{show(name)}</b>: {show(about)}</li>"
        for name, told in sorted(unproven.items())
        for about in sorted(told)[:3]
    )
    rest = f'<p class="about">What cannot be proven by playing episodes again:</p><ul>{items}</ul>' if items else ""
    return f'<h2>What is checked</h2><p class="about">{CHECKED}</p>{rest}'


def _render_published() -> str:
    cautions = "".join(f"<li>{show(note)}</li>" for note in describe_cautions())
    papers = "".join(f'<div class="card">{render_paper(paper)}</div>' for paper in read_published())
    disagreeing = fold("What does not agree within the papers", f"<ul>{cautions}</ul>")
    return (
        f'<section class="suite" role="tabpanel" id="panel-{PUBLISHED}" aria-labelledby="tab-{PUBLISHED}">'
        '<h2 class="title">Published numbers</h2><p class="result">What the papers print, as they print it.</p>'
        '<p class="about">Not measured here and never ranked: other models, other tasks, other machines. Numbers that need'
        f" a caution carry it below their table.</p>{papers}{disagreeing}"
        "</section>"
    )


# ---- the data of the table's script --------------------------------------------------------------------------------


def describe_suite(page: SuitePage) -> dict[str, Any]:
    """A suite as the script of the page reads it."""
    names = list_measures(page.found.entries)
    return {
        "key": page.found.key,
        "ranked": page.found.entries[0].manifest.ranked,
        "measures": [_describe_measure(name) for name in names],
        "scenarios": list(page.found.suite.scenarios),
        "entries": [_describe_entry(page, entry) for entry in page.ordered],
    }


def _describe_measure(name: str) -> dict[str, Any]:
    metric = find_metric(name)
    return {"name": name, "title": metric.title, "about": metric.about, "unit": metric.unit, "better": metric.better}


def _describe_entry(page: SuitePage, entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    about, agent, method = manifest.entry, manifest.entry.agent, manifest.entry.method
    verification = entry.verification
    rerun = verification.rerun if verification is not None else None
    return {
        "name": entry.name,
        "title": about.title,
        "baseline": about.baseline,
        "agent": agent.model or str(agent.settings.get("name", agent.kind)),
        "kind": agent.kind,
        "method": method.algorithm if method is not None else "",
        "changes": list(method.changes) if method is not None else [],
        "plugins": [one.name for one in method.plugins] if method is not None else [],
        "by": about.submitted_by,
        "link": about.link if about.link.startswith(("https://", "http://")) else "",
        "note": about.note,
        "status": tell_status(entry),
        "part": "" if entry.is_whole else f"{len(manifest.scenarios)} of {len(entry.suite.scenarios)} scenarios",
        "rerun": _describe_rerun(rerun, manifest.ranked) if rerun is not None else None,
        "claims": [[one.name, one.status, one.about] for one in verification.claims] if verification else [],
        "date": manifest.made.date,
        "version": manifest.made.versions.get("fedagentgym", ""),
        "machine": ", ".join(f"{name} {value}" for name, value in sorted(manifest.made.machine.items())),
        "seconds": round(manifest.made.seconds),
        "seeds": list(manifest.seeds),
        "episodes": sum(cell.episodes for cell in manifest.cells),
        "files": page.links[entry.name],
        "packed": [name for name in manifest.files if name.startswith("episodes/")],
        "places": {
            scenario: [place.rank, place.band, _round(place.difference.adjusted) if place.difference else None]
            for scenario, ranks in page.places.items()
            if (place := ranks.get(entry.name)) is not None
        },
        "measures": {"": _describe_measures(entry.overall)}
        | {scenario: _describe_measures(found) for scenario, found in manifest.by_scenario.items()},
        "categories": _describe_categories(entry),
    }


def _describe_categories(entry: Entry) -> dict[str, list[list[Any]]]:
    """Success by category in each scenario, as the mean over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in entry.manifest.cells:
        for category, measures in cell.categories.items():
            if "success" in measures:
                found.setdefault(cell.scenario, {}).setdefault(category, []).append(measures["success"].mean)
    return {
        scenario: [[category, _round(sum(values) / len(values))] for category, values in sorted(below.items())]
        for scenario, below in found.items()
    }


def _describe_rerun(rerun: Rerun, ranked: str) -> dict[str, Any]:
    """The ranked measure as maintainers measured it, on the public tasks and on those of the secret twin."""
    return {
        "date": rerun.date,
        "public": _describe_interval(rerun.public[ranked]) if ranked in rerun.public else None,
        "secret": _describe_interval(rerun.secret[ranked]) if ranked in rerun.secret else None,
    }


def _describe_measures(found: Measures) -> dict[str, list[float]]:
    return {name: _describe_interval(one) for name, one in found.items()}


def _describe_interval(one: Interval) -> list[float]:
    return [_round(one.mean), _round(one.low), _round(one.high)]


def _round(value: float) -> float:
    return float(f"{value:.6g}")
