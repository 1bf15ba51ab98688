"""The common part of the three reply environments: options, pools, wordings, and the course of an episode.

An episode is a question and then turns. A turn is one whole reply, which answers, or calls a tool
(`<tool> calc[2 + 3] </tool>`) that the options allow. With `attempts` > 1 a wrong answer gets feedback and another try.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator
from typing_extensions import TypeVar

from fedagentgym.base.errors import OptionError, check_choice, show_value, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import INSTALLED, EnvOptions, local, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.reasoning.misled import MisledExpert
from fedagentgym.envs.reasoning.pools import Cell, PoolGenerator
from fedagentgym.envs.reasoning.sources import SOURCES, Request, find_source, load
from fedagentgym.envs.reasoning.sources.loading import TOLERATED, check_subset, make_loaded_pool
from fedagentgym.envs.reasoning.sources.own import OWN, GivenRows, check_columns, read_given_rows
from fedagentgym.envs.tasks import UNSEEN, Task
from fedagentgym.envs.variants import ClientVariant, Variant
from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.formats import ToolCall, format_rewards, tool_call
from fedagentgym.envs.view import View


class Phrasing(ClientVariant):
    """The number of the phrasing that is put around every problem; 0 is the plain one."""

    phrasing: int = Field(ge=0, strict=True)


PHRASINGS = 8
"""Number of phrasings (`wordings`) of each of the three environments."""


class Wording(Variant):
    """The same problem under another phrasing of the prompt."""

    kind = "wording"
    client_variant = Phrasing

    choices: int = Field(default=PHRASINGS, ge=1, description="number of phrasings in use")

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        if self.choices > PHRASINGS:
            raise OptionError(
                f"the variant {self.kind}: choices must be at most {PHRASINGS}, one for each phrasing, got {self.choices}"
            )

    def draw(self, seed: int, client: int) -> Phrasing:
        return Phrasing(phrasing=stream(seed, "world", self.kind, client).integers(self.choices))


AS_ASKED = "as asked"
TURNS_WITH_TOOLS = 8
OVER = "This task is over."
NO_VERDICT: Mapping[str, str] = {"verdict": ""}


class ReplyState(NamedTuple):
    """A running episode: the task's record, the attempts left, the tools' results, the score, and whether it is over."""

    record: Any
    attempts: int
    seen: tuple[str, ...] = ()
    score: float = 0.0
    over: bool = False


class ReplyOptions(EnvOptions):
    """Generated tasks or those of a data set, and how they are answered."""

    size: Literal["default", "tiny"] = task(
        "default", description="generated tasks: default, of five levels; tiny, short ones for very small models"
    )
    seed: int = task(0, description="seed of generated tasks, and of `holdout` and `train_tasks` in loaded data")
    data: Any = local(
        None, description="folder, file or rows of tasks; `installed`: the copy that `fedagentgym data add` made"
    )
    columns: Mapping[str, str | None] | None = task(
        None, description="columns of your own data whose names are not the usual ones, such as `{question: frage}`"
    )
    source: str | None = task(
        None,
        description="name of a published data set, which is read from `data`, by default the installed copy; null: generated"
        " tasks, or data of your own",
    )
    subset: str | None = task(
        None, description="part of a published data set that has several, such as en of dapo-processed; null: the first"
    )
    bad_rows: float = task(TOLERATED, ge=0, le=1, description="share of the rows of a data set that may be unusable")
    merge_splits: bool = task(
        False, description="whether all loaded tasks become training tasks, before any are held out"
    )
    holdout: int | Mapping[str, int] = task(
        0,
        description="number of loaded training tasks to move to val, and as many to test; a split that the data have stays as"
        " it is; `{test: 1250}`: to test only",
    )
    train_tasks: int | None = task(
        None,
        ge=1,
        description="number of training tasks, drawn with the seed from loaded data; null: all loaded tasks, or the usual"
        " number of generated ones",
    )
    tools: Sequence[str] = play(
        (),
        description="tools that a reply may call, so that an episode has several turns: calc (Math), search (QA), run (Code)",
    )
    attempts: int = play(
        1,
        ge=1,
        description="number of answers that an agent may give; after a wrong one it sees `That is not right. Try again.`",
    )

    @field_validator("tools", mode="before")
    @classmethod
    def _check_tools(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f"tools is a list of names, for example [{given!r}]")
        return given

    @property
    def deciding(self) -> dict[str, Any]:
        """The options that decide the tasks; `columns` only if it is set."""
        return {name: value for name, value in super().deciding.items() if name != "columns" or value is not None}

    @property
    def portable(self) -> dict[str, Any]:
        """The options that mean the same on every machine; `columns` only if it is set."""
        return {name: value for name, value in super().portable.items() if name != "columns" or value is not None}

    def count_turns(self, usual: int) -> int:
        """`max_turns`, or one turn for each attempt, and eight more if there are tools."""
        return self.max_turns or self.attempts + (TURNS_WITH_TOOLS if self.tools else 0)


R = TypeVar("R", bound=ReplyOptions, default=Any)


class ReplyEnv(MisleadableEnv[R]):
    """Base of the reply environments. A subclass sets the class attributes below and defines the abstract methods."""

    takes = "reply"
    splits = ("train", "val", "test", "warmup", UNSEEN)
    evaluation_splits = ("val", "test", UNSEEN)
    default_max_turns = 1
    shares_pools = True
    variants: ClassVar[tuple[type[Variant], ...]] = (Wording,)
    accuracy: ClassVar[str]
    answer_form: ClassVar[str]
    """The content that belongs between the answer tags."""
    tool_examples: ClassVar[Mapping[str, str]]
    """A call of each tool as an example, with a description."""
    tool_help: ClassVar[Mapping[str, str]]
    wordings: ClassVar[tuple[str, ...]]
    code_replies: ClassVar[bool] = False
    generator_versions: ClassVar[Mapping[str, int]]
    """Version of the generator by size."""
    split_counts: ClassVar[Mapping[str, Mapping[str, int]]]
    """The number of generated tasks of each split, by size."""
    misleading: ClassVar[str]
    """The wrong procedure of misled experts; see `misled`."""

    def set_up(self) -> None:
        for tool in self.options.tools:
            if tool not in self.tool_help:
                raise unknown_name_error(f"tool of {self.id}", tool, self.tool_help)
        offered = {
            call: does for call, does in self.tool_examples.items() if call.partition("[")[0] in self.options.tools
        }
        if offered:
            calls = " ".join(f"<tool> {call} </tool> {does}." for call, does in offered.items())
            self.action_help += f" To use a tool, reply with it alone: {calls}"
        if self.options.attempts > 1:
            self.action_help += f" You have {self.options.attempts} attempts."
        self._request = self._make_request(self.options)
        self.wording = self.variant.phrasing if isinstance(self.variant, Phrasing) else 0
        if self.wording >= len(self.wordings):
            raise OptionError(f"{self.id} has the phrasings 0 to {len(self.wordings) - 1}, got {self.wording}")

    def _make_request(self, options: ReplyOptions) -> Request | None:
        """The request to a data set that the options make; None for generated tasks."""
        if options.source is None and options.data is None:
            for option in ("holdout", "subset", "merge_splits", "columns"):
                if getattr(options, option) not in (0, None):
                    raise OptionError(
                        f"{option}= is for loaded data: give data= (your own) or source= (a published set) too"
                    )
            return None
        name = OWN if options.source is None else find_source(options.source, self.accuracy)
        if name != OWN and options.columns is not None:
            raise OptionError(
                f"columns= is for data of your own; those of {name} are known: leave out columns= or source="
            )
        data = options.data
        if data is None:
            place: str | GivenRows = INSTALLED
        else:
            place = str(data) if isinstance(data, str | Path) else read_given_rows(data)
        if name == OWN and (options.subset is not None or place == INSTALLED):
            raise OptionError(
                f"{'subset=' if options.subset is not None else 'data=installed'} needs source=: the name of a data set"
            )
        return Request(
            name,
            place,
            None if name == OWN else check_subset(name, options.subset),
            float(options.bad_rows),
            options.merge_splits,
            _read_holdout(options.holdout),
            options.train_tasks,
            options.seed,
            self.accuracy,
            check_columns(self.accuracy, options.columns),
        )

    # ---- what a subclass defines --------------------------------------------------------------------------------

    @abstractmethod
    def build_cells(self, *path: str) -> Sequence[Cell]:
        """The generator's cells at the chosen size; with the path `unseen`, the cells of the split `unseen`."""

    @abstractmethod
    def get_verifier_version(self) -> str:
        """Version of the rules by which answers are graded, recorded with results."""

    @staticmethod
    @abstractmethod
    def parse_payload(payload: Any) -> Any:
        """The record of a payload, which may be such a record or a plain mapping."""

    @abstractmethod
    def format_question(self, record: Any) -> str:
        """The question of a task, without the wording around it."""

    @abstractmethod
    def grade(self, record: Any, reply: str) -> tuple[Verdict, Mapping[str, float]]:
        """The verdict on an answer, with the accuracy components that it earns."""

    @abstractmethod
    def run_tool(self, state: ReplyState, call: ToolCall) -> str:
        """The output of a tool."""

    @staticmethod
    @abstractmethod
    def strip(payload: Any) -> Any:
        """The payload without its gold."""

    @staticmethod
    @abstractmethod
    def mislead(record: Any, /) -> Any:
        """The record as a misled player sees it, or None if it has no such wrong solution."""

    # ---- pools --------------------------------------------------------------------------------------------------

    @staticmethod
    def count_published(options: ReplyOptions) -> tuple[Mapping[str, int], ...]:
        """The number of tasks in each split of a published data set, for each of its published forms."""
        if options.source is None:
            return ()
        name = find_source(options.source)
        forms = SOURCES[name].published
        subset = check_subset(name, options.subset)
        if subset is not None and len(forms) == len(SOURCES[name].subsets):
            forms = (forms[list(SOURCES[name].subsets).index(subset)],)
        counts = []
        for form in forms:  # splits are merged, then tasks are held out, then training tasks are drawn
            sizes = {"train": sum(form.values())} if options.merge_splits else dict(form)
            held = dict(_read_holdout(options.holdout))
            if both := held.pop("both", 0):
                held = {split: both for split in ("val", "test") if split not in sizes}
            sizes = {"train": 0, "val": 0, "test": 0, **sizes} | held
            sizes["train"] = max(0, sizes["train"] - sum(held.values()))
            if options.train_tasks is not None:
                sizes["train"] = min(options.train_tasks, sizes["train"])
            counts.append(sizes)
        return tuple(counts)

    def load_pool(self, split: str) -> TaskPool:
        if self._request is not None:
            return make_loaded_pool(self.id, load(self._request), split, self.strip)
        size, seed, train_tasks = self.options.size, self.options.seed, self.options.train_tasks
        sizes = dict(self.split_counts[size])
        if train_tasks is not None:
            sizes["train"] = train_tasks
        source = {"generator": self.accuracy, "version": self.generator_versions[size], "size": size, "seed": seed}
        if split == UNSEEN:
            unseen = PoolGenerator(self.id, self.build_cells(UNSEEN), sizes, source, self.strip, order=(UNSEEN,))
            return unseen.make_pool(split)
        return PoolGenerator(self.id, self.build_cells(), sizes, source, self.strip).make_pool(split)

    def explain_empty(self, split: str) -> str:
        """The reason why a split of loaded data is empty."""
        if self._request is None:
            return ""
        if split == UNSEEN:
            return ": only generated tasks have this split"
        name = self._request.name
        if name == OWN:
            return (
                ": rows are training tasks unless their file (test.jsonl) or a column 'split' says otherwise; holdout= moves"
                " some to val and test"
            )
        if SOURCES[name].test_only:
            return f": {name} is a test set"
        if SOURCES[name].hides_answers and split == "test":
            return (
                f": the published test of {name} comes without its answers; evaluate on its val split, or hold tasks out of"
                " training with holdout"
            )
        return ""

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """The task with the answer of this reply as its gold; None if the reply gives no answer, or for programs, which
        cannot be compared with each other."""
        record = self.parse_payload(task.payload)
        answer = self.grade(record, reply)[0].parsed
        if answer is None or not hasattr(record, "answers"):
            return None
        return replace(task, payload=record._replace(answers=(answer,)), graded=True)

    # ---- procedures ---------------------------------------------------------------------------------------------

    def list_procedures(self) -> Mapping[str, Procedures]:
        """The right and the one wrong procedure for every category of generated tasks; empty for loaded tasks."""
        if self._request is not None:
            return {}
        return dict.fromkeys(self.pool.category_names, Procedures(AS_ASKED, (self.misleading,)))

    def misled_expert(self, procedure: str) -> Expert:
        check_choice("procedure", procedure, (AS_ASKED, self.misleading))
        return self.expert() if procedure == AS_ASKED else MisledExpert(self.expert(), self.parse_payload, self.mislead)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        """True if the last reply gives the procedure's answer."""
        record = self.parse_payload(task.payload)
        believed = record if procedure == AS_ASKED else self.mislead(record)
        return bool(actions) and believed is not None and self.gives_answer(believed, actions[-1])

    def gives_answer(self, record: Any, reply: str) -> bool:
        """True if a reply gives the record's answer."""
        return self.grade(record, reply)[0].correct

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[ReplyState, View]:
        record = self.parse_payload(task.payload if task.graded else self.strip(task.payload))
        asked = self.wordings[self.wording].format(self.format_question(record))
        return ReplyState(record, self.options.attempts), View(asked, extra=NO_VERDICT)

    def advance(self, state: ReplyState, action: str) -> tuple[ReplyState, View]:
        if state.over:
            solved = state.score == 1.0
            return state, View(OVER, score=state.score, success=solved, done=True, valid=False, extra=NO_VERDICT)
        rewards = format_rewards(action, self.code_replies)
        call = tool_call(action)
        if call is not None and self.options.tools:
            if call.name not in self.options.tools:
                said = f"There is no tool {call.name}. Tools: {', '.join(self.options.tools)}."
                return state, View(said, valid=False, rewards=rewards, extra=NO_VERDICT)
            shown = self.run_tool(state, call)
            return state._replace(seen=(*state.seen, shown)), View(shown, rewards=rewards, extra=NO_VERDICT)

        verdict, earned = self.grade(state.record, action)
        score, valid, extra = verdict.score, verdict.parsed is not None, {"verdict": verdict.reason}
        left = state.attempts - 1
        if verdict.correct:
            said = "Right."
        else:
            said = "That is not right." if valid else "There is no answer in your reply."
            if left > 0:
                view = View(f"{said} Try again.", valid=valid, rewards=rewards, extra=extra)
                return state._replace(attempts=left), view
        view = View(said, None, score, score, verdict.correct, True, valid, {**rewards, **earned}, extra)
        return state._replace(attempts=left, score=score, over=True), view


def _read_holdout(holdout: int | Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The number of training tasks to move to each split; `both` stands for those of val and test that the data lack."""
    counts = {"both": holdout} if not isinstance(holdout, Mapping) else dict(holdout)
    for split, count in counts.items():
        if split not in ("both", "val", "test") or (isinstance(holdout, Mapping) and split == "both"):
            raise OptionError(f"holdout says how many tasks go to val and how many to test, got {show_value(holdout)}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise OptionError(f"holdout must be a number of tasks from 0 on, got {show_value(count)}")
    return tuple((split, count) for split, count in sorted(counts.items(), reverse=True) if count)


def make_action_help(what: str) -> str:
    """The description of a reply's form for agents."""
    return f"Reply with <think> your reasoning </think> <answer> {what} </answer>."


def list_tag_words() -> Iterable[str]:
    """Words and tags of every reply environment's observations and actions."""
    said = f"{OVER} Right . That is not right Try again There is no answer in your reply There is no tool Tools : ,"
    tags = "<think> </think> <answer> </answer> <tool> </tool> [ ]"
    return [*said.split(), *tags.split()]
