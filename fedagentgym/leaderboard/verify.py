"""`bench verify`: check a result, and report for each claim whether it was proven or cannot be proven.

Every episode is replayed in the verifier's own environment. This proves that the actions earn the recorded rewards, that no task
or seed is missing or repeated, and every number that is computed from the episodes. The agent that played is proven if it is a
program of this package, or if its weights are given (`models`). On the methods track these are the weights of the ranked rounds,
which play the ranked tasks and those of the curve again. Replies of other rounds are not proven, nor is the choice among rounds.
The cost of a run and the replies of a hosted model are not proven either. A method's own code comes from the submitter and is
loaded only if the verifier asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.model.pretrained import list_shipped
from fedagentgym.agents.model.store import identify_model
from fedagentgym.agents.presets import get_model, make_agent, starts_from_nothing
from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, MissingExtraError, OptionError
from fedagentgym.base.files import format_path, write_atomic
from fedagentgym.base.statistics import CONFIDENCE
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.plan import WorkPlan, plan_work
from fedagentgym.experiment.evaluation_run import TASKS_AT_A_TIME
from fedagentgym.leaderboard.entries import check_name, describe_plugins, find_packaged, load_settings, make_baseline
from fedagentgym.leaderboard.metrics import find_metric
from fedagentgym.leaderboard.play import choose_settings, make_evaluation_config
from fedagentgym.leaderboard.rank import measure_run
from fedagentgym.leaderboard.results import ENTRY, SUITE, Claim, Rerun, Result, RunKey, Verification, name_run
from fedagentgym.leaderboard.suite import (
    ADAPTER,
    FREE,
    MAX_ROUNDS,
    OpenedScenario,
    Suite,
    check_budget,
    find_definition,
    make_config,
    name_twin,
    open_scenario,
)
from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Group
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.runs.claims import (
    TOLERANCE,
    Due,
    Examined,
    Part,
    RefutedError,
    check_run,
    describe_clients,
    describe_env,
    measure_groups,
    refute,
)
from fedagentgym.runs.folder import RunFolder, format_document, publish_config
from fedagentgym.runs.record import ENDPOINT, AgentRecord, ClientSplitRecord, RunRecord, Spent, is_learner
from fedagentgym.runs.replay import find_reply_reader
from fedagentgym.version import __version__

_PART_OF_A_RUN = re.compile(r"config\.yaml|result\.json|metrics\.jsonl|evaluation/([0-9]{4,}|ranked|worlds)\.jsonl")
ABOUT = {
    "schema": "every file has this package's format",
    "digests": "every file has the digest that the list of digests gives",
    "suite": "the suite is the published one, with its tasks, divisions and verifier",
    "complete": "every scenario has every task exactly once under every seed",
    "replayed": "every episode was replayed: its actions lead to the recorded observations and rewards",
    "recomputed": "every number of the tables and curves was recomputed from the episodes",
    "configuration": "the stored configurations are those of the suite with the method's changes",
    "selection": "the ranked round is the one that the suite ranks",
    "budget": "the recorded costs of training are within the budget",
    "counted": "the recorded costs equal those of the configuration: all episodes of preparation and training, and no more",
    "replies": "the agent wrote these replies",
    "spent": "episodes, bytes and steps of training, and the privacy spent",
    "usage": "tokens and cost of the hosted model",
    "tokens": "numbers of tokens, and episodes that ended because the context was full",
    "method": "the policies are those that the method learned under that configuration",
    "about": "who submitted it, when and on which machine it was made",
}


@dataclass(frozen=True)
class Held:
    """A result with the suite against which it is checked. `plugins` are the plugins of the method that the verifier loaded."""

    result: Result
    suite: Suite
    opened: Mapping[str, OpenedScenario]
    plugins: tuple[str, ...] = ()
    configs: dict[RunKey, RunConfig] = field(default_factory=dict)
    """The checked configuration of every run of the methods track."""
    runs: dict[RunKey, Examined] = field(default_factory=dict)
    """The runs whose episodes and numbers were checked."""
    uncounted: list[RunKey] = field(default_factory=list)
    """The runs whose recorded costs may be less than their configuration takes."""

    @property
    def is_method(self) -> bool:
        return self.suite.track == "methods"

    @property
    def is_known(self) -> bool:
        """True if the method belongs to this package, or to plugins that the verifier has loaded."""
        own = [one.model_copy(update={"path": None}) for one in describe_plugins(self.plugins)]
        return list(self.result.entry.publish().plugins) == own

    def open(self, key: RunKey) -> OpenedScenario:
        """The scenario of a run in the world of its seed."""
        return self.opened[key[0]].at(key[1])


class PlayerCheck(NamedTuple):
    """The finding about the player. `about` says how it was checked. `everywhere` is true if all runs were played again and no
    number was better as recorded. `exact` is true if all episodes have the same replies and numbers of tokens."""

    about: str
    everywhere: bool
    exact: bool


def verify(
    path: Path, *, suite: Suite | None = None, models: Sequence[Path] = (), plugins: Sequence[str] = ()
) -> Verification:
    """Check a result, which is an archive or a folder of runs. `RefutedError` is raised at the first false claim.

    `suite` is the definition of a suite outside of the package. `models` are folders of the weights that are claimed to
    have played. `plugins` are plugins of the method, which must be loaded.
    """
    result = Result(path)
    archive = result.archive
    with refute("digests"):
        digest = result.digest
    with refute("schema"):
        entry, name = result.entry, result.suite.name
    with refute("configuration", "the entry's agent: "):
        if archive is not None and entry != entry.publish():
            raise RefutedError("schema", "entry.json: a published entry names no path and no secret")
    # the result is checked against the package's or the verifier's own definition, never against the submitted one
    own = find_definition(name, suite)
    if own is None:
        raise RefutedError("suite", f"{name!r} is no suite of this package: give its definition with --suite FILE")
    if result.suite.digest != own.digest or name != own.name:
        there = f"the result is of {name}, version {result.suite.version} ({result.suite.digest[:19]}...)"
        raise RefutedError("suite", f"{there}, the suite is {own.name}, version {own.version} ({own.digest[:19]}...)")
    # every scenario (on the agents track, of those that were played) under every seed
    scenarios = [one for one in own.scenarios if own.track == "methods" or one in result.scenarios] or own.scenarios
    due = [(scenario, seed) for scenario in scenarios for seed in own.seeds]
    if list(result.keys) != due:
        missing = [name_run(key) for key in due if key not in result.keys]
        absent = missing[0] if missing else "a run that belongs to no scenario and seed"
        raise RefutedError("complete", f"runs: {absent} is missing or wrong: {len(result.keys)} of {len(due)}")
    held = Held(result, own, {name: open_scenario(own, name) for name in result.scenarios}, tuple(plugins))
    _check_entry(held)
    if archive is not None:  # refuse other files in the archive, which a reader might take for checked
        for run in archive.digests.runs:
            if others := [one.name for one in run.files if not _PART_OF_A_RUN.fullmatch(one.name)]:
                raise RefutedError("digests", f"{run.name}: {others[0]} belongs to no run")
        if [one.name for one in archive.digests.documents] != [ENTRY, SUITE]:
            raise RefutedError("digests", f"the documents of a result are {ENTRY} and {SUITE}")
    check = _check_method if held.is_method else _check_agent
    for key in result.keys:
        where = f"{name_run(key)}: "
        with refute("digests", where, error=DataError), result.open_run(key) as folder:
            with refute("schema", where, below=folder.path):
                record = folder.record
            held.runs[key] = check(held, key, folder, record)
    player = check_model(held, models) if models else check_own_agent(held)
    return Verification(result=digest, version=__version__, claims=tuple(_list_claims(held, player)))


def _check_entry(held: Held) -> None:
    """Check that the entry fits its track, and that an entry marked as a baseline is the suite's baseline of that name."""
    entry, suite = held.result.entry, held.suite
    if (entry.agent is None) != held.is_method or (entry.changes and not held.is_method):
        raise RefutedError("schema", "an entry has an agent on the agents track and changes on the methods track")
    if not entry.baseline:
        if entry.stream:
            raise RefutedError("configuration", "another random stream is for a suite's control alone")
        with refute("configuration", "the entry: "):
            check_name(suite, entry)
        return
    with refute("configuration", "the entry calls itself a baseline: "):
        own = make_baseline(suite, entry.name)
    if entry.title != own.title or canonical_json(entry.identity) != canonical_json(own.identity):
        raise RefutedError("configuration", f"the entry calls itself the suite's baseline {entry.name!r}, but differs")


