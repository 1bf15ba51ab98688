"""Trackers receive the numbers of a run, do not affect it, and may fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedagentgym
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.settings import merge
from fedagentgym.experiment import trackers as trackers_module
from fedagentgym.experiment.run import resume
from fedagentgym.experiment.trackers import TRACKED, TRACKERS, TrackedRun, flatten_round, flatten_settings, make_tracker
from fedagentgym.federation.records import COLUMNS, DIRECTIONS
from fedagentgym.testing import check_tracker
from fedagentgym.testing.runs import SMALL_CONFIG

CALLS: list[tuple[str, Any]] = []


class Notes:
    """Writes down what it gets, changes it, and fails where it is made to."""

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        self.fails = fails

    def start(self, config: Mapping[str, Any]) -> None:
        self._note("start", config)

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        self._note("log", {"round": round_number, **metrics})

    def finish(self, result: Mapping[str, Any]) -> None:
        self._note("finish", result)

    def _note(self, step: str, given: Mapping[str, Any]) -> None:
        CALLS.append((step, dict(given)))
        if isinstance(given, dict):
            given.clear()
        if step in self.fails:
            raise RuntimeError(f"no {step}")


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS, "_entries", dict(TRACKERS._entries))
    fedagentgym.register_tracker("notes", Notes)
    CALLS.clear()


def test_a_run_is_the_same_with_trackers_that_change_what_they_get_and_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("torch")
    plain = merge(SMALL_CONFIG, {"federation": {"rounds": 2}, "evaluation": None})
    trackers = ["notes", {"name": "notes", "fails": ["start", "log", "finish"]}]
    digests = []
    for name, chosen in (("without", []), ("with", trackers)):
        output = {"folder": str(tmp_path / name), "report": "none", "trackers": chosen}
        with caplog.at_level(logging.WARNING):
            digests.append(fedagentgym.train({**plain, "output": output}).digest)
    assert digests[0] == digests[1]
    assert [step for step, _ in CALLS[::2]] == ["start", "log", "log", "log", "finish"]
    steps = [given for _, given in CALLS[::2]]
    assert steps[0]["output"]["folder"] == str(tmp_path / "with")
    assert [given["round"] for given in steps[1:4]] == [0, 1, 2] and steps[3]["bytes/total"] > 0
    assert steps[4]["rounds"] == 2 and steps[4]["state"] == digests[1]
    told = [record.getMessage() for record in caplog.records if "the tracker notes" in record.getMessage()]
    assert told == [
        "the tracker notes failed: RuntimeError: no start",
        "the tracker notes failed 5 times; the run is not affected",
    ]


def test_what_cannot_be_a_tracker_is_said_before_the_run() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'notes'"):
        TrackedRun([{"name": "note"}], {})
    with pytest.raises(OptionError, match="unexpected keyword argument 'colour'"):
        TrackedRun([{"name": "notes", "colour": "red"}], {})
    for wrong in ([{"fails": []}], [3], "notes"):
        with pytest.raises(OptionError, match=r"output\.trackers"):
            fedagentgym.load_config(SMALL_CONFIG, [f"output.trackers={wrong}"])


def test_the_check_finds_a_tracker_that_changes_what_it_is_given() -> None:
    with pytest.raises(AssertionError, match="changes what it is given"):
        check_tracker("notes")


def test_an_unknown_tracker_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UnknownNameError, match="unknown tracker 'nope'"):
        fedagentgym.train({**SMALL_CONFIG, "output": {"trackers": ["nope"], "folder": str(folder)}})
    assert not folder.exists()


def test_numbers_that_trl_logs_too_have_its_names() -> None:
    own = {"reward": 0.5, "tokens": 7.0, "clipped": 0.1, "groups": 8.0, "groups/constant": 2.0, "gradient_norm": 3.0}
    record = {
        "metrics": own,
        "evaluation": {"overall": {"success": {"mean": 0.25}}},
        "bytes_total": {way: dict.fromkeys(COLUMNS, 1) for way in DIRECTIONS},
        "failures": [],
        "clients": {3: own},
    }
    found = flatten_round(record)
    for place in ("train", "client_3"):
        named = {name.removeprefix(f"{place}/"): value for name, value in found.items() if name.startswith(f"{place}/")}
        assert named["completions/mean_length"] == 7.0 and named["frac_reward_zero_std"] == 0.25
        assert named["clip_ratio/region_mean"] == 0.1 and named["grad_norm"] == 3.0 and named["reward"] == 0.5
        assert not {"tokens", "clipped", "gradient_norm"} & set(named)
    assert found["eval/success"] == 0.25 and not any(name.startswith("evaluation/") or " " in name for name in found)


class Library:
    """A stand-in of wandb, trackio and MLflow: what their functions were given, and the runs that MLflow keeps."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.finished = 0
        self.runs: dict[str, dict[str, str]] = {}
        self.parameters: dict[str, dict[str, str]] = {}
        self.entities = SimpleNamespace(Param=lambda key, value: (key, value))

    # wandb and trackio
    Settings = Html = staticmethod(lambda *args, **options: options)

    def init(self, **options: Any) -> Library:
        self.begun.append(options)
        return self

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.steps += [] if step is None else [step]

    def finish(self) -> None:
        self.finished += 1

    def Artifact(self, name: str, kind: str) -> Any:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzT0123456789-_."), name
        return SimpleNamespace(add_file=lambda path: None)

    def log_artifact(self, *given: Any) -> None:
        pass

    # MLflow
    def MlflowClient(self, place: str) -> Library:
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="1")

    def search_runs(self, experiments: list[str], asked: str, max_results: int) -> list[Any]:
        found = [
            run for run, tags in self.runs.items() if asked == f"tags.fedagentgym_run = '{tags['fedagentgym_run']}'"
        ]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run)) for run in found]

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
        run = f"run{len(self.runs)}"
        self.runs[run] = {**tags, "name": run_name}
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def log_batch(self, run: str, params: list[tuple[str, str]]) -> None:
        assert len(params) <= 100
        self.parameters.setdefault(run, {}).update(params)

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        if name == "failures":
            self.steps.append(step)

    def log_dict(self, *given: Any) -> None:
        pass

    def update_run(self, run: str, status: str) -> None:
        assert status == "RUNNING"

    def set_terminated(self, run: str) -> None:
        pass


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(trackers_module, "require", lambda module, extra: made)
    return made


