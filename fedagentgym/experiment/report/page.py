"""`report.html`: a run on one self-contained page, made from the run's files.

First the result, in a sentence and a curve; then the federation, the categories, episodes; at the end the diagnostics and the
commands that reproduce the run. It can be made at any time, also for a run that is unfinished or was stopped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.experiment.report.alone import AloneAndTogether, compare_alone, render_alone
from fedagentgym.experiment.report.background import Background, read_background
from fedagentgym.experiment.report.categories import render_categories
from fedagentgym.experiment.report.clients import render_federation
from fedagentgym.experiment.report.diagnostics import render_diagnostics
from fedagentgym.experiment.report.episodes import (
    ShownEpisode,
    Source,
    make_browser_data,
    read_assets,
    read_episodes,
    read_samples,
    render_browser,
)
from fedagentgym.experiment.report.markup import fold, format_bytes, format_duration, format_percent, show
from fedagentgym.experiment.report.results import (
    Neighbour,
    describe_run,
    find_neighbours,
    list_references,
    make_success_chart,
    measure_gain,
    read_estimate,
    tell_result,
)
from fedagentgym.federation.chain import read_chain
from fedagentgym.federation.meter import headline_bytes
from fedagentgym.federation.metrics_log import best_rounds, read_metrics_log

Record = Mapping[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """The run's records so far; `before` and `after` are the episodes of its first and last evaluation."""

    place: Path
    records: Sequence[Record]
    result: Record
    background: Background | None
    before: Sequence[ShownEpisode]
    after: Sequence[ShownEpisode]


def write_report(folder: str | Path) -> Path:
    """Write the report of the run in this folder; returns the page."""
    run = read_run(Path(folder))
    neighbours = find_neighbours(run.place, run.result)
    parts = [
        _render_top(run, neighbours),
        render_alone(_compare(run, neighbours)),
        render_federation(run.records, run.background),
        render_categories(run.records),
        _render_episodes(run),
        render_diagnostics(run.records),
        _render_commands(run),
        _render_settings(run.place, run.result),
    ]
    write_atomic(run.place / "report.html", render_page(str(run.result.get("name") or run.place.name), "".join(parts)))
    return run.place / "report.html"


def read_comparison(folder: str | Path) -> AloneAndTogether | None:
    """A finished run and clients that trained alone; None if there are none."""
    run = read_run(Path(folder))
    return _compare(run, find_neighbours(run.place, run.result))


def _compare(run: RunFiles, neighbours: Sequence[Neighbour]) -> AloneAndTogether | None:
    return compare_alone(run.records, run.result, run.after, run.background, neighbours)


def read_run(place: Path) -> RunFiles:
    """The files of a run, of which only the rounds are required."""
    chain = read_chain(place)
    records = list(read_metrics_log(place / "metrics.jsonl")) if chain is None else chain.list_records()
    if not records:
        raise DataError(f"{place} holds no run to report on: metrics.jsonl has no complete line")
    result = read_json(place / "result.json") if (place / "result.json").is_file() else {}
    judged = [record["round"] for record in records if "evaluation" in record]
    found = [place / "evaluation" / f"{number:04d}.jsonl" for number in judged]
    first = read_episodes(found[0]) if len(found) > 1 and found[0].is_file() else []
    last = read_episodes(found[-1]) if found and found[-1].is_file() else []
    return RunFiles(place, records, result, read_background(place), first, last)


