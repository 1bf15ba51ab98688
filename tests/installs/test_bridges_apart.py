"""Bridges to libraries whose pins conflict with ours: the newest versions that the extra admits, each in its own environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fedagentgym
from fedagentgym.partitions.repository import write_repository

from .environments import NEEDS_UV, create, run_in

pytestmark = [pytest.mark.slow, NEEDS_UV]

CASES = {
    "openenv": ("openenv_server.py", "reward: 1.0"),
    "flwr-datasets": ("flower_datasets.py", "True 20"),
}


@pytest.mark.parametrize("extra", CASES)
def test_a_bridge_works_with_the_real_library(extra: str, wheel: Path, root: Path, tmp_path: Path) -> None:
    example, shown = CASES[extra]
    inside = create(tmp_path / "env", sys.executable, [f"fedagentgym[{extra}] @ {wheel.as_uri()}"])
    assert shown in run_in(inside, root / "examples" / example, cwd=tmp_path)
    for script in sorted(Path(__file__).parent.glob(f"check_{example.removesuffix('.py')}*.py")):
        assert "checked with" in run_in(inside, script, cwd=tmp_path)


def test_trackers_write_to_this_machine(wheel: Path, tmp_path: Path) -> None:
    inside = create(tmp_path / "env", sys.executable, [f"fedagentgym[trackio,wandb,mlflow] @ {wheel.as_uri()}"])
    assert "checked with" in run_in(inside, Path(__file__).with_name("check_trackers.py"), cwd=tmp_path)


def test_the_library_of_croissant_reads_the_metadata_of_a_pushed_split(tmp_path: Path) -> None:
    split = fedagentgym.federate("fedagentgym/Guess-v0", clients=3, tasks_per_client=8)
    folder, file = tmp_path / "repository", split.save(tmp_path / "split.json")
    write_repository(file, split.record, split, folder, "me/my-split", "mit")
    try:
        inside = create(tmp_path / "env", sys.executable, ["mlcroissant[parquet]"])
    except AssertionError as error:
        pytest.skip(f"mlcroissant cannot be installed: {error}")
    script = Path(__file__).with_name("check_croissant.py")
    assert "checked with" in run_in(inside, script, folder / "croissant.json", "24", cwd=tmp_path)