def compare_record(where: str, record: RunRecord, **expected: object) -> None:
    """Check fields of a record that describe the run, as opposed to its outcome."""
    for name, value in expected.items():
        if getattr(record, name) != value:
            problem = "is not what the suite and the entry give"
            raise RefutedError("configuration", f"{where}: {name!r} of the record {problem}")


# ---- agents track -----------------------------------------------------------------------------------------------------


def make_agent_due(held: Held, key: RunKey, agent: AgentRecord) -> Due:
    """The content that a run of the agents track must have."""
    opened = held.open(key)
    settings = choose_settings(opened, held.result.entry)
    config = make_evaluation_config(opened, held.result.entry, key[1])
    reader = find_reply_reader(find_packaged(settings, opened.env) or settings, agent.kind, agent)
    ranked = Part(opened.env, config.evaluation.split, opened.ids, config.evaluation.repeats, config.seed)
    return Due(settings.name, reader, ranked, config.evaluation)


def _check_agent(held: Held, key: RunKey, run: RunFolder, record: RunRecord) -> Examined:
    """Check a run of the agents track: its configuration, its agent and its episodes."""
    opened, where = held.open(key), name_run(key)
    with refute("configuration", f"{where}: "):
        settings = load_settings(held.result.entry, held.suite.ranking.temperature)
        expected = make_evaluation_config(opened, held.result.entry, key[1])
    if canonical_json(run.config) != canonical_json(expected.plain()) or record.config_digest != expected.digest:
        raise RefutedError("configuration", f"{where}: config.yaml is not what the suite and the entry's agent give")
    model, many = get_model(settings), starts_from_nothing(settings)
    kind = "hosted" if settings.name == ENDPOINT else "model" if model is not None or many else "program"
    agent = record.agent
    odd_parser = kind != "program" and (agent.parser, agent.think) != (None, False)
    if agent.kind != kind or odd_parser or agent.settings != expected.agent or record.kind != "evaluation":
        raise RefutedError("configuration", f"{where}: the agent is not that of the entry")
    if kind != "model" and (agent.weights, agent.revision) != (None, None):
        raise RefutedError("configuration", f"{where}: a {kind} agent has no weights")
    if many and agent.weights is None:
        raise RefutedError("configuration", f"{where}: a tiny agent names the weights that it played with")
    about = describe_env(opened.env)
    compare_record(where, record, name=expected.name, seed=expected.seed, env=about, algorithm=None)
    found = check_run(run, make_agent_due(held, key, agent), where)
    turns, usage = record.spent.env_steps, record.usage
    if (usage is not None) != (kind == "hosted"):
        raise RefutedError("recomputed", f"{where}: hosted models, and no other agents, have a count of requests")
    if usage is not None and usage.requests != turns:
        raise RefutedError("recomputed", f"{where}: {usage.requests} answers were counted for {turns} turns")
    if usage is not None and usage.uncounted > usage.requests:
        raise RefutedError("recomputed", f"{where}: more answers without numbers of tokens than answers")
    return found


