"""Comparison of the generated shop with the real one, and the success of the scripted player.

The real shop is measured if its data is installed (`fedagentgym data add webshop --from FOLDER`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import data_folder
from fedagentgym.base.measurement import Measurement
from fedagentgym.base.progress import show_progress
from fedagentgym.base.streams import stream
from fedagentgym.envs.webshop.env import WebShopEnv

ATTACKS = ("price", "color", "size", "price+color")
ERROR_RATE = 0.3
PLAYS, QUICK_PLAYS = 500, 30


def run(quick: bool = False) -> list[Measurement]:
    """Goals, misleading searches, the scripted player alone and with random actions, look-alikes."""
    shops: dict[str, dict[str, Any]] = {"tiny": {"size": "tiny"}}
    if not quick:
        shops["default"] = {}
    if not quick and data_folder("webshop").is_dir():
        shops["real"] = {"data": "installed"}
    measured: list[Measurement] = []
    with show_progress("comparing shops", len(shops)) as bar:
        for name, options in shops.items():
            env = WebShopEnv(**options)
            measured += [
                Measurement(f"{name}: {m.name}", m.value, m.unit)
                for m in _measure_shop(env, QUICK_PLAYS if quick else PLAYS)
            ]
            if quick or name != "tiny":
                measured += [
                    Measurement(f"{name}: {m.name}", m.value, m.unit) for m in _measure_lookalikes(env, options)
                ]
            bar.advance()
    if "real" in shops:
        measured += _measure_human_goals()
    return measured


def _measure_shop(env: WebShopEnv, plays: int) -> Iterator[Measurement]:
    goals = env.stock.goals
    yield Measurement("goals", float(len(goals)), "")
    names, counts = env.stock.catalogue.category_names, Counter(goals.category_codes.tolist())
    for code, name in sorted(enumerate(names), key=lambda pair: pair[1]):
        yield Measurement(f"goals in {name}", 100 * counts[code] / len(goals), "%")
    yield Measurement(
        "all wishes in the query, another product first", 100 * _measure_misled(env, plays, drop=False), "%"
    )
    yield Measurement("one wish left out, another product first", 100 * _measure_misled(env, plays, drop=True), "%")
    score, solved, turns = measure_expert(env, plays)
    yield Measurement("expert: mean score", score, "")
    yield Measurement("expert: success", 100 * solved, "%")
    yield Measurement("expert: turns", turns, "")
    score, solved, _ = measure_expert(env, plays, ERROR_RATE)
    yield Measurement(f"expert with a random action in {ERROR_RATE:.0%} of turns: mean score", score, "")
    yield Measurement(f"expert with a random action in {ERROR_RATE:.0%} of turns: success", 100 * solved, "%")


def measure_expert(env: WebShopEnv, plays: int, error: float = 0.0) -> tuple[float, float, float]:
    """Mean score, success rate and turns of the expert on random goals, perhaps with random actions in between."""
    draw = stream(0, "figures", "shopping")
    score, solved, turns = 0.0, 0, 0
    for number in range(plays):
        task = env.pool[draw.integers(len(env.pool))]
        (episode,), expert = env.reset_many([task], [number]), env.expert()
        while not episode.over:
            action = expert.act(episode)
            if error and draw.uniform() < error and episode.view.admissible:
                action = draw.pick(episode.view.admissible).replace("<query>", "red size")
            (episode,) = env.step_many([episode], [action])
        score, solved, turns = score + episode.view.score, solved + episode.view.success, turns + episode.turn
    return score / plays, solved / plays, turns / plays


def _measure_misled(env: WebShopEnv, queries: int, drop: bool) -> float:
    """How often the first result of a query made of a goal's wishes is not the target."""
    draw, misled = stream(1, "figures", "searching"), 0
    for _ in range(queries):
        goal = env.pool[draw.integers(len(env.pool))].payload
        wishes = [*goal.attributes, *goal.options.values()]
        left_out = draw.integers(len(wishes)) if drop else -1
        query = " ".join([goal.query, *(wish for place, wish in enumerate(wishes) if place != left_out)])
        misled += (env.site.shop.find(query.lower(), 0) or [-1])[0] != goal.row
    return misled / queries


def _measure_lookalikes(env: WebShopEnv, options: dict[str, Any]) -> Iterator[Measurement]:
    """For a client with 100 tasks: targets that got a copy, and copies that rank above their original."""
    tasks = env.pool.ids[:5000:50]
    targets = len({env.pool[task].payload.row for task in tasks})
    for attack in ATTACKS:
        client = WebShopEnv(tasks=tasks, variant={"kind": "lookalikes", "attack": attack}, **options)
        shop, ahead = client.site.shop, 0
        goals = {f"LK{task.payload.asin}": task.payload for task in client.pool}
        for copy in shop.extra:
            ranked = [shop.get_head(row).asin for row in shop.find(goals[copy.asin].instruction.lower(), 0) or ()]
            behind = goals[copy.asin].asin in ranked and ranked.index(goals[copy.asin].asin) < ranked.index(copy.asin)
            ahead += copy.asin in ranked and not behind
        yield Measurement(f"look-alikes ({attack}): targets with a copy", 100 * len(shop.extra) / targets, "%")
        yield Measurement(f"look-alikes ({attack}): copies above their target", 100 * ahead / len(shop.extra), "%")


def _measure_human_goals() -> list[Measurement]:
    """The real goals that people wrote; the set of 1,000 products has only 13."""
    try:
        env = WebShopEnv(data="installed", goals="human", split="test")
    except DataError:
        return []
    score, solved, _ = measure_expert(env, len(env.pool))
    return [
        Measurement(f"real, written by people ({len(env.pool)} goals): mean score", score, ""),
        Measurement(f"real, written by people ({len(env.pool)} goals): success", 100 * solved, "%"),
    ]
