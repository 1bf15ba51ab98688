"""`fedagentgym play`: a person plays an episode in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.interruption import explain_interruption
from fedagentgym.base.progress import get_console
from fedagentgym.cli.environments import EnvId, EnvSet, env_options, open_named
from fedagentgym.cli.plugins import Plugins
from fedagentgym.envs.core import Episode, TextEnv
from fedagentgym.envs.transcripts import format_transcript

HELP = (
    ":actions lists what can be done, :undo takes a step back, :history tells the story so far, "
    ":save FILE writes it, :quit ends."
)
SHOWN_ACTIONS = 60


def play(
    env: EnvId,
    task: Annotated[str | None, typer.Option("--task", help="Task id; without it the seed picks one.")] = None,
    split: Annotated[str, typer.Option("--split", help="Split to take the task from.")] = "train",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the episode.")] = 0,
    env_set: EnvSet = None,
    plugins: Plugins = None,
) -> None:
    """Play an episode yourself."""
    opened = open_named(env, {"split": split, **env_options(env_set)})
    opened.reset(seed=seed, options={"task": task} if task is not None else None)
    with explain_interruption(lambda: "the episode is not saved (:save FILE does that while you play)"):
        PlaySession(opened, get_console()).run()


class PlaySession:
    """One episode under way, with every earlier moment kept for :undo."""

    def __init__(self, env: TextEnv, screen: Console) -> None:
        self.env, self.screen = env, screen
        self.past: list[tuple[Episode, str]] = []

    def run(self) -> None:
        _enable_completion(self.env)
        self._print(f"[bold]{escape(self.env.episode.task.id)}[/]  {escape(self.env.action_help)}\n[dim]{HELP}[/]")
        self._show(self.env.episode)
        while True:
            try:
                line = input("> ")
            except EOFError:
                return
            if line.strip() == ":quit":
                return
            self._handle_line(line)

    def _print(self, text: str) -> None:
        """Text with markup of ours; what comes from elsewhere is escaped by the caller."""
        self.screen.print(text, markup=True)

    def _handle_line(self, line: str) -> None:
        command = line.strip()
        if command == ":undo":
            self._undo()
        elif command == ":actions":
            self._list_actions()
        elif command == ":history":
            for number, (episode, action) in enumerate(self.past, start=1):
                self._print(f"[dim]{number}[/] {escape(action)}\n   {escape(episode.view.observation)}")
        elif command.startswith(":save "):
            self._save(command.removeprefix(":save ").strip())
        elif command.startswith(":"):
            self._print(f"[dim]{HELP}[/]")
        else:
            self.past.append((self.env.snapshot(), line))
            self.env.step(line)
            self._show(self.env.episode)

    def _save(self, path: str) -> None:
        """Write what was played as a transcript, which `fedagentgym.envs.transcripts` can play again."""
        episodes = [*(episode for episode, _ in self.past), self.env.episode]
        text = format_transcript(zip(["", *(action for _, action in self.past)], episodes, strict=True))
        try:
            write_atomic(path, text)
        except DataError as error:
            self._print(f"[red]{escape(str(error))}[/]")
        else:
            self._print(f"[dim]saved to {escape(path)}[/]")

    def _undo(self) -> None:
        if not self.past:
            self._print("[dim]Nothing to undo.[/]")
            return
        episode, _ = self.past.pop()
        self.env.restore(episode)
        self._show(episode)

    def _list_actions(self) -> None:
        admissible = self.env.episode.view.admissible
        if admissible is None:
            self._print(f"[dim]{escape(self.env.action_help)}[/]")
            return
        for entry in admissible[:SHOWN_ACTIONS]:
            self._print("  " + escape(entry))
        if len(admissible) > SHOWN_ACTIONS:
            self._print(f"  [dim]... and {len(admissible) - SHOWN_ACTIONS} more[/]")

    def _show(self, episode: Episode) -> None:
        view = episode.view
        self._print(f"\n[bold cyan]{episode.turn}[/] {escape(view.observation)}")
        if not view.valid:
            self._print("[yellow]not recognised[/]")
        if episode.terminated:
            verdict = "[green]solved[/]" if view.success else "[red]over[/]"
            self._print(f"{verdict}  score {view.score:.3f}, {episode.turn} turns")
        elif episode.truncated:
            self._print(f"[red]out of turns[/]  ({episode.turn}); you may go on, or :quit")


def _enable_completion(env: TextEnv) -> None:
    """Tab completes admissible actions, where the terminal can."""
    try:
        import readline
    except ImportError:
        return
    commands = (":actions", ":undo", ":history", ":save ", ":quit")

    def complete(text: str, index: int) -> str | None:
        known = [*(env.episode.view.admissible or ()), *commands]
        matches = [entry for entry in known if entry.startswith(text)]
        return matches[index] if index < len(matches) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