def list_runs(library: Library, tracker: str) -> list[tuple[str, str, str]]:
    """Of every start: the run's name, group and identity in this tracker."""
    if tracker == "mlflow":
        return [(run["name"], run["fedagentgym_group"], run["fedagentgym_run"]) for run in library.runs.values()]
    assert all(one["resume"] == "allow" for one in library.begun)
    return [(one["name"], one["group"], one.get("id", one["name"])) for one in library.begun]


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow"])
def test_runs_of_two_seeds_and_of_a_sweep_are_told_apart(library: Library, tracker: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plain = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None, "output": {"trackers": [tracker]}})
    fedagentgym.train(plain, [f"output.folder={tmp_path / 'seeds'}"], seeds=[0, 1])
    fedagentgym.sweep(plain, {"learning.learning_rate": [0.01, 0.02]}, [f"output.folder={tmp_path / 'rates'}"])
    names, groups, identities = zip(*list_runs(library, tracker), strict=True)
    expected = ("seed0", "seed1", "learning.learning_rate-0.01", "learning.learning_rate-0.02")
    assert [name.startswith(f"check-{one}") for name, one in zip(names, expected, strict=True)] == [True] * 4, names
    assert set(groups) == {"check"} and len(set(identities)) == 4
    if tracker == "mlflow":
        rates = [library.parameters[run]["learning.learning_rate"] for run in library.runs]
        assert rates == ["0.001", "0.001", "0.01", "0.02"] and library.parameters["run1"]["seed"] == "1"


class Kill:
    """Ends a run after its first round, as a kill does."""

    def begin(self, rounds: int) -> None:
        pass

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow"])
def test_a_run_that_was_killed_goes_on_in_the_same_run(library: Library, tracker: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    changed = {"federation": {"rounds": 2}, "evaluation": None, "output": {"trackers": [tracker]}}
    folder = tmp_path / "check"
    with pytest.raises(KeyboardInterrupt):
        fedagentgym.train(merge(SMALL_CONFIG, changed), [f"output.folder={folder}"], observers=[Kill()])
    resume(folder, [f"output.trackers=[{tracker}]"])
    found = list_runs(library, tracker)
    assert len(set(found)) == 1 and len(found) == (1 if tracker == "mlflow" else 2)
    assert library.steps[-1] == 2 and library.steps == sorted(set(library.steps))
    moved = folder.rename(tmp_path / "moved")
    (moved / "result.json").unlink()
    resume(moved, [f"output.trackers=[{tracker}]"])
    assert set(list_runs(library, tracker)) == set(found), "its folder has another name"


def test_a_tracker_s_own_options_are_kept(library: Library, tmp_path: Path) -> None:
    config = {"name": "check", "federation": {"rounds": 1}, "output": {"folder": str(tmp_path / "check")}}
    for tracker in ("wandb", "trackio"):
        own = make_tracker({"name": tracker, "project": "clinics", "group": "mine"})
        own.start(config)
    wandb, trackio = library.begun
    known = (tmp_path / "check" / TRACKED).read_text().split()[0]
    assert (wandb["name"], wandb["group"], wandb["project"]) == ("check", "mine", "clinics")
    assert (trackio["name"], trackio["group"]) == (f"check-{known[:6]}", "mine") and "id" not in trackio
    (tmp_path / "check" / TRACKED).write_text("../../other\n")
    for project in ("clinics", "clinics", "both"):
        make_tracker({"name": "wandb", "project": project}).start(config)
    ids = [one["id"] for one in library.begun[2:]]
    assert ids[0] == ids[1] != ids[2] and wandb["id"] not in ids and {len(one) for one in ids} == {16}
    assert library.finished == 1, "what was interrupted in this process ends where it goes on"


def test_settings_are_flat_texts() -> None:
    nested = {"a": {"b": {"c": 1.5, "d": "x"}, "empty": {}}, "list": [{"k": None}], "none": None, "yes": True}
    assert flatten_settings(nested) == {
        "a.b.c": "1.5",
        "a.b.d": "x",
        "a.empty": "{}",
        "list": '[{"k": null}]',
        "none": "null",
        "yes": "true",
    }