def render_page(title: str, body: str, more_style: str = "") -> str:
    """A whole page, including its style and script; `more_style` is that of parts which a run's report does not have."""
    style = (files("fedagentgym.experiment.report") / "report.css").read_text("utf-8")
    browser_style, browser_script = read_assets()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{show(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><style>{style}{browser_style}{more_style}</style></head>'
        f"<body><main>{body}</main><script>{browser_script}</script></body></html>\n"
    )


# ---- parts of the page ------------------------------------------------------------------------------------------


def _render_top(run: RunFiles, neighbours: Sequence[Neighbour]) -> str:
    """The name, the result in a sentence, the curve, and the cost."""
    records = run.records
    split = (run.result.get("config", {}).get("evaluation") or {}).get("split")
    title = show(run.result.get("name") or run.place.name)
    top = (
        f"<h1>{title}</h1>"
        f'<p class="result">{tell_result(records, measure_gain(run.before, run.after), split)}</p>'
        f'<p class="about">{describe_run(run.result, records)}</p>'
    )
    references = list_references(records, run.background, neighbours)
    chart = make_success_chart(records, references)
    curve = f'<div class="card wide">{chart.to_html()}</div>' if any(one.points for one in chart.series) else ""
    return f"{top}{curve}{_render_facts(records)}"


def _render_facts(records: Sequence[Record]) -> str:
    last = records[-1]
    facts = []
    judged = {record["round"]: record for record in records if "evaluation" in record}
    if (best := best_rounds(records)) and len(judged) > 1:
        number = best.pop()
        facts.append(
            (format_percent(read_estimate(judged[number], "success").mean), f"best evaluation, round {number}")
        )
    facts += [
        (f"{sum(record['metrics'].get('episodes', 0.0) for record in records):,.0f}", "training episodes"),
        (f"{sum(record['metrics'].get('env_steps', 0.0) for record in records):,.0f}", "environment steps"),
        (format_bytes(headline_bytes(last["bytes_total"])), "messages, payload and framing"),
        (format_duration(last["seconds_total"]), "training time"),
        (f"{sum(len(record['failures']) for record in records):,}", "failed calls"),
    ]
    cells = "".join(f"<div><dt>{show(name)}</dt><dd>{show(value)}</dd></div>" for value, name in facts)
    return f'<dl class="facts">{cells}</dl>'


def _render_episodes(run: RunFiles) -> str:
    """Episodes of the first and the last evaluation side by side, and samples of training."""
    judged = [record["round"] for record in run.records if "evaluation" in record]
    sources = []
    if run.before:
        name = "before training" if judged[0] == 0 else f"after round {judged[0]}"
        sources.append(Source(name, run.before))
    if run.after:
        name = "before training" if judged[-1] == 0 else f"after round {judged[-1]}"
        sources.append(Source(name, run.after))
    samples = read_samples(run.place)
    parts = [render_browser(make_browser_data(sources), "evaluation-episodes")] if sources else []
    if samples:
        data = make_browser_data([Source("in training", samples)], most=500_000)
        parts.append(fold("Samples of training episodes, by client", render_browser(data, "training-episodes")))
    return f"<h2>Episodes</h2>{''.join(parts)}" if parts else ""


def _render_commands(run: RunFiles) -> str:
    """The commands that reproduce, resume, replay and export the run."""
    if not (run.place / "config.yaml").is_file():
        return ""
    place = shlex.quote(str(run.place))
    commands = [
        (
            "the same run again",
            f"fedagentgym train {shlex.quote(f'{run.place}/config.yaml')} --set output.folder=again",
        ),
    ]
    if run.result:
        commands += _list_policy_commands(run, place)
    else:
        commands.append(("resume it", f"fedagentgym train --resume {place}"))
    if run.after:
        commands.append(("read episodes in a terminal", f"fedagentgym episodes {place} --failed"))
    lines = "".join(f"<dt>{show(what)}</dt><dd><code>{show(command)}</code></dd>" for what, command in commands)
    return f'<h2>Commands</h2><div class="card"><dl class="commands">{lines}</dl></div>'


def _list_policy_commands(run: RunFiles, place: str) -> list[tuple[str, str]]:
    config = run.result["config"]
    words = ["fedagentgym", "eval", "--env", config["env"]["id"]]
    for name, value in config["env"]["options"].items():
        words += ["--env-set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    judged = config["evaluation"]
    if judged is not None:
        words += ["--split", judged["split"], "--temperature", str(judged["temperature"])]
    return [
        ("write the policy as a model folder", f"fedagentgym export {place} ./exported-policy"),
        ("evaluate that policy", shlex.join([*words, "--agent", "./exported-policy"])),
    ]


def _render_settings(place: Path, result: Record) -> str:
    parts = []
    if (place / "config.yaml").is_file():
        parts.append(("Configuration", (place / "config.yaml").read_text("utf-8")))
    if result:
        kept = ("versions", "env", "client_split", "agent", "config_digest", "final")
        told = json.dumps({name: result[name] for name in kept if name in result}, indent=1)
        parts.append(("Versions and digests", told))
    return "".join(fold(name, f"<pre>{_show_all(text)}</pre>") for name, text in parts)


def _show_all(text: str) -> str:
    """A whole file, line by line, since `show` shortens."""
    return "\n".join(show(line) for line in text.splitlines())