# ---- methods track ----------------------------------------------------------------------------------------------------


def make_due(held: Held, key: RunKey, config: RunConfig) -> Due:
    """The content that a run of the methods track must have."""
    suite, opened = held.suite, held.open(key)
    env = open_env(opened.env.id, **{**opened.options, "split": suite.selection.split})
    ids, last = env.pool.ids[: suite.selection.tasks], config.federation.rounds
    assert config.evaluation is not None
    ranking = suite.get_ranking(key[0])
    ranked = Part(opened.env, ranking.split, opened.ids, ranking.repeats, derive(key[1], "ranked"))
    curve = Part(env, suite.selection.split, ids, suite.selection.repeats, derive(config.seed, "evaluation"))
    rounds = [number for number in range(last + 1) if config.evaluation.is_due(number, last)]
    reader, confidence = find_reply_reader(config.agent, "model"), config.evaluation.confidence
    return Due(config.agent.name, reader, ranked, opened.ranking, curve, rounds, opened.client_split, confidence)


def check_config(held: Held, key: RunKey, run: RunFolder, record: RunRecord) -> RunConfig:
    """Check that the configuration is the one that the suite and the method's changes give.

    If the method needs plugins that the verifier has not loaded, only the suite's part is compared.
    """
    entry, where, known = held.result.entry, name_run(key), held.is_known
    place = f"{where}: config.yaml"
    with refute("configuration", f"{place}: the method's changes cannot be applied: "):
        packed = publish_config(run.config)
        own = [one for one in entry.changes if held.suite.row_adapters and one.startswith(ADAPTER)]
        changes, plugins = (entry.changes, held.plugins) if known else (own, ())
        made = make_config(held.suite, key[0], changes, seed=key[1], plugins=plugins, stream=entry.stream)
    # plugins keep the paths of the machine that ran the method, since the digest depends on them
    named, there = packed.get("plugins"), tuple(made.plugins)
    if isinstance(named, list) and [Path(str(one)).name for one in named] == [Path(one).name for one in made.plugins]:
        there = tuple(map(str, named))
    expected = made.model_copy(update={"plugins": there})
    wanted = publish_config(expected.plain())
    for name in sorted({*wanted, *packed} if known else {*wanted, *packed}.difference(FREE, ["name"])):
        if canonical_json(packed.get(name)) != canonical_json(wanted.get(name)):
            raise RefutedError("configuration", f"{place}: {name!r} is not what the suite and the method's changes say")
    if known:
        about = {"name": expected.name, "algorithm": str(expected.algorithm["name"])}
        compare_record(where, record, **about, config_digest=expected.digest, kind="training")
    else:
        rounds = (packed.get("federation") or {}).get("rounds")
        if not isinstance(rounds, int) or not 0 <= rounds <= MAX_ROUNDS:
            raise RefutedError("configuration", f"{place}: federation.rounds is no number of rounds")
        federation = expected.federation.model_copy(update={"rounds": rounds})
        expected = expected.model_copy(update={"federation": federation})
    if not is_learner(record.agent, expected.agent):
        raise RefutedError("configuration", f"{where}: the agent of the record is not that of the suite")
    with refute("budget", f"{where}: "):
        check_budget(held.suite, expected, known=known)
    if expected.federation.rounds > MAX_ROUNDS:
        raise RefutedError("configuration", f"{place}: federation.rounds is above {MAX_ROUNDS:,}")
    return expected


