"""Several rewards at once: how their weights move, and what is paid in one for what is gained in another.

Drawn for any algorithm whose records have the numbers: `weight/NAME` and `reward/NAME` among the metrics of clients, and
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
SHOWN_PAIRS = 6
COLOURS = 6


def objective_charts(records: Sequence[Record]) -> list[tuple[Chart, str]]:
    """The charts that these rounds have numbers for, each with what it shows; none where a single reward is learned."""
    trained = [record for record in records if record["round"] > 0]
    charts = []
    if weights := _names(trained, WEIGHT):
        note = "Dots: the weight that each client gave to each reward at the end of a round. Lines: their mean."
        charts.append((weight_chart(trained, weights), note))
    rewards = [name for name in _names(trained, REWARD) if name != LEARNED]
    for first, second in islice(combinations(rewards, 2), SHOWN_PAIRS):
        chart, judged = trade_off(records, first, second)
        line = "the global model on held-out tasks" if judged else "the mean of the clients while they trained"
        charts.append(
            (chart, f"Line: {line}, from the open circle to the last round. Dots: clients while they trained.")
        )
    return charts


def weight_chart(trained: Sequence[Record], names: Sequence[str]) -> Chart:
    """Every client's weights over the rounds, one colour per objective."""
    series = []
    for place, name in enumerate(names):
        colour = 1 + place % COLOURS
        found = [(record["round"], client, told[name]) for record in trained for client, told in _clients(record, name)]
        rounds = sorted({number for number, _, _ in found})
        means = [(number, mean([value for at, _, value in found if at == number])) for number in rounds]
        labels = [f"{_short(name)} of client {client}, round {number}: {value:.3g}" for number, client, value in found]
        dots = [(float(number), value) for number, _, value in found]
        series.append(Series("", dots, "dots", labels=labels, colour=colour))
        series.append(Series(_short(name), means, colour=colour))
    return Chart("Weights of the rewards", series, y="weight", limits=(0.0, 1.0))


def trade_off(records: Sequence[Record], first: str, second: str) -> tuple[Chart, bool]:
    """Two rewards against each other over the rounds, and whether the line is of evaluations."""
    judged = [(record["round"], *pair) for record in records if (pair := _evaluated(record, first, second)) is not None]
    means = [
        (record["round"], float(record["metrics"][first]), float(record["metrics"][second]))
        for record in records
        if first in record["metrics"] and second in record["metrics"]
    ]
    way = judged or means
    dots = [
        (record["round"], client, told[first], told[second])
        for record in records
        for client, told in _clients(record, first, second)
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
    chart = Chart(f"{_short(second)} against {_short(first)}", series, x=_short(first), y=_short(second), plane=True)
    return chart, bool(judged)


def _names(records: Sequence[Record], prefix: str) -> list[str]:
    """The clients' metrics with this prefix, in the order in which they are first told."""
    told = (name for record in records for numbers in record["clients"].values() for name in numbers)
    return list(dict.fromkeys(name for name in told if name.startswith(prefix)))


def _clients(record: Record, *names: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The clients that told all of these numbers."""
    for client, numbers in record["clients"].items():
        if all(name in numbers for name in names):
            yield client, numbers


def _evaluated(record: Record, *names: str) -> tuple[float, ...] | None:
    found = record.get("evaluation", {}).get("overall", {})
    return tuple(float(found[name]["mean"]) for name in names) if all(name in found for name in names) else None


def _short(name: str) -> str:
    return name.removeprefix(WEIGHT).removeprefix(REWARD)
