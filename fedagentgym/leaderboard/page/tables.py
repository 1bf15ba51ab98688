"""The tables of a suite as Markdown and CSV, and its findings in words: planned differences, the outcome of its expectations, and
its control."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedagentgym.base.errors import join_names, unknown_name_error
from fedagentgym.base.escape import escape_csv, escape_markdown, quote_word
from fedagentgym.base.rounding import format_fixed, format_range, subtract_shown
from fedagentgym.base.statistics import (
    LEVEL,
    MIN_REPLICATES,
    Difference,
    compare_replicates,
    find_quartiles,
)
from fedagentgym.experiment.estimate.hours import GPUS
from fedagentgym.leaderboard.compare import format_p
from fedagentgym.leaderboard.costs import estimate_rental, estimate_suite
from fedagentgym.leaderboard.entries import find_tuned
from fedagentgym.leaderboard.grid import Chosen
from fedagentgym.leaderboard.metrics import METRICS, Interval, find_ends, find_metric, format_spread, format_value
from fedagentgym.leaderboard.rank import Compared, Place, find_decided, find_outcome, read_planned
from fedagentgym.leaderboard.results import Result, SuiteEntries
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite

RUNS = (
    "Runs, in percent: the lowest, the quartiles and the highest; after them how many collapsed, which means that they ended no"
    " higher on the curve's split than they started"
)
DECIDES = "smallest that shows"
"""The head of the column with the smallest difference that the same number of runs, with their spread, would find in four of five
experiments."""
FINDINGS = "## By scenario"
"""The heading above the results by scenario."""
MEAN = "mean"
"""The text that stands for the mean over scenarios where a scenario's name would stand."""
STEPS = "optimizer_steps"
IN_SCENARIOS = ("success", "worst_client", "own_world", "own_world_worst")
"""The measures with a table by scenario, besides the ranked one."""


def list_measures(entries: Sequence[Result]) -> list[str]:
    """The measures that at least one entry has, the ranked one first, then in the order of `METRICS`."""
    ranked = entries[0].suite.rank_by
    found = [each for entry in entries for each in (entry.numbers.overall, *entry.numbers.by_scenario.values())]
    known = {name for measures in found for name in measures}
    ordered = [name for name in METRICS if name in known and name != ranked]
    return [ranked, *ordered, *sorted(known - {ranked, *METRICS})]


def format_status(entry: Result) -> str:
    """Return the state of the result's verification and, if not all scenarios were played, how many were."""
    found = entry.verification
    if found is None:
        state = "not verified"
    elif any(claim.status == "refuted" for claim in found.claims):
        state = "refuted"
    else:
        state = "replayed" if found.replayed else "checked"
        state += "" if found.rerun is None else ", run again by the maintainers"
    return state if entry.is_whole else f"{state}, {describe_part(entry)}"


def describe_part(entry: Result) -> str:
    """Return the number of played scenarios, as text."""
    return f"{len(entry.scenarios)} of {len(entry.suite.scenarios)} scenarios"