def _check_method(held: Held, key: RunKey, run: RunFolder, record: RunRecord) -> Examined:
    """Check a run of the methods track: its configuration, its episodes, the choice of its round, and its costs."""
    where, opened = name_run(key), held.open(key)
    config = held.configs[key] = check_config(held, key, run, record)
    client_split = opened.client_split
    assert client_split is not None
    about = describe_env(opened.env, client_split, record.env.protections)
    split = ClientSplitRecord(digest=client_split.digest, clients=len(client_split))
    compare_record(where, record, seed=config.seed, env=about, client_split=split, evaluation_sets={}, usage=None)
    found = check_run(run, make_due(held, key, config), where)
    plan = plan_work(config) if held.is_known else None
    if (fault := _find_cost_fault(held.suite, record, config, plan, client_split)) is not None:
        raise RefutedError("budget", f"{where}: {fault}")
    # an expert answers a question only once per round, so the episodes to score may be fewer than planned
    if plan is None or any(
        spent.episodes
        < plan.count_until(spent.rounds).episodes + plan.preparation.scored * plan.card.count_preparations(spent.rounds)
        for spent in (*(point.spent for point in record.curve), record.spent)
    ):
        held.uncounted.append(key)
    return found


def _find_cost_fault(
    suite: Suite, record: RunRecord, config: RunConfig, plan: WorkPlan | None, client_split: ClientSplit
) -> str | None:
    """The fault of the recorded costs, as a sentence; None if they grow with the rounds, end where the run ends, and exceed
    neither the budget nor the costs of the configuration."""
    spent, points = record.spent, record.curve
    for before, after in pairwise((*(point.spent for point in points), spent)):
        if any(getattr(before, name) > getattr(after, name) for name in Spent.model_fields):
            return f"less is recorded as spent at round {after.rounds} than at round {before.rounds}"
    if any(point.spent.rounds != point.round for point in points) or spent.rounds != config.federation.rounds:
        return "the rounds that were spent are not those that were played"
    if points[-1].round == spent.rounds and points[-1].spent != spent:
        return "its curve ends with other numbers than its recorded costs"
    for name in ("rounds", "episodes", "bytes"):
        value, limit = getattr(spent, name), getattr(suite.budget, name)
        if limit is not None and value > limit:
            return f"{value:,} {name} were spent, the suite admits {limit:,}"
    privacy = config.algorithm.get("privacy")
    settings = privacy if isinstance(privacy, Mapping) else config.algorithm
    accounts = bool(settings.get("secret", True)) and (settings is privacy or {"epsilon", "delta"} <= set(settings))
    if record.privacy is not None and not accounts:
        return "an epsilon is written, but this method keeps nothing private, or draws its noise from the seed"
    if record.privacy is None and accounts and config.federation.rounds:
        return "the privacy that this method spends is missing"
    for number, until in enumerate((*(point.spent for point in points), spent), start=1):
        if until.looks != min(number, len(points)):
            return f"{until.looks} evaluations are recorded until round {until.rounds}, there are {number}"
        work = None if plan is None else plan.count_until(until.rounds)
        if work is not None and until.episodes > (most := work.episodes + work.scored):
            return f"{until.episodes:,} episodes are recorded until round {until.rounds}, it takes {most:,}"
        if work is not None and until.optimizer_steps > (most := work.optimizer_steps):
            return f"{until.optimizer_steps:,} optimizer steps are recorded until round {until.rounds}, of {most:,}"
    if plan is not None and record.labelled != (labelled := len(plan.card.list_labelled(client_split))):
        return f"it may use the answers of {labelled:,} tasks, not of {record.labelled}"
    return None


