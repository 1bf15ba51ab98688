"""`bench verify`: checks a result, and reports for each claim whether it was proven or cannot be.

Proven is what follows from the episodes, since each is replayed in the verifier's own environment: that these actions earn these
rewards, that no task or seed is missing or repeated, and every number computed from them. Which agent played is proven if it is a
program of this package, or if its weights are available (`models`): on the methods track those of the ranked rounds, on the tasks
that rank and on the curve's. What other rounds did is as the submitter wrote it, so that the choice among them is not proven. Nor
are the cost of a run, and hosted models. A method's own code is loaded only on the verifier's request, since it comes from the
submitter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.algorithms.base import count_labelled
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.files import format_path, write_atomic
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.plan import WorkPlan, plan_work
from fedagentgym.leaderboard.entries import load_settings, make_baseline
from fedagentgym.leaderboard.held import (
    CheckedRun,
    Held,
    Spoken,
    check_config,
    compare_record,
    make_agent_due,
    make_due,
)
from fedagentgym.leaderboard.play import make_evaluation_config
from fedagentgym.leaderboard.players import check_model, check_packaged, check_program, find_models
from fedagentgym.leaderboard.results import ENTRY, SUITE, Claim, Rerun, Result, RunKey, Verification, name_run
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite, name_twin, open_scenario
from fedagentgym.runs.claims import RefutedError, check_run
from fedagentgym.runs.folder import RunFolder, format_document
from fedagentgym.runs.record import ENDPOINT, EnvRecord, RunRecord, Spent, SplitRecord
from fedagentgym.version import __version__

_PART_OF_A_RUN = re.compile(r"config\.yaml|result\.json|metrics\.jsonl|evaluation/([0-9]{4,}|ranked|worlds)\.jsonl")
ABOUT = {
    "schema": "every file is written as this package writes it",
    "digests": "the files are those that the list of digests names",
    "suite": "the suite is the published one, with its tasks, divisions and verifier",
    "complete": "every task of every scenario is there under every seed, once",
    "replayed": "every episode was played again: these actions are answered so, and earn these rewards",
    "recomputed": "every number of the tables and curves follows from the episodes as they are written",
    "configuration": "the configurations beside the result are those that the suite and the method's changes give",
    "selection": "the ranked round is the one that the suite ranks",
    "budget": "training stayed within the budget, by its recorded costs",
    "counted": "the recorded costs are those that the configuration takes: all episodes to prepare and to learn, and no more",
    "who-spoke": "the agent wrote these replies",
    "spent": "episodes, bytes and steps of training, and the privacy spent",
    "usage": "tokens and cost of the hosted model",
    "tokens": "numbers of tokens, and episodes that ended for want of room",
    "method": "the policies are what the method learned, under that configuration",
    "about": "who submitted it, when and on which machine it was made",
}


def verify(
    path: Path, *, suite: Suite | None = None, models: Sequence[Path] = (), plugins: Sequence[str] = ()
) -> Verification:
    """Check a result, an archive or a folder of runs; raises `RefutedError` at the first false claim.

    `suite` is the definition of a suite outside of the package. `models` are folders of the weights that are claimed to
    have played, `plugins` the already loaded code of the method.
    """
    result = Result(path)
    digest = _open(result)
    own = _check_suite(result, suite)
    due = _list_due(result, own)
    if list(result.keys) != due:
        odd = next(
            (name_run(key) for key in due if key not in result.keys), "a run that belongs to no scenario and seed"
        )
        raise RefutedError("complete", f"runs: {odd} is missing or wrong: {len(result.keys)} of {len(due)}")
    opened = {name: open_scenario(own, name) for name in result.scenarios}
    held = Held(result, own, opened, tuple(plugins))
    _check_entry(held)
    _check_names(result)
    checked = []
    for key in result.keys:
        try:
            with result.open_run(key) as run:
                checked.append(_check_method(held, key, run) if held.is_method else _check_agent(held, key, run))
        except RefutedError:
            raise
        except DataError as error:
            raise RefutedError("digests", f"{name_run(key)}: {error}") from None
    spoke = (
        check_model(held, checked, find_models(models))
        if models
        else check_program(held, checked) or check_packaged(held, checked)
    )
    return Verification(result=digest, version=__version__, claims=tuple(_list_claims(held, checked, spoke)))


def _open(result: Result) -> str:
    """The digest of a result whose documents can be read; of a folder that of its entry, which no verification is kept for."""
    try:
        digest = result.archive.digest if result.archive is not None else "sha256:" + 64 * "0"
    except DataError as error:
        raise RefutedError("digests", str(error)) from None
    try:
        entry, _ = result.entry, result.suite
    except FedAgentGymError as error:
        raise RefutedError("schema", str(error)) from None
    try:
        if result.archive is not None and entry != entry.publish():
            raise RefutedError("schema", "entry.json: a published entry names no path and no secret")
    except OptionError as error:
        raise RefutedError("configuration", f"the entry's agent: {error}") from None
    return digest


def _check_suite(result: Result, own: Suite | None) -> Suite:
    """The definition to check against: the package's, or the verifier's own; never the submitted one."""
    name = result.suite.name
    if own is None and name not in list_suites():
        raise RefutedError("suite", f"{name!r} is no suite of this package: give its definition with --suite FILE")
    suite = load_suite(name) if own is None else own
    if result.suite.digest != suite.digest or result.suite.name != suite.name:
        raise RefutedError(
            "suite",
            f"the result is of {name}, version {result.suite.version} ({result.suite.digest[:19]}...), the suite is"
            f" {suite.name}, version {suite.version} ({suite.digest[:19]}...)",
        )
    return suite


def _check_names(result: Result) -> None:
    """An archive holds the files of runs, and nothing besides, that a reader might take for checked."""
    for run in () if result.archive is None else result.archive.digests.runs:
        odd = [one.name for one in run.files if not _PART_OF_A_RUN.fullmatch(one.name)]
        if odd:
            raise RefutedError("digests", f"{run.name}: {odd[0]} belongs to no run")
    if result.archive is not None and [one.name for one in result.archive.digests.documents] != [ENTRY, SUITE]:
        raise RefutedError("digests", f"the documents of a result are {ENTRY} and {SUITE}")


def _list_due(result: Result, suite: Suite) -> list[RunKey]:
    """Every scenario under every seed; on the agents track of the scenarios that were played."""
    played = [name for name in suite.scenarios if suite.track == "methods" or name in result.scenarios]
    return [(scenario, seed) for scenario in played or suite.scenarios for seed in suite.seeds]


def _check_entry(held: Held) -> None:
    """The entry's identity: an agent or a method, and a baseline only if it is one."""
    entry, suite = held.result.entry, held.suite
    if (entry.agent is None) != held.is_method or (entry.changes and not held.is_method):
        raise RefutedError("schema", "an entry has an agent on the agents track and changes on the methods track")
    if not entry.baseline:
        if entry.stream:
            raise RefutedError("configuration", "another random stream is for a suite's control alone")
        return
    try:
        own = make_baseline(suite, entry.name)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"the entry calls itself a baseline: {error}") from None
    if entry.title != own.title or canonical_json(entry.identity) != canonical_json(own.identity):
        raise RefutedError("configuration", f"the entry is not the suite's baseline {entry.name!r}, as it calls itself")


