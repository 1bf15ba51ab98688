"""falsepass's probes of graders, played in every environment and with every verifier.

A probe is a reply whose right score is known beforehand: an empty reply, the question itself, all answers at once, a denial of
the right answer, a wrong answer in the right form, two million characters. A wrong reply that earns a reward is a false pass; a
right reply without the full reward is a false fail. Environments of several turns have no single right answer, so they are probed
only with replies that need none, in every turn. falsepass comes with the extra `[dev]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.findings import Findings
from fedagentgym.base.imports import require
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.verifiers.formats import extract_answer, last_fenced_code

if TYPE_CHECKING:
    from falsepass.model import Completion, Example, Score


TAGS, BOX, EQUATION, BARE = "<think> I think so . </think> <answer> {} </answer>", r"\boxed{{{}}}", "equation", "{}"


class Probed(NamedTuple):
    """An environment with the options under which it is probed, and the form of a reply with an answer."""

    name: str
    env_id: str
    options: Mapping[str, Any]
    tasks: int
    form: str = TAGS


LETTERS = tuple(zip("ABCD", ("opium", "aspirin", "quinine", "digitalis"), strict=True))
CHOICES = [
    {
        "question": f"Which one is number {number + 1} of the list?",
        "options": dict(LETTERS),
        "answer": LETTERS[number][0],
    }
    for number in range(len(LETTERS))
]
"""Multiple-choice questions, which no generated set has."""
PROBED = (
    Probed("Math", "fedagentgym/Math-v0", {}, 60),
    Probed("Math, tiny", "fedagentgym/Math-v0", {"size": "tiny"}, 40),
    Probed("Math, verifier math-verify", "fedagentgym/Math-v0", {"verifier": "math-verify"}, 30),
    Probed("Math, verifier math-verify-reply", "fedagentgym/Math-v0", {"verifier": "math-verify-reply"}, 30, BOX),
    Probed("QA", "fedagentgym/QA-v0", {}, 60),
    Probed("QA, tiny", "fedagentgym/QA-v0", {"size": "tiny"}, 40),
    Probed("QA, multiple choice", "fedagentgym/QA-v0", {"data": CHOICES, "split": "train"}, len(CHOICES)),
    Probed("Code", "fedagentgym/Code-v0", {}, 20),
    Probed("Code, tiny", "fedagentgym/Code-v0", {"size": "tiny"}, 20),
    Probed("Skills", "fedagentgym/Skills-v0", {}, 60),
    Probed("Skills, replies=equation", "fedagentgym/Skills-v0", {"replies": "equation"}, 40, EQUATION),
    Probed("Skills, replies=bare", "fedagentgym/Skills-v0", {"replies": "bare"}, 40, BARE),
    Probed("Mixture", "fedagentgym/Mixture-v0", {}, 20),
    Probed("Guess", "fedagentgym/Guess-v0", {}, 20),
    Probed("Records", "fedagentgym/Records-v0", {}, 10),
    Probed("WebShop", "fedagentgym/WebShop-v0", {}, 10),
    Probed("ALFWorld", "fedagentgym/ALFWorld-v0", {}, 10),
)
QUICK_TASKS = 2
NO_PROGRAM = "def f(*given): return None"


class Scorer:
    """Plays a probe's text as the reply of every turn, and returns the score of the episode."""

    def __init__(self, env: TextEnv) -> None:
        self.env = env

    async def score(self, example: Example, completion: Completion) -> Score:
        model = require("falsepass", "dev").model
        (episode,) = self.env.reset_many([example.key], [0])
        text = read_completion(completion)
        while not episode.over:
            (episode,) = self.env.step_many([episode], [text])
        found: Score = model.Score(float(episode.view.score))
        return found


