"""The process of the real engine: `python -m fedagentgym.envs.alfworld.real_server`.

The real engine runs in a process of its own, because it overwrites `sys.argv` and replaces the standard output when it is
loaded, and because each of its environments maps a library of 34 MB that is never unmapped. The process reads one JSON line
per request and writes one JSON line per answer. A request names a game and the commands since its start; the answer is what
the engine says to the last of them. A few games are kept running, so that the usual request costs one step; any other game is
played from its start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

MAX_LIVE_GAMES = 4


class LiveGame:
    """One live environment of the real engine, and the commands so far."""

    def __init__(self) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl.pddl import PddlEnv

        self.core = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        self.env = AlfredDemangler(self.core)
        self.key = ""
        self.commands: list[str] = []
        self.answer: dict[str, Any] = {}

    def load(self, key: str, game: dict[str, Any]) -> None:
        """Load, translate and start a game, as the original does when an episode begins."""
        self.key = ""
        began = time.perf_counter()
        self.env.load(game)
        self.restart(began)
        self.key = key

    def restart(self, began: float | None = None) -> None:
        began = time.perf_counter() if began is None else began
        self.commands = []
        self.record_answer(self.env.reset(), began)

    def play(self, command: str) -> None:
        began = time.perf_counter()
        state, _, _ = self.env.step(command)
        self.commands.append(command)
        self.record_answer(state, began)

    def record_answer(self, state: Any, began: float) -> None:
        """Store the engine's answer, and how long it took."""
        self.answer = {
            "feedback": state["feedback"],
            "admissible": list(state["admissible_commands"]),
            "won": bool(state["won"]),
            "seconds": time.perf_counter() - began,
        }

    def plan(self) -> list[str]:
        return list(self.core._pddl_state.replan(self.core._entity_infos))


class GameServer:
    """The running games."""

    def __init__(self) -> None:
        self.slots: list[LiveGame] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer after these commands; `missing` requests the content of a game that is not running."""
        key, commands, game = request["key"], request["commands"], request.get("game")
        if game is None and all(slot.key != key for slot in self.slots):
            return {"missing": True}
        slot = self.acquire_game(key, commands, game)
        for command in commands[len(slot.commands) :]:
            slot.play(command)
        return {**slot.answer, "plan": slot.plan()} if request.get("plan") else slot.answer

    def acquire_game(self, key: str, commands: list[str], game: dict[str, Any] | None) -> LiveGame:
        """A running game that has played a prefix of these commands; the most recently used one is last in `slots`."""
        same = [slot for slot in self.slots if slot.key == key]
        fitting = [slot for slot in same if slot.commands == commands[: len(slot.commands)]]
        if fitting:
            slot = max(fitting, key=lambda one: len(one.commands))
        elif game is not None and len(self.slots) < MAX_LIVE_GAMES:
            slot = LiveGame()
            self.slots.append(slot)
            slot.load(key, game)
        elif same:
            slot = same[0]
            slot.restart()
        else:
            slot = self.slots[0]
            slot.load(key, game or {})
        self.slots.remove(slot)
        self.slots.append(slot)
        return slot


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until the requests end."""
    server = GameServer()
    for line in requests:
        try:
            answer = server.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve standard input; the engine's own output is discarded."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
