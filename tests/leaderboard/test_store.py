"""Finished runs that outlive a machine, and suites in which every seed has a world of its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.leaderboard import play as playing
from fedagentgym.leaderboard.entries import list_baselines
from fedagentgym.leaderboard.play import SuiteRun, exchange, open_entry, play, write_weights
from fedagentgym.leaderboard.results import Result, pack
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
from fedagentgym.runs.folder import RECORD
from tests.leaderboard.test_runs import list_content

WORLDS = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
for scenario in WORLDS["scenarios"].values():
    for key in TaskDigests.model_fields:
        del scenario[key]
WORLDS |= {"name": "worlds", "world": ["env.options.seed={seed}", "partition.seed={seed}"]}
SUITE = Suite.load(WORLDS)


def test_stored_runs_are_the_result_on_another_machine(smoke: SuiteRun, honest_method: Path, tmp_path: Path) -> None:
    """Run by run while the suite is unfinished, and one archive, of the bytes that `bench pack` gives, in the end."""
    store, place = tmp_path / "store", tmp_path / "store" / "smoke" / "fedagent"
    exchange(replace(smoke, runs=smoke.runs[:3]), store)  # of three runs, which are all here
    assert [path.name for path in place.parent.iterdir()] == ["fedagent.zip"]
    shutil.rmtree(store)
    for run in smoke.runs[:3]:
        pack(Result(smoke.folder, only=run.key), place / f"{run.name}.zip")
    (place / "notes.txt").touch()  # a file that the store did not write stays, and the runs are joined
    (entry,) = list_baselines(smoke.suite, ["fedagent"])
    again = open_entry(smoke.suite, entry, tmp_path / "runs")
    play([again], workers=1, store=store)
    assert sorted(path.name for path in place.parent.rglob("*")) == ["fedagent", "fedagent.zip", "notes.txt"]
    assert not again.missing and [(run.run.path / "rounds").exists() for run in again.runs] == [False] * 3 + [True]
    pack(Result(again.folder), tmp_path / "packed.zip")
    assert (tmp_path / "packed.zip").read_bytes() == place.with_suffix(".zip").read_bytes()
    assert list_content(tmp_path / "packed.zip") == list_content(honest_method)
    third = open_entry(smoke.suite, entry, tmp_path / "third")
    play([third], workers=1, store=store)
    assert not third.missing and not any((run.run.path / "rounds").exists() for run in third.runs)
    with pytest.raises(DataError, match="was played elsewhere: its weights are not here"):
        write_weights(third, tmp_path / "weights")
    assert verify(place.with_suffix(".zip")).replayed


def test_a_run_that_finishes_meanwhile_waits_for_the_next_time(
    smoke: SuiteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes play while the finished runs are packed: one that was missing before is not joined unpacked."""
    shutil.copytree(smoke.folder, tmp_path / "runs" / "smoke" / "fedagent")
    (entry,) = list_baselines(smoke.suite, ["fedagent"])
    first, *rest = (one := open_entry(smoke.suite, entry, tmp_path / "runs")).runs
    record = first.run.path / RECORD
    moved = record.rename(tmp_path / record.name)

    def pack_slowly(result: Result, path: Path) -> None:
        pack(result, path)
        if moved.exists():
            moved.rename(record)

    monkeypatch.setattr(playing, "pack", pack_slowly)
    place = tmp_path / "store" / "smoke" / "fedagent"
    exchange(one, tmp_path / "store")
    assert first.run.is_finished and {path.stem for path in place.iterdir()} == {run.name for run in rest}
    exchange(one, tmp_path / "store")
    assert [path.name for path in place.parent.iterdir()] == ["fedagent.zip"]


def test_stored_runs_of_another_entry_are_refused(smoke: SuiteRun, tmp_path: Path) -> None:
    exchange(smoke, tmp_path / "store")
    changed = smoke.entry.model_copy(update={"changes": ("algorithm.local_steps=2",)})
    other = open_entry(smoke.suite, changed, tmp_path / "runs")
    with pytest.raises(OptionError, match="another definition of smoke or of the entry 'fedagent': move it"):
        exchange(other, tmp_path / "store")


def test_a_damaged_store_is_refused(smoke: SuiteRun, tmp_path: Path) -> None:
    exchange(smoke, tmp_path / "store")
    archive = tmp_path / "store" / "smoke" / "fedagent.zip"
    archive.write_bytes(archive.read_bytes()[:-1000])
    (entry,) = list_baselines(smoke.suite, ["fedagent"])
    with pytest.raises(DataError, match=r"fedagent\.zip"):
        exchange(open_entry(smoke.suite, entry, tmp_path / "runs"), tmp_path / "store")
    assert not (tmp_path / "runs").exists()


def test_every_seed_has_a_world_of_its_own(tmp_path: Path) -> None:
    opened = open_scenario(SUITE, "uniform")
    assert opened.at(0) is opened and opened.at(1) is opened.at(1)
    first, second = (opened.at(seed).digests for seed in (0, 1))
    assert first.pool != second.pool and first.client_split != second.client_split
    assert make_config(SUITE, "uniform", seed=1).env.options["seed"] == 1

    (entry,) = list_baselines(SUITE, ["zero-shot"])
    run = open_entry(SUITE, entry, tmp_path / "runs")
    play([run], workers=1)
    pack(Result(run.folder), tmp_path / "packed.zip")
    assert verify(tmp_path / "packed.zip", suite=SUITE).claims
    listed = describe_replicates(SUITE)
    published = Suite.load({**WORLDS, "replicates": {seed: one.model_dump() for seed, one in listed.items()}})
    open_scenario(published, "preference", 1)
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
