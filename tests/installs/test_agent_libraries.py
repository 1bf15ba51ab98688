"""The programs of `gateway init` with the real libraries, each in its own environment: wired well, and repeatable.

The versions are those with which the programs were last seen to run; the libraries change monthly.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedagentgym.cli.gateway_programs import NEEDED

from .environments import NEEDS_UV, create

pytestmark = [pytest.mark.slow, NEEDS_UV]

VERSIONS = {
    "openai": ["openai==3.57.0"],
    "langgraph": ["langgraph==1.2.24", "langchain>=1", "langchain-openai==1.7.4"],
    "agents": ["openai-agents==0.24.0"],
}


@pytest.mark.parametrize("library", VERSIONS)
def test_the_program_of_a_library_plays_the_same_tokens_twice(library: str, tmp_path: Path) -> None:
    inside = create(tmp_path / "env", sys.executable, VERSIONS[library])
    command = [sys.executable, "-m", "fedagentgym", "gateway"]
    subprocess.run([*command, "init", str(tmp_path / "made"), "--for", library], check=True)
    program = [str(inside), str(tmp_path / "made" / "my_agent.py")]
    words = [*command, "check", "--twice", "--episodes", "4", "--", *program]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "the same tokens" in done.stdout and "segments per episode: 1.00" in done.stdout and "lost" not in done.stdout
    )


def test_every_program_names_its_packages() -> None:
    assert set(VERSIONS) < set(NEEDED)
