"""The report: its numbers are those of the committed pages and results, and its LaTeX is its text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ROOT, report
from benchmarks.excerpts import make_marks
from benchmarks.latex import SPECIAL, escape_latex, write_latex
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.leaderboard.grid import TUNED
from tests.committed import RESULTS, needs_all_results

TEXT = report.PAGE.read_text("utf-8")


@needs_all_results
def test_the_report_is_what_its_command_writes() -> None:
    assert report.fill_report(TEXT) == TEXT, "run: python -m benchmarks report"
    assert report.LATEX.read_text("utf-8") == write_latex(TEXT), "run: python -m benchmarks report"


def test_no_number_of_a_result_is_typed() -> None:
    """Between the numbers that are filled in there is no percentage, no interval and no difference; and none begins a line,
    where Markdown would take it for HTML."""
    text = report.NUMBER.sub("", TEXT)
    for name in report.PLACES:
        begin, end = make_marks(name)
        before, _, rest = text.partition(begin)
        text = before + rest.partition(end)[2]
    _, _, results = text.partition("## 6. Results")
    assert not re.search(r"\d %(?! intervals)|[-+]\d+\.\d|\d\.\d+ points", results.partition("## 7.")[0])
    assert not [line for line in text.splitlines() if line.startswith("<!--")]
    assert not re.search(r"^<!-- [^>]* / ", TEXT, re.MULTILINE)


@needs_all_results
@pytest.mark.parametrize("page", [report.PAGE, ROOT / "docs" / "explanation" / "limits.md"])
def test_pages_name_every_suite_that_was_searched_alike(page: Path) -> None:
    chosen = (ROOT / "fedagentgym" / "leaderboard" / "suites").glob(f"*{TUNED}")
    searched = {path.name.removesuffix(TUNED) for path in chosen}
    played = {folder.name for folder in RESULTS.iterdir()}
    text = page.read_text("utf-8")
    assert len(searched & played) > 3
    assert [name for name in sorted(searched & played) if f"`{name}`" not in text] == []


def test_the_report_has_some_eight_pages() -> None:
    words = write_latex(TEXT).split()
    assert 2500 < len(words) < 5000


@needs_all_results
def test_a_changed_number_is_written_again() -> None:
    (name, *_) = re.findall(r"<!-- (experiments/[^>]+ misled) -->", TEXT)
    changed = re.sub(rf"(<!-- {re.escape(name)} -->\[)[^\]]*", r"\g<1>12.3 %", TEXT)
    assert changed != TEXT and report.fill_report(changed) == TEXT


@pytest.mark.parametrize(
    "name",
    [
        "count / towns",
        "experiments/fedagent / skills-fedagent-v1 / Success / FedAgent, tau = 6 / misled",
        "experiments/fedagent / skills-fedagent-v1 / Planned differences / zero-shot - nothing / misled",
        "experiments/fedagent / skills-fedagent-v1 / Success / zero-shot",
        "experiments/fedagent / no-such-place / Success / zero-shot / misled",
    ],
)
def test_a_number_that_is_nowhere_is_refused(name: str) -> None:
    with pytest.raises(FedAgentGymError):
        report.show_number(name)


def test_a_missing_place_of_the_page_is_refused() -> None:
    with pytest.raises(DataError):
        report.fill_report(TEXT.replace(make_marks("verdicts")[1], ""))


def test_the_latex_closes_what_it_opens_and_has_every_number() -> None:
    text = write_latex(TEXT)
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed) and {"document", "longtable", "itemize", "enumerate", "verbatim"} <= set(
        opened
    )
    plain = re.sub(r"\\begin{verbatim}.*?\\end{verbatim}", "", text, flags=re.DOTALL)
    groups = re.sub(r"\\[{}]", "", plain)
    assert groups.count("{") == groups.count("}")
    for rows in re.findall(r"\\begin{longtable}.*?\\end{longtable}", plain, re.DOTALL):
        shares = [float(share) for share in re.findall(r"Y{([\d.]+)}", rows)]
        columns = len(shares)
        assert sum(shares) == pytest.approx(1, abs=0.01)
        lines = [row for row in rows.split("\\toprule")[1].split("\\\\") if "&" in row]
        assert lines and all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in lines)
    shown = re.findall(r"-->\[([^\]]+)\]", TEXT)
    assert len(shown) > 40 and all(f"{{{escape_latex(number)}}}" in text for number in shown)
    pictures = re.findall(r"\\includegraphics\[[^]]*\]{([^}]*)}", text)
    assert pictures and all((report.LATEX.parent / picture).is_file() for picture in pictures)
    assert text.count("../") == len(pictures) and "<!--" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_report_is_typeset_on_some_eight_pages_and_no_line_leaves_them(tmp_path: Path) -> None:
    command = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        f"-output-directory={tmp_path}",
        report.LATEX.name,
    ]
    done = subprocess.run(
        command, cwd=report.LATEX.parent, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    (pages,) = re.findall(r"Output written on .*? \((\d+) pages", done.stdout.replace("\n", ""))
    assert 6 <= int(pages) <= 9


def test_a_column_may_be_empty() -> None:
    assert r"a &  \\" in write_latex("# Page\n\n| x | |\n|---|---|\n| a | |\n")


@given(st.text(st.sampled_from([*SPECIAL, "a", " ", "-"])))
def test_no_sign_of_a_text_is_a_command(text: str) -> None:
    left = escape_latex(text)
    for written in sorted(SPECIAL.values(), key=len, reverse=True):
        left = left.replace(written, "")
    assert set(left) <= {"a", " ", "-"}
