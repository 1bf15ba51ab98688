"""The evaluations of a training run, after rounds and at its end on the tasks that rank it, and its record, `result.json`.

The record is made at the end, and compared with the run's commits whenever it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.algorithms.worlds import measure_matrix, play_worlds
from fedagentgym.base.encoding import canonical_json, file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_text, write_atomic
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.protocols import runs_programs
from fedagentgym.envs.verifiers.code import describe_protections
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.stored import read_stored_config
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.commits import CONFIGURATION, Commit, CommitStore, read_chain
from fedagentgym.federation.message import Message
from fedagentgym.federation.records import Record, best_rounds
from fedagentgym.federation.states import StateStore
from fedagentgym.learning.evaluation import compute_policy_digest, evaluate, evaluate_sets
from fedagentgym.learning.settings import EVERY_WORLD, OWN_WORLD
from fedagentgym.runs.claims import (
    describe_clients,
    describe_env,
    describe_evaluated,
    describe_tasks,
    make_point,
    sum_spent,
)
from fedagentgym.runs.folder import CONFIG, METRICS, RANKED, RECORD, WORLDS, RunFolder
from fedagentgym.runs.record import (
    ClientSplitRecord,
    Evaluated,
    Evidence,
    RunRecord,
    TasksRecord,
    describe_agent,
    describe_made,
)

if TYPE_CHECKING:
    from fedagentgym.federation.backends import Backend

CHECKED = (
    *("configuration", "client split", "records", "evaluations", "global states", "client states", "trajectories"),
    "evaluation episodes",
)
"""Files that the chain of commits fixes by digest; `resume` and `export` check them."""


def evaluate_round(run: Run, backend: Backend, number: int, state: ServerState) -> dict[str, Any]:
    """Play the held-out tasks with the policy of a global state. Their episodes are recorded, as are those in the clients' own
    worlds; of `every_world` only the numbers are. `held_out` measures success in each client's own mixture, or on the client's
    own held-out tasks."""
    settings = run.config.evaluation
    assert settings is not None
    agent = run.runtime.load_weights(run.algorithm.policy_parameters(state))
    policy = compute_policy_digest(agent)
    file = RunFolder(run.folder).get_evaluation(number)
    seed = derive(run.config.seed, "evaluation")
    found = evaluate_sets(agent, run.sets, settings, seed=seed, file=file, about={"round": number, "policy": policy})
    plain = found.to_plain()
    if "misconceptions" in run.agent_note:  # the procedures that the episodes of each category followed
        from fedagentgym.learning.misconceptions import measure_beliefs

        beliefs = {
            one.name: {name: belief.to_plain() for name, belief in measured.items()}
            for one in run.sets
            if (measured := measure_beliefs(one.env, found.sets[one.name].groups))
        }
        plain["beliefs"] = beliefs.get("", beliefs)
    choice, by_client = found.describe_choice(), dict[str, Any]()
    if "held_out" in settings.at_clients:
        deadline = run.config.federation.deadline
        by_client["held_out"] = run.deployment.evaluate_held_out(backend, number, state, deadline, found)
    if OWN_WORLD in settings.at_clients:
        about = {"round": number, "split": settings.split}
        lines, own = play_worlds(run.algorithm, state, _open_kept(run, number), settings, seed, about)
        write_atomic(file, read_text(file) + lines)
        by_client[OWN_WORLD] = own
        choice = choice or {"choice": own["mean"]}
    if EVERY_WORLD in settings.at_clients:
        matrix = measure_matrix(run.algorithm, state, _open_kept(run, number), settings, seed)
        by_client[EVERY_WORLD] = {"matrix": matrix}
    if by_client:
        plain["at_clients"] = by_client
    mean = plain["overall"]["success"]["mean"]
    return {"success": mean, **choice, "policy": policy, "digest": file_digest(file), **plain}


def rank(run: Run, records: Sequence[Record]) -> tuple[TasksRecord | None, Evaluated | None]:
    """Play the tasks that rank the run, with the last round's policy or the best one's; every episode is recorded."""
    ranking = run.config.ranking
    if ranking is None:
        return None, None
    (number,) = best_rounds(records) if ranking.round == "best" else {records[-1]["round"]}
    state = CommitStore(run.folder / "rounds").read(number).state
    seed = derive(run.config.seed if ranking.seed is None else ranking.seed, "ranked")
    env = open_env(run.config.env.id, **{**run.runtime.client_split.options, "split": ranking.split})
    player = run.runtime.load_weights(run.algorithm.policy_parameters(state))
    settings, policy = ranking.evaluation, compute_policy_digest(player)
    about = {"split": ranking.split, "round": number}
    found = evaluate(player, env, settings, seed=seed, file=run.folder / RANKED, about={**about, "policy": policy})
    ranked = describe_evaluated(found.to_plain(), number, policy)
    if ranking.own_worlds:
        lines, own = play_worlds(run.algorithm, state, _open_kept(run, number), settings, seed, about)
        write_atomic(run.folder / WORLDS, lines)
        ranked = ranked.model_copy(update={"at_clients": {OWN_WORLD: own}})
    return describe_tasks(env, [group[0].task for group in found.groups], ranking), ranked


def _open_kept(run: Run, number: int) -> Callable[[int], Message]:
    """A function that reads a client's state after a round of a simulation; the states of this round must still be stored."""
    heads = CommitStore(run.folder / "rounds").read_note(number).heads
    store = StateStore(run.folder / "states")

    def read(client: int) -> Message:
        data = store.get(client, heads.get(client))
        return Message() if data is None else Message.decode(data)

    return read


