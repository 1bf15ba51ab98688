"""A packed result: one folder with who played which suite, the results, and every episode.

    manifest.json                 who, which suite, the results, the digest of every other file        `Manifest`
    suite.yaml                    the definition of the suite as it was played
    agent.yaml                    agents track: the agent's settings
    configs/SCENARIO-seedN.yaml   methods track: the configuration of every run
    episodes/SCENARIO-seedN.jsonl.gz    the ranked episodes, on the split `test`
    selection/SCENARIO-seedN.jsonl.gz   methods track: the episodes on `val` by which the ranked round was chosen
    curves.json                   methods track: results and cost of every evaluated round                `Curves`
    clients.json                  methods track: success of every client                                `ClientTable`

A cell is one scenario (an environment, on the methods track with a client split) under one seed. On the agents track a result may
hold some of the scenarios. All numbers of the three
JSON files follow from the episodes, except for what `verify` names as not provable. Only `manifest.made` (date, machine,
duration) differs between two runs of the same cells. `verification.json`, if present, is the maintainers', not a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path, read_text
from fedagentgym.base.parsing import parse_json
from fedagentgym.base.settings import Settings

MANIFEST, CURVES, CLIENTS, VERIFICATION = "manifest.json", "curves.json", "clients.json", "verification.json"
SUITE, AGENT = "suite.yaml", "agent.yaml"
EPISODES, SELECTION, CONFIGS = "episodes", "selection", "configs"

Track = Literal["agents", "methods"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,79}$")]
"""What names a suite, a scenario or an entry; it is part of file names. ASCII, since letters of other scripts look alike."""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=2000)]
FileName = Annotated[str, Field(pattern=r"^(?:[a-z]+/)?[A-Za-z0-9][A-Za-z0-9_.+=-]{0,120}$")]
Date = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$")]
Count = Annotated[int, Field(ge=0)]


class Interval(Settings):
    """A mean and the ends of its interval, without ends if there are too few runs for one."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends, if there is an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


Measures = dict[str, Interval]
"""By the names of `fedagentgym.leaderboard.metrics.METRICS`, and `reward/...` for the components of rewards."""


class SuiteReference(Settings):
    """Which suite was played; the digest is of its definition, `suite.yaml`."""

    name: Name
    version: int = Field(ge=1)
    track: Track
    digest: Digest


class ScenarioRecord(Settings):
    """A scenario that was played. `axis` and `level` place it among others that differ in heterogeneity alone."""

    name: Name
    env: Text
    options: dict[str, Any]
    split: Text
    tasks: int = Field(ge=1, description="tasks that were played, each `repeats` times")
    repeats: int = Field(ge=1)
    pool: Digest
    task_ids: Digest
    verifier: Text | None = None
    client_split: Digest | None = None
    clients: Count | None = None
    axis: Text | None = None
    level: float | None = None
    methods_differ: bool = True


class AgentRecord(Settings):
    """The player: a program without a model, a local model, or a hosted one.

    `weights` is the digest of the model's files if they were available; a hosted model has none.
    """

    kind: Literal["program", "model", "hosted"]
    settings: dict[str, Any]
    model: Text | None = None
    revision: Text | None = None
    weights: Digest | None = None


class PluginRecord(Settings):
    """Loaded code of the entry, by the digest of its file if it is one."""

    name: Text
    digest: Digest | None = None


class MethodRecord(Settings):
    """The method: the changes to the configuration of a scenario."""

    algorithm: Text
    changes: tuple[Text, ...]
    plugins: tuple[PluginRecord, ...] = ()


class EntryRecord(Settings):
    """A row of the table. `submitted_by`, `link` and `note` are the submitters' own words."""

    name: Name
    title: Text
    baseline: bool = False
    agent: AgentRecord
    method: MethodRecord | None = None
    submitted_by: Text = ""
    link: Text = ""
    note: Text = ""


class Spent(Settings):
    """The cost of a cell. On the agents track: the episodes played; on the methods track: until the ranked round / in all."""

    rounds: Count = 0
    episodes: Count = 0
    env_steps: Count = 0
    bytes_down: Count = 0
    bytes_up: Count = 0


class Usage(Settings):
    """The usage of a hosted model; `uncounted` answers came without numbers of tokens."""

    requests: Count = 0
    retries: Count = 0
    prompt_tokens: Count = 0
    reply_tokens: Count = 0
    uncounted: Count = 0
    cost: float = Field(default=0.0, ge=0.0)


class CellRecord(Settings):
    """One scenario under one seed. `chosen_round` is the evaluated round with the highest success on `val`. On the agents
    track `policy` is the digest of the model's files if every environment has a model of its own."""

    scenario: Name
    seed: int = Field(ge=0)
    episodes: Count
    measures: Measures
    categories: dict[str, Measures]
    spent: Spent
    policy: Digest | None = None
    config: Digest | None = None
    chosen_round: Count | None = None
    usage: Usage | None = None
    epsilon: float | None = Field(default=None, ge=0.0)

    @property
    def key(self) -> str:
        """The cell's name in file names."""
        return f"{self.scenario}-seed{self.seed}"


