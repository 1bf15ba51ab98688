"""Whether a named agent produced a result: it plays the same episodes again, and must give the same replies.

An agent's replies follow from its weights, the prompt and the episode's random stream. Arithmetic on another machine may change
a token now and then, after which the rest of an episode differs; so a small share of episodes may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedagentgym.agents import AGENTS
from fedagentgym.agents.models.pretrained import list_shipped
from fedagentgym.agents.models.store import identify_model
from fedagentgym.agents.presets import make_agent, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import MissingExtraError, OptionError
from fedagentgym.base.streams import derive
from fedagentgym.leaderboard.cells import PARALLEL, TASKS_AT_A_TIME
from fedagentgym.leaderboard.entries import find_packaged
from fedagentgym.leaderboard.evidence import Checked, Examined, RefutedError, check_config
from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
from fedagentgym.learning.rollouts import Player, collect
from fedagentgym.learning.trajectory import Group

LEAST_EQUAL = 0.98
"""Minimum share of episodes that must be identical if weights are used on another machine."""
CONFIG = "config.json"
"""The file by which a folder of weights is known."""
PROGRAMS = ("expert", "random")


class Equal(NamedTuple):
    """How many episodes are identical when they are played again, of how many, and how many of them are solved: now, and as
    they are written."""

    same: int
    total: int
    solved: int
    written: int


class Spoken(NamedTuple):
    """How the player was verified, and whether for all cells."""

    about: str
    everywhere: bool


def check_program(folder: Checked, cells: Sequence[Examined]) -> Spoken | None:
    """A program of this package can play again by itself; other agents cannot be verified here."""
    agent = folder.manifest.entry.agent
    name = agent.settings.get("name")
    if agent.kind != "program" or name not in PROGRAMS or not isinstance(AGENTS.get_target(str(name)), str):
        return None
    for cell in cells:
        opened = folder.opened[cell.data.scenario]
        player = make_agent(agent.settings, opened.env)
        found = count_equal(folder, cell, player, "program")
        if found.same != found.total:
            raise RefutedError("who-spoke", f"cell {cell.data.scenario}-seed{cell.data.seed}: {name!r} plays otherwise")
    return Spoken(f"{name} played the same episodes again", True)


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
    load = load_policies(folder, models) if folder.is_method else load_agent(folder, models)
    found = [count_equal(folder, cell, player, "model") for cell in cells if (player := load(cell)) is not None]
    played, same, total = len(found), sum(one.same for one in found), sum(one.total for one in found)
    told = ", ".join(map(str, models))
    if not played:
        raise RefutedError("who-spoke", f"{told}: no cell of this result was played by this policy")
    if same < LEAST_EQUAL * total:
        found_equal = f"the same replies in {same} of {total} episodes: another policy played"
        raise RefutedError("who-spoke", f"{told} gives {found_equal}")
    about = f"{played} of {len(cells)} cells were played again with the weights: {same} of {total} episodes are equal"
    if same < total:
        about += f"; {sum(one.solved for one in found)} are solved, {sum(one.written for one in found)} as written"
    return Spoken(about, played == len(cells))


def load_agent(folder: Checked, models: Sequence[Path]) -> Callable[[Examined], Player | None]:
    """The agents track: one model, and it is the one that the manifest names; of a tiny agent one for each environment."""
    settings = AgentSettings.load(folder.manifest.entry.agent.settings, "agent")
    if starts_from_nothing(settings):
        places: dict[str | None, Path] = {identify_model(model): model for model in models}

        def load_own(cell: Examined) -> Player | None:
            env, model = folder.opened[cell.data.scenario].env, places.get(cell.data.policy)
            return None if model is None else make_player(folder, cell, find_packaged(settings, env) or settings, model)

        return load_own
    if len(models) != 1:
        raise OptionError("a result of the agents track was played by one model: give its folder alone")
    agent, model = folder.manifest.entry.agent, models[0]
    if agent.weights is not None and identify_model(model) != agent.weights:
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
    player = make_agent(settings.model_copy(update={"model": str(model)}), folder.opened[cell.data.scenario].env)
    return with_temperature(player, folder.suite.get_ranking(cell.data.scenario).temperature)


def find_models(places: Sequence[Path]) -> list[Path]:
    """These folders of weights, and folders of weights directly inside others."""
    found = []
    for place in places:
        below = sorted(path.parent for path in place.glob(f"*/{CONFIG}"))
        found += [place] if (place / CONFIG).is_file() or not below else below
    return found


def count_equal(folder: Checked, cell: Examined, player: Player, kind: str) -> Equal:
    """Play the episodes of a cell again, and compare the replies."""
    opened = folder.opened[cell.data.scenario]
    repeats = folder.suite.get_ranking(cell.data.scenario).repeats
    size = len(opened.ids) if folder.is_method else TASKS_AT_A_TIME[kind]
    groups: list[Group] = []
    for first in range(0, len(opened.ids), size):
        tasks, seed = opened.ids[first : first + size], derive(cell.data.seed, "ranked")
        groups += collect(
            player, opened.env, tasks, group_size=repeats, seed=seed, parallel=PARALLEL, first=first
        ).groups
    pairs = [
        (mine, theirs)
        for own, given in zip(groups, cell.data.groups, strict=True)
        for mine, theirs in zip(own, given, strict=True)
    ]
    same = sum([turn.reply for turn in mine.turns] == [turn.reply for turn in theirs.turns] for mine, theirs in pairs)
    return Equal(same, len(pairs), sum(mine.success for mine, _ in pairs), sum(theirs.success for _, theirs in pairs))
