"""Trackers: what receives the numbers of a run while it goes on, such as TensorBoard. They do not affect a run."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedagentgym.base.errors import OptionError, describe_error
from fedagentgym.base.imports import Registry, require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.records import headline_bytes

log = get_logger(__name__)


class Tracker(Protocol):
    """Receives the configuration, the numbers of every round, and the result of a run.

    A tracker that raises is counted and does not end the run.
    """

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins or is resumed.

        Args:
            config: All settings, resolved; `config["output"]["folder"]` is the run's folder.
        """

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        """A round is committed.

        Args:
            round_number: Its number; 0 is the start.
            metrics: Numbers by name: `train/...`, `evaluation/...`, `bytes/total`, `failures`.
        """

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is over.

        Args:
            result: What is written to `result.json`.
        """


class TensorBoard:
    """Scalars by round as TensorBoard files in the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        require("tensorboard", "dev")
        self._open = require("torch.utils.tensorboard", "train").SummaryWriter

    def start(self, config: Mapping[str, Any]) -> None:
        self._writer = self._open(str(Path(config["output"]["folder"]) / "tensorboard"))
        self._writer.add_scalar("rounds", config["federation"]["rounds"], 0)

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        self._writer.close()


TRACKERS = Registry("tracker", {"tensorboard": "fedagentgym.experiment.trackers:TensorBoard"})


def make_tracker(settings: Mapping[str, Any]) -> Tracker:
    """The tracker of this name with these options; a library that it lacks is an error before the run begins."""
    options = {key: value for key, value in settings.items() if key != "name"}
    target = TRACKERS.get(settings["name"])
    try:
        tracker: Tracker = target(**options)
    except TypeError as error:
        raise OptionError(f"tracker {settings['name']!r}: {describe_error(error)}") from None
    return tracker


def flatten_round(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's record by name."""
    evaluated = record.get("evaluation", {}).get("overall", {})
    return {
        **{f"train/{name}": float(value) for name, value in record["metrics"].items()},
        **{f"evaluation/{name}": float(estimate["mean"]) for name, estimate in evaluated.items()},
        "bytes/total": float(headline_bytes(record["bytes_total"])),
        "failures": float(len(record["failures"])),
    }


class TrackedRun:
    """The observer of a run that passes its numbers on to trackers, each of which gets copies and may fail."""

    def __init__(self, settings: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> None:
        self._trackers = [(str(one["name"]), make_tracker(one)) for one in settings]
        self._config = config
        self.failures: Counter[str] = Counter()

    def begin(self, rounds: int) -> None:
        self._call(lambda tracker: tracker.start(copy.deepcopy(dict(self._config))))

    def round_done(self, record: Mapping[str, Any]) -> None:
        self._call(lambda tracker: tracker.log(int(record["round"]), flatten_round(record)))

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is over: trackers get the result, and those that failed are named with the number of their failures."""
        self._call(lambda tracker: tracker.finish(copy.deepcopy(dict(result))))
        for name, count in self.failures.items():
            log.warning("the tracker %s failed %d times; the run is not affected", name, count)

    def _call(self, step: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers:
            try:
                step(tracker)
            except Exception as error:
                if not self.failures[name]:
                    log.warning("the tracker %s failed: %s", name, describe_error(error))
                self.failures[name] += 1
