"""The ways of newcomers are blocks of pages, and lead where they say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.newcomers import MAX_SECONDS, WAYS, play_way, read_blocks, rises, run_script
from fedagentgym.base.errors import DataError

NEEDS = {"trl": "trl", "deployment": "flwr", "federated": "torch"}


@pytest.mark.parametrize("name", WAYS)
def test_a_way_has_blocks_in_every_section(name: str) -> None:
    way = WAYS[name]
    text = (ROOT / way.page).read_text("utf-8")
    for section in way.sections:
        assert any(read_blocks(text, [section])), section
    assert 60 * way.minutes < MAX_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_a_way_is_walked_from_its_page_alone(name: str) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    assert play_way(WAYS[name]).value > 0.0


def test_blocks_are_read_in_their_order() -> None:
    page = "# Page\n\n## One\n\n```python\na = 1\n```\n\n```text\n1\n```\n\n## Two\n\n```bash\nls\n```\n\n```python\nb = 2\n```\n"
    assert read_blocks(page, ["One", "Two"]) == (["a = 1\n", "b = 2\n"], ["ls\n"])
    with pytest.raises(DataError, match="no section 'Three'"):
        read_blocks(page, ["Three"])


def test_a_command_that_fails_ends_the_script_and_is_shown(tmp_path: Path) -> None:
    assert run_script("echo one\necho two", tmp_path) == "one\ntwo\n"
    with pytest.raises(DataError, match=r"ended with 3: said") as caught:
        run_script("echo said\n(exit 3)\necho never", tmp_path)
    assert "never" not in str(caught.value)


def test_a_reward_that_rises_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    row = "steps  mean reward\n 1 to  5  {:.2f} (0.1 to 0.2)  ##\n21 to 25  {:.2f} (0.1 to 0.2)  ##\n"
    assert rises(tmp_path, row.format(0.48, 0.96)) and not rises(tmp_path, row.format(0.48, 0.5))
    assert not rises(tmp_path, "")
