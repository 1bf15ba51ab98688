"""The settings of a run as one typed tree, and the loading of configurations.

A configuration comes from a YAML file, a preset of this package (`fedagentgym presets`), or plain data; `a.b=value`
assignments change it. `FILE:NAME,NAME` applies variants of the file, in this order. The error for an unknown key names the
nearest known one.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator

from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import find_agents
from fedagentgym.agents.presets import require_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings, SaidAgent
from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.base import get_algorithm_class
from fedagentgym.algorithms.card import Card, Scale
from fedagentgym.algorithms.runtime import EnvSettings, ExperimentSpec, PartitionSettings
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    OptionError,
    UnknownNameError,
    find_closest_name,
    join_names,
    show_value,
    unknown_name_error,
)
from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.files import parse_yaml, read_text
from fedagentgym.base.imports import check_plugins, load_plugins
from fedagentgym.base.settings import Settings, assign, expand_name, list_leaves, list_replaced, merge
from fedagentgym.envs.make import env_class
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.trackers import TRACKERS
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends import load_options
from fedagentgym.learning.recipe import complete_tiny
from fedagentgym.learning.settings import (
    EVERY_WORLD,
    OWN_WORLD,
    EvaluationSettings,
    LearningSettings,
    RankingSettings,
    WarmStartSettings,
)
from fedagentgym.partitions.division import make_sampler
from fedagentgym.runs.folder import CONFIG, RunFolder

PRESETS: Any = files("fedagentgym.experiment") / "presets"
RESUMABLE: tuple[str, ...] = (
    *(f"federation.{key}" for key in ("backend", "workers", "device_per_worker", "deadline", "quorum", "options")),
    *(f"output.{key}" for key in ("keep_rounds", "trackers", "report")),
    "learning.sharding",
)
"""Keys that may be changed when a run is resumed. They do not change the result, except that `sharding` changes its last bits."""
ROUNDS = "federation.rounds"
"""The key that may be raised when a run is resumed, if nothing in the run depends on its length."""


class OutputSettings(Settings):
    """The files that a run writes."""

    folder: str = Field(default="runs/run", min_length=1, description="the run's folder")
    keep_rounds: int = Field(default=3, ge=1, description="newest commits that are kept, besides the best one")
    sampled_episodes: int = Field(default=2, ge=0, description="training episodes that each client returns per round")
    trackers: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="trackers that receive the metrics of every round: a name such as tensorboard, or name and options",
    )
    report: Literal["html", "none"] = Field(default="html", description="write report.html at the end")

    @field_validator("trackers", mode="wrap")
    @classmethod
    def _expand_tracker_names(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> tuple[dict[str, Any], ...]:
        trackers: tuple[dict[str, Any], ...]
        trackers = handler([expand_name(one) for one in value] if isinstance(value, list | tuple) else value)
        if not all(isinstance(one.get("name"), str) for one in trackers):
            raise ValueError("each tracker is a name, or a mapping with the key 'name' and its options")
        return trackers


class RunConfig(Settings):
    """The settings of a run, one typed tree; `load_config` makes one, `train` runs it.

    `load_config` also checks what depends on several sections, and that methods, agents, samplers and splits are registered. The
    class itself checks each section alone.

    All fields are described in the reference of settings.

    Examples:
        >>> RunConfig.load({"env": {"id": "fedagentgym/Guess-v0"}, "partition": {"clients": 4}}).federation.rounds
        20
    """

    name: str = Field(default="run", pattern=r"^[\w.-]+$", description="name of the run, for files and tables")
    seed: int = Field(default=0, ge=0, description="seed of everything that is random in this run")
    env: EnvSettings = Field(description="the environment whose tasks are divided")
    partition: PartitionSettings = Field(description="which client holds which tasks")
    agent: SaidAgent = Field(default=AgentSettings(), description="the agent that plays and learns")
    warm_start: WarmStartSettings | None = Field(
        default=None,
        description="imitation of the expert before round 1; null: for a tiny agent by its environment's recipe, for others none",
    )
    learning: LearningSettings = Field(default=LearningSettings(), description="the local policy step")
    algorithm: dict[str, Any] = Field(default={"name": "fedagent"}, description="the method and its own settings")
    federation: FederationSettings = Field(
        default=FederationSettings(), description="rounds, clients, and where these run"
    )
    evaluation: EvaluationSettings | None = Field(default=EvaluationSettings(), description="how progress is evaluated")
    ranking: RankingSettings | None = Field(
        default=None, description="held-out tasks that rank the run, played once at its end; null: none"
    )
    output: OutputSettings = Field(default=OutputSettings(), description="what the run writes")
    plugins: tuple[str, ...] = Field(
        default=(), description="modules or files of your own that register environments, methods or the like"
    )

    @field_validator("algorithm", mode="before")
    @classmethod
    def _expand_algorithm_name(cls, value: Any) -> Any:
        given = expand_name(value)
        return {"name": "fedagent", **given} if isinstance(given, Mapping) else given

    @cached_property
    def method(self) -> Settings:
        """The settings of the method (`algorithm`), validated."""
        return get_algorithm_class(self.algorithm).settings_class.load(dict(self.algorithm), "algorithm")

    @cached_property
    def backend_options(self) -> dict[str, Any]:
        """`federation.options` as the backend takes them."""
        return load_options(self.federation.backend, self.federation.options)

    def describe(self, scale: Scale | None = None) -> Card:
        """Return the declarations of the method: the work of a round, the roles and the messages that it needs.

        Args:
            scale: Numbers of clients, participants and tasks; by default those of one client.

        Returns:
            The card.
        """
        return get_algorithm_class(self.algorithm).describe(self.method, scale or Scale(self.learning))

    def spec(self, agent: AgentSettings | None = None) -> ExperimentSpec:
        """Return the part of the settings that a method and its workers need.

        Args:
            agent: The agent's settings, if they were resolved further; by default those of this configuration.

        Returns:
            The spec.
        """
        evaluation = self.evaluation
        if evaluation is not None and "held_out" not in evaluation.at_clients:
            evaluation = None
        elif evaluation is not None and self.partition.is_held:  # owners do not play the server's sets
            evaluation = evaluation.model_copy(update={"sets": ()})
        return ExperimentSpec(
            seed=self.seed,
            rounds=self.federation.rounds,
            env=self.env,
            partition=self.partition,
            agent=self.agent if agent is None else agent,
            learning=self.learning,
            algorithm=self.algorithm,
            sampled_episodes=self.output.sampled_episodes,
            together=self.federation.together,
            evaluation=evaluation,
        )

    def plain(self) -> dict[str, Any]:
        """All settings, resolved, as plain values."""
        plain = self.model_dump(mode="json")
        if not self.federation.raised_from:
            plain["federation"].pop("raised_from")
        return plain

    @property
    def digest(self) -> str:
        """The digest of what is computed: everything but the name and settings that do not change the result."""
        return digest_plain(self.plain(), self.federation.rounds)


def digest_plain(plain: Mapping[str, Any], rounds: int) -> str:
    """The digest of a resolved configuration with this number of rounds."""
    kept = dict(plain)
    kept.pop("name")
    kept["output"] = {"sampled_episodes": plain["output"]["sampled_episodes"]}
    kept["federation"] = {**plain["federation"], "rounds": rounds}
    kept["federation"].pop("raised_from", None)
    for path in RESUMABLE:
        section, _, key = path.partition(".")
        kept[section] = {name: value for name, value in kept[section].items() if name != key}
    return digest(kept)


def find_decay(plain: Mapping[str, Any], where: str = "") -> str | None:
    """The key of the first schedule in `plain` that decays the learning rate over the whole run, since it sets no `steps`; else
    None. A run with such a schedule cannot be extended."""
    for key, value in plain.items():
        if not isinstance(value, Mapping):
            continue
        if key == "schedule" and value.get("name", "constant") != "constant" and value.get("steps") is None:
            return f"{where}{key}"
        if (found := find_decay(value, f"{where}{key}.")) is not None:
            return found
    return None


# ---- loading --------------------------------------------------------------------------------------------------------


def load_config(
    source: RunConfig | Mapping[str, Any] | str | Path, changes: Sequence[str] = (), plugins: Sequence[str] = ()
) -> RunConfig:
    """Load and validate a configuration without running it.

    Args:
        source: A mapping, the path of a YAML file, the name of a preset, or a `RunConfig`; `NAME:VARIANT,VARIANT` applies
            variants of the file.
        changes: Assignments such as `"federation.rounds=5"`, applied in order.
        plugins: Modules or files of your own. They and the configuration's plugins are imported first, since other settings may
            use what they register. A file given here replaces a file of the same name in the configuration.

    Returns:
        The configuration, with the settings of its method resolved.

    Raises:
        OptionError: If there is no such file or preset, or a key or value is invalid.
        DataError: If the file is no mapping.
    """
    if isinstance(source, RunConfig):
        plain: Mapping[str, Any] = source.model_dump(mode="json", exclude_unset=True)
    elif isinstance(source, Mapping):
        plain = source
    elif not isinstance(source, str | Path):
        raise OptionError(f"a configuration must be a file, a preset's name or a mapping, got {show_value(source)}")
    else:
        name, _, named = str(source).partition(":")
        found, variants, where = _parse_source(name)
        plain = copy.deepcopy(found)
        chosen = [*filter(None, named.split(","))]
        if twice := [variant for variant in chosen if chosen.count(variant) > 1]:
            raise OptionError(f"{name} names the variant {twice[0]!r} twice: once is enough")
        for variant in chosen:
            if variant not in variants or JOINT in variant:
                if variant in ALGORITHMS:
                    raise OptionError(
                        f"{where} has no variant {variant!r}, which is a method: --set algorithm={variant}"
                    )
                known = [one for one in variants if JOINT not in one]
                method = find_closest_name(variant, ALGORITHMS.names())
                if method is not None and find_closest_name(variant, known) is None:
                    hint = f"did you mean the method {method!r}: --set algorithm={method}?"
                    raise UnknownNameError(f"unknown variant of {where} {variant!r}: {hint}")
                raise unknown_name_error(f"variant of {where}", variant, known)
        plain = _lay_variants(plain, variants, chosen)
        lost = _find_lost(found, variants, chosen)
        if lost is not None and (order := _find_better_order(lost, found, variants, chosen)) is not None:
            problem = f"the variant {lost.later!r} replaces {lost.key} of {lost.earlier!r}"
            raise OptionError(f"{where}: {problem}: name them in the order {order}")
        if named and "folder" in (found.get("output") or {}):
            plain = merge(plain, {"output": {"folder": f"{found['output']['folder']}-{named.replace(',', '-')}"}})
    check_plugins(plugins)
    if isinstance(changes, str):
        raise OptionError(f"changes must be a list of assignments, such as [{changes[:80]!r}], not a text")
    for change in changes:
        plain = assign(plain, change)
    beside = _find_folder(source) if isinstance(source, str | Path) else None
    own = plain.get("plugins")  # anything but a list of texts is reported when the configuration is validated
    if isinstance(own, list | tuple):
        given = {Path(plugin).name: plugin for plugin in plugins if plugin.endswith(".py")}
        own = [_find_plugin(plugin, given, beside) if isinstance(plugin, str) else plugin for plugin in own]
        plain = {**plain, "plugins": own}
        load_plugins([plugin for plugin in own if isinstance(plugin, str)])
    load_plugins(plugins)
    if beside is not None:
        plain = _find_data(plain, beside)
    try:
        return resolve_config(plain, plugins)
    except OptionError as error:
        if isinstance(source, str) and (companion := _find_companion(source, changes)) is not None:
            raise OptionError(f"{error}; this variant changes what another one sets: {companion}") from None
        raise


def _lay_variants(
    plain: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]
) -> dict[str, Any]:
    """A configuration with the chosen variants applied in order, and then the joint settings (`A+B`) of chosen variants."""
    laid = dict(plain)
    for variant in chosen:
        laid = merge(laid, variants[variant])
    for names, settings in variants.items():
        if JOINT in names and set(names.split(JOINT)) <= set(chosen):
            laid = merge(laid, settings)
    return laid


class _Lost(NamedTuple):
    """A key that a variant set, in a section that a later one replaces."""

    key: str
    earlier: str
    later: str


def _find_lost(
    plain: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]
) -> _Lost | None:
    """The first value of a variant that is gone since a later one replaces its section; None if all are kept."""
    after, laid = dict(list_leaves(_lay_variants(plain, variants, chosen))), plain
    for number, later in enumerate(chosen):
        replaced = tuple(f"{section}." for section in list_replaced(laid, variants[later]))
        for earlier in chosen[:number] if replaced else ():
            for key, value in list_leaves(variants[earlier]):
                if key.startswith(replaced) and after.get(key, key) != value:
                    return _Lost(key, earlier, later)
        laid = merge(laid, variants[later])
    return None


def _find_better_order(
    lost: _Lost, plain: Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]
) -> str | None:
    """The chosen variants in an order that loses no value; None if there is none, or its configuration is invalid."""
    turned = [one for one in chosen if one != lost.later]
    turned.insert(turned.index(lost.earlier), lost.later)
    if _find_lost(plain, variants, turned) is not None:
        return None
    with contextlib.suppress(OptionError):
        load_config(_lay_variants(plain, variants, turned))
        return ",".join(turned)
    return None


def _find_folder(source: str | Path) -> Path | None:
    """The folder of a configuration's file, in which relative paths are looked up after the current folder. None for a run's
    folder: another user may have made it, and its files are not to be run as code."""
    file = Path(str(source).partition(":")[0])
    return file.parent if file.name != CONFIG and os.path.isfile(file) else None  # noqa: PTH113 - as in _parse_source


def _find_plugin(plugin: str, given: Mapping[str, str], beside: Path | None) -> str:
    """The file of a listed plugin: the given file of this name, else the one in the current folder or beside the YAML file."""
    if not plugin.endswith(".py"):
        return plugin
    return given.get(Path(plugin).name) or _look_beside(plugin, beside)


def _look_beside(path: str, beside: Path | None) -> str:
    if beside is None or os.path.exists(path) or not os.path.exists(beside / path):  # noqa: PTH110 - False for a name too long
        return path
    return str(beside / path)


def _find_data(plain: Mapping[str, Any], beside: Path) -> Mapping[str, Any]:
    """The configuration with the relative paths of the environment's data looked up beside its file."""
    env = plain.get("env")
    options = env.get("options") if isinstance(env, Mapping) else None
    if not isinstance(env, Mapping) or not isinstance(options, Mapping):
        return plain
    try:
        marks = env_class(find_env_id(env.get("id"))).Options.get_marks()
    except FedAgentGymError:
        return plain  # the validation reports what is wrong with it
    found = {
        name: _look_beside(value, beside) if marks.get(name) == "local" and isinstance(value, str) else value
        for name, value in options.items()
    }
    return plain if found == options else {**plain, "env": {**env, "options": found}}


