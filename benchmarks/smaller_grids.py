"""The success that the first searches of suites would have lost with the smaller grid of later searches.

    python -m benchmarks smaller-grids

Later searches leave out a fourth learning rate and further sizes of a step. For every row of a suite whose grid had them, the
loss is the success of the best trial minus that of the best trial in the smaller grid, in the two worlds of the search.
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
    """The largest loss of a row in each search, with three learning rates and one size of a step."""
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
