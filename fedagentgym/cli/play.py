"""`fedagentgym play`: a person plays an episode in the terminal, or watches an agent play one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.process import explain_interruption
from fedagentgym.base.progress import get_console
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.streams import stream
from fedagentgym.cli.completion import complete_agents, complete_environments
from fedagentgym.cli.options import (
    CLIENT,
    CLIENT_SPLIT,
    ENV_SET,
    NOT_NEGATIVE,
    PLUGINS,
    command,
    find_named_client,
    open_named_env,
    option,
    parse_agent_settings,
    parse_env_options,
)
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.protocols import ShownToPeople, find_listed, present
from fedagentgym.envs.scripted import fill_slot
from fedagentgym.envs.transcripts import format_transcript
from fedagentgym.envs.verifiers.formats import ANSWER, TAGS, THINK
from fedagentgym.envs.view import SLOT, Episode, View

if TYPE_CHECKING:
    from fedagentgym.agents.protocols import Player

COMMANDS = {
    "help": "this list",
    "actions": "list the admissible actions",
    "undo": "take a step back",
    "history": "the episode so far",
    "save FILE": "write the episode to a file",
    "quit": "leave",
}
"""Commands that can be typed instead of an action, with or without a leading colon. They take no turn."""
_COMMAND = re.compile(r"\A:?\s*(help|actions|undo|history|quit|save\s+\S.*)", re.IGNORECASE)
SHOWN_CHOICES = 60
_GAP = 2
_CALL = re.compile(r"\A[a-z_]{1,20}\[.*\]", re.DOTALL)


@command(epilog="Example: fedagentgym play ALFWorld --env-set size=tiny")
@click.argument(
    "env",
    shell_complete=complete_environments,
    required=False,
    help="Environment id, for example fedagentgym/WebShop-v0 (or only WebShop).",
)
@option("--task", help="Task id; default: drawn with the seed.")
@option("--split", help="Split to take the task from; default: train.")
@option("--seed", type=NOT_NEGATIVE, default=0, help="Seed of the episode.")
@option(
    "--agent",
    shell_complete=complete_agents,
    help="Watch this agent instead, such as expert, random, tiny or an exported folder.",
)
@CLIENT
@CLIENT_SPLIT
@ENV_SET
@PLUGINS
def play(
    env: str | None,
    task: str | None,
    split: str | None,
    seed: int,
    agent: str | None,
    client: int | None,
    client_split: Path | None,
    env_set: tuple[str, ...],
) -> None:
    """Play an episode yourself, or watch an agent play one."""
    options = parse_env_options(env_set)
    if (named := find_named_client(client, client_split)) is not None:
        from fedagentgym.experiment.evaluation import open_client_env

        opened = open_client_env(named, env=env, split=split, options=options)
    elif env is not None:
        opened = open_named_env(env, {"split": split or "train", **options})
    else:
        raise OptionError("name an environment, for example: fedagentgym play WebShop (`fedagentgym envs` lists them)")
    opened.reset(seed=seed, options={"task": task} if task is not None else None)
    if agent is not None:
        from fedagentgym.agents.presets import make_agent

        _watch(opened, make_agent(parse_agent_settings(agent), opened, seed), seed)
        return
    with explain_interruption(lambda: "the episode is not saved (`save FILE` does that while you play)"):
        PlaySession(opened, get_console()).run()


# ---- watching -------------------------------------------------------------------------------------------------------


def _watch(env: TextEnv, player: Player, seed: int) -> None:
    """Let an agent play the episode. Admissible actions are listed if the environment shows observations for people."""
    session = PlaySession(env, get_console(), watched=True)
    session.show_heading("")
    session.show(env.episode)
    with player.play(env) as players:
        rows = players.enter([env.episode], [stream(seed, "sample", 0)])
        while not env.episode.over:
            (move,) = players.act(rows, [env.episode])
            if move.finish == "context":
                session.say("[yellow]the agent's context is full[/]")
                break
            said = "" if move.reply.strip() == move.action.strip() else f"   [dim]{escape(move.reply.strip())}[/]"
            session.say(f"[bold]> {escape(move.action)}[/]{said}")
            env.step(move.action)
            session.show(env.episode)
        players.leave(rows)


# ---- playing --------------------------------------------------------------------------------------------------------


class PlaySession:
    """A running episode in the terminal. Every earlier state is kept for `undo`."""

    def __init__(self, env: TextEnv, screen: Console, *, watched: bool = False) -> None:
        self.env, self.screen = env, screen
        self._hints = not watched
        self._lists_choices = not watched or isinstance(env, ShownToPeople)
        self.past: list[tuple[Episode, str]] = []
        self._takes_code = env.takes == "reply" and bool(getattr(env, "code_replies", False))

    def run(self) -> None:
        _enable_completion(self.env)
        typed = "a program and an empty line" if self._takes_code else "your answer"
        typed = "a number or an action" if self.env.takes == "command" else typed
        self.show_heading(f"type {typed}; help, undo, history, quit take no turn")
        self.show(self.env.episode)
        for line in self._read_lines():
            command = _COMMAND.fullmatch(line.strip())
            if command is None and not line.strip().startswith(":"):
                self._act(line)
            elif command is not None and command[1].lower() == "quit":
                return
            else:
                self._obey("help" if command is None else command[1])

    def _read_lines(self) -> Iterator[str]:
        """The inputs of the person, until the input ends: lines, or for code all lines up to an empty one."""
        while True:
            try:
                line = input("> ")
                if self._takes_code and line.strip() and _COMMAND.fullmatch(line.strip()) is None:
                    more = iter(lambda: input(". "), "")
                    line = "\n".join([line, *more])
            except EOFError:
                return
            yield line

    def _act(self, line: str) -> None:
        view = self.env.episode.view
        if not line.strip():
            return
        if self.env.episode.over:
            self.say("[dim]The episode is over: undo or quit.[/]")
            return
        if (choice := needs_words(line, view)) is not None:
            self.say(f"[dim]{escape(choice)}: type the words themselves[/]")
            return
        action = resolve_line(line, self.env, view)
        if action.strip() != line.strip() and self.env.takes == "command":
            self.say(f"[dim]{escape(action)}[/]")
        self.past.append((self.env.snapshot(), action))
        self.env.step(action)
        self.show(self.env.episode)

    def _obey(self, command: str) -> None:
        name, _, argument = command.partition(" ")
        match name.lower():
            case "undo" if not self.past:
                self.say("[dim]Nothing to undo.[/]")
            case "undo":
                episode, _ = self.past.pop()
                self.env.restore(episode)
                self.show(episode)
            case "actions":
                self._list_choices(len(self.env.episode.view.admissible or ()))
            case "history":
                for number, (episode, action) in enumerate(self.past, start=1):
                    shown, _ = present(self.env, episode.view)
                    self.say(f"[dim]{number}[/] {escape(shown)}\n[bold]> {escape(action)}[/]")
            case "save":  # as a transcript, which `fedagentgym.envs.transcripts` can replay
                path, actions = argument.strip(), ["", *(action for _, action in self.past)]
                states = [*(episode for episode, _ in self.past), self.env.episode]
                try:
                    write_atomic(path, format_transcript(zip(actions, states, strict=True)))
                except DataError as error:
                    self.say(f"[red]{escape(str(error))}[/]")
                else:
                    self.say(f"[dim]saved to {escape(path)}[/]")
            case _:
                for known, meaning in COMMANDS.items():
                    self.say(f"  {known:10s} [dim]{meaning}[/]")
                self.say(f"[dim]{escape(self.env.action_help)}[/]")

    # ---- the screen -------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print text with markup of this module; callers must escape other text."""
        self.screen.print(text, markup=True)

    def show_heading(self, hint: str) -> None:
        task = self.env.episode.task
        self.say(f"[bold]{escape(task.id)}[/]  {escape(self.env.action_help)}")
        if hint:
            self.say(f"[dim]{hint}[/]")

    def show(self, episode: Episode) -> None:
        """Print the state of the episode and the available actions."""
        view = episode.view
        shown, _ = present(self.env, view)
        self.say(f"\n[bold cyan]{episode.turn}[/] {escape(shown)}")
        if not view.valid:
            self.say("[yellow]not recognised[/]")
        if episode.terminated:
            verdict = "[green]solved[/]" if view.success else "[red]over[/]"
            turns = f"{episode.turn} turn{'s' if episode.turn != 1 else ''}"
            self.say(
                f"{verdict}  score {format_fixed(view.score, 3)}, {turns}" + ("; undo or quit" if self._hints else "")
            )
        elif episode.truncated:
            self.say(f"[red]out of turns[/]  ({episode.turn})" + ("; you may continue, or quit" if self._hints else ""))
        if self._lists_choices and not episode.terminated:
            self._list_choices()

    def _list_choices(self, most: int | None = None) -> None:
        view = self.env.episode.view
        if view.admissible is None:
            return
        _, labels = present(self.env, view)
        width = self.screen.width - 2
        lines = format_choices(labels, width) if most is None else format_choices(labels, width, most)
        for line in lines:
            self.screen.print(f"  [dim]{escape(line)}[/]", markup=True, highlight=False)


