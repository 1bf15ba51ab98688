"""Whatever a run, an entry, a suite, a task or a file calls itself is text wherever it is written: it changes no element,
attribute, table, formula or line, and moves no cursor.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import yaml
from rich.table import Column, Table

from benchmarks.excerpts import OVERVIEWS, fill_page, make_marks
from fedagentgym.base.errors import DataError, show_invisible_characters
from fedagentgym.base.escape import escape_csv, escape_terminal
from fedagentgym.base.files import format_path, format_yaml, write_atomic
from fedagentgym.base.process import LineFormatter
from fedagentgym.base.progress import print_result, show_progress
from fedagentgym.cli.guard import run_guarded
from fedagentgym.cli.main import main
from fedagentgym.experiment.agent_file import AgentFile
from fedagentgym.experiment.export import write_model_card
from fedagentgym.experiment.report.page import write_report
from fedagentgym.leaderboard.compare import compare, load_played
from fedagentgym.leaderboard.comparison import write_comparison
from fedagentgym.leaderboard.entries import Entry
from fedagentgym.leaderboard.page.build import build_site
from fedagentgym.leaderboard.results import Claim, Result, Verification, pack
from fedagentgym.partitions.held import format_card
from fedagentgym.runs.claims import describe_evaluated, make_point
from fedagentgym.runs.folder import RunFolder, format_document, read_document
from fedagentgym.runs.record import RunRecord, Spent
from tests.leaderboard.samples import AGENTS_SUITE, MADE, ZEROS, write_methods_sample

from .runs import ROUNDS, write_run

PLAIN = "plain"
MARKUP = (
    "</script><script>harmed()</script><!-- <script>",
    "\"'`> onerror=harmed() style='",
    "{{ 7 * 7 }} {% raw %} {# a #} ${x} &lt;&amp;&#x3c;",
)
TABLES = ("a | b `c` [d](javascript:e) --> ]]> \\| \n## f", " ".join(reversed(make_marks(OVERVIEWS[0]))))
CONTROL = "\x1b[31m \x07 \u202eevil\u2066 \ufeff\u200b \u2028\u2029 \x85"
NASTY = {"markup": " ".join(MARKUP), "tables": " ".join((*TABLES, CONTROL))}
FORMULA = '=HYPERLINK("http://harmed")\n- [x](y)'


class Outline(HTMLParser):
    """The elements of a page with the names of their attributes; its texts, and the data of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.data: list[object] = []
        self.comments = 0
        self._type = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attributes)))
        self.texts += [value for _, value in attributes if value]
        self._type = dict(attributes).get("type") or "" if tag == "script" else tag

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}",))
        self._type = ""

    def handle_data(self, data: str) -> None:
        if self._type == "application/json":
            self.data.append(json.loads(data))
        else:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def check_same_outline(page: str, plain: str, text: str) -> None:
    found, expected = Outline(page), Outline(plain)
    assert found.elements == expected.elements
    assert found.comments == expected.comments == 0
    assert page == show_invisible_characters(page), "every character can be seen"
    shown = " ".join(show_invisible_characters(text).split())
    assert any(shown in " ".join(one.split()) for one in found.texts), "and the text can be read"


def list_marks(text: str) -> list[list[str]]:
    """The marks of Markdown and HTML in each line that are not escaped."""
    return [re.findall(r"(?<!\\)(?:\\\\)*([|`<>&$~*\[\]]|^#+|^[-+=])", line) for line in text.split("\n")]


def check_same_marks(text: str, plain: str) -> None:
    assert list_marks(text) == list_marks(plain)
    assert text == show_invisible_characters(text), "every character can be seen"


