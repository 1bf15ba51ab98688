"""True if a named agent produced a result: it plays the same episodes again, and must give the same replies.

An agent's replies follow from its weights, the prompt and the episode's random stream. Arithmetic on another machine may change
a token now and then, after which the rest of an episode differs; so a small share of a cell's episodes may differ. An episode
that differs counts as it was played again: where that makes the result worse, the agent is not proven to have produced it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from fedagentgym.learning.trajectory import Group, Trajectory
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

    @property
    def is_refuted(self) -> bool:
        """True if more episodes differ than arithmetic explains."""
        return self.total - self.same > max(int(MOST_DIFFERENT * self.total), int(self.total >= 10))


def check_program(held: Held, runs: Sequence[CheckedRun]) -> Spoken | None:
    """A program of this package can play again by itself; other agents cannot be verified here."""
    agent = runs[0].found.record.agent
    name = str(agent.settings.get("name"))
    if agent.kind != "program" or name not in PROGRAMS or not isinstance(AGENTS.get_target(name), str):
        return None
    for run in runs:
        found = play_ranked(held, run, make_agent(agent.settings, held.open(run.key).env), "program")
        if found.same != found.total:
            raise RefutedError("who-spoke", f"{name_run(run.key)}: {name!r} plays otherwise")
    return Spoken(f"{name} played the same episodes again", True, True)


def check_packaged(held: Held, runs: Sequence[CheckedRun]) -> Spoken | None:
    """Agents of this package play again by themselves too, if what they need is installed."""
    named = {run.found.record.agent.weights for run in runs}
    if held.is_method or runs[0].found.record.agent.kind != "model" or named == {None}:
        return None
    models = [one.folder for one in list_shipped() if identify_model(one.folder) in named]
    try:
        return check_model(held, runs, models) if models else None
    except MissingExtraError:
        return None


def check_model(held: Held, runs: Sequence[CheckedRun], models: Sequence[Path]) -> Spoken:
    """Play again with given weights: they must be those that the result names, and give the same replies."""
    agent = runs[0].found.record.agent
    if agent.kind != "model":
        raise RefutedError("who-spoke", f"{agent.kind} agents have no weights that could be given")
    check_foreign_agent(AgentSettings.load(agent.settings, "agent"), "the result")
    load = load_policies(held, runs, models) if held.is_method else load_agent(held, runs, models)
    ranked, selection = [], []
    for run in runs:
        if (player := load(run)) is not None:
            ranked.append(play_ranked(held, run, player, "model"))
            selection += [play_selection(held, run, player)] if held.is_method else []
    names = ", ".join(map(str, models))
    if not ranked:
        raise RefutedError("who-spoke", f"{names}: no run of this result was played by this policy")
    for one in (*ranked, *selection):
        if one.is_refuted:
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


def load_agent(held: Held, runs: Sequence[CheckedRun], models: Sequence[Path]) -> Callable[[CheckedRun], Player | None]:
    """The agents track: one model, and it is the one that the result names; of a tiny agent one for each environment."""
    settings = AgentSettings.load(runs[0].found.record.agent.settings, "agent")
    places: dict[str | None, Path] = {identify_model(model): model for model in models}
    if not starts_from_nothing(settings):
        if len(models) != 1:
            raise OptionError("a result of the agents track was played by one model: give its folder alone")
        if (wanted := runs[0].found.record.agent.weights) not in places:
            raise RefutedError("who-spoke", f"{models[0]} does not hold the weights that the result names, {wanted}")

    def load(run: CheckedRun) -> Player | None:
        env, model = held.open(run.key).env, places.get(run.found.record.agent.weights)
        if model is None:
            return None
        return make_agent((find_packaged(settings, env) or settings).model_copy(update={"model": str(model)}), env)

    return load


def load_policies(
    held: Held, runs: Sequence[CheckedRun], models: Sequence[Path]
) -> Callable[[CheckedRun], Player | None]:
    """The methods track: of several policies the one that a run names; None if it is not among them."""

    def make(run: CheckedRun, model: Path) -> Player:
        settings = held.configs[run.key].agent.model_copy(update={"model": str(model)})
        return make_agent(settings, held.open(run.key).env)

    places = {compute_policy_digest(make(runs[0], model)): model for model in models}

    def load(run: CheckedRun) -> Player | None:
        ranked = run.found.record.ranked
        model = None if ranked is None else places.get(ranked.policy)
        return None if model is None else make(run, model)

    return load


def find_models(places: Sequence[Path]) -> list[Path]:
    """These folders of weights, and folders of weights directly inside others."""
    found = []
    for place in places:
        below = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        found += [place] if (place / CONFIG).is_file() or not below else below
    return found


def play_ranked(held: Held, run: CheckedRun, player: Player, kind: str) -> PlayedAgain:
    """Play the ranked episodes of a run again, and compare the replies."""
    opened, ranking = held.open(run.key), held.suite.get_ranking(run.key[0])
    player = with_temperature(player, ranking.temperature)
    size = len(opened.ids) if held.is_method else TASKS_AT_A_TIME[kind]
    groups: list[Group] = []
    for first in range(0, len(opened.ids), size):
        tasks, seed = opened.ids[first : first + size], derive(run.key[1], "ranked")
        groups += collect(
            player, opened.env, tasks, group_size=ranking.repeats, seed=seed, parallel=PARALLEL, first=first
        ).groups
    written, found = (_measure(held, run, tuple(each)) for each in (run.found.ranked, groups))
    lower = [name for name in written if find_metric(name).better == "lower"]
    return compare_played(name_run(run.key), run.found.ranked, groups, find_flattered(written, found, lower))


def _measure(held: Held, run: CheckedRun, groups: tuple[Group, ...]) -> dict[str, float]:
    """The numbers that rank a run with these episodes: the suite's measure, and the success of every category."""
    ranked = measure_groups(groups, None, None, CONFIDENCE)
    success = {name: one["success"]["mean"] for name, one in ranked.categories.items()}
    split = held.open(run.key).client_split
    clients = () if split is None else describe_clients(split, success)
    at_clients = {} if run.found.record.ranked is None else run.found.record.ranked.at_clients
    update = {"ranked": ranked.model_copy(update={"at_clients": at_clients}), "clients": clients}
    means = measure_run(held.suite, run.found.record.model_copy(update=update), groups).means
    found = {name: means[name] for name in dict.fromkeys((held.suite.rank_by, "success", "score"))}
    return found | {f"success in {name}": value for name, value in success.items()}


