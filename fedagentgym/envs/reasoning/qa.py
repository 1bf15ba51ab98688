"""The environment of questions over facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs.misconceptions import Procedures
from fedagentgym.envs.options import local, play
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.generators.knowledge import KNOWLEDGE_WORDS
from fedagentgym.envs.reasoning.generators.problems import Fact, Question, split_words
from fedagentgym.envs.reasoning.generators.qa_levels import (
    QUESTION_WORDS,
    TEMPLATES,
    UNSEEN_TEMPLATES,
    make_question_templates,
)
from fedagentgym.envs.reasoning.generators.qa_tiny import TINY_QA_WORDS, TINY_QUESTIONS, UNSEEN_TINY_QUESTIONS
from fedagentgym.envs.reasoning.library import (
    CorpusSplit,
    Library,
    OwnLibrary,
    Shelf,
    collect_pages,
    open_folder,
    open_generated,
    search,
)
from fedagentgym.envs.reasoning.misled import mislead_question
from fedagentgym.envs.reasoning.pools import Cell, make_level_cells, make_tiny_cells
from fedagentgym.envs.reasoning.replies import (
    ReplyEnv,
    ReplyOptions,
    ReplyState,
    Wording,
    list_tag_words,
    make_action_help,
)
from fedagentgym.envs.verifiers import Verdict
from fedagentgym.envs.verifiers.formats import ToolCall
from fedagentgym.envs.verifiers.qa import QA_VERIFIER_VERSION, grade_choice, grade_qa
from fedagentgym.envs.view import Episode

TOOLS = {"search[name]": "shows what is known about a name"}


def parse_question(payload: Any) -> Question:
    """The `Question` of a payload, which may be a plain mapping with `question` and `answers` (or one `answer`)."""
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

    score: Literal["exact", "f1"] = play(
        "exact", description="reward: 1 for an exact match, else 0 (`exact`), or the overlap of words (`f1`)"
    )
    corpus: Literal["own", "all"] = play(
        "own",
        description="pages that `search` covers: the task's facts (`own`), or the whole generated knowledge base or all"
        " paragraphs of the data set (`all`)",
    )
    library: str | None = local(
        None, description="folder of text files that `search` covers instead; each paragraph is a page"
    )


class QAEnv(ReplyEnv[QAOptions]):
    """Answer a question that requires several facts.

    **Tasks.** Generated: four types (the categories: compositional, bridge, comparison, agreement) at five levels over a
    generated knowledge base; `size="tiny"` asks for two or three hops over at most five short facts. Loaded:
    `source="hotpotqa"` and others, see `docs/how-to/load-data-sets.md`.
    **Actions.** The whole reply: `<think> ... </think> <answer> Oslo </answer>`. With `tools=["search"]` the facts are not
    shown, and `<tool> search[name] </tool>` searches them. Instead, it searches the pages of all tasks with `corpus="all"`, or
    a folder of texts with `library=`. With `attempts=n` a wrong answer gets feedback and another try.
    **Observations.** The facts (unless `search` is a tool) and the question; what a search found; feedback.
    **Reward.** 1 for an exact match after normalisation, else 0; with `score="f1"` the overlap of words. Components:
    `accuracy/qa` (exact match), `f1`, `format`, `tags`, `repetition`.
    **Variants.** `{"kind": "wording", "phrasing": 0..7}`: the same question with other words around it; `corpus_split`: each
    client's library lacks a part of the pages.
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
    variants = (Wording, CorpusSplit)
    generator_versions: ClassVar[Mapping[str, int]] = {"default": 1, "tiny": 1}
    split_counts: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "default": {"train": 10_000, "val": 500, "test": 1_000, "warmup": 2_000, "unseen": 1_000},
        "tiny": {"train": 3_000, "val": 200, "test": 400, "warmup": 2_000, "unseen": 400},
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

    def set_up(self) -> None:
        super().set_up()
        self._part = self.variant if isinstance(self.variant, OwnLibrary) else None
        self._shelf: Shelf | None = None
        if self.options.corpus == "own" and self.options.library is None:
            return
        option = "corpus=all" if self.options.library is None else "library="
        if "search" not in self.options.tools:
            raise OptionError(f"{option} sets the pages that search covers: add tools=['search']")
        if self.options.library is not None:
            self._shelf = open_folder(Path(self.options.library)).choose(self._part)
        elif self._request is None and self.options.size == "tiny":
            raise OptionError(
                "corpus=all searches facts that all tasks share, and with size=tiny every task has its own: leave corpus out"
            )
        elif self._request is None:
            self._shelf = open_generated(self.options.seed).choose(self._part)

    def build_cells(self, *path: str) -> Sequence[Cell]:
        seed = self.options.seed
        if self.options.size == "tiny":
            return make_tiny_cells(UNSEEN_TINY_QUESTIONS if path else TINY_QUESTIONS, seed, *path)
        return make_level_cells(make_question_templates(seed, UNSEEN_TEMPLATES if path else TEMPLATES), seed, *path)

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

    def run_tool(self, state: ReplyState, call: ToolCall) -> str:
        if self.options.corpus == "own" and self.options.library is None:
            facts = state.record.facts
            held = self._part
            return search([one for one in facts if held is None or held.has_page(one.title, one.title)], call.argument)
        if self._shelf is None:  # loaded data are read at the first search
            self._shelf = open_loaded(self.load_pool("all")).choose(self._part)
        return self._shelf.search(call.argument)

    @staticmethod
    def strip(payload: Any) -> Question:
        return parse_question(payload)._replace(answers=(), path=(), solution="")

    def list_procedures(self) -> Mapping[str, Procedures]:
        """The procedures of all categories; unless questions are tiny, `bridge` and `compositional` are left out.

        The distractors of their longer chains form no second complete chain that a misled player could follow.
        """
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


@lru_cache(maxsize=4)
def open_loaded(pool: TaskPool) -> Library:
    """The library of all paragraphs of a data set's tasks; environments over the same data share it."""
    return collect_pages(fact for task in pool for fact in parse_question(task.payload).facts)


class QAExpert:
    """Expert that answers with the supporting facts as its reasoning; with a search, it looks up each of them once before."""

    def __init__(self, searching: bool) -> None:
        self._searching = searching
        self._asked: set[str] = set()

    def act(self, episode: Episode) -> str:
        question = parse_question(episode.task.payload)
        if not question.answers or not episode.task.graded:
            return "<think> I do not know . </think> <answer> no </answer>"
        if self._searching:
            known = {fact.title: fact.text for fact in question.facts}
            shown = " ".join(episode.state.seen)
            lacking = (title for title in question.path if known.get(title, "") not in shown)
            missing = next((title for title in lacking if title not in self._asked), None)
            if missing is not None:
                self._asked.add(missing)
                return f"<think> I look up {missing} . </think> <tool> search[{missing}] </tool>"
        thought = question.solution or question.answers[0]
        return f"<think> {thought} </think> <answer> {question.answers[0]} </answer>"
