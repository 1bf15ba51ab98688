"""Code on the pages works: every python block of README and docs is run, and every doctest of the library."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml

import fedagentgym
from benchmarks.__main__ import BENCHMARKS
from fedagentgym.algorithms.runtime import PartitionSettings
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.settings import merge
from fedagentgym.cli.application import load_application
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.config import list_presets, load_config
from fedagentgym.experiment.estimate.agent import DEVICE_BYTES
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.leaderboard.suite import list_suites, load_suite
from fedagentgym.partitions.division import make_sampler
from tests.foundations.test_registries import find_registries

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
"""A block of Python, with what it prints if a block of text follows at once."""
CONFIGURATION = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAPERS = sorted((ROOT / "papers").glob("*/README.md"))
ALL_PAGES = (
    ROOT / "README.md",
    *(page for part in ("docs", "baselines") for page in sorted((ROOT / part).rglob("*.md"))),
    *PAPERS,
)
OTHER_PAGES = (
    *(page for page in sorted(ROOT.glob("*.md")) if page.name != "README.md"),
    *(
        page
        for part in ("leaderboard", "papers", "fedagentgym", "examples", "benchmarks", "baselines", ".github")
        for ending in ("md", "yaml", "yml", "html", "py")
        for page in sorted((ROOT / part).rglob(f"*.{ending}"))
        if page not in ALL_PAGES and "fedagentgym " in page.read_text("utf-8")
    ),
    ROOT / "Makefile",
    ROOT / "Dockerfile",
)
"""Whatever else names commands: notes of the repository, comments of presets and suites, docstrings, workflows."""
PAGES = [page for page in ALL_PAGES if BLOCK.search(page.read_text()) or CONFIGURATION.search(page.read_text())]
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *``` *$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^ *>>> (?!.*doctest: \+SKIP)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for registry in find_registries():  # what a page registers is gone after it
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    module = make_module(page, monkeypatch)
    for number, (block, prints) in enumerate(BLOCK.findall(page.read_text()), start=1):
        if page.name == "README.md":  # its blocks stand alone
            module = make_module(page, monkeypatch)
        capsys.readouterr()
        exec(compile(block, f"{page.name}, block {number}", "exec"), vars(module))
        assert not prints or capsys.readouterr().out == prints, f"{page.name}, block {number}"
    for block in CONFIGURATION.findall(page.read_text()):
        load_block(yaml.safe_load(block))


def make_module(page: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A real module, so that classes defined on a page can be pickled."""
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def load_block(plain: dict[str, Any]) -> None:
    """A run is loaded and planned, in the world that the page has registered; parts of one are loaded within a small run."""
    for plugin in plain.get("plugins", ()):
        if plugin.endswith(".py"):
            Path(plugin).touch()
    if "env" in plain:
        config = load_config(plain)
        check_sampler_parameters(config.partition)
        if config.agent.name != "untrained-tiny":  # it is so small that a run with it has no plan
            assert plan_run(config, DEVICE_BYTES).total.episodes > 0
        return
    rest = {key: value for key, value in plain.items() if key != "variants"}
    least = {"env": {"id": "fedagentgym/Guess-v0"}, "partition": {"clients": 2}}
    for part in (rest, *(merge(rest, variant) for variant in plain.get("variants", {}).values())):
        check_sampler_parameters(load_config(merge(least, part)).partition)