# ---- replies ----------------------------------------------------------------------------------------------------------

# An agent's replies follow from its weights, the prompt and the episode's random stream. Arithmetic on another machine may change
# single tokens, after which the rest of the episode differs, so a small share of a run's episodes may differ. The numbers are
# computed again with the new episodes. If a number is better as recorded, the agent is not proven to have produced the result.

PARALLEL = EvaluationSettings().parallel_episodes
MAX_DIFFERENT_SHARE = 0.02
"""Share of a run's episodes on one split that may differ when weights play on another machine; of ten or more, one always may."""
CONFIG = "config.json"
"""The file that marks a folder of weights."""
PROGRAMS = ("expert", "random")


class PlayedAgain(NamedTuple):
    """The comparison of a run's episodes on one split with a new play: how many of them are the same, and a sentence on the first
    number that is better as recorded than in the new play."""

    where: str
    same: int
    total: int
    flattered: str | None


def check_own_agent(held: Held) -> PlayerCheck | None:
    """Let a program or model of this package play again, if its dependencies are installed; for other agents return None."""
    agent, *others = [run.record.agent for run in held.runs.values()]
    name, named = agent.settings.get("name"), {one.weights for one in (agent, *others)}
    if agent.kind == "program" and name in PROGRAMS and isinstance(AGENTS.get_target(name), str):
        for key in held.runs:
            found = play_again(held, key, make_agent(agent.settings, held.open(key).env), "program")
            if found.same != found.total:
                raise RefutedError("replies", f"{name_run(key)}: {name!r} plays otherwise")
        return PlayerCheck(f"{name} played the same episodes again", True, True)
    if held.is_method or agent.kind != "model" or named == {None}:
        return None
    models = [one.folder for one in list_shipped() if identify_model(one.folder) in named]
    try:
        return check_model(held, models) if models else None
    except MissingExtraError:
        return None


