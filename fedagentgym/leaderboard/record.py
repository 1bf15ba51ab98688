"""The documents of a packed result: who played which suite, the results, curves and clients. `results` reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedagentgym.base.settings import Settings

Track = Literal["agents", "methods"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,79}$")]
"""The name of a suite, a scenario or an entry; it is part of file names. ASCII, since letters of other scripts look alike."""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=2000)]
FileName = Annotated[str, Field(pattern=r"^(?:[a-z]+/)?[A-Za-z0-9][A-Za-z0-9_.+=-]{0,120}$")]
Date = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$")]
Count = Annotated[int, Field(ge=0)]
MOST_VALUES = 2_000
"""Maximum number of values in settings that a record repeats."""


def _is_absent(value: object) -> bool:
    """Return whether a field is left out."""
    return value is None


def _check_size(plain: dict[str, Any]) -> dict[str, Any]:
    waiting: list[Any] = [plain]
    counted = 0
    while waiting:
        node = waiting.pop()
        below = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list | tuple) else []
        counted += len(below)
        if counted > MOST_VALUES:
            raise ValueError(f"settings of more than {MOST_VALUES:,} values")
        waiting += below
    return plain


Plain = Annotated[dict[str, Any], AfterValidator(_check_size)]
"""Settings of an environment or agent."""


class Interval(Settings):
    """A mean and the ends of its interval, without ends if there are too few runs for one."""

    mean: float
    low: float | None = Field(default=None, exclude_if=_is_absent)
    high: float | None = Field(default=None, exclude_if=_is_absent)

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


class WorldRecord(Settings):
    """The tasks of a scenario in the world of one seed, by their digests."""

    pool: Digest
    task_ids: Digest
    task_set: Digest
    client_split: Digest | None = None


class ScenarioRecord(Settings):
    """A scenario that was played. `axis` and `level` place it among others that differ in heterogeneity alone.

    Where every seed has a world of its own, the digests are those of the first, and `worlds` has those of all seeds.
    """

    name: Name
    env: Text
    options: Plain
    split: Text
    tasks: int = Field(ge=1, description="tasks that were played, each `repeats` times")
    repeats: int = Field(ge=1)
    pool: Digest
    task_ids: Digest
    verifier: Text | None = None
    task_set: Digest = Field(description="what names these tasks: environment, options, split, pool and ids")
    client_split: Digest | None = None
    clients: Count | None = None
    axis: Text | None = None
    level: float | None = None
    methods_differ: bool = True
    worlds: dict[str, WorldRecord] = Field(
        default_factory=dict, exclude_if=lambda worlds: not worlds, description="by seed"
    )


class AgentRecord(Settings):
    """The player: a program without a model, a local model, or a hosted one.

    `weights` is the digest of the model's files if they were available; a hosted model has none.
    """

    kind: Literal["program", "model", "hosted"]
    settings: Plain
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
    changes: tuple[Text, ...] = Field(max_length=MOST_VALUES)
    plugins: tuple[PluginRecord, ...] = ()
    stream: Count = Field(
        default=0,
        exclude_if=lambda stream: not stream,
        description="of the suite's control: number of the random stream; left out if 0",
    )


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
    """The cost of a cell. On the agents track: the episodes played; on the methods track: until a round of its curve, or in all,
    with preparation. Results made before the last three were counted do not have them."""

    rounds: Count = 0
    episodes: Count = Field(
        default=0, description="episodes played to learn from or only to be scored, without evaluations"
    )
    env_steps: Count = 0
    bytes_down: Count = 0
    bytes_up: Count = 0
    optimizer_steps: Count | None = Field(default=None, exclude_if=_is_absent, description="steps of all optimizers")
    looks: Count | None = Field(default=None, exclude_if=_is_absent, description="evaluations on `val`")
    labelled: Count | None = Field(
        default=None, exclude_if=_is_absent, description="in all: tasks whose answers the method may use"
    )


class Usage(Settings):
    """The usage of a hosted model; `uncounted` answers came without numbers of tokens."""

    requests: Count = 0
    retries: Count = 0
    prompt_tokens: Count = 0
    reply_tokens: Count = 0
    uncounted: Count = 0
    cost: float = Field(default=0.0, ge=0.0)


class CellRecord(Settings):
    """One scenario under one seed. `categories` are those of the tasks; on the methods track with success alone. `chosen_round`
    is the ranked round. On the agents track `policy` is the digest of the model's files if every environment has a model of its
    own."""

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
    revision: Text | None = Field(
        default=None, exclude_if=_is_absent, description="methods: git revision that played it"
    )

    @property
    def key(self) -> str:
        """The cell's name in file names."""
        return f"{self.scenario}-seed{self.seed}"


class Made(Settings):
    """Date, machine and versions: everything that two runs of the same cells do not share."""

    date: Date
    seconds: float = Field(ge=0.0)
    versions: dict[str, Text] = Field(max_length=MOST_VALUES)
    machine: dict[str, Text] = Field(max_length=MOST_VALUES)
    revision: Text | None = None


class Manifest(Settings):
    """`manifest.json`. `format` is that of the whole result, which every 0.1.x reads. `ranked` names the measure of `overall`
    by which the suite ranks."""

    format: Literal[1] = 1
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
    """`curves.json.xz`."""

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
    """`clients.json.xz`."""

    cells: tuple[CellClients, ...]


class CellConfig(Settings):
    """The configuration of a cell's run, without the folder in which it was played."""

    scenario: Name
    seed: Count
    config: dict[str, Any]


class ConfigTable(Settings):
    """`configs.json.xz`."""

    cells: tuple[CellConfig, ...]


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

    manifest: Digest
    version: Text = Field(description="of the package that checked")
    claims: tuple[Claim, ...]
    rerun: Rerun | None = None

    @property
    def replayed(self) -> bool:
        """True if every episode was replayed with the recorded rewards."""
        return any(claim.name == "replayed" and claim.status == "proven" for claim in self.claims)


def make_json_schema() -> Mapping[str, Any]:
    """The JSON schema of a result's documents (`results`) and of `verification.json`, as the package publishes it."""
    documents: tuple[type[Settings], ...] = (Manifest, Curves, ClientTable, ConfigTable, Verification)
    return {document.__name__: document.model_json_schema() for document in documents}
