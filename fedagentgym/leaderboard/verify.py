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
from fedagentgym.leaderboard.players import check_model, check_own_agent
from fedagentgym.leaderboard.results import ENTRY, SUITE, Claim, Rerun, Result, RunKey, Verification, name_run
from fedagentgym.leaderboard.suite import Suite, list_suites, load_suite, name_twin, open_scenario
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.runs.claims import RefutedError, check_run, describe_env
from fedagentgym.runs.folder import RunFolder, format_document
from fedagentgym.runs.record import ENDPOINT, RunRecord, Spent, SplitRecord
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
    archive = result.archive
    try:
        digest = "sha256:" + 64 * "0" if archive is None else archive.digest
    except DataError as error:
        raise RefutedError("digests", str(error)) from None
    try:
        entry, name = result.entry, result.suite.name
    except FedAgentGymError as error:
        raise RefutedError("schema", str(error)) from None
    try:
        if archive is not None and entry != entry.publish():
            raise RefutedError("schema", "entry.json: a published entry names no path and no secret")
    except OptionError as error:
        raise RefutedError("configuration", f"the entry's agent: {error}") from None
    # the definition to check against is the package's, or the verifier's own; never the submitted one
    if suite is None and name not in list_suites():
        raise RefutedError("suite", f"{name!r} is no suite of this package: give its definition with --suite FILE")
    own = load_suite(name) if suite is None else suite
    if result.suite.digest != own.digest or name != own.name:
        there = f"the result is of {name}, version {result.suite.version} ({result.suite.digest[:19]}...)"
        raise RefutedError("suite", f"{there}, the suite is {own.name}, version {own.version} ({own.digest[:19]}...)")
    # every scenario under every seed; on the agents track of the scenarios that were played
    scenarios = [one for one in own.scenarios if own.track == "methods" or one in result.scenarios] or own.scenarios
    due = [(scenario, seed) for scenario in scenarios for seed in own.seeds]
    if list(result.keys) != due:
        missing = [name_run(key) for key in due if key not in result.keys]
        odd = missing[0] if missing else "a run that belongs to no scenario and seed"
        raise RefutedError("complete", f"runs: {odd} is missing or wrong: {len(result.keys)} of {len(due)}")
    held = Held(result, own, {name: open_scenario(own, name) for name in result.scenarios}, tuple(plugins))
    _check_entry(held)
    if archive is not None:  # an archive holds nothing besides that a reader might take for checked
        for run in archive.digests.runs:
            if others := [one.name for one in run.files if not _PART_OF_A_RUN.fullmatch(one.name)]:
                raise RefutedError("digests", f"{run.name}: {others[0]} belongs to no run")
        if [one.name for one in archive.digests.documents] != [ENTRY, SUITE]:
            raise RefutedError("digests", f"the documents of a result are {ENTRY} and {SUITE}")
    checked = []
    for key in result.keys:
        try:
            with result.open_run(key) as folder:
                try:
                    folder.record  # noqa: B018 - read here, and kept
                except DataError as error:
                    said = str(error).replace(f"{folder.path}/", "")
                    raise RefutedError("schema", f"{name_run(key)}: {said}") from None
                checked.append(_check_method(held, key, folder) if held.is_method else _check_agent(held, key, folder))
        except RefutedError:
            raise
        except DataError as error:
            raise RefutedError("digests", f"{name_run(key)}: {error}") from None
    spoke = check_model(held, checked, models) if models else check_own_agent(held, checked)
    return Verification(result=digest, version=__version__, claims=tuple(_list_claims(held, checked, spoke)))


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
    opened, where, record = held.open(key), name_run(key), run.record
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
    about = describe_env(opened.env, opened.options)
    compare_record(where, record, {"name": expected.name, "seed": expected.seed, "env": about, "algorithm": None})
    found = check_run(run, make_agent_due(held, key, kind), where)
    turns, usage = record.spent.env_steps, record.usage
    if (usage is not None) != (kind == "hosted"):
        raise RefutedError("recomputed", f"{where}: only a hosted model has a count of requests, and every one has")
    if usage is not None and usage.requests != turns:
        raise RefutedError("recomputed", f"{where}: {usage.requests} answers were counted for {turns} turns")
    if usage is not None and usage.uncounted > usage.requests:
        raise RefutedError("recomputed", f"{where}: more answers without numbers of tokens than answers")
    return CheckedRun(key, found)


# ---- methods track ----------------------------------------------------------------------------------------------------


def _check_method(held: Held, key: RunKey, run: RunFolder) -> CheckedRun:
    """A run of the methods track: its configuration, its episodes, the choice of its round, and its costs."""
    where, opened, record = name_run(key), held.open(key), run.record
    config = held.configs[key] = check_config(held, key, run, record)
    client_split = opened.client_split
    assert client_split is not None
    about = describe_env(opened.env, client_split.options, client_split, record.env.protections)
    split = SplitRecord(digest=client_split.digest, clients=len(client_split))
    said = {"seed": config.seed, "env": about, "client_split": split, "evaluation_sets": {}, "usage": None}
    compare_record(where, record, said)
    found = check_run(run, make_due(held, key, config), where)
    plan = plan_work(config) if held.is_known else None
    if (odd := _find_odd_cost(held.suite, record, config, plan, client_split)) is not None:
        raise RefutedError("budget", f"{where}: {odd}")
    # an expert that is asked a question twice in a round answers it once, so fewer may be played to score
    is_counted = plan is not None and all(
        spent.episodes
        >= plan.count_until(spent.rounds).episodes + plan.preparation.scored * plan.count_preparations(spent.rounds)
        for spent in (*(point.spent for point in record.curve), record.spent)
    )
    return CheckedRun(key, found, is_counted)


def _find_odd_cost(
    suite: Suite, record: RunRecord, config: RunConfig, plan: WorkPlan | None, client_split: ClientSplit
) -> str | None:
    """A sentence if the costs do not grow, do not end where the run ends, exceed the budget or what the configuration takes."""
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
    if plan is not None and record.labelled != (labelled := count_labelled(config.algorithm, client_split)):
        return f"it may use the answers of {labelled:,} tasks, not of {record.labelled}"
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
