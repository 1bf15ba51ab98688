"""`report.html`: a run on one self-contained page, made from the run's files.

First the result, in a sentence and a curve; then the federation, the categories, episodes; at the end the diagnostics and the
commands that reproduce the run. It can be made at any time, also for a run that is unfinished or was stopped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.files import get_name, write_atomic
from fedagentgym.base.rounding import format_bytes, format_duration
from fedagentgym.experiment.report.background import Background, read_background, view_federation
from fedagentgym.experiment.report.diagnostics import diagnose
from fedagentgym.experiment.report.results import (
    AloneAndTogether,
    compare_alone,
    describe_result,
    describe_run,
    find_neighbours,
    list_categories,
    list_evaluated,
    list_references,
    make_success_chart,
    measure_gain,
    name_round,
    read_estimate,
    read_finished,
)
from fedagentgym.federation.commits import read_chain
from fedagentgym.federation.records import best_rounds, count_episodes, headline_bytes, read_metrics_log
from fedagentgym.pages.episodes import ShownEpisode, Source, label_episodes, make_browser_data, read_episodes
from fedagentgym.pages.render import format_percent, render
from fedagentgym.runs.folder import RunFolder

Record = Mapping[str, Any]
MAX_SAMPLE_CHARACTERS = 500_000
"""Maximum size of the samples of training episodes in a page."""


@dataclass(frozen=True)
class RunFiles:
    """The run's records so far; `before` and `after` are the episodes of its first and last evaluation."""

    place: Path
    records: Sequence[Record]
    result: Record
    background: Background | None
    before: Sequence[ShownEpisode]
    after: Sequence[ShownEpisode]


def write_report(folder: str | Path, records: Sequence[Record] | None = None) -> Path:
    """Write the report of the run in this folder, and return the page. The run's records are read if they are not given."""
    run = read_run(Path(folder), records)
    records, result = run.records, run.result
    neighbours = find_neighbours(run.place, result)
    split = (result.get("config", {}).get("evaluation") or {}).get("split")
    samples, evaluated = label_episodes(RunFolder(run.place).read_samples()), list_evaluated(records)
    # the first and the last evaluation, side by side
    played = [(evaluated[0], run.before), (evaluated[-1], run.after)] if evaluated else []
    sources = [Source(name_round(record), episodes) for record, episodes in played if episodes]
    files = []  # each with its name
    if (run.place / "config.yaml").is_file():
        files.append(("Configuration", (run.place / "config.yaml").read_text("utf-8")))
    if result:
        kept = ("made", "env", "client_split", "agent", "config_digest", "final", "tasks", "ranked")
        files.append(("Versions and digests", json.dumps({name: result[name] for name in kept}, indent=1)))
    page = render(
        "report.html",
        title=str(result.get("name") or get_name(run.place)),
        result=describe_result(records, measure_gain(run.before, run.after), split),
        about=describe_run(result, records),
        curve=make_success_chart(records, list_references(records, run.background, neighbours)),
        costs=_list_costs(records),
        alone=compare_alone(records, result, run.after, run.background, neighbours),
        federation=view_federation(records, run.background),
        categories=list_categories(records),
        evaluation_episodes=make_browser_data(sources) if sources else None,
        training_episodes=make_browser_data([Source("in training", samples)], MAX_SAMPLE_CHARACTERS)
        if samples
        else None,
        diagnostics=diagnose(records),
        lines=_list_commands(run),
        files=files,
    )
    write_atomic(run.place / "report.html", page)
    return run.place / "report.html"


def read_comparison(folder: str | Path) -> AloneAndTogether | None:
    """Compare a finished run with clients that trained alone; None if there are no such clients."""
    run = read_run(Path(folder))
    neighbours = find_neighbours(run.place, run.result)
    return compare_alone(run.records, run.result, run.after, run.background, neighbours)


def read_run(place: Path, records: Sequence[Record] | None = None) -> RunFiles:
    """The files of a run, of which only the rounds are required."""
    if records is None:
        chain = read_chain(place)
        records = list(read_metrics_log(place / "metrics.jsonl")) if chain is None else chain.list_records()
    if not records:
        raise DataError(f"{place} holds no run to report on: metrics.jsonl has no complete line")
    folder = RunFolder(place)
    found = [folder.get_evaluation(record["round"]) for record in list_evaluated(records)]
    first = read_episodes(found[0]) if len(found) > 1 and found[0].is_file() else []
    last = read_episodes(found[-1]) if found and found[-1].is_file() else []
    return RunFiles(place, records, read_finished(place), read_background(place), first, last)


def _list_costs(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The best evaluation and what the run has cost, each with its name."""
    last = records[-1]
    evaluated = {record["round"]: record["evaluation"] for record in list_evaluated(records)}
    costs = []
    if (best := best_rounds(records)) and len(evaluated) > 1:
        number = best.pop()
        share = read_estimate(evaluated[number]["overall"]).mean
        costs.append((f"best evaluation, round {number}", format_percent(share)))

    def total(metric: str) -> str:
        return f"{sum(record['metrics'].get(metric, 0.0) for record in records):,.0f}"

    return [
        *costs,
        ("training episodes", f"{count_episodes(records):,}"),
        ("environment steps", total("env_steps")),
        ("messages, payload and framing", format_bytes(headline_bytes(last["bytes_total"]))),
        ("training time", format_duration(last["seconds_total"])),
        ("failed calls", f"{sum(len(record['failures']) for record in records):,}"),
    ]


def _list_commands(run: RunFiles) -> list[tuple[str, str]]:
    """The commands that reproduce, resume, replay and export the run."""
    if not (run.place / "config.yaml").is_file():
        return []
    place = quote_word(run.place)
    config = quote_word(f"{run.place}/config.yaml")
    plugins = RunFolder(run.place).plugins
    commands = [("the same run again", f"fedagentgym train {config} --out again")]
    if run.result:
        env, evaluation = run.result["config"]["env"], run.result["config"]["evaluation"]
        words = ["fedagentgym", "eval", "--env", env["id"]]
        for name, value in env["options"].items():
            words += ["--env-set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        if evaluation is not None:
            words += ["--split", evaluation["split"], "--temperature", str(evaluation["temperature"])]
        commands += [
            (
                "write the policy as a model folder",
                add_plugins(f"fedagentgym export {place} --out exported-policy", plugins),
            ),
            ("evaluate that policy", add_plugins(shlex.join([*words, "--agent", "./exported-policy"]), plugins)),
        ]
    else:
        commands.append(("resume it", add_plugins(f"fedagentgym resume {place}", plugins)))
    if run.after:
        commands.append(("read episodes in a terminal", f"fedagentgym episodes {place} --failed"))
    return commands
