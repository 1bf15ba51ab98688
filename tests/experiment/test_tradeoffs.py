"""Weights and trade-offs of several rewards, drawn from records of any algorithm that has them."""

from __future__ import annotations

from typing import Any

from fedagentgym.experiment.report.diagnostics import make_objective_charts


def record(number: int, clients: dict[str, dict[str, float]], judged: dict[str, float] | None = None) -> dict[str, Any]:
    plain: dict[str, Any] = {"round": number, "clients": clients, "metrics": {}}
    for name in {name for told in clients.values() for name in told}:
        told = [numbers[name] for numbers in clients.values() if name in numbers]
        plain["metrics"][name] = sum(told) / len(told)
    if judged is not None:
        plain["evaluation"] = {"overall": {name: {"mean": value} for name, value in judged.items()}}
    return plain


def client(accuracy: float, tags: float, weight: float) -> dict[str, float]:
    rewards = {"reward/accuracy": accuracy, "reward/tags": tags, "reward/learned": 1.0}
    return {**rewards, "weight/accuracy": weight, "weight/tags": 1 - weight, "update_norm": 1.0}


def test_weights_are_drawn_per_client_and_on_average() -> None:
    records = [record(n, {"0": client(0.1, 0.2, 0.4), "7": client(0.3, 0.4, 0.8)}) for n in (1, 2)]
    chart, _ = make_objective_charts(records)[0]
    dots, line, *_ = chart.series
    assert sorted(dots.points) == [(1.0, 0.4), (1.0, 0.8), (2.0, 0.4), (2.0, 0.8)] and dots.name == ""
    assert [y for _, y in line.points] == [0.4 / 2 + 0.8 / 2] * 2 and line.name == "accuracy"
    assert "accuracy of client 7, round 2: 0.8" in dots.labels


def test_the_way_is_that_of_evaluations_where_they_have_both() -> None:
    judged = {"reward/accuracy": 0.5, "reward/tags": 0.9}
    records = [record(0, {}, judged), record(1, {"0": client(0.1, 0.2, 0.4)}, {**judged, "reward/accuracy": 0.6})]
    (chart, note) = make_objective_charts(records)[1]
    clients, way = chart.series
    assert way.points == [(0.5, 0.9), (0.6, 0.9)] and way.labels == ["round 0", "round 1"] and "held-out" in note
    assert clients.points == [(0.1, 0.2)] and (chart.x, chart.y) == ("accuracy", "tags")
    assert way.kind == "path", "whose end is named by the last label"


def test_without_evaluations_it_is_the_mean_of_the_clients() -> None:
    records = [
        record(1, {"0": client(0.1, 0.2, 0.4), "1": client(0.3, 0.2, 0.4)}),
        record(2, {"0": client(0.5, 0.6, 0.4)}),
    ]
    (chart, note) = make_objective_charts(records)[1]
    assert [tuple(round(x, 9) for x in point) for point in chart.series[1].points] == [(0.2, 0.2), (0.5, 0.6)]
    assert "while they trained" in note


def test_clients_with_other_rewards_have_no_dot_there() -> None:
    other = {"reward/accuracy": 0.2, "reward/format": 0.3}
    charts = [chart for chart, _ in make_objective_charts([record(1, {"0": client(0.1, 0.2, 0.4), "1": other})])]
    assert [chart.title for chart in charts[1:]] == [
        "tags against accuracy",
        "format against accuracy",
        "format against tags",
    ]
    assert [len(chart.series[0].points) for chart in charts[1:]] == [1, 1, 0]


def test_one_reward_has_nothing_to_trade() -> None:
    assert make_objective_charts([record(1, {"0": {"reward/reward": 0.2, "reward/learned": 0.1}})]) == []
