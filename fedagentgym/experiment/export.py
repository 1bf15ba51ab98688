"""The policy of a run's commit, written as an ordinary model or adapter folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.base.files import atomic_folder
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import Run
from fedagentgym.federation.chain import Chain, read_chain
from fedagentgym.federation.commits import CommitStore
from fedagentgym.federation.metrics_log import best_rounds


def export_policy(
    folder: str | Path,
    output: str | Path,
    *,
    number: int | None = None,
    best: bool = False,
    adapter_only: bool = False,
) -> int:
    """Write the policy of a round (the last, the best, or the given one) to a new folder; returns the round."""
    place = Path(folder)
    if not (place / "config.yaml").is_file():
        raise DataError(f"there is no run in {place}: config.yaml is missing")
    rounds = CommitStore(place / "rounds")
    run = Run(load_config(place / "config.yaml"), place)
    chain = read_chain(place, run.inputs)
    if chain is None:
        raise DataError(f"{place} has no committed round yet")
    chosen = _choose_round(place, rounds, chain, number, best)
    if adapter_only and run.config.agent.adapter is None:
        raise OptionError("--adapter: this run trained all weights, there is no adapter")
    from fedagentgym.agents.engines.lora import save_adapter

    weights = run.algorithm.policy_parameters(rounds.read(chosen).state)
    agent = run.runtime.load_weights(weights)
    policy: Any = agent.policy
    with atomic_folder(output) as part:
        if adapter_only:
            save_adapter(policy.model, part)
        else:
            policy.save(part)
    return chosen


def _choose_round(place: Path, rounds: CommitStore, chain: Chain, number: int | None, best: bool) -> int:
    there = rounds.list_rounds()
    if best:
        found = best_rounds(chain.list_records())
        if not found:
            raise DataError(f"{place} was never evaluated: leave --best out")
        number = found.pop()
    if number is None:
        return chain.newest.round
    if number not in there:
        raise DataError(f"round {number} of {place} is not kept: there are {join_names(map(str, there), 20)}")
    return number
