"""`fedagentgym/Skills-v0`: the same questions in many categories, each with its own procedure to answer them.

The rewards beside accuracy pull in different directions. `thought` pays for a thought in the right layout, and `brevity` falls
with every word of the thought. `style/bare` pays for the number alone and `style/unit` for the number with its things, so that
no reply earns both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import EnvOptions, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.reasoning.generators.problems import split_words
from fedagentgym.envs.skills.tasks import (
    MAX_STEPS,
    THINGS,
    SkillTask,
    SkillWorld,
    apply_procedure,
    parse_task,
    strip_task,
    write_steps,
)
from fedagentgym.envs.tasks import Task
from fedagentgym.envs.variants import ClientVariant, Variant
from fedagentgym.envs.verifiers.formats import extract_answer, format_rewards, last_thought
from fedagentgym.envs.view import Episode, View

VERIFIER_VERSION = "skills/1"
STYLES = ("style/bare", "style/unit")
WORDS_PER_STEP = 6
MAX_THOUGHT_LENGTH = 2 * WORDS_PER_STEP * MAX_STEPS
MANNERS = ("one", "several")
LAYOUTS = ("thinks", "empty", "answers")
TAGGED, EQUATION, BARE = ("tagged", "equation", "bare")
UNKNOWN = {TAGGED: "<think> I do not know . </think> <answer> 0 </answer>", EQUATION: "0 + 0 = 0", BARE: "0"}
_ANSWER = re.compile(r"([0-9]{1,9})(?:\s+([a-z]{1,20}))?")
_STEPS = re.compile(r"\A[0-9.=+\- ]*[0-9] *")


class ReadAnswer(NamedTuple):
    """A number, and the things that were named with it."""

    number: int
    unit: str


def read_answer(reply: str, things: str, replies: str = TAGGED) -> ReadAnswer | None:
    """The answer of a reply: a number, alone or with the task's things behind it. Depending on `replies`, it is in the
    answer's tags, after the last equals sign, or the whole reply.

    >>> read_answer("<think> 45 + 32 = 77 . </think> <answer> 77 hats </answer>", "hats")
    ReadAnswer(number=77, unit='hats')
    >>> read_answer("<answer> 77 cups </answer>", "hats") is None
    True
    >>> read_answer("45 + 32 = 77", "hats", "equation")
    ReadAnswer(number=77, unit='')
    """
    text: str | None = reply
    if replies == TAGGED:
        text = extract_answer(reply)
    elif replies == EQUATION:
        text = reply.rpartition("=")[2] if "=" in reply else None
    found = _ANSWER.fullmatch(text.strip()) if text is not None else None
    if found is None or found[2] not in (None, things):
        return None
    return ReadAnswer(int(found[1]), found[2] or "")


def rate_reply(reply: str, answer: ReadAnswer | None, replies: str = TAGGED) -> dict[str, float]:
    """The rewards that need no gold. Without tags, a reply of nothing but the steps and the answer has the right format."""
    layout = format_rewards(reply)
    thought = last_thought(reply)
    if replies != TAGGED:
        thought = reply.rpartition("=")[0] if replies == EQUATION and answer is not None else None
        whole = answer is not None and (thought is None or _STEPS.fullmatch(thought) is not None)
        layout |= {"format": float(whole), "tags": float(whole)}
    words = 0 if thought is None else len(thought[:10_000].split())
    return {
        **layout,
        "thought": float(layout["format"] == 1.0 and words > 0),
        "brevity": max(0.0, 1.0 - words / MAX_THOUGHT_LENGTH),
        "style/bare": float(answer is not None and not answer.unit),
        "style/unit": float(answer is not None and bool(answer.unit)),
    }


class OwnProcedures(ClientVariant):
    """A share of the categories follow other procedures than in the unchanged environment: those `world` places further in
    the list of procedures in use. In world 0 they follow their own."""

    world: int = Field(ge=0)
    degree: float = Field(default=1.0, ge=0, le=1)
    seed: int = Field(default=0, ge=0)

    def change_procedures(self, own: Mapping[str, str]) -> dict[str, str]:
        """The procedure of every category in this world, given those of the unchanged environment."""
        in_use = sorted(set(own.values()))
        if self.world >= len(in_use):
            raise OptionError(
                f"the variant swapped_procedures has the worlds 0 to {len(in_use) - 1} here, one for each procedure in use:"
                f" there is no world {self.world}"
            )
        towns = stream(self.seed, "skills", "changed towns").shuffled(sorted(own))  # codespell:ignore towns
        changed = set(towns[: round(self.degree * len(towns))])
        return {
            town: in_use[(in_use.index(procedure) + self.world * (town in changed)) % len(in_use)]
            for town, procedure in own.items()
        }


class SwappedProcedures(Variant):
    """The same category follows another procedure at another client. A policy that all clients share must fail in part of a
    changed category's worlds, since nothing in a question reveals its client."""

    kind = "swapped_procedures"
    client_variant = OwnProcedures

    degree: float = Field(default=1.0, ge=0, le=1, description="share of the categories that differ between the worlds")
    worlds: int = Field(default=2, ge=2, description="number of different worlds; all have equally many clients")

    def assign(self, seed: int, client: int) -> OwnProcedures | None:
        """Return the client's world; None if nothing differs in it. The degree is the share of categories that differ."""
        drawn = self.draw(seed, client)
        return drawn if drawn.world and self.degree else None

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        assert isinstance(options, SkillsOptions)
        in_use = len(set(make_world(options).assign_procedures().values()))
        if self.worlds > in_use:
            raise OptionError(
                f"the variant {self.kind}: worlds must be at most {in_use}, one for each procedure in use, got {self.worlds}"
            )

    def draw(self, seed: int, client: int) -> OwnProcedures:
        block, place = divmod(client, self.worlds)
        order = stream(seed, "world", self.kind, block).permutation(self.worlds)
        shared = derive(seed, "world", self.kind)
        return OwnProcedures(world=int(order[place]), degree=self.degree, seed=shared)


