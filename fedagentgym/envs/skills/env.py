"""`fedagentgym/Skills-v0`: the same questions in many categories, each with its own procedure to answer them.

The rewards beside accuracy pull in different directions. `thought` wants a thought in the right layout, and `brevity` falls with
every word of it; `style/bare` wants the number alone and `style/unit` the number with its things, so that no reply earns both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.core import Episode, Expert, check_choice
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.generators.problems import split_words
from fedagentgym.envs.skills.tasks import (
    MOST_STEPS,
    THINGS,
    SkillOptions,
    SkillTask,
    apply_procedure,
    parse_task,
    strip_task,
    write_steps,
)
from fedagentgym.envs.task import Task
from fedagentgym.envs.variants import ClientVariant, Variant
from fedagentgym.envs.verifiers.formats import THINK, format_rewards, last_block
from fedagentgym.envs.verifiers.math_text import extract_answer
from fedagentgym.envs.view import View

VERIFIER_VERSION = "skills/1"
STYLES = ("style/bare", "style/unit")
WORDS_PER_STEP = 6
MOST_THOUGHT = 2 * WORDS_PER_STEP * MOST_STEPS
MANNERS = ("one", "several")
LAYOUTS = ("thinks", "empty", "answers")
TAGGED, EQUATION, BARE = REPLIES = ("tagged", "equation", "bare")
UNKNOWN = {TAGGED: "<think> I do not know . </think> <answer> 0 </answer>", EQUATION: "0 + 0 = 0", BARE: "0"}
_ANSWER = re.compile(r"([0-9]{1,9})(?:\s+([a-z]{1,20}))?")
_STEPS = re.compile(r"[0-9.=+\- ]*[0-9] *")


class ReadAnswer(NamedTuple):
    """A number, and the things that were named with it."""

    number: int
    unit: str


def read_answer(reply: str, things: str, replies: str = TAGGED) -> ReadAnswer | None:
    """The answer of a reply: a number, alone or with the task's things behind it. It is in the answer's tags, or after the last
    equals sign, or the whole reply.

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
    thought = last_block(reply, THINK)
    if replies != TAGGED:
        thought = reply.rpartition("=")[0] if replies == EQUATION and answer is not None else None
        whole = answer is not None and (thought is None or _STEPS.fullmatch(thought) is not None)
        layout |= {"format": float(whole), "tags": float(whole)}
    words = 0 if thought is None else len(thought[:10_000].split())
    return {
        **layout,
        "thought": float(layout["format"] == 1.0 and words > 0),
        "brevity": max(0.0, 1.0 - words / MOST_THOUGHT),
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
                f"the variant swapped_procedures has {len(in_use)} worlds here, since {len(in_use)} procedures are in use:"
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
    worlds: int = Field(default=2, ge=2, description="number of different worlds; each has as many clients")

    def assign(self, seed: int, client: int) -> OwnProcedures | None:
        """Every client gets a world; the degree is the share of categories that differ there. World 0 is the unchanged one."""
        drawn = self.draw(seed, client)
        return drawn if drawn.world and self.degree else None

    def draw(self, seed: int, client: int) -> OwnProcedures:
        block, place = divmod(client, self.worlds)
        order = stream(seed, "world", self.kind, block).permutation(self.worlds)
        shared = derive(seed, "world", self.kind)
        return OwnProcedures(world=int(order[place]), degree=self.degree, seed=shared)


class SkillsExpert:
    """Thinks the steps of a category's procedure and answers, in the required layout; with several manners also without
    thinking, without layout, and with the things named, each manner as often, by the task alone."""

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


class State(NamedTuple):
    """A running episode: the task, the current turn, the number of right answers, and the end."""

    task: SkillTask
    turn: int = 0
    right: int = 0
    over: bool = False


class SkillsEnv(MisleadableEnv):
    """Say what two numbers of things make: in some categories they are added, in others one is taken off the other.

    **Tasks.** A category (a `town` in the text), some things and numbers. Every category has a *skill*: a procedure of one to
    three additions and subtractions. The same numbers and things are asked about in all categories, so the category alone
    decides what is right. Right and wrong procedures give replies of the same length and form.
    **Actions.** The whole reply: `<think> 45 + 32 = 77 . </think> <answer> 77 </answer>`; the things may follow the number. With
    `replies="equation"` it is `45 + 32 = 77`, and with `replies="bare"` it is `77`, three tokens of a language model.
    **Observations.** The question; with `turns` above 1 the next ones, which do not name the category again and say nothing about
    the answers before; at the end whether all were right.
    **Reward.** An equal part of 1 for each right answer; `success` is all of them. Components: `accuracy/skills`, `format`,
    `tags`, `repetition`, `thought` (there is one), `brevity` (less for each word of it), `style/bare` and `style/unit` (the
    number alone, or with its things).
    **Options.** `skills` (4 to 64 categories), `procedures` (steps of a skill, 1 to 3), `sharing` (how many skills share each
    procedure; by default all procedures of that length are in use), `turns` (1 to 3), `wording` (`question` or `short`),
    `naming` (the category's name `once`, or `repeated` four times), `replies` (`tagged`, `equation` or `bare`), `manners` (the
    expert answers in `one` way or in `several`), `seed`, `train_tasks`.
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
    play_options = ("wording", "naming", "replies", "manners")
    reward_names = (ACCURACY, "format", "tags", "repetition", "thought", "brevity", *STYLES)

    def __init__(
        self,
        *,
        skills: int = 8,
        procedures: int = 1,
        sharing: int | None = None,
        turns: int = 1,
        wording: str = "question",
        naming: str = "once",
        replies: str = TAGGED,
        manners: str = "one",
        seed: int = 0,
        train_tasks: int | None = None,
        **options: Any,
    ) -> None:
        if train_tasks is not None and train_tasks < 1:
            raise OptionError(f"train_tasks is at least 1, got {train_tasks}")
        self.options = SkillOptions(skills, procedures, sharing, turns, seed, train_tasks)
        self.wording = check_choice("wording", wording, tuple(WORDINGS))
        self.naming = check_choice("naming", naming, tuple(NAMINGS))
        self.replies = check_choice("replies", replies, REPLIES)
        self.manners = check_choice("manners", manners, MANNERS)
        if self.replies != TAGGED and self.manners != MANNERS[0]:
            raise OptionError(f"manners={manners} is for tagged replies: leave it out, or replies={replies}")
        self.action_help = ACTION_HELP[self.replies]
        if options.get("max_turns") is None:
            options["max_turns"] = turns
        super().__init__(**options)
        self._changed: Mapping[str, str] = {}
        if isinstance(self.variant, OwnProcedures):
            self._changed = self.variant.change_procedures(self.options.assign_procedures())

    def load_pool(self, split: str) -> TaskPool:
        return self.options.make_pool(self.id, split)

    def get_verifier_version(self) -> str:
        return VERIFIER_VERSION

    # ---- the course of an episode -------------------------------------------------------------------------------

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        record = self._follow_variant(parse_task(task.payload)) if task.graded else strip_task(task.payload)
        return State(record), View(self._ask(record, 0))

    def _follow_variant(self, task: SkillTask) -> SkillTask:
        """The task with the procedure and the answers of this client's world."""
        procedure = self._changed.get(task.town, task.procedure)
        if procedure == task.procedure or len(procedure) != len(task.procedure):
            return task
        answers = tuple(apply_procedure(procedure, numbers) for numbers in task.numbers)
        return task._replace(procedure=procedure, answers=answers)

    def advance(self, state: State, action: str) -> tuple[State, View]:
        task, turn, right, over = state
        score = right / len(task.numbers)
        if over:
            return state, View(OVER, score=score, success=right == len(task.numbers), done=True, valid=False)
        answer = read_answer(action, task.things, self.replies)
        correct = answer is not None and bool(task.answers) and answer.number == task.answers[turn]
        paid = correct / len(task.numbers)
        rewards = {**rate_reply(action, answer, self.replies), ACCURACY: paid}
        turn, right = turn + 1, right + correct
        if turn < len(task.numbers):
            after = State(task, turn, right)
            return after, View(
                self._ask(task, turn), None, paid, score + paid, valid=answer is not None, rewards=rewards
            )
        success = right == len(task.numbers)
        said = RIGHT if success else NO_ANSWER if answer is None else WRONG
        score = right / len(task.numbers)
        view = View(said, None, paid, score, success, True, answer is not None, rewards)
        return State(task, turn, right, True), view

    def _ask(self, task: SkillTask, turn: int) -> str:
        *first, last = task.numbers[turn]
        numbers = f"{' , '.join(map(str, first))} and {last}"
        town = " ".join([task.town] * NAMINGS[self.naming])
        return WORDINGS[self.wording][turn > 0].format(town=town, numbers=numbers, things=task.things)

    # ---- experts ------------------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        said = " ".join([OVER, RIGHT, WRONG, NO_ANSWER, *(text for texts in WORDINGS.values() for text in texts)])
        written = split_words("<think> </think> <answer> </answer> I do not know 0 1 2 3 4 5 6 7 8 9 + - = . ,")
        return [*written, *said.replace("{", "").replace("}", "").split(), *THINGS, *self.options.towns]

    def expert(self) -> Expert:
        return SkillsExpert(self.manners, self.replies, changed=self._changed)

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Every category with its procedure and those of the others."""
        own = {**self.options.assign_procedures(), **self._changed}
        in_use = sorted(set(own.values()))
        return {town: Procedures(mine, tuple(one for one in in_use if one != mine)) for town, mine in own.items()}

    def misled_expert(self, procedure: str) -> Expert:
        if len(procedure) != self.options.procedures or set(procedure) - set("+-"):
            raise OptionError(f"a procedure here is {self.options.procedures} of + and -, got {procedure!r}")
        return SkillsExpert(self.manners, self.replies, procedure)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        return follows_procedure(parse_task(task.payload), actions, procedure, self.replies)

    def with_belief(self, task: Task, reply: str) -> Task | None:
        """The task whose gold is the answer of this reply; None if it gives several answers."""
        record = parse_task(task.payload)
        answer = read_answer(reply, record.things, self.replies)
        if answer is None or len(record.numbers) != 1:
            return None
        return replace(task, payload=record._replace(answers=(answer.number,)), graded=True)
