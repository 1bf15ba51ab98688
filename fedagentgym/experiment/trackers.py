"""Trackers receive the metrics of a run while it goes on, for TensorBoard or Weights & Biases. They do not affect a run, and
those of the package write only to this machine unless their options say otherwise."""

from __future__ import annotations

import copy
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import OptionError, describe_error
from fedagentgym.base.files import write_atomic
from fedagentgym.base.imports import Registry, require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.records import headline_bytes

MAX_CLIENTS = 32
"""Trackers get the numbers of single clients in rounds of at most this many."""

TRACKED = "tracked.txt"
"""The file in a run's folder with the id and the name of this run in trackers."""
MAX_PARAMETER_LENGTH, MAX_PARAMETERS = 6000, 100
"""MLflow's limits: characters of a parameter, and parameters in a call."""

log = get_logger(__name__)


class Tracker(Protocol):
    """Receives the configuration, the numbers of every round, and the result of a run.

    If a tracker raises an error, the error is counted and the run continues.
    """

    def start(self, config: Mapping[str, Any]) -> None:
        """Called when the run begins or is resumed.

        Args:
            config: All settings, resolved; `config["output"]["folder"]` is the run's folder, which tells runs of several seeds
                apart and is the same when a run is resumed.
        """

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        """Called after every round that is committed.

        Args:
            round_number: Number of the round; 0 is the start.
            metrics: Numbers by name: `train/...`, `eval/...`, `bytes/total`, `failures`; those that TRL's trainers log too have
                TRL's names.
        """

    def finish(self, result: Mapping[str, Any]) -> None:
        """Called when the run is over; its folder holds `config.yaml`, `result.json` and, if asked for, `report.html`.

        Args:
            result: What is written to `result.json`.
        """


class TrackedAs(NamedTuple):
    """The names of a run in trackers.

    Attributes:
        name: The configuration's name, and what the folder's name adds to it: the seed, the values of a sweep.
        group: The configuration's name, which its seeds and the runs of a sweep share.
        id: A text that no other run has. It lies in the run's folder beside the name, so a resumed run keeps both.
    """

    name: str
    group: str
    id: str


def identify_run(config: Mapping[str, Any]) -> TrackedAs:
    """The names of a run in trackers, which are made when the run begins, and read when it is resumed."""
    group, folder = str(config["name"]), Path(config["output"]["folder"]).absolute()
    file = folder / TRACKED
    if file.is_file() and (
        known := re.fullmatch(r"([0-9a-f]{16}) ([^\0-\x1f]{1,400})\n", file.read_text("utf-8", "replace"))
    ):
        return TrackedAs(known[2], group, known[1])
    name = folder.name if f"{folder.name}-".startswith(f"{group}-") else f"{group}-{folder.name}"
    made = TrackedAs(re.sub(r"[\0-\x1f]", " ", name), group, secrets.token_hex(8))
    write_atomic(file, f"{made.id} {made.name}\n")
    return made


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The settings as texts by their keys, `learning.learning_rate`; lists and the like as JSON."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flatten_settings(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


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

    _unfinished: ClassVar[dict[str, Any]] = {}
    """Runs of this process by their ids. A run that is resumed here is ended first, since wandb refuses an id in use."""

    def __init__(self, project: str = "fedagentgym", **options: Any) -> None:
        self._library = self.import_library()
        self._options = {"project": project, **options}

    def import_library(self) -> Any:
        return require("wandb", "wandb")

    def start(self, config: Mapping[str, Any]) -> None:
        self._folder = Path(config["output"]["folder"])
        self._tracked = identify_run(config)
        options = self.choose_options(self._tracked)
        self._key = str(options.get("id", options["name"]))
        if (left := self._unfinished.pop(self._key, None)) is not None:
            left.finish()
        self._run = self._unfinished[self._key] = self._library.init(**options, config=dict(config))

    def choose_options(self, tracked: TrackedAs) -> dict[str, Any]:
        """Return the options: the user's own, and defaults that use no network and continue the run of this id."""
        quiet = self._library.Settings(console="off", silent=True)
        own = digest([tracked.id, self._options["project"], self._options.get("entity")])[7:23]
        names = {"id": own, "name": tracked.name, "group": tracked.group, "resume": "allow"}
        ours = {"mode": "offline", "dir": str(self._folder), "settings": quiet, "reinit": "create_new"}
        return {**names, **ours, **self._options}

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=round_number)

    def finish(self, result: Mapping[str, Any]) -> None:
        report = self._folder / "report.html"
        if report.exists():
            self._run.log({"report": self._library.Html(report.read_text("utf-8"))})
        if paths := list_artefacts(self._folder):
            name = re.sub(r"[^\w.-]", "-", self._tracked.name, flags=re.ASCII)[:100]
            files = self._library.Artifact(f"run-{name}", "run")
            for path in paths:
                files.add_file(str(path))
            self._run.log_artifact(files)
        self._run.finish()
        self._unfinished.pop(self._key, None)


