"""Evaluating a policy: play a fixed set of tasks, record every episode, and compute intervals.

Intervals (`fedagentgym.base.statistics`) cover other tasks of the same kind and other draws of the agent, not other runs of the
training that made the agent. If nearly all replies are malformed, an evaluation warns and says why, since a success of 0 is more
often due to a wrong prompt than to a bad agent.

A run may be evaluated on several sets of tasks; a run on MATH, for example, on six test sets. Every set has the same weight in
the overall mean, whatever its number of tasks, as in the papers' averages.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.names import BASE
from fedagentgym.agents.players.endpoint import EndpointAgent
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import bytes_digest, encode
from fedagentgym.base.errors import FedAgentGymError, OptionError, UnknownNameError, require_type
from fedagentgym.base.escape import escape_terminal
from fedagentgym.base.files import write_atomic
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.base.rounding import count_things, format_fixed, format_share
from fedagentgym.base.statistics import CONFIDENCE, Estimate, Values, estimate_tasks
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, env_class, read_options
from fedagentgym.envs.protocols import count_published, find_verifier
from fedagentgym.envs.registry import find_env_id
from fedagentgym.learning.rollouts import RolloutStats, collect
from fedagentgym.learning.settings import EvaluationSet, EvaluationSettings, is_test_split
from fedagentgym.learning.trajectory import Group, Trajectory, Turn, format_line

OF_RUNS = ("every", "sets", "at_clients", "newcomers")
"""Settings that only the evaluations of a run have."""
log = get_logger(__name__)


SHARES = ("success", "score", "invalid", "format_broken")
"""Measures between 0 and 1, as are all `pass^k`."""
COUNTS = ("turns", "tokens")
"""Measures that are at least 0."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        overall: Estimates by measure (`success`, `score`, `turns`, `invalid`, `format_broken`, `tokens`, `reward/...`), each
            with `mean`, `low` and `high`.
        categories: The same for each category of tasks.
        tasks: Number of tasks.
        groups: The episodes, a tuple of `Trajectory` for each task.
        stats: How much was played, and how long it took.
    """

    overall: Mapping[str, Estimate]
    categories: Mapping[str, Mapping[str, Estimate]]
    tasks: int
    groups: tuple[Group, ...]
    stats: RolloutStats

    def __repr__(self) -> str:
        shown = [format_fixed(value, 3) for value in self.overall["success"]]
        return f"Evaluation({count_things(self.tasks, 'task')}, success {shown[0]} [{shown[1]}, {shown[2]}])"

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a result file.

        Returns:
            `tasks`, `episodes`, and the estimates `overall` and by `categories`.
        """
        return {
            "tasks": self.tasks,
            "episodes": sum(len(group) for group in self.groups),
            "overall": {name: estimate._asdict() for name, estimate in self.overall.items()},
            "categories": {
                category: {name: estimate._asdict() for name, estimate in estimates.items()}
                for category, estimates in self.categories.items()
            },
        }


