"""The measures of a result by name: the meaning of each, and in which direction it is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A measure of a result. `unit` is `share` for values between 0 and 1, which are shown in percent."""

    name: str
    title: str
    about: str
    unit: Literal["share", "count", "bytes", "money", "points", "score"] = "share"
    better: Literal["higher", "lower"] | None = "higher"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("success", "success", "share of episodes that are solved"),
        Metric("score", "score", "mean score of an episode, with partial credit", "score"),
        Metric("pass^2", "pass^2", "share of tasks that two episodes in a row would solve"),
        Metric("pass^4", "pass^4", "share of tasks that four episodes in a row would solve"),
        Metric("pass^8", "pass^8", "share of tasks that eight episodes in a row would solve"),
        Metric("worst_client", "worst client", "success of the model on the own mixture of the worst client"),
        Metric(
            "client_p10", "10th percentile of clients", "success on the own mixture: a tenth of the clients have less"
        ),
        Metric(
            "own_gap",
            "own minus global",
            "mean success on clients' own mixtures minus that on all tasks",
            "points",
            None,
        ),
        Metric(
            "uniform_loss",
            "loss against uniform",
            "success under uniform division minus success here",
            "points",
            "lower",
        ),
        Metric("area", "area under the curve", "mean success on `val` over the training episodes of the budget"),
        Metric(
            "bytes_to_target",
            "bytes to target",
            "bytes sent when the suite's target was first reached",
            "bytes",
            "lower",
        ),
        Metric(
            "rounds_to_target",
            "rounds to target",
            "rounds until the suite's target was first reached",
            "count",
            "lower",
        ),
        Metric("reached_target", "reached target", "share of seeds that reached the target within the budget"),
        Metric(
            "forgetting", "forgetting", "best success of a category on `val` minus the last, mean", "points", "lower"
        ),
        Metric("bytes", "bytes", "bytes sent and received, all clients, all rounds", "bytes", "lower"),
        Metric("invalid", "invalid actions", "share of actions that the environment did not accept", "share", "lower"),
        Metric("format_broken", "broken format", "share of replies without the required format", "share", "lower"),
        Metric("turns", "turns", "turns of an episode", "count", "lower"),
        Metric("tokens", "tokens", "tokens that the agent generated in an episode", "count", "lower"),
        Metric("prompt_tokens", "prompt tokens", "tokens that a hosted model read, per episode", "count", "lower"),
        Metric("reply_tokens", "reply tokens", "tokens that a hosted model generated, per episode", "count", "lower"),
        Metric("cost", "cost", "price of an episode of a hosted model", "money", "lower"),
        Metric("epsilon", "epsilon", "privacy spent at the configured delta", "count", "lower"),
    )
}
