"""`report.html`: a run on one page that needs nothing else, drawn from what the run wrote down.

It can be made at any time, also of a run that is under way or was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json, read_jsonl, write_atomic
from fedagentgym.experiment.report.charts import Chart, Series
from fedagentgym.experiment.report.tradeoffs import make_objective_charts
from fedagentgym.federation.chain import read_chain
from fedagentgym.federation.message import KINDS
from fedagentgym.federation.meter import DIRECTIONS, Direction, headline_bytes
from fedagentgym.federation.metrics_log import read_metrics_log

Record = Mapping[str, Any]
MAX_EPISODES = 3
MAX_FAILURES = 50


def write_report(folder: str | Path) -> Path:
    """Draw the run in this folder; returns the page."""
    place = Path(folder)
    chain = read_chain(place)
    records = list(read_metrics_log(place / "metrics.jsonl")) if chain is None else chain.list_records()
    if not records:
        raise DataError(f"{place} holds no run to report on: metrics.jsonl has no whole line")
    result = read_json(place / "result.json") if (place / "result.json").is_file() else {}
    parts = [
        _render_header(place, records, result),
        _render_charts(records),
        _render_categories(records),
        _render_bytes(records),
        _render_failures(records),
        _render_episodes(place),
        _render_settings(place, result),
    ]
    style = (files("fedagentgym.experiment.report") / "report.css").read_text("utf-8")
    name = escape(str(result.get("name") or place.name))
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
    write_atomic(place / "report.html", page)
    return place / "report.html"


# ---- parts of the page ------------------------------------------------------------------------------------------


def _render_header(place: Path, records: Sequence[Record], result: Record) -> str:
    judged = [record for record in records if "evaluation" in record]
    last = records[-1]
    tiles = []
    if judged:
        before, after = (_read_estimate(record, "success") for record in (judged[0], judged[-1]))
        tiles.append((f"{before[0]:.1%}", f"held-out success before training ({before[1]:.0%} to {before[2]:.0%})"))
        tiles.append((f"{after[0]:.1%}", f"after round {judged[-1]['round']} ({after[1]:.0%} to {after[2]:.0%})"))
    steps = sum(record["metrics"].get("env_steps", 0.0) for record in records)
    tiles += [
        (_format_bytes(headline_bytes(last["bytes_total"])), "exchanged, payload and framing"),
        (f"{steps:,.0f}", "environment steps of training"),
        (str(sum(len(record["failures"]) for record in records)), "failed client calls"),
        (_format_duration(last["seconds_total"]), "training time"),
    ]
    cells = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    title = escape(str(result.get("name") or place.name))
    return f'<h1>{title}</h1><p class="lead">{_describe_run(result, last)}</p><div class="tiles">{cells}</div>'


def _describe_run(result: Record, last: Record) -> str:
    if not result:
        return f"A run under way: {last['round']} rounds so far."
    config = result["config"]
    division = config["partition"].get("file") or config["partition"]["sampler"]
    return escape(
        f"{result['algorithm']} on {config['env']['id']}, agent {config['agent']['name']},"
        f" {result['client_split']['clients']} clients ({division}), {result['rounds']} rounds, seed {result['seed']}"
    )


def _render_charts(records: Sequence[Record]) -> str:
    trained = [record for record in records if record["round"] > 0]
    charts = [
        (
            _make_success_chart(records),
            "Line: the global model on held-out tasks, with its confidence interval. Dots: the clients of each round while they"
            " trained on their own tasks.",
        ),
        (
            Chart("Reward while training", _make_mean_and_dots(trained, "reward/learned"), y="learned reward"),
            "What the policy step saw, penalties included.",
        ),
        (
            Chart("Bytes exchanged", _make_byte_lines(records), y="MB, cumulative"),
            "Payload and framing of everything that crossed the seam.",
        ),
        (
            Chart("How far clients moved", _make_mean_and_dots(trained, "update_norm"), y="norm of the update"),
            "Euclidean norm of a client's update.",
        ),
        (
            Chart("Actions that went wrong", _make_error_lines(trained), y="share of turns"),
            "Share of the turns of training episodes.",
        ),
        (
            Chart("Surprisal", [_make_line("mean", trained, "surprisal")], y="nats per token"),
            "Mean surprisal of the agent's own tokens: falls when the policy becomes sure.",
        ),
        (
            Chart("KL", [_make_line("KL", trained, "kl")], y="nats per token"),
            "Distance to the reference, where the loss has it.",
        ),
        *make_objective_charts(records),
    ]
    cards = [
        f'<div class="card"><h3>{escape(chart.title)}</h3>{chart.to_svg()}<p>{escape(note)}</p></div>'
        for chart, note in charts
        if any(series.points for series in chart.series)
    ]
    return f'<h2>Rounds</h2><div class="charts">{"".join(cards)}</div>'


def _make_success_chart(records: Sequence[Record]) -> Chart:
    judged = [record for record in records if "evaluation" in record]
    estimates = [(record["round"], _read_estimate(record, "success")) for record in judged]
    line = Series(
        "global model, held out",
        [(number, estimate[0]) for number, estimate in estimates],
        band=[(estimate[1], estimate[2]) for _, estimate in estimates],
    )
    dots = _make_dots([record for record in records if record["round"] > 0], "success")
    return Chart("Success", [dots, line], y="success", limits=(0.0, 1.0))


def _make_line(name: str, records: Sequence[Record], metric: str, colour: int = 1) -> Series:
    points = [(record["round"], record["metrics"][metric]) for record in records if metric in record["metrics"]]
    return Series(name, points, colour=colour)


def _make_mean_and_dots(records: Sequence[Record], metric: str) -> list[Series]:
    return [_make_dots(records, metric), _make_line("mean over clients", records, metric)]


def _make_error_lines(records: Sequence[Record]) -> list[Series]:
    return [_make_line("not understood", records, "invalid"), _make_line("broken format", records, "format/broken", 2)]


def _make_dots(records: Sequence[Record], metric: str) -> Series:
    found = [
        (record["round"], numbers[metric], client)
        for record in records
        for client, numbers in record["clients"].items()
        if metric in numbers
    ]
    labels = [f"client {client}, round {number}: {value:.3g}" for number, value, client in found]
    return Series("single clients", [(number, value) for number, value, _ in found], "dots", labels=labels, colour=2)


def _make_byte_lines(records: Sequence[Record]) -> list[Series]:
    names: dict[Direction, str] = {"down": "to clients", "up": "from clients"}
    return [
        Series(
            names[way],
            [(record["round"], headline_bytes(record["bytes_total"], way) / 1e6) for record in records],
            colour=colour,
            dashed=way == "up",
        )
        for way, colour in zip(DIRECTIONS, (1, 2), strict=True)
    ]


def _render_categories(records: Sequence[Record]) -> str:
    judged = [record["evaluation"] for record in records if "evaluation" in record]
    if not judged:
        return ""
    first, last = judged[0], judged[-1]
    rows = []
    for name in sorted(last["categories"]):
        before = first["categories"].get(name, {}).get("success", {"mean": float("nan")})["mean"]
        rows.append((name, before, last["categories"][name]))
    rows.append(("all", first["overall"]["success"]["mean"], last["overall"]))
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{before:.3f}</td>'
        f'<td class="n">{after["success"]["mean"]:.3f}</td>'
        f'<td class="n">{after["success"]["low"]:.2f} to {after["success"]["high"]:.2f}</td>'
        f'<td class="n">{after["score"]["mean"]:.3f}</td><td class="n">{after["turns"]["mean"]:.1f}</td></tr>'
        for name, before, after in rows
    )
    heads = "".join(f'<th class="n">{name}</th>' for name in ("before", "after", "interval", "score", "turns"))
    kind = "set" if "sets" in last else "category"
    return (
        f'<h2>Held-out tasks</h2><div class="card wide"><table><tr><th>{kind}</th>{heads}</tr>{body}</table>'
        f"<p>{last['tasks']} tasks, {last['episodes']} episodes.</p>{_render_clients(last)}</div>"
    )


def _render_clients(evaluation: Record) -> str:
    """The global model on the clients' own mixtures of the held-out tasks, where that was asked for."""
    found = evaluation.get("clients") or {}
    if not found.get("clients"):
        return ""
    return (
        f"<p>Each of {found['clients']:,} clients by its own mixture of these tasks: mean success {found['mean']:.3f},"
        f" 10th percentile {found['p10']:.3f}, worst {found['worst']:.3f} (client {found['worst_client']}).</p>"
    )


