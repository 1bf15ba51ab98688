"""`fedagentgym label`: measure which tasks of a pool a policy solves, for splits by hardness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.process import explain_interruption
from fedagentgym.base.progress import print_result, show_progress
from fedagentgym.base.rounding import count_things, format_share
from fedagentgym.base.streams import derive
from fedagentgym.cli.completion import complete_agents, complete_environments
from fedagentgym.cli.options import (
    ENV_SET,
    NOT_NEGATIVE,
    PATH,
    PLUGINS,
    POSITIVE,
    command,
    open_named_env,
    option,
    parse_agent_settings,
    parse_env_options,
)
from fedagentgym.envs.core import TextEnv

ONE_SIDED = 0.1


@command(epilog="Example: fedagentgym label WebShop --env-set size=tiny --out labels.jsonl")
@click.argument(
    "env",
    shell_complete=complete_environments,
    help="Environment id, for example fedagentgym/WebShop-v0 (or only WebShop).",
)
@option(
    "--agent",
    shell_complete=complete_agents,
    default="handicapped",
    help="handicapped (the expert with random actions), random, or an agent or model that eval accepts.",
)
@option("--out", type=PATH, default=Path("labels.jsonl"), help="The label file; an unfinished file is continued.")
@option("--split", default="train", help="Split whose tasks are labelled.")
@option("--attempts", type=click.IntRange(1, 9), default=4, help="Episodes per task.")
@option("--threshold", type=POSITIVE, default=2, help="Minimum successes of a task that counts as solved.")
@option(
    "--error",
    type=click.FloatRange(0, 1),
    help="handicapped: probability of a random action; the environment declares a default.",
)
@option("--turns", type=POSITIVE, help="handicapped, random: turns per attempt; the environment declares a default.")
@option(
    "--temperature", type=click.FloatRange(0), help="Sampling temperature of an agent with a model, by default 0.4."
)
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of all attempts.")
@option("--pack", "packed", type=PATH, help="Also write the labels in the compact form of the labels in the package.")
@ENV_SET
@PLUGINS
def label(
    env: str,
    agent: str,
    out: Path,
    split: str,
    attempts: int,
    threshold: int,
    error: float | None,
    turns: int | None,
    temperature: float | None,
    seed: int,
    packed: Path | None,
    env_set: tuple[str, ...],
) -> None:
    """Label a pool: play every task a few times and record how often it was solved."""
    given = {"--error": error, "--turns": turns, "--temperature": temperature}
    used = {"handicapped": ("--error", "--turns"), "random": ("--turns",)}.get(agent, ("--temperature",))
    if vain := [name for name, value in given.items() if value is not None and name not in used]:
        raise OptionError(f"{vain[0]} does nothing to the agent {agent!r}: leave it out")
    from fedagentgym.envs.protocols import Handicap, get_handicap
    from fedagentgym.partitions.labels import LabelPlan, handicap_expert, label_pool, pack_labels, read_labels

    options = parse_env_options(env_set)
    opened = open_named_env(env, {**options, "split": split})
    split = opened.canonical_split(split)
    if agent in ("handicapped", "random"):
        usual = get_handicap(opened)
        chance = 1.0 if agent == "random" else usual.error if error is None else error
        handicap = Handicap(error=chance, turns=usual.turns if turns is None else turns)
        policy: dict[str, Any] = {"name": agent, **handicap.model_dump()}
        play = handicap_expert(opened, handicap, seed, attempts)
    else:
        policy, play = _make_player(agent, opened, seed, attempts, 0.4 if temperature is None else temperature)
    plan = LabelPlan(policy, opened.options.portable, seed=seed, attempts=attempts, threshold=threshold)
    done, total = 0, len(opened.pool)
    with (
        explain_interruption(
            lambda: f"{done:,} of {count_things(total, 'task')} are labelled in {out}; the same command continues"
        ),
        show_progress("labelling", total=total) as bar,
    ):
        for count in label_pool(opened, split, plan, play, out):
            bar.advance(count - done)
            done = count
    found = read_labels(out)
    solved = sum(count >= threshold for count in found.successes.values())
    share = solved / max(len(found.successes), 1)
    print_result(
        f"{out}: {solved:,} of {count_things(len(found.successes), 'task')} count as solved ({format_share(share, 1)})"
    )
    if not ONE_SIDED <= share <= 1 - ONE_SIDED:
        print_result("These labels are one-sided: for splits by hardness use another agent, handicap or threshold.")
    if packed is not None:
        write_atomic(packed, pack_labels(found, opened.pool.ids))


def _make_player(name: str, env: TextEnv, seed: int, attempts: int, temperature: float) -> tuple[dict[str, Any], Any]:
    """The record of an agent that `fedagentgym eval` accepts, and a function that returns its successes on each task."""
    from fedagentgym.agents.presets import make_agent
    from fedagentgym.learning.evaluation import compute_policy_digest, with_temperature
    from fedagentgym.learning.rollouts import collect

    player = with_temperature(make_agent(parse_agent_settings(name), env, seed), temperature)
    policy = {"name": Path(name).name, "temperature": temperature, "digest": compute_policy_digest(player)}

    def play(tasks: Sequence[str]) -> list[int]:
        rollouts = collect(player, env, list(tasks), group_size=attempts, seed=derive(seed, "label", tasks[0]))
        return [sum(int(trajectory.success) for trajectory in group) for group in rollouts.groups]

    return policy, play
