"""True if a named agent produced a result: it plays the same episodes again, and must give the same replies.

An agent's replies follow from its weights, the prompt and the episode's random stream. Arithmetic on another machine may change
a token now and then, after which the rest of an episode differs; so a small share of a cell's episodes may differ. An episode
that differs counts as it was played again: where that makes the result worse, the agent is not proven to have produced it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedagentgym.agents import AGENTS
from fedagentgym.agents.foreign import check_foreign_agent
from fedagentgym.agents.models.pretrained import list_shipped
from fedagentgym.agents.models.store import identify_model
from fedagentgym.agents.presets import make_agent, starts_from_nothing
from fedagentgym.agents.protocols import Player
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import MissingExtraError, OptionError
from fedagentgym.base.statistics import CONFIDENCE
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.experiment.evaluation_run import TASKS_AT_A_TIME
from fedagentgym.leaderboard.entries import find_packaged
from fedagentgym.leaderboard.held import CheckedRun, Held, Spoken
from fedagentgym.leaderboard.measures import measure_run
from fedagentgym.leaderboard.metrics import find_metric
from fedagentgym.leaderboard.results import name_run
from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Group
from fedagentgym.runs.claims import TOLERANCE, RefutedError, describe_clients, measure_groups

PARALLEL = EvaluationSettings().parallel_episodes
MOST_DIFFERENT = 0.02
"""Share of a cell's episodes on one split that may differ if weights are used on another machine; of ten or more, one may."""
CONFIG = "config.json"
"""The file by which a folder of weights is known."""
PROGRAMS = ("expert", "random")


class PlayedAgain(NamedTuple):
    """The episodes of a cell on one split: how many have the same replies, and the first number that is better as it is written
    than with the episodes as they were played again."""

    where: str
    same: int
    total: int
    flattered: str | None


def check_own_agent(held: Held, runs: Sequence[CheckedRun]) -> Spoken | None:
    """Programs and models of this package play again by themselves, if what they need is installed; others cannot be verified."""
    agent = runs[0].found.record.agent
    name, named = agent.settings.get("name"), {run.found.record.agent.weights for run in runs}
    if agent.kind == "program" and name in PROGRAMS and isinstance(AGENTS.get_target(name), str):
        for run in runs:
            found = play_again(held, run, make_agent(agent.settings, held.open(run.key).env), "program")
            if found.same != found.total:
                raise RefutedError("who-spoke", f"{name_run(run.key)}: {name!r} plays otherwise")
        return Spoken(f"{name} played the same episodes again", True, True)
    if held.is_method or agent.kind != "model" or named == {None}:
        return None
    models = [one.folder for one in list_shipped() if identify_model(one.folder) in named]
    try:
        return check_model(held, runs, models) if models else None
    except MissingExtraError:
        return None