# ---- agents track -----------------------------------------------------------------------------------------------------


def _check_agent(held: Held, key: RunKey, run: RunFolder) -> CheckedRun:
    """A run of the agents track: its configuration, its agent and its episodes."""
    opened, where = held.open(key), name_run(key)
    record = _read_record(run, where)
    try:
        settings = load_settings(held.result.entry, held.suite.ranking.temperature)
        expected = make_evaluation_config(opened, held.result.entry, key[1])
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"{where}: {error}") from None
    if canonical_json(run.config) != canonical_json(expected.plain()) or record.config_digest != expected.digest:
        raise RefutedError("configuration", f"{where}: config.yaml is not what the suite and the entry's agent give")
    model, many = get_model(settings), starts_from_nothing(settings)
    kind = "hosted" if settings.name == ENDPOINT else "model" if model is not None or many else "program"
    agent = record.agent
    if agent.kind != kind or agent.settings != expected.agent or record.kind != "evaluation":
        raise RefutedError("configuration", f"{where}: the agent is not that of the entry")
    if kind != "model" and (agent.weights, agent.revision) != (None, None):
        raise RefutedError("configuration", f"{where}: a {kind} agent has no weights")
    if many and agent.weights is None:
        raise RefutedError("configuration", f"{where}: a tiny agent names the weights that it played with")
    env = opened.env
    options = type(env).portable_options(opened.options)
    about = EnvRecord(
        id=env.id,
        options=options,
        pool=env.pool.digest,
        task_set=env.task_set.digest,
        verifier=env.get_verifier_version(),
    )
    compare_record(where, record, {"name": expected.name, "seed": expected.seed, "env": about, "algorithm": None})
    found = check_run(run, make_agent_due(held, key, kind), where)
    turns, usage = record.spent.env_steps, record.usage
    odd = None
    if (usage is not None) != (kind == "hosted"):
        odd = "only a hosted model has a count of requests, and every one has"
    elif usage is not None and usage.requests != turns:
        odd = f"{usage.requests} answers were counted for {turns} turns"
    elif usage is not None and usage.uncounted > usage.requests:
        odd = "more answers without numbers of tokens than answers"
    if odd is not None:
        raise RefutedError("recomputed", f"{where}: {odd}")
    return CheckedRun(key, found)


