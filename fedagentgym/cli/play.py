"""`fedagentgym play`: a person plays an episode in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.progress import console
from fedagentgym.cli.plugins import Plugins
from fedagentgym.cli.worlds import EnvId, EnvSet, open_world, world_options
from fedagentgym.envs.core import Episode, TextEnv
from fedagentgym.envs.transcripts import transcript

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
    world = open_world(env, {"split": split, **world_options(env_set)})
    world.reset(seed=seed, options={"task": task} if task is not None else None)
    Game(world, console()).run()


class Game:
    """One episode under way, with every earlier moment kept for :undo."""

    def __init__(self, world: TextEnv, screen: Console) -> None:
        self.world, self.screen = world, screen
        self.past: list[tuple[Episode, str]] = []

    def run(self) -> None:
        _complete_with(self.world)
        self.screen.print(
            f"[bold]{escape(self.world.episode.task.id)}[/]  {escape(self.world.action_help)}\n[dim]{HELP}[/]"
        )
        self._show(self.world.episode)
        while True:
            try:
                line = input("> ")
            except EOFError:
                return
            if line.strip() == ":quit":
                return
            self._act(line)

    def _act(self, line: str) -> None:
        command = line.strip()
        if command == ":undo":
            self._undo()
        elif command == ":actions":
            self._list_actions()
        elif command == ":history":
            for number, (episode, action) in enumerate(self.past, start=1):
                self.screen.print(f"[dim]{number}[/] {escape(action)}\n   {escape(episode.view.observation)}")
        elif command.startswith(":save "):
            self._save(command.removeprefix(":save ").strip())
        elif command.startswith(":"):
            self.screen.print(f"[dim]{HELP}[/]")
        else:
            self.past.append((self.world.snapshot(), line))
            self.world.step(line)
            self._show(self.world.episode)

    def _save(self, path: str) -> None:
        """Write what was played as a transcript, which `fedagentgym.envs.transcripts` can play again."""
        episodes = [*(episode for episode, _ in self.past), self.world.episode]
        text = transcript(zip(["", *(action for _, action in self.past)], episodes, strict=True))
        try:
            write_atomic(path, text)
        except DataError as error:
            self.screen.print(f"[red]{escape(str(error))}[/]")
        else:
            self.screen.print(f"[dim]saved to {escape(path)}[/]")

    def _undo(self) -> None:
        if not self.past:
            self.screen.print("[dim]Nothing to undo.[/]")
            return
        episode, _ = self.past.pop()
        self.world.restore(episode)
        self._show(episode)

    def _list_actions(self) -> None:
        admissible = self.world.episode.view.admissible
        if admissible is None:
            self.screen.print(f"[dim]{escape(self.world.action_help)}[/]")
            return
        for entry in admissible[:SHOWN_ACTIONS]:
            self.screen.print("  " + escape(entry))
        if len(admissible) > SHOWN_ACTIONS:
            self.screen.print(f"  [dim]... and {len(admissible) - SHOWN_ACTIONS} more[/]")

    def _show(self, episode: Episode) -> None:
        view = episode.view
        self.screen.print(f"\n[bold cyan]{episode.turn}[/] {escape(view.observation)}")
        if not view.valid:
            self.screen.print("[yellow]not recognised[/]")
        if episode.terminated:
            verdict = "[green]solved[/]" if view.success else "[red]over[/]"
            self.screen.print(f"{verdict}  score {view.score:.3f}, {episode.turn} turns")
        elif episode.truncated:
            self.screen.print(f"[red]out of turns[/]  ({episode.turn}); you may go on, or :quit")


def _complete_with(world: TextEnv) -> None:
    """Tab completes admissible actions, where the terminal can."""
    try:
        import readline
    except ImportError:
        return
    commands = (":actions", ":undo", ":history", ":save ", ":quit")

    def complete(text: str, index: int) -> str | None:
        known = [*(world.episode.view.admissible or ()), *commands]
        matches = [entry for entry in known if entry.startswith(text)]
        return matches[index] if index < len(matches) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