def check_model(held: Held, runs: Sequence[CheckedRun], places: Sequence[Path]) -> Spoken:
    """Play again with given weights: they must be those that the result names, and give the same replies.

    Agents track: one model, and it is the one that the result names; of a tiny agent one for each environment. Methods track: of
    several policies the one that a run names. A folder may hold folders of weights.
    """
    agent = runs[0].found.record.agent
    if agent.kind != "model":
        raise RefutedError("who-spoke", f"{agent.kind} agents have no weights that could be given")
    settings = AgentSettings.load(agent.settings, "agent")
    check_foreign_agent(settings, "the result")
    models = list[Path]()
    for place in places:
        below = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        models += [place] if (place / CONFIG).is_file() or not below else below

    def make(run: CheckedRun, model: Path) -> Player:
        env = held.open(run.key).env
        own = held.configs[run.key].agent if held.is_method else find_packaged(settings, env) or settings
        return make_agent(own.model_copy(update={"model": str(model)}), env)

    if held.is_method:
        known = {compute_policy_digest(make(runs[0], model)): model for model in models}
    else:
        known = {identify_model(model): model for model in models}
        if not starts_from_nothing(settings) and len(models) != 1:
            raise OptionError("a result of the agents track was played by one model: give its folder alone")
        if not starts_from_nothing(settings) and agent.weights not in known:
            problem = f"does not hold the weights that the result names, {agent.weights}"
            raise RefutedError("who-spoke", f"{models[0]} {problem}")
    ranked, selection = list[PlayedAgain](), list[PlayedAgain]()
    for run in runs:
        record = run.found.record
        policy = record.agent.weights if not held.is_method else None if record.ranked is None else record.ranked.policy
        if (model := known.get(policy or "")) is not None:
            player = make(run, model)
            ranked.append(play_again(held, run, player, "model"))
            selection += [play_again(held, run, player, "model", on_val=True)] if held.is_method else []
    names = ", ".join(map(str, models))
    if not ranked:
        raise RefutedError("who-spoke", f"{names}: no run of this result was played by this policy")
    for one in (*ranked, *selection):
        if one.total - one.same > max(int(MOST_DIFFERENT * one.total), int(one.total >= 10)):
            found = f"the same replies in {one.same} of {one.total} episodes of {one.where}: another policy played"
            raise RefutedError("who-spoke", f"{names} gives {found}")
    played = [ranked, selection] if selection else [ranked]
    counts = [f"{sum(one.same for one in part)} of {sum(one.total for one in part)}" for part in played]
    about = f"{len(ranked)} of {len(runs)} runs were played again with the weights: {counts[0]} episodes are equal"
    about += f", and {counts[1]} on val in the ranked rounds" if selection else ""
    flattered = [one.flattered for one in (*ranked, *selection) if one.flattered is not None]
    about += f"; {flattered[0]}" if flattered else ""
    whole = len(ranked) == len(runs)
    return Spoken(about, whole and not flattered, whole and all(one.same == one.total for one in (*ranked, *selection)))


def play_again(held: Held, run: CheckedRun, player: Player, kind: str, *, on_val: bool = False) -> PlayedAgain:
    """Play the ranked episodes of a run again, or those on the curve's split of its ranked round; compare the replies, the number
    of tokens of each, and the numbers."""
    suite, opened, env = held.suite, held.open(run.key), held.open(run.key).env
    written, part, seed = run.found.ranked, suite.get_ranking(run.key[0]), derive(run.key[1], "ranked")
    if on_val:
        written, part, seed = run.found.selection, suite.selection, derive(run.key[1], "evaluation")
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
    where = f"{name_run(run.key)} on val" if on_val else name_run(run.key)
    before, after = (_measure(held, run, tuple(groups), on_val) for groups in (written, again))
    for name, value in before.items():
        gain = after[name] - value if find_metric(name).better == "lower" else value - after[name]
        if gain > TOLERANCE:
            flattered = f"{where}: {name} is written as {value:.4g}, played again it is {after[name]:.4g}"
            return PlayedAgain(where, same, len(pairs), flattered)
    return PlayedAgain(where, same, len(pairs), None)


def _measure(held: Held, run: CheckedRun, groups: tuple[Group, ...], on_val: bool) -> dict[str, float]:
    """The numbers that rank a run with these episodes: the suite's measure, and the success of every category; on val the success
    alone."""
    ranked = measure_groups(groups, None, None, CONFIDENCE)
    if on_val:
        return {"success": ranked.overall["success"]["mean"]}
    success = {name: one["success"]["mean"] for name, one in ranked.categories.items()}
    split, record = held.open(run.key).client_split, run.found.record
    clients = () if split is None else describe_clients(split, success)
    at_clients = {} if record.ranked is None else record.ranked.at_clients
    update = {"ranked": ranked.model_copy(update={"at_clients": at_clients}), "clients": clients}
    means = measure_run(held.suite, record.model_copy(update=update), groups).means
    found = {name: means[name] for name in dict.fromkeys((held.suite.rank_by, "success", "score"))}
    return found | {f"success in {name}": value for name, value in success.items()}
