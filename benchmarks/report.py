"""The report in docs/report: fill in its numbers from the committed pages and results, and write it as LaTeX too.

    python -m benchmarks report

The text of `docs/report/index.md` is written by hand, but not its numbers. A number is a link after a comment that names the
number:

    <!-- experiments/fedagent / skills-fedagent-v1 / Success / zero-shot / misled -->[49.9 % (49.2 to 50.6)](...)
    <!-- suite / skills-fedagent-v1 / episodes -->[20,480](...)
    <!-- count / runs -->[1,980](...)

The first comment names a page, a pair of its markers, the line above a table, a row and a column. The command writes the text and
the target of the link: the archive of the entry, or the heading above the table. Tables are filled between markers, as on other
pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from benchmarks import ROOT
from benchmarks.claims import CONTRADICTED, EQUAL, OPEN, SUPPORTED, UNTRIED
from benchmarks.excerpts import fill_place, make_marks
from benchmarks.latex import write_latex
from benchmarks.measurement import Measurement
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.base.errors import DataError, unknown_name_error
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import write_atomic
from fedagentgym.base.imports import Registry
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.leaderboard.results import Result, find_results
from fedagentgym.leaderboard.suite import list_suites, load_suite
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.runs.archive import Archive

DOCS = ROOT / "docs"
PAGE = DOCS / "report" / "index.md"
LATEX = PAGE.with_name("report.tex")
RESULTS, VERIFIED = (ROOT / "leaderboard" / name for name in ("results", "verified"))
SOURCE = "https://github.com/fedagentgym/fedagentgym/blob/main/"
NUMBER = re.compile(r"<!-- ([^<>]+? / [^<>]+?) -->\[[^\]]*\]\([^)]*\)")
"""A number of the text: a comment with its name, and the link that shows it."""
SEPARATOR = " / "
Table = list[dict[str, str]]
"""The rows of a table by column; the first column has no name."""


def write_report(quick: bool = False) -> list[Measurement]:
    """Write docs/report: the numbers of the page from the committed pages and results, and the page as LaTeX."""
    text = fill_report(PAGE.read_text("utf-8"))
    write_atomic(PAGE, text)
    write_atomic(LATEX, write_latex(text))
    return [Measurement("numbers in the text", len(NUMBER.findall(text)), "links")]


def fill_report(text: str) -> str:
    """The report with its tables and numbers."""
    for name, write in PLACES.items():
        text = fill_place(text, name, "\n".join(write()))
    return NUMBER.sub(lambda match: f"<!-- {match[1]} -->{show_number(match[1])}", text)


@cache
def show_number(name: str) -> str:
    """The link to a number."""
    kind, *names = name.split(SEPARATOR)
    if kind == "count" and len(names) == 1:
        if names[0] not in COUNTS:
            raise unknown_name_error("count", names[0], list(COUNTS))
        find, target = COUNTS[names[0]]
        return f"[{find():,}]({target})"
    if kind == "suite" and len(names) == 2:
        suite = load_suite(names[0])
        number = {"seeds": len(suite.seeds), "episodes": suite.budget.episodes}[names[1]]
        return f"[{number:,}]({SOURCE}fedagentgym/leaderboard/suites/{suite.name}.yaml)"
    if len(names) != 4:
        raise DataError(f"{name!r} is not PAGE / PLACE / LINE ABOVE THE TABLE / ROW / COLUMN")
    place, above, row, column = names
    text = find_number(kind, place, above, row, column)
    return f"[{text}]({find_target(kind, place, row)})"


# ---- numbers of pages -------------------------------------------------------------------------------------------------


def find_number(page: str, place: str, above: str, row: str, column: str) -> str:
    """A cell of a table. In a suite's planned differences `column` is the scenario, and the interval and the verdict are added;
    in a table with a column `reading`, the reading is added.

    >>> find_number("experiments/fedagent", "skills-fedagent-v1", "Success", "zero-shot", "nowhere")
    Traceback (most recent call last):
    fedagentgym.base.errors.DataError: experiments/fedagent, skills-fedagent-v1, 'Success' has no 'zero-shot' under 'nowhere'
    """
    found = read_tables(page, place).get(above, [])
    chosen = [one for one in found if one[""] == row]
    if "shows" in (found[0] if found else ()):
        chosen = [one for one in chosen if one["scenario"] == column]
        if len(chosen) == 1:
            one = chosen[0]
            return f"{one['difference']} points ({one['95 %, or each run']}, {shorten(one['shows'])})"
    elif len(chosen) == 1 and column in chosen[0]:
        text = chosen[0][column]
        reading = f" ({shorten(chosen[0]['reading'])})" if "reading" in chosen[0] else ""
        return re.sub(r"\[([^,]+), ([^\]]+)\]", r"(\1 to \2)", text) + reading
    raise DataError(f"{page}, {place}, {above!r} has no {row!r} under {column!r}")


def shorten(verdict: str) -> str:
    """A verdict without the number of runs that it would take."""
    return verdict.partition(":")[0]


@cache
def read_tables(page: str, place: str) -> Mapping[str, Table]:
    """The tables between two markers of a page. The key of a table is the line above it, up to its first comma, colon, semicolon
    or bracket, or `table` if there is no such line."""
    begin, end = make_marks(place)
    path = DOCS / f"{page}.md" if page != "README" else ROOT / "README.md"
    _, found, rest = path.read_text("utf-8").partition(begin)
    if not found:
        raise DataError(f"{page} has no place {place!r}")
    tables: dict[str, Table] = {}
    above, lines = "table", rest.partition(end)[0].splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|---") and number:
            heads = split_row(lines[number - 1])
            rows = [split_row(one) for one in _take_rows(lines[number + 1 :])]
            tables[above] = [dict(zip(["", *heads[1:]], cells, strict=True)) for cells in rows]
        elif line and not line.startswith(("|", "!")):
            above = re.split(r"[:,(;]", line)[0].strip()
    return tables


def _take_rows(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def split_row(line: str) -> list[str]:
    r"""The cells of a row of a Markdown table, without its backslashes.

    >>> split_row(r"| `a` | learning\_rate |  |")
    ['a', 'learning_rate', '']
    """
    return [re.sub(r"\\(.)", r"\1", cell).strip().strip("`") for cell in line.split(" |")[:-1] for cell in [cell[1:]]]


def find_target(page: str, place: str, row: str) -> str:
    """The source of a number: the archive of the entry with this title, or the heading above the number on its page."""
    if (RESULTS / place).is_dir():
        names = [name for name, one in load_suite(place).baselines.items() if one.title == row]
        archives = [file for name in names if (file := RESULTS / place / f"{name}.zip").is_file()]
        if len(archives) == 1:
            return f"{SOURCE}{quote(archives[0].relative_to(ROOT).as_posix())}"
    if page == "README":
        return f"{SOURCE}README.md#{find_heading(ROOT / 'README.md', place)}"
    return f"../{page}.md#{find_heading(DOCS / f'{page}.md', place)}"


def find_heading(path: Path, place: str) -> str:
    """The anchor of the heading above a pair of markers."""
    before, _, _ = path.read_text("utf-8").partition(make_marks(place)[0])
    title = re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


# ---- counts and tables ------------------------------------------------------------------------------------------------


def count_own(registry: Registry) -> int:
    """The names of a registry without those of plugins."""
    return sum(not registry.is_added(name) for name in registry.names())


def count_runs() -> int:
    """The runs of all results."""
    return sum(len(Archive(path).runs) for path in find_results(RESULTS))


def count_trials() -> int:
    """The runs by which settings of suites were searched."""
    found = 0
    for suite in map(load_suite, list_suites()):
        if suite.tuning is not None:
            scenarios = len(suite.tuning.scenarios or suite.scenarios)
            found += scenarios * sum(one.settings * one.worlds for one in suite.chosen.values())
    return found


def count_replayed() -> int:
    """The results whose verifier replayed every episode."""
    found = [Result(path, [VERIFIED]).verification for path in find_results(RESULTS)]
    return sum(one is not None and one.replayed for one in found)


COUNTS: Mapping[str, tuple[Callable[[], int], str]] = {
    "environments": (lambda: count_own(ENVIRONMENTS), "../reference/environments/index.md"),
    "samplers": (lambda: count_own(SAMPLERS), "../reference/samplers.md"),
    "methods": (lambda: count_own(ALGORITHMS), "../reference/methods/index.md"),
    "suites": (lambda: len(list(RESULTS.iterdir())), f"{SOURCE}leaderboard/results"),
    "entries": (lambda: len(find_results(RESULTS)), f"{SOURCE}leaderboard/results"),
    "runs": (count_runs, f"{SOURCE}leaderboard/results"),
    "replayed": (count_replayed, f"{SOURCE}leaderboard/verified"),
    "trials": (count_trials, f"{SOURCE}leaderboard/tuning"),
}
"""The counts, each with a link to the counted things."""


def list_played() -> Iterator[str]:
    """The best method of each suite beside its baselines, as in README, with the number of its replicates."""
    (rows,) = read_tables("README", "methods").values()
    heads = list(rows[0])[1:]
    yield f"| suite | replicates | {' | '.join(heads)} |"
    yield "|" + "---|" * (len(heads) + 2)
    for row in rows:
        name = row[""].partition(" ")[0]
        seeds = len(load_suite(name).seeds)
        target = f"{SOURCE}leaderboard/results/{name}"
        yield f"| [{escape_markdown(row[''])}]({target}) | {seeds} | {' | '.join(escape_markdown(row[one]) for one in heads)} |"


def list_claims() -> Iterator[str]:
    """The number of times that each verdict was given on the claims of a paper."""
    begin, end = make_marks("claims")
    text = (DOCS / "experiments" / "claims.md").read_text("utf-8").partition(begin)[2].partition(end)[0]
    verdicts = (SUPPORTED, CONTRADICTED, EQUAL, OPEN, UNTRIED)
    yield f"| paper | {' | '.join(verdicts)} |"
    yield "|" + "---|" * (len(verdicts) + 1)
    for part in text.split("### ")[1:]:
        paper = part.partition("\n")[0]
        counts = Counter(split_row(line)[-1] for line in part.splitlines() if line.startswith("| "))
        cells = [str(counts[verdict]) for verdict in verdicts]
        yield f"| [{paper}](../experiments/claims.md#{paper.lower()}) | {' | '.join(cells)} |"


def list_not_played() -> Iterator[str]:
    """The suites of the package that have no results."""
    yield "| suite | title |"
    yield "|---|---|"
    for name in list_suites():
        if name != "smoke" and not (RESULTS / name).is_dir():
            target = f"{SOURCE}fedagentgym/leaderboard/suites/{name}.yaml"
            yield f"| [{escape_markdown(name)}]({target}) | {escape_markdown(load_suite(name).title)} |"


PLACES: Mapping[str, Callable[[], Iterator[str]]] = {
    "played": list_played,
    "verdicts": list_claims,
    "not-played": list_not_played,
}
"""The tables of the report."""
