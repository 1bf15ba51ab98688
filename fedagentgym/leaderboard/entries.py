"""An entry of a suite: an agent, or on the methods track the configuration changes that define a method.

RUN/run.json       the suite, the entry, and where its cells lie
cells/DIGEST/      the cells of all runs under one root; cells that two entries or suites share are played once
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.models.pretrained import list_shipped
from fedagentgym.agents.models.sources import PACKAGED
from fedagentgym.agents.models.store import find_model, identify_model
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.settings import Settings, merge
from fedagentgym.leaderboard.record import AgentRecord, EntryRecord, MethodRecord, Name, PluginRecord, Text
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.recipe import prepare_agent

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

ENDPOINT = "endpoint"
MANNERS = ("concurrency", "retries", "timeout", "pause", "cost_cap", "input_price", "output_price", "key_variable")
"""Options of a hosted model about requests and prices, which do not affect its answers."""
HOSTED_TOKENS = 512


class Entry(Settings):
    """An entry of a suite. `changes` define the method, on the methods track; `agent` is the player on the other, in `scenarios`
    or, if none is named, in all that it can play."""

    name: Name
    title: Text = ""
    baseline: bool = False
    agent: dict[str, Any] | None = None
    changes: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    stream: int = 0
    scenarios: tuple[Name, ...] = ()
    submitted_by: Text = ""
    link: Text = ""
    note: Text = ""

    @property
    def identity(self) -> dict[str, Any]:
        """The part of an entry that determines what is played."""
        agent = None if self.agent is None else _drop_manners(self.agent)
        return {"agent": agent, "changes": self.changes, "plugins": self.plugins, "stream": self.stream}


def _drop_manners(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without a hosted model's options about requests and prices."""
    options = settings.get("options")
    if settings.get("name") != ENDPOINT or not isinstance(options, Mapping):
        return dict(settings)
    return {**settings, "options": {key: value for key, value in options.items() if key not in MANNERS}}


def list_baselines(suite: Suite, names: Sequence[str] = ()) -> list[Entry]:
    """The entries that come with a suite; all of them if none is named."""
    if not names and not suite.baselines:
        raise OptionError(f"{suite.name} has no baselines: name an agent or a method of your own")
    return [make_baseline(suite, name) for name in names or suite.baselines]


def make_baseline(suite: Suite, name: str) -> Entry:
    if name not in suite.baselines:
        raise unknown_name_error(f"baseline of {suite.name}", name, suite.baselines)
    found = suite.baselines[name]
    agent = {"name": found.agent} if isinstance(found.agent, str) else found.agent
    if agent is not None:
        check_foreign_agent(AgentSettings.load(agent, "agent"), f"suite {suite.name}, baseline {name}")
    title, changes = found.title or name, found.changes
    return Entry(name=name, title=title, baseline=True, agent=agent, changes=changes, stream=found.stream)


def make_agent_entry(settings: Mapping[str, Any], name: str | None = None, **about: Any) -> Entry:
    """An agent as an entry; by default named after itself and its model."""
    chosen = AgentSettings.load(settings, "agent")
    model = get_model(chosen) if chosen.model is not None else None
    words = f"{chosen.name}-{Path(model).name}" if model else chosen.name
    short = slugify(words.encode("ascii", "replace").decode("ascii"))[:80]
    named = {"name": name or short, "title": name or model or chosen.name}
    return Entry.load({**named, **about, "agent": dict(settings)}, "entry")


def make_method_entry(changes: Sequence[str], name: str, **about: Any) -> Entry:
    """A method of one's own as an entry."""
    return Entry.load({"name": name, "title": name, **about, "changes": list(changes)}, "entry")


def slugify(name: str) -> str:
    """A name as part of a folder's."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")


# ---- agents -----------------------------------------------------------------------------------------------------------


def load_settings(entry: Entry, temperature: float) -> AgentSettings:
    """The settings of an entry's agent, as the suite plays it."""
    settings = AgentSettings.load(entry.agent or {}, "agent")
    if settings.name == ENDPOINT:
        given = settings.decoding or Decoding(max_new_tokens=HOSTED_TOKENS)
        settings = settings.model_copy(update={"decoding": given.model_copy(update={"temperature": temperature})})
    return settings


