"""The record of a training run, `result.json`: made at its end, and compared with the run's commits whenever it is read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.envs.protocols import runs_programs
from fedagentgym.envs.verifiers.code import describe_protections
from fedagentgym.experiment.curve import rank
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.stored import read_stored_config
from fedagentgym.federation.commits import CONFIGURATION, Commit, read_chain
from fedagentgym.federation.records import Record, best_rounds
from fedagentgym.runs.claims import describe_clients, describe_env, describe_evaluated, make_point, sum_spent
from fedagentgym.runs.folder import CONFIG, METRICS, RECORD, RunFolder
from fedagentgym.runs.record import Evidence, RunRecord, SplitRecord, describe_agent, describe_made

CHECKED = (
    *("configuration", "client split", "records", "evaluations", "global states", "client states", "trajectories"),
    "evaluation episodes",
)
"""Files that the chain of commits fixes by digest; `resume` and `export` check them."""


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
        env=describe_env(env, client_split.options, client_split, protections),
        evaluation_sets=run.describe_sets(),
        client_split=SplitRecord(digest=client_split.digest, clients=len(client_split)),
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
    """The privacy that the rounds spent, beside what the accountant assumes; nothing of a run that has none."""
    for record in reversed(records):
        if "privacy/epsilon" in (metrics := record["metrics"]):
            found = {name: metrics[f"privacy/{name}"] for name in ("epsilon", "delta")}
            return {"privacy": {**found, "assumed": list(assumed)}}
    return {}


def read_result(folder: Path) -> RunRecord:
    """The record of a finished run, if it matches the configuration and, where they are here, the commits in its folder."""
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
