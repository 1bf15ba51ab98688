"""The diagnostics of a run: training metrics, several rewards and the trade-offs between them, sizes of messages, failed calls.

Weights and trade-offs are drawn for any algorithm whose records contain the numbers: `weight/NAME` and `reward/NAME` among the
metrics of clients, and `reward/NAME` in evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from fedagentgym.base.rounding import count_things, format_bytes
from fedagentgym.base.statistics import mean
from fedagentgym.experiment.report.results import make_client_dots
from fedagentgym.federation.message import KINDS
from fedagentgym.federation.records import DIRECTIONS, Direction, headline_bytes
from fedagentgym.pages.charts import Chart, Series

Record = Mapping[str, Any]
Captioned = tuple[Chart, str]
WEIGHT, REWARD, LEARNED = "weight/", "reward/", "reward/learned"
CONSTANT = "groups/share constant"
MAX_PAIRS = 6
COLOURS = 6
_WAYS: dict[Direction, str] = {"down": "server to clients", "up": "clients to server"}


@dataclass(frozen=True)
class Diagnostics:
    """The diagnostics of a run, as the report shows them. `constant` describes charts whose values are all equal."""

    rounds: int
    charts: Sequence[Captioned]
    constant: Sequence[str]
    byte_heads: Sequence[tuple[str, bool]]
    byte_rows: Sequence[Sequence[str | tuple[str, str]]]
    failures: Sequence[Record]


def diagnose(records: Sequence[Record]) -> Diagnostics:
    trained = [record for record in records if record["round"] > 0]
    sent = [
        Series(
            _WAYS[way],
            [(record["round"], headline_bytes(record["bytes_total"], way) / 1e6) for record in records],
            colour=colour,
            dashed=way == "up",
        )
        for way, colour in zip(DIRECTIONS, (1, 2), strict=True)
    ]
    charts = [
        (
            Chart("Reward in training", _make_mean_and_dots(trained, "reward/learned"), y="learned reward"),
            "The rewards of the policy step, penalties included.",
        ),
        (Chart("Bytes exchanged", sent, y="MB, cumulative"), "Payload and framing of all messages."),
        (
            Chart("Update norm", _make_mean_and_dots(trained, "update_norm"), y="norm"),
            "Euclidean norm of each client's update.",
        ),
        (
            Chart(
                "Groups that earn the same", _make_mean_and_dots(share_constant(trained), CONSTANT), y="share of groups"
            ),
            "Share of the groups whose episodes all earned the same reward, so that their advantages are zero. If most groups"
            " are such, an entropy bonus or a KL term alone moves the policy.",
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
        (
            Chart(
                "Log-probabilities in play and in learning",
                [
                    _make_line("in play, before they were scored again", trained, "mismatch"),
                    _make_line("in play, 99.9 % are below", trained, "mismatch/most"),
                    _make_line("at the start of a step", trained, "ratio/start"),
                ],
                y="absolute difference, nats",
            ),
            "Between the log-probabilities of the policy that played and those of the pass that learns, before the weights move;"
            f" means over tokens. {_describe_mismatch(trained)}".rstrip(),
        ),
        *make_objective_charts(records),
    ]
    drawn = [(chart, note) for chart, note in charts if not chart.is_empty]
    total = records[-1]["bytes_total"]
    columns = (*KINDS, "framing", "report")
    return Diagnostics(
        len(records),
        [one for one in drawn if not _describe_constant(one[0])],
        [text for chart, _ in drawn if (text := _describe_constant(chart))],
        [("direction", False), *((name, True) for name in ("messages", *columns, "payload and framing"))],
        [
            [
                _WAYS[way],
                f"{total[way].get('messages', 0):,}",
                *(f"{total[way][column]:,}" for column in columns),
                (f"{headline_bytes(total, way):,}", format_bytes(headline_bytes(total, way))),
            ]
            for way in DIRECTIONS
        ],
        [failure for record in records for failure in record["failures"]],
    )


def share_constant(records: Sequence[Record]) -> list[Record]:
    """The records with the share of constant groups among the metrics of each round and each client that has groups."""

    def share(metrics: Record) -> Record:
        if not metrics.get("groups"):
            return metrics
        return {**metrics, CONSTANT: metrics.get("groups/constant", 0.0) / metrics["groups"]}

    return [
        {
            **record,
            "metrics": share(record["metrics"]),
            "clients": {client: share(numbers) for client, numbers in record["clients"].items()},
        }
        for record in records
    ]


def _describe_constant(chart: Chart) -> str:
    """The chart as text, if all its values are equal."""
    values = {y for one in chart.series for _, y in one.points}
    if len(values) != 1 or chart.plane:
        return ""
    return f"{chart.title.lower() if not chart.title.isupper() else chart.title} {values.pop():.3g}"


def _describe_mismatch(records: Sequence[Record]) -> str:
    """The mismatch of a whole run in one sentence; empty if nothing was scored again."""
    found = [record["metrics"] for record in records if "mismatch/most" in record["metrics"]]
    if not found:
        return ""
    middle, most = mean([one["mismatch"] for one in found]), max(one["mismatch/most"] for one in found)
    rounds = count_things(len(found), "round")
    return f"In play: {middle:.2g} on average over {rounds}; 99.9 % of a round's below {most:.2g} at most."


def _make_line(name: str, records: Sequence[Record], metric: str) -> Series:
    points = [(record["round"], record["metrics"][metric]) for record in records if metric in record["metrics"]]
    return Series(name, points)


def _make_mean_and_dots(records: Sequence[Record], metric: str) -> list[Series]:
    return [make_client_dots(records, metric), _make_line("mean over clients", records, metric)]


# ---- several rewards ------------------------------------------------------------------------------------------------


def make_objective_charts(records: Sequence[Record]) -> list[Captioned]:
    """The charts for which these rounds have numbers, each with a caption; none if a single reward is learned."""
    trained = [record for record in records if record["round"] > 0]
    charts = []
    if weights := _list_metrics(trained, WEIGHT):
        note = "Dots: the weight that each client gave to each reward at the end of a round. Lines: their mean."
        charts.append((make_weight_chart(trained, weights), note))
    rewards = [name for name in _list_metrics(trained, REWARD) if name != LEARNED]
    for first, second in islice(combinations(rewards, 2), MAX_PAIRS):
        chart, evaluated = make_trade_off_chart(records, first, second)
        line = "the global model on held-out tasks" if evaluated else "the mean of the clients while they trained"
        charts.append(
            (chart, f"Line: {line}, from the open circle to the last round. Dots: clients while they trained.")
        )
    return charts


def make_weight_chart(trained: Sequence[Record], names: Sequence[str]) -> Chart:
    """Every client's weights over the rounds, one colour per objective."""
    series = []
    for place, name in enumerate(names):
        colour = 1 + place % COLOURS
        found = [
            (record["round"], client, numbers[name])
            for record in trained
            for client, numbers in _iter_clients(record, name)
        ]
        rounds = sorted({number for number, _, _ in found})
        means = [(number, mean([value for at, _, value in found if at == number])) for number in rounds]
        labels = [
            f"{_shorten(name)} of client {client}, round {number}: {value:.3g}" for number, client, value in found
        ]
        dots = [(float(number), value) for number, _, value in found]
        series.append(Series("", dots, "dots", labels=labels, colour=colour))
        series.append(Series(_shorten(name), means, colour=colour))
    return Chart("Weights of the rewards", series, y="weight", limits=(0.0, 1.0))