@missing_explained()
def evaluate(
    agent: Player | AgentSettings | Mapping[str, Any] | str,
    env: EnvLike,
    settings: EvaluationSettings | Mapping[str, object] | None = None,
    *,
    seed: int = 0,
    file: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    **named: Any,
) -> Evaluation:
    """Let an agent play the tasks of an environment and compute its success with confidence intervals.

    Args:
        agent: An instance of a class derived from `Agent`, any other `Player`, or the name or the settings of one.
        env: The environment, opened with `split="val"` or `"test"`, whose pool holds the tasks. Given a name, the split of the
            settings is played, by default `val`, as by the command `eval`.
        settings: `EvaluationSettings`, or a mapping of them: `tasks` is the number of tasks, from the first on, `repeats` the
            number of episodes per task, `temperature` that of the sampling.
        seed: Seed of the episodes and of the agent's draws.
        file: If given, every episode is written to it as a JSON line.
        about: Fields that are added to each line.
        **named: Settings by their names: `evaluate(agent, env, tasks=50)`.

    Returns:
        The `Evaluation`: estimates overall and by category, and the episodes.

    Raises:
        OptionError: If a setting is invalid, or there are no tasks to play.

    Examples:
        >>> import gymnasium
        >>> found = evaluate("expert", gymnasium.make("fedagentgym/Guess-v0", split="val"), tasks=3)
        >>> found.overall["success"].mean
        1.0
    """
    require_type("file must be a path", file, str, Path, type(None))
    said = {**settings, **named} if isinstance(settings, Mapping) else named
    if vain := [name for name in OF_RUNS if name in said]:
        raise OptionError(f"{vain[0]} is for evaluations during a run, and does nothing here: leave it out")
    plain = settings.model_dump(exclude_unset=True) if isinstance(settings, EvaluationSettings) else settings
    plain = {} if plain is None else plain
    chosen = EvaluationSettings.load({**plain, **named} if isinstance(plain, Mapping) else plain, "evaluation")
    if isinstance(env, str):
        world = open_evaluated(env, {}, chosen)
    else:
        world = open_env(env)
        if "split" in named and world.canonical_split(chosen.split) != world.pool.split:
            raise OptionError(f"the environment is opened with the split {world.pool.split!r}: leave out split=")
    known = make_agent(agent, world)
    player = with_temperature(known, chosen.temperature)
    ids = list(world.pool.ids[: chosen.tasks] if chosen.tasks is not None else world.pool.ids)
    episodes = len(ids) * chosen.repeats
    with show_progress("evaluating", episodes, count_most_tokens(player, world, episodes)) as bar:
        rollouts = collect(
            player, world, ids, group_size=chosen.repeats, seed=seed, parallel=chosen.parallel_episodes, progress=bar
        )
    found = summarise(rollouts.groups, chosen, rollouts.stats)
    if (malformed := explain_malformed(rollouts.groups, known)) is not None:
        log.warning(malformed)
    if file is not None:
        write_atomic(file, format_episodes(found.groups, known, world, about))
    return found


def count_most_tokens(agent: Player, env: TextEnv, episodes: int) -> int | None:
    """The maximum number of tokens that a language model generates in these episodes; None for other agents."""
    model = agent.endpoint if isinstance(agent, EndpointAgent) else agent if isinstance(agent, TokenAgent) else None
    return None if model is None else episodes * env.max_turns * model.decoding.max_new_tokens


def format_episodes(
    groups: Sequence[Group], agent: Player, env: TextEnv, about: Mapping[str, Any] | None = None
) -> str:
    """Every episode as a line, with the environment, the agent and the verifier."""
    version = find_verifier(env)
    verifier = {} if version is None else {"verifier": version}
    extra = {"env": env.id, "pool": env.task_set.pool, "agent": agent.name, **verifier, **(about or {})}
    return "".join(format_line(trajectory, extra) + "\n" for group in groups for trajectory in group)


def with_temperature(agent: Player, temperature: float) -> Player:
    """The same agent for an evaluation: with another sampling temperature, and without a harness that is only for learning.
    Agents without sampling are returned unchanged."""
    if isinstance(agent, EndpointAgent):
        return agent.at_temperature(temperature)
    if not isinstance(agent, TokenAgent):
        return agent
    harness = agent.harness if agent.harness is None or agent.harness.evaluates else None
    return replace(agent, decoding=agent.decoding.model_copy(update={"temperature": temperature}), harness=harness)


def compute_policy_digest(agent: Player) -> str | None:
    """The digest of everything in which a policy can differ from the loaded model: the trained weights, and the changes of frozen
    layers. None for an agent without weights of its own."""
    policy = getattr(agent, "policy", None)
    read = getattr(policy, "get_weights", None)
    if read is None:
        return None
    changes = getattr(policy, "base_changes", {})  # policies of other engines lack this
    return bytes_digest(encode(read() | {f"{BASE}/{layer}": change for layer, change in changes.items()}))


def summarise(groups: Sequence[Group], settings: EvaluationSettings, stats: RolloutStats | None = None) -> Evaluation:
    """Means and intervals over groups, each of which holds the repeats of one task."""
    if not groups:
        raise OptionError("there are no episodes to evaluate")
    rows = [[measure_episode(trajectory) for trajectory in group] for group in groups]
    by_category: dict[str, list[list[dict[str, float]]]] = {}
    for group, row in zip(groups, rows, strict=True):
        by_category.setdefault(group[0].category, []).append(row)
    names, values = _tabulate(rows)
    within = {category: _tabulate(members) for category, members in sorted(by_category.items())}
    return Evaluation(
        overall=estimate_measures(names, [values], settings.confidence),
        categories={
            name: estimate_measures(names, [values], settings.confidence) for name, (names, values) in within.items()
        },
        tasks=len(groups),
        groups=tuple(groups),
        stats=stats or RolloutStats(),
    )


