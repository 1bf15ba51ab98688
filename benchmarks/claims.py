"""The claims of the papers compared with measurements: docs/experiments/claims.md, from claims.yaml and the committed results.

    python -m benchmarks claims

A claim has evidence. Each piece of evidence is a comparison of a suite, corrected as on the suite's page, and the outcome that
would support the claim. No verdict is typed by hand: a new result changes it, and a claim without a result is "not tried".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from benchmarks import ROOT
from benchmarks.curves import compute_area
from benchmarks.excerpts import fill_place, make_marks
from benchmarks.measurement import Measurement
from benchmarks.skills_pages import PAGES, SuitePage
from benchmarks.skills_results import AREA, compare_pairs, name_row, read_suite
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import parse_yaml, write_atomic
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.settings import Settings
from fedagentgym.base.statistics import Difference, correct
from fedagentgym.leaderboard.rank import Compared, compare_suite
from fedagentgym.leaderboard.results import read_suites
from fedagentgym.leaderboard.suite import load_suite

CLAIMS = Path(__file__).with_name("claims.yaml")
RESULTS = ROOT / "leaderboard" / "results"
PAGE = ROOT / "docs" / "experiments" / "claims.md"
MEAN = "mean"
SUPPORTED, CONTRADICTED, EQUAL, OPEN, UNTRIED = "supported", "contradicted", "equal", "not decided", "not tried"
UNSEARCHED = "\\*"
"""Marks a suite in which the settings of some rows were not searched."""


class Evidence(Settings):
    """A comparison of two rows, or of a suite's gain in two scenarios, and the outcome that would support the claim."""

    about: str
    suite: str
    first: str | None = None
    second: str | None = None
    scenario: str | None = None
    measure: str | None = Field(default=None, description="a number of a suite's runs that its page does not compare")
    gain: tuple[str, str] | None = Field(
        default=None, description="scenarios of a gain that the suite plans, between these rows if any are named"
    )
    expects: Literal["above", "equal", "not above", "not below"]


class Claim(Settings):
    """A claim of a paper, its place in the paper, and the evidence of this repository."""

    claim: str
    where: str
    evidence: tuple[Evidence, ...] = ()


def read_claims() -> dict[str, list[Claim]]:
    """The claims of each paper."""
    plain = parse_yaml(CLAIMS.read_text("utf-8"), CLAIMS.name)
    return {paper: [Claim.load(one, paper) for one in claims] for paper, claims in plain.items()}


def judge(found: Difference, expects: str) -> str:
    """The verdict on a claim by a difference, which was corrected with all comparisons of its page.

    >>> judge(Difference(0.1, adjusted=0.001), "above"), judge(Difference(0.1, adjusted=0.001), "equal")
    ('supported', 'contradicted')
    >>> judge(Difference(0.01, adjusted=0.9, adjusted_unequal=0.9), "not above")
    'not decided'
    """
    above, below = (found.is_decided and sign * found.mean > 0 for sign in (1, -1))
    if expects == "above":
        return SUPPORTED if above else CONTRADICTED if below else EQUAL if found.is_equal else OPEN
    if expects == "equal":
        return SUPPORTED if found.is_equal else CONTRADICTED if above or below else OPEN
    if expects == "not below":
        above, below = below, above
    return SUPPORTED if below or found.is_equal else CONTRADICTED if above else OPEN


Pair = tuple[str | None, str | None]
"""Two rows of a suite."""


@dataclass(frozen=True)
class Found:
    """The differences of committed results: those on the suites' pages, and those in other measures that evidence names."""

    suites: Mapping[str, list[Compared]]
    measured: Mapping[Evidence, Difference]


def find_differences(asked: Iterable[Evidence], results: Path = RESULTS) -> Found:
    """All comparisons of the suites that have results, and those in the measures that evidence names."""
    suites = {one.suite.name: compare_suite(one.suite, one.tabulate()) for one in read_suites([results])}
    more = [one for one in asked if one.measure is not None]
    measured = [_compare_measures(each, [one for one in more if one.suite == each.suite], results) for each in PAGES]
    return Found(suites, {one: difference for each in measured for one, difference in each.items()})