def _render_bytes(records: Sequence[Record]) -> str:
    total = records[-1]["bytes_total"]
    columns = (*KINDS, "framing", "report")
    titles: dict[Direction, str] = {"down": "server to clients", "up": "clients to server"}
    body = "".join(
        f"<tr><td>{titles[way]}</td>"
        + "".join(f'<td class="n">{total[way][column]:,}</td>' for column in columns)
        + f'<td class="n">{headline_bytes(total, way):,}</td></tr>'
        for way in DIRECTIONS
    )
    heads = "".join(f'<th class="n">{column}</th>' for column in (*columns, "in all"))
    return (
        f'<h2>What travelled</h2><div class="card wide"><table><tr><th>bytes</th>{heads}</tr>{body}</table>'
        "<p>In all: payload and framing. The report (metrics and sampled episodes for this page) is no part of the"
        " method.</p></div>"
    )


def _render_failures(records: Sequence[Record]) -> str:
    failures = [failure for record in records for failure in record["failures"]]
    if not failures:
        return ""
    body = "".join(
        f'<tr><td class="n">{failure["round"]}</td><td class="n">{failure["client"]}</td>'
        f"<td>{escape(str(failure['reason']))}</td><td>{escape(str(failure['message']))}</td></tr>"
        for failure in failures[:MAX_FAILURES]
    )
    more = f"<p>{len(failures) - MAX_FAILURES} more in metrics.jsonl.</p>" if len(failures) > MAX_FAILURES else ""
    return (
        '<h2>Failures</h2><div class="card wide"><table><tr><th class="n">round</th><th class="n">client</th><th>reason</th>'
        f"<th>what happened</th></tr>{body}</table>{more}</div>"
    )