def measure_episode(trajectory: Trajectory) -> dict[str, float]:
    """The reported numbers of one episode, including those of each reward component."""
    turns = trajectory.turns
    invalid = broken = tokens = 0
    earned: dict[str, float] = {}
    for turn in turns:
        invalid += not turn.valid
        broken += not turn.format
        tokens += turn.tokens
        for name, value in turn.rewards.items():
            earned[f"reward/{name}"] = earned.get(f"reward/{name}", 0.0) + value
    return {
        "success": float(trajectory.success),
        "score": trajectory.score,
        "turns": float(len(turns)),
        "invalid": invalid / max(len(turns), 1),
        "format_broken": broken / max(len(turns), 1),
        "tokens": float(tokens),
        **earned,
    }


def tabulate_measures(groups: Sequence[Group]) -> tuple[list[str], Values]:
    """The names of the measures, and the table [task, measure] of their values. Repeats of a task are averaged."""
    return _tabulate([[measure_episode(trajectory) for trajectory in group] for group in groups])


def _tabulate(rows: Sequence[Sequence[Mapping[str, float]]]) -> tuple[list[str], Values]:
    names = list(dict.fromkeys(itertools.chain.from_iterable(episode for row in rows for episode in row)))
    numbers = [[[episode.get(name, 0.0) for name in names] for episode in row] for row in rows]
    means = [one[0] if len(one) == 1 else np.mean(one, axis=0) for one in numbers]
    return names, np.array(means, np.float64)


def is_share(name: str) -> bool:
    """Return whether a measure lies between 0 and 1."""
    return name in SHARES or name.startswith("pass^")


def estimate_measures(
    names: Sequence[str], strata: Sequence[Values], confidence: float = CONFIDENCE
) -> dict[str, Estimate]:
    """Estimate each measure, with an interval over tasks. Each of the `strata` (evaluation sets) is a table [task, measure], and
    all have equal weight. The ends of an interval stay within the range of the measure."""
    means, low, high = estimate_tasks(strata, [is_share(name) for name in names], confidence)
    counts = np.array([name in COUNTS for name in names])
    low = np.where(counts, np.maximum(low, 0.0), low)
    ends = zip(names, means, low, high, strict=True)
    return {name: Estimate(float(mean), float(below), float(above)) for name, mean, below, above in ends}


TOLERATED = 0.9
"""Share of malformed replies above which an evaluation warns."""
_SHOWN = 60


def explain_malformed(groups: Sequence[Group], agent: Player) -> str | None:
    """One sentence about malformed replies, if nearly all are malformed; None otherwise."""
    turns = [turn for group in groups for trajectory in group for turn in trajectory.turns]
    broken = [turn for turn in turns if not turn.format]
    if len(broken) <= TOLERATED * len(turns):
        return None
    reasons = [_find_reason(turn, agent) for turn in broken]
    reason, _ = Counter(reasons).most_common(1)[0]
    shown = " ".join(escape_terminal(broken[reasons.index(reason)].reply).split())
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    quoted, hint = f", such as '{shown}'" if shown else "", ""
    if isinstance(agent, TokenAgent):
        template = agent.template
        given = f"template {template.name}, think {str(template.think).lower()}, context {agent.context}"
        hint = (
            f"; was the model trained with this prompt ({given})? A folder made by `fedagentgym export` keeps its own"
        )
    return f"{format_share(len(broken) / len(turns))} of replies are malformed: most {reason}{quoted}{hint}"


def _find_reason(turn: Turn, agent: Player) -> str:
    """The likely reason why a reply is malformed, as the end of a sentence."""
    template, reply = getattr(agent, "template", None), turn.reply.lower()
    limit = agent.decoding.max_new_tokens if isinstance(agent, TokenAgent) else None
    if not reply.strip():
        return "are empty"
    if limit is not None and turn.tokens >= limit and "</action>" not in reply:
        return f"are cut off after {limit} tokens (decoding.max_new_tokens)"
    if "<action>" not in reply or "</action>" not in reply:
        return "lack <action>...</action>"
    if getattr(template, "think", False) and ("<think>" not in reply or "</think>" not in reply):
        return "lack the <think>...</think> that the prompt requires"
    if reply.count("<action>") > 1:
        return "contain more than one action"
    return "do not have the form that the parser requires"


