"""The record of a run, `result.json`: its environment, agent, results and cost. `claims` computes its numbers again.

A training run and an evaluation write the same record. A training run has a `curve` of evaluated rounds and a `final` evaluation;
`ranked` is the evaluation on the held-out tasks that rank it, played once at the end. An evaluation has only `ranked`. Two runs
of one configuration differ only in `made` and in the `bytes` of reports, which contain times.
"""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, Field

from fedagentgym.agents.model.sources import PACKAGED
from fedagentgym.agents.model.store import find_model, identify_model
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.reports import PERCENTILE
from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.process import count_usable_cores
from fedagentgym.base.settings import Settings
from fedagentgym.federation.records import Digest, Estimates, Number, fits
from fedagentgym.learning.settings import OWN_WORLD
from fedagentgym.version import __version__

FORMAT = 1
"""The newest format of records and archives that this version reads."""
ENDPOINT = "endpoint"
"""The name of agents that ask a server."""
MAX_VALUES = 2_000
LIBRARIES = ("numpy", "torch", "transformers", "peft", "gymnasium", "flwr")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,79}$")]
"""The name of a suite, a scenario or an entry; it is part of file names. ASCII, since letters of other scripts look alike."""
Text = Annotated[str, Field(max_length=2000)]
Date = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$")]
Count = Annotated[int, Field(ge=0)]


def _check_size(plain: dict[str, Any]) -> dict[str, Any]:
    waiting: list[Any] = [plain]
    counted = 0
    while waiting:
        node = waiting.pop()
        below = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list | tuple) else []
        counted += len(below)
        if counted > MAX_VALUES:
            raise ValueError(f"settings of more than {MAX_VALUES:,} values")
        waiting += below
    return plain


Plain = Annotated[dict[str, Any], AfterValidator(_check_size)]
"""Settings of an environment or agent."""
OWN_WORLD_MEASURES = ("mean", "worst", f"p{PERCENTILE}")
MIXTURE_MEASURES = ("mixture", "mixture_worst")


def _check_worlds(at_clients: dict[str, Any]) -> dict[str, Any]:
    """Refuse numbers of clients' own worlds that are incomplete; other evaluations at clients are only shown."""
    if (own := at_clients.get(OWN_WORLD)) is not None:
        named = (*OWN_WORLD_MEASURES, *(MIXTURE_MEASURES if isinstance(own, dict) and "mixture" in own else ()))
        if not isinstance(own, dict) or not all(fits(Number, own.get(name)) for name in named):
            raise ValueError(f"{OWN_WORLD} must have the numbers {', '.join(named)}")
    return at_clients


class AgentRecord(Settings):
    """The player: a program without a model, a local model, or a hosted one.

    `weights` is the digest of the model's files if they were available; a hosted model has none. `note` says how a tiny agent
    was made. `parser` and `think` are for an agent class of the user's own, and say how its replies are read as actions; without
    them a program's reply is its action.
    """

    kind: Literal["program", "model", "hosted"]
    settings: Plain
    model: Text | None = None
    revision: Text | None = None
    weights: Digest | None = None
    note: dict[str, Any] = Field(default_factory=dict)
    parser: Literal["strict", "published"] | None = Field(default=None, exclude_if=not_)
    think: bool = Field(default=False, exclude_if=not_)

    @property
    def identity(self) -> dict[str, Any]:
        """The part that determines its answers: everything but the note."""
        return self.model_dump(mode="json", exclude={"note"})


class EnvRecord(Settings):
    """The environment in which a run trained, or was evaluated; `pool` is the digest of its tasks."""

    id: Text
    options: Plain
    pool: Digest
    task_set: Digest
    verifier: Text | None = None
    protections: Text | None = Field(default=None, description="what keeps programs of agents apart from this machine")


class ClientSplitRecord(Settings):
    """The division of tasks among clients."""

    digest: Digest
    clients: Count


class TasksRecord(Settings):
    """The ranked tasks. `task_set` is the digest of their environment, options, split, pool and ids."""

    split: Text
    tasks: int = Field(ge=1, description="tasks that were played, each `repeats` times")
    repeats: int = Field(ge=1)
    temperature: float = Field(ge=0)
    pool: Digest
    task_ids: Digest
    task_set: Digest
    verifier: Text | None = None


