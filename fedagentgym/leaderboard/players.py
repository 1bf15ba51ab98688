"""True if a named agent produced a result: it plays the same episodes again, and must give the same replies.

An agent's replies follow from its weights, the prompt and the episode's random stream. Arithmetic on another machine may change
a token now and then, after which the rest of an episode differs; so a small share of a cell's episodes may differ. An episode
that differs counts as it was played again: where that makes the result worse, the agent is not proven to have produced it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from fedagentgym.base.streams import derive
from fedagentgym.leaderboard.aggregate import describe_cell, describe_clients, make_point
from fedagentgym.leaderboard.cells import PARALLEL, TASKS_AT_A_TIME
from fedagentgym.leaderboard.entries import find_packaged
from fedagentgym.leaderboard.evidence import TOLERANCE, Checked, Examined, RefutedError, check_config, open_selection
from fedagentgym.leaderboard.metrics import find_metric
from fedagentgym.leaderboard.record import Spent
from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Group, Trajectory

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


class Spoken(NamedTuple):
    """The verification of the player: how, if for all cells, and if every episode was the same, to the numbers of tokens."""

    about: str
    everywhere: bool
    exact: bool


def check_program(folder: Checked, cells: Sequence[Examined]) -> Spoken | None:
    """A program of this package can play again by itself; other agents cannot be verified here."""
    agent = folder.manifest.entry.agent
    name = agent.settings.get("name")
    if agent.kind != "program" or name not in PROGRAMS or not isinstance(AGENTS.get_target(str(name)), str):
        return None
    for cell in cells:
        opened = folder.opened[cell.data.scenario].at(cell.data.seed)
        player = make_agent(agent.settings, opened.env)
        found = play_ranked(folder, cell, player, "program")
        if found.same != found.total:
            raise RefutedError("who-spoke", f"cell {cell.data.scenario}-seed{cell.data.seed}: {name!r} plays otherwise")
    return Spoken(f"{name} played the same episodes again", True, True)


def check_packaged(folder: Checked, cells: Sequence[Examined]) -> Spoken | None:
    """Agents of this package play again by themselves too, if what they need is installed."""
    agent = folder.manifest.entry.agent
    named = {agent.weights, *(cell.data.policy for cell in cells)}
    if folder.is_method or agent.kind != "model" or named == {None}:
        return None
    models = [one.folder for one in list_shipped() if identify_model(one.folder) in named]
    try:
        return check_model(folder, cells, models) if models else None
    except MissingExtraError:
        return None


def check_model(folder: Checked, cells: Sequence[Examined], models: Sequence[Path]) -> Spoken:
    """Play again with given weights: they must be those that the result names, and give the same replies."""
    agent = folder.manifest.entry.agent
    if agent.kind != "model":
        raise RefutedError("who-spoke", f"{agent.kind} agents have no weights that could be given")
    check_foreign_agent(AgentSettings.load(agent.settings, "agent"), "manifest.json")
    load = load_policies(folder, models) if folder.is_method else load_agent(folder, models)
    ranked, selection = [], []
    for cell in cells:
        if (player := load(cell)) is not None:
            ranked.append(play_ranked(folder, cell, player, "model"))
            selection += [play_selection(folder, cell, player)] if folder.is_method else []
    names = ", ".join(map(str, models))
    if not ranked:
        raise RefutedError("who-spoke", f"{names}: no cell of this result was played by this policy")
    for one in (*ranked, *selection):
        if one.is_refuted:
            found = f"the same replies in {one.same} of {one.total} episodes of {one.where}: another policy played"
            raise RefutedError("who-spoke", f"{names} gives {found}")
    return describe_spoken(ranked, selection, len(cells))


def describe_spoken(ranked: Sequence[PlayedAgain], selection: Sequence[PlayedAgain], cells: int) -> Spoken:
    """Which episodes were played again, and what follows for those that differ."""
    played = [ranked, selection] if selection else [ranked]
    counts = [f"{sum(one.same for one in part)} of {sum(one.total for one in part)}" for part in played]
    about = f"{len(ranked)} of {cells} cells were played again with the weights: {counts[0]} episodes are equal"
    about += f", and {counts[1]} on val in the ranked rounds" if selection else ""
    flattered = [one.flattered for one in (*ranked, *selection) if one.flattered is not None]
    about += f"; {flattered[0]}" if flattered else ""
    whole = len(ranked) == cells
    return Spoken(about, whole and not flattered, whole and all(one.same == one.total for one in (*ranked, *selection)))


def load_agent(folder: Checked, models: Sequence[Path]) -> Callable[[Examined], Player | None]:
    """The agents track: one model, and it is the one that the manifest names; of a tiny agent one for each environment."""
    settings = AgentSettings.load(folder.manifest.entry.agent.settings, "agent")
    if starts_from_nothing(settings):
        places: dict[str | None, Path] = {identify_model(model): model for model in models}

        def load_own(cell: Examined) -> Player | None:
            env, model = folder.opened[cell.data.scenario].at(cell.data.seed).env, places.get(cell.data.policy)
            return None if model is None else make_player(folder, cell, find_packaged(settings, env) or settings, model)

        return load_own
    if len(models) != 1:
        raise OptionError("a result of the agents track was played by one model: give its folder alone")
    agent, model = folder.manifest.entry.agent, models[0]
    if identify_model(model) != agent.weights:
        raise RefutedError("who-spoke", f"{model} does not hold the weights that the manifest names, {agent.weights}")
    return lambda cell: make_player(folder, cell, settings, model)


def load_policies(folder: Checked, models: Sequence[Path]) -> Callable[[Examined], Player | None]:
    """The methods track: of several policies the one that a cell names; None if it is not among them."""
    records = {(record.scenario, record.seed): record for record in folder.manifest.cells}
    places: dict[str | None, Path] = {}
    for model in models:
        first = check_config(folder, folder.manifest.cells[0]).agent
        env = folder.opened[folder.manifest.cells[0].scenario].env
        places[compute_policy_digest(make_agent(first.model_copy(update={"model": str(model)}), env))] = model

    def load(cell: Examined) -> Player | None:
        model = places.get(cell.data.policy)
        if model is None:
            return None
        settings = check_config(folder, records[cell.data.scenario, cell.data.seed]).agent
        return make_player(folder, cell, settings, model)

    return load


def make_player(folder: Checked, cell: Examined, settings: AgentSettings, model: Path) -> Player:
    """The agent with these weights, configured for a cell."""
    env = folder.opened[cell.data.scenario].at(cell.data.seed).env
    return make_agent(settings.model_copy(update={"model": str(model)}), env)


def find_models(places: Sequence[Path]) -> list[Path]:
    """These folders of weights, and folders of weights directly inside others."""
    found = []
    for place in places:
        below = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        found += [place] if (place / CONFIG).is_file() or not below else below
    return found


def play_ranked(folder: Checked, cell: Examined, player: Player, kind: str) -> PlayedAgain:
    """Play the ranked episodes of a cell again, and compare the replies."""
    opened = folder.opened[cell.data.scenario].at(cell.data.seed)
    ranking = folder.suite.get_ranking(cell.data.scenario)
    player = with_temperature(player, ranking.temperature)
    size = len(opened.ids) if folder.is_method else TASKS_AT_A_TIME[kind]
    groups: list[Group] = []
    for first in range(0, len(opened.ids), size):
        tasks, seed = opened.ids[first : first + size], derive(cell.data.seed, "ranked")
        groups += collect(
            player, opened.env, tasks, group_size=ranking.repeats, seed=seed, parallel=PARALLEL, first=first
        ).groups
    written, found = (_measure_cell(folder, cell, tuple(each)) for each in (cell.data.groups, groups))
    lower = [name for name in written if find_metric(name).better == "lower"]
    return compare_played(cell.data.key, cell.data.groups, groups, find_flattered(written, found, lower))


def _measure_cell(folder: Checked, cell: Examined, groups: tuple[Group, ...]) -> dict[str, float]:
    """Return what ranks a cell with these episodes: the suite's measure, and the success of every category."""
    client_split = folder.opened[cell.data.scenario].at(cell.data.seed).client_split
    clients = () if client_split is None else describe_clients(client_split, groups)
    record = describe_cell(folder.suite, replace(cell.data, groups=groups, clients=clients))
    found = {name: record.measures[name].mean for name in dict.fromkeys((folder.suite.rank_by, "success", "score"))}
    return found | {f"success in {name}": each["success"].mean for name, each in record.categories.items()}


def play_selection(folder: Checked, cell: Examined, player: Player) -> PlayedAgain:
    """Play the episodes on val of the ranked round again, as the run played them, and compare the replies."""
    selection = folder.suite.selection
    env = open_selection(folder, cell.data.scenario, cell.data.seed)
    groups = collect(
        with_temperature(player, selection.temperature),
        env,
        [group[0].task for group in cell.selection],
        group_size=selection.repeats,
        seed=derive(cell.data.seed, "evaluation"),
        parallel=EvaluationSettings().parallel_episodes,
    ).groups
    written, found = (
        {"success": make_point(0, each, Spent()).measures["success"].mean} for each in (cell.selection, groups)
    )
    return compare_played(f"{cell.data.key} on val", cell.selection, groups, find_flattered(written, found))


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