def _find_companion(source: str, changes: Sequence[str]) -> str | None:
    """The first `NAME:OTHER,VARIANT` that loads, for a `source` NAME:VARIANT that does not; None if there is none."""
    name, _, variant = source.partition(":")
    if not variant or "," in variant:
        return None
    for other in list_variants(name):
        with contextlib.suppress(FedAgentGymError):
            load_config(f"{name}:{other},{variant}", changes)
            return f"{name}:{other},{variant}"
    return None


def resolve_config(plain: Mapping[str, Any], plugins: Sequence[str] = ()) -> RunConfig:
    """The configuration of plain values; the plugins that it needs must be loaded."""
    config = RunConfig.load(plain)
    added = tuple(plugin for plugin in plugins if plugin not in config.plugins)
    resolved = config.model_copy(
        update={"algorithm": config.method.model_dump(mode="json"), "plugins": (*config.plugins, *added)}
    )
    harness, output = resolved.agent.harness, resolved.output
    if harness is not None and harness.world == "own" and "sampled_episodes" not in output.model_fields_set:
        # no task, prompt or reply of a program's own world leaves a site unless it is asked for
        resolved = resolved.model_copy(update={"output": output.model_copy(update={"sampled_episodes": 0})})
    _check_config(resolved)
    agent, warm_start = resolved.agent, resolved.warm_start
    if starts_from_nothing(agent):  # it plays by the recipe of its environment
        return resolved.model_copy(update={"agent": complete_tiny(agent, resolved.env.id, warm_start)})
    if warm_start is None:
        return resolved
    # its defaults are for a tiny model made from scratch
    return resolved.model_copy(update={"warm_start": warm_start.for_pretrained(agent.adapter is not None)})