class Spent(Settings):
    """The cost up to a round, or of the whole run, with preparation. In training, `episodes` does not count evaluations."""

    rounds: Count = 0
    episodes: Count = Field(default=0, description="episodes played to learn from or only to be scored")
    env_steps: Count = 0
    bytes_down: Count = 0
    bytes_up: Count = 0
    optimizer_steps: Count = Field(default=0, description="steps of all optimizers")
    looks: Count = Field(default=0, description="evaluations on the split of the learning curve")

    @property
    def bytes(self) -> int:
        """Sent and received."""
        return self.bytes_down + self.bytes_up


class CurvePoint(Settings):
    """An evaluated round: its policy, the cost until then, its measures, and the success in each category."""

    round: Count
    policy: Digest | None = None
    spent: Spent
    overall: Estimates
    categories: dict[str, float]


class Evaluated(Settings):
    """The numbers of one evaluation: of all its tasks, by category, by set if there are several, and at clients."""

    round: Count | None = None
    policy: Digest | None = None
    tasks: Count
    episodes: Count
    overall: Estimates
    categories: dict[str, Estimates]
    sets: dict[str, Any] = Field(default_factory=dict)
    at_clients: Annotated[dict[str, Any], AfterValidator(_check_worlds)] = Field(default_factory=dict)
    beliefs: dict[str, Any] = Field(default_factory=dict)


class ClientRecord(Settings):
    """A client: its tasks, and the success of the ranked model on its own mixture of held-out tasks.

    `coverage` is the share of its tasks whose category was played; `success` is null if this is zero.
    """

    client: Count
    tasks: Count
    mixture: dict[str, Annotated[float, Field(gt=0, le=1)]]
    coverage: float
    success: float | None


class Usage(Settings):
    """The usage of a hosted model; `uncounted` answers came without possible numbers of tokens."""

    requests: Count = 0
    retries: Count = 0
    prompt_tokens: Count = 0
    reply_tokens: Count = 0
    uncounted: Count = 0
    cost: float = Field(default=0.0, ge=0.0)

    def add(self, other: Usage, sign: int = 1) -> Usage:
        """The sum of two usages; with the sign -1 their difference."""
        fields = type(self).model_fields
        return Usage(**{name: getattr(self, name) + sign * getattr(other, name) for name in fields})


class PrivacyRecord(Settings):
    """The privacy budget that a run spent, and the assumptions of the accountant."""

    epsilon: float = Field(ge=0.0)
    delta: float | None = None
    assumed: tuple[Text, ...] = ()


class Evidence(Settings):
    """The newest commit of the run, the number of commits, and the files that their chain of digests fixes."""

    commit: Digest
    rounds: Count
    checked: tuple[Text, ...]


class Made(Settings):
    """The date, the machine and the versions of a run: everything that two runs of one configuration do not share."""

    date: Date
    seconds: float = Field(ge=0.0)
    versions: dict[str, Text] = Field(max_length=MAX_VALUES)
    machine: dict[str, Text] = Field(max_length=MAX_VALUES)
    revision: Text | None = Field(
        default=None, description="git revision of the package, if it ran from its repository"
    )


class RunRecord(Settings):
    """`result.json`. Fields that a run lacks are null: an evaluation has no method, a run without `ranking` ranks nothing.

    `bytes`, `failures` and `evidence` are null in results whose commits are not available.
    """

    format: Literal[1] = 1
    kind: Literal["training", "evaluation"]
    name: Text
    algorithm: Text | None = None
    seed: Count
    config_digest: Digest = Field(description="of the configuration, `config.yaml`")
    env: EnvRecord
    evaluation_sets: dict[str, Any] = Field(default_factory=dict)
    client_split: ClientSplitRecord | None = None
    agent: AgentRecord
    rounds: Count = 0
    state: Digest | None = Field(default=None, description="digest of the final global state")
    curve: tuple[CurvePoint, ...] = ()
    best_round: Count | None = Field(
        default=None, description="the best evaluated round; null: no evaluation may choose one"
    )
    final: Evaluated | None = Field(default=None, description="the last evaluation of a training run")
    tasks: TasksRecord | None = Field(default=None, description="the tasks of `ranked`")
    ranked: Evaluated | None = None
    clients: tuple[ClientRecord, ...] = ()
    spent: Spent
    labelled: Count | None = Field(default=None, description="tasks whose answers the method may use")
    usage: Usage | None = None
    privacy: PrivacyRecord | None = None
    bytes: dict[str, dict[str, int]] | None = Field(default=None, description="by direction and kind")
    failures: Count | None = None
    evidence: Evidence | None = None
    made: Made