@dataclass(frozen=True)
class OpenedSet:
    """An evaluation set with its environment and settings. If no sets are given, the run's own split is a set without a name."""

    name: str
    env: TextEnv
    options: Mapping[str, Any]
    settings: EvaluationSettings
    category: str | None = None
    """The run's category that the set evaluates, if its name differs from the set's."""
    select: bool | None = None
    """True if the set takes part in choosing the best round; None means that it does unless it is a test split."""

    @property
    def selects(self) -> bool:
        if self.select is not None:
            return self.select
        return not is_test_split(self.env, self.settings.split)

    def describe(self) -> dict[str, Any]:
        """The description of the set, for records."""
        verifier = find_verifier(self.env)
        return {
            "env": self.env.id,
            "options": self.env.options.portable,
            "split": self.settings.split,
            "pool": self.env.pool.digest,
            "task_set": self.env.task_set.digest,
            **({} if verifier is None else {"verifier": verifier}),
        }


@dataclass(frozen=True)
class SetsEvaluation:
    """The results of an evaluation for each set, by name."""

    sets: Mapping[str, Evaluation]
    overall: Mapping[str, Estimate]
    stand_for: Mapping[str, str] = field(default_factory=dict)
    """The category of the run's tasks that a set evaluates, by the set's name."""
    selecting: tuple[str, ...] = ()
    """The names of the sets by which the best round is chosen."""

    def describe_choice(self) -> dict[str, float | None]:
        """Return `choice`, the mean success on the sets that choose the best round (None without such sets); empty if all sets
        choose it."""
        if set(self.selecting) == set(self.sets):
            return {}
        means = [self.sets[name].overall["success"].mean for name in self.selecting]
        return {"choice": float(np.mean(means)) if means else None}

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a result file: `categories` has the estimates of each set, `sets` the full result of each set."""
        if list(self.sets) == [""]:
            return self.sets[""].to_plain()
        below = {name: found.to_plain() for name, found in self.sets.items()}
        return {
            "tasks": sum(plain["tasks"] for plain in below.values()),
            "episodes": sum(plain["episodes"] for plain in below.values()),
            "overall": {name: estimate._asdict() for name, estimate in self.overall.items()},
            "categories": {name: plain["overall"] for name, plain in below.items()},
            "sets": below,
        }

    def measure_categories(self) -> dict[str, float]:
        """The success in every category, over the tasks of all sets. The name of a set gives the success on the whole set, and so
        does the category that the set evaluates; sets that evaluate the same category have equal weights."""
        found: dict[str, list[float]] = {}
        for evaluation in self.sets.values():
            for group in evaluation.groups:
                solved = float(np.mean([trajectory.success for trajectory in group]))
                found.setdefault(group[0].category, []).append(solved)
        means = {category: float(np.mean(values)) for category, values in found.items()}
        whole = {name: one.overall["success"].mean for name, one in self.sets.items() if name}
        by_set = {
            category: [whole[name] for name in self.stand_for if self.stand_for[name] == category]
            for category in self.stand_for.values()
        }
        return means | whole | {category: float(np.mean(values)) for category, values in by_set.items()}


def open_evaluated(env_id: str, options: Mapping[str, Any], settings: EvaluationSettings) -> TextEnv:
    """Open the environment of an evaluation, given its id and options, with the split of the settings."""
    return open_env(env_id, **{**options, "split": settings.split})


def open_sets(settings: EvaluationSettings, env_id: str, options: Mapping[str, Any]) -> tuple[OpenedSet, ...]:
    """Open the evaluation sets of a run; `env_id` and `options` are those of the run."""
    if not settings.sets:
        return (OpenedSet("", open_evaluated(env_id, options, settings), options, settings),)
    return tuple(_open_set(one, settings, env_id, options) for one in settings.sets)


def count_evaluated(settings: EvaluationSettings, env_id: str, options: Mapping[str, Any]) -> int | None:
    """Count the episodes of one evaluation; None if the count needs data that are not on this machine. For a published data set,
    the published number of tasks counts, that of its largest form."""
    total = 0
    for one in settings.sets or (EvaluationSet(name="own", env=env_id, options=dict(options), split=settings.split),):
        found_id, found_options = _find_set_env(one, env_id, options)
        tasks = settings.tasks if one.tasks is None else one.tasks
        if tasks is None:
            cls = env_class(found_id)
            forms = count_published(cls, read_options(found_id, found_options))
            tasks = max((form.get(cls.canonical_split(one.split), 0) for form in forms), default=0)
        if not tasks:
            try:
                tasks = len(open_env(found_id, **{**found_options, "split": one.split}).pool)
            except FedAgentGymError:
                return None
        total += tasks * (settings.repeats if one.repeats is None else one.repeats)
    return total


def _find_set_env(one: EvaluationSet, env_id: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Find the environment and options of a set: those that it gives, or the installed data set of its name, or the run's own
    if it gives a split. A set that gives only a name, which is no data set's, is refused as misspelt."""
    if one.env is None and one.options is None:
        try:
            return _find_data_set(one.name)
        except UnknownNameError as error:
            if "split" not in one.model_fields_set:
                own = f"{{name: {one.name}, split: {one.split}}}"
                raise UnknownNameError(f"{error}; a set of the run's own environment names its split: {own}") from None
    found_id, given = (env_id if one.env is None else find_env_id(one.env), one.options)
    return found_id, given if given is not None else dict(options) if found_id == env_id else {}


