"""Whatever a run, an entry or a suite calls itself is text on every page: it changes no element, attribute or table."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import show_invisible_characters
from fedagentgym.base.files import write_atomic
from fedagentgym.experiment.report.page import write_report
from fedagentgym.leaderboard.compare import LearningCurve, compare, load_played, read_learning_curves
from fedagentgym.leaderboard.comparison import write_comparison
from fedagentgym.leaderboard.record import Claim, Verification
from fedagentgym.leaderboard.results import ResultFolder, to_text
from fedagentgym.leaderboard.site.build import build_site
from fedagentgym.leaderboard.site.tables import BEGIN, END, fill_page, write_excerpt
from fedagentgym.leaderboard.suite import Suite
from tests.leaderboard.samples import write_methods_sample

from .runs import ROUNDS, write_run

PLAIN = "plain"
MARKUP = (
    "</script><script>harmed()</script><!-- <script>",
    "\"'`> onerror=harmed() style='",
    "{{ 7 * 7 }} {% raw %} {# a #} ${x} &lt;&amp;&#x3c;",
)
TABLES = ("a | b `c` [d](javascript:e) --> ]]> \\| \n## f", f"{END} {BEGIN}")
CONTROL = "\x1b[31m \x07 \u202eevil\u2066 \ufeff\u200b \u2028\u2029 \x85"
NASTY = {"markup": " ".join(MARKUP), "tables": " ".join((*TABLES, CONTROL))}


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


def write_texts_of_run(folder: Path, text: str) -> Path:
    run = write_run(folder / "run", text, ("Pick", f"1 {text}", f"2 {text}"))
    estimates = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["evaluation"]
    result = {
        "name": text,
        "algorithm": text,
        "rounds": ROUNDS,
        "seed": 0,
        "client_split": {"clients": 30, "digest": text},
        "final": {**estimates, "round": ROUNDS},
        "config": {
            "env": {"id": text, "options": {"level": text}},
            "agent": {"name": text},
            "partition": {"sampler": text},
            "federation": {},
            "algorithm": {"name": text},
            "evaluation": {"split": text, "temperature": 1.0},
        },
    }
    (run / "result.json").write_text(json.dumps(result))
    (run / "config.yaml").write_text(f"name: {json.dumps(text)}\n")
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
        found = compare([load_played(file, f"{number} {text}") for number, file in enumerate(files)])
        points = read_learning_curves(run)[0].points
        return write_comparison(found, {found.names[0]: [LearningCurve(text, points)]}, run / text.replace("/", ""))

    check_same_outline(write(write_texts_of_run(tmp_path, text), text), write(plain_run, PLAIN), text)


def write_texts_of_results(folder: Path, results: Path, text: str) -> tuple[Path, Path]:
    """Copies of two results that call themselves, their suite and its scenarios so, and what was found about them."""
    verified = folder / "verified"
    for place in sorted(results.iterdir()):
        copy = folder / "results" / place.name
        for file in (one for one in place.rglob("*") if one.is_file()):
            (copy / file.relative_to(place)).parent.mkdir(parents=True, exist_ok=True)
            (copy / file.relative_to(place)).write_bytes(file.read_bytes())
        suite = yaml.safe_load((copy / "suite.yaml").read_text())
        suite |= {"title": text, "about": text, "expected": [text]}
        suite["scenarios"]["uniform"] |= {"about": text, "methods_differ": False, "because": text}
        (copy / "suite.yaml").write_text(yaml.safe_dump(suite))
        manifest = ResultFolder(copy).manifest
        entry = manifest.entry.model_copy(
            update={"title": text, "note": text, "submitted_by": text, "link": f"javascript:{text}"}
        )
        played = manifest.suite.model_copy(update={"digest": Suite.load(suite).digest})
        (copy / "manifest.json").write_text(to_text(manifest.model_copy(update={"entry": entry, "suite": played})))
        claims = (Claim(name="who", status="not provable", about=text),)
        found = Verification(manifest=file_digest(copy / "manifest.json"), version=text, claims=claims)
        write_atomic(ResultFolder(copy, verified).verification_file, to_text(found))
    return folder / "results", verified


def build(folder: Path, results: Path, text: str) -> Path:
    """The page of such results."""
    written, verified = write_texts_of_results(folder, results, text)
    build_site([written], folder / "site", verified=verified)
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
    (table,) = site.glob("*.md")
    lines, expected = (file.read_text("utf-8").splitlines() for file in (table, plain_site / table.name))
    for line, other in zip(lines, expected, strict=True):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == other.count("|"), line
        assert not re.search(r"(?<!\\)(?:\\\\)*[<>&]", line), line
    with (site / f"{table.stem}.csv").open(encoding="utf-8", newline="") as rows:
        assert {row["entry"] for row in csv.DictReader(rows)} == {"learns", "stays"}
    readme = fill_page(f"a {BEGIN} {END} b", write_excerpt(site))
    assert readme.count(BEGIN) == readme.count(END) == 1 and readme.endswith("b")
    assert len(readme.splitlines()) == len(fill_page(f"a {BEGIN} {END} b", write_excerpt(plain_site)).splitlines())
