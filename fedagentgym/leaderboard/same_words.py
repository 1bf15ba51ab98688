"""Who spoke: the agent plays the same episodes anew, and must say the same words.

What an agent says follows from its weights, the prompt and the episode's stream of random numbers. Arithmetic on another machine
may turn a token now and then, after which the rest of an episode is another; so a small share of episodes may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedagentgym.agents import AGENTS
from fedagentgym.agents.make import make_agent
from fedagentgym.agents.models.store import identify_model
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.streams import derive
from fedagentgym.leaderboard.cells import PARALLEL, TASKS_OF_A_PART
from fedagentgym.leaderboard.evidence import Examined, Folder, RefutedError, check_config
from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
from fedagentgym.learning.rollouts import Player, collect
from fedagentgym.learning.trajectory import Group

LEAST_EQUAL = 0.98
"""Share of episodes that must be equal to the letter, where weights are played on another machine."""
PROGRAMS = ("expert", "random")


def check_program(folder: Folder, cells: Sequence[Examined]) -> str | None:
    """A program of this package plays anew by itself; of anybody else nothing is known."""
    agent = folder.manifest.entry.agent
    name = agent.settings.get("name")
    if agent.kind != "program" or name not in PROGRAMS or not isinstance(AGENTS.get_target(str(name)), str):
        return None
    for cell in cells:
        opened = folder.opened[cell.data.scenario]
        player = make_agent(agent.settings, opened.env)
        same, total = count_equal(folder, cell, player, "program")
        if same != total:
            raise RefutedError("who-spoke", f"cell {cell.data.scenario}-seed{cell.data.seed}: {name!r} plays otherwise")
    return f"{name} played the same episodes again"


def check_model(folder: Folder, cells: Sequence[Examined], model: Path) -> str:
    """The weights of a folder play anew: they must be those that the result names, and say the same."""
    agent = folder.manifest.entry.agent
    if agent.kind != "model":
        raise RefutedError("who-spoke", f"{agent.kind} agents have no weights that could be given")
    if not folder.is_method and agent.weights is not None and identify_model(model) != agent.weights:
        raise RefutedError("who-spoke", f"{model} does not hold the weights that the manifest names, {agent.weights}")
    same, total, played = 0, 0, 0
    for cell in cells:
        player = load_player(folder, cell, model)
        if player is None:
            continue
        found = count_equal(folder, cell, player, "model")
        same, total, played = same + found[0], total + found[1], played + 1
    if not played:
        raise RefutedError("who-spoke", f"{model} holds the policy of no cell of this result")
    if same < LEAST_EQUAL * total:
        raise RefutedError("who-spoke", f"{model} says the same in {same} of {total} episodes: another policy played")
    return f"{played} of {len(cells)} cells were played again with the weights: {same} of {total} episodes are equal"


def load_player(folder: Folder, cell: Examined, model: Path) -> Player | None:
    """The agent with these weights as it would play a cell; None if the cell was played by other weights."""
    opened = folder.opened[cell.data.scenario]
    if folder.is_method:
        record = next(
            one for one in folder.manifest.cells if (one.scenario, one.seed) == (cell.data.scenario, cell.data.seed)
        )
        settings = check_config(folder, record).agent
    else:
        settings = AgentSettings.load(folder.manifest.entry.agent.settings, "agent")
    player = make_agent(settings.model_copy(update={"model": str(model)}), opened.env)
    if folder.is_method and compute_policy_digest(player) != cell.data.policy:
        return None
    return with_temperature(player, folder.suite.ranking.temperature)


def count_equal(folder: Folder, cell: Examined, player: Player, kind: str) -> tuple[int, int]:
    """How many episodes of a cell are the same when they are played anew, and how many there are."""
    opened = folder.opened[cell.data.scenario]
    repeats = folder.suite.get_ranking(cell.data.scenario).repeats
    size = len(opened.ids) if folder.is_method else TASKS_OF_A_PART[kind]
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
    return same, len(pairs)
