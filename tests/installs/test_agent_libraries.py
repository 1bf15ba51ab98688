"""The programs of `gateway init` with the real libraries, each in its own environment: wired well, and repeatable.

The versions are those with which the programs were last seen to run; the libraries change monthly.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedagentgym.cli.gateway_programs import NEEDED, PROGRAMS

from .environments import NEEDS_UV, create

VERSIONS = {
    "openai": ["openai==3.57.0"],
    "langgraph": ["langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4"],
    "agents": ["openai-agents==0.24.0"],
    "smolagents": ["smolagents[openai]==1.26.0"],
}
SEGMENT_A_CALL = ("smolagents",)
"""Programs that do not show the whole history."""


@NEEDS_UV
@pytest.mark.slow
@pytest.mark.parametrize("library", VERSIONS)
def test_the_program_of_a_library_plays_the_same_tokens_twice(library: str, tmp_path: Path) -> None:
    inside = create(tmp_path / "env", sys.executable, VERSIONS[library])
    command = [sys.executable, "-m", "fedagentgym", "gateway"]
    subprocess.run([*command, "init", str(tmp_path / "made"), "--for", library], check=True)
    program = [str(inside), str(tmp_path / "made" / "my_agent.py")]
    words = [*command, "check", "--twice", "--episodes", "4", "--", *program]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same tokens" in done.stdout and "lost" not in done.stdout and "refused" not in done.stdout
    assert (f"segments per episode: {1:.2f}" in done.stdout) == (library not in SEGMENT_A_CALL)


def test_every_library_has_its_version_and_its_section(root: Path) -> None:
    """The page shows what `gateway init` writes, and the versions with which it was tried."""
    assert set(VERSIONS) == set(NEEDED) - {"plain"}
    page = (root / "docs" / "how-to" / "train-with-a-library.md").read_text("utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in found if not language]
    assert len(blocks) == len(VERSIONS)
    for block, (library, versions) in zip(blocks, VERSIONS.items(), strict=True):
        assert textwrap.indent(block, "    ") in PROGRAMS[library]
        assert f"pip install {NEEDED[library]}`" in page
        for name, _, version in (pin.replace("[openai]", "").partition("==") for pin in versions):
            assert f"{name} {version}" in page
