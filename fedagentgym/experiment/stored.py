"""The configuration in a run's folder, which others may have written.

Commands that only show, count or compare use `read_stored_config`. Commands that run the configuration (`export`, `eval --run`,
`resume`) then call `StoredConfig.load`. It checks the folder's digests first. Then it refuses, unless the user allows them, the
things that only the user decides: code, agents that call servers, trackers, protections that may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.agents.foreign import check_foreign_agent, find_agents
from fedagentgym.algorithms.runtime import EnvSettings
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.files import format_path
from fedagentgym.base.imports import load_plugins
from fedagentgym.base.settings import assign
from fedagentgym.experiment.agent_file import check_foreign_envs
from fedagentgym.experiment.config import RunConfig, digest_plain, resolve_config
from fedagentgym.federation.commits import CONFIGURATION, read_chain
from fedagentgym.runs.folder import CONFIG, RunFolder

OWN_PLUGINS = ("fedagentgym.bridges.", "fedagentgym.testing.")
SAFE_TRACKERS: tuple[Mapping[str, Any], ...] = ({"name": "tensorboard"},)
"""Trackers that write only into the run's folder."""
ASK = "or pass --trust-plugins (in Python trust_plugins=True) if you trust whoever made the folder"


@dataclass(frozen=True)
class Trust:
    """The user's trust in a run's folder. `plugins` are those that the user named. With `folder`, the folder's own plugins are
    loaded too, and everything in its configuration is accepted."""

    plugins: tuple[str, ...] = ()
    folder: bool = False


NO_TRUST = Trust()


@dataclass(frozen=True)
class StoredConfig:
    """`config.yaml` of a run's folder as plain values; nothing that it names is imported before `load`."""

    place: Path
    plain: Mapping[str, Any]

    @property
    def where(self) -> str:
        return format_path(self.place / CONFIG)

    @property
    def rounds(self) -> int:
        rounds = self.plain["federation"].get("rounds")
        if not isinstance(rounds, int):
            raise DataError(f"{self.where}: federation.rounds is a whole number")
        return rounds

    def list_digests(self) -> list[str]:
        """The digest of the configuration, as a commit names it, and those that it had before the run was made longer."""
        try:
            before = self.plain["federation"].get("raised_from") or ()
            return [digest_plain(self.plain, rounds) for rounds in (self.rounds, *before)]
        except (KeyError, TypeError, AttributeError):
            raise DataError(f"{self.where} is not the configuration of a run as this version writes it") from None

    @property
    def digest(self) -> str:
        """The digest of the present configuration."""
        return self.list_digests()[0]

    @property
    def env(self) -> EnvSettings:
        return EnvSettings.load(self.plain.get("env"), "env")

    def load(self, trust: Trust, changes: Sequence[str] = ()) -> tuple[RunConfig, tuple[str, ...]]:
        """Return the run's configuration, and the plugins that its workers must load. The plugins are also loaded here.

        Nothing is imported before the folder's digests agree with each other and the user has allowed the plugins.
        """
        chain, known = read_chain(self.place), self.list_digests()
        for note in () if chain is None else chain.notes:
            if note.links.inputs.get(CONFIGURATION) not in known:
                problem = "it was played with another configuration than the present one"
                raise DataError(f"the chain of rounds is broken at round {note.round}: {problem}")
        plugins = self.choose_plugins(trust)
        load_plugins(plugins)
        plain = self.plain
        for change in changes:
            plain = assign(plain, change)
        config = resolve_config(plain)
        if not trust.folder:
            check_foreign_config(config, self.where, [change.partition("=")[0].strip() for change in changes])
        return config, plugins

    def choose_plugins(self, trust: Trust) -> tuple[str, ...]:
        """For every plugin of a run, the user's of the same name, else the run's own if it is this package's or trusted."""
        plugins = self.plain.get("plugins") or []
        if not isinstance(plugins, list) or not all(isinstance(one, str) for one in plugins):
            raise DataError(f"{self.where}: plugins are a list of modules and files")
        given, chosen = {_name_plugin(one): one for one in trust.plugins}, list[str]()
        for plugin in plugins:
            name = _name_plugin(plugin)
            if name not in given and not is_own_plugin(plugin) and not trust.folder:
                raise OptionError(
                    f"{format_path(self.place)} was made with the plugin {plugin[:200]!r}, whose code would run here: name it"
                    f" yourself (--plugin {name[:200]}, in Python plugins=), {ASK}"
                )
            chosen.append(given.get(name) or plugin)
        return tuple(chosen)


def read_stored_config(folder: Path) -> StoredConfig:
    """The configuration of a run as plain values, of which only the outer form is checked."""
    plain = RunFolder(folder).config
    RunFolder(folder).refuse_evaluation()
    if not isinstance(plain.get("federation"), Mapping):
        raise DataError(f"{format_path(folder / CONFIG)}: a configuration is a mapping of sections")
    return StoredConfig(folder, plain)


def is_own_plugin(plugin: str) -> bool:
    """True if a plugin is a module of this package that a configuration may name: it is installed with it."""
    return plugin.startswith(OWN_PLUGINS) and not plugin.endswith(".py")


def _name_plugin(plugin: str) -> str:
    """The name by which a plugin is compared: a file's name without its folder, or the module."""
    return Path(plugin).name if plugin.endswith(".py") else plugin


def needs_trust(folder: Path) -> bool:
    """Return whether the user must allow something before a folder's configuration runs: its code, or an option of it."""
    try:
        stored = read_stored_config(folder)
        stored.choose_plugins(NO_TRUST)
        check_foreign_config(resolve_config(stored.plain), stored.where)
    except FedAgentGymError:
        return True
    return False


def check_foreign_config(config: RunConfig, where: str, given: Sequence[str] = ()) -> None:
    """Refuse a configuration by others that decides what only the user of this machine may decide; `given` are the keys that the
    user set. Paths of data are allowed, since data is only read and not sent anywhere."""
    try:
        for part in (config, config.method):
            for _, agent in find_agents(part, where):
                check_foreign_agent(agent, where)
        check_foreign_envs(config.env, config.evaluation, where, paths=True)
    except DataError as error:
        raise DataError(f"{error}, {ASK}") from None
    if "output.trackers" not in given and any(one not in SAFE_TRACKERS for one in config.output.trackers):
        names = ", ".join(str(one["name"]) for one in config.output.trackers)
        raise OptionError(
            f"{where}: the trackers {names} would receive this run: name them yourself (--set output.trackers=...), {ASK}"
        )
