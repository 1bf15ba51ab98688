"""The environment of mathematics, and its calculator.

The calculator evaluates untrusted expressions within limits: numbers, + - * / // % **, brackets and a few functions.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

from fedagentgym.base.errors import DataError
from fedagentgym.envs.options import play
from fedagentgym.envs.reasoning.generators.math_levels import LEVEL_FORMS, LEVEL_WORDS
from fedagentgym.envs.reasoning.generators.math_tiny import TINY_FORMS, TINY_WORDS
from fedagentgym.envs.reasoning.generators.math_unseen import UNSEEN_LEVELS, UNSEEN_TINY, UNSEEN_WORDS
from fedagentgym.envs.reasoning.generators.problems import MathProblem, split_words
from fedagentgym.envs.reasoning.misled import mislead_problem
from fedagentgym.envs.reasoning.pools import Cell, make_level_cells, make_tiny_cells
from fedagentgym.envs.reasoning.replies import ReplyEnv, ReplyOptions, ReplyState, list_tag_words, make_action_help
from fedagentgym.envs.verifiers import Verdict, wrong
from fedagentgym.envs.verifiers.formats import ToolCall, extract_answer
from fedagentgym.envs.verifiers.math import EXACT, LIBRARY, grade_math, math_verifier_version
from fedagentgym.envs.view import Episode

MAX_LENGTH = 300
MAX_NUMBER_BITS = 4_000
MAX_SHOWN_DIVISOR = 10_000
_BINARY: dict[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _Refused(Exception):
    pass


def calculate(expression: str) -> str:
    """Evaluate an untrusted expression within limits, exactly except for irrational square roots.

    Args:
        expression: Numbers, `+ - * / // % **`, brackets, and the functions `abs`, `min`, `max`, `gcd`, `lcm`, `sqrt`,
            `factorial` and `comb`.

    Returns:
        The value as a short text, rounded to ten digits if its denominator is above 10,000; or an error message.

    Examples:
        >>> calculate("3 * (4 + 5)"), calculate("1 / 3 + 1 / 6"), calculate("9 ** 9 ** 9"), calculate("2 +")
        ('27', '1/2', 'Error : the number is too large .', 'Error : not an expression .')
    """
    if len(expression) > MAX_LENGTH:
        return "Error : the expression is too long ."
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("\u00d7", "*"), mode="eval")
        value = _value(tree.body)
    except _Refused as refused:
        return f"Error : {refused} ."
    except ZeroDivisionError:
        return "Error : division by zero ."
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return "Error : not an expression ."
    try:
        return str(value) if value.denominator <= MAX_SHOWN_DIVISOR else f"{float(value):.10g}"
    except OverflowError:  # the fraction is larger than any float
        return "Error : the number is too large ."


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _limited(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if right.denominator != 1:
                raise _Refused("powers are whole numbers")
            if abs(right) * max(left.numerator.bit_length(), left.denominator.bit_length()) > MAX_NUMBER_BITS:
                raise _Refused("the number is too large")
            return left ** int(right)
        if type(node.op) in _BINARY:
            return _limited(Fraction(_BINARY[type(node.op)](left, right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _function(node.func.id, [_value(argument) for argument in node.args])
    raise _Refused("not an expression")


def _function(name: str, arguments: list[Fraction]) -> Fraction:
    whole = [int(argument) for argument in arguments if argument.denominator == 1]
    if name == "abs" and len(arguments) == 1:
        return abs(arguments[0])
    if name in ("min", "max") and arguments:
        return (min if name == "min" else max)(arguments)
    if name in ("gcd", "lcm") and len(whole) == len(arguments) >= 1:
        return _limited(Fraction((math.gcd if name == "gcd" else math.lcm)(*whole)))
    if name == "sqrt" and len(arguments) == 1 and arguments[0] >= 0:
        root = Fraction(math.isqrt(arguments[0].numerator), math.isqrt(arguments[0].denominator))
        return root if root * root == arguments[0] else Fraction(str(round(math.sqrt(arguments[0]), 10)))
    if name in ("factorial", "comb") and len(whole) == len(arguments) and all(0 <= number <= 300 for number in whole):
        if name == "comb" and len(whole) == 2:
            return Fraction(math.comb(*whole))
        if name == "factorial" and len(whole) == 1:
            return _limited(Fraction(math.factorial(whole[0])))
    raise _Refused("functions are abs min max gcd lcm sqrt factorial comb, of whole numbers where it matters")


def _limited(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_NUMBER_BITS:
        raise _Refused("the number is too large")
    return value


def parse_math_problem(payload: Any) -> MathProblem:
    """The `MathProblem` of a payload, which may be a plain mapping with `problem` and `answers` (or one `answer`)."""
    if isinstance(payload, MathProblem):
        return payload
    if isinstance(payload, Mapping) and isinstance(payload.get("problem"), str):
        answers = payload.get("answers", payload.get("answer"))
        golds = (answers,) if isinstance(answers, str) else answers
        if isinstance(golds, Sequence) and all(isinstance(gold, str) and gold.strip() for gold in golds):
            return MathProblem(payload["problem"], tuple(golds), str(payload.get("solution", "")))
    raise DataError(
        f"a payload of fedagentgym/Math-v0 has a text 'problem' and texts 'answers', got {str(payload)[:80]!r}"
    )


TOOLS = {"calc[3 * (4 + 5)]": "calculates"}


class MathOptions(ReplyOptions):
    """The tasks, and the verifier by which answers are graded."""

    verifier: Literal["exact", "math-verify", "math-verify-reply"] | None = play(
        None,
        description="verifier of answers: exact arithmetic for numbers and math-verify for other answers (`exact`), or"
        " math-verify on the answer (`math-verify`) or on the whole reply (`math-verify-reply`); null: exact for generated"
        " tasks, math-verify for all others",
    )
    compare: Sequence[Literal["exact", "math-verify", "math-verify-reply"]] = play(
        (), description="further verifiers, whose verdicts are reported but do not change the reward"
    )


class MathEnv(ReplyEnv[MathOptions]):
    """Solve a mathematical problem; the reply holds the reasoning and the answer.

    **Tasks.** Generated: eight subjects (the categories) at five levels, no two problems alike, with exact answers;
    `size="tiny"` has level 1 only, with small numbers in short sentences. Loaded: `source="gsm8k"` and others, see
    `docs/how-to/load-data-sets.md`.
    **Actions.** The whole reply: `<think> ... </think> <answer> 42 </answer>`; a LaTeX box counts too. With `tools=["calc"]` a
    reply may be `<tool> calc[3 * (4 + 5)] </tool>`; with `attempts=n` a wrong answer gets feedback and another try.
    **Observations.** The problem; results of the calculator; feedback.
    **Reward.** 1 for the right answer, else 0. Components: `accuracy/math`, `format`, `tags`, `repetition`, and
    `accuracy/VERIFIER` of each verifier in `compare`, which does not change the reward.
    **Variant.** `{"kind": "wording", "phrasing": 0..7}`: the same problem with other words around it.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Math-v0"
    payload_type = MathProblem
    parse_payload = staticmethod(parse_math_problem)
    mislead = staticmethod(mislead_problem)
    role = "You solve mathematical problems."
    answer_form = "the result"
    tool_examples = TOOLS
    action_help = make_action_help(answer_form)
    accuracy = "math"
    misleading = "inverse"
    generator_versions: ClassVar[Mapping[str, int]] = {"default": 1, "tiny": 2}
    split_counts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "default": {"train": 10_000, "val": 500, "test": 1_000, "warmup": 2_000, "unseen": 1_000},
        "tiny": {"train": 3_000, "val": 200, "test": 400, "warmup": 4_000, "unseen": 400},
    }
    reward_names: ClassVar[tuple[str, ...]] = ("accuracy/math", "format", "tags", "repetition")
    tool_help = {"calc": "calc[expression]"}  # noqa: RUF012 - read only
    wordings = (
        "{}",
        "Question : {}",
        "Solve this problem . {}",
        "{} Give the result .",
        "Here is a task for you . {} Think first .",
        "Find the answer . {}",
        "A student asks : {}",
        "{} Reply with the answer only at the end .",
    )

    def set_up(self) -> None:
        self.compare = tuple(dict.fromkeys(self.options.compare))
        compared = tuple(f"accuracy/{name}" for name in self.compare)
        self.reward_names = (*type(self).reward_names, *compared)  # type: ignore[misc]
        super().set_up()
        is_generated = self._request is None and (self.given_pool is None or "generator" in self.given_pool.source)
        self.verifier = self.options.verifier or (EXACT if is_generated else LIBRARY)

    def build_cells(self, *path: str) -> Sequence[Cell]:
        if self.options.size == "tiny":
            return make_tiny_cells(UNSEEN_TINY if path else TINY_FORMS, self.options.seed, *path)
        return make_level_cells(UNSEEN_LEVELS if path else LEVEL_FORMS, self.options.seed, *path)

    def get_verifier_version(self) -> str:
        return math_verifier_version(self.verifier)

    def format_question(self, record: MathProblem) -> str:
        return record.problem

    def grade(self, record: MathProblem, reply: str) -> tuple[Verdict, Mapping[str, float]]:
        if not record.answers:
            return wrong("no gold answer", extract_answer(reply)), {"accuracy/math": 0.0}
        verdict = grade_math(reply, record.answers, self.verifier)
        compared = {f"accuracy/{name}": grade_math(reply, record.answers, name).score for name in self.compare}
        return verdict, {"accuracy/math": verdict.score, **compared}

    def run_tool(self, state: ReplyState, call: ToolCall) -> str:
        return calculate(call.argument)

    @staticmethod
    def strip(payload: Any) -> MathProblem:
        return parse_math_problem(payload)._replace(answers=(), solution="", formal="")

    def vocabulary(self) -> Iterable[str]:
        words = split_words(" ".join(self.wordings).replace("{}", ""))
        numbers = split_words("0 1 2 3 4 5 6 7 8 9 + - * / = ( ) . , : ? I do not know calc")
        return [
            *list_tag_words(),
            *words,
            *numbers,
            *TINY_WORDS,
            *((*LEVEL_WORDS, *UNSEEN_WORDS) if self.options.size == "default" else ()),
        ]

    def expert(self) -> MathExpert:
        return MathExpert()


class MathExpert:
    """Expert that reasons with the steps of the worked solution and gives its answer, in the required layout."""

    def act(self, episode: Episode) -> str:
        problem = parse_math_problem(episode.task.payload)
        if not problem.answers:
            return "<think> I do not know . </think> <answer> 0 </answer>"
        answer = problem.answers[0].replace("/", " / ") if "\\" not in problem.answers[0] else problem.answers[0]
        return f"<think> {problem.solution or answer} . </think> <answer> {answer} </answer>"