JOINT = "+"
"""`A+B` among the variants: changes that apply only where A and B are both named."""


def _parse_source(name: str) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]], str]:
    """The configuration of a file or preset, its variants, and how messages name it."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):  # noqa: PTH113 - False for a name too long, where Path raises
        text, where = read_text(path), str(path)
    elif name in list_presets():
        text, where = read_preset(name), f"preset {name}"
    elif (path / "config.yaml").is_file():
        again = add_plugins(f"fedagentgym resume {quote_word(name)}", RunFolder(Path(name)).plugins)
        raise OptionError(f"{name} is the folder of a run: resume it with `{again}`")
    else:
        guess = find_closest_name(name, list_presets())
        hint = f"did you mean {guess!r}?" if guess else f"presets are {join_names(list_presets(), 40)}"
        if name in ALGORITHMS:
            hint = f"it is a method: fedagentgym train PRESET --set algorithm={quote_word(name)}"
        raise OptionError(f"there is no file and no preset {name!r}: {hint}")
    plain = _parse_yaml(text, where)
    if not isinstance(plain, Mapping):
        raise DataError(f"{where}: a configuration is a mapping of sections, found {type(plain).__name__}")
    variants = plain.get("variants") or {}
    if not isinstance(variants, Mapping) or not all(isinstance(each, Mapping) for each in variants.values()):
        raise DataError(
            f"{where}: variants maps each name to settings, such as {{long: {{federation: {{rounds: 99}}}}}}"
        )
    found = {key: value for key, value in plain.items() if key != "variants"}
    return found, {str(variant): settings for variant, settings in variants.items()}, where


_parse_yaml = lru_cache(maxsize=64)(parse_yaml)
"""Cached, since parsing takes most of the time of loading a preset. Its result must be copied before it is changed."""


def list_variants(source: str, *, joint: bool = False) -> dict[str, Mapping[str, Any]]:
    """The variants that a file or preset offers, with the settings that each changes; with `joint` also the joint settings of
    variants (`A+B`)."""
    return {name: settings for name, settings in _parse_source(source)[1].items() if joint or JOINT not in name}


def _check_config(config: RunConfig) -> None:
    """Checks that involve several sections."""
    _check_names(config)
    _ = config.backend_options  # refuses invalid options
    for tracker in config.output.trackers:
        TRACKERS.get_target(tracker["name"])  # an unknown name is refused before a folder is made
    if config.partition.clients is not None:
        check_participants(config, config.partition.clients)
    alone = config.federation.backend == "in-process" and config.federation.workers <= 1
    if config.agent.threads == "auto" and not alone:
        raise OptionError(
            "agent.threads: auto gives one process all cores: with several workers, or another backend, set a number"
        )
    _check_sharding(config)
    _check_together(config)
    if config.agent.rollouts == "vllm-server" and config.agent.adapter is None:
        raise OptionError("agent.rollouts=vllm-server plays with adapters: set agent.adapter, or agent.rollouts=vllm")
    _check_harness(config)
    if config.learning.advantage.uses_values:
        config.describe().check_values(str(config.algorithm["name"]), config.learning)
    evaluation, ranking = config.evaluation, config.ranking
    at_clients = () if evaluation is None else evaluation.at_clients
    if config.partition.is_held:
        from fedagentgym.algorithms.held import check_method

        check_method(config.describe(), str(config.algorithm["name"]))
        if at_clients and _is_secret(config):
            raise OptionError(
                "evaluation.at_clients records what clients find on their own tasks, without noise: a private run leaves it out"
            )
    elif "held_out" in at_clients and not config.describe().trains_local_models:
        raise OptionError(
            f"evaluation.at_clients: [held_out] evaluates models that clients train, but {config.algorithm['name']} trains none:"
            " leave it out"
        )
    if {OWN_WORLD, EVERY_WORLD} & set(at_clients):
        _check_worlds(config, "evaluation.at_clients: own_world and every_world play")
    if ranking is not None and ranking.own_worlds:
        _check_worlds(config, "ranking.own_worlds plays")
    if ranking is not None and ranking.round != "last":
        # refuse a round that nothing chooses, or that the ranking tasks themselves choose
        if evaluation is None:
            raise OptionError("ranking.round: best is chosen by evaluations: set evaluation, or ranking.round: last")
        if ranking.own_worlds:
            raise OptionError(
                "ranking.own_worlds plays with the clients' states, which are kept of the last round: leave out best"
            )
        if _name_splits(config, ranking.split) & {
            name
            for split, env in [(one.split, one.env) for one in evaluation.sets] or [(evaluation.split, None)]
            for name in _name_splits(config, split, env)
        }:
            raise OptionError(
                "the split that ranks cannot be the one on which the round is chosen: set another ranking.split"
            )
    if config.warm_start is not None and not starts_from_nothing(config.agent):
        require_model(config.agent)


def _check_names(config: RunConfig) -> None:
    """Refuse agents, samplers with their parameters, and splits that do not exist; nothing heavy is imported for it."""
    for _, agent in (*find_agents(config, ""), *find_agents(config.method, "algorithm")):
        AGENTS.get_target(agent.name)
    partition, evaluation, ranking = config.partition, config.evaluation, config.ranking
    if partition.file is None and not partition.is_held:
        make_sampler(partition.sampler, partition.model_extra or {})
    splits = {"env.split": config.env.split}
    if evaluation is not None and not evaluation.sets:
        splits["evaluation.split"] = evaluation.split
    if ranking is not None:
        splits["ranking.split"] = ranking.split
    for key, split in splits.items():
        try:
            env_class(config.env.id).canonical_split(split)
        except UnknownNameError as error:
            raise UnknownNameError(f"{key}: {error}") from None


def _name_splits(config: RunConfig, split: str, env: str | None = None) -> set[str]:
    """A split as it was named, and its own name in the environment, since several names mean the same split."""
    with contextlib.suppress(UnknownNameError):
        return {split, env_class(config.env.id if env is None else find_env_id(env)).canonical_split(split)}
    return {split}


def _is_secret(config: RunConfig) -> bool:
    """True if the run is private: the clients' results leave them only with noise."""
    return bool((config.algorithm.get("privacy") or {"secret": False}).get("secret", True))


