"""Cells that outlive a run's folder, and suites in which every seed has a world of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.entries import list_baselines
from fedagentgym.leaderboard.results import CONFIGS, ResultFolder
from fedagentgym.leaderboard.runs import SuiteRun, exchange_cells, open_run, pack_run, play_runs, write_weights
from fedagentgym.leaderboard.suite import (
    Secret,
    Suite,
    TaskDigests,
    Twin,
    describe_replicates,
    load_suite,
    make_config,
    make_twin,
    open_scenario,
)
from fedagentgym.leaderboard.verify import verify
from tests.leaderboard.test_runs import list_files

WORLDS = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
for scenario in WORLDS["scenarios"].values():
    for key in TaskDigests.model_fields:
        del scenario[key]
WORLDS |= {"name": "worlds", "world": ["env.options.seed={seed}", "partition.seed={seed}"]}
SUITE = Suite.load(WORLDS)


def test_stored_cells_are_the_result_on_another_machine(smoke: SuiteRun, honest_method: Path, tmp_path: Path) -> None:
    exchange_cells([smoke], tmp_path / "cells")
    places = sorted(place.name for place in (tmp_path / "cells" / "smoke" / "fedagent").iterdir())
    assert places == sorted(cell.key for cell in smoke.cells)
    (entry,) = list_baselines(smoke.suite, ["fedagent"])
    play_runs([open_run(smoke.suite, entry, tmp_path / "runs")], workers=1, store=tmp_path / "cells")
    again = open_run(smoke.suite, entry, tmp_path / "runs")
    assert not again.missing and not any(cell.run_folder.exists() for cell in again.cells)
    pack_run(again, tmp_path / "packed")
    assert list_files(tmp_path / "packed") == list_files(honest_method)
    first, second = ResultFolder(tmp_path / "packed").manifest, ResultFolder(honest_method).manifest
    assert first.model_copy(update={"made": second.made}) == second
    assert all(cell.revision for cell in first.cells)
    with pytest.raises(DataError, match="was played elsewhere: its weights are not here"):
        write_weights(again, tmp_path / "weights")


def test_stored_cells_of_another_entry_are_refused(smoke: SuiteRun, tmp_path: Path) -> None:
    exchange_cells([smoke], tmp_path / "cells")
    changed = smoke.entry.model_copy(update={"changes": ("algorithm.local_steps=2",)})
    other = open_run(smoke.suite, changed, tmp_path / "runs")
    with pytest.raises(OptionError, match="another definition of smoke or of the entry 'fedagent': move it"):
        exchange_cells([other], tmp_path / "cells")
    assert (
        main(["bench", "run", "agents-v1", "--agent", "random", "--cells", str(tmp_path), "--out", str(tmp_path)]) == 2
    )


def test_a_stored_cell_without_its_configuration_is_refused(smoke: SuiteRun, tmp_path: Path) -> None:
    exchange_cells([smoke], tmp_path / "cells")
    (tmp_path / "cells" / "smoke" / "fedagent" / "uniform-seed0" / CONFIGS).unlink()
    (entry,) = list_baselines(smoke.suite, ["fedagent"])
    with pytest.raises(DataError, match="does not hold the configuration of uniform-seed0 alone"):
        exchange_cells([open_run(smoke.suite, entry, tmp_path / "runs")], tmp_path / "cells")


def test_every_seed_has_a_world_of_its_own(tmp_path: Path) -> None:
    opened = open_scenario(SUITE, "uniform")
    assert opened.at(0) is opened and opened.at(1) is opened.at(1)
    record = opened.describe_all()
    assert set(record.worlds) == {"0", "1"} and record.worlds["0"].pool == record.pool != record.worlds["1"].pool
    assert record.worlds["1"].client_split == opened.at(1).describe().client_split != record.client_split
    assert make_config(SUITE, "uniform", seed=1).env.options["seed"] == 1

    (entry,) = list_baselines(SUITE, ["zero-shot"])
    run = open_run(SUITE, entry, tmp_path / "runs")
    play_runs([run], workers=1)
    pack_run(open_run(SUITE, entry, tmp_path / "runs"), tmp_path / "packed")
    assert verify(tmp_path / "packed", suite=SUITE).claims
    listed = describe_replicates(SUITE)
    published = Suite.load({**WORLDS, "replicates": {seed: one.model_dump() for seed, one in listed.items()}})
    assert open_scenario(published, "preference", 1).check().name == "preference"
    swapped = {0: published.replicates[0], 1: published.replicates[0]}
    with pytest.raises(DataError, match="scenario 'preference', seed 1: pool is"):
        open_scenario(published.model_copy(update={"replicates": swapped}), "preference", 1)


def test_the_secret_twin_has_other_worlds() -> None:
    secret = Secret("worlds", "salt", 500)
    promised = SUITE.model_copy(update={"secret": Twin(digest=secret.digest)})
    twin = make_twin(promised, secret)
    assert [make_config(twin, "uniform", seed=seed).env.options["seed"] for seed in (0, 1)] == [500, 501]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"world": []}, "belongs to no seed with a world of its own"),
        ({"replicates": {7: {}}}, "replicate 7 belongs to no seed"),
        ({"scenarios": {"a": {"pool": "sha256:" + "0" * 64}}}, "digests of tasks belong to replicates"),
    ],
)
def test_worlds_that_cannot_be(changes: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Suite.load({**WORLDS, "replicates": {1: {}}, **changes})
