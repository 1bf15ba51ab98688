"""The program `fedagentgym`: a table of its commands, each of which is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fedagentgym.base.imports import resolve
from fedagentgym.cli.completion import INSTALL, SHOW
from fedagentgym.cli.options import Group
from fedagentgym.version import __version__

COMMANDS = {
    "envs": ("envs:envs", "List the environments, one line each; with a name, describe that environment."),
    "play": ("play:play", "Play an episode yourself, or watch an agent play one."),
    "split": ("split:split", "Divide tasks among clients; show, verify, plot and compare splits."),
    "label": ("label:label", "Label a pool: play every task a few times and record how often it was solved."),
    "data": ("data:data", "List, install and check original data sets."),
    "model": ("data:model", "Add language models to the cache and use them by name."),
    "pretrain": (
        "pretrain:pretrain",
        "Imitate an environment's expert on the warmup split, and save the model as an ordinary folder.",
    ),
    "demo": (
        "train:demo",
        "Train one client alone and then six together, in minutes on two cores; writes a page that compares them.",
    ),
    "presets": (
        "train:presets",
        "List the presets with their variants; with a name, print the settings of that preset.",
    ),
    "plan": ("train:plan", "Print episodes, tokens, bytes, memory, hours and price that a run needs."),
    "first-batch": (
        "train:first_batch",
        "Play a batch before learning: prompt, reply, grade, and whether the run can learn.",
    ),
    "train": ("train:train", "Train agents, federated or not, with a configuration; writes report.html."),
    "resume": ("train:resume", "Resume an interrupted run, or make a finished one longer."),
    "eval": (
        "eval:evaluate",
        "Evaluate an agent on a split: success, score, turns and invalid actions, with intervals.",
    ),
    "episodes": (
        "episodes:episodes",
        "Print episodes: task, every turn with observation, reply and action, rewards, invalid actions, the last answer.",
    ),
    "settings": (
        "train:settings",
        "Print the settings of a run: every key with its default, its type and its meaning.",
    ),
    "report": ("train:report", "Write report.html, the page of a run, for a run that is finished or not."),
    "export": (
        "train:export",
        "Write the trained policy: model and tokenizer in one folder that transformers and vLLM load, or only the adapter.",
    ),
    "chats": (
        "episodes:chats",
        "Write episodes as conversations: system, user and assistant messages, with task, success and score beside them.",
    ),
    "client": ("client:client", "Describe tasks that stay on your own machine, and see what a run would send."),
    "flower": ("train:flower", "Run a configuration on a Flower deployment."),
    "gateway": (
        "gateway:gateway",
        "Let your own agent program play with a policy: write an example, check a program, or serve a policy.",
    ),
    "openenv": ("openenv:openenv", "Serve environments with OpenEnv's protocol."),
    "hub": (
        "hub:hub",
        "Push client splits, results and exported agents to the Hugging Face Hub, and pull them.",
    ),
    "bench": ("bench:bench", "Run benchmark suites, pack and verify their results."),
    "compare": (
        "leaderboard:compare",
        "Compare runs with the first of them: paired differences with intervals, and a page.",
    ),
    "leaderboard": (
        "leaderboard:leaderboard",
        "Build the leaderboard, a page of results that opens from disk, or print its best entries.",
    ),
    "doctor": ("doctor:doctor", "Report versions, extras, data, GPU and disk, and what to install for missing parts."),
}
"""Module and attribute of every command, and the first paragraph of its help, so that `--help` imports no commands."""


class LazyGroup(Group):
    """A group whose commands are imported when they are called, as in click's documentation."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self.table:
            self.commands[cmd_name] = resolve(f"fedagentgym.cli.{self.table[cmd_name][0]}")
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.table:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.table, ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_summary(self, ctx: click.Context, name: str) -> str:
        return self.table[name][1]


@click.group("fedagentgym", cls=LazyGroup, table=COMMANDS, context_settings={"show_default": True})
@INSTALL
@SHOW
@click.option("--quiet", "-q", is_flag=True, help="Print results only, no progress.")
@click.version_option(__version__, message="fedagentgym %(version)s", help="Print the version and exit.")
def application(quiet: bool) -> None:
    """Environments, client splits and a trainer for federated reinforcement learning of LLM agents."""
    from fedagentgym.base.progress import set_verbosity

    set_verbosity("quiet" if quiet else "normal")


def load_application() -> click.Group:
    """The application with all its commands imported, for tests and for the page of all commands."""
    context = click.Context(application)
    for name in COMMANDS:
        application.get_command(context, name)
    return application
