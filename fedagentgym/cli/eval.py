"""`fedagentgym eval`: evaluate an agent and record every episode, or check such a record by replaying it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedagentgym.base.errors import OptionError
from fedagentgym.base.progress import make_table, print_result
from fedagentgym.base.rounding import format_fixed, format_range, format_share
from fedagentgym.cli.completion import complete_agents, complete_environments
from fedagentgym.cli.options import (
    AGENT_SET,
    CLIENT,
    CLIENT_SPLIT,
    ENV_SET,
    EVALUATED,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGIN_NAMES,
    POSITIVE,
    TRUST_PLUGINS,
    command,
    find_named_client,
    option,
    parse_agent_settings,
    parse_env_options,
    refuse_keys,
    repeated,
)

if TYPE_CHECKING:
    from fedagentgym.experiment.evaluation import OpenedEvaluation
    from fedagentgym.learning.evaluation import SetsEvaluation
    from fedagentgym.learning.misconceptions import Belief

COLUMNS = ("success", "score", "turns", "invalid", "format_broken", "tokens")
"""The measures in the columns of the table."""


@command(
    "eval",
    epilog="Example: fedagentgym eval --env Guess --agent smollm2 --tasks 4",
    modes={
        "suite": ("agent", "agent_set", "scenarios", "output", "plugins", "as_json"),
        "check": ("env", "env_set", "split", "only", "plugins", "as_json"),
    },
    needs={
        "best": ("run",),
        "number": ("run",),
        "scenarios": ("suite",),
        "only": ("check",),
        "trust_plugins": ("run",),
    },
    excludes=(("best", "number"), ("run", "agent")),
)
@option(
    "--env",
    shell_complete=complete_environments,
    help="Environment id or short name, for example WebShop; default: that of the run or exported folder.",
)
@option(
    "--agent",
    shell_complete=complete_agents,
    help="tiny (the default), expert, random, ...; a model's name, folder or hub id; an exported folder.",
)
@option("--run", type=PATH, help="Evaluate the policy of the run in this folder.")
@option("--best", is_flag=True, help="With --run: evaluate its best round instead of the last.")
@option("--round", "number", type=int, help="With --run: evaluate this round instead of the last.")
@option("--split", help="Split whose tasks are played; default: the run's own, else val.")
@option("--tasks", type=POSITIVE, help="Play only this many tasks, the first of the split.")
@option("--repeats", type=POSITIVE, help="Episodes per task; default: the run's own, else 1.")
@option(
    "--temperature",
    type=click.FloatRange(0),
    help="Sampling temperature, 0 is greedy; default: the run's own, else 0.4.",
)
@option("--seed", type=NOT_NEGATIVE, help="Seed of episodes, sampling and intervals; default: the run's own, else 0.")
@option("--parallel", "parallel_episodes", type=POSITIVE, help="Episodes in parallel; default: the run's own, else 64.")
@CLIENT
@CLIENT_SPLIT
@option("--suite", help="Evaluate --agent in every scenario of this suite, as `bench run` does.")
@repeated("--scenario", "scenarios", metavar="NAME", help="With --suite: only this scenario; may be repeated.")
@option("--out", "output", type=PATH, help="Folder of the evaluation: configuration, episodes, record.")
@option("--check", type=PATH, help="Play the episodes of this file or run again, and report whether they agree.")
@option("--only", metavar="SET", help="With --check: only this evaluation set of the file.")
@ENV_SET
@AGENT_SET
@PLUGIN_NAMES
@TRUST_PLUGINS
@JSON
def evaluate(
    env: str | None,
    agent: str | None,
    run: Path | None,
    best: bool,
    number: int | None,
    split: str | None,
    seed: int | None,
    client: int | None,
    client_split: Path | None,
    suite: str | None,
    scenarios: tuple[str, ...],
    output: Path | None,
    check: Path | None,
    only: str | None,
    env_set: tuple[str, ...],
    agent_set: tuple[str, ...],
    plugins: tuple[str, ...],
    trust_plugins: bool,
    as_json: bool,
    **numbers: float | None,
) -> None:
    """Evaluate an agent on a split: success, score, turns and invalid actions, with intervals."""
    played = "tiny" if agent is None else agent
    if suite is not None:
        from fedagentgym.cli.bench import ROOT, play_suite

        play_suite(suite, played, agent_set, scenarios, plugins, output or ROOT, as_json)
        return
    options = parse_env_options(env_set)
    from fedagentgym.agents.settings import draws_tokens

    temperature = numbers["temperature"]
    if temperature is not None and agent is not None and not draws_tokens(agent):
        raise OptionError(f"--temperature does nothing to the agent {agent!r}: leave it out")
    if check is not None:
        _check(check, env, options, split, only, as_json)
        return
    from fedagentgym.experiment.agent_file import has_agent_file
    from fedagentgym.experiment.evaluation import EvaluationRequest, open_evaluation
    from fedagentgym.experiment.stored import Trust
    from fedagentgym.learning.misconceptions import measure_beliefs

    exported = agent is not None and has_agent_file(agent)
    refuse_keys(agent_set, EVALUATED | ({"name": f"the agent is that of {agent}"} if exported else {}))
    named = {} if exported or (run is not None and agent is None) else parse_agent_settings(played, agent_set)
    opened = open_evaluation(
        EvaluationRequest(
            agent=named,
            folder=Path(str(agent)) if exported else None,
            changes=agent_set,
            run=run,
            best=best,
            round=number,
            env=env,
            options=options,
            client=find_named_client(client, client_split),
            evaluation={name: value for name, value in {"split": split, **numbers}.items() if value is not None},
            seed=seed,
            trust=Trust(plugins, trust_plugins),
        )
    )
    first = opened.sets[0]
    where = first.settings.split if not first.name else "sets"
    whose = "" if opened.client is None else f"-client-{opened.client.index}"
    own = "" if opened.own_seed else f"-{opened.config.seed}"
    name = f"{first.env.id.rpartition('/')[2]}-{where}{whose}-{opened.config.name}{own}"
    folder = output or Path("evaluation") / name
    found = opened.play(folder)
    if hasattr(opened.agent, "close"):
        opened.agent.close()
    beliefs = {} if first.name else measure_beliefs(first.env, found.sets[""].groups)
    if as_json:
        extra: dict[str, Any] = {"seen": opened.seen} if opened.seen else {}
        if beliefs:
            extra["beliefs"] = {name: belief.to_plain() for name, belief in beliefs.items()}
        click.echo(json.dumps({**found.to_plain(), **extra, "folder": str(folder)}))
        return
    _show(found, opened, beliefs)
    if opened.seen:
        tasks = sum(one.tasks for one in found.sets.values())
        print_result(
            f"the run's clients train on {opened.seen:,} of these {tasks:,} tasks: this is not success on held-out tasks"
        )
    print_result(f"evaluation: {folder}")


def _check(
    place: Path, env: str | None, options: dict[str, Any], split: str | None, only: str | None, as_json: bool
) -> None:
    from fedagentgym.envs.own import REPORTED
    from fedagentgym.experiment.evaluation import check_episodes
    from fedagentgym.learning.trajectory import read_lines
    from fedagentgym.runs.folder import EVALUATION

    differences = check_episodes(place, env=env, options=options, split=split, only=only)
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise OptionError(f"{place} does not replay as recorded: {differences[0]}{more}")
    files = sorted((place / EVALUATION).glob("*.jsonl")) if place.is_dir() else [place]
    reported = any(line.about.get("verifier") == REPORTED for file in files for line in read_lines(file))
    if as_json:
        click.echo(json.dumps({"checked": str(place), "differences": 0, "reported_rewards": reported}))
        return
    rewards = "; its rewards were reported by a program and cannot be checked" if reported else ""
    print_result(f"{place}: every episode replays as recorded{rewards}")


def _show(found: SetsEvaluation, opened: OpenedEvaluation, beliefs: Mapping[str, Belief]) -> None:
    """Print a line for each category, or for each of several sets, and one for all; then, if some episodes followed another
    category's procedure, the shares that followed their own and another one; then the intervals."""
    if list(found.sets) == [""]:
        counts = Counter(group[0].category for group in found.sets[""].groups)
        parts = [(name, counts[name], estimates) for name, estimates in found.sets[""].categories.items()]
    else:
        parts = [(name, one.tasks, one.overall) for name, one in found.sets.items()]
    parts.append(("all", sum(one.tasks for one in found.sets.values()), found.overall))
    rows = [
        (label, str(count), *(format_fixed(estimates[name].mean, 3) for name in COLUMNS))
        for label, count, estimates in parts
    ]
    heads = [name.replace("format_broken", "malformed") for name in COLUMNS]
    print_result(make_table(("", "tasks", *heads), rows))
    if any(belief.other for belief in beliefs.values()):
        followed = [
            (name, format_fixed(belief.own, 3), format_fixed(belief.other, 3)) for name, belief in beliefs.items()
        ]
        print_result(make_table(("procedure followed", "own", "other"), followed))
    for name in ("success", "score"):
        mean, low, high = found.overall[name]
        level = format_share(opened.config.evaluation.confidence)
        print_result(f"{name} {format_fixed(mean, 3)}, {level} interval {format_range(low, high, 3)}")
    if opened.expected is not None:
        same = opened.expected == found.overall["success"].mean
        print_result("the run recorded the same" if same else f"the run recorded {format_fixed(opened.expected, 3)}")