def _open_set(one: EvaluationSet, settings: EvaluationSettings, env_id: str, options: Mapping[str, Any]) -> OpenedSet:
    where = f"the evaluation set {one.name!r}"
    try:
        found_id, found_options = _find_set_env(one, env_id, options)
        if surplus := [key for key in found_options if key in ("split", "tasks", "pool", "variant")]:
            raise OptionError(f"{surplus[0]!r} is not an option of an evaluation's environment")
        env = open_env(found_id, **found_options, split=one.split)
        if one.select and is_test_split(env, one.split):
            raise OptionError("no round is chosen by a test split: leave out select")
    except FedAgentGymError as error:
        raise type(error)(f"{where}: {error}") from None
    resolved = {
        "split": one.split,
        "tasks": settings.tasks if one.tasks is None else one.tasks,
        "repeats": settings.repeats if one.repeats is None else one.repeats,
        "temperature": settings.temperature if one.temperature is None else one.temperature,
    }
    return OpenedSet(one.name, env, found_options, settings.model_copy(update=resolved), one.category, one.select)


def _find_data_set(name: str) -> tuple[str, dict[str, Any]]:
    """The environment and options of the installed data set with this name."""
    from fedagentgym.envs.options import INSTALLED
    from fedagentgym.envs.reasoning.sources import SOURCES, find_source

    source = find_source(name)
    return find_env_id(SOURCES[source].task), {"source": source, "data": INSTALLED}


def evaluate_sets(
    agent: Player,
    sets: Sequence[OpenedSet],
    settings: EvaluationSettings,
    *,
    seed: int,
    file: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    about_set: Callable[[OpenedSet], Mapping[str, Any]] | None = None,
) -> SetsEvaluation:
    """Evaluate an agent on every set. The episodes of all sets are written to `file`; each line has the name of its set, the
    fields of `about`, and those that `about_set` returns for the set."""
    found: dict[str, Evaluation] = {}
    lines = []
    for one in sets:
        own = derive(seed, "set", one.name) if one.name else seed
        found[one.name] = evaluate(agent, one.env, one.settings, seed=own)
        of_set = {} if about_set is None else about_set(one)
        extra = {"split": one.settings.split, **(about or {}), **of_set, **({"set": one.name} if one.name else {})}
        if file is not None:
            lines.append(format_episodes(found[one.name].groups, agent, one.env, extra))
    if file is not None:
        write_atomic(file, "".join(lines))
    return combine_sets(found, sets, settings)


def combine_sets(
    found: Mapping[str, Evaluation], sets: Sequence[OpenedSet], settings: EvaluationSettings
) -> SetsEvaluation:
    """Combine the results of all sets: for each measure that all of them have, the mean over sets with its interval."""
    stand_for = {one.name: one.category for one in sets if one.category is not None}
    selecting = tuple(one.name for one in sets if one.selects)
    if len(found) == 1:
        return SetsEvaluation(found, next(iter(found.values())).overall, stand_for, selecting)
    tables = {name: tabulate_measures(evaluation.groups) for name, evaluation in found.items()}
    common = [name for name in next(iter(tables.values()))[0] if all(name in names for names, _ in tables.values())]
    strata = [values[:, [names.index(measure) for measure in common]] for names, values in tables.values()]
    return SetsEvaluation(found, estimate_measures(common, strata, settings.confidence), stand_for, selecting)
