"""The leaderboard's page: the same bytes for the same results, nobody's text runs, and all of it works in a real browser."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
import shutil
import time
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.metrics import Interval
from fedagentgym.leaderboard.page.build import build_site
from fedagentgym.leaderboard.page.index import read_published
from fedagentgym.leaderboard.rank import compare_suite, rank
from fedagentgym.leaderboard.results import ENTRY, Claim, Rerun, Result, SuiteEntries, Verification, pack
from fedagentgym.runs.folder import format_document
from tests.leaderboard.samples import write_agents_sample, write_methods_sample

from .accessibility import MISSING, find_axe, find_faults
from .browser import Browser

HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=1> \u202eevil"
METHODS = "sample-methods-v1"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents, and three methods of which one says hostile things of itself."""
    place, made = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("made")
    pack(write_methods_sample(made / "learns", "learns"), place / "methods" / "learns.zip")
    add_verification(place, place / "methods" / "learns.zip")
    for agent in ("expert", "random"):
        pack(write_agents_sample(made / agent, agent), place / "agents" / f"{agent}.zip")
    pack(write_methods_sample(made / "stays", "stays", ("random",) * 3), place / "methods" / "stays.zip")
    write_methods_sample(made / "hostile", "hostile", ("expert", "random", "random"))
    pack(
        change_entry(made / "hostile", title=HOSTILE, note=HOSTILE, link="javascript:alert(1)", submitted_by=HOSTILE),
        place / "methods" / "hostile.zip",
    )
    found = Result(place / "methods" / "learns.zip", [place / "verified"]).list_findings()[0]
    shutil.copyfile(found, Result(place / "methods" / "stays.zip", [place / "verified"]).list_findings()[0])
    return place


def build(results: Path, out: Path, *parts: str) -> list[SuiteEntries]:
    """The page of results, or of those in some folders, with what was found about them."""
    return build_site([results / part for part in parts or (".",)], out, verified=[results / "verified"])


@pytest.fixture(scope="module")
def site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sites") / "site"
    build(results, out)
    return out


def change_entry(folder: Path, **about: str) -> Result:
    """A result with another description of its entry."""
    (folder / ENTRY).write_text(format_document(Result(folder).entry.model_copy(update=about)))
    return Result(folder)


def add_verification(place: Path, archive: Path) -> None:
    """The maintainers' page on a result: replayed, run again with another success on tasks that nobody knew."""
    found = Interval(mean=0.875, low=0.8, high=0.95)
    claims = (
        Claim(name="replayed", status="proven", about="every episode plays as it is written"),
        Claim(name="who", status="not provable", about=f"who wrote the actions {HOSTILE}"),
    )
    rerun = Rerun(date="2026-01-02", by="maintainers", secret={"success": found})
    verified = Verification(result=Result(archive).digest, version="1", claims=claims, rerun=rerun)
    write_atomic(Result(archive, [place / "verified"]).list_findings()[0], format_document(verified))


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- without a browser ----------------------------------------------------------------------------------------------


