"""The documentation site: what can be checked without its generator, and, slowly, the strict build itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from fedagentgym.cli import reference
from tests.committed import IS_COMPLETE, RESULTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README, PAPERS = ROOT / "README.md", sorted((ROOT / "papers").rglob("*.md"))
SOURCE = "https://github.com/fedagentgym/fedagentgym/blob/main/"
RAW = "https://raw.githubusercontent.com/fedagentgym/fedagentgym/main/"
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
MAKE_COMMANDS = "run: python -m fedagentgym.cli.reference > docs/reference/commands.md"


def read_prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def list_links(page: Path) -> Iterator[str]:
    return (match[2] for match in LINK.finditer(re.sub(r"(?<!\[)`[^`\n]*`(?!\])", "", read_prose(page))))


def list_anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, where the generator and GitHub make the same of them."""
    titles = re.findall(r"^#{1,6} (.*)$", read_prose(page), re.MULTILINE)
    return {make_anchor(title) for title in titles}


def make_anchor(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def list_nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from list_nav(below)


def test_every_page_is_in_the_navigation_once() -> None:
    named = list(list_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert sorted(named) == [page.relative_to(DOCS).as_posix() for page in PAGES]


@pytest.mark.parametrize("page", [README, *PAPERS, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in list_links(page):
        target, _, anchor = link.partition("#")
        if link.startswith((SOURCE, RAW)):
            path = ROOT / target.removeprefix(SOURCE).removeprefix(RAW)
            if not IS_COMPLETE and RESULTS in path.parents:
                continue
            assert path.exists(), f"{link} is not in the repository"
            assert not anchor or anchor in list_anchors(path), f"{path.name} has no heading #{anchor}"
        if "://" in link or link.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), f"{page.name} links to {target}, which is not there"
        if page.is_relative_to(DOCS):
            assert path.is_relative_to(DOCS), f"{link} leads out of docs/: write it as {SOURCE}..."
        if anchor:
            assert anchor in list_anchors(path), f"{path.name} has no heading #{anchor}"


def test_the_long_description_has_no_relative_link() -> None:
    """README as a package index renders it: there are no files beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    html = MarkdownIt("commonmark").enable("table").render((ROOT / project["readme"]).read_text("utf-8"))
    targets = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert len(targets) > 40
    assert [target for target in targets if not target.startswith("https://")] == []


def test_readme_says_what_it_is_and_for_whom_before_any_number() -> None:
    first, _, _ = README.read_text("utf-8").partition("```")
    assert "**For whom.**" in first and "**Why not Flower or TRL alone.**" in first
    assert not re.search(r"\d|\bnever\b|\blimits?\b", first)


GENERATED = re.compile(r"<!-- ([\w -]+): begin -->.*?<!-- \1: end -->", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_is_short_and_leads_to_the_next(page: Path) -> None:
    """At most 150 lines without tables and generated parts; a tutorial or guide is read in ten minutes. The report is as long
    as a paper."""
    text = page.read_text("utf-8")
    long = {DOCS / "reference" / name for name in ("commands.md", "options.md", "settings.md")}
    if page not in {*long, DOCS / "report" / "index.md"}:
        assert sum(not line.startswith("|") for line in GENERATED.sub("", text).splitlines()) <= 150
    if page.parent.name in ("how-to", "tutorials", "explanation"):
        assert len(text.split()) <= 2500
        last = re.search(r"^Next: \[[^\]]+\]\(([^)#]+)[^)]*\)", text[-800:], re.MULTILINE)
        assert last is not None, f"{page.name} ends without `Next: [...](...)`"
        assert (page.parent / last[1]).resolve() != page


def test_the_guides_stand_in_the_same_groups_in_the_navigation_and_on_their_page() -> None:
    (guides,) = (
        entry["How-to guides"]
        for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
        if "How-to guides" in entry
    )
    shown = {name: list(list_nav(pages)) for entry in guides[1:] for name, pages in entry.items()}
    sections = (DOCS / "how-to" / "index.md").read_text("utf-8").split("\n## ")[1:]
    listed = {
        section.partition("\n")[0]: [
            f"how-to/{page}" for page in re.findall(r"^\| \[[^\]]+\]\((.+?)\)", section, re.MULTILINE)
        ]
        for section in sections
    }
    assert listed == shown and list(shown) == ["Use", "Extend", "Train", "Run elsewhere", "Publish"]


def test_the_page_of_commands_is_made_anew() -> None:
    assert (DOCS / "reference" / "commands.md").read_text("utf-8") == reference.write_reference(), MAKE_COMMANDS


def test_anchors_are_made_as_the_generator_makes_them() -> None:
    assert make_anchor("Rooms of one's own: the variant `scene_split`") == "rooms-of-ones-own-the-variant-scene_split"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = shutil.which("zensical")
    if command is None:
        pytest.skip("needs the extra docs: pip install -e '.[docs]'")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8").replace("site_dir: build/site", "site_dir: site")
    (tmp_path / "mkdocs.yml").write_text(settings, "utf-8")
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "fedagentgym").symlink_to(ROOT / "fedagentgym")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [command, "build", "--strict", "--clean"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0 and "No issues found" in done.stdout + done.stderr, done.stdout + done.stderr
    for page in PAGES:
        name = page.relative_to(DOCS).with_suffix("")
        place = name.parent if name.name == "index" else name
        assert (tmp_path / "site" / place / "index.html").is_file(), f"{page.name} was not built"
    assert 'id="fedagentgym.train"' in (tmp_path / "site/reference/api/index.html").read_text("utf-8")
