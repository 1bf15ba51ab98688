"""One cell of every row of the leaderboard's methods, played again: are its bits those that are committed?

    python -m benchmarks cells-again

A row's number chooses the scenario and the seed, so that the rows of a suite try several. Processors of another kind and other
versions of torch round differently: there bits may differ without a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement
from fedagentgym.base.files import read_compressed
from fedagentgym.base.progress import get_error_console
from fedagentgym.leaderboard.entries import make_baseline
from fedagentgym.leaderboard.results import EPISODES, SELECTION, WORLDS, ResultFolder, read_suites
from fedagentgym.leaderboard.runs import collect_result, open_run, play_runs

RESULTS = Path(__file__).parents[1] / "leaderboard" / "results"


def run(quick: bool) -> list[Measurement]:
    """Rows whose cell has equal bits, for each suite; `--quick` plays the first row of each."""
    found = []
    for one in read_suites([RESULTS]):
        if one.suite.track == "methods":
            rows = one.entries[:1] if quick else one.entries
            same = count_same(rows)
            found.append(Measurement(f"{one.key}: rows with equal bits", same, f"of {len(rows)}", str(len(rows))))
    return found


def count_same(rows: Sequence[ResultFolder]) -> int:
    """The number of rows of which a cell has equal bits; each is named as soon as it was played."""
    same = 0
    with TemporaryDirectory() as folder:
        for number, row in enumerate(rows):
            cell = play_again(row, number, Path(folder))
            same += cell is None
            shown = "equal bits" if cell is None else f"{cell} has other bits"
            get_error_console().print(f"{row.suite.name}, {row.name}: {shown}", markup=False)
    return same


def play_again(row: ResultFolder, number: int, root: Path) -> str | None:
    """Play one of a row's cells; returns its name if any of its episodes, or the policy that played them, differs."""
    whole = open_run(row.suite, make_baseline(row.suite, row.name), root)
    cell = whole.cells[number % len(whole.cells)]
    chosen = replace(whole, cells=(cell,))
    play_runs([chosen], workers=1)
    (again,) = collect_result(chosen).cells
    (record,) = (one for one in row.manifest.cells if one.key == cell.key)
    texts = {EPISODES: again.episodes, SELECTION: again.selection or "", WORLDS: again.worlds}
    for kind, text in texts.items():
        if text and text != read_compressed(row.get_episodes_file(record, kind)):
            return cell.key
    return None
