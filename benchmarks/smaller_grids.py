"""The success that searches of suites would have lost with the smaller grid of later ones.

    python -m benchmarks smaller-grids

Later searches leave out a fourth learning rate and further sizes of a step. For every row of a suite whose grid had either: the
best trial less the best of those that the smaller grid has, by success in the two worlds that choose.
"""

from __future__ import annotations

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from fedagentgym.base.files import read_json
from fedagentgym.leaderboard.grid import TUNED, Choice

SUITES = ROOT / "fedagentgym" / "leaderboard" / "suites"
SEARCHED = ("skills-fedagent-v1", "skills-heterogeneity-v1", "skills-participation-v1", "houses-heterogeneity-v1")
RATE, STEP, RATES = "learning.learning_rate=", "learning.tasks_per_step=", 3


def run(quick: bool = False) -> list[Measurement]:
    """The most that a row would have lost in the searches that were played, with three rates and one size of a step."""
    found = []
    for name in SEARCHED:
        choice = Choice.load(read_json(SUITES / f"{name}{TUNED}"), name)
        losses = []
        for tried in choice.rows.values():
            rates = sorted({float(one.changes[0].removeprefix(RATE)) for one in tried.trials})[:RATES]
            kept = [
                trial.mean
                for trial in tried.trials
                if float(trial.changes[0].removeprefix(RATE)) in rates
                and not any(change.startswith(STEP) for change in trial.changes)
            ]
            losses.append(max(trial.mean for trial in tried.trials) - max(kept))
        found.append(Measurement(f"{name}: best of a row, less the best of the smaller grid", max(losses), "at most"))
    return found
