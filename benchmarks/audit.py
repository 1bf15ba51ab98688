"""The audit page, `docs/reference/audit.md`: the attacks on graders, tests of programs, losses, splits and runs.

    python -m benchmarks audit                  every section, and the page
    python -m benchmarks audit-probes           one section, and its place on the page

Each section is a benchmark of its own. After an interruption, run the sections that are missing.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import ROOT
from benchmarks.findings import Findings, write_place
from benchmarks.fixed_replies import find_all, write_pages
from benchmarks.kills import find_faults, find_kills
from benchmarks.losses import find_losses
from benchmarks.measurement import Measurement
from benchmarks.mutants import find_mutants
from benchmarks.probes import find_probes
from benchmarks.repeats import find_replays, find_results, find_splits
from benchmarks.spellings import find_spellings

PAGE = ROOT / "docs" / "reference" / "audit.md"
SECTIONS: dict[str, Callable[[bool], Findings]] = {
    "fixed-replies": find_all,
    "probes": find_probes,
    "mutants": find_mutants,
    "mathematics": find_spellings,
    "losses": find_losses,
    "splits": find_splits,
    "replays": find_replays,
    "results": find_results,
    "kills": find_kills,
    "faults": find_faults,
}
"""The place of each section on the page -> the function that finds its figures."""


def run(quick: bool = False) -> list[Measurement]:
    """Return the figures of every section of the audit page."""
    return [figure for name in SECTIONS for figure in run_section(name, quick)]


def run_section(name: str, quick: bool) -> list[Measurement]:
    """Compute the figures of one section, and write them to the page unless `quick`."""
    found = SECTIONS[name](quick)
    if not quick:
        write_place(PAGE, name, found.to_markdown())
        if name == "fixed-replies":
            write_pages(found)
    return found.to_measurements()


def run_fixed_replies(quick: bool = False) -> list[Measurement]:
    """Return what the best fixed reply earns in every environment and size."""
    return run_section("fixed-replies", quick)


def run_probes(quick: bool = False) -> list[Measurement]:
    """Return what falsepass's probes find, in every environment and with every verifier."""
    return run_section("probes", quick)


def run_mutants(quick: bool = False) -> list[Measurement]:
    """Return how many wrong programs the tests of programming tasks catch."""
    return run_section("mutants", quick)


def run_mathematics(quick: bool = False) -> list[Measurement]:
    """Return how the verifiers of mathematics grade spellings of right and of other answers."""
    return run_section("mathematics", quick)


def run_losses(quick: bool = False) -> list[Measurement]:
    """Return the largest difference of the loss and its gradient from those of TRL and polgrad."""
    return run_section("losses", quick)


def run_splits(quick: bool = False) -> list[Measurement]:
    """Return how many checks of client splits are proven."""
    return run_section("splits", quick)


def run_replays(quick: bool = False) -> list[Measurement]:
    """Return how many episodes another process plays in the same way."""
    return run_section("replays", quick)


def run_results(quick: bool = False) -> list[Measurement]:
    """Return how many committed results are verified."""
    return run_section("results", quick)


def run_kills(quick: bool = False) -> list[Measurement]:
    """Return how many kills commands survive."""
    return run_section("kills", quick)


def run_faults(quick: bool = False) -> list[Measurement]:
    """Return how many injected faults end as they should."""
    return run_section("faults", quick)