def write_texts_of_run(folder: Path, text: str) -> Path:
    run = write_run(folder / "run", text, ("Pick", f"1 {text}", f"2 {text}"))
    evaluations = [
        (one["round"], one["evaluation"])
        for one in map(json.loads, (run / "metrics.jsonl").open())
        if "evaluation" in one
    ]
    number, last = evaluations[-1]
    record = {
        "kind": "training",
        "name": text,
        "algorithm": text,
        "rounds": ROUNDS,
        "seed": 0,
        "config_digest": ZEROS,
        "env": {"id": text, "options": {"level": text}, "pool": ZEROS, "task_set": ZEROS},
        "agent": {"kind": "model", "settings": {"name": text}},
        "client_split": {"clients": 30, "digest": ZEROS},
        "curve": [make_point(describe_evaluated(found, at, ZEROS), Spent()) for at, found in evaluations],
        "final": describe_evaluated(last, number, ZEROS),
        "spent": Spent(),
        "made": MADE,
    }
    (run / "result.json").write_text(format_document(RunRecord.load(record)))
    config = {
        "name": text,
        "env": {"id": text, "options": {"level": text}},
        "agent": {"name": text},
        "partition": {"sampler": text},
        "federation": {},
        "algorithm": {"name": text},
        "evaluation": {"split": text, "temperature": 1.0},
    }
    (run / "config.yaml").write_text(format_yaml(config))
    return run


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts_of_run(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_the_report_of_a_run(text: str, plain_run: Path, tmp_path: Path) -> None:
    page = write_report(write_texts_of_run(tmp_path, text)).read_text("utf-8")
    check_same_outline(page, write_report(plain_run).read_text("utf-8"), text)
    episodes, samples = Outline(page).data
    for data in (episodes, samples):
        assert text in data["texts"], "the script of the page reads the text as it was"


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_comparison(text: str, count: int, plain_run: Path, tmp_path: Path) -> None:
    def write(run: Path, text: str) -> str:
        files = [run / "evaluation" / f"{number:04d}.jsonl" for number in (0, ROUNDS, 0)][:count]
        played = [load_played(file, f"{number} {text}") for number, file in enumerate(files)]
        played = [
            replace(one, episodes={(text, seed): tasks for (_, seed), tasks in one.episodes.items()}) for one in played
        ]
        played[0] = replace(played[0], curves={(text, 0): RunFolder(run).record.curve})
        return write_comparison(compare(played), run / text.replace("/", ""))

    check_same_outline(write(write_texts_of_run(tmp_path, text), text), write(plain_run, PLAIN), text)


def write_texts_of_results(folder: Path, results: Path, text: str) -> tuple[Path, Path]:
    """Copies of two results that call themselves, their suite and its scenarios so, and what was found about them."""
    verified = folder / "verified"
    for place in sorted(results.iterdir()):
        copy = folder / "copies" / place.name
        shutil.copytree(place, copy)
        suite = yaml.safe_load((copy / "suite.yaml").read_text())
        suite |= {"title": text, "about": text, "expected": [text]}
        suite["scenarios"]["uniform"] |= {"about": text, "methods_differ": False, "because": text}
        (copy / "suite.yaml").write_text(yaml.safe_dump(suite))
        told = {"title": text, "note": text, "submitted_by": text, "link": f"javascript:{text}"}
        entry = read_document(Entry, copy / "entry.json").model_copy(update=told)
        (copy / "entry.json").write_text(format_document(entry))
        archive = folder / "results" / f"{place.name}.zip"
        digest = pack(Result(copy), archive)
        claims = (Claim(name="who", status="not provable", about=text),)
        found = Verification(result=digest, version=text, claims=claims)
        write_atomic(Result(archive, [verified]).list_findings()[0], format_document(found))
    return folder / "results", verified


def build(folder: Path, results: Path, text: str) -> Path:
    """The page of such results."""
    written, verified = write_texts_of_results(folder, results, text)
    build_site([written], folder / "site", verified=[verified])
    return folder / "site"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    write_methods_sample(place / "learns", "learns")
    write_methods_sample(place / "stays", "stays", ("random", "random", "random"))
    return place


@pytest.fixture(scope="module")
def plain_site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plain"), results, PLAIN)


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_the_leaderboard(text: str, results: Path, plain_site: Path, tmp_path: Path) -> None:
    site = build(tmp_path, results, text)
    page, plain = ((place / "index.html").read_text("utf-8") for place in (site, plain_site))
    check_same_outline(page, plain, text)
    (data,) = Outline(page).data
    assert {(one["title"], one["note"], one["by"], one["link"]) for one in data["entries"]} == {(text, text, text, "")}
    for file in (site / "episodes").rglob("*.js"):
        assert not re.search("[<>&]|[^\n -~]", file.read_text("utf-8"))
    _, overview, table = sorted(site.glob("*.md"))  # the first is README.md
    for one in (overview, table):
        lines, expected = (file.read_text("utf-8").splitlines() for file in (one, plain_site / one.name))
        check_same_marks("\n".join(lines), "\n".join(expected))
    with (site / f"{table.stem}.csv").open(encoding="utf-8", newline="") as rows:
        assert {row["entry"] for row in csv.DictReader(rows)} == {"learns", "stays"}
    empty = "".join("\n".join(["", *make_marks(name), name]) for name in (OVERVIEWS[0], table.stem))
    filled, expected_page = fill_page(empty, site), fill_page(empty, plain_site)
    assert all(filled.count(mark) == 1 for name in (OVERVIEWS[0], table.stem) for mark in make_marks(name))
    assert filled.endswith(f"\n{table.stem}") and len(filled.splitlines()) == len(expected_page.splitlines())
    assert len(filled.splitlines()) > len(empty.splitlines()) + 4


@pytest.mark.parametrize("text", [*NASTY.values(), FORMULA], ids=[*NASTY, "formula"])
def test_cards_of_models_and_data(text: str) -> None:
    def write(text: str) -> tuple[str, str]:
        run = {"name": text, "algorithm": text, "round": 1, "rounds": 2, "clients": 3, "version": "0"}
        run["privacy"] = {"epsilon": 1.0, "delta": 1e-3, "assumed": [text]}
        plain = {
            "agent": {"name": "tiny"},
            "env": {"id": "fedagentgym/Guess-v0"},
            "evaluation": {"split": text},
            "run": run,
        }
        file = AgentFile.load({**plain, "result": {"success": 0.5, "low": 0.1, "high": 0.9, "tasks": 9.0}})
        told = {"env_id": "Guess-v0", "sampler": text, "seed": 0, "parameters": {text: text}, "pool_digest": "sha256:0"}
        split, pool = MagicMock(record=SimpleNamespace(**told), digest="sha256:0"), MagicMock(categories={text: 3})
        split.__len__.return_value = pool.__len__.return_value = 3
        held = format_card(SimpleNamespace(index=0), split, pool)  # type: ignore[arg-type]
        return write_model_card(file, base=text, licence=None, parameters=5), held

    for nasty, plain in zip(write(text), write(PLAIN), strict=True):
        check_same_marks(nasty, plain)


@pytest.mark.parametrize("text", [*NASTY.values(), FORMULA, "+1", "@x", "-2+3"])
def test_a_cell_of_a_table_for_spreadsheets(text: str) -> None:
    out = io.StringIO()
    csv.writer(out).writerow([escape_csv(text), "next"])
    (row,) = csv.reader(io.StringIO(out.getvalue()))
    assert row[1] == "next" and row[0][0] not in "=+-@\t\r" and row[0] == show_invisible_characters(row[0])


@pytest.mark.parametrize("text", [*NASTY.values(), FORMULA], ids=[*NASTY, "formula"])
def test_lines_on_a_terminal(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, sentences, progress, errors, and log lines, in a pipe and on a terminal."""

    def fail() -> None:
        raise DataError(f"{format_path(tmp_path / text)}: {text}")

    monkeypatch.setattr("fedagentgym.base.progress._LINE_EVERY_SECONDS", 0.0)
    table = Table(Column(text), title=text)
    table.add_row(text)
    print_result(table)
    print_result(text)
    with show_progress(text, total=2) as bar:
        bar.advance(cell=text)
        bar.write(text)
    assert run_guarded(fail) == 2
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(levelname)s: %(message)s"))
    handler.handle(logging.LogRecord("a", logging.WARNING, "f", 1, "%s", (text,), None))
    suite = yaml.safe_dump({**AGENTS_SUITE.model_dump(mode="json", exclude_unset=True), "title": text, "about": text})
    (tmp_path / "suite.yaml").write_text(suite)
    assert main(["bench", "show", str(tmp_path / "suite.yaml")]) == 0
    told = capsys.readouterr()
    assert told.out + told.err == escape_terminal(told.out + told.err)
    *_, error, warning, end = told.err.split("\n")
    assert error.startswith("fedagentgym: ") and warning.startswith("WARNING: ") and end == "", "one line each"
