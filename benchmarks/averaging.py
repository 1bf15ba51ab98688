"""Rules that average adapters, less FedIT in the same worlds: the picture and a table of docs/experiments/averaging-lora.md.

Differences are in points and not corrected for their number; the planned ones, with tests, are in the suite's own table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import Spread, estimate_replicates
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import load_suite

SUCCESS, AREA = "success", "area"
"""Success after the last round, and the area under the curve, which is the mean success over the run on `val`."""
OWN_WORLD, OWN_MIXTURE = "own_world", "own_mixture"
"""The mean success of the clients' own policies on tasks of all categories, and on each client's own categories."""


@dataclass(frozen=True)
class Panel:
    """Rows of a suite that are compared with one of them."""

    title: str
    suite: str
    base: str
    rows: Sequence[str]


PANELS = (
    Panel(
        "four rounds of 20 steps",
        "averaging-lora-tiny-v1",
        "fedit",
        (
            *("ffa", "flexlora", "fedex", "flora", "merge"),
            *("fedit-long", "merge-long", "ram", "ram-plus", "full-weights"),
        ),
    ),
    *(
        Panel(
            title,
            "averaging-lora-rounds-tiny-v1",
            f"fedit-{steps}",
            [f"{rule}-{steps}" for rule in ("flexlora", "fedex", "flora", "merge-long", "ram")],
        )
        for title, steps in (("sixteen rounds of 5 steps", 5), ("one round of 80 steps", 80))
    ),
    Panel(
        "an A for each client",
        "averaging-lora-unlike-tiny-v1",
        "fedit-each",
        ("flexlora-each", "fedex-each", "flora-each"),
    ),
    Panel(
        "ranks 1 to 8",
        "averaging-lora-unlike-tiny-v1",
        "fedit-ranks",
        ("fedit-holders", "rank-1", "flexlora-ranks", "flora-ranks"),
    ),
    Panel(
        "one rank for all clients, less FedIT of rank 4",
        "averaging-lora-ranks-tiny-v1",
        "fedit-4",
        ("fedit-2", "fedit-8", "flexlora-2", "flexlora-4", "flexlora-8"),
    ),
    Panel(
        "clients that are alike",
        "averaging-lora-alike-tiny-v1",
        "fedit",
        ("flexlora", "fedex", "flora", "merge-long", "ram", "full-weights"),
    ),
    Panel(
        "SmolLM2, three rounds of 10 steps",
        "averaging-lora-small-v1",
        "fedit",
        ("flexlora", "fedex", "flora", "merge-long"),
    ),
)

PERSONAL = Panel(
    "clients that keep a part",
    "averaging-lora-personal-tiny-v1",
    "fedit",
    ("fedsa", "share-b", "local-all", "fedit-own"),
)


def list_played(results: Path) -> list[Panel]:
    """The panels whose suites have results."""
    return [panel for panel in PANELS if (results / panel.suite).is_dir()]


def compare(panel: Panel, results: Path, measure: str = SUCCESS) -> list[tuple[str, Spread]]:
    """The title of each row of a panel, with its measure minus that of the base row in the same worlds."""
    suite = load_suite(panel.suite)
    (scenario,) = suite.scenarios
    found = {}
    for name in (panel.base, *panel.rows):
        runs = Result(results / panel.suite / f"{name}.zip").numbers.runs[scenario]
        found[name] = {seed: run.means[measure] for seed, run in runs.items()}
    base = found[panel.base]
    return [
        (suite.baselines[name].title, estimate_replicates([found[name][seed] - base[seed] for seed in base]))
        for name in panel.rows
    ]


def describe_averaging(results: Path) -> str:
    """The differences as a table, after the last round and in the mean over the run."""
    lines = [
        "Success less that of FedIT in the same worlds, in points, with 95 % intervals that are not corrected for their number:",
        "",
        "| | after the last round | mean over the run |",
        "|---|---|---|",
    ]
    for panel in list_played(results):
        lines.append(f"| **{panel.title}** | | |")
        for (title, last), (_, area) in zip(compare(panel, results), compare(panel, results, AREA), strict=True):
            lines.append(f"| {title} | {_format(last)} | {_format(area)} |")
    if (results / PERSONAL.suite).is_dir():
        lines += [
            "",
            "The clients' own policies less FedIT's one policy in the same worlds, in points:",
            "",
            "| | on all categories | on the client's own four |",
            "|---|---|---|",
        ]
        everywhere, own = (compare(PERSONAL, results, measure) for measure in (OWN_WORLD, OWN_MIXTURE))
        for (title, whole), (_, mixture) in zip(everywhere, own, strict=True):
            lines.append(f"| {title} | {_format(whole)} | {_format(mixture)} |")
    return "\n".join(lines)


def _format(spread: Spread) -> str:
    assert spread.low is not None and spread.high is not None
    mean, low, high = (format_fixed(100 * value, 1, "+") for value in (spread.mean, spread.low, spread.high))
    return f"{mean} ({low} to {high})"