def make_trade_off_chart(records: Sequence[Record], first: str, second: str) -> tuple[Chart, bool]:
    """Two rewards against each other over the rounds, and whether the line is from evaluations."""
    evaluated = [
        (record["round"], float(found[first]["mean"]), float(found[second]["mean"]))
        for record in records
        if {first, second} <= (found := record.get("evaluation", {}).get("overall", {})).keys()
    ]
    means = [
        (record["round"], float(record["metrics"][first]), float(record["metrics"][second]))
        for record in records
        if first in record["metrics"] and second in record["metrics"]
    ]
    way = evaluated or means
    dots = [
        (record["round"], client, numbers[first], numbers[second])
        for record in records
        for client, numbers in _iter_clients(record, first, second)
    ]
    series = [
        Series(
            "single clients",
            [(x, y) for _, _, x, y in dots],
            "dots",
            labels=[f"client {client}, round {number}: {x:.3g}, {y:.3g}" for number, client, x, y in dots],
            colour=0,
        ),
        Series(
            "global model, held out" if evaluated else "mean over clients",
            [(x, y) for _, x, y in way],
            "path",
            labels=[f"round {number}" for number, _, _ in way],
        ),
    ]
    x, y = _shorten(first), _shorten(second)
    return Chart(f"{y} against {x}", series, x=x, y=y, plane=True), bool(evaluated)


def _list_metrics(records: Sequence[Record], prefix: str) -> list[str]:
    """The clients' metrics with this prefix, in the order of their first report."""
    names = (name for record in records for numbers in record["clients"].values() for name in numbers)
    return list(dict.fromkeys(name for name in names if name.startswith(prefix)))


def _iter_clients(record: Record, *names: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The clients that reported all of these numbers."""
    for client, numbers in record["clients"].items():
        if all(name in numbers for name in names):
            yield client, numbers


def _shorten(name: str) -> str:
    """The objective of a metric."""
    return name.removeprefix(WEIGHT).removeprefix(REWARD)
