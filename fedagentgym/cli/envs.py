"""`fedagentgym envs`: the environments with their splits, sizes and categories."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.imports import load_installed_plugins
from fedagentgym.base.progress import get_console, make_table, print_result
from fedagentgym.base.rounding import count_things
from fedagentgym.cli.completion import complete_environments
from fedagentgym.cli.options import ENV_SET, JSON, PLUGINS, command, open_named_env, option, parse_env_options
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.envs.registry import find_env_id

SHOWN_SPLITS = ("train", "val", "test")


@command(epilog="Example: fedagentgym envs WebShop", excludes=(("markdown", "as_json"), ("markdown", "env_set")))
@click.argument("name", required=False, shell_complete=complete_environments, help="Only this environment.")
@ENV_SET
@PLUGINS
@option("--markdown", is_flag=True, help="Print the options of all environments as a page of documentation.")
@JSON
def envs(name: str | None, env_set: tuple[str, ...], markdown: bool, as_json: bool) -> None:
    """List the environments, one line each; with a name, describe that environment."""
    load_installed_plugins()
    chosen = [find_env_id(name)] if name is not None else list(ENVIRONMENTS.names())
    if markdown:
        from fedagentgym.cli.options_reference import write_options

        click.echo(write_options(chosen), nl=False)
        return
    options = parse_env_options(env_set, instead=None)
    found, faults = [], dict[str, str]()
    for env_id in chosen:
        try:
            found.append(describe(env_id, options))
        except FedAgentGymError as error:
            if name is not None or env_set:
                raise
            faults[env_id] = str(error)  # such as missing data of a plugin's environment: the others are still listed
    if as_json:
        unusable = [{"id": env_id, "error": fault} for env_id, fault in faults.items()]
        click.echo(json.dumps([*found, *unusable], indent=2, default=str))
        return
    if name is not None:
        _show_details(found[0])
        return
    rows = []
    for entry in found:
        sizes = [f"{entry['splits'][split]:,}" if split in entry["splits"] else "-" for split in SHOWN_SPLITS]
        rows.append((entry["id"], entry["takes"], str(entry["max_turns"]), *sizes, str(len(entry["categories"]))))
    print_result(make_table(("environment", "takes", "turns", *SHOWN_SPLITS, "categories"), rows, text=2))
    for env_id, fault in faults.items():
        print_result(f"not listed: {env_id}: {fault}")
    print_result("more about one: fedagentgym envs WebShop; play it: fedagentgym play WebShop")


def _show_details(entry: dict[str, Any]) -> None:
    """Print the description of an environment, one property per line."""
    splits = ", ".join(f"{split} {size:,}" for split, size in entry["splits"].items())
    categories = ", ".join(f"{category} {count:,}" for category, count in entry["categories"].items())
    options = ", ".join(f"{name}={json.dumps(one['default'], default=str)}" for name, one in entry["options"].items())
    rows = {
        "": entry["summary"],
        "takes": f"a {entry['takes']} a turn, at most {count_things(entry['max_turns'], 'turn')}",
        "instructions to agents": entry["help"],
        "splits": f"{splits}; evaluated on {', '.join(entry['evaluation_splits'])}",
        f"categories ({entry['split']})": categories,
        "rewards": ", ".join(entry["rewards"]),
        "clients can differ by": ", ".join(entry["variants"]) or "nothing",
        "options (--env-set)": options,
        "pool": entry["pool_digest"],
    }
    print_result(entry["id"])
    width = min(get_console().width, 100) - 2
    for head, text in rows.items():
        for line in textwrap.wrap(f"{head}: {text}" if head else text, width, subsequent_indent="  "):
            print_result(line)


def describe(env_id: str, options: dict[str, Any]) -> dict[str, Any]:
    """The description of an environment as plain data."""
    env = open_named_env(env_id, options)
    summary = (type(env).__doc__ or "").strip().partition("\n")[0]
    return {
        "id": env_id,
        "summary": summary,
        "takes": env.takes,
        "max_turns": env.max_turns,
        "splits": env.split_sizes(),
        "split": env.pool.split,
        "evaluation_splits": list(env.evaluation_splits),
        "categories": env.pool.categories,
        "variants": [variant.kind for variant in env.variants],
        "help": env.action_help,
        "options": {
            name: {"default": field.default, "mark": env.options.get_marks()[name], "about": field.description or ""}
            for name, field in type(env.options).model_fields.items()
        },
        "rewards": list(env.reward_names),
        "pool_digest": env.pool.digest,
    }