class SkillsExpert:
    """Thinks the steps of a category's procedure and answers, in the required layout. With several manners, a third of the
    replies have an empty thought, a third only the answer, and half of all name the things: the task's id decides."""

    def __init__(
        self,
        manners: str,
        replies: str,
        procedure: str | None = None,
        changed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._manners, self._replies, self._procedure, self._changed = manners, replies, procedure, changed

    def act(self, episode: Episode) -> str:
        task = parse_task(episode.task.payload)
        if not task.procedure or not episode.task.graded:
            return UNKNOWN[self._replies]
        turn = min(episode.turn, len(task.numbers) - 1)
        procedure = self._procedure or self._changed.get(task.town, task.procedure)
        if self._replies == BARE:
            return str(apply_procedure(procedure, task.numbers[turn]))
        if self._replies == EQUATION:
            return write_steps(procedure, task.numbers[turn])
        return write_reply(task, procedure, turn, *self._choose_manner(episode.task.id))

    def _choose_manner(self, identifier: str) -> tuple[str, bool]:
        if self._manners == MANNERS[0]:
            return LAYOUTS[0], False
        draw = stream(0, "skills", "manner", identifier)
        return draw.pick(LAYOUTS), bool(draw.integers(2))


def write_reply(task: SkillTask, procedure: str, turn: int, layout: str = "thinks", unit: bool = False) -> str:
    """A reply by a procedure to the question of a turn."""
    numbers = task.numbers[turn]
    answer = f"<answer> {apply_procedure(procedure, numbers)}{f' {task.things}' if unit else ''} </answer>"
    if layout == "answers":
        return answer
    thought = f" {write_steps(procedure, numbers)} ." if layout == "thinks" else ""
    return f"<think>{thought} </think> {answer}"


def follows_procedure(task: SkillTask, given: Sequence[str], procedure: str, replies: str = TAGGED) -> bool:
    """Return whether every given reply has the result of this procedure."""
    if not given or len(given) > len(task.numbers):
        return False
    for reply, numbers in zip(given, task.numbers, strict=False):
        answer = read_answer(reply, task.things, replies)
        if answer is None or answer.number != apply_procedure(procedure, numbers):
            return False
    return True


ACCURACY = "accuracy/skills"
NAMINGS = {"once": 1, "repeated": 4}
WORDINGS = {
    "question": (
        "In {town} , what do {numbers} {things} make ?",  # codespell:ignore town
        "And what do {numbers} {things} make ?",
    ),
    "short": ("{town} : {numbers} {things} ?", "{numbers} {things} ?"),  # codespell:ignore town
}
ACTION_HELP = {
    TAGGED: "Reply with <think> your reasoning </think> <answer> the number </answer>, or the number with its things.",
    EQUATION: "Reply with the calculation and nothing else, such as 45 + 32 = 77.",
    BARE: "Reply with the number and nothing else.",
}
OVER = "This task is over ."
RIGHT, WRONG, NO_ANSWER = "Right .", "That is not right .", "There is no answer in your reply ."


class SkillsState(NamedTuple):
    """A running episode: the task, the current turn, the number of right answers, and the end."""

    task: SkillTask
    turn: int = 0
    right: int = 0
    over: bool = False


class SkillsOptions(EnvOptions):
    """The number of skills, how alike they are, and how tasks are asked and answered."""

    skills: int = task(8, description="number of categories, 4 to 64")
    procedures: int = task(1, description="steps of a skill, 1 to 3: each adds or takes off one more number")
    sharing: int | None = task(
        None,
        description="number of skills that share each procedure; null: all `2 ** procedures` procedures are in use",
    )
    turns: int = task(
        1,
        description="questions of an episode, 1 to 3: only the first one names the category, and no observation before the end"
        " says whether an answer was right",
    )
    wording: Literal["question", "short"] = play(
        "question",
        description="how a task is asked: `In Arle , what do 62 and 11 cups make ?`, or `Arle : 62 and 11 cups ?`",
    )
    naming: Literal["once", "repeated"] = play(
        "once",
        description="how often a question names its category: once; or four times, for methods that look for similar questions",
    )
    replies: Literal["tagged", "equation", "bare"] = play(
        "tagged", description="form of a reply: a thought and the number in tags, `62 + 11 = 73`, or `73`"
    )
    manners: Literal["one", "several"] = play(
        "one",
        description="how the expert answers: one, always alike; several, with or without a thought, its tags, and the things",
    )
    seed: int = task(0, description="seed of the procedures of the categories, and of the order of the tasks")
    train_tasks: int | None = task(None, ge=1, description="number of training tasks; null: the usual number")

    @model_validator(mode="after")
    def _check_manners(self) -> Self:
        if self.replies != TAGGED and self.manners != MANNERS[0]:
            raise ValueError(f"manners={self.manners} is for tagged replies: leave it out, or replies={self.replies}")
        return self

    def count_turns(self, usual: int) -> int:
        """`max_turns`, or as many as a task has questions."""
        return self.max_turns or self.turns


def make_world(options: SkillsOptions) -> SkillWorld:
    """The skills and tasks that the options name."""
    numbers = (options.skills, options.procedures, options.sharing, options.turns)
    return SkillWorld(*numbers, options.seed, options.train_tasks)


class SkillsEnv(MisleadableEnv[SkillsOptions]):
    """Say what two numbers of things make: in some categories they are added, in others one is taken off the other.

    **Tasks.** A category (a `town` in the text), some things and numbers. Every category has a *skill*: a procedure of one to
    three additions and subtractions. The same numbers and things are asked about in all categories, so the category alone
    decides what is right. Right and wrong procedures give replies of the same length and form.
    **Actions.** The whole reply: `<think> 45 + 32 = 77 . </think> <answer> 77 </answer>`; the things may follow the number. With
    `replies="equation"` it is `45 + 32 = 77`, and with `replies="bare"` it is `77`, three tokens of a language model.
    **Observations.** The question; with `turns` above 1 the next ones, which do not name the category again and say nothing about
    the answers before; at the end whether all were right.
    **Reward.** An equal part of 1 for each right answer; `success` means that all are right. Components: `accuracy/skills`,
    `format`, `tags`, `repetition`, `thought` (there is one), `brevity` (less for each word of the thought), `style/bare` and
    `style/unit` (the number alone, or with its things).
    **Variant.** `swapped_procedures`: the same category follows another procedure at another client.
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Skills-v0"
    payload_type = SkillTask
    takes = "reply"
    role = (
        "You answer questions about things in many towns; every town has its own way to count them."  # codespell:ignore
    )
    action_help = ACTION_HELP[TAGGED]
    default_max_turns = 1
    shares_pools = True
    variants = (SwappedProcedures,)
    reward_names = (ACCURACY, "format", "tags", "repetition", "thought", "brevity", *STYLES)

    def set_up(self) -> None:
        chosen = self.options
        self.world = make_world(chosen)
        self.action_help = ACTION_HELP[chosen.replies]
        self._changed: Mapping[str, str] = {}
        if isinstance(self.variant, OwnProcedures):
            self._changed = self.variant.change_procedures(self.world.assign_procedures())

    def load_pool(self, split: str) -> TaskPool:
        return self.world.make_pool(self.id, split)

    def get_verifier_version(self) -> str:
        return VERIFIER_VERSION

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[SkillsState, View]:
        record = self._follow_variant(parse_task(task.payload)) if task.graded else strip_task(task.payload)
        return SkillsState(record), View(self._ask(record, 0))

    def _follow_variant(self, task: SkillTask) -> SkillTask:
        """The task with the procedure and the answers of this client's world."""
        procedure = self._changed.get(task.town, task.procedure)
        if procedure == task.procedure or len(procedure) != len(task.procedure):
            return task
        answers = tuple(apply_procedure(procedure, numbers) for numbers in task.numbers)
        return task._replace(procedure=procedure, answers=answers)

    def advance(self, state: SkillsState, action: str) -> tuple[SkillsState, View]:
        task, turn, right, over = state
        score = right / len(task.numbers)
        if over:
            return state, View(OVER, score=score, success=right == len(task.numbers), done=True, valid=False)
        answer = read_answer(action, task.things, self.options.replies)
        correct = answer is not None and bool(task.answers) and answer.number == task.answers[turn]
        paid = correct / len(task.numbers)
        rewards = {**rate_reply(action, answer, self.options.replies), ACCURACY: paid}
        turn, right = turn + 1, right + correct
        if turn < len(task.numbers):
            after = SkillsState(task, turn, right)
            return after, View(
                self._ask(task, turn), None, paid, score + paid, valid=answer is not None, rewards=rewards
            )
        success = right == len(task.numbers)
        said = RIGHT if success else NO_ANSWER if answer is None else WRONG
        score = right / len(task.numbers)
        view = View(said, None, paid, score, success, True, answer is not None, rewards)
        return SkillsState(task, turn, right, True), view

    def _ask(self, task: SkillTask, turn: int) -> str:
        *first, last = task.numbers[turn]
        numbers = f"{' , '.join(map(str, first))} and {last}"
        town = " ".join([task.town] * NAMINGS[self.options.naming])
        return WORDINGS[self.options.wording][turn > 0].format(town=town, numbers=numbers, things=task.things)

    # ---- experts ------------------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        said = " ".join([OVER, RIGHT, WRONG, NO_ANSWER, *(text for texts in WORDINGS.values() for text in texts)])
        written = split_words("<think> </think> <answer> </answer> I do not know 0 1 2 3 4 5 6 7 8 9 + - = . ,")
        return [*written, *said.replace("{", "").replace("}", "").split(), *THINGS, *self.world.categories]

    def expert(self) -> Expert:
        return SkillsExpert(self.options.manners, self.options.replies, changed=self._changed)

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Each category, with its procedure and the other procedures in use."""
        own = {**self.world.assign_procedures(), **self._changed}
        in_use = sorted(set(own.values()))
        return {town: Procedures(mine, tuple(one for one in in_use if one != mine)) for town, mine in own.items()}

    def misled_expert(self, procedure: str) -> Expert:
        if len(procedure) != self.world.procedures or set(procedure) - set("+-"):
            raise OptionError(f"a procedure here is {self.world.procedures} of + and -, got {procedure!r}")
        return SkillsExpert(self.options.manners, self.options.replies, procedure)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        return follows_procedure(parse_task(task.payload), actions, procedure, self.options.replies)

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """The task whose gold is the answer of this reply; None if the reply gives none, or the task has several questions."""
        record = parse_task(task.payload)
        answer = read_answer(reply, record.things, self.options.replies)
        if answer is None or len(record.numbers) != 1:
            return None
        return replace(task, payload=record._replace(answers=(answer.number,)), graded=True)