def build_record(run: Run, commit: Commit, records: Sequence[Record]) -> RunRecord:
    """The record of the finished run; the tasks that rank it are played now."""
    began = time.monotonic()
    tasks, ranked = rank(run, records)
    seconds = time.monotonic() - began + commit.record["seconds_total"]
    evaluated = [(one["round"], one["evaluation"]) for one in records if "evaluation" in one]
    found = [describe_evaluated(one, number, one["policy"]) for number, one in evaluated]
    client_split, env = run.runtime.client_split, run.runtime.env
    protections = describe_protections(start=True) if runs_programs(env) else None
    success = {} if ranked is None else {name: one["success"]["mean"] for name, one in ranked.categories.items()}
    return RunRecord(
        kind="training",
        name=run.config.name,
        algorithm=str(run.config.algorithm["name"]),
        seed=run.config.seed,
        config_digest=run.config.digest,
        env=describe_env(env, client_split, protections),
        evaluation_sets=run.describe_sets(),
        client_split=ClientSplitRecord(digest=client_split.digest, clients=len(client_split)),
        agent=describe_agent(run.config.agent, run.agent_note).model_copy(update={"kind": "model"}),
        rounds=commit.round,
        state=commit.state.digest,
        curve=tuple(make_point(one, sum_spent(records, one.round or 0)) for one in found),
        best_round=next(iter(best_rounds(records)), None),
        final=found[-1] if found else None,
        tasks=tasks,
        ranked=ranked,
        clients=describe_clients(client_split, success) if ranked is not None else (),
        spent=sum_spent(records, commit.round),
        labelled=len(run.algorithm.card.list_labelled(client_split)),
        **describe_privacy(records, run.algorithm.card.assumed),
        bytes=commit.record["bytes_total"],
        failures=sum(len(record["failures"]) for record in records),
        evidence=Evidence(commit=commit.digest, rounds=len(records), checked=CHECKED),
        made=describe_made(seconds + sum(one["seconds"] for _, one in evaluated)),
    )


def describe_privacy(records: Sequence[Record], assumed: Sequence[str]) -> dict[str, Any]:
    """The privacy budget that the rounds spent, and the accountant's assumptions; empty for a run without privacy."""
    for record in reversed(records):
        if "privacy/epsilon" in (metrics := record["metrics"]):
            found = {name: metrics[f"privacy/{name}"] for name in ("epsilon", "delta")}
            return {"privacy": {**found, "assumed": list(assumed)}}
    return {}


def read_result(folder: Path) -> RunRecord:
    """The record of a finished run, if it matches the configuration and the commits, if any, in the run's folder."""
    record, config = RunFolder(folder).record, read_stored_config(folder)
    expected: dict[str, Any] = {"config_digest": config.digest}
    if (chain := read_chain(folder)) is not None:
        records, newest = chain.list_records(), chain.newest
        expected |= {
            "rounds": newest.round,
            "state": newest.state_digest,
            "bytes": newest.record["bytes_total"],
            "spent": sum_spent(records, newest.round).model_dump(mode="json"),
            "best_round": next(iter(best_rounds(records)), None),
        }
        if config.digest != newest.links.inputs.get(CONFIGURATION):
            raise DataError(f"{folder / CONFIG} is not the configuration that this run was played with")
        if evaluated := [(one["round"], one["evaluation"]) for one in records if "evaluation" in one]:
            number, last = evaluated[-1]
            expected["final"] = describe_evaluated(last, number, last["policy"]).model_dump(mode="json")
    elif record.evidence is not None and not (folder / METRICS).is_file():
        raise DataError(f"{folder / RECORD} belongs to a run without a committed round")
    plain = record.model_dump(mode="json")
    for name, value in expected.items():
        if canonical_json(plain[name]) != canonical_json(value):
            problem = "is not what the commits of the run say: one of the two was changed"
            raise DataError(f"{folder / RECORD}: {name!r} {problem}")
    return record
