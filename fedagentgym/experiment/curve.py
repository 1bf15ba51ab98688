"""The evaluations of a training run: its learning curve after rounds, and at its end the tasks that rank it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedagentgym.algorithms.worlds import measure_matrix, play_worlds, summarise_worlds
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_text, write_atomic
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.opened import Run
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.commits import CommitStore
from fedagentgym.federation.message import Message
from fedagentgym.federation.records import Record, best_rounds
from fedagentgym.federation.states import StateStore
from fedagentgym.learning.evaluation import compute_policy_digest, evaluate, evaluate_sets
from fedagentgym.learning.settings import EVERY_WORLD, OWN_WORLD, EvaluationSettings
from fedagentgym.runs.claims import describe_evaluated, describe_tasks
from fedagentgym.runs.folder import RANKED, WORLDS, RunFolder
from fedagentgym.runs.record import Evaluated, TasksRecord

if TYPE_CHECKING:
    from fedagentgym.federation.backends import Backend


def evaluate_round(run: Run, backend: Backend, number: int, state: ServerState) -> dict[str, Any]:
    """Play the held-out tasks with the policy of a global state; every episode is recorded, those in the clients' own worlds
    too. `held_out` are tasks in each client's own mixture, or those that the clients hold back themselves."""
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
        lines, own = _play_own_worlds(run, number, state, settings, seed, about)
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
    if ranking.tasks is not None and ranking.tasks > len(env.pool):
        there = f"the split {ranking.split!r} has {len(env.pool)} tasks"
        raise DataError(f"ranking.tasks: {there}, not {ranking.tasks}")
    player = run.runtime.load_weights(run.algorithm.policy_parameters(state))
    settings, policy = ranking.evaluation, compute_policy_digest(player)
    about = {"split": ranking.split, "round": number}
    found = evaluate(player, env, settings, seed=seed, file=run.folder / RANKED, about={**about, "policy": policy})
    ranked = describe_evaluated(found.to_plain(), number, policy)
    if ranking.own_worlds:
        lines, own = _play_own_worlds(run, number, state, settings, seed, about)
        write_atomic(run.folder / WORLDS, lines)
        ranked = ranked.model_copy(update={"at_clients": {OWN_WORLD: own}})
    return describe_tasks(env, [group[0].task for group in found.groups], ranking), ranked


def _play_own_worlds(
    run: Run, number: int, state: ServerState, settings: EvaluationSettings, seed: int, about: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The episodes of every client's policy in its own world, as lines, and their success."""
    lines, success = [], []
    for played in play_worlds(run.algorithm, state, _open_kept(run, number), settings, seed):
        success.append((played.world, played.found.overall["success"].mean))
        lines.append(played.format_lines(about))
    return "".join(lines), summarise_worlds(success)


def _open_kept(run: Run, number: int) -> Callable[[int], Message]:
    """A reader of what clients of a simulation kept after a round: the newest one, or the one before it."""
    heads = CommitStore(run.folder / "rounds").read_note(number).heads
    store = StateStore(run.folder / "states")

    def read(client: int) -> Message:
        data = store.get(client, heads.get(client))
        return Message() if data is None else Message.decode(data)

    return read
