"""The diagnostics of a run: training metrics, sizes of messages, failed calls. Folded on the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedagentgym.experiment.report.charts import Chart, Series
from fedagentgym.experiment.report.markup import fold, format_bytes, render_table, show
from fedagentgym.experiment.report.results import make_client_dots
from fedagentgym.experiment.report.tradeoffs import make_objective_charts
from fedagentgym.federation.message import KINDS
from fedagentgym.federation.meter import DIRECTIONS, Direction, headline_bytes

Record = Mapping[str, Any]
MAX_FAILURES = 50
_WAYS: dict[Direction, str] = {"down": "server to clients", "up": "clients to server"}


def render_diagnostics(records: Sequence[Record]) -> str:
    """Curves of training, messages and bytes, failed calls."""
    failures = [failure for record in records for failure in record["failures"]]
    parts = [fold("How training went", _render_charts(records))] if len(records) > 1 else []
    parts.append(fold("Messages and bytes", _render_bytes(records)))
    if failures:
        parts.append(fold(f"Failed calls: {len(failures):,}", _render_failures(failures)))
    return f"<h2>Diagnostics</h2>{''.join(parts)}"


# ---- curves ---------------------------------------------------------------------------------------------------------


def _render_charts(records: Sequence[Record]) -> str:
    trained = [record for record in records if record["round"] > 0]
    candidates = [
        (
            Chart("Reward in training", _make_mean_and_dots(trained, "reward/learned"), y="learned reward"),
            "The rewards of the policy step, penalties included.",
        ),
        (
            Chart("Bytes exchanged", _make_byte_lines(records), y="MB, cumulative"),
            "Payload and framing of all messages.",
        ),
        (
            Chart("Update norm", _make_mean_and_dots(trained, "update_norm"), y="norm"),
            "Euclidean norm of each client's update.",
        ),
        (
            Chart("Invalid actions", [_make_line("invalid action", trained, "invalid")], y="share of turns"),
            "Share of the turns of training episodes with an invalid action.",
        ),
        (
            Chart("Broken format", [_make_line("broken format", trained, "format/broken")], y="share of turns"),
            "Share of the turns of training episodes with a malformed reply.",
        ),
        (
            Chart("Entropy", [_make_line("mean", trained, "surprisal")], y="nats per token"),
            "Estimated by the mean negative log-probability of the sampled tokens.",
        ),
        (
            Chart("KL divergence", [_make_line("KL", trained, "kl")], y="nats per token"),
            "To the reference policy, if the loss has this term.",
        ),
        *make_objective_charts(records),
    ]
    drawn = [(chart, note) for chart, note in candidates if any(one.points for one in chart.series)]
    constant = [tell for chart, _ in drawn if (tell := _tell_constant(chart))]
    cards = "".join(
        f'<div class="card"><h3>{show(chart.title)}</h3>{chart.to_html()}<p class="note">{show(note)}</p></div>'
        for chart, note in drawn
        if not _tell_constant(chart)
    )
    told = f'<p class="note">Constant over all rounds: {show("; ".join(constant))}.</p>' if constant else ""
    return f'<div class="charts">{cards}</div>{told}'


def _tell_constant(chart: Chart) -> str:
    """The chart as text, if all its values are equal."""
    values = {y for one in chart.series for _, y in one.points}
    if len(values) != 1 or chart.plane:
        return ""
    return f"{chart.title.lower() if not chart.title.isupper() else chart.title} {values.pop():.3g}"


def _make_line(name: str, records: Sequence[Record], metric: str) -> Series:
    points = [(record["round"], record["metrics"][metric]) for record in records if metric in record["metrics"]]
    return Series(name, points)


def _make_mean_and_dots(records: Sequence[Record], metric: str) -> list[Series]:
    return [make_client_dots(records, metric), _make_line("mean over clients", records, metric)]


def _make_byte_lines(records: Sequence[Record]) -> list[Series]:
    return [
        Series(
            _WAYS[way],
            [(record["round"], headline_bytes(record["bytes_total"], way) / 1e6) for record in records],
            colour=colour,
            dashed=way == "up",
        )
        for way, colour in zip(DIRECTIONS, (1, 2), strict=True)
    ]


# ---- tables ---------------------------------------------------------------------------------------------------------


def _render_bytes(records: Sequence[Record]) -> str:
    total = records[-1]["bytes_total"]
    columns = (*KINDS, "framing", "report")
    rows = [
        [
            _WAYS[way],
            f"{total[way].get('messages', 0):,}",
            *(f"{total[way][column]:,}" for column in columns),
            f"{headline_bytes(total, way):,} <small>{format_bytes(headline_bytes(total, way))}</small>",
        ]
        for way in DIRECTIONS
    ]
    heads = [
        ("direction", False),
        ("messages", True),
        *((column, True) for column in columns),
        ("payload and framing", True),
    ]
    return (
        render_table(heads, rows, "Messages and bytes")
        + '<p class="note">Bytes. The report (metrics and sampled episodes for this page) is not part of the method and is not'
        " counted in the last column.</p>"
    )


def _render_failures(failures: Sequence[Record]) -> str:
    rows = [
        [str(failure["round"]), str(failure["client"]), show(failure["reason"]), show(failure["message"])]
        for failure in failures[:MAX_FAILURES]
    ]
    heads = [("round", True), ("client", True), ("reason", False), ("what happened", False)]
    left = len(failures) - MAX_FAILURES
    more = f'<p class="note">{left:,} more in metrics.jsonl.</p>' if left > 0 else ""
    return render_table(heads, rows, "Failed calls") + more