def _render_episodes(place: Path) -> str:
    """Some episodes of the last evaluation: failures and successes, whichever come first."""
    found = sorted((place / "evaluation").glob("*.jsonl"))
    if not found:
        return ""
    episodes = [episode for _, episode in islice(read_jsonl(found[-1]), 200)]
    solved = [episode for episode in episodes if episode["success"]][:MAX_EPISODES]
    failed = [episode for episode in episodes if not episode["success"]][:MAX_EPISODES]
    blocks = "".join(_render_episode(episode) for episode in [*solved, *failed])
    return f"<h2>Episodes of the last evaluation</h2>{blocks}"


def _render_episode(episode: Record) -> str:
    mark = '<span class="good">solved</span>' if episode["success"] else '<span class="bad">not solved</span>'
    turns = "".join(
        f'<div class="turn">{escape(turn["observation"])}<br><code>&gt; {escape(turn["action"])}</code>'
        + ("" if turn["valid"] else ' <span class="bad">not understood</span>')
        + "</div>"
        for turn in episode["turns"]
    )
    title = f"{escape(episode['task'])} ({escape(episode['category'] or 'no category')}), {len(episode['turns'])} turns"
    return f"<details><summary>{title}: {mark}</summary>{turns}</details>"


def _render_settings(place: Path, result: Record) -> str:
    parts = []
    if (place / "config.yaml").is_file():
        parts.append(("Configuration", (place / "config.yaml").read_text("utf-8")))
    if result:
        kept = ("versions", "env", "client_split", "agent", "config_digest", "final")
        told = json.dumps({name: result[name] for name in kept if name in result}, indent=1)
        parts.append(("Versions and digests", told))
    blocks = "".join(f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>" for name, text in parts)
    return f"<h2>How it was made</h2>{blocks}" if blocks else ""


# ---- small forms ------------------------------------------------------------------------------------------------


def _read_estimate(record: Record, name: str) -> tuple[float, float, float]:
    found = record["evaluation"]["overall"][name]
    return found["mean"], found["low"], found["high"]


def _format_bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _format_duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"