def play_selection(held: Held, run: CheckedRun, player: Player) -> PlayedAgain:
    """Play the episodes on the curve's split of the ranked round again, as the run played them, and compare the replies."""
    selection, opened = held.suite.selection, held.open(run.key)
    written = run.found.selection
    again = collect(
        with_temperature(player, selection.temperature),
        open_env(opened.env.id, **{**opened.options, "split": selection.split}),
        [group[0].task for group in written],
        group_size=selection.repeats,
        seed=derive(run.key[1], "evaluation"),
        parallel=PARALLEL,
    ).groups
    before, after = (
        {"success": measure_groups(each, None, None, CONFIDENCE).overall["success"]["mean"]}
        for each in (written, again)
    )
    return compare_played(f"{name_run(run.key)} on val", written, again, find_flattered(before, after))


def find_flattered(written: Mapping[str, float], found: Mapping[str, float], lower: Sequence[str] = ()) -> str | None:
    """The first number that is better as it is written; of the measures in `lower` lower numbers are better."""
    for name, value in written.items():
        gain = (found[name] - value) if name in lower else (value - found[name])
        if gain > TOLERANCE:
            return f"{name} is written as {value:.4g}, played again it is {found[name]:.4g}"
    return None


def compare_played(where: str, written: Sequence[Group], again: Sequence[Group], flattered: str | None) -> PlayedAgain:
    """Compare the replies, and the number of tokens of each."""
    pairs = [
        (_list_replies(theirs), _list_replies(mine))
        for given, own in zip(written, again, strict=True)
        for theirs, mine in zip(given, own, strict=True)
    ]
    problem = None if flattered is None else f"{where}: {flattered}"
    return PlayedAgain(where, sum(theirs == mine for theirs, mine in pairs), len(pairs), problem)


def _list_replies(trajectory: Trajectory) -> list[tuple[str, int]]:
    return [(turn.reply, turn.tokens) for turn in trajectory.turns]