def _compare_measures(page: SuitePage, asked: Sequence[Evidence], results: Path) -> dict[Evidence, Difference]:
    """The differences of a suite in the measures that evidence names, corrected together; empty if the suite was not played."""
    played = read_suite(page.suite, results, page.diagnostics) if asked else None
    if played is None:
        return {}
    suite = load_suite(played.table)
    rows = [
        replace(one, row=replace(one.row, values={AREA: tuple(map(compute_area, one.curves)), **one.diagnostics}))
        for one in played.rows
    ]
    played = replace(played, rows=tuple(rows))
    found = []
    for one in asked:
        first, second = (name_row(suite, str(one.scenario), str(entry)) for entry in (one.first, one.second))
        found += compare_pairs(played, [(first, second)], str(one.measure), suite.smallest_difference or 0.0)
    return dict(zip(asked, correct(found), strict=True))


def find_difference(one: Evidence, differences: Found) -> Difference | None:
    """The difference that a piece of evidence names; None if it was not played."""
    if one.measure is not None:
        return differences.measured.get(one)
    compared: Sequence[Compared] = differences.suites.get(one.suite, ())
    if one.gain is not None:
        gains = [(each.gain, each.difference) for each in compared if each.gain is not None]
        named = None if one.first is None else (one.first, one.second)
        return next(
            (
                each
                for gain, each in gains
                if (gain.scenario, gain.than_scenario) == one.gain and named in (None, gain.of)
            ),
            None,
        )
    chosen = [each for each in compared if each.gain is None and one.scenario == (each.scenario or MEAN)]
    found: Mapping[Pair, Difference] = {(each.first, each.second): each.difference for each in chosen}
    if (pair := (one.first, one.second)) in found:
        return found[pair]
    return turn(found[pair[::-1]]) if pair[::-1] in found else None


def turn(found: Difference) -> Difference:
    """The same comparison with the two sides exchanged."""
    low, high = (None if end is None else -end for end in (found.high, found.low))
    return replace(found, mean=-found.mean, low=low, high=high, values=tuple(-value for value in found.values))


def write_table(claims: Mapping[str, list[Claim]]) -> tuple[str, dict[str, int]]:
    """The tables of the page, one for each paper, and the number of times that each verdict was given."""
    differences = find_differences(evidence for own in claims.values() for one in own for evidence in one.evidence)
    lines, counts = [], dict.fromkeys((SUPPORTED, CONTRADICTED, EQUAL, OPEN, UNTRIED), 0)
    for paper, own in claims.items():
        lines += [
            "",
            f"### {paper}",
            "",
            "| claim | in the paper | here | difference, 95 % | verdict |",
            "|---|---|---|---|---|",
        ]
        for claim in own:
            named = (claim.claim, claim.where)
            if not claim.evidence:
                counts[UNTRIED] += 1
                lines.append(f"| {' | '.join(map(escape_markdown, named))} | | | {UNTRIED} |")
            for evidence in claim.evidence:
                found = find_difference(evidence, differences)
                verdict = UNTRIED if found is None else judge(found, evidence.expects)
                counts[verdict] += 1
                shown = "" if found is None else format_difference(found)
                mark = "" if load_suite(evidence.suite).chosen else UNSEARCHED
                place = f"{escape_markdown(evidence.about)} ([{evidence.suite}]({find_page(evidence.suite)}){mark})"
                cells = [*map(escape_markdown, named), place, shown, verdict]
                lines.append(f"| {' | '.join(cells)} |")
                named = ("", "")
    return "\n".join(lines).strip() + "\n", counts


def format_difference(found: Difference) -> str:
    """A difference in points, with its interval if it has one."""
    mean = format_fixed(100 * found.mean, 1, "+")
    if found.ends is None:
        return mean
    low, high = (format_fixed(100 * end, 1, "+") for end in found.ends)
    return f"{mean} [{low}, {high}]"


def find_page(suite: str) -> str:
    """The name of the page that has the markers of a suite."""
    begin, _ = make_marks(suite)
    (page,) = (page for page in sorted(PAGE.parent.glob("*.md")) if begin in page.read_text("utf-8"))
    return page.name


def write_claims(quick: bool = False) -> list[Measurement]:
    """Write the tables of docs/experiments/claims.md from the committed results."""
    text, counts = write_table(read_claims())
    write_atomic(PAGE, fill_place(PAGE.read_text("utf-8"), "claims", text))
    return [Measurement(verdict, count, "lines") for verdict, count in counts.items()]
