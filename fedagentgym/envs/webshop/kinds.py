"""The usual kinds of options in each category of a shop: the part of an instruction that a misled player obeys.

The procedure of a category is to choose the options that are usual there. A player who buys fashion like groceries
chooses flavour and size, and leaves the colour as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedagentgym.envs.misconceptions import Procedures
from fedagentgym.envs.webshop.goals import Goal

MOST_READ = 5_000
USUAL = 0.5
Kinds = Mapping[str, frozenset[str]]


def collect_kinds(goals: Sequence[Goal]) -> Kinds:
    """Category -> the kinds of options that at least half of its goals name; large shops are sampled evenly."""
    every = max(1, -(-len(goals) // MOST_READ))
    counts: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    for place in range(0, len(goals), every):
        goal = goals[place]
        if isinstance(goal.options, Mapping):
            counts.setdefault(goal.category, Counter()).update(goal.options.keys())
            totals[goal.category] += 1
    usual = {
        category: frozenset(kind for kind, count in asked.items() if count >= USUAL * totals[category])
        for category, asked in counts.items()
    }
    return {category: kinds for category, kinds in sorted(usual.items()) if kinds}


def list_shop_procedures(kinds: Kinds) -> dict[str, Procedures]:
    """Every category with the categories whose players would leave out something that is usual in it."""
    found = {
        category: tuple(other for other, theirs in kinds.items() if own - theirs) for category, own in kinds.items()
    }
    return {category: Procedures(category, others) for category, others in found.items() if others}


def list_chosen(goal: Goal, actions: Sequence[str]) -> frozenset[str] | None:
    """The kinds of wanted options that these actions chose correctly; None if nothing was bought."""
    clicks = {action.strip().lower() for action in actions}
    if "click[buy now]" not in clicks or not isinstance(goal.options, Mapping):
        return None
    return frozenset(kind for kind, value in goal.options.items() if f"click[{value.strip().lower()}]" in clicks)