def _check_worlds(config: RunConfig, subject: str) -> None:
    """Refuse to play in the clients' variants, or with the clients' states, in a run in which the server must not have these."""
    name = config.algorithm["name"]
    if config.partition.is_held:
        raise OptionError(
            f"{subject} in the clients' variants of the environment, which are on their machines in this run: evaluate held_out"
        )
    keeps_policies = config.describe().keeps_policies
    if keeps_policies and config.federation.backend == "flower":
        raise OptionError(
            f"{subject} with what clients keep, which stays on their machines in a deployment: with {name} evaluate held_out, or"
            " simulate"
        )
    if keeps_policies and _is_secret(config):
        raise OptionError(
            f"{subject} with what clients keep, which has no noise: a private run of {name} leaves them out"
        )


def check_participants(config: RunConfig, clients: int) -> None:
    """Refuse rounds of more clients than there are."""
    per_round = config.federation.clients_per_round
    if per_round is not None and per_round > clients:
        raise OptionError(f"federation.clients_per_round is {per_round}, but there are {clients} clients")


OFFLOAD_ON_CPU = "learning.sharding.offload keeps weights out of a GPU's memory: leave it out on a CPU"


def _check_sharding(config: RunConfig) -> None:
    """Check the settings for several devices: they need clients in this process and its ranks, with torch for rollouts."""
    sharding = config.learning.sharding
    if sharding is None or not sharding.is_needed:
        return
    if config.federation.backend != "in-process":
        raise OptionError(
            f"learning.sharding is for federation.backend=in-process, not for {config.federation.backend}"
        )
    if config.federation.workers > 0:
        raise OptionError("learning.sharding is for clients in this process and its ranks: set federation.workers=0")
    if config.federation.deadline is not None:
        raise OptionError("learning.sharding: each rank would time a deadline by itself, leave out federation.deadline")
    if ":" in config.agent.device:
        raise OptionError(
            f"learning.sharding gives each rank a GPU of its own: agent.device=cuda, not {config.agent.device}"
        )
    if sharding.offload and config.agent.device == "cpu":
        raise OptionError(OFFLOAD_ON_CPU)
    if config.agent.rollouts != "torch" or config.agent.name == "vllm":
        raise OptionError(
            "learning.sharding needs rollouts with torch, for which it gathers the weights: set agent.rollouts=torch or leave"
            " it out"
        )


