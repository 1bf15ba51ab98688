"""A verifier of programs for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedagentgym.envs.verifiers.code import CodeVerifier
from fedagentgym.envs.verifiers.sandbox.pool import Limits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the servers of these tests make those of their runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[CodeVerifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        made = CodeVerifier(workers=2)
        with made.slots.one() as one, made.slots.one() as other:
            for slot in (one, other):
                slot.script("", "", Limits())
                slot.test_program(
                    "f = len", {"source": "", "setup": "", "check": "", "entry": "f", "remote": []}, Limits()
                )
        yield made
        made.close()
