"""One picture for each way in which clients differ: a mild and a strong division, drawn from real client splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.pictures.canvas import SERIES, Drawing
from fedagentgym import federate
from fedagentgym.partitions import ClientSplit

CLIENTS = 12
PANEL, TOP, HEIGHT = 340, 66, 170
LEFTS = (60, 460)
Stacks = Sequence[list[tuple[float, str]]]
"""The bar of every client: its parts from the bottom, each with its height as a share of the panel, and its colour."""


def draw_preference() -> Drawing:
    made = [_divide("preference", tasks_per_client=40, omega=omega) for omega in (0.1, 0.9)]
    drawing = _start("Preference: every client has its own mixture of categories", "share of its tasks")
    for left, split, omega in zip(LEFTS, made, (0.1, 0.9), strict=True):
        shares = split.statistics().shares
        _add_panel(drawing, left, f"omega = {omega}", _stack_categories(shares, 1.0))
    _add_key(drawing, _list_categories(made[0]))
    return drawing


def draw_dirichlet() -> Drawing:
    made = [_divide("dirichlet", beta=beta) for beta in (100, 0.1)]
    drawing = _start("Dirichlet: categories and numbers of tasks differ together", "number of tasks")
    for left, split, beta in zip(LEFTS, made, (100, 0.1), strict=True):
        counts = split.statistics().counts
        most = counts.sum(axis=1).max()
        _add_panel(drawing, left, f"beta = {beta}", _stack_categories(counts, float(most)), _describe_sizes(split))
    _add_key(drawing, _list_categories(made[0]))
    return drawing


def draw_coverage() -> Drawing:
    made = [_divide("coverage", mean_tasks=40, xi=xi) for xi in (256, 1)]
    most = max(int(split.statistics().sizes.max()) for split in made)
    drawing = _start("Coverage: some clients know many tasks, others few", "number of tasks", 276)
    for left, split, xi in zip(LEFTS, made, (256, 1), strict=True):
        sizes = split.statistics().sizes
        _add_panel(
            drawing, left, f"xi = {xi}", [[(size / most, "blue")] for size in sizes.tolist()], _describe_sizes(split)
        )
    return drawing


def draw_hardness() -> Drawing:
    made = [_divide("hardness", tasks_per_client=40, xi=xi) for xi in (256, 1)]
    drawing = _start("Hardness: some clients have tasks that a reference policy solves", "share of its tasks")
    for left, split, xi in zip(LEFTS, made, (256, 1), strict=True):
        shares = np.asarray(split.statistics().solved_shares)
        stacks = [[(share, "blue"), (1 - share, "panel")] for share in shares.tolist()]
        _add_panel(drawing, left, f"xi = {xi}", stacks)
    _add_key(drawing, [("solved by the reference policy", "blue"), ("not solved", "panel")])
    return drawing


def draw_variants() -> Drawing:
    """Draw clients by categories of Skills; the colour of a cell is the right procedure of the category at the client."""
    drawing = _start("Environments: the same question has another right answer at another client", "client")
    for left, degree in zip(LEFTS, (0.5, 1.0), strict=True):
        split = _divide(None, tasks_per_client=8, env="fedagentgym/Skills-v0",
                         variant={"kind": "swapped_procedures", "degree": degree})  # fmt: skip
        opened: list[Any] = [client.open_env() for client in split]
        rules = [list(env.list_procedures().values()) for env in opened]
        wide, high = PANEL / len(rules[0]), HEIGHT / len(rules)
        drawing.add_text(left, 54, f"degree = {degree}", "muted")
        for row, client in enumerate(rules):
            for column, category in enumerate(client):
                fill = "blue" if category.own == "+" else "orange"
                drawing.add_box(left + wide * column, TOP + high * row, wide - 2, high - 2, fill)
        drawing.add_text(left + PANEL / 2, TOP + HEIGHT + 24, f"{len(rules[0])} categories", "muted", anchor="middle")
    _add_key(drawing, [("the rule is to add", "blue"), ("the rule is to subtract", "orange")])
    return drawing


DIVISIONS = {
    "preference": draw_preference,
    "coverage": draw_coverage,
    "hardness": draw_hardness,
    "dirichlet": draw_dirichlet,
    "variants": draw_variants,
}


def _divide(partition: Any, env: str = "fedagentgym/ALFWorld-v0", **parameters: Any) -> ClientSplit:
    options = {"size": "tiny"} if "ALFWorld" in env else {}
    given = {"partition": partition} if partition else {}
    return federate(env, clients=CLIENTS, seed=0, env=options, **given, **parameters)


def _start(title: str, up: str, height: float = 306) -> Drawing:
    drawing = Drawing(title, height)
    drawing.add_text(20, 30, title, size=17, bold=True)
    for left in LEFTS:
        drawing.add_text(left - 14, TOP + HEIGHT / 2, up, "muted", anchor="middle", turned=True)
    return drawing


def _add_panel(drawing: Drawing, left: float, title: str, stacks: Stacks, sizes: str = "") -> None:
    """Add the bars of all clients; clients with the largest bottom part come first."""
    wide = PANEL / len(stacks)
    drawing.add_text(left, 54, title, "muted")
    if sizes:
        drawing.add_text(left + PANEL, 54, sizes, "muted", anchor="end")
    for number, parts in enumerate(sorted(stacks, reverse=True)):
        y = float(TOP + HEIGHT)
        for share, color in parts:
            y -= HEIGHT * share
            drawing.add_box(left + wide * number, y, wide - 3, HEIGHT * share, color)
    drawing.add_line([(left, TOP + HEIGHT), (left + PANEL - 3, TOP + HEIGHT)], "muted", 1)
    drawing.add_text(left + PANEL / 2, TOP + HEIGHT + 24, f"{len(stacks)} clients", "muted", anchor="middle")


def _stack_categories(counts: Any, whole: float) -> Stacks:
    return [[(count / whole, color) for count, color in zip(row, SERIES, strict=True)] for row in counts.tolist()]


def _describe_sizes(split: ClientSplit) -> str:
    sizes = split.statistics().sizes
    return f"{sizes.min()} to {sizes.max()} tasks"


def _list_categories(split: ClientSplit) -> list[tuple[str, str]]:
    return list(zip(split.statistics().categories, SERIES, strict=True))


def _add_key(drawing: Drawing, entries: Sequence[tuple[str, str]]) -> None:
    """Add the names of the colours, in a row at the bottom."""
    x = LEFTS[0]
    for name, color in entries:
        drawing.add_box(x, 273, 14, 14, color, "edge", radius=2)
        drawing.add_text(x + 21, 286, name, "muted")
        x += 45 + 8 * len(name)
