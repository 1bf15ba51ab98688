"""The same configuration under several seeds: one run each, in folders `seed0`, `seed1`, ... of the run's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.settings import RunConfig


def make_seed_configs(config: RunConfig, seeds: Sequence[int]) -> list[RunConfig]:
    """The configuration of each seed's run; a folder of another run is refused before any of them begins."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise OptionError(f"seeds are different numbers, at least one, got {list(seeds)}")
    runs = [_with_seed(config, seed) for seed in seeds]
    for chosen in runs:
        present = Path(chosen.output.folder) / "config.yaml"
        if present.is_file() and load_config(present).digest != chosen.digest:
            raise OptionError(f"{present.parent} holds a run with another configuration: choose another output.folder")
    return runs


def _with_seed(base: RunConfig, seed: int) -> RunConfig:
    folder = json.dumps(str(Path(base.output.folder) / f"seed{seed}"))
    return load_config(base, [f"seed={seed}", f"output.folder={folder}"])
