"""Success on the questions about a house's rules, in the scenario `rules` of `methods-tiny-records-v1`, from committed results.

    python -m benchmarks records-rules

A sixth of the questions are of the kind `rule`. Each client's policy played these questions on the client's own databases, under
the rules of its house. The table goes to `docs/experiments/records.md`; `quick` reads one run of each row.
"""

from __future__ import annotations

from benchmarks import ROOT
from benchmarks.findings import Findings, write_place
from benchmarks.measurement import Measurement
from fedagentgym.base.statistics import estimate_replicates, mean
from fedagentgym.leaderboard.results import Result, RunKey
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.runs.folder import WORLDS

SUITE, SCENARIO, KIND = "methods-tiny-records-v1", "rules", "rule"
PAGE = ROOT / "docs" / "experiments" / "records.md"
PLACE = "records-rules"


def run(quick: bool = False) -> list[Measurement]:
    """The success of every row on these questions: the mean over clients, then over runs, with 95 % intervals."""
    rows: dict[str, tuple[float | str, ...]] = {}
    figures = []
    for archive in sorted((ROOT / "leaderboard" / "results" / SUITE).glob("*.zip")):
        result = Result(archive)
        keys = [key for key in result.keys if key[0] == SCENARIO]
        found = estimate_replicates([_read_success(result, key) for key in keys[: 1 if quick else None]])
        title = result.entry.title
        figures.append(Measurement(title, 100 * found.mean, "%"))
        ends = "" if found.low is None or found.high is None else f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        rows[title] = 100 * found.mean, ends
    if not quick:
        write_place(PAGE, PLACE, Findings("row", {"success, %": ".1f", "95 %": ""}, rows).to_markdown())
    return figures


def _read_success(result: Result, key: RunKey) -> float:
    solved: dict[int, list[bool]] = {}
    with result.open_run(key, WORLDS) as run_folder:
        for line in read_lines(run_folder.path / WORLDS):
            if line.trajectory.category == KIND:
                for client in line.about["clients"]:
                    solved.setdefault(client, []).append(line.trajectory.success)
    return mean([sum(one) / len(one) for one in solved.values()])