class Trackio(Wandb):
    """A run of trackio, in its own folder of this machine. Options are keywords of `trackio.init`.

    trackio continues a run by its name, so the run's id is appended to the name, also to a name among the options.
    """

    def import_library(self) -> Any:
        return require("trackio", "trackio")

    def choose_options(self, tracked: TrackedAs) -> dict[str, Any]:
        quiet = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        name = f"{self._options.get('name', tracked.name)}-{tracked.id[:6]}"
        return {"group": tracked.group, **quiet, **self._options, "name": name}


class MLflow:
    """A run of MLflow. Without `uri` it is stored in the run's folder: `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db`.

    The settings are its parameters, which cannot change later; `settings.json` has those of the last start or resumption.
    """

    def __init__(self, uri: str | None = None, experiment: str = "fedagentgym") -> None:
        self._library = require("mlflow", "mlflow")
        self._uri, self._experiment = uri, experiment

    def start(self, config: Mapping[str, Any]) -> None:
        self._folder = folder = Path(config["output"]["folder"]).absolute()
        self._client = client = self._library.MlflowClient(self._uri or f"sqlite:///{folder}/mlflow.db")
        found = client.get_experiment_by_name(self._experiment)
        place = None if self._uri else (folder / "mlflow").as_uri()
        identifier = found.experiment_id if found else client.create_experiment(self._experiment, place)
        tracked = identify_run(config)
        begun = client.search_runs([identifier], f"tags.fedagentgym_run = '{tracked.id}'", max_results=1)
        if begun:
            self._run = begun[0].info.run_id
            client.update_run(self._run, status="RUNNING")
        else:
            tags = {"fedagentgym_run": tracked.id, "fedagentgym_group": tracked.group}
            self._run = client.create_run(identifier, tags=tags, run_name=tracked.name).info.run_id
            make = self._library.entities.Param
            flat = [(_clean_name(key), text[:MAX_PARAMETER_LENGTH]) for key, text in flatten_settings(config).items()]
            for first in range(0, len(flat), MAX_PARAMETERS):
                client.log_batch(self._run, params=[make(*one) for one in flat[first : first + MAX_PARAMETERS]])
        client.log_dict(self._run, json.loads(json.dumps(config, default=str)), "settings.json")

    def log(self, round_number: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, _clean_name(name), value, step=round_number)

    def finish(self, result: Mapping[str, Any]) -> None:
        for path in list_artefacts(self._folder):
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)


def _clean_name(name: str) -> str:
    """A name of the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name)[:250]


def list_artefacts(folder: Path) -> list[Path]:
    """The files of a finished run that explain it; the report contains its pictures."""
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
    """The tracker of this name with these options; a missing library is an error before the run begins."""
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
"""TRL's names, by our names, of metrics that its `GRPOTrainer` logs too, so that curves of both can share a figure. `reward`,
`kl`, `entropy` and `loss` have the same names."""
NO_SPREAD = "frac_reward_zero_std"
"""TRL's name of the share of groups whose episodes earned the same."""


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
        """Pass the result to the trackers, and warn of each that failed, with the number of its failures."""
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
