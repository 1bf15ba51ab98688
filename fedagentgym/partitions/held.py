"""Tasks that stay on a client's own machine: the file in which their owner describes them, and their environments.

    client: 3                                             # the client's number in the federation
    env: {id: fedagentgym/QA-v0, options: {data: questions.jsonl}}
    held_out: 0.2                                         # share of the tasks that is only evaluated on

`tasks: tasks.jsonl` names a file of tasks, one per line, as `export_client` writes it; without it the environment loads its own
tasks. `share` and `allow` list what may be sent to the server. Everything else stays on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedagentgym.base.encoding import bytes_digest, digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import atomic_folder, format_yaml, parse_yaml, read_jsonl, read_text, stamp_file
from fedagentgym.base.settings import Settings
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import count_turns, env_class, read_options
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.tasks import Task, from_plain_payload, to_plain_payload
from fedagentgym.partitions.client_split import Client, ClientSplit
from fedagentgym.partitions.table import refuse_evaluation
from fedagentgym.partitions.verification import read_questions

CLIENT_FILE, TASKS_FILE, CARD_FILE = "client.yaml", "tasks.jsonl", "README.md"
Shared = Literal["count", "categories"]
Allowed = Literal["parameters", "metrics", "objectives", "scores", "votes", "answers", "evaluation"]


class HeldEnv(Settings):
    """The environment that plays the tasks, with its options on this machine."""

    id: str = Field(description="environment id, such as fedagentgym/QA-v0")
    split: str = Field(default="train", description="split whose tasks are held")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the environment, such as data: FILE")


class HeldSettings(Settings):
    """The decisions of the owner of a client's machine: the file `client.yaml`."""

    client: int = Field(ge=0, description="the client's number in the federation")
    env: HeldEnv = Field(description="the environment of the tasks")
    variant: dict[str, Any] | None = Field(default=None, description="the client's variant of the environment")
    tasks: str | None = Field(default=None, description="file of tasks beside this one; null: the environment's tasks")
    held_out: float = Field(default=0.0, ge=0.0, lt=1.0, description="share of the tasks that is only evaluated on")
    share: tuple[Shared, ...] = Field(default=("count",), description="facts about the tasks that the server may get")
    allow: tuple[Allowed, ...] = Field(
        default=("parameters", "metrics", "evaluation"), description="what else may be sent to the server"
    )


@dataclass(frozen=True)
class HeldTasks:
    """The opened tasks of one client.

    Attributes:
        settings: The settings of their owner.
        env: The environment over the training tasks.
        held_out: The environment over the held-out tasks; None if there are none.
        digest: Changes with the tasks, the environment's options (except places of data), the variant, or `held_out`.
        files: The files from which the tasks were opened, with their stamps.
    """

    settings: HeldSettings
    env: TextEnv
    held_out: TextEnv | None
    digest: str
    files: Mapping[Path, tuple[int, int, int]]

    @property
    def is_unchanged(self) -> bool:
        """True if no file has been written since the tasks were opened."""
        try:
            return all(stamp_file(file) == stamp for file, stamp in self.files.items())
        except OSError:
            return False


def load_held_settings(path: str | Path) -> HeldSettings:
    """The settings in the owner's file; a folder stands for the `client.yaml` in it."""
    file = find_client_file(path)
    return HeldSettings.load(parse_yaml(read_text(file), str(file)), str(file))


def find_client_file(path: str | Path) -> Path:
    """The path of a client's file; a folder stands for the `client.yaml` in it."""
    return Path(path) / CLIENT_FILE if Path(path).is_dir() else Path(path)


def open_held(path: str | Path) -> HeldTasks:
    """Open the tasks that a client's file describes; paths in it are relative to it."""
    file = find_client_file(path)
    settings = load_held_settings(file)
    cls = env_class(settings.env.id)
    refuse_evaluation(cls, settings.env.split)
    places = {name for name, mark in cls.Options.get_marks().items() if mark == "local"}
    options = {  # a path is relative to the owner's file
        name: str((file.parent / value).absolute()) if name in places and _is_there(value, file.parent) else value
        for name, value in settings.env.options.items()
    }
    if settings.tasks is not None:
        options["pool"] = read_tasks(file.parent / settings.tasks, cls, settings.env.split)
    if settings.variant is not None:
        options["variant"] = settings.variant
    named = [file, *([file.parent / settings.tasks] if settings.tasks else [])]
    named += [Path(value) for name, value in options.items() if name in places and _is_there(value)]
    stamps = {path: stamp_file(path) for path in named if path.exists()}
    whole = open_env(settings.env.id, **options, split=settings.env.split)
    about = [
        settings.env.id,
        read_options(settings.env.id, settings.env.options).portable,
        settings.variant,
        settings.held_out,
    ]
    found = digest([*about, whole.pool.digest])
    back = choose_held_out(whole.pool.ids, settings.held_out, list_doubles(whole) if settings.held_out else {})
    if not back:
        return HeldTasks(settings, whole, None, found, stamps)
    parts = []
    for chosen in (False, True):
        pool = whole.pool.subset([identifier for identifier in whole.pool.ids if (identifier in back) == chosen])
        parts.append(open_env(settings.env.id, **{**options, "split": settings.env.split, "pool": pool}))
    return HeldTasks(settings, parts[0], parts[1], found, stamps)


def _is_there(value: Any, folder: Path = Path()) -> bool:
    try:
        return isinstance(value, str) and (folder / value).exists()
    except OSError:  # the text is no valid file name
        return False


