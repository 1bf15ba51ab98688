"""Play one run of every row of the leaderboard's methods again, and compare its bits with the committed ones.

    python -m benchmarks cells-again

A row's number chooses the scenario and the seed, so that the rows of a suite cover several. Other processors and other versions
of torch round differently; on them bits may differ without a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement
from fedagentgym.base.progress import get_error_console
from fedagentgym.leaderboard.entries import make_baseline
from fedagentgym.leaderboard.play import open_entry, play
from fedagentgym.leaderboard.results import Result, read_suites
from fedagentgym.runs.folder import EVALUATION

RESULTS = Path(__file__).parents[1] / "leaderboard" / "results"


def run(quick: bool) -> list[Measurement]:
    """The number of rows of each suite whose run has equal bits; `--quick` plays the first row of each suite."""
    found = []
    for one in read_suites([RESULTS]):
        if one.suite.track == "methods":
            rows = one.entries[:1] if quick else one.entries
            same = count_same(rows)
            found.append(Measurement(f"{one.key}: rows with equal bits", same, f"of {len(rows)}", str(len(rows))))
    return found


def count_same(rows: Sequence[Result]) -> int:
    """The number of rows whose run has equal bits; the result of each row is printed as soon as it was played."""
    same = 0
    with TemporaryDirectory() as folder:
        for number, row in enumerate(rows):
            other = play_again(row, number, Path(folder))
            same += other is None
            shown = "equal bits" if other is None else f"{other} has other bits"
            get_error_console().print(f"{row.suite.name}, {row.name}: {shown}", markup=False)
    return same


def play_again(row: Result, number: int, root: Path) -> str | None:
    """Play one of a row's runs. Return the run's name if an episode or the policy that played it differs, else None."""
    whole = open_entry(row.suite, make_baseline(row.suite, row.name), root)
    chosen = whole.runs[number % len(whole.runs)]
    play([replace(whole, runs=(chosen,))], workers=1)
    again = {name: data for name, data in chosen.run.publish().items() if name.startswith(EVALUATION)}
    with row.open_run(chosen.key) as there:
        former = {f"{EVALUATION}/{file.name}": file.read_bytes() for file in (there.path / EVALUATION).iterdir()}
    return None if again == former else chosen.name
