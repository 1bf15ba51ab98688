"""The environment of questions over facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from fedagentgym.base.errors import DataError
from fedagentgym.envs.misconceptions import Procedures
from fedagentgym.envs.options import play
from fedagentgym.envs.reasoning.generators.knowledge import KNOWLEDGE_WORDS
from fedagentgym.envs.reasoning.generators.problems import Fact, Question, split_words
from fedagentgym.envs.reasoning.generators.qa_levels import QUESTION_WORDS, make_question_templates
from fedagentgym.envs.reasoning.generators.qa_tiny import TINY_QA_WORDS, TINY_QUESTIONS
from fedagentgym.envs.reasoning.misled import mislead_question
from fedagentgym.envs.reasoning.pools import Cell, make_level_cells, make_tiny_cells
from fedagentgym.envs.reasoning.replies import ReplyEnv, ReplyOptions, State, list_tag_words, make_action_help
from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.formats import ToolCall
from fedagentgym.envs.verifiers.qa import QA_VERIFIER_VERSION, grade_choice, grade_qa, normalise
from fedagentgym.envs.view import Episode

MAX_RESULTS = 3
TOOLS = {"search[name]": "shows what is known about a name"}


def parse_question(payload: Any) -> Question:
    """The record of a payload, also of a plain mapping with `question` and `answers` (or one `answer`)."""
    if isinstance(payload, Question):
        return payload
    if isinstance(payload, Mapping) and isinstance(payload.get("question"), str):
        answers = payload.get("answers", payload.get("answer"))
        golds = (answers,) if isinstance(answers, str) else answers
        facts, options = payload.get("facts", ()), payload.get("options", {})
        if isinstance(golds, Sequence) and all(isinstance(gold, str) and gold.strip() for gold in golds):
            pairs = options.items() if isinstance(options, Mapping) else options
            try:
                parsed = tuple(
                    Fact(str(title), str(text))
                    for title, text in (
                        (fact["title"], fact["text"]) if isinstance(fact, Mapping) else fact for fact in facts
                    )
                )
                letters = tuple((str(letter), str(option)) for letter, option in pairs)
            except (KeyError, TypeError, ValueError):
                raise DataError(
                    "'facts' of fedagentgym/QA-v0 are pairs of title and text, 'options' of letter and text"
                ) from None
            path = tuple(str(title) for title in payload.get("path", ()))
            return Question(payload["question"], tuple(golds), parsed, path, str(payload.get("solution", "")), letters)
    raise DataError(
        f"a payload of fedagentgym/QA-v0 has a text 'question' and texts 'answers', got {str(payload)[:80]!r}"
    )


class QAOptions(ReplyOptions):
    """The tasks, and how answers are graded."""

    score: Literal["exact", "f1"] = play("exact", description="what is paid: an exact match, or the overlap of words")


class QAEnv(ReplyEnv[QAOptions]):
    """Answer a question that takes several facts.

    **Tasks.** Generated: four types (the categories: compositional, bridge, comparison, agreement) at five levels over a
    generated knowledge base; `size="tiny"` asks for two hops over four or fewer short facts. Loaded: `source="hotpotqa"` and
    others, see `docs/how-to/load-data-sets.md`.
    **Actions.** The whole reply: `<think> ... </think> <answer> Oslo </answer>`. With `tools=["search"]` the facts are not
    shown but found by `<tool> search[name] </tool>`; with `attempts=n` a wrong answer gets feedback and another try.
    **Observations.** The facts (unless they are to be searched) and the question; what a search found; feedback.
    **Reward.** 1 for an exact match after normalisation, else 0; with `score="f1"` the overlap of words. Components:
    `accuracy/qa` (exact match), `f1`, `format`, `tags`, `repetition`.
    **Variant.** `{"kind": "wording", "phrasing": 0..7}`: the same question in other words around it.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/QA-v0"
    payload_type = Question
    parse_payload = staticmethod(parse_question)
    mislead = staticmethod(mislead_question)
    role = "You answer questions."
    answer_form = "the answer, as short as possible"
    tool_examples = TOOLS
    action_help = make_action_help(answer_form)
    accuracy = "qa"
    misleading = "other"
    generator_versions: ClassVar[Mapping[str, int]] = {"default": 1, "tiny": 1}
    split_counts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "default": {"train": 10_000, "val": 500, "test": 1_000, "warmup": 2_000},
        "tiny": {"train": 3_000, "val": 200, "test": 400, "warmup": 2_000},
    }
    reward_names = ("accuracy/qa", "f1", "format", "tags", "repetition")
    tool_help: ClassVar[Mapping[str, str]] = {"search": "search[name]"}
    wordings = (
        "{}",
        "Read this . {}",
        "Here is what is known . {}",
        "{} Give a short answer .",
        "Find the answer . {}",
        "{} Answer with a name only .",
        "A student asks this . {}",
        "Think first . {}",
    )

    def build_cells(self) -> Sequence[Cell]:
        if self.options.size == "tiny":
            return make_tiny_cells(TINY_QUESTIONS, self.options.seed)
        return make_level_cells(make_question_templates(self.options.seed), self.options.seed)

    def get_verifier_version(self) -> str:
        return QA_VERIFIER_VERSION

    def format_question(self, record: Question) -> str:
        asked = record.question
        if record.options:
            asked += "\n" + "\n".join(f"{letter}. {option}" for letter, option in record.options)
        if "search" in self.options.tools or not record.facts:
            return asked
        blank = " " if self.options.size == "tiny" and self._request is None else "\n"
        return blank.join((*(fact.text for fact in record.facts), asked))

    def grade(self, record: Question, reply: str) -> tuple[Verdict, Mapping[str, float]]:
        if record.options:
            verdict = grade_choice(reply, record.answers[0] if record.answers else "", dict(record.options))
        else:
            verdict = grade_qa(reply, record.answers)
        exact = float(verdict.correct)
        earned = {"accuracy/qa": exact, "f1": verdict.score}
        return (verdict._replace(score=exact) if self.options.score == "exact" else verdict), earned

    def run_tool(self, state: State, call: ToolCall) -> str:
        return search(state.record.facts, call.argument)

    @staticmethod
    def strip(payload: Any) -> Question:
        return parse_question(payload)._replace(answers=(), path=(), solution="")

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Long chains of facts have no other one to be followed to the end: only the tiny ones can be mistaken."""
        known = super().list_procedures()
        chains = () if self.options.size == "tiny" else ("bridge", "compositional")
        return {category: procedures for category, procedures in known.items() if category not in chains}

    def vocabulary(self) -> Iterable[str]:
        around = split_words(" ".join(self.wordings).replace("{}", "") + " search Nothing found I look up do not know")
        said = (
            TINY_QA_WORDS
            if self.options.size == "tiny"
            else (*KNOWLEDGE_WORDS, *QUESTION_WORDS, *split_words("0 1 2 3 4 5 6 7 8 9"))
        )
        return [*list_tag_words(), *around, *said]

    def expert(self) -> QAExpert:
        return QAExpert("search" in self.options.tools)


class QAExpert:
    """Looks up the facts that it needs, then answers with the supporting facts as its reasoning."""

    def __init__(self, searching: bool) -> None:
        self._searching = searching

    def act(self, episode: Episode) -> str:
        question = parse_question(episode.task.payload)
        if not question.answers or not episode.task.graded:
            return "<think> I do not know . </think> <answer> no </answer>"
        if self._searching:
            known = {fact.title: fact.text for fact in question.facts}
            shown = " ".join(episode.state.seen)
            missing = next((title for title in question.path if known.get(title, "") not in shown), None)
            if missing is not None:
                return f"<think> I look up {missing} . </think> <tool> search[{missing}] </tool>"
        thought = question.solution or question.answers[0]
        return f"<think> {thought} </think> <answer> {question.answers[0]} </answer>"


def search(facts: Sequence[Fact], query: str) -> str:
    """The facts that match a query best: those with exactly this title, else those that share most words."""
    wanted = normalise(query[:200])
    about = [fact.text for fact in facts if normalise(fact.title) == wanted]
    if not about and wanted:
        asked = set(wanted.split())
        overlap = [(len(asked & set(normalise(fact.title).split())), -number) for number, fact in enumerate(facts)]
        best = sorted((pair for pair in overlap if pair[0]), reverse=True)[:MAX_RESULTS]
        about = [facts[-number].text for _, number in best]
    return " ".join(about) if about else "Nothing found ."