def check_model(held: Held, places: Sequence[Path]) -> PlayerCheck:
    """Play again with given weights, which must be those that the result names and give the same replies.

    On the agents track they are one model, or for a tiny agent one per environment. On the methods track they are policies, and
    each run is played by the policy that it names. A folder in `places` may hold folders of weights.
    """
    first = next(iter(held.runs))
    agent = held.runs[first].record.agent
    if agent.kind != "model":
        raise RefutedError("replies", f"{agent.kind} agents have no weights that could be given")
    settings = AgentSettings.load(agent.settings, "agent")
    check_foreign_agent(settings, "the result")
    models = list[Path]()
    for place in places:
        below = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        models += [place] if (place / CONFIG).is_file() or not below else below

    def make(key: RunKey, model: Path) -> Player:
        env = held.open(key).env
        own = held.configs[key].agent if held.is_method else find_packaged(settings, env) or settings
        return make_agent(own.model_copy(update={"model": str(model)}), env)

    if held.is_method:
        known = {compute_policy_digest(make(first, model)): model for model in models}
    else:
        known = {identify_model(model): model for model in models}
        if not starts_from_nothing(settings) and len(models) != 1:
            raise OptionError("a result of the agents track was played by one model: give its folder alone")
        if not starts_from_nothing(settings) and agent.weights not in known:
            problem = f"does not hold the weights that the result names, {agent.weights}"
            raise RefutedError("replies", f"{models[0]} {problem}")
    ranked, selection = list[PlayedAgain](), list[PlayedAgain]()
    for key, run in held.runs.items():
        record = run.record
        policy = record.agent.weights if not held.is_method else None if record.ranked is None else record.ranked.policy
        if (model := known.get(policy or "")) is not None:
            player = make(key, model)
            ranked.append(play_again(held, key, player, "model"))
            selection += [play_again(held, key, player, "model", on_val=True)] if held.is_method else []
    names = ", ".join(map(str, models))
    if not ranked:
        raise RefutedError("replies", f"{names}: no run of this result was played by this policy")
    for one in (*ranked, *selection):
        if one.total - one.same > max(int(MAX_DIFFERENT_SHARE * one.total), int(one.total >= 10)):
            found = f"the same replies in {one.same} of {one.total} episodes of {one.where}: another policy played"
            raise RefutedError("replies", f"{names} gives {found}")
    played = [ranked, selection] if selection else [ranked]
    counts = [f"{sum(one.same for one in part)} of {sum(one.total for one in part)}" for part in played]
    about = f"{len(ranked)} of {len(held.runs)} runs were played again with the weights: {counts[0]} episodes are equal"
    about += f", and {counts[1]} on val in the ranked rounds" if selection else ""
    flattered = [one.flattered for one in (*ranked, *selection) if one.flattered is not None]
    about += f"; {flattered[0]}" if flattered else ""
    whole = len(ranked) == len(held.runs)
    return PlayerCheck(
        about, whole and not flattered, whole and all(one.same == one.total for one in (*ranked, *selection))
    )


def play_again(held: Held, key: RunKey, player: Player, kind: str, *, on_val: bool = False) -> PlayedAgain:
    """Play the ranked episodes of a run again, or with `on_val` those of its ranked round on the curve's split. Compare the
    replies, their numbers of tokens, and the measures."""
    run, suite, opened, env = held.runs[key], held.suite, held.open(key), held.open(key).env
    written, part, seed = run.ranked, suite.get_ranking(key[0]), derive(key[1], "ranked")
    if on_val:
        written, part, seed = run.selection, suite.selection, derive(held.configs[key].seed, "evaluation")
        env = open_env(env.id, **{**opened.options, "split": part.split})
    player = with_temperature(player, part.temperature)
    tasks = [group[0].task for group in written]
    size = len(tasks) if held.is_method else TASKS_AT_A_TIME[kind]
    again = list[Group]()
    for first in range(0, len(tasks), size):
        several = tasks[first : first + size]
        again += collect(
            player, env, several, group_size=part.repeats, seed=seed, parallel=PARALLEL, first=first
        ).groups
    pairs = [
        (one, other) for group, own in zip(written, again, strict=True) for one, other in zip(group, own, strict=True)
    ]
    same = sum(
        [(turn.reply, turn.tokens) for turn in one.turns] == [(turn.reply, turn.tokens) for turn in other.turns]
        for one, other in pairs
    )
    where = f"{name_run(key)} on val" if on_val else name_run(key)
    before, after = (_measure(held, key, tuple(groups), on_val) for groups in (written, again))
    for name, value in before.items():
        gain = after[name] - value if find_metric(name).better == "lower" else value - after[name]
        if gain > TOLERANCE:
            flattered = f"{where}: {name} is written as {value:.4g}, played again it is {after[name]:.4g}"
            return PlayedAgain(where, same, len(pairs), flattered)
    return PlayedAgain(where, same, len(pairs), None)


def _measure(held: Held, key: RunKey, groups: tuple[Group, ...], on_val: bool) -> dict[str, float]:
    """The measures of a run with these episodes: the ranked measure, success, score, and success by category; with `on_val` only
    success."""
    ranked = measure_groups(groups, None, None, CONFIDENCE)
    if on_val:
        return {"success": ranked.overall["success"]["mean"]}
    success = {name: one["success"]["mean"] for name, one in ranked.categories.items()}
    split, record = held.open(key).client_split, held.runs[key].record
    clients = () if split is None else describe_clients(split, success)
    at_clients = {} if record.ranked is None else record.ranked.at_clients
    update = {"ranked": ranked.model_copy(update={"at_clients": at_clients}), "clients": clients}
    means = measure_run(held.suite, key[0], record.model_copy(update=update), groups).means
    found = {name: means[name] for name in dict.fromkeys((held.suite.rank_by, "success", "score"))}
    return found | {f"success in {name}": value for name, value in success.items()}