def choose_held_out(ids: Sequence[str], share: float, doubles: Mapping[str, str] | None = None) -> frozenset[str]:
    """The held-out tasks: those whose ids have the smallest digests, so that adding tasks moves few others. `doubles` maps a
    task to the task that it repeats. The two stay together, since otherwise a held-out task would also be trained on."""
    if not share:
        return frozenset()
    if len(ids) < 2:
        raise DataError(f"held_out is {share:g}, but a client with {len(ids)} task has none to hold out")
    groups: dict[str, list[str]] = {}
    for identifier in ids:
        groups.setdefault((doubles or {}).get(identifier, identifier), []).append(identifier)
    if len(groups) < 2:
        raise DataError(f"held_out is {share:g}, but the {len(ids)} tasks of the client are all the same task")
    count = max(1, round(share * len(ids)))
    ordered = sorted(groups, key=lambda identifier: bytes_digest(identifier.encode()))
    back: list[str] = []
    for first in ordered[:-1]:
        if len(back) >= count:
            break
        back += groups[first]
    return frozenset(back)


def list_doubles(env: TextEnv) -> dict[str, str]:
    """Map each task that repeats an earlier task to that task. Two tasks are the same if their payloads are equal or, in an
    environment that takes replies, if their questions have the same words."""
    first: dict[Hashable, str] = {}
    found = {}
    for task in env.pool:
        if env.takes == "reply":
            seen: Hashable = read_questions(env, task.id, env.max_turns)
        else:
            try:
                seen = represent(task.payload)
            except DataError:  # without a text
                continue
        if (other := first.setdefault(seen, task.id)) != task.id:
            found[task.id] = other
    return found


# ---- files of tasks -------------------------------------------------------------------------------------------------


def read_tasks(path: Path, cls: type[TextEnv], split: str) -> TaskPool:
    """The tasks of a file: one JSON mapping per line with `category`, `payload` and optionally `id`, `hardness` and others."""
    rows = []
    for number, row in read_jsonl(path):
        if not isinstance(row, Mapping) or not {"category", "payload"} <= set(row):
            raise DataError(f"{path}, line {number}: a task is a mapping with category and payload")
        try:
            rows.append({**row, "payload": from_plain_payload(row["payload"], cls.payload_type)})
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    return TaskPool.from_records(rows, env=cls.id, split=split)


def format_task(task: Task, pool: TaskPool, cls: type[TextEnv]) -> str:
    """A task as a line of a file. A task that reading would not restore exactly is refused."""
    place = pool.find_position(task.id)
    row = {"id": task.id, "category": task.category, "payload": to_plain_payload(task.payload)}
    row |= {} if task.hardness is None else {"hardness": task.hardness}
    row |= {name: values[place] for name, values in pool.columns.items() if values[place] is not None}
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False)
        same = from_plain_payload(json.loads(line)["payload"], cls.payload_type) == task.payload
    except (TypeError, ValueError, DataError):
        same = False
    if not same:
        raise OptionError(
            f"tasks of {cls.id} cannot be restored from a file: set the class attribute payload_type to the type of payloads"
        )
    return line + "\n"


CARD = """---
configs:
- config_name: default
  data_files: {tasks}
---

# Client {client} of {clients}

{count:,} tasks of `{env}` with their answers, as the sampler {sampler} divided them (seed {seed}, parameters {parameters}).

| category | tasks |
|---|---|
{categories}

`{tasks}` has one task per line: id, category, payload, and hardness and further fields if the data has them. `{file}` describes
them for a node. Start the node with `flower-supernode --node-config 'tasks="/srv/{file}" workplace="/srv/work"'` in a run with
`partition: {{sampler: held, clients: {clients}}}`.

Split `{digest}`, pool `{pool}`.
"""


def export_client(client: Client, folder: str | Path) -> Path:
    """Write the tasks of a client of a split into a folder that can be moved to the client's node.

    Args:
        client: The client.
        folder: The folder to make: `tasks.jsonl`, `client.yaml`, and a data card.

    Returns:
        The folder.

    Raises:
        OptionError: If the tasks of this environment cannot be written to a file.
        DataError: If the folder exists.
    """
    split, pool = client.client_split, client.pool
    cls = split.env_class
    options = read_options(cls.id, split.options).portable
    if (turns := count_turns(cls.id, split.options)) != count_turns(cls.id, options):
        options["max_turns"] = turns
    settings = {
        "client": client.index,
        "env": {"id": split.record.env_id, "split": split.record.env_split, "options": options},
        **({} if client.variant is None else {"variant": dict(client.variant)}),
        "tasks": TASKS_FILE,
    }
    lines = [format_task(task, pool, cls) for task in pool]
    with atomic_folder(folder) as part:
        (part / TASKS_FILE).write_text("".join(lines), "utf-8")
        (part / CLIENT_FILE).write_text(format_yaml(settings), "utf-8")
        (part / CARD_FILE).write_text(format_card(client, split, pool), "utf-8")
    return Path(folder)


def format_card(client: Client, split: ClientSplit, pool: TaskPool) -> str:
    record = split.record
    return CARD.format(
        client=client.index,
        clients=len(split),
        count=len(pool),
        env=record.env_id,
        sampler=escape_markdown(record.sampler),
        seed=record.seed,
        parameters=escape_markdown(json.dumps(dict(record.parameters))),
        categories="\n".join(
            f"| {escape_markdown(name)} | {count} |" for name, count in sorted(pool.categories.items())
        ),
        tasks=TASKS_FILE,
        file=CLIENT_FILE,
        digest=split.digest,
        pool=record.pool_digest,
    )
