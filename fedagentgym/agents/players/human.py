"""A person at the keyboard, who sees the agent's observations and types an action or its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedagentgym.agents.protocols import Move, RowPlayers
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import FedAgentGymError, OptionError
from fedagentgym.base.progress import get_console
from fedagentgym.envs.protocols import find_listed

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


class HumanQuitError(FedAgentGymError):
    """The person quit."""


class HumanPlayers(RowPlayers[None]):
    """`Players` of one person, who plays one row after another."""

    def __init__(self, env: TextEnv, ask: Callable[[str], str]) -> None:
        super().__init__(env)
        self.ask = ask

    def start_row(self, episode: Episode, stream: Stream) -> None:
        return None

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        """Show the introduction (at the first turn), the observation and the numbered actions, and read the typed action."""
        moves = []
        for episode in episodes:
            lines = [self.env.role, self.env.action_help, ""] if episode.turn == 0 else []
            admissible = episode.view.admissible or ()
            actions = (f"  {number}  {action}" for number, action in enumerate(admissible, start=1))
            try:
                typed = self.ask("\n".join([*lines, episode.view.observation, *actions]))
            except EOFError:
                raise HumanQuitError("the game was left: no more input") from None
            listed = find_listed(typed, admissible)
            moves.append(Move(typed, typed if listed is None else listed))
        return moves


class HumanAgent:
    """A person as an agent. `ask` shows a text and returns the typed action or its number; by default on the terminal."""

    def __init__(self, name: str = "human", ask: Callable[[str], str] | None = None) -> None:
        self.name, self.ask = name, ask or _ask_on_terminal

    def play(self, env: TextEnv) -> HumanPlayers:
        return HumanPlayers(env, self.ask)

    def close(self) -> None:
        """Do nothing, since the agent holds nothing."""


def _ask_on_terminal(text: str) -> str:
    terminal = get_console()
    terminal.print(text, markup=False, highlight=False)
    return terminal.input("> ")


def make_human_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> HumanAgent:
    """Make the agent that reads actions from the terminal."""
    if settings.options:
        raise OptionError(f"agent 'human' takes no options, got {sorted(settings.options)[0]!r}")
    return HumanAgent(settings.name)
