"""Entries of a suite (`entry.json`): an agent, or on the methods track the changes to the configuration that define a method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.model.pretrained import list_shipped
from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.settings import Settings, merge
from fedagentgym.federation.records import Digest
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.runs.record import ENDPOINT, MAX_VALUES, Count, Name, Text, publish_settings

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

HOSTED_TOKENS = 512


class PluginRecord(Settings):
    """Code that an entry loads: a module, or a file with its digest. `path` is the file's path on this machine."""

    name: Text
    digest: Digest | None = None
    path: Text | None = None


class Regraded(Settings):
    """The origin of a result that was graded again: the digest of the archive with the former grades, and the version of the
    package whose rules gave the new grades."""

    of: Digest
    by: Text


class Entry(Settings):
    """A row of a suite's table. On the methods track, `changes` define the method. On the agents track, `agent` is the player; it
    plays `scenarios`, or if none is named all that it can. The submitters write `submitted_by`, `link` and `note`."""

    name: Name
    title: Text = ""
    baseline: bool = False
    agent: dict[str, Any] | None = None
    changes: tuple[Text, ...] = Field(default=(), max_length=MAX_VALUES)
    plugins: tuple[PluginRecord, ...] = ()
    stream: Count = Field(default=0, description="of the suite's control: number of the random stream")
    scenarios: tuple[Name, ...] = ()
    submitted_by: Text = ""
    link: Text = ""
    note: Text = ""
    regraded: Regraded | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The part of an entry that determines what is played."""
        agent = self.publish().agent
        plugins = [one.model_dump(mode="json", exclude={"path"}) for one in self.plugins]
        return {"agent": agent, "changes": self.changes, "plugins": plugins, "stream": self.stream}

    @property
    def plugin_paths(self) -> tuple[str, ...]:
        """The names or paths by which the entry's plugins are loaded on this machine."""
        return tuple(one.path or one.name for one in self.plugins)

    def publish(self) -> Entry:
        """The entry without paths and secrets."""
        plugins = tuple(one.model_copy(update={"path": None}) for one in self.plugins)
        agent = None if self.agent is None else publish_settings(AgentSettings.load(self.agent, "agent"))
        return self.model_copy(update={"plugins": plugins, "agent": agent})


def describe_plugins(plugins: Sequence[str]) -> tuple[PluginRecord, ...]:
    """Records of plugins for an entry: modules by name, files by name, digest and path."""
    return tuple(
        PluginRecord(name=Path(one).name, digest=file_digest(one), path=str(Path(one).resolve()))
        if one.endswith(".py")
        else PluginRecord(name=one)
        for one in plugins
    )


def list_baselines(suite: Suite, names: Sequence[str] = ()) -> list[Entry]:
    """The named baselines of a suite as entries; all of them if none is named."""
    if not names and not suite.baselines:
        raise OptionError(f"{suite.name} has no baselines: name an agent or a method of your own")
    return [make_baseline(suite, name) for name in names or suite.baselines]


def check_name(suite: Suite, own: Entry) -> None:
    """Refuse the name of one of the suite's baselines for another entry, which would stand in its planned comparisons."""
    if own.name in suite.baselines and own.identity != make_baseline(suite, own.name).identity:
        raise OptionError(f"{own.name!r} is the name of a baseline of {suite.name}: choose another name")


def make_baseline(suite: Suite, name: str) -> Entry:
    if name not in suite.baselines:
        raise unknown_name_error(f"baseline of {suite.name}", name, suite.baselines)
    found = suite.baselines[name]
    agent = {"name": found.agent} if isinstance(found.agent, str) else found.agent
    if agent is not None:
        check_foreign_agent(AgentSettings.load(agent, "agent"), f"suite {suite.name}, baseline {name}")
    title, changes = found.title or name, found.changes
    if (tuned := suite.chosen.get(find_tuned(suite, name))) is not None:
        changes = (*changes, *tuned.changes)
    return Entry(name=name, title=title, baseline=True, agent=agent, changes=changes, stream=found.stream)


def find_tuned(suite: Suite, name: str) -> str:
    """The row whose search decides the settings of a row: the row itself, or for the control's second stream the first row."""
    row = suite.baselines.get(name)
    return next((one for one in suite.control or () if row is not None and row.stream and one != name), name)


def make_agent_entry(settings: Mapping[str, Any], name: str | None = None, **about: Any) -> Entry:
    """Make an entry of an agent; by default it is named after the agent and its model."""
    chosen = AgentSettings.load(settings, "agent")
    model = get_model(chosen) if chosen.model is not None else None
    words = f"{chosen.name}-{Path(model).name}" if model else chosen.name
    short = slugify(words.encode("ascii", "replace").decode("ascii"))[:80]
    shown = Path(model).name if model and Path(model).expanduser().is_dir() else model
    named = {"name": name or short, "title": name or shown or chosen.name}
    return Entry.load({**named, **about, "agent": dict(settings)}, "entry")


def make_method_entry(changes: Sequence[str], name: str, **about: Any) -> Entry:
    """Make an entry of a method from its changes to the configuration."""
    return Entry.load({"name": name, "title": name, **about, "changes": list(changes)}, "entry")


def slugify(name: str) -> str:
    """Replace the characters of a name that do not belong in the name of a folder."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")


# ---- agents -----------------------------------------------------------------------------------------------------------


def load_settings(entry: Entry, temperature: float) -> AgentSettings:
    """The settings of an entry's agent, as the suite plays it."""
    settings = AgentSettings.load(entry.agent or {}, "agent")
    if settings.harness is not None:
        raise OptionError("agents of a suite must play through the same program: leave out agent.harness")
    if settings.name == ENDPOINT:
        given = settings.decoding or Decoding(max_new_tokens=HOSTED_TOKENS)
        settings = settings.model_copy(update={"decoding": given.model_copy(update={"temperature": temperature})})
    return settings


def find_packaged(settings: AgentSettings, env: TextEnv) -> AgentSettings | None:
    """The settings of the tiny agent that comes with the package for an environment; None if there is none. The environment's
    seed is ignored, so a secret twin has the same agent."""
    if not starts_from_nothing(settings):
        return None
    wanted = {**env.options.own, "seed": 0}
    for one in list_shipped():
        note = one.note
        if note.get("env") == env.id and {**note["options"], "seed": 0} == wanted and not one.is_misled:
            given = settings.model_dump(mode="json", exclude_unset=True)
            return AgentSettings.load({**merge(note["agent"], given), "model": str(one.folder)}, "agent")
    return None
