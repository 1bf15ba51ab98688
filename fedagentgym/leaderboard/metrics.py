"""The measures of a result by name: the meaning, unit and better direction of each, and its form as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedagentgym.base.rounding import format_bytes, format_fixed
from fedagentgym.base.settings import Settings


class Interval(Settings):
    """A mean and the ends of its interval; the ends are None if there are too few runs for an interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval; None if there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


Measures = dict[str, Interval]
"""Measures by name: the names of `METRICS`, and `reward/...` for components of rewards."""


@dataclass(frozen=True)
class Metric:
    """A measure of a result. `unit` is `share` for values between 0 and 1, which are shown in percent."""

    name: str
    title: str
    about: str
    unit: Literal["share", "count", "bytes", "money", "points", "score"] = "share"
    better: Literal["higher", "lower"] | None = "higher"


OWN_REWARDS = "own_rewards"
_ALL = (
    Metric("success", "success", "share of episodes that are solved"),
    Metric("score", "score", "mean score of an episode, with partial credit", "score"),
    Metric("pass^2", "pass^2", "probability that two episodes of a task are both solved, mean over tasks"),
    Metric("pass^4", "pass^4", "probability that four episodes of a task are all solved, mean over tasks"),
    Metric("pass^8", "pass^8", "probability that eight episodes of a task are all solved, mean over tasks"),
    Metric("worst_client", "worst client", "success of the ranked policy on the own mixture of the worst client"),
    Metric(
        "client_p10", "10th percentile of clients", "success on a client's own mixture; a tenth of clients have less"
    ),
    Metric(
        "own_world", "own worlds", "success of each client's policy in the client's own environment, mean over clients"
    ),
    Metric("own_world_worst", "own world, worst client", "success of the worst client in its own environment"),
    Metric("own_world_p10", "own worlds, 10th percentile", "success in a client's own environment; a tenth have less"),
    Metric("own_mixture", "own mixtures", "success of each client's policy on its own mixture, mean over clients"),
    Metric("own_mixture_worst", "own mixture, worst client", "success of the worst client's policy on its own mixture"),
    Metric(
        OWN_REWARDS,
        "own rewards",
        "rewards for each client's objectives on its own mixture, mean over clients",
        "score",
    ),
    Metric(
        f"{OWN_REWARDS}_worst",
        "own rewards, worst objectives",
        "own rewards, mean over the clients of the objectives with the lowest rewards",
        "score",
    ),
    Metric(
        "own_gap",
        "own tasks against all",
        "mean success on clients' own mixtures minus success on all tasks",
        "points",
        None,
    ),
    Metric(
        "uniform_loss", "loss against uniform", "success under uniform division minus success here", "points", "lower"
    ),
    Metric(
        "area", "area under the curve", "mean success on `val` over the episodes of the budget, preparation included"
    ),
    Metric(
        "bytes_to_target",
        "bytes to target",
        "bytes sent and received until the suite's target was first reached, preparation included",
        "bytes",
        "lower",
    ),
    Metric(
        "rounds_to_target", "rounds to target", "rounds until the suite's target was first reached", "count", "lower"
    ),
    Metric("collapsed", "collapsed", "share of runs that end no higher on `val` than they started", "share", "lower"),
    Metric("reached_target", "reached target", "share of seeds that reached the target within the budget"),
    Metric("forgetting", "forgetting", "best success on `val` minus last, mean over categories", "points", "lower"),
    Metric(
        "episodes",
        "episodes",
        "episodes played to prepare, to learn and to score, without evaluations",
        "count",
        "lower",
    ),
    Metric("optimizer_steps", "optimizer steps", "steps of all optimizers, preparation included", "count", "lower"),
    Metric("labelled", "labelled tasks", "tasks whose answers the method may use", "count", "lower"),
    Metric("looks", "looks at val", "evaluations on the split of the learning curve", "count", "lower"),
    Metric("bytes", "bytes", "bytes sent and received, all clients, all rounds", "bytes", "lower"),
    Metric("invalid", "invalid actions", "share of actions that the environment did not accept", "share", "lower"),
    Metric("format_broken", "broken format", "share of replies without the required format", "share", "lower"),
    Metric("turns", "turns", "turns of an episode", "count", "lower"),
    Metric("tokens", "tokens", "tokens that the agent generated in an episode", "count", "lower"),
    Metric("prompt_tokens", "prompt tokens", "tokens that a hosted model read, per episode", "count", "lower"),
    Metric("reply_tokens", "reply tokens", "tokens that a hosted model generated, per episode", "count", "lower"),
    Metric("cost", "cost", "price of an episode of a hosted model", "money", "lower"),
    Metric(
        "epsilon",
        "epsilon",
        "epsilon at the configured delta, if only the server knows which clients took part",
        "count",
        "lower",
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
"""Every measure of an episode, a run or a method by name, with its label, meaning, unit and better direction."""


def find_metric(name: str) -> Metric:
    """The metric of this name. For a component of rewards it is made from the name."""
    return METRICS.get(name) or Metric(name, name.removeprefix("reward/"), f"mean of {name}", "score")


def format_value(value: float, metric: Metric) -> str:
    """A value of a measure as text; shares and bytes have a unit.

    >>> format_value(0.7431, METRICS["success"]), format_value(2.5e6, METRICS["bytes"])
    ('74.3 %', '2.5 MB')
    """
    if metric.unit == "bytes":
        return format_bytes(value)
    forms = {
        "share": f"{format_fixed(100 * value, 1)} %",
        "points": format_fixed(100 * value, 1, "+"),
        "money": f"{value:.4g}",
        "score": format_fixed(value, 3),
    }
    return forms.get(metric.unit, f"{value:,.4g}")


def find_ends(found: Interval, metric: Metric) -> tuple[float, float] | None:
    """The ends of an interval as tables show them. The ends for a share or for the score are clipped to 0 and 1."""
    if found.ends is None or not (metric.unit == "share" or metric.name == "score"):
        return found.ends
    return max(0.0, found.ends[0]), min(1.0, found.ends[1])


def format_spread(found: Interval, runs: Sequence[float], metric: Metric) -> str:
    """A mean with its interval, or with the value of every run if there are too few runs for an interval.

    >>> format_spread(Interval(mean=0.65, low=0.6, high=0.7), [], METRICS["success"])
    '65.0 % [60.0, 70.0]'
    >>> format_spread(Interval(mean=0.65), [0.6, 0.7], METRICS["success"])
    '65.0 % (60.0, 70.0)'
    """
    mean = format_value(found.mean, metric)
    if (ends := find_ends(found, metric)) is not None:
        low, high = (format_value(end, metric).removesuffix(" %") for end in ends)
        return mean if low == high else f"{mean} [{low}, {high}]"
    own = [format_value(value, metric).removesuffix(" %") for value in runs]
    return mean if len(set(own)) < 2 else f"{mean} ({', '.join(own)})"