def prepare_player(settings: AgentSettings, env: TextEnv) -> AgentSettings:
    """The settings by which an agent plays an environment. A tiny agent without a model is the one that comes with the package,
    else one that is made now, unless it exists."""
    if not starts_from_nothing(settings):
        return settings
    return find_packaged(settings, env) or prepare_agent(settings, env.id, env.world_options, None)[0]


def find_packaged(settings: AgentSettings, env: TextEnv) -> AgentSettings | None:
    """The tiny agent of the package for an environment. Under another seed (the secret twin) it is the same agent."""
    if not starts_from_nothing(settings):
        return None
    wanted = _drop_seed(env.world_options)
    for one in list_shipped():
        note = one.note
        if note.get("env") == env.id and _drop_seed(note["options"]) == wanted and not one.is_misled:
            given = settings.model_dump(mode="json", exclude_unset=True)
            return AgentSettings.load({**merge(note["agent"], given), "model": str(one.folder)}, "agent")
    return None


def _drop_seed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "seed"}


def describe_agent(settings: AgentSettings) -> AgentRecord:
    """The identity of an agent, for a record: without paths of this machine and without secrets in an address. A tiny agent
    is another model in every environment, so it names none."""
    plain = settings.model_dump(mode="json", exclude_unset=True)
    model = get_model(settings)
    if settings.name == ENDPOINT:
        return AgentRecord(kind="hosted", settings=_hide_secrets(plain), model=model)
    if model is None:
        return AgentRecord(kind="model" if starts_from_nothing(settings) else "program", settings=plain)
    stored, folder = find_model(model), Path(model).expanduser()
    shown = folder.resolve().name if stored is None and folder.is_dir() else model
    if "model" in plain:
        plain["model"] = shown
    identity = identify_model(model)
    weights = identity if identity.startswith("sha256:") else None
    revision = None if stored is None or stored.source.startswith(("folder ", "file ")) else stored.source
    return AgentRecord(kind="model", settings=plain, model=shown, weights=weights, revision=revision)


def describe_learner(settings: AgentSettings) -> AgentRecord:
    """The agent that methods train."""
    return describe_agent(settings).model_copy(update={"kind": "model"})


def is_learner(record: AgentRecord, settings: AgentSettings) -> bool:
    """Return whether a record is of the agent that methods train. A packaged model is its pinned package: it need not be here,
    and the digest of its folder depends on the version that converted it."""
    packaged = PACKAGED.get(get_model(settings) or "")
    if packaged is None:
        return record == describe_learner(settings)
    plain = settings.model_dump(mode="json", exclude_unset=True)
    expected = AgentRecord(kind="model", settings=plain, model=get_model(settings), revision=packaged.source)
    return record.weights is not None and record.model_copy(update={"weights": None}) == expected


def _hide_secrets(plain: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(plain.get("options") or {})
    if isinstance(options.get("url"), str):
        parts = urlsplit(options["url"])
        port = "" if parts.port is None else f":{parts.port}"
        options["url"] = urlunsplit((parts.scheme, f"{parts.hostname or ''}{port}", parts.path, "", ""))
    return {**plain, "options": options}


def identify_agent(record: AgentRecord) -> dict[str, Any]:
    """The part of an agent that determines its answers."""
    return {**record.model_dump(mode="json"), "settings": _drop_manners(record.settings)}


# ---- records ----------------------------------------------------------------------------------------------------------


def describe_plugins(plugins: Sequence[str]) -> tuple[PluginRecord, ...]:
    """The plugins for a record: modules by name, files by name and digest."""
    return tuple(
        PluginRecord(name=Path(one).name, digest=file_digest(one)) if one.endswith(".py") else PluginRecord(name=one)
        for one in plugins
    )


def describe_entry(entry: Entry, agent: AgentRecord, algorithm: str | None) -> EntryRecord:
    """An entry for a record."""
    method = None
    if algorithm is not None:
        plugins = describe_plugins(entry.plugins)
        method = MethodRecord(algorithm=algorithm, changes=entry.changes, plugins=plugins, stream=entry.stream)
    described = entry.model_dump(include={"name", "baseline", "submitted_by", "link", "note"})
    return EntryRecord(title=entry.title or entry.name, agent=agent, method=method, **described)
