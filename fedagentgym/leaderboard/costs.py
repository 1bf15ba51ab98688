"""Estimates of a suite's costs before anything is played. For the agents track they are episodes, tokens, and the price of a
hosted model or of a GPU on which a model plays; for the methods track, hours of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedagentgym.agents.model.shapes import find_shape
from fedagentgym.agents.players.endpoint import ENDPOINT_THINKS
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.rounding import format_fixed, format_range
from fedagentgym.experiment.estimate.duration import play_dialogues
from fedagentgym.experiment.estimate.hours import Gpu, estimate_playing, plan_gpu
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.leaderboard.entries import HOSTED_TOKENS, list_baselines, load_settings, make_agent_entry
from fedagentgym.leaderboard.play import make_run_config
from fedagentgym.leaderboard.suite import OpenedScenario, Suite, open_scenario
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.runs.record import ENDPOINT

SAMPLED = 10
LETTERS_OF_A_TOKEN = 4
_MILLION = 1_000_000


@dataclass(frozen=True)
class ScenarioCost:
    """The estimated tokens of all episodes of a scenario, with the turns and replies of its expert.

    `most_reply_tokens` are those of replies of the maximum length.
    """

    scenario: str
    episodes: int
    turns: float
    most_turns: int
    prompt_tokens: float
    reply_tokens: float
    most_reply_tokens: float

    def __str__(self) -> str:
        turns = f"{format_fixed(self.turns, 1)} turns each as the expert plays, at most {self.most_turns}"
        read, least, most = (
            f"{format_fixed(tokens / 1000)}k" if tokens < _MILLION else f"{format_fixed(tokens / _MILLION, 1)}M"
            for tokens in (self.prompt_tokens, self.reply_tokens, self.most_reply_tokens)
        )
        tokens = f"{read} prompt tokens, {least} to {most} reply tokens"
        return f"{self.scenario}: {self.episodes:,} episodes, {turns}\n  {tokens}"


def estimate_cost(opened: OpenedScenario) -> ScenarioCost:
    """Let the expert play some of the ranked tasks with the prompts of a hosted model; four characters count as one token."""
    env, ranking = opened.env, opened.suite.get_ranking(opened.name)
    settings = load_settings(make_agent_entry({"name": ENDPOINT, "model": "model"}), ranking.temperature)
    ids = opened.ids[:: max(len(opened.ids) // SAMPLED, 1)]
    template = Template("standard", ENDPOINT_THINKS, settings.system, settings.request)
    turns = letters_read = letters_written = 0
    for _, asked, reply in play_dialogues(env, settings, template, [env.pool[one] for one in ids]):
        turns += 1
        letters_read += sum(len(message["content"]) for message in asked)
        letters_written += len(reply)
    episodes = len(opened.ids) * ranking.repeats * len(opened.suite.seeds)
    share = episodes / len(ids)
    return ScenarioCost(
        scenario=opened.name,
        episodes=episodes,
        turns=turns / len(ids),
        most_turns=env.max_turns,
        prompt_tokens=share * letters_read / LETTERS_OF_A_TOKEN,
        reply_tokens=share * letters_written / LETTERS_OF_A_TOKEN,
        most_reply_tokens=share * turns * HOSTED_TOKENS,
    )


def describe_sampling(suite: Suite) -> str:
    """The sampling settings of a hosted model in a suite, as text."""
    return f"temperature {suite.ranking.temperature:g}, replies of at most {HOSTED_TOKENS} tokens"


@dataclass(frozen=True)
class SuiteCost:
    """The tokens of a suite's scenarios, and the lowest and the highest price if prices are known."""

    scenarios: tuple[ScenarioCost, ...]
    price: tuple[float, float] | None

    def sum_tokens(self) -> tuple[float, float, float]:
        """Millions of prompt tokens, of reply tokens if replies are like the expert's, and of reply tokens at most."""
        read, least, most = (
            sum(getattr(one, name) for one in self.scenarios) / _MILLION
            for name in ("prompt_tokens", "reply_tokens", "most_reply_tokens")
        )
        return read, least, most


def estimate_suite(suite: Suite, prices: Sequence[float] | None = None) -> SuiteCost:
    """The cost of all scenarios; `prices` are the price of a million prompt tokens and that of a million reply tokens."""
    cost = SuiteCost(tuple(estimate_cost(open_scenario(suite, name)) for name in suite.scenarios), None)
    if prices is None:
        return cost
    read, least, most = cost.sum_tokens()
    return replace(cost, price=(read * prices[0] + least * prices[1], read * prices[0] + most * prices[1]))


@dataclass(frozen=True)
class Rental:
    """The minutes that a model takes for a suite on a GPU, and their price: each if replies are like the expert's, and if all
    have the maximum length."""

    model: str
    card: str
    minutes: tuple[float, float]
    price: tuple[float, float] | None

    def __str__(self) -> str:
        price = "" if self.price is None else f", price: {format_range(*self.price, 3)}"
        return f"{self.card}: {format_range(*self.minutes, 1)} minutes{price}"


def estimate_rental(cost: SuiteCost, model: str, gpu: Gpu, price: float | None = None) -> Rental:
    """Estimate the minutes on a GPU with as many parallel episodes as an evaluation has; `price` is the price of an hour."""
    together = EvaluationSettings().parallel_episodes
    generating, reading = estimate_playing(find_shape(model).count_parameters(), together, gpu)
    read, *written = (_MILLION * tokens for tokens in cost.sum_tokens())
    least, most = ((read / reading + tokens / generating) / 60 for tokens in written)
    total = None if price is None else (least * price / 60, most * price / 60)
    return Rental(model, gpu.title, (least, most), total)


def describe_costs(suite: Suite, cost: SuiteCost, rental: Rental | None = None) -> list[str]:
    """The lines of a plan for a hosted model, or with `rental` for a model on a GPU."""
    read, least, most = cost.sum_tokens()
    if rental is not None:
        player, price = rental.model, f"{rental} (estimated from the card's data sheet; nothing was measured on a GPU)"
    elif cost.price is not None:
        player, price = "a hosted model", f"price: {format_range(*cost.price, 2)}"
    else:
        replies = f"{format_range(least, most, 2)} times that of a million reply tokens"
        price = f"price: {format_fixed(read, 2)} times that of a million prompt tokens, and {replies}"
        player = "a hosted model"
    return [
        f"{player}, estimated from the expert's episodes with a token for four letters: failing takes more turns",
        f"sampling: {describe_sampling(suite)} (--agent-set decoding.max_new_tokens=N)",
        *map(str, cost.scenarios),
        price,
    ]


def estimate_hours(suite: Suite, gpu: Gpu) -> tuple[float, float]:
    """The GPU hours of all runs of a suite's own baselines: if replies are like the expert's, and if all have the maximum length.
    If no expert can play, both numbers are for the maximum length."""
    least = most = 0.0
    for entry in list_baselines(suite):
        for scenario in suite.scenarios:
            plan = plan_run(make_run_config(suite, entry, (scenario, suite.seeds[0])))
            expected, longest = plan_gpu(plan, gpu).hours
            most += longest.total
            least += (expected or longest).total
    return least * len(suite.seeds), most * len(suite.seeds)