def _check_together(config: RunConfig) -> None:
    """Check the settings of a run whose clients roll out in one batch."""
    federation, agent, sharding = config.federation, config.agent, config.learning.sharding
    if federation.together is None:
        return
    reasons = {
        "clients in this process: leave out federation.backend": federation.backend != "in-process",
        "clients in this process: leave out federation.workers": federation.workers > 0,
        "clients that train adapters on one frozen model: set agent.adapter": agent.adapter is None,
        "models on one device: leave out learning.sharding": sharding is not None and sharding.is_needed,
        "our own player: leave out agent.harness": agent.harness is not None,
        "our own forward pass or vLLM: leave out agent.forward": agent.forward == "hf",
    }
    refused = next((reason for reason, applies in reasons.items() if applies), None)
    if refused is not None:
        raise OptionError(f"federation.together is for {refused}")


def _check_harness(config: RunConfig) -> None:
    """Check the settings of a run in which a program plays."""
    harness, learning = config.agent.harness, config.learning
    if harness is None:
        return
    if learning.advantage.name == "gigpo":
        raise OptionError(
            "learning.advantage: gigpo compares equal observations, and a program has turns without observations: name another"
        )
    if learning.sharding is not None and learning.sharding.is_needed:
        raise OptionError("agent.harness is for clients in a process of their own: leave out learning.sharding")
    if config.agent.decoding is not None and config.agent.decoding.constrained:
        raise OptionError("agent.decoding.constrained: what a program asks for is not constrained: leave it out")
    deployed = config.federation.backend == "flower"
    if deployed and harness.command:
        raise OptionError(
            "agent.harness.command runs a program, which only the owner of a node chooses: set agent.harness={name: owner},"
            " and name the program in --node-config harness"
        )
    if deployed and harness.evaluate and (config.evaluation is not None or config.ranking is not None):
        raise OptionError(
            "the server evaluates, and only nodes have a program: set agent.harness.evaluate=false, so that our own player"
            " plays there"
        )
    if not deployed and not harness.command:
        raise OptionError("agent.harness names no program: set agent.harness.command")
    count = config.partition.clients
    if unknown := [client for client in harness.clients if client < 0 or (count is not None and client >= count)]:
        raise OptionError(f"agent.harness.clients: there is no client {unknown[0]}")


def list_presets() -> tuple[str, ...]:
    """The configurations that come with the package."""
    return tuple(
        sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))
    )


def read_preset(name: str) -> str:
    """The YAML of a preset, comments included."""
    return str((PRESETS / f"{name}.yaml").read_text("utf-8"))


def read_head(source: str) -> str:
    """The comment at the head of a preset or file, which describes it."""
    name = source.partition(":")[0]
    text = read_preset(name) if name in list_presets() else read_text(Path(name))
    lines = text.splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
