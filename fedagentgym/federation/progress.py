"""The progress of a run: the value that a callback receives, and the tracker that computes it from reports of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedagentgym.base.process import ClientActivity
from fedagentgym.base.rounding import format_duration, format_fixed
from fedagentgym.base.shorten import show_fields

Phase = Literal["clients", "evaluation", "between"]


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """A moment of a run, for `train(on_progress=...)`; `str` of it is one line.

    Attributes:
        round: The present round.
        rounds: Number of rounds.
        phase: `clients`, `evaluation` or `between`.
        working: The active clients, each with its step and episodes.
        asked: Number of clients of the present call.
        answered: How many of them have replied.
        episodes_per_second: Speed of the round; None until it can be estimated.
        seconds_left: Estimated time to the end; None until it can be estimated.
    """

    round: int
    rounds: int
    phase: Phase
    working: tuple[ClientActivity, ...] = ()
    asked: int = 0
    answered: int = 0
    episodes_per_second: float | None = None
    seconds_left: float | None = None

    def __repr__(self) -> str:
        return show_fields(self)

    def __str__(self) -> str:
        """
        >>> str(TrainingProgress(3, 6, "clients", (ClientActivity(7, 2, 4),), 4, 1, 41.3, 114.0))
        'round 3 of 6: client 7, step 2 of 4, 41 episodes/s, 1.9 min left'
        """
        parts = []
        if self.phase == "evaluation":
            parts.append("evaluating")
        elif self.working:
            names = [str(one.client) for one in self.working]
            working = f"client {names[0]}" if len(names) == 1 else f"clients {', '.join(names[:-1])} and {names[-1]}"
            parts.append(working if len(names) <= 4 else f"{len(names)} clients at work")
            slowest = min(self.working, key=lambda one: one.step)
            if slowest.steps:
                parts.append(f"step {slowest.step} of {slowest.steps}")
        elif self.asked:
            parts.append(f"{self.answered} of {self.asked} clients done")
        if self.phase == "clients" and self.episodes_per_second:
            rate = self.episodes_per_second
            parts.append(f"{format_fixed(rate)} episodes/s" if rate >= 10 else f"{rate:.2g} episodes/s")
        if self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left")
        head = f"round {self.round} of {self.rounds}" if self.round or self.phase == "evaluation" else "preparing"
        return f"{head}: {', '.join(parts)}" if parts else head


ProgressCallback = Callable[[TrainingProgress], None]


class ProgressTracker:
    """Receives reports of rounds, calls and clients, and passes the run's progress to a callback."""

    def __init__(self, callback: ProgressCallback, clock: Callable[[], float] = time.monotonic) -> None:
        self._callback, self._clock = callback, clock
        self._round = self._rounds = 0
        self._phase: Phase = "between"
        self._working: dict[int, ClientActivity] = {}
        self._asked = self._answered = self._finished_episodes = 0
        self._begun = clock()
        self._durations: list[float] = []

    def begin_round(self, number: int, rounds: int) -> None:
        """A round begins; the state of the previous one is reset."""
        now = self._clock()
        if self._round:
            self._durations.append(now - self._begun)
        self._round, self._rounds, self._phase, self._begun = number, rounds, "clients", now
        self._working.clear()
        self._asked = self._answered = self._finished_episodes = 0
        self._report()

    def ask(self, clients: Sequence[int]) -> None:
        """A call is sent to these clients."""
        self._asked, self._answered = len(clients), 0
        self._working.clear()

    def record_activity(self, activity: ClientActivity) -> None:
        """A client reports its progress."""
        self._working[activity.client] = activity
        self._report()

    def answer(self, client: int) -> None:
        """The reply of a client arrived."""
        done = self._working.pop(client, None)
        self._finished_episodes += 0 if done is None else done.episodes
        self._answered += 1
        self._report()

    def begin_evaluation(self, number: int, rounds: int) -> None:
        """The global state after this round is evaluated; a resumed run may begin with this."""
        self._round, self._rounds, self._phase = number, rounds, "evaluation"
        self._working.clear()
        self._report()

    def _report(self) -> None:
        seconds = self._clock() - self._begun
        episodes = self._finished_episodes + sum(one.episodes for one in self._working.values())
        self._callback(
            TrainingProgress(
                self._round,
                self._rounds,
                self._phase,
                tuple(self._working[client] for client in sorted(self._working)),
                self._asked,
                self._answered,
                episodes_per_second=episodes / seconds if episodes and seconds > 0 else None,
                seconds_left=self._estimate_left(),
            )
        )

    def _estimate_left(self) -> float | None:
        """Estimate the remaining seconds from the mean time of finished rounds; in the first round, from its finished steps."""
        spent = self._clock() - self._begun
        if self._durations:
            whole = sum(self._durations) / len(self._durations)
        else:
            done = self._answered + sum((one.step - 1) / one.steps for one in self._working.values() if one.steps)
            if not self._round or not self._asked or done <= 0:
                return None
            whole = spent * self._asked / min(done, self._asked)
        return max(whole - spent, 0.0) + whole * max(self._rounds - self._round, 0)