# ---- claims -----------------------------------------------------------------------------------------------------------


def _list_claims(held: Held, player: PlayerCheck | None) -> list[Claim]:
    """The claims that were proven, and those that cannot be. `player` is the finding about the player, if it was checked."""
    proven = ["schema", "digests", "suite", "complete", "replayed", "recomputed"]
    unproven = ["about"]
    checked = list(held.runs.values())
    kind = checked[0].record.agent.kind
    ranked = sum(len(group) for one in checked for group in one.ranked)
    about = {"replayed": f" ({ranked:,} episodes)"}
    if held.is_method:
        rivals = sum(one.rivals for one in checked)
        chosen = sum(len(group) for one in checked for group in one.selection)
        others = sum(one.rivals * sum(map(len, one.selection)) for one in checked)
        (proven if held.is_known else unproven).append("configuration")
        best = held.suite.ranked_round == "best"
        (unproven if best and rivals else proven).append("selection")
        (unproven if held.uncounted else proven).append("counted")
        unproven += ["budget", "spent", "method"]
        about["replayed"] = f" ({ranked:,} ranked episodes, {chosen + others:,} on val)"
        rest = f"the other {rivals:,} rounds, {others:,} episodes, are compared as they are written, not played under weights"
        compared = (
            f"no other did better on val; {rest}" if rivals else f"no other round was evaluated; {chosen:,} episodes"
        )
        about["selection"] = f" ({compared if best else 'the last one'})"
    if kind == "hosted":
        unproven.append("usage")
    (proven if player is not None and player.everywhere else unproven).append("replies")
    if kind == "model":
        (proven if player is not None and player.exact else unproven).append("tokens")
    if left_out := [name for name in held.suite.scenarios if name not in held.opened]:
        about["complete"] = f" (not played: {', '.join(left_out)})"
    if player is not None:
        about["replies"] = f" ({player.about})"
    if cut_short := sum(one.cut_short for one in checked):
        about["tokens"] = f" ({cut_short:,} episodes)"
    return [
        Claim(name=name, status="proven" if name in proven else "not provable", about=ABOUT[name] + about.get(name, ""))
        for name in [*proven, *unproven]
    ]


# ---- the results of maintainers who ran an entry again ---------------------------------------------------------------


def write_verification(found: Verification, path: Path, verified: Path, rerun: Rerun | None) -> None:
    """Write the findings into the verifier's own folder. Without `rerun` an earlier rerun of the same archive is kept."""
    result = Result(path, [verified])
    if result.archive is None:
        raise OptionError(f"{format_path(path)} is a folder of runs: only archives have findings (`bench pack`)")
    before = result.verification
    rerun = rerun or (None if before is None else before.rerun)
    write_atomic(result.list_findings()[0], format_document(found.model_copy(update={"rerun": rerun})))


def describe_rerun(path: Path, again: Sequence[Path], by: str) -> Rerun:
    """The measures of the maintainers' own results (`again`) of a submitted entry. Each must be of that entry, on its suite or on
    the secret twin."""
    submitted, found = Result(path), Rerun(date="", by=by)
    for place in again:
        made = Result(place)
        same = canonical_json(submitted.entry.publish().identity) == canonical_json(made.entry.publish().identity)
        first, second = (next(iter(one.records.values())).agent.identity for one in (submitted, made))
        if not same or first != second:
            raise OptionError(
                f"{format_path(place)} was not played by the entry {submitted.name!r}, but by {made.name!r}"
            )
        if made.suite.digest == submitted.suite.digest:
            changes: dict[str, object] = {"public": made.numbers.overall}
        elif made.suite.name == name_twin(submitted.suite.name):
            changes = {"secret": made.numbers.overall, "secret_suite": made.suite.digest}
        else:
            raise OptionError(
                f"{format_path(place)} is of {made.suite.name}: neither the suite of {format_path(path)}, "
                f"{submitted.suite.name}, nor its secret twin"
            )
        date = max(record.made.date for record in made.records.values())
        found = found.model_copy(update={**changes, "date": max(found.date, date)})
    return found