def _read_record(run: RunFolder, where: str) -> RunRecord:
    try:
        return run.record
    except DataError as error:
        raise RefutedError("schema", f"{where}: {error}".replace(f"{run.path}/", "")) from None


# ---- methods track ----------------------------------------------------------------------------------------------------


def _check_method(held: Held, key: RunKey, run: RunFolder) -> CheckedRun:
    """A run of the methods track: its configuration, its episodes, the choice of its round, and its costs."""
    where, opened = name_run(key), held.open(key)
    record = _read_record(run, where)
    config = held.configs[key] = check_config(held, key, run, record)
    suite, client_split = held.suite, opened.client_split
    assert client_split is not None
    about = EnvRecord(
        id=opened.env.id,
        options=type(opened.env).portable_options(client_split.options),
        pool=client_split.pool.digest,
        task_set=client_split.task_set.digest,
        verifier=opened.env.get_verifier_version(),
        protections=record.env.protections,
    )
    split = SplitRecord(digest=client_split.digest, clients=len(client_split))
    compare_record(
        where, record, {"seed": config.seed, "env": about, "client_split": split, "evaluation_sets": {}, "usage": None}
    )
    found = check_run(run, make_due(held, key, config), where)
    plan = plan_work(config) if held.is_known else None
    labelled = None if plan is None else count_labelled(config.algorithm, client_split)
    if (odd := _find_odd_cost(suite, record, config) or _find_odd_work(plan, record, labelled)) is not None:
        raise RefutedError("budget", f"{where}: {odd}")
    # an expert that is asked a question twice in a round answers it once, so fewer may be played to score
    is_counted = plan is not None and all(
        spent.episodes
        >= plan.count_until(spent.rounds).episodes + plan.preparation.scored * plan.count_preparations(spent.rounds)
        for spent in _list_spent(record)
    )
    return CheckedRun(key, found, is_counted)


def _list_spent(record: RunRecord) -> list[Spent]:
    """The recorded costs up to every evaluated round, and in all."""
    return [*(point.spent for point in record.curve), record.spent]


def _find_odd_work(plan: WorkPlan | None, record: RunRecord, labelled: int | None) -> str | None:
    """A sentence if the recorded costs exceed what the configuration takes, or other counts that follow from it are wrong."""
    for number, spent in enumerate(_list_spent(record), start=1):
        if spent.looks != min(number, len(record.curve)):
            return f"{spent.looks} evaluations are recorded until round {spent.rounds}, there are {number}"
        work = None if plan is None else plan.count_until(spent.rounds)
        if work is not None and spent.episodes > (most := work.episodes + work.scored):
            return f"{spent.episodes:,} episodes are recorded until round {spent.rounds}, it takes {most:,}"
        if work is not None and spent.optimizer_steps > (most := work.optimizer_steps):
            return f"{spent.optimizer_steps:,} optimizer steps are recorded until round {spent.rounds}, of {most:,}"
    if labelled is not None and record.labelled != labelled:
        return f"it may use the answers of {labelled:,} tasks, not of {record.labelled}"
    return None