class Made(Settings):
    """Date, machine and versions: everything that two runs of the same cells do not share."""

    date: Date
    seconds: float = Field(ge=0.0)
    versions: dict[str, Text]
    machine: dict[str, Text]
    revision: Text | None = None


class Manifest(Settings):
    """`manifest.json`. `ranked` names the measure of `overall` by which the suite ranks."""

    schema_version: Literal["fedagentgym/leaderboard-result-1"] = "fedagentgym/leaderboard-result-1"
    suite: SuiteReference
    entry: EntryRecord
    scenarios: tuple[ScenarioRecord, ...]
    seeds: tuple[Count, ...]
    ranked: Name
    overall: Measures
    by_scenario: dict[str, Measures]
    cells: tuple[CellRecord, ...]
    files: dict[FileName, Digest]
    made: Made


class CurvePoint(Settings):
    """An evaluated round: its usage so far, and the success on the split `val`."""

    round: Count
    spent: Spent
    measures: Measures
    categories: dict[str, float] = Field(description="success by category")


class Curve(Settings):
    """The learning curve of a cell."""

    scenario: Name
    seed: Count
    points: tuple[CurvePoint, ...]


class Curves(Settings):
    """`curves.json`."""

    schema_version: Literal["fedagentgym/leaderboard-curves-1"] = "fedagentgym/leaderboard-curves-1"
    cells: tuple[Curve, ...]


class ClientRecord(Settings):
    """A client: what it holds, and the success of the ranked model on its own mixture of held-out tasks.

    `coverage` is the share of its tasks whose category was played; `success` is null if this is zero.
    """

    client: Count
    tasks: Count
    mixture: dict[str, float]
    coverage: float
    success: float | None


class CellClients(Settings):
    """The clients of a cell."""

    scenario: Name
    seed: Count
    clients: tuple[ClientRecord, ...]


class ClientTable(Settings):
    """`clients.json`."""

    schema_version: Literal["fedagentgym/leaderboard-clients-1"] = "fedagentgym/leaderboard-clients-1"
    cells: tuple[CellClients, ...]


class Claim(Settings):
    """A claim of a result, and whether it was proven."""

    name: Name
    status: Literal["proven", "not provable", "refuted"]
    about: Text


class Rerun(Settings):
    """The results of maintainers who ran an entry again: on the public tasks, and on those of the secret twin."""

    date: Text
    by: Text
    public: Measures = Field(default_factory=dict)
    secret: Measures = Field(default_factory=dict)
    secret_suite: Digest | None = None


class Verification(Settings):
    """`verification.json`, written by the verifier of a result; it belongs to one manifest."""

    schema_version: Literal["fedagentgym/leaderboard-verification-1"] = "fedagentgym/leaderboard-verification-1"
    manifest: Digest
    version: Text = Field(description="of the package that checked")
    claims: tuple[Claim, ...]
    rerun: Rerun | None = None

    @property
    def replayed(self) -> bool:
        """Whether every episode was replayed with the recorded rewards."""
        return any(claim.name == "replayed" and claim.status == "proven" for claim in self.claims)


Document = TypeVar("Document", bound=Settings)


def to_text(document: Settings) -> str:
    """The canonical text of a result's document."""
    return json.dumps(document.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n"


def read_document(kind: type[Document], path: Path) -> Document:
    """A document of a result; any text but that of `to_text` is refused."""
    text = read_text(path)
    try:
        found = kind.load(parse_json(text, format_path(path)), "")
    except OptionError as error:
        raise DataError(f"{format_path(path)}: {error}") from None
    if to_text(found) != text:
        raise DataError(
            f"{format_path(path)}: not written as this package writes it: a number or the layout was edited"
        )
    return found


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a result."""
    return read_document(Manifest, folder / MANIFEST)


def read_curves(folder: Path) -> Curves:
    """The learning curves of a result; empty on the agents track."""
    return read_document(Curves, folder / CURVES) if (folder / CURVES).exists() else Curves(cells=())


def read_clients(folder: Path) -> ClientTable:
    """The clients of a result; empty on the agents track."""
    return read_document(ClientTable, folder / CLIENTS) if (folder / CLIENTS).exists() else ClientTable(cells=())


def make_json_schema() -> Mapping[str, Any]:
    """The JSON schema of `manifest.json`, `curves.json`, `clients.json` and `verification.json`, as the package publishes it."""
    documents: tuple[type[Settings], ...] = (Manifest, Curves, ClientTable, Verification)
    return {document.__name__: document.model_json_schema() for document in documents}