def read_completion(completion: Any) -> str:
    """The text of a reply; of a list of messages, the agent's last one, or an empty text if there is none."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") for message in completion if message.get("role") == "assistant"]
    return str(said[-1] or "") if said else ""


def make_adapter(env: TextEnv, form: str) -> Any:
    """falsepass's adapter for an environment: the form of a reply, and wrong, repeated and equivalent answers."""
    base = require("falsepass.adapter", "dev").Adapter

    class OwnAdapter(base):  # type: ignore[misc,valid-type]
        name = env.id

        def render(self, answer: str, example: Example) -> str:
            if form == EQUATION:
                return f"{example.raw.rpartition('=')[0]}= {answer}"
            return form.format(f"```python\n{answer}\n```" if is_program(example.answer) else answer)

        def wrong_answer(self, example: Example) -> str:
            return find_wrong(example.answer)

        def shotgun_answers(self, example: Example) -> list[str]:
            return [find_wrong(example.answer), example.answer, "0", "yes", "no"]

        def equivalent_forms(self, example: Example) -> dict[str, Any]:
            found: dict[str, Any] = super().equivalent_forms(example)
            return found if form in (TAGS, BOX) else {}  # the other forms allow no text around an answer

    return OwnAdapter()


def is_program(answer: str) -> bool:
    """True if an answer is a program, which is written in a code fence."""
    return "def " in answer


def find_wrong(answer: str) -> str:
    """An answer that is certainly wrong, and of the same kind."""
    if is_program(answer):
        return NO_PROGRAM
    if answer in dict(LETTERS):
        return next(letter for letter, _ in LETTERS if letter != answer)
    if answer in ("yes", "no"):
        return "no" if answer == "yes" else "yes"
    return "987654" if any(letter.isdigit() for letter in answer) else "Nowhere"


def probe(case: Probed, most: int) -> tuple[int, int, int, int]:
    """Return the numbers of tasks, of played probes, of false passes and of false fails."""
    probes, model = require("falsepass.probes", "dev"), require("falsepass.model", "dev")
    env = open_env(case.env_id, **{"split": "test", **case.options})
    tasks = stream(0, "probes", case.name).shuffled(list(env.pool.ids))[: min(most, case.tasks)]
    starts = env.reset_many(tasks, [0] * len(tasks))
    replies = [env.expert().act(start) if env.takes == "reply" else "" for start in starts]
    examples = [
        model.Example(start.task.id, start.view.observation, read_answer(reply, case.form), raw=reply)
        for start, reply in zip(starts, replies, strict=True)
    ]
    adapter, scorer = make_adapter(env, case.form), Scorer(env)
    if env.takes == "reply":
        every, few = probes.PER_EXAMPLE, [*probes.FEW_EXAMPLES]
    else:
        every, few = [*probes.ANSWER_FREE, probes.p7_wrong_confident], probes.ANSWER_FREE_FEW
    with asyncio.Runner() as runner:
        results = [
            result
            for place, example in enumerate(examples)
            for one in (*every, *(few if place < 2 else ()))
            for result in runner.run(one(adapter, scorer, example))
        ]
    probes.mark_same_as_good(results)
    failed = [result for result in results if not result.passed and not result.same_as_good]
    fails = sum(result.expected is model.Expect.FULL for result in failed)
    return len(tasks), len(results), len(failed) - fails, fails


def read_answer(reply: str, form: str) -> str:
    """The answer in the expert's reply, without the text around it."""
    if form in (EQUATION, BARE):
        return reply.rpartition("=")[2].strip()
    answer = extract_answer(reply) or ""
    return last_fenced_code(answer) or answer


def find_probes(quick: bool, cases: Sequence[Probed] = PROBED) -> Findings:
    """The numbers of tasks, probes, false passes and false fails of every environment."""
    rows: dict[str, tuple[float | str, ...]] = {
        case.name: probe(case, QUICK_TASKS if quick else case.tasks) for case in cases
    }
    columns = {"tasks": ",d", "probes": ",d", "false passes": ",d", "false fails": ",d"}
    return Findings("environment", columns, rows)