def describe_made(seconds: float) -> Made:
    """The time, this machine and a run's duration; `revision` ends in ", changed" if its files differ from the commit."""
    versions = {"fedagentgym": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    revision, root = None, Path(__file__).parents[2]
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=, changed"]
        revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return Made(
        date=datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(),
        seconds=seconds,
        versions=versions,
        machine={"system": platform.system(), "machine": platform.machine(), "cores": str(count_usable_cores())},
        revision=revision,
    )


# ---- agents -----------------------------------------------------------------------------------------------------------

MANNERS = ("concurrency", "retries", "timeout", "pause", "cost_cap", "input_price", "output_price", "key_variable")
"""Options of a hosted model about requests and prices, which do not affect its answers."""


def hide_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an agent, without the user, password and query of its server's address."""
    options = dict(settings.get("options") or {})
    if settings.get("name") != ENDPOINT or not isinstance(options.get("url"), str):
        return dict(settings)
    parts = urlsplit(options["url"])
    port = "" if parts.port is None else f":{parts.port}"
    options["url"] = urlunsplit((parts.scheme, f"{parts.hostname or ''}{port}", parts.path, "", ""))
    return {**settings, "options": options}


def publish_settings(settings: AgentSettings) -> dict[str, Any]:
    """The given settings of an agent that determine its replies: without secrets, without options of requests and prices, and
    with the name of a model's folder in place of its path."""
    plain, model = hide_secrets(settings.model_dump(mode="json", exclude_unset=True)), get_model(settings)
    if settings.harness is not None:
        # a program is known by the digest of its command and its files, which are not published themselves
        program = settings.harness
        shown = program.model_dump(mode="json", exclude_unset=True, exclude={"command", "clients", "env", "keep"})
        if program.command:
            others = [[client, *_describe_command(command)] for client, command in sorted(program.clients.items())]
            shown["program"] = digest([*_describe_command(program.command), *others])
        plain["harness"] = shown
    if settings.name == ENDPOINT and "options" in plain:
        plain["options"] = {key: value for key, value in plain["options"].items() if key not in MANNERS}
    if "model" in plain and model is not None and settings.name != ENDPOINT and find_model(model) is None:
        folder = Path(model).expanduser()
        plain["model"] = folder.resolve().name if folder.is_dir() else model
    return plain


def _describe_command(command: Sequence[str]) -> list[str]:
    """A command without places of this machine: the digests of the files that it names."""
    return [Path(command[0]).name, *(file_digest(word) if os.path.isfile(word) else word for word in command[1:])]  # noqa: PTH113  a script is too long for Path


def describe_agent(settings: AgentSettings, note: Mapping[str, Any] | None = None) -> AgentRecord:
    """The identity of an agent, without paths of this machine and without secrets. A tiny agent is another model in every
    environment, so `model` is null; the digest of its weights comes from the note on how it was made."""
    plain, model, about = publish_settings(settings), get_model(settings), dict(note or {})
    if settings.name == ENDPOINT:
        return AgentRecord(kind="hosted", settings=plain, model=model)
    if model is None:
        kind: Literal["program", "model"] = "model" if starts_from_nothing(settings) else "program"
        weights = about.get("weights") if kind == "model" else None
        return AgentRecord(kind=kind, settings=plain, weights=weights, note=about)
    stored, identity = find_model(model), identify_model(model)
    weights = identity if identity.startswith("sha256:") else None
    revision = None if stored is None or stored.source.startswith(("folder ", "file ")) else stored.source
    shown = plain.get("model", model)
    return AgentRecord(kind="model", settings=plain, model=shown, weights=weights, revision=revision, note=about)


def is_learner(record: AgentRecord, settings: AgentSettings) -> bool:
    """True if a record is of a model that is trained from these settings. A packaged model is identified by its pinned package:
    it need not be here, and the digest of its folder depends on the version that converted it."""
    packaged = PACKAGED.get(get_model(settings) or "")
    if packaged is None:
        kept = {"kind": "model"} | ({"weights": record.weights} if starts_from_nothing(settings) else {})
        return record.identity == describe_agent(settings).model_copy(update=kept).identity
    about = {"model": get_model(settings), "weights": record.weights, "revision": packaged.source}
    plain = settings.model_dump(mode="json", exclude_unset=True)
    return record.weights is not None and record.identity == {"kind": "model", "settings": plain, **about}