def write_markdown(found: SuiteEntries, places: Mapping[str, Place], differences: Sequence[Compared]) -> str:
    """The Markdown page of a suite: the table over all scenarios, best first, tables by scenario, planned differences,
    expectations, and the control."""
    ordered = order_entries(found.entries, places)
    measures = [name for name in list_measures(ordered) if any(name in one.numbers.overall for one in ordered)]
    lines = [f"# {escape_markdown(found.suite.title)}", "", f"`{found.suite.name}`, version {found.suite.version}.", ""]
    lines += [*_write_table(found.suite, ordered, places, measures), "", FINDINGS, ""]
    if settings := list_settings(found.suite, ordered):
        lines += [
            f"Settings, {describe_search(found.suite)}:",
            "",
            f"| | settings | {found.suite.selection.split} |",
            "|---|---|---|",
        ]
        lines += [*(f"| {' | '.join(map(escape_markdown, row))} |" for row in settings), ""]
    for name in dict.fromkeys((ordered[0].suite.rank_by, *IN_SCENARIOS)):
        lines += _write_scenarios(found, ordered, name)
    if runs := list_runs(found.suite, ordered):
        heads = ["", *found.suite.scenarios]
        lines += [f"{RUNS}:", "", f"| {' | '.join(map(escape_markdown, heads))} |", "|" + "---|" * len(heads)]
        lines += [*(f"| {' | '.join([escape_markdown(title), *cells])} |" for title, *cells in runs), ""]
    if differences:
        lines += [
            "Planned differences, in points:",
            "",
            f"| | scenario | difference | 95 %, or each run | p | {DECIDES} | shows |",
        ]
        lines.append("|---|---|---|---|---|---|---|")
        for first, second, scenario, *numbers in list_differences(found, differences):
            names = [escape_markdown(name) for name in (f"{first} - {second}", scenario)]
            lines.append(f"| {' | '.join([*names, *numbers])} |")
        lines.append("")
    if expected := list_expected(found.suite, differences):
        lines += ["Expected:", "", *(f"- {escape_markdown(one)}" for one in expected), ""]
    if sentences := describe_control(found, differences):
        lines += [escape_markdown(" ".join(sentences)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _write_scenarios(found: SuiteEntries, entries: Sequence[Result], name: str) -> Iterator[str]:
    """The lines of the table of one measure, with a column for each scenario and, for the ranked measure, one for optimizer
    steps. Without lines if no entry has the measure."""
    by_scenario = {entry.name: entry.numbers.by_scenario for entry in entries}
    if not any(name in measures for each in by_scenario.values() for measures in each.values()):
        return
    scenarios, metric = list(found.suite.scenarios), find_metric(name)
    has_steps = name == found.suite.rank_by and STEPS in list_measures(entries)
    heads = ["", *map(escape_markdown, scenarios), *([find_metric(STEPS).title] if has_steps else [])]
    yield f"{metric.title[0].upper()}{metric.title[1:]}:"
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for entry in entries:
        measured = [by_scenario[entry.name].get(scenario, {}).get(name) for scenario in scenarios]
        if any(measured):
            runs = [entry.numbers.list_runs(name, scenario) for scenario in scenarios]
            cells = [_format_cell(one, name, own) for one, own in zip(measured, runs, strict=True)]
            if has_steps:
                taken = [by_scenario[entry.name].get(scenario, {}).get(STEPS) for scenario in scenarios]
                cells.append(", ".join(format_value(one.mean, find_metric(STEPS)) for one in taken if one is not None))
            yield f"| {' | '.join([escape_markdown(entry.entry.title), *cells])} |"
    yield ""


def write_top(found: SuiteEntries, places: Mapping[str, Place], most: int, measures: Sequence[str] = ()) -> str:
    """The best entries as a table without a heading, for a README. The columns are `measures`, or by default the ranked measure
    and the optimizer steps if they are known."""
    chosen = _choose_measures(found, measures)
    return "\n".join(_write_table(found.suite, order_entries(found.entries, places)[:most], places, chosen)) + "\n"


def make_top(
    found: SuiteEntries, places: Mapping[str, Place], most: int, measures: Sequence[str] = ()
) -> list[dict[str, object]]:
    """The rows of `write_top` as plain values."""
    chosen, rows = _choose_measures(found, measures), []
    for entry in order_entries(found.entries, places)[:most]:
        place = places.get(entry.name)
        measured = {name: one.model_dump() for name, one in entry.numbers.overall.items() if name in chosen}
        about: dict[str, object] = {"entry": entry.name, "title": entry.entry.title, "status": format_status(entry)}
        about |= {"bands": list(place.bands) if place else [], "rank": place.rank or None if place else None}
        rows.append({**about, "measures": measured})
    return rows


def _choose_measures(found: SuiteEntries, measures: Sequence[str]) -> Sequence[str]:
    known = list_measures(found.entries)
    if unknown := [name for name in measures if name not in known]:
        raise unknown_name_error(f"measure of {found.key}", unknown[0], known)
    return measures or [found.entries[0].suite.rank_by, *(name for name in known if name == STEPS)]


def _write_table(
    suite: Suite, entries: Sequence[Result], places: Mapping[str, Place], measures: Sequence[str]
) -> list[str]:
    """The lines of a Markdown table. It has a column of settings if they were searched, and a column of the ranked measure on the
    secret twin if the maintainers ran an entry on it."""
    placed, numbers = [places.get(entry.name) for entry in entries], [entry.numbers for entry in entries]
    columns = [("band", [", ".join(map(str, one.bands)) if one else "" for one in placed])]
    if any(place.rank for place in places.values()):
        columns.append(("rank", [str(one.rank) if one else "" for one in placed]))
    columns.append(("entry", [escape_markdown(entry.entry.title) for entry in entries]))
    for name in measures:
        cells = [_format_cell(one.overall.get(name), name, one.list_runs(name)) for one in numbers]
        columns.append((escape_markdown(find_metric(name).title), cells))
    if settings := list_settings(suite, entries):
        columns.append(("settings", [escape_markdown(chosen) for _, chosen, _ in settings]))
    columns.append(("status", [escape_markdown(format_status(entry)) for entry in entries]))
    ranked, found = entries[0].suite.rank_by, [entry.verification for entry in entries]
    secret = [one.rerun.secret.get(ranked) if one is not None and one.rerun is not None else None for one in found]
    if any(secret):
        columns.append(("on the secret twin", [_format_cell(one, ranked) for one in secret]))
    rows = zip(*([head, *cells] for head, cells in columns), strict=True)
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(columns), *body]


# ---- all suites -------------------------------------------------------------------------------------------------------

ROLES = {
    "a client alone": ("local", "local-all"),
    "zero-shot": ("zero-shot",),
    "centralized": ("centralized",),
}
"""The baselines with which a federated method is compared, each with the names of its algorithms."""
FEDERATED = "best federated method"
METHOD_HEADS = ("suite", FEDERATED, *ROLES, "federated - centralized, points")
CARD, HOUR = "h100", 2.5
"""The GPU for which the costs of models without a result are estimated, and its price per hour, as in examples of `plan`."""
AGENT_HEADS = (
    "suite",
    "agent",
    "success",
    "status, or the commands that play it",
    f"estimated tokens; time and price of an {CARD.upper()} at {format_fixed(HOUR, 2)} an hour",
)
REFERENCES = ("expert", "random")
"""Agents that are not models. Their results are the scale for those of models."""
UNSEARCHED = " *"
"""Marks a suite of methods whose settings were not searched."""


FEW_MINUTES = 5
"""Maximum minutes on two cores of a suite of agents whose table lists models without a result."""
READY = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-4B-Instruct-2507",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
)
"""Well-known models. Each that has no result gets a row with the commands that play it and their estimated cost."""


