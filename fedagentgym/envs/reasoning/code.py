"""The environment of programming tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs.options import owner, play
from fedagentgym.envs.reasoning.generators.code_levels import CODE_WORDS, LEVEL_PROGRAMS, UNSEEN_PROGRAMS
from fedagentgym.envs.reasoning.generators.code_tiny import TINY_CODE_WORDS, TINY_PROGRAMS, UNSEEN_TINY_PROGRAMS
from fedagentgym.envs.reasoning.generators.problems import Program, split_words
from fedagentgym.envs.reasoning.misled import mislead_program
from fedagentgym.envs.reasoning.pools import Cell, make_level_cells, make_tiny_cells
from fedagentgym.envs.reasoning.replies import ReplyEnv, ReplyOptions, ReplyState, list_tag_words, make_action_help
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.verifiers import Verdict, wrong
from fedagentgym.envs.verifiers.code import (
    CODE_VERIFIER_VERSION,
    Checks,
    default_verifier,
    describe_protections,
    extract_program,
    grade_code,
    parse_checks,
)
from fedagentgym.envs.verifiers.formats import ToolCall, last_fenced_code
from fedagentgym.envs.verifiers.sandbox.pool import Limits, check_accepted
from fedagentgym.envs.view import Episode, View

MAX_OUTPUT_SHOWN = 1_000
TOOLS = {"run[print(2 + 3)]": "runs a program and shows what it prints"}


def parse_program(payload: Any) -> Program:
    """The `Program` of a payload, which may be a plain mapping with `statement` and tests.

    The tests are `entry` with `calls`, or `code`, or `outputs`, in this mapping or in an inner mapping `tests`.
    """
    if isinstance(payload, Program):
        return payload
    if isinstance(payload, Mapping) and isinstance(payload.get("statement"), str):
        given = payload.get("tests", payload)
        if isinstance(given, Checks):
            tests = given
        elif isinstance(given, Mapping):
            tests = parse_checks(given)
        else:
            raise DataError(f"'tests' of fedagentgym/Code-v0 must be a mapping, got {type(given).__name__}")
        return Program(payload["statement"], tests, str(payload.get("solution", "")), str(payload.get("thought", "")))
    raise DataError(f"a payload of fedagentgym/Code-v0 has a text 'statement' and its tests, got {str(payload)[:80]!r}")


class CodeOptions(ReplyOptions):
    """The tasks, and how programs are run and graded."""

    score: Literal["all", "share"] = play(
        "all",
        description="reward: 1 if all hidden tests pass, else 0 (`all`), or the share of hidden tests that pass (`share`)",
    )
    time_limit: float = play(5.0, ge=0.05, le=300, description="seconds for each run of a program")
    sandbox: Mapping[str, Sequence[str]] | None = owner(
        None, description="protections that may be missing when programs are run, such as `{accept: [other user]}`"
    )


class CodeEnv(ReplyEnv[CodeOptions]):
    """Write a program that meets a specification; hidden tests decide.

    **Tasks.** Generated: six families (the categories) at five levels; `size="tiny"` asks for one-line functions from thirty
    templates. Loaded: `source="humaneval"` and `"mbpp"`, see `docs/how-to/load-data-sets.md`.
    **Actions.** The whole reply: `<think> ... </think> <answer>`, a fenced Python block, `</answer>`. With `tools=["run"]` a
    reply may be `<tool> run[print(2 + 3)] </tool>`; with `attempts=n` a program that fails gets feedback and another try.
    **Observations.** The specification with examples; what a program printed; feedback.
    **Reward.** 1 when all hidden tests pass, else 0; with `score="share"` the share of them that pass. Components:
    `accuracy/code`, `format`, `code_format`, `tags`, `repetition`.
    **Programs** run confined, for at most `time_limit` seconds each, without a network, other processes, or files outside a
    folder that is removed afterwards. Under root they run as another user; if this is impossible, they are refused, unless
    `sandbox={"accept": ["other user"]}` is set. After a step, `info["protections"]` names the active protections.
    **Variant.** `{"kind": "wording", "phrasing": 0..7}`: the same task with other words around it.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Code-v0"
    payload_type = Program
    parse_payload = staticmethod(parse_program)
    mislead = staticmethod(mislead_program)
    runs_programs = True
    role = "You write programs in Python."
    answer_form = "```python the program ```"
    tool_examples = TOOLS
    action_help = make_action_help(answer_form)
    accuracy = "code"
    misleading = "counterpart"
    code_replies = True
    generator_versions: ClassVar[Mapping[str, int]] = {"default": 3, "tiny": 3}
    split_counts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "default": {"train": 10_000, "val": 500, "test": 1_000, "warmup": 2_000, "unseen": 1_000},
        "tiny": {"train": 2_000, "val": 200, "test": 400, "warmup": 2_000, "unseen": 400},
    }
    reward_names = ("accuracy/code", "format", "code_format", "tags", "repetition")
    tool_help: ClassVar[Mapping[str, str]] = {"run": "run[program]"}
    wordings = (
        "{}",
        "Task : {}",
        "Here is a task for you . {}",
        "{} Use Python .",
        "Solve this in Python . {}",
        "{} Hidden tests will check it .",
        "A user asks : {}",
        "Think first . {}",
    )

    def set_up(self) -> None:
        self.limits = Limits(seconds=float(self.options.time_limit))
        sandbox = self.options.sandbox
        if sandbox is not None and set(sandbox) - {"accept"}:
            raise OptionError(f"sandbox is {{'accept': [names of protections]}}, got {sandbox!r:.80}")
        self.accept = () if sandbox is None else check_accepted(sandbox.get("accept", ()))
        super().set_up()

    def build_cells(self, *path: str) -> Sequence[Cell]:
        if self.options.size == "tiny":
            return make_tiny_cells(UNSEEN_TINY_PROGRAMS if path else TINY_PROGRAMS, self.options.seed, *path)
        return make_level_cells(UNSEEN_PROGRAMS if path else LEVEL_PROGRAMS, self.options.seed, *path)

    def get_verifier_version(self) -> str:
        return CODE_VERIFIER_VERSION

    def format_question(self, record: Program) -> str:
        return record.statement

    def grade(self, record: Program, reply: str) -> tuple[Verdict, Mapping[str, float]]:
        if not (record.tests.calls or record.tests.code or record.tests.outputs):
            return wrong("no tests", extract_program(reply)), {"accuracy/code": 0.0}
        verdict = grade_code(reply, record.tests, self.limits, self.accept)
        passed = float(verdict.correct)
        return (verdict._replace(score=passed) if self.options.score == "all" else verdict), {"accuracy/code": passed}

    def gives_answer(self, record: Program, reply: str) -> bool:
        """True if a reply's program equals the record's solution as text; no program is run."""
        return (extract_program(reply, record.tests) or "").split() == record.solution.split()

    def run_tool(self, state: ReplyState, call: ToolCall) -> str:
        fenced = last_fenced_code(call.argument)
        ended = default_verifier().run(call.argument if fenced is None else fenced, "", self.limits, self.accept)
        if ended.status != "ended":
            return f"It did not end well : {ended.status} ."
        last_line = ended.err.strip().rsplit("\n", 1)[-1]
        return (
            ended.out.strip()[:MAX_OUTPUT_SHOWN] + (f"\n{last_line[:200]}" if last_line else "")
        ).strip() or "It printed nothing ."

    def begin(self, task: Task, seed: int) -> tuple[ReplyState, View]:
        state, view = super().begin(task, seed)
        return state, view._replace(extra={**view.extra, "protections": ""})

    def advance(self, state: ReplyState, action: str) -> tuple[ReplyState, View]:
        state, view = super().advance(state, action)
        return state, view._replace(extra={**view.extra, "protections": describe_protections()})

    @staticmethod
    def strip(payload: Any) -> Program:
        return parse_program(payload)._replace(tests=Checks(), solution="", thought="")

    def vocabulary(self) -> Iterable[str]:
        around = split_words(
            " ".join(self.wordings).replace("{}", "") + " run print It did not end well printed nothing I do know"
        )
        return [*list_tag_words(), *around, *TINY_CODE_WORDS, *(CODE_WORDS if self.options.size == "default" else ())]

    def expert(self) -> CodeExpert:
        return CodeExpert()


class CodeExpert:
    """Expert that gives the solution in the required layout."""

    def act(self, episode: Episode) -> str:
        program = parse_program(episode.task.payload)
        if not program.solution or not episode.task.graded:
            return "<think> I do not know . </think> <answer> ```python pass ``` </answer>"
        thought = program.thought or "I write it down ."
        if "\n" in program.solution.strip():
            return f"<think> {thought} </think> <answer>\n```python\n{program.solution.rstrip()}\n```\n</answer>"
        return f"<think> {thought} </think> <answer> ```python {program.solution} ``` </answer>"
