"""Trackers receive the numbers of a run, do not affect it, and may fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedagentgym
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.trackers import TRACKERS, TrackedRun, flatten_round
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
