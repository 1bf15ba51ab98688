"""`fedagentgym pretrain`: let a tiny agent (from scratch) or any language model imitate an environment's expert."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.progress import make_table, print_result
from fedagentgym.base.rounding import count_things, format_fixed, format_range
from fedagentgym.cli.completion import complete_environments
from fedagentgym.cli.options import (
    AGENT_SET,
    ENV_SET,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGINS,
    assignments,
    command,
    option,
    parse_agent_settings,
    parse_assignments,
    parse_env_options,
)
from fedagentgym.envs.registry import find_env_id

if TYPE_CHECKING:
    from fedagentgym.agents.settings import AgentSettings
    from fedagentgym.learning.settings import WarmStartSettings
    from fedagentgym.learning.shipped import Comparison

COLUMNS = ("shown right", "misled", "own procedure", "another", "episodes")


@command(
    epilog="Example: fedagentgym pretrain tiny --env ALFWorld --env-set size=tiny",
    modes=dict.fromkeys(("check", "ship"), ("env", "as_json")),
)
@click.argument("model", help="tiny (made from scratch), an agent such as smollm2, or a model: name, folder or hub id.")
@option("--env", shell_complete=complete_environments, help="Environment id or short name, for example ALFWorld.")
@ENV_SET
@AGENT_SET
@PLUGINS
@assignments("--set", "settings", help="Warm-start setting as key=value, for example steps=200.")
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of weights, demonstrations and batches.")
@option(
    "--out",
    "output",
    type=PATH,
    help="Folder to write; default: a folder in the cache, for tiny the one that this agent loads.",
)
@option("--force", is_flag=True, help="Train again even if the folder exists.")
@option("--check", is_flag=True, help="tiny: train the agents in the package (or those of --env) again, and compare.")
@option(
    "--ship", is_flag=True, help="tiny: train the agents in the package (or those of --env), and write them into it."
)
@JSON
def pretrain(
    model: str,
    env: str | None,
    env_set: tuple[str, ...],
    agent_set: tuple[str, ...],
    settings: tuple[str, ...],
    seed: int,
    output: Path | None,
    force: bool,
    check: bool,
    ship: bool,
    as_json: bool,
) -> None:
    """Imitate an environment's expert on the warmup split, and save the model as an ordinary folder."""
    from fedagentgym.agents.presets import starts_from_nothing
    from fedagentgym.learning.pretrain import pretrain_model, pretrain_tiny

    if check or ship:
        if model != "tiny":
            raise OptionError("--check and --ship are for the tiny agents of the package: name 'tiny'")
        (_ship if ship else _check)(None if env is None else find_env_id(env), as_json)
        return
    if env is None:
        raise OptionError("--env is missing: name the environment whose expert is imitated, for example --env ALFWorld")
    instead = "the expert is imitated on the split warmup"
    env_id, options = find_env_id(env), parse_env_options(env_set, instead=instead)
    agent, chosen = _choose_settings(env_id, model, agent_set, settings)
    if starts_from_nothing(agent):
        made = pretrain_tiny(env_id, options, chosen, agent=agent, folder=output, seed=seed, force=force)
    else:
        chosen = chosen.for_pretrained(agent.adapter is not None)
        made = pretrain_model(agent, env_id, options, chosen, folder=output, seed=seed, force=force)
    if as_json:
        click.echo(json.dumps({"folder": str(made.folder), "reused": made.reused, **made.note}))
        return
    found = "found" if made.reused else "made"
    print_result(f"{found} {made.folder}")
    tasks = f"{count_things(made.note['tasks'], 'task')} of the validation split"
    print_result(
        f"success {format_fixed(made.note['success'], 3)}, score {format_fixed(made.note['score'], 3)} on {tasks}"
    )
    if "beliefs" in made.note:
        # beliefs are the shares of new episodes that followed a category's own procedure and another one
        rows = []
        for category, about in made.note["misconceptions"].items():
            measured = ["", "", "0"]
            if (belief := made.note["beliefs"].get(category)) is not None:
                measured = [format_fixed(belief["own"], 3), format_fixed(belief["other"], 3), str(belief["episodes"])]
            rows.append((category, format_fixed(about["right"], 2), "yes" if about["misled"] else "no", *measured))
        print_result(make_table(("category", *COLUMNS), rows))


def _ship(env_id: str | None, as_json: bool) -> None:
    """Train the package's agents and write them into the package."""
    from fedagentgym.learning import shipped

    plain = []
    for name, recipe in shipped.list_shipped_recipes(env_id).items():
        made = shipped.ship(name, recipe)
        plain.append({"folder": str(made.folder), **made.note})
        if not as_json:
            print_result(f"made {made.folder}: success {format_fixed(made.note['success'], 3)}")
    if as_json:
        click.echo(json.dumps(plain))


def _check(env_id: str | None, as_json: bool) -> None:
    """Train the package's agents again and compare them with those in the package."""
    from fedagentgym.learning import shipped

    found = []
    for name, recipe in shipped.list_shipped_recipes(env_id).items():
        found.append(shipped.compare(name, recipe))
        if not as_json:
            print_result(_describe(found[-1]))
    if as_json:
        click.echo(json.dumps([{**one._asdict(), "agrees": one.agrees} for one in found]))
    if wrong := [one.name for one in found if not one.agrees]:
        raise DataError(f"these agents differ from those in the package: {', '.join(wrong)}")


def _describe(one: Comparison) -> str:
    low, high = one.interval
    if one.equal:
        return f"{one.name}: equal, bit by bit"
    where = "on the same kind of processor" if one.bits else "on another processor or torch"
    return f"{one.name}: other bits {where}, success {format_fixed(one.success, 3)} beside {format_range(low, high, 3)}"


def _choose_settings(
    env_id: str, model: str, agent_set: Iterable[str], settings: Iterable[str]
) -> tuple[AgentSettings, WarmStartSettings]:
    """The settings of the agent and of its warm start. For a tiny agent the given ones update the environment's recipe."""
    from fedagentgym.agents.settings import AgentSettings
    from fedagentgym.learning.recipe import find_recipe
    from fedagentgym.learning.settings import WarmStartSettings

    recipe = find_recipe(env_id) if model == "tiny" else None
    start = recipe.warm_start.model_dump(exclude_unset=True) if recipe is not None else {}
    agent = recipe.agent.model_dump(exclude_unset=True) if recipe is not None else {}
    agent = parse_assignments(agent_set, agent | parse_agent_settings(model))
    if model == "tiny" and agent.get("model") is not None:
        raise OptionError("'tiny' is made from scratch: to start from a model, name the model instead of 'tiny'")
    chosen = WarmStartSettings.load(parse_assignments(settings, start), "warm_start")
    return AgentSettings.load(agent, "agent"), chosen