def is_reference(entry: Result) -> bool:
    """True if the entry is the package's scripted expert or random agent."""
    return all(one.algorithm is None and one.agent.settings.get("name") in REFERENCES for one in entry.records.values())


def list_overview(
    suites: Sequence[tuple[SuiteEntries, Mapping[str, Place]]],
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The rows of the newest version of every suite: one per suite of the methods track, one for each entry of the agents
    track, and those of models without a result."""
    newest: dict[str, int] = {}
    for found, _ in suites:
        name = _drop_version(found.suite)
        newest[name] = max(found.suite.version, newest.get(name, 0))
    methods, agents = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for found, places in suites:
        if found.suite.version < newest[_drop_version(found.suite)]:
            continue
        if found.suite.track == "methods":
            methods.append(_compare_roles(found, places))
            continue
        name, ordered = found.suite.rank_by, order_entries(found.entries, places)
        for entry in sorted(ordered, key=is_reference):  # references come last
            measured = entry.numbers.overall.get(name)
            if measured is not None and entry.is_whole:
                reached = _format_cell(measured, name)
            else:
                shown, metric = entry.numbers.by_scenario, find_metric(name)
                parts = [f"{one} {format_value(shown[one][name].mean, metric)}" for one in shown if name in shown[one]]
                missing = join_names(one for one in found.suite.scenarios if one not in shown)
                reached = "; ".join([*parts, *([f"{missing} not run"] if missing else ["not ranked"])])
            title = f"{entry.entry.title} (reference)" if is_reference(entry) else entry.entry.title
            agents.append((found.key, title, reached, format_status(entry), ""))
        played = {record.agent.model for entry in ordered for record in entry.records.values()}
        agents += _list_ready(found, [model for model in READY if model not in played])
    return methods, agents


def _list_ready(found: SuiteEntries, models: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The rows of models without a result. There are none for suites that take long or that are not this package's."""
    suite = found.suite
    if suite.minutes is None or suite.minutes > FEW_MINUTES or suite.name not in list_suites():
        return
    if suite.digest != load_suite(suite.name).digest:
        return
    cost = estimate_suite(suite)
    read, least, most = cost.sum_tokens()
    tokens = f"{format_fixed(read, 1)}M read, {format_range(least, most, 2)}M written"
    for model in models:
        rental = estimate_rental(cost, model, GPUS[CARD], HOUR)
        assert rental.price is not None
        spent = f"{format_range(*rental.minutes, 1)} minutes, {format_range(*rental.price, 3)}"
        name = quote_word(model)
        commands = f"fedagentgym model add {name} && fedagentgym bench run {quote_word(suite.name)} --agent {name}"
        yield found.key, model, "not run", commands, f"{tokens}; {spent}"


def _drop_version(suite: Suite) -> str:
    return suite.name.removesuffix(f"-v{suite.version}")


def _compare_roles(found: SuiteEntries, places: Mapping[str, Place]) -> tuple[str, ...]:
    """The row of a suite: its best federated method beside its baselines. A gap between entries of one band is not decided."""
    name, best = found.suite.rank_by, dict[str, Result]()
    again = (found.suite.control or ())[1:]  # a repetition of another entry
    placed = [one for one in found.entries if one.name in places and one.name not in again]
    for entry in order_entries(placed, places):
        algorithm = next(iter(entry.records.values())).algorithm
        role = next((role for role, known in ROLES.items() if algorithm in known), FEDERATED)
        best.setdefault(role, entry)
    cells = {
        role: _format_cell(entry.numbers.overall[name], name, entry.numbers.list_runs(name))
        for role, entry in best.items()
    }
    gap, federated, central = "", best.get(FEDERATED), best.get("centralized")
    if federated is not None and central is not None:
        reached, best_reached = (100 * one.numbers.overall[name].mean for one in (federated, central))
        shared = set(places[federated.name].bands) & set(places[central.name].bands)
        gap = f"{format_fixed(subtract_shown(reached, best_reached, 1), 1, '+')}{', not decided' if shared else ''}"
    first = "" if federated is None else f"{federated.entry.title}: {cells[FEDERATED]}"
    key = found.key if name == "success" else f"{found.key} ({find_metric(name).title})"
    if not found.suite.chosen:
        key += UNSEARCHED
    return (key, first, *(cells.get(role, "") for role in ROLES), gap)


def write_overview(methods: Sequence[Sequence[str]], agents: Sequence[Sequence[str]]) -> str:
    """Both tables as Markdown. Titles come from submitters and are escaped; all other cells come from this package."""
    lines = []
    for heads, rows in ((METHOD_HEADS, methods), (AGENT_HEADS, agents)):
        if rows:
            lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
            for name, title, *cells in rows:
                shown = [f"`{cell}`" if cell.startswith("fedagentgym ") else cell for cell in cells]
                lines.append(f"| {' | '.join([f'`{name}`', _escape_title(title), *shown])} |")
            lines.append("")
    return "\n".join(lines)


def _escape_title(cell: str) -> str:
    """Escape a cell with a submitter's title, after which a colon and numbers of this package may stand unescaped.

    >>> _escape_title("*mine*: 61.4 % [55.7, 67.1]")
    '\\\\*mine\\\\*: 61.4 % [55.7, 67.1]'
    """
    title, colon, numbers = cell.rpartition(": ")
    ours = bool(colon) and set(numbers) <= set("0123456789.,%()[] +-")
    return f"{escape_markdown(title)}{colon}{numbers}" if ours else escape_markdown(cell)


def order_entries(entries: Sequence[Result], places: Mapping[str, Place]) -> list[Result]:
    """Ranked entries in their order, then entries without a place, by name."""
    orders = {name: place.order for name, place in places.items()}
    return sorted(entries, key=lambda one: (orders.get(one.name, len(places) + 1), one.name))


def _format_cell(found: Interval | None, name: str, runs: Sequence[float] = ()) -> str:
    return "" if found is None else format_spread(found, runs, find_metric(name))


def write_csv(found: SuiteEntries, places: Mapping[str, Place]) -> str:
    """The CSV table: one row for each entry, scenario (or `overall`) and measure."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    heads = ["suite", "version", "entry", "title", "band", "rank", "status"]
    table.writerow([*heads, "scenario", "measure", "ranked", "mean", "low", "high", "runs"])
    for entry in order_entries(found.entries, places):
        place = places.get(entry.name)
        start = [found.suite.name, found.suite.version, entry.name, escape_csv(entry.entry.title)]
        start += [", ".join(map(str, place.bands)), place.rank or ""] if place else ["", ""]
        start.append(escape_csv(format_status(entry)))
        for scenario, measures in {"overall": entry.numbers.overall, **entry.numbers.by_scenario}.items():
            for name, one in sorted(measures.items()):
                ends = [repr(end) for end in find_ends(one, find_metric(name)) or ()] or ["", ""]
                runs = entry.numbers.list_runs(name, "" if scenario == "overall" else scenario)
                ranked = "yes" if name == entry.suite.rank_by else ""
                numbers = [repr(one.mean), *ends, " ".join(map(repr, runs))]
                table.writerow([*start, scenario, escape_csv(name), ranked, *numbers])
    return out.getvalue()


def list_runs(suite: Suite, entries: Sequence[Result]) -> list[tuple[str, ...]]:
    """The runs of every entry in each scenario: the lowest, the quartiles, the highest, and how many collapsed. Empty if there
    are too few runs for an interval, since then tables show each run."""
    metric = find_metric(suite.rank_by)
    if suite.track == "agents" or len(suite.seeds) < MIN_REPLICATES or metric.unit != "share":
        return []
    rows = []
    for entry in entries:
        cells = []
        for scenario in suite.scenarios:
            reached = entry.numbers.list_runs(suite.rank_by, scenario) if scenario in entry.numbers.runs else []
            collapsed = entry.numbers.list_runs("collapsed", scenario) if reached else []
            cell = ", ".join(format_fixed(100 * value, 1) for value in find_quartiles(reached)) if reached else ""
            cells.append(cell + (f"; {round(sum(collapsed))} of {len(collapsed)}" if collapsed else ""))
        rows.append((entry.entry.title, *cells))
    return rows


# ---- settings ---------------------------------------------------------------------------------------------------------


def find_chosen(suite: Suite, entry: Result) -> Chosen | None:
    """The chosen setting with which an entry was played; None if the entry is no row of the suite or was played otherwise."""
    about = entry.entry
    tuned = find_tuned(suite, about.name)
    chosen = suite.chosen.get(tuned) if about.baseline and tuned in suite.baselines else None
    played = None if chosen is None else (*suite.baselines[tuned].changes, *chosen.changes)
    return chosen if played == about.changes else None


def list_settings(suite: Suite, entries: Sequence[Result]) -> list[tuple[str, str, str]]:
    """For each entry of a tuned suite: the title, the chosen settings, and the ranked measure in the worlds of the search."""
    rows = []
    for entry in entries if suite.chosen else ():
        chosen = find_chosen(suite, entry)
        reached = "" if chosen is None else format_spread(chosen.reached, (), find_metric(suite.rank_by))
        rows.append((entry.entry.title, "not searched" if chosen is None else str(chosen), reached))
    return rows


def describe_search(suite: Suite) -> str:
    """The origin of the settings of a suite's rows, as text; empty on the agents track, where rows have none."""
    if suite.track == "agents":
        return ""
    if suite.tuning is None or not suite.chosen:
        return "those of the suite's file" + (", whose grid was not searched yet" if suite.tuning is not None else "")
    worlds = ", ".join(map(str, suite.tuning.worlds))
    return (
        f"chosen from one grid by {find_metric(suite.rank_by).title} on {suite.selection.split} in the worlds {worlds}"
    )


# ---- findings in words ------------------------------------------------------------------------------------------------


def list_differences(found: SuiteEntries, differences: Sequence[Compared]) -> list[list[str]]:
    """The rows of the table of differences: two entries, a scenario, the difference, its interval, p, the smallest difference
    that such runs decide, and the finding."""
    titles = {entry.name: entry.entry.title for entry in found.entries}
    margin, rows = found.suite.smallest_difference, []
    for first, second, scenario, one, planned, gain in differences:
        if planned:
            names = [titles[first], titles[second], scenario or MEAN]
            if gain is not None:
                names[1] += f", over {titles[gain.than[0]]} - {titles[gain.than[1]]}"
                names[2] += f", over {gain.than_scenario or MEAN}" if gain.than_scenario != scenario else ""
            numbers = [format_fixed(100 * one.mean, 1, "+"), _format_ends(one), format_p(one.adjusted)]
            shown = read_planned(one, margin, len(differences), f"{100 * margin:g} points")
            decided = find_decided(one, len(differences))
            rows.append([*names, *numbers, "" if decided is None else format_fixed(100 * decided, 1), shown])
    return rows


def list_expected(suite: Suite, differences: Sequence[Compared]) -> list[str]:
    """Return the expectations of a suite, each with its outcome in the scenarios in which it was tested."""
    lines = []
    for one in suite.expected:
        found = {} if isinstance(one, str) else find_outcome(one, differences)
        outcomes = ", ".join(f"{scenario or MEAN}: {outcome}" for scenario, outcome in found.items())
        lines.append(f"{one} ({outcomes})" if outcomes else str(one))
    return lines


def describe_control(found: SuiteEntries, differences: Sequence[Compared]) -> list[str]:
    """Sentences about the suite's control (one method under two random streams), if both of its entries were played, and about
    the smallest difference that the suite's runs decide."""
    suite, sentences = found.suite, []
    entries = {entry.name: entry for entry in found.entries}
    if suite.control is not None and set(suite.control) <= set(entries):
        first, second = (entries[name] for name in suite.control)
        shown, p = [], []
        for scenario in suite.scenarios:
            one, other = (_list_numbers(entry, scenario) for entry in (first, second))
            rows = {
                name: compare_replicates(np.subtract(one[name], other[name]).tolist()) for name in one if name in other
            }
            ranked = rows[suite.rank_by]
            shown.append(f"{scenario} {format_fixed(100 * ranked.mean, 1, '+')} ({_format_ends(ranked)})")
            p += [row.p for row in rows.values() if row.p is not None]
        titles = f"{first.entry.title} and {second.entry.title}"
        sentences.append(f"{titles} are one method under two random streams: {'; '.join(shown)}.")
        if p:
            apart = sum(one < LEVEL for one in p)
            counted = f"Of {len(p)} comparisons of their measures and categories {apart} show a difference at 5 %"
            sentences.append(f"{counted}; by chance {len(p) / 20:g} would.")
    each = [find_decided(one.difference, len(differences)) for one in differences if one.planned]
    if known := [one for one in each if one is not None]:
        stated = "" if suite.power is None else f"; the plan of the suite assumed {format_fixed(100 * suite.power, 1)}"
        sentences.append(
            "The smallest difference that four of five such experiments would decide is between"
            f" {format_fixed(100 * min(known), 1)} and {format_fixed(100 * max(known), 1)} points, by the spread of these"
            f" runs and depending on the comparison{stated}."
        )
    return sentences


def _list_numbers(entry: Result, scenario: str) -> dict[str, list[float]]:
    """Every share, score and difference in points of each run in a scenario, and the success in every category."""
    runs = entry.numbers.runs[scenario]
    names = [name for name in next(iter(runs.values())).means if find_metric(name).unit in ("share", "points", "score")]
    found = {name: entry.numbers.list_runs(name, scenario) for name in names}
    ranked = [entry.records[scenario, seed].ranked for seed in runs]
    categories = [one.categories for one in ranked if one is not None]
    for category in categories[0]:
        found[f"success in {category}"] = [one[category]["success"]["mean"] for one in categories if category in one]
    return {name: values for name, values in found.items() if len(values) == len(runs)}


def _format_ends(found: Difference) -> str:
    """The interval, or the difference of every run if there is no interval, as text."""
    if found.ends is None:
        return ", ".join(format_fixed(100 * value, 1, "+") for value in found.values)
    return " to ".join(format_fixed(100 * end, 1, "+") for end in found.ends)