def check_sampler_parameters(partition: PartitionSettings) -> None:
    """The sampler of a block has all the parameters that it needs."""
    if partition.file is None and not partition.is_held:
        make_sampler(partition.sampler, partition.model_extra or {})


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_are_shown_are_understood(
    page: Path, application: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_faults(page, application, monkeypatch) == []


def test_commands_that_stand_elsewhere_are_understood(
    application: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(len(list_commands(page.read_text("utf-8"))) for page in OTHER_PAGES) > 150
    assert [fault for page in OTHER_PAGES for fault in find_faults(page, application, monkeypatch)] == []


def find_faults(page: Path, application: click.Group, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Check every command of a page up to where it would begin: arguments, options, values, presets, suites, environments."""
    faults = []
    for line in list_commands(page.read_text("utf-8")):
        try:
            check_command(application, line, monkeypatch)
        except (AssertionError, ValueError, click.ClickException, FedAgentGymError) as error:
            faults.append(f"{page.relative_to(ROOT)}: {line}: {str(error).splitlines()[0]}")
    return faults


OF_OTHERS = {
    "--extra-index-url",
    "--enable-supernode-auth",
    "--node-config",
    "--database",
    "--gres",
    "--quick",
    "--help",
}
"""Options of pip, Flower, Slurm and `python -m benchmarks`."""


def test_options_that_sentences_name_exist(application: click.Group) -> None:
    groups, known = [application], set(OF_OTHERS)
    for group in groups:
        groups += [one for one in group.commands.values() if isinstance(one, click.Group)]
        for command in (group, *group.commands.values()):
            known.update(option for one in command.params for option in one.opts)
    pages = [page for page in ALL_PAGES if page.name != "commands.md"]  # which is generated
    named = {(page.name, one) for page in pages for one in re.findall(r"`(--[a-z][a-z-]*)[^`\n]*`", page.read_text())}
    assert len(named) > 20 and sorted((page, one) for page, one in named if one not in known) == []


def test_pages_that_install_torch_name_its_small_build() -> None:
    """By itself pip takes the CUDA build, of gigabytes."""
    first = (ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
    pages = [page for page in first if re.search(r"pip install [^`\n]*\[train", page.read_text())]
    assert len(pages) > 5
    assert [
        page.name for page in pages if "--extra-index-url https://download.pytorch.org/whl/cpu" not in page.read_text()
    ] == []


def test_pages_of_the_first_hour_clone_no_history() -> None:
    """The history is larger than all that it led to, and nothing on these pages needs it."""
    first = (ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
    found = [
        (page.name, line) for page in first for line in page.read_text("utf-8").splitlines() if "git clone" in line
    ]
    assert found and [(page, line) for page, line in found if "git clone --depth 1 " not in line] == []


def test_each_paper_has_commands_seeds_and_differences() -> None:
    index = (ROOT / "papers" / "README.md").read_text()
    assert [page for page in PAPERS if f"({page.parent.name}/README.md)" not in index] == []
    for page in PAPERS:
        text = page.read_text()
        assert re.findall(r"^## (.+)", text, re.MULTILINE) == ["Commands", "Seeds", "Differences"], page
        presets = re.findall(r"^fedagentgym train ([\w-]+)", text, re.MULTILINE)
        assert set(presets) <= set(list_presets()) and any(name.startswith("paper-") for name in presets)
        played = re.findall(r"^fedagentgym bench run ([\w-]+)", text, re.MULTILINE)
        assert set(played) <= set(list_suites()) and (list_benchmarks(text) or played)  # at small scale


def list_benchmarks(text: str) -> list[str]:
    lines = re.findall(r"python -m benchmarks((?: (?!as\b|and\b)[a-z][\w-]+)+)", text)
    return [name for line in lines for name in line.split()]


def test_benchmarks_that_pages_name_exist() -> None:
    pages = [*ALL_PAGES, *ROOT.glob("*.md")]
    assert len(named := {name for page in pages for name in list_benchmarks(page.read_text())}) > 30
    assert named <= set(BENCHMARKS.names())


def check_command(application: click.Group, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command as the program does, without the callbacks of its options, and look up the names in it."""
    shown = (
        re.split(r" (?:&&|\|\||[|&>]|2>) ?", SYNOPSIS.sub("", line))[0].replace("=...", "=1").replace("$NUMBER", "1")
    )
    command, words = application, shlex.split(shown, comments=True)[1:]
    if "[OPTIONS]" in line or {"...", "--help", "-h"} & set(words) or any("|" in word for word in words):
        return  # the form of a command, not one
    for option in application.params:
        words = words[1:] if words[:1] and words[0] in option.opts else words
    while isinstance(command, click.Group) and words:
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    if not words:
        return  # the name of a command in a sentence
    for option in command.params:
        monkeypatch.setattr(option, "callback", None)
    if words[-1].startswith("--"):  # an option that a sentence names
        assert any(words[-1] in option.opts for option in command.params), f"there is no option {words[-1]}"
        return
    given = command.make_context(command.name, words).params
    if str(given.get("config") or "").partition(":")[0] in list_presets() and not given.get("plugins"):
        load_config(given["config"], given.get("changes") or ())
    if given.get("suite_name") in list_suites():
        load_suite(given["suite_name"])
    if (named := given.get("env")) and not named.isupper() and "/" not in named:
        find_env_id(named)


SYNOPSIS = re.compile(r" \[[^\]=]*\]")
"""A part in brackets that may be left out."""


@pytest.fixture(scope="module")
def application() -> click.Group:
    return load_application()


def list_commands(text: str) -> list[str]:
    """The commands in fenced blocks; in indented lines, comments and recipes; and between backticks in a sentence."""
    joined = (block.replace("\\\n", " ") for kind, block in FENCED.findall(text) if kind in ("", "bash", "text"))
    lines = [line for block in joined for line in BEGINS.findall(block)]
    rest = FENCED.sub("", text)
    lines += [re.split(r" {3,}", line)[0] for line in BEGINS_ELSEWHERE.findall(rest)]
    lines += re.findall(r"`(fedagentgym [^`\n]+)`", rest)
    return [line for line in lines if "{" not in re.sub(r'"[^"]*"', "", line)]  # what an f-string writes


BEGINS = re.compile(r"^ *(?:\$ )?(fedagentgym .+)", re.MULTILINE)
BEGINS_ELSEWHERE = re.compile(
    r"^(?:[ \t]{4,}|# {2,}|\t?\$\(BIN\)/|\t?- run: )(?:\$\(BIN\)/)?(fedagentgym [a-z-].+)", re.MULTILINE
)


ALONE = (
    *(
        "tutorials/first-split",
        "tutorials/first-run",
        "how-to/make-a-split",
        "how-to/compare-splits",
        "how-to/label-hardness",
    ),
    *("how-to/evaluate-and-replay", "how-to/estimate-a-run", "explanation/heterogeneity"),
)
"""Pages whose commands need nothing but each other; two tutorials of Flower have tests of their own."""


@pytest.mark.slow
@pytest.mark.parametrize("page", ALONE)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = [block for kind, block in FENCED.findall(text) if kind == "bash"]
    assert blocks
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_guide_for_each_kind_of_extension_has_a_short_example() -> None:
    guides = sorted((ROOT / "docs" / "how-to").glob("add-a*.md"))
    blocks = [block for guide in guides for block, _ in BLOCK.findall(guide.read_text())]
    assert [len(block.splitlines()) for block in blocks if len(block.splitlines()) > 40] == []
    listed = (ROOT / "docs" / "reference" / "extension-points.md").read_text()
    for name in fedagentgym.__all__:
        if name.startswith("register_"):
            assert any(f"fedagentgym.{name}(" in block for block in blocks) and f"`{name}`" in listed, name


def list_modules_with_examples() -> list[str]:
    files = [path for path in (ROOT / "fedagentgym").rglob("*.py") if EXAMPLE.search(path.read_text("utf-8"))]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(files))
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", list_modules_with_examples())
def test_doctests(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


def test_every_row_of_the_security_table_names_tests_that_exist() -> None:
    """Every row names a sender, the worst effect, and a test that shows it or the reason why there is none."""
    rows = [
        line.split(" | ") for line in (ROOT / "SECURITY.md").read_text().splitlines() if " → " in line and " | " in line
    ]
    assert len(rows) > 15 and {len(row) for row in rows} == {4}
    for row in rows[1:]:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row[3])
        assert named or row[3].startswith("not "), row[0]
        for file, function in named:
            assert f"def {function}(" in (ROOT / file).read_text(), (file, function)
