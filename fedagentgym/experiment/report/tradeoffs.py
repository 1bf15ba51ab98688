"""Several rewards: how their weights change, and trade-offs between them.

Drawn for any algorithm whose records contain the numbers: `weight/NAME` and `reward/NAME` among the metrics of clients, and
`reward/NAME` in evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

from fedagentgym.base.numbers import mean
from fedagentgym.experiment.report.charts import Chart, Series

Record = Mapping[str, Any]
WEIGHT, REWARD, LEARNED = "weight/", "reward/", "reward/learned"
MAX_PAIRS = 6
COLOURS = 6


def make_objective_charts(records: Sequence[Record]) -> list[tuple[Chart, str]]:
    """The charts for which these rounds have numbers, each with a caption; none if a single reward is learned."""
    trained = [record for record in records if record["round"] > 0]
    charts = []
    if weights := _list_metrics(trained, WEIGHT):
        note = "Dots: the weight that each client gave to each reward at the end of a round. Lines: their mean."
        charts.append((make_weight_chart(trained, weights), note))
    rewards = [name for name in _list_metrics(trained, REWARD) if name != LEARNED]
    for first, second in islice(combinations(rewards, 2), MAX_PAIRS):
        chart, judged = make_trade_off_chart(records, first, second)
        line = "the global model on held-out tasks" if judged else "the mean of the clients while they trained"
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
            (record["round"], client, told[name]) for record in trained for client, told in _iter_clients(record, name)
        ]
        rounds = sorted({number for number, _, _ in found})
        means = [(number, mean([value for at, _, value in found if at == number])) for number in rounds]
        labels = [
            f"{_strip_metric_prefix(name)} of client {client}, round {number}: {value:.3g}"
            for number, client, value in found
        ]
        dots = [(float(number), value) for number, _, value in found]
        series.append(Series("", dots, "dots", labels=labels, colour=colour))
        series.append(Series(_strip_metric_prefix(name), means, colour=colour))
    return Chart("Weights of the rewards", series, y="weight", limits=(0.0, 1.0))


def make_trade_off_chart(records: Sequence[Record], first: str, second: str) -> tuple[Chart, bool]:
    """Two rewards against each other over the rounds, and whether the line is from evaluations."""
    judged = [
        (record["round"], *pair) for record in records if (pair := _read_evaluation(record, first, second)) is not None
    ]
    means = [
        (record["round"], float(record["metrics"][first]), float(record["metrics"][second]))
        for record in records
        if first in record["metrics"] and second in record["metrics"]
    ]
    way = judged or means
    dots = [
        (record["round"], client, told[first], told[second])
        for record in records
        for client, told in _iter_clients(record, first, second)
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
            "global model, held out" if judged else "mean over clients",
            [(x, y) for _, x, y in way],
            "path",
            labels=[f"round {number}" for number, _, _ in way],
        ),
    ]
    chart = Chart(
        f"{_strip_metric_prefix(second)} against {_strip_metric_prefix(first)}",
        series,
        x=_strip_metric_prefix(first),
        y=_strip_metric_prefix(second),
        plane=True,
    )
    return chart, bool(judged)


def _list_metrics(records: Sequence[Record], prefix: str) -> list[str]:
    """The clients' metrics with this prefix, in the order of their first report."""
    told = (name for record in records for numbers in record["clients"].values() for name in numbers)
    return list(dict.fromkeys(name for name in told if name.startswith(prefix)))


def _iter_clients(record: Record, *names: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The clients that reported all of these numbers."""
    for client, numbers in record["clients"].items():
        if all(name in numbers for name in names):
            yield client, numbers


def _read_evaluation(record: Record, *names: str) -> tuple[float, ...] | None:
    found = record.get("evaluation", {}).get("overall", {})
    return tuple(float(found[name]["mean"]) for name in names) if all(name in found for name in names) else None


def _strip_metric_prefix(name: str) -> str:
    return name.removeprefix(WEIGHT).removeprefix(REWARD)
