"""All files name the same version, and contributors read what is true."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from fedagentgym.version import __version__

ROOT = Path(__file__).parents[2]


def test_citation_changelog_and_package_name_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    headings = re.findall(r"^## \[(.+?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == (__version__, str(citation.get("date-released", "unreleased")))
    assert len({version for version, _ in headings}) == len(headings)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_forms_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_have_few_rights_and_run_fixed_commits(path: Path) -> None:
    """Somebody may move an action's tag. A release reads no cache that other workflows write; a checkout is one commit deep."""
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"]["contents"] == "read"
    used = re.findall(r"uses: (?!\./)(.*)", text)
    assert used and [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", one)] == []
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", ())]
    settings = [step["with"] for step in steps if step.get("uses", "").startswith("actions/setup-python@")]
    cached = [path.name != "release.yml"] * len(settings)
    assert settings and [one.get("cache") == "pip" for one in settings] == cached
    assert [step for step in steps if "fetch-depth" in step.get("with", {})] == []


def test_the_layout_that_contributors_read_is_the_layout() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    folders = [path.parent.name for path in (ROOT / "fedagentgym").glob("*/__init__.py")]
    assert sorted(named) == sorted(folders)


def test_the_tests_lie_as_the_package_does() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    sentence = page[page.index("Tests of more than one package") :].partition("\n\n")[0]
    of_no_package = set(re.findall(r"`(\w+)`", sentence))
    for level, apart in (("", of_no_package), ("envs", set[str]())):
        files = [path.relative_to(ROOT / "tests" / level) for path in (ROOT / "tests" / level).rglob("*.*")]
        folders = {file.parts[0] for file in files if len(file.parts) > 1 and file.suffix in (".py", ".json", ".sh")}
        packages = {path.parent.name for path in (ROOT / "fedagentgym" / level).glob("*/__init__.py")}
        assert folders - packages == apart


def list_distributed() -> set[Path]:
    """The files that `MANIFEST.in` takes, besides those of the package, which `pyproject.toml` names."""
    found: set[Path] = set()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        word, *patterns = line.split()
        if word == "graft":
            found.update(path for folder in patterns for path in (ROOT / folder).rglob("*") if path.is_file())
        elif word == "include":
            found.update(path for pattern in patterns for path in ROOT.glob(pattern))
    return {path for path in found if path.suffix != ".pyc"}


def test_the_source_distribution_is_far_from_the_limit_of_package_indexes() -> None:
    """The limit is 100 MB. The package and results hardly get smaller when they are packed."""
    files = list_distributed() | {path for path in (ROOT / "fedagentgym").rglob("*.*") if path.suffix != ".pyc"}
    assert sum(path.stat().st_size for path in files) < 60_000_000


def test_the_source_distribution_has_the_results_that_tests_read() -> None:
    kept = {path.parent.name for path in list_distributed() if path.match("leaderboard/results/*/*.zip")}
    assert kept == {"agents-tiny-v1", "methods-small-skills-v1"}
    assert {
        ROOT / "leaderboard" / name for name in ("README.md", "tuning/methods-tiny-skills-v2.json")
    } <= list_distributed()


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("a" * 72, False),
        ("a" * 73, True),
        ("a" * 72 + "\n\n" + "b" * 200, False),
        ("a" * 200 + "\n", True),
        ("", False),
    ],
)
def test_the_hook_refuses_a_long_subject(message: str, refused: bool) -> None:
    """The hook searches as pre-commit's `pygrep` does with `--multiline`."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][-1]["hooks"]
    assert (hook["language"], hook["args"], hook["stages"]) == ("pygrep", ["--multiline"], ["commit-msg"])
    assert (re.search(hook["entry"].encode(), message.encode(), re.MULTILINE | re.DOTALL) is not None) == refused


def test_ruff_is_one_version() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    pinned = re.search(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
    assert pinned is not None
    assert hooks["repos"][0]["rev"] == f"v{pinned[1]}"


def test_every_pin_installs_on_the_oldest_python() -> None:
    """Systems keep early patch releases for years, so a pin for later ones would leave their users without `make test`."""
    needed = {
        f"{one.name}=={one.version}": SpecifierSet(one.metadata.get("Requires-Python") or "") for one in distributions()
    }
    pins = {line for line in (ROOT / "constraints.txt").read_text().split() if "==" in line}
    assert len(pins & set(needed)) > 50
    assert [pin for pin in sorted(pins & set(needed)) if not needed[pin].contains("3.11.0")] == []
