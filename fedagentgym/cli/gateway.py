"""`fedagentgym gateway`: serve a policy to an agent program, check the calls of a program, or write an example program."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedagentgym.base.errors import OptionError
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import atomic_folder, format_path, write_atomic
from fedagentgym.base.progress import print_result
from fedagentgym.base.rounding import format_fixed
from fedagentgym.cli.gateway_programs import NEEDED, PROGRAMS, RUN_FILE
from fedagentgym.cli.options import (
    AGENT_SET,
    ENV_SET,
    NOT_NEGATIVE,
    PATH,
    PLUGINS,
    POSITIVE,
    Group,
    open_named_env,
    option,
    parse_agent_settings,
    parse_env_options,
    refuse_keys,
)

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.gateway.harness import Harness
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.learning.rollouts import Rollouts

ENV = option("--env", default="Guess", help="Environment id or short name; Own if the program has its own environment.")
AGENT = option("--agent", default="tiny", help="A language model: tiny, smollm2, a model's name, folder or hub id.")
SPLIT = option("--split", help="Split whose tasks are played; default: the environment's first.")
WORDS = {
    "branch": "begin a segment since an earlier call continued the same messages (two replies to a prompt, or a second attempt)",
    "edited": "begin a segment since the messages do not begin with those of an earlier call and its reply (another system"
    " prompt, a summary, dropped messages)",
    "tools": "begin a segment since the tools differ from those of the earlier call",
    "template": "begin a segment since the chat template writes earlier replies with other tokens than were sampled",
    "overridden": "asked for other decoding settings such as temperature or top_p, which were ignored",
    "seeded": "gave a seed, which was ignored, since the run seeds the sampling",
    "calls_after_end": "came after the environment had ended the episode, and got an empty reply",
    "refused": "were refused, with the reason in the log",
}
"""The words that follow each count of calls in the report."""


@click.group(cls=Group)
def gateway() -> None:
    """Let your own agent program play with a policy: write an example, check a program, or serve a policy."""


@gateway.command(epilog="Example: fedagentgym gateway serve --agent tiny --env Guess --episodes 10")
@ENV
@AGENT
@SPLIT
@option("--episodes", type=POSITIVE, default=8, help="Episodes to hand out; their tasks are the first ones, in order.")
@option("--port", type=NOT_NEGATIVE, default=0, help="Port of 127.0.0.1; 0: a free one.")
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of episodes and draws.")
@option(
    "--out",
    "output",
    type=PATH,
    default=Path("gateway.jsonl"),
    help="File for the episodes; the key is in OUT.key until the command ends.",
)
@ENV_SET
@AGENT_SET
@PLUGINS
def serve(
    env: str,
    agent: str,
    split: str | None,
    episodes: int,
    port: int,
    seed: int,
    output: Path,
    env_set: tuple[str, ...],
    agent_set: tuple[str, ...],
) -> None:
    """Serve a policy to programs that you start, and record their episodes; nothing is trained."""
    from fedagentgym.learning.evaluation import format_episodes

    started = "you start the programs yourself"
    refuse_keys(agent_set, dict.fromkeys(("harness.command", "harness.processes"), started))
    world = _open_env(env, split, env_set)
    player, harness = _make_player(agent, agent_set, world, ())
    if output.is_dir():
        raise OptionError(f"--out {format_path(output)}: it is a folder, a file is expected")
    key, place = secrets.token_hex(16), output.with_name(f"{output.name}.key")
    harness.keys[key] = "outside"
    write_atomic(place, key, mode=0o600)
    with contextlib.closing(player):
        try:
            print_result(f"GATEWAY_URL={harness.open(port)}")
            print_result(f'GATEWAY_KEY="$(cat {quote_word(place)})"')
            found = _collect(player, world, episodes, seed)
        finally:
            place.unlink(missing_ok=True)
    write_atomic(output, format_episodes(found.groups, player, world))
    _report(found)
    print_result(f"episodes: {output}")


@gateway.command(
    epilog="Example: fedagentgym gateway check -- python my_agent.py", context_settings={"ignore_unknown_options": True}
)
@ENV
@AGENT
@SPLIT
@option("--episodes", type=POSITIVE, default=8, help="Episodes to play.")
@option("--processes", type=click.IntRange(1, 64), default=2, help="Number of programs that run at the same time.")
@option(
    "--twice",
    is_flag=True,
    help="Play all episodes again with new programs, and report whether the tokens are the same.",
)
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of episodes and draws.")
@ENV_SET
@AGENT_SET
@PLUGINS
@click.argument("command", nargs=-1, required=True, help="The program and its arguments, after --.")
def check(
    env: str,
    agent: str,
    split: str | None,
    episodes: int,
    processes: int,
    twice: bool,
    seed: int,
    env_set: tuple[str, ...],
    agent_set: tuple[str, ...],
    command: tuple[str, ...],
) -> None:
    """Play some episodes with a program and report on its calls. Exits with 2 if there was no call or no action."""
    decided = {"harness.command": "the program stands after --", "harness.processes": "--processes says how many"}
    refuse_keys(agent_set, decided)
    world = _open_env(env, split, env_set)
    player, _ = _make_player(agent, (*agent_set, f"harness.processes={processes}"), world, command)
    with contextlib.closing(player):
        found = _collect(player, world, episodes, seed)
        player.close()
        again = _collect(player, world, episodes, seed) if twice else found
    _report(found)
    if twice:
        same = _list_tokens(found) == _list_tokens(again)
        print_result(
            "played twice: the same tokens"
            if same
            else "played twice: other tokens: the program uses clocks, random numbers or its own files, or its calls race"
        )
    if not found.program["calls"]:
        raise OptionError("the program did not call the model: does it use the base_url and key of its episode?")
    if found.program["without_action"] == episodes:
        how = "/v1/reward" if getattr(world, "is_reported", False) else "/v1/step"
        raise OptionError(f"no episode has an action: does the program send the model's actions to {how}?")


@gateway.command(epilog="Example: fedagentgym gateway init my-agent --for langgraph")
@click.argument("folder", type=PATH, help="Folder to write; it must not exist.")
@option(
    "--for",
    "library",
    type=click.Choice(list(PROGRAMS)),
    default="openai",
    help="The library with which the program is written.",
)
def init(folder: Path, library: str) -> None:
    """Write my_agent.py, a program that runs without changes, and run.yaml, the configuration that trains it."""
    with atomic_folder(folder) as made:
        (made / "my_agent.py").write_text(PROGRAMS[library], encoding="utf-8")
        (made / "run.yaml").write_text(RUN_FILE, encoding="utf-8")
    first = f"pip install {packages}, then " if (packages := NEEDED[library]) else ""
    print_result(f"wrote {folder}: {first}`cd {quote_word(folder)} && fedagentgym train run.yaml`")


def _open_env(name: str, split: str | None, env_set: Sequence[str]) -> TextEnv:
    return open_named_env(name, {**({} if split is None else {"split": split}), **parse_env_options(env_set)})


def _make_player(
    name: str, agent_set: Sequence[str], world: TextEnv, command: Sequence[str]
) -> tuple[TokenAgent, Harness]:
    """The agent with its harness."""
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.gateway.harness import Harness
    from fedagentgym.agents.presets import make_agent

    own = {"world": "own"} if getattr(world, "is_reported", False) else {}
    settings: dict[str, Any] = parse_agent_settings(name, agent_set)
    settings["harness"] = {**own, "command": list(command), **(settings.get("harness") or {})}
    if command:
        settings["harness"]["command"] = list(command)
    player = make_agent(settings, world)
    assert isinstance(player, TokenAgent) and isinstance(player.harness, Harness)
    return player, player.harness


def _collect(player: TokenAgent, world: TextEnv, episodes: int, seed: int) -> Rollouts:
    from fedagentgym.base.progress import show_progress
    from fedagentgym.learning.rollouts import collect

    ids = world.pool.ids
    with show_progress("playing", episodes) as bar:
        return collect(player, world, [ids[place % len(ids)] for place in range(episodes)], seed=seed, progress=bar)


def _list_tokens(found: Rollouts) -> list[Any]:
    return [
        (turn.reply, turn.acts, turn.segment, turn.tokens)
        for trajectory in found.trajectories
        for turn in trajectory.turns
    ]


def _report(found: Rollouts) -> None:
    """Print the counts of episodes and calls, and the problems among the calls."""
    counts, metrics = found.program, found.compute_metrics()
    episodes = len(found.trajectories)
    calls, segments = int(counts["calls"]), int(counts["segments"])
    seconds = format_fixed(found.stats.agent_seconds, 1)
    print_result(f"{episodes} episodes, {calls} calls, {int(metrics['env_steps'])} actions in {seconds} s")
    if episodes:
        print_result(f"success {format_fixed(metrics['success'], 3)}, reward {format_fixed(metrics['reward'], 3)}")
    if calls:
        print_result(
            f"segments per episode: {format_fixed(segments / max(episodes, 1), 2)} (1 is cheapest: each call extends the last)"
        )
    for name, words in WORDS.items():
        if counts.get(name):
            print_result(f"{int(counts[name])} calls {words}")
    if counts["without_action"]:
        print_result(f"{int(counts['without_action'])} episodes have no action")
    if counts["retries"]:
        print_result(f"{int(counts['retries'])} episodes were restarted, since the program ended or exceeded its time")
    for name in (name for name, number in counts.items() if number and name.startswith("lost/")):
        print_result(f"{int(counts[name])} episodes were lost: {name.removeprefix('lost/').replace('_', ' ')}")
