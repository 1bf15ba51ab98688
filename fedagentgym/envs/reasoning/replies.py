"""What the three reply worlds share: options, pools, wordings, and the course of an episode.

An episode is a question, then turns. A turn is a whole reply: it may call a tool (`<tool> calc[2 + 3] </tool>`), if the
world was made with that tool, or answer. With `attempts` > 1 a wrong answer is answered by feedback and another try.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.envs.core import TextEnv, check_choice
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.pools import Cell, PoolGenerator, make_loaded_pool
from fedagentgym.envs.reasoning.variants import Phrasing, Wording
from fedagentgym.envs.task import Task
from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.formats import ToolCall, format_rewards, tool_call
from fedagentgym.envs.view import View

SIZES = ("default", "tiny")
TURNS_WITH_TOOLS = 8
OVER = "This task is over."
NO_VERDICT: Mapping[str, str] = {"verdict": ""}


class State(NamedTuple):
    """An episode under way: the task's record, the answers left, what tools have shown, the last score, and the end."""

    record: Any
    attempts: int
    seen: tuple[str, ...] = ()
    score: float = 0.0
    over: bool = False


class ReplyEnv(TextEnv):
    """Base of the reply worlds. A world names its tools and wordings and writes the few methods below."""

    takes = "reply"
    default_max_turns = 1
    shares_pools = True
    variants = (Wording,)
    local_options = ("data",)
    accuracy: ClassVar[str]
    tool_help: ClassVar[Mapping[str, str]]
    wordings: ClassVar[tuple[str, ...]]
    code_replies: ClassVar[bool] = False

    def __init__(
        self,
        *,
        size: str = "default",
        seed: int = 0,
        data: str | Path | None = None,
        source: str | None = None,
        holdout: int = 0,
        train_tasks: int | None = None,
        tools: Sequence[str] = (),
        attempts: int = 1,
        **options: Any,
    ) -> None:
        self.size = check_choice("size", size, SIZES)
        self.seed, self.data, self.source = seed, data, source
        self.holdout, self.train_tasks, self.attempts = holdout, train_tasks, attempts
        if isinstance(tools, str):
            raise OptionError(f"tools is a list of names, for example [{tools!r}]")
        self.tools = tuple(tools)
        self._check_options()
        if options.get("max_turns") is None:
            options["max_turns"] = self.count_turns({"attempts": attempts, "tools": self.tools})
        super().__init__(**options)
        self.wording = self.variant.phrasing if isinstance(self.variant, Phrasing) else 0
        if self.wording >= len(self.wordings):
            raise OptionError(f"{self.id} has the phrasings 0 to {len(self.wordings) - 1}, got {self.wording}")

    @classmethod
    def count_turns(cls, options: Mapping[str, Any]) -> int:
        """One turn for each attempt, and some for tools."""
        turns = int(options.get("attempts", 1)) + (TURNS_WITH_TOOLS if options.get("tools") else 0)
        return int(options.get("max_turns") or turns)

    def _check_options(self) -> None:
        for tool in self.tools:
            if tool not in self.tool_help:
                raise unknown_name_error(f"tool of {self.id}", tool, self.tool_help)
        if self.attempts < 1:
            raise OptionError(f"attempts is at least 1, got {self.attempts}")
        if self.train_tasks is not None and (self.train_tasks < 1 or self.source is not None):
            raise OptionError("train_tasks is a positive number and only for generated tasks (without source=)")
        if self.data is not None and self.source is None:
            raise OptionError("data= needs source=: the name of the data set that the file holds")
        if self.holdout and self.source is None:
            raise OptionError("holdout= is for loaded data (source=); generated tasks have val and test splits")

    # ---- what a world writes ------------------------------------------------------------------------------------

    @abstractmethod
    def build_cells(self) -> Sequence[Cell]:
        """The generator's cells at this size."""

    @abstractmethod
    def get_split_counts(self) -> dict[str, int]:
        """How many generated tasks each split has."""

    @abstractmethod
    def get_generator_version(self) -> int:
        """Version of what the generator makes."""

    @abstractmethod
    def get_verifier_version(self) -> str:
        """Version of the rules by which answers are judged, for results."""

    @abstractmethod
    def parse_payload(self, payload: Any) -> Any:
        """The record of a payload: as generated or loaded, or rebuilt from a plain mapping."""

    @abstractmethod
    def format_question(self, record: Any) -> str:
        """What the task asks, before the wording is put around it."""

    @abstractmethod
    def grade(self, record: Any, reply: str) -> tuple[Verdict, Mapping[str, float]]:
        """The verdict on an answer, with the accuracy components that it earns."""

    @abstractmethod
    def run_tool(self, state: State, call: ToolCall) -> str:
        """What a tool answers."""

    @staticmethod
    @abstractmethod
    def strip(payload: Any) -> Any:
        """The payload without its gold."""

    # ---- pools --------------------------------------------------------------------------------------------------

    def load_pool(self, split: str) -> TaskPool:
        if self.source is None:
            return self._make_generator().make_pool(split)
        from fedagentgym.envs.reasoning.sources import load

        tasks, source = load(self.accuracy, self.source, self.data, self.holdout, self.seed)
        return make_loaded_pool(self.id, tasks, split, source, self.strip)

    def _make_generator(self) -> PoolGenerator:
        sizes = self.get_split_counts()
        if self.train_tasks is not None:
            sizes["train"] = self.train_tasks
        source = {
            "generator": self.accuracy,
            "version": self.get_generator_version(),
            "size": self.size,
            "seed": self.seed,
        }
        return PoolGenerator(self.id, self.build_cells(), sizes, source, self.strip)

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """The task as it is for somebody who takes this reply's answer for the right one; None if it gives no answer,
        or if an answer of this world (a program) is not something that others could be compared with."""
        record = self.parse_payload(task.payload)
        answer = self.grade(record, reply)[0].parsed
        if answer is None or not hasattr(record, "answers"):
            return None
        return replace(task, payload=record._replace(answers=(answer,)), graded=True)

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        record = self.parse_payload(task.payload if task.graded else self.strip(task.payload))
        asked = self.wordings[self.wording].format(self.format_question(record))
        return State(record, self.attempts), View(asked, extra=NO_VERDICT)

    def advance(self, state: State, action: str) -> tuple[State, View]:
        if state.over:
            solved = state.score == 1.0
            return state, View(OVER, score=state.score, success=solved, done=True, valid=False, extra=NO_VERDICT)
        rewards = format_rewards(action, self.code_replies)
        call = tool_call(action)
        if call is not None and self.tools:
            return self._handle_tool_call(state, call, rewards)
        return self._handle_answer(state, action, rewards)

    def _handle_tool_call(self, state: State, call: ToolCall, rewards: dict[str, float]) -> tuple[State, View]:
        if call.name not in self.tools:
            known = ", ".join(self.tools)
            return state, View(
                f"There is no tool {call.name}. Tools: {known}.", valid=False, rewards=rewards, extra=NO_VERDICT
            )
        shown = self.run_tool(state, call)
        return state._replace(seen=(*state.seen, shown)), View(shown, rewards=rewards, extra=NO_VERDICT)

    def _handle_answer(self, state: State, action: str, rewards: dict[str, float]) -> tuple[State, View]:
        verdict, earned = self.grade(state.record, action)
        valid = verdict.parsed is not None
        left = state.attempts - 1
        done = verdict.correct or left <= 0
        if verdict.correct:
            said = "Right."
        elif not valid:
            said = "There is no answer in your reply."
        else:
            said = "That is not right."
        extra = {"verdict": verdict.reason}
        if not done:
            return state._replace(attempts=left), View(f"{said} Try again.", valid=valid, rewards=rewards, extra=extra)
        view = View(
            said, None, verdict.score, verdict.score, verdict.correct, True, valid, {**rewards, **earned}, extra
        )
        return state._replace(attempts=left, score=verdict.score, over=True), view


def make_action_help(what: str, tools: Mapping[str, str]) -> str:
    """The help text of a reply world."""
    listed = " ".join(f"<tool> {call} </tool> {meaning}." for call, meaning in tools.items())
    return f"Reply with <think> your reasoning </think> <answer> {what} </answer>. If tools are offered: {listed}"


def list_tag_words() -> Iterable[str]:
    """Words and tags that every reply world can say or accept."""
    said = f"{OVER} Right . That is not right Try again There is no answer in your reply There is no tool Tools : ,"
    tags = "<think> </think> <answer> </answer> <tool> </tool> [ ]"
    return [*said.split(), *tags.split()]