def _enable_completion(env: TextEnv) -> None:
    """Let Tab complete admissible actions and commands, if Python has readline."""
    try:
        import readline
    except ImportError:
        return

    def complete(text: str, index: int) -> str | None:
        known = [*(env.episode.view.admissible or ()), *(name.partition(" ")[0] for name in COMMANDS)]
        matches = [entry for entry in known if entry.startswith(text)]
        return matches[index] if index < len(matches) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


# ---- choices and typed lines ---------------------------------------------------------------------------------------


def format_choices(labels: Sequence[str], width: int, most: int = SHOWN_CHOICES) -> list[str]:
    """The lines of a list of numbered choices, in as many columns as fit. A choice that is longer than a line is cut.

    >>> format_choices(["look", "go to fridge 1", "go to sink 1"], 40)
    ['1 look            3 go to sink 1', '2 go to fridge 1']
    """
    shown = list(labels[:most])
    digits = len(str(len(shown)))
    texts = [f"{number:>{digits}} {label}" for number, label in enumerate(shown, start=1)]
    cells = [text if len(text) <= width else f"{text[: max(width - 3, 1)]}..." for text in texts]
    if not cells:
        return []
    column = max(map(len, cells)) + _GAP
    rows = -(-len(cells) // max(1, (width + _GAP) // column))
    lines = ["".join(cell.ljust(column) for cell in cells[row::rows]).rstrip() for row in range(rows)]
    more = len(labels) - len(shown)
    return [*lines, f"... and {more} more: `actions` lists them all"] if more else lines


def resolve_line(line: str, env: TextEnv, view: View) -> str:
    """The action that a typed line means. The line may be the number or the text of a choice, the words for a slot, or a bare
    answer; any other line is the action itself.

    A line that equals an action is never interpreted otherwise.
    """
    text = line.strip()
    if env.takes == "reply":
        return wrap_answer(text, bool(getattr(env, "code_replies", False)))
    actions = view.admissible or ()
    if text in actions or not actions:
        return line
    if (listed := find_listed(text, actions)) is not None:
        return line if SLOT.search(listed) else listed
    _, labels = present(env, view)
    said = [action for action, label in zip(actions, labels, strict=True) if text.lower() in _list_names(action, label)]
    if len(said) == 1:
        return said[0]
    slots = [action for action in actions if SLOT.search(action)]
    if len(slots) == 1 and text and not _CALL.fullmatch(text):
        return fill_slot(slots[0], text)
    return line


def needs_words(line: str, view: View) -> str | None:
    """The choice with this number, if it has a slot for which the player must type words; else None."""
    listed = find_listed(line, view.admissible or ())
    return listed if listed is not None and SLOT.search(listed) else None


def _list_names(action: str, label: str) -> tuple[str, ...]:
    inside = re.fullmatch(r"\A[a-z_]+\[(.*)\]", action, re.DOTALL)
    return (label.lower(), *((inside[1].lower(),) if inside else ()))


def wrap_answer(text: str, code: bool = False) -> str:
    """Wrap a bare answer to a complete reply. A reply with tags, code fences, or a tool call is returned unchanged.

    >>> wrap_answer("12")
    '<think> </think> <answer> 12 </answer>'
    """
    if not text or any(tag in text for tag in TAGS) or "```" in text or _CALL.fullmatch(text):
        return text
    answer = f"\n```python\n{text}\n```\n" if code else f" {text} "
    return f"{THINK[0]} {THINK[1]} {ANSWER[0]}{answer}{ANSWER[1]}"
