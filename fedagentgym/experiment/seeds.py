"""The same configuration under several seeds: one run each, in folders `seed0`, `seed1`, ... of the run's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.settings import RunConfig
from fedagentgym.federation.server import Observer

if TYPE_CHECKING:
    from fedagentgym.experiment.run import RunResult
    from fedagentgym.federation.progress import ProgressCallback


def train_seeds(
    config: RunConfig | Mapping[str, Any] | str | Path,
    changes: Sequence[str],
    seeds: Sequence[int],
    *,
    plugins: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    on_progress: ProgressCallback | None = None,
) -> list[RunResult]:
    """A run for each seed, one after the other. Runs that are there already are not repeated, one that was stopped goes on."""
    from fedagentgym.experiment.run import RunResult, read_result, resume, train

    if not seeds or len(set(seeds)) != len(seeds):
        raise OptionError(f"seeds are different numbers, at least one, got {list(seeds)}")
    base = load_config(config, changes, plugins)
    runs = [_with_seed(base, seed) for seed in seeds]
    for chosen in runs:
        present = Path(chosen.output.folder) / "config.yaml"
        if present.is_file() and load_config(present).digest != chosen.digest:
            raise OptionError(f"{present.parent} holds a run with another configuration: choose another output.folder")
    results = []
    for chosen in runs:
        folder = Path(chosen.output.folder)
        if (folder / "result.json").is_file():
            results.append(RunResult(folder, read_result(folder)))
        elif (folder / "config.yaml").is_file():
            results.append(resume(folder, observers=observers, on_progress=on_progress))
        else:
            results.append(train(chosen, observers=observers, on_progress=on_progress))
    return results


def _with_seed(base: RunConfig, seed: int) -> RunConfig:
    folder = json.dumps(str(Path(base.output.folder) / f"seed{seed}"))
    return load_config(base, [f"seed={seed}", f"output.folder={folder}"])
