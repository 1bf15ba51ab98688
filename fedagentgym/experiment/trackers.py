"""Trackers: what receives the numbers of a run while it goes on, such as TensorBoard or Weights & Biases. They do not affect a
run, and those of the package write to this machine unless their options say otherwise."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedagentgym.base.errors import OptionError, describe_error
from fedagentgym.base.imports import Registry, require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.records import headline_bytes

MAX_CLIENTS = 32
"""Trackers get the numbers of single clients in rounds of at most this many."""

log = get_logger(__name__)


class Tracker(Protocol):
    """Receives the configuration, the numbers of every round, and the result of a run.

    If a tracker raises an error, the error is counted and the run continues.
    """

    def start(self, config: Mapping[str, Any]) -> None:
        """Called when the run begins or is resumed.

        Args:
            config: All settings, resolved; `config["output"]["folder"]` is the run's folder.
        """

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        """Called after every round that is committed.

        Args:
            round_number: Its number; 0 is the start.
            metrics: Numbers by name: `train/...`, `eval/...`, `bytes/total`, `failures`; those that TRL's trainers log too have
                its names.
        """

    def finish(self, result: Mapping[str, Any]) -> None:
        """Called when the run is over; its folder holds `config.yaml`, `result.json` and, if asked for, `report.html`.

        Args:
            result: What is written to `result.json`.
        """


class TensorBoard:
    """Scalars by round as TensorBoard files in the folder `tensorboard` of the run, and its settings as a text."""

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._open = require("torch.utils.tensorboard", "train").SummaryWriter

    def start(self, config: Mapping[str, Any]) -> None:
        self._writer = self._open(str(Path(config["output"]["folder"]) / "tensorboard"))
        self._writer.add_scalar("rounds", config["federation"]["rounds"], 0)
        self._writer.add_text("settings", f"```json\n{json.dumps(config, indent=2, default=str)}\n```", 0)

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, with the report as a page and as an artefact. Options are keywords of `wandb.init`."""

    def __init__(self, project: str = "fedagentgym", **options: Any) -> None:
        self._library = self.import_library()
        self._options = {"project": project, **options}

    def import_library(self) -> Any:
        return require("wandb", "wandb")

    def start(self, config: Mapping[str, Any]) -> None:
        self._folder = Path(config["output"]["folder"])
        self._run = self._library.init(**{**self.choose_options(config), **self._options}, config=dict(config))

    def choose_options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default options, which use no network; the user's own replace them."""
        quiet = self._library.Settings(console="off", silent=True)
        name = config["name"]
        return {"name": name, "mode": "offline", "dir": str(self._folder), "settings": quiet, "resume": "allow"}

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=round_number)

    def finish(self, result: Mapping[str, Any]) -> None:
        report = self._folder / "report.html"
        if report.exists():
            self._run.log({"report": self._library.Html(report.read_text("utf-8"))})
        files = self._library.Artifact(f"run-{result['name']}", "run")
        for path in list_artefacts(self._folder):
            files.add_file(str(path))
        self._run.log_artifact(files)
        self._run.finish()


class Trackio(Wandb):
    """A run of trackio, in its own folder of this machine. Options are keywords of `trackio.init`."""

    def import_library(self) -> Any:
        return require("trackio", "trackio")

    def choose_options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": config["name"], "resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}


class MLflow:
    """A run of MLflow. Without `uri` it is stored in the run's folder: `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`."""

    def __init__(self, uri: str | None = None, experiment: str = "fedagentgym") -> None:
        self._library = require("mlflow", "mlflow")
        self._uri, self._experiment = uri, experiment

    def start(self, config: Mapping[str, Any]) -> None:
        self._folder = folder = Path(config["output"]["folder"]).absolute()
        self._client = client = self._library.MlflowClient(self._uri or f"sqlite:///{folder}/mlflow.db")
        found = client.get_experiment_by_name(self._experiment)
        place = None if self._uri else (folder / "mlflow").as_uri()
        identifier = found.experiment_id if found else client.create_experiment(self._experiment, place)
        self._run = client.create_run(identifier, run_name=config["name"]).info.run_id
        client.log_dict(self._run, json.loads(json.dumps(config, default=str)), "settings.json")

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, re.sub(r"[^\w./ -]", "_", name), value, step=round_number)

    def finish(self, result: Mapping[str, Any]) -> None:
        for path in list_artefacts(self._folder):
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)


def list_artefacts(folder: Path) -> list[Path]:
    """The files of a finished run that explain it; the report has its pictures in itself."""
    return [folder / name for name in ("config.yaml", "result.json", "report.html") if (folder / name).exists()]


_HERE = "fedagentgym.experiment.trackers"
TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": f"{_HERE}:TensorBoard",
        "trackio": f"{_HERE}:Trackio",
        "wandb": f"{_HERE}:Wandb",
        "mlflow": f"{_HERE}:MLflow",
    },
)


def make_tracker(settings: Mapping[str, Any]) -> Tracker:
    """The tracker of this name with these options; a library that it lacks is an error before the run begins."""
    options = {key: value for key, value in settings.items() if key != "name"}
    target = TRACKERS.get(settings["name"])
    try:
        tracker: Tracker = target(**options)
    except TypeError as error:
        raise OptionError(f"tracker {settings['name']!r}: {describe_error(error)}") from None
    if lacking := [step for step in ("start", "log", "finish") if not callable(getattr(tracker, step, None))]:
        raise OptionError(
            f"tracker {settings['name']!r} has no method {lacking[0]!r}: it has start(config), log(round_number, metrics) and"
            " finish(result)"
        )
    return tracker


TRL_NAMES = {"tokens": "completions/mean_length", "clipped": "clip_ratio/region_mean", "gradient_norm": "grad_norm"}
"""Our names of numbers that TRL's `GRPOTrainer` logs too, and its names, so that curves of both lie in one figure. `reward`,
`kl`, `entropy` and `loss` are called alike."""
NO_SPREAD = "frac_reward_zero_std"
"""The share of groups whose episodes earned the same, in TRL's words."""


def flatten_round(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's record by name."""
    evaluated = record.get("evaluation", {}).get("overall", {})
    clients = record["clients"] if len(record["clients"]) <= MAX_CLIENTS else {}
    return {
        **{f"train/{name}": value for name, value in _rename(record["metrics"]).items()},
        **{f"eval/{name}": float(estimate["mean"]) for name, estimate in evaluated.items()},
        "bytes/total": float(headline_bytes(record["bytes_total"])),
        "failures": float(len(record["failures"])),
        **{f"client_{number}/{name}": value for number, own in clients.items() for name, value in _rename(own).items()},
    }


def _rename(metrics: Mapping[str, Any]) -> dict[str, float]:
    found = {TRL_NAMES.get(name, name): float(value) for name, value in metrics.items()}
    if found.get("groups"):
        found[NO_SPREAD] = found.get("groups/constant", 0.0) / found["groups"]
    return found


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