def _find_odd_cost(suite: Suite, record: RunRecord, config: RunConfig) -> str | None:
    """A sentence if the costs do not grow, do not end where the run ends, or exceed the budget."""
    spent, points = record.spent, record.curve
    for before, after in pairwise(_list_spent(record)):
        if any(getattr(before, name) > getattr(after, name) for name in Spent.model_fields):
            return f"less is recorded as spent at round {after.rounds} than at round {before.rounds}"
    if any(point.spent.rounds != point.round for point in points) or spent.rounds != config.federation.rounds:
        return "the rounds that were spent are not those that were played"
    if points[-1].round == spent.rounds and points[-1].spent != spent:
        return "its curve ends with other numbers than its recorded costs"
    taken = {"rounds": spent.rounds, "episodes": spent.episodes, "bytes": spent.bytes}
    for name, value in taken.items():
        most = getattr(suite.budget, name)
        if most is not None and value > most:
            return f"{value:,} {name} were spent, the suite admits {most:,}"
    privacy = config.algorithm.get("privacy")
    settings = privacy if isinstance(privacy, Mapping) else config.algorithm
    accounts = bool(settings.get("secret", True)) and (settings is privacy or {"epsilon", "delta"} <= set(settings))
    if record.privacy is not None and not accounts:
        return "an epsilon is written, but this method keeps nothing private, or draws its noise from the seed"
    if record.privacy is None and accounts and config.federation.rounds:
        return "the privacy that this method spends is missing"
    return None


# ---- claims -----------------------------------------------------------------------------------------------------------


def _list_claims(held: Held, checked: Sequence[CheckedRun], spoke: Spoken | None) -> list[Claim]:
    """The claims: what was proven, and what cannot be; `spoke` describes how the player was verified, if it was."""
    proven = ["schema", "digests", "suite", "complete", "replayed", "recomputed"]
    unproven = ["about"]
    kind = checked[0].found.record.agent.kind
    ranked = sum(len(group) for one in checked for group in one.found.ranked)
    about = {"replayed": f" ({ranked:,} episodes)"}
    if held.is_method:
        rivals = sum(one.found.rivals for one in checked)
        chosen = sum(len(group) for one in checked for group in one.found.selection)
        others = sum(one.found.rivals * sum(map(len, one.found.selection)) for one in checked)
        (proven if held.is_known else unproven).append("configuration")
        best = held.suite.ranked_round == "best"
        (unproven if best and rivals else proven).append("selection")
        (proven if all(one.is_counted for one in checked) else unproven).append("counted")
        unproven += ["budget", "spent", "method"]
        about["replayed"] = f" ({ranked:,} ranked episodes, {chosen + others:,} on val)"
        rest = f"the other {rivals:,} rounds, {others:,} episodes, are compared as they are written, not played under weights"
        compared = (
            f"no other did better on val; {rest}" if rivals else f"no other round was evaluated; {chosen:,} episodes"
        )
        about["selection"] = f" ({compared if best else 'the last one'})"
    if kind == "hosted":
        unproven.append("usage")
    (proven if spoke is not None and spoke.everywhere else unproven).append("who-spoke")
    if kind == "model":
        (proven if spoke is not None and spoke.exact else unproven).append("tokens")
    if left_out := [name for name in held.suite.scenarios if name not in held.opened]:
        about["complete"] = f" (not played: {', '.join(left_out)})"
    if spoke is not None:
        about["who-spoke"] = f" ({spoke.about})"
    if cut_short := sum(one.found.cut_short for one in checked):
        about["tokens"] = f" ({cut_short:,} episodes)"
    return [
        Claim(name=name, status="proven" if name in proven else "not provable", about=ABOUT[name] + about.get(name, ""))
        for name in [*proven, *unproven]
    ]


# ---- the results of maintainers who ran an entry again ---------------------------------------------------------------


def write_verification(found: Verification, path: Path, verified: Path, rerun: Rerun | None) -> None:
    """Write what was found into the verifier's own folder; an earlier rerun of the same result is kept."""
    result = Result(path, verified)
    if result.archive is None:
        raise OptionError(f"{format_path(path)} is a folder of runs: findings are kept of archives (`bench pack`)")
    before = result.verification
    rerun = rerun or (None if before is None else before.rerun)
    write_atomic(result.verification_file, format_document(found.model_copy(update={"rerun": rerun})))


def describe_rerun(path: Path, again: Sequence[Path], by: str) -> Rerun:
    """Compare own results with a submitted one; each must be of the same entry, on its suite or on the twin."""
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