def test_the_same_results_make_the_same_bytes(results: Path, site: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(results, moved)
    build(moved, tmp_path / "again", "methods", "agents")
    assert read_all(tmp_path / "again") == read_all(site)
    assert "\nsdk: static\n" in (site / "README.md").read_text().split("---\n")[1]


def test_the_page_needs_no_network_and_holds_what_it_links_to(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert "<script>window.harmed" not in page and "\u202e" not in page and "javascript:alert" not in page
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    for target in re.findall(r'href="([^"#:]+)"', page):
        assert (site / target).is_file(), target
    data = json.loads(re.findall(rf'id="data-{METHODS}">(.*?)</script>', page, re.DOTALL)[0])
    for entry in data["entries"]:
        assert Result(site / entry["files"]).name == entry["name"]


def test_the_scripts_of_episodes_hold_those_that_were_played(results: Path, site: Path) -> None:
    for archive in results.glob("*/*.zip"):
        result = Result(archive)
        (script,) = site.glob(f"episodes/*/{result.name}.js")
        sent = json.loads(script.read_text("ascii").removeprefix("receiveEpisodes(").removesuffix(");\n"))
        cells = json.loads(gzip.decompress(base64.b64decode(sent["packed"])))
        assert list(cells) == sorted(result.scenarios)
        for scenario, seed in dict.fromkeys(result.scenarios, result.seeds[0]).items():
            played = [one for group in result.read_groups((scenario, seed)) for one in group]
            texts = cells[scenario]["texts"]
            shown = sorted((texts[one["task"]], one["sample"], one["score"]) for one in cells[scenario]["episodes"])
            assert shown == sorted((one.task, one.sample, one.score) for one in played)


def test_what_was_expected_stands_beside_what_was_found(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert page.count("Expectations, written down before the runs") == 1 and "Who learns ends above who stays." in page


def test_ranks_and_bands(site: Path) -> None:
    with (site / f"{METHODS}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["scenario"], row["measure"]) == ("overall", "success")]
    assert (rows[0]["entry"], rows[0]["rank"], rows[0]["low"], rows[0]["runs"]) == ("learns", "", "", "1.0 1.0")
    assert {row["entry"]: row["band"] for row in rows} == {"learns": "1", "stays": "2", "hostile": "2"}
    told = (site / f"{METHODS}.md").read_text()
    assert "| 1 | learns | 100.0 % |" in told and told.count("replayed, run again by the maintainers") == 1
    assert told.count("not verified") == 2, "not what a result says of itself, nor what is about another archive"
    assert "<script>" not in told.replace("\\<script\\>", "")


def test_the_differences_that_a_suite_asks_for_are_told(site: Path) -> None:
    """Of pairs of which both have played; corrected for their number."""
    page = (site / "index.html").read_text("utf-8")
    table = page.split("<h2>Differences</h2>")[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert [row[:3] for row in rows[1:]] == [
        ["learns", "stays", name] for name in ("uniform", "omega-0.5", "omega-0.9", "mean")
    ]
    assert {row[-1] for row in rows[1:]} == {"too few runs"} and "2 runs each" in page


def test_who_played_some_scenarios_is_ranked_there_alone(tmp_path: Path) -> None:
    write_agents_sample(tmp_path / "expert", "expert")
    write_agents_sample(tmp_path / "part", "random", "part", most=1)
    (found,) = build_site([tmp_path / "expert", tmp_path / "part"], tmp_path / "site")
    values = found.tabulate()
    ranks = rank(found.suite, values, compare_suite(found.suite, values))
    assert set(ranks[""]) == set(ranks["other"]) == {"expert"} and set(ranks["guess"]) == {"expert", "part"}
    rows = list(csv.DictReader((tmp_path / "site" / "sample-agents-v1.csv").open()))
    assert {row["scenario"] for row in rows if row["entry"] == "part"} == {"guess"}
    assert "1 of 2 scenarios" in (tmp_path / "site" / "sample-agents-v1.md").read_text()
    (alone,) = build_site([tmp_path / "part"], tmp_path / "alone")
    assert all(not row["rank"] for row in csv.DictReader((tmp_path / "alone" / "sample-agents-v1.csv").open()))
    assert rank(alone.suite, alone.tabulate(), [])[""] == {}


def test_the_top_of_a_suite_is_a_table_for_a_readme(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["leaderboard", "top", str(results), "--suite", METHODS, "--entries", "2"]
    line += ["--verified", str(results / "verified")]
    assert main([*line, "--measure", "success", "--measure", "worst_client"]) == 0
    head, _, first, second = capsys.readouterr().out.splitlines()
    assert head == "| band | entry | success | worst client | status | on the secret twin |"
    assert first.startswith("| 1 | learns | 100.0 % |") and first.endswith("| 87.5 % [80.0, 95.0] |")
    assert second.startswith("| 2 |")
    assert main(line) == 0
    assert "| entry | success | optimizer steps | status | on the secret twin |" in capsys.readouterr().out
    assert main([*line, "--measure", "sucess"]) == 2
    assert main(["leaderboard", "top", str(results), "--suite", "sample-methods"]) == 2
    assert capsys.readouterr().err.count("did you mean") == 2


def test_published_numbers_are_there_and_marked(site: Path) -> None:
    papers, _ = read_published()
    assert sum(len(paper["rows"]) for paper in papers) == 928
    page = (site / "index.html").read_text()
    assert page.count(">published<") >= len({(row["paper"], row["table"]) for paper in papers for row in paper["rows"]})


def test_what_cannot_be_built_is_said(
    results: Path, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(OptionError, match="other files"):
        build_site([results], tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    with pytest.raises(DataError, match="no result"):
        build_site([tmp_path / "mine"], tmp_path / "new")
    shutil.copyfile(results / "agents" / "expert.zip", tmp_path / "twice.zip")
    with pytest.raises(DataError, match="both called expert"):
        build_site([results, tmp_path / "twice.zip"], tmp_path / "new")
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob("*.new"))
    assert main(["leaderboard", "build", str(tmp_path / "nothing"), "--out", str(tmp_path / "new")]) == 2
    assert "neither a result nor a folder of results" in capsys.readouterr().err


def test_the_folder_in_which_one_is_is_not_replaced(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (".", str(tmp_path)):
        assert main(["leaderboard", "build", str(results / "agents"), "--out", place]) == 2
        assert "cannot be replaced, since you are in it" in capsys.readouterr().err
    assert not list(tmp_path.parent.glob("*.new")) and not list(tmp_path.iterdir())
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert main(["leaderboard", "build", str(results / "agents"), "--out", "../page"]) == 0
    assert (tmp_path / "page" / "index.html").is_file()


def test_results_can_be_linked_to_and_an_older_page_is_replaced(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    assert main(["leaderboard", "build", str(results / "agents"), "--out", str(out), "--link", "../results"]) == 0
    assert (
        not (out / "results").exists()
        and '"../results/sample-agents-v1/expert.zip"' in (out / "index.html").read_text()
    )
    assert main(["leaderboard", "build", str(results / "methods"), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.glob("*.md")) == ["README.md", "overview.md", f"{METHODS}.md"]


# ---- in a browser ---------------------------------------------------------------------------------------------------


def read_titles(browser: Browser) -> list[str]:
    titles: list[str] = browser.run(
        "return [...document.querySelectorAll('[role=tabpanel]:not([hidden]) button.entry')].map((one) => one.textContent)"
    )
    return titles


def open_methods(browser: Browser, site: Path, width: int = 1400, *, dark: bool = False) -> None:
    browser.open(site / "index.html", width, dark=dark)
    browser.run(f"location.hash = '{METHODS}'")


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_the_page_is_quiet_and_fits(browser: Browser, site: Path, width: int, dark: bool) -> None:
    open_methods(browser, site, width, dark=dark)
    browser.run("for (const one of document.querySelectorAll('button.entry')) one.click()")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.read_log() == [] and browser.run("return window.harmed") is None
    assert browser.run("return document.documentElement.scrollWidth") <= width
    shown = browser.run("return document.querySelector('[role=tabpanel]:not([hidden])').innerText")
    assert "replayed" in shown and "run again, unpublished tasks" in shown and "87.5" in shown
    assert "⟨U+202E⟩" in shown and "window.harmed=1" in shown


def test_the_table_is_sorted_filtered_and_searched(browser: Browser, site: Path) -> None:
    open_methods(browser, site)
    assert read_titles(browser)[0] == "learns"
    panel = "const panel = document.querySelector('[role=tabpanel]:not([hidden])');"
    browser.run(panel + "panel.querySelector('[data-sort=success]').click()")
    browser.run(panel + "panel.querySelector('[data-sort=success]').click()")
    assert read_titles(browser)[-1] == "learns"
    assert browser.run(panel + "return panel.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "ascending"
    search = (
        "const s = panel.querySelector('[aria-label=\"Search entries\"]');"
        "s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    )
    browser.run(panel + search, "stay")
    assert read_titles(browser) == ["stays"]
    browser.run(panel + search, "")
    assert len(read_titles(browser)) == 3
    browser.run(
        panel
        + "const s = panel.querySelector('[aria-label=Scenario]'); s.value = 'uniform'; s.dispatchEvent(new Event('change'))"
    )
    assert len(read_titles(browser)) == 3


def test_tabs_and_episodes_work_from_the_disk(browser: Browser, site: Path) -> None:
    open_methods(browser, site)
    assert browser.run("return document.getElementById('tab-methods').getAttribute('aria-selected')") == "true"
    browser.run("document.getElementById('tab-methods').focus()")
    browser.press("\ue014")  # arrow right
    assert browser.run("return document.activeElement.getAttribute('aria-selected')") == "true"
    assert browser.run("return document.activeElement.id") == "tab-agents"
    browser.press("\ue012")
    shown = browser.wait_for(
        "const done = arguments[arguments.length - 1]; const panel = document.querySelector('[role=tabpanel]:not([hidden])');"
        "panel.querySelector('.show').click(); let left = 60; const look = () => {"
        "const count = panel.querySelectorAll('.pane').length;"
        "if (count || !left--) done(count); else setTimeout(look, 50) };"
        "look()"
    )
    assert shown == 2 and browser.read_log() == []


def test_axe_finds_nothing(browser: Browser, site: Path) -> None:
    axe = find_axe()
    if axe is None:
        pytest.skip(MISSING)
    for dark in (False, True):
        open_methods(browser, site, dark=dark)
        browser.run("document.querySelector('[role=tabpanel]:not([hidden]) button.entry').click()")
        browser.run(
            "for (const one of document.querySelectorAll('[role=tabpanel]:not([hidden]) details')) one.open = true"
        )
        assert find_faults(browser, axe) == []


@pytest.mark.slow
def test_two_hundred_results_stay_quick(browser: Browser, results: Path, tmp_path: Path) -> None:
    for number in range(200):
        name = f"method-{number:03d}"
        copy = tmp_path / "made" / name
        players = ("random", "random", "expert" if number % 2 else "random")
        if number < 2:
            write_methods_sample(copy, "method", players)
        else:
            shutil.copytree(tmp_path / "made" / f"method-{number % 2:03d}", copy)
        pack(change_entry(copy, name=name, title=f"method {number}"), tmp_path / "many" / f"{name}.zip")
    begun = time.process_time()
    build_site([tmp_path / "many"], tmp_path / "site")
    assert time.process_time() - begun < 60
    open_methods(browser, tmp_path / "site")
    before = browser.measure_cpu()
    browser.run(
        "const panel = document.querySelector('[role=tabpanel]:not([hidden])');"
        "for (let time = 0; time < 20; time++) {"
        "panel.querySelector('[data-sort=success]').click(); panel.getBoundingClientRect(); }"
    )
    spent = browser.measure_cpu() - before
    assert len(read_titles(browser)) == 200
    assert spent < 10, f"twenty sorts of 200 rows took {spent:.1f} s of processor"
