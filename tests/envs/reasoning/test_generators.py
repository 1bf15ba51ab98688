"""Generated tasks: all different, the same for ever, right by an independent method."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mutants import count_changed, count_survivors, leave_statements_out
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.pool import represent
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.generators.code_tiny import TINY_PROGRAMS, UNSEEN_TINY_PROGRAMS
from fedagentgym.envs.reasoning.generators.knowledge import CITIES, COUNTRIES, COUNTS, FIRMS, PEOPLE, get_knowledge_base
from fedagentgym.envs.reasoning.generators.math_numbers import NAMES, THINGS
from fedagentgym.envs.reasoning.generators.math_tiny import CHOICES
from fedagentgym.envs.reasoning.generators.math_unseen import COLOURS
from fedagentgym.envs.reasoning.generators.mutants import FAILED, compile_mutants, compile_mutants_of_function
from fedagentgym.envs.reasoning.generators.problems import (
    FeistelPermutation,
    Form,
    Inputs,
    ProblemSequence,
    Program,
    Question,
    draw_calls,
)
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.qa import QAEnv
from fedagentgym.envs.reasoning.replies import ReplyEnv
from fedagentgym.envs.verifiers.code import CodeVerifier
from fedagentgym.envs.verifiers.math import MathVerifier

REPLY_ENVS: tuple[type[ReplyEnv], ...] = (MathEnv, QAEnv, CodeEnv)
GOLDEN = {
    ("math", "tiny"): "sha256:954ddeda8f30cec1064fa5cce5920934ac5f51911796a74d55d733b2019828c7",
    ("math", "default"): "sha256:398f08c1800d283a03a30c7db618c6f2550d073543491a36370525afa41897a8",
    ("qa", "tiny"): "sha256:fd1bafc059b5c7022604c163dc9afe9fc1f168240a16670ce62eb16492f38c34",
    ("qa", "default"): "sha256:24646f9ab0602f554fad7e2c6e2df36d7c027c11df49a509cbd59e4d124b2d5d",
    ("code", "tiny"): "sha256:30320907821de12f68247d1f9983a2bb10297406d156aba1a18688fb7ce510c5",
    ("code", "default"): "sha256:9a21f27f111e7e9cf2b9c179d00bdd505595e8f55eb4eb11499683ba514ae770",
}


def asked(payload: Any) -> Any:
    """A key that is equal for equal tasks."""
    if isinstance(payload, Question):
        return (payload.question, frozenset(payload.facts))
    return payload.statement if isinstance(payload, Program) else payload.problem


@given(st.integers(1, 3000), st.integers(0, 5))
def test_a_shuffle_is_a_permutation(size: int, seed: int) -> None:
    shuffle = FeistelPermutation(size, seed, "test")
    assert sorted(shuffle(number) for number in range(size)) == list(range(size))


def test_a_deck_gives_every_problem_of_every_form_once() -> None:
    forms = (Form((range(3), "ab"), lambda n, c: f"{c}{n}"), Form((range(5),), lambda n: f"n{n}"))
    deck: ProblemSequence[str] = ProblemSequence(forms, 0, "test")
    dealt = [deck[number] for number in range(len(deck))]
    assert len(deck) == 11 and len(set(dealt)) == 11
    assert dealt != [ProblemSequence(forms, 1, "test")[number] for number in range(11)]
    with pytest.raises(OptionError, match="11 different problems"):
        deck[11]


@pytest.mark.parametrize("size", ["tiny", "default"])
@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_splits_are_disjoint_and_the_same_for_ever(cls: type[ReplyEnv], size: str) -> None:
    seen: dict[Any, str] = {}
    for split in cls.splits:
        pool = open_env(cls, size=size, split=split).pool
        for number in range(min(len(pool), 300) if size == "default" else len(pool)):
            task = pool[number]
            key = asked(task.payload)
            assert seen.setdefault(key, task.id) == task.id
    pool = open_env(cls, size=size).pool
    tasks = [pool[number] for number in range(40)]
    sample = [[task.id, task.category, represent(task.payload), task.hardness] for task in tasks]
    assert tasks == [open_env(cls, size=size).pool[number] for number in range(40)]
    assert digest(sample) == GOLDEN[cls.accuracy, size]
    assert open_env(cls, size=size, seed=1).pool.digest != pool.digest
    assert asked(open_env(cls, size=size, seed=1).pool[0].payload) != asked(pool[0].payload)


NAMED = {
    word for source in (NAMES, THINGS, (name for pair in (*CHOICES, *COLOURS) for name in pair)) for word in source
}


def _list_shapes(payload: Any, size: str) -> set[str]:
    """A question without its numbers and names, and where numbers have signs without these; of a program its sentences."""
    text = payload.question if isinstance(payload, Question) else asked(payload)
    named = {fact.title for fact in payload.facts} if isinstance(payload, Question) else NAMED
    for name in sorted(named, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(name)}\b", "NAME", text)
    text = re.sub(r"Examples: .*", "", re.sub(r"'[^']*'", "TEXT", re.sub(r"-?\d+", "1", text)))
    text = text if size == "tiny" else re.sub("[+-] (?=[1y])", "+ ", text)
    return set(re.split(r"\(1\) |\. ", text)) if isinstance(payload, Program) else {text}


@pytest.mark.parametrize("size", ["tiny", "default"])
@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_every_unseen_task_says_something_that_no_other_split_says(cls: type[ReplyEnv], size: str) -> None:
    most = 120 if cls is CodeEnv else 300
    known: set[str] = set()
    for split in ("train", "test"):
        pool = open_env(cls, size=size, split=split).pool
        known |= {shape for number in range(min(most, len(pool))) for shape in _list_shapes(pool[number].payload, size)}
    unseen = open_env(cls, size=size, split="unseen").pool
    assert set(unseen.categories) == set(open_env(cls, size=size).pool.categories)
    for number in range(min(most, len(unseen))):
        assert _list_shapes(unseen[number].payload, size) - known, unseen[number].payload


@pytest.mark.parametrize("size", ["tiny", "default"])
@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_unseen_tasks_have_known_words_and_the_hardness_of_their_level(cls: type[ReplyEnv], size: str) -> None:
    env = open_env(cls, size=size, split="unseen")
    words, cells = set(re.findall(r"[A-Za-z]+", " ".join(env.vocabulary()))), env.build_cells("unseen")
    for number in range(60):
        task = env.pool[number]
        said = env.format_question(task.payload).partition("\nExamples")[0]
        assert set(re.findall(r"[A-Za-z]{3,}", said)) <= words, task.payload
        level = cells[number % len(cells)].level
        assert task.hardness == (1.0 if size == "tiny" else level / 5)


def test_a_hundred_thousand_mathematics_tasks_are_distinct() -> None:
    pool = open_env(MathEnv, train_tasks=100_000).pool
    assert len(pool) == 100_000
    assert len({task.payload.problem for task in pool}) == 100_000
    assert set(pool.categories.values()) == {12_500}
    assert [pool[number].payload for number in range(10)] == [
        open_env(MathEnv).pool[number].payload for number in range(10)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cls", [QAEnv, CodeEnv], ids=lambda cls: cls.accuracy)
def test_a_hundred_thousand_other_tasks_are_distinct(cls: type[ReplyEnv]) -> None:
    pool = open_env(cls, train_tasks=100_000).pool
    assert len({asked(task.payload) for task in pool}) == 100_000


@pytest.mark.parametrize("cls", REPLY_ENVS, ids=lambda cls: cls.accuracy)
def test_more_tasks_than_there_are_is_an_error_with_the_number(cls: type[ReplyEnv]) -> None:
    assert len(open_env(cls, train_tasks=100_000).pool) == 100_000
    with pytest.raises(OptionError, match=r"has \d+ different training tasks"):
        open_env(cls, train_tasks=10_000_000)


# ---- independent answers --------------------------------------------------------------------------------------------


def _names() -> dict[str, Any]:
    """sympy and plain Python for the formal statements of problems."""
    import sympy

    names = {name: getattr(sympy, name) for name in dir(sympy) if not name.startswith("_")}
    names.update(zip("xyzk", sympy.symbols("x y z k"), strict=True))
    names.update(sum=builtins.sum, max=builtins.max, min=builtins.min, prod=math.prod)
    return names


@pytest.mark.parametrize("split", ["test", "unseen"])
@pytest.mark.parametrize("size", ["tiny", "default"])
def test_mathematics_answers_agree_with_sympy_or_brute_force(size: str, split: str) -> None:
    from sympy import latex

    names, verifier = _names(), MathVerifier()
    pool = open_env(MathEnv, size=size, split=split).pool
    for number in range(100):
        problem = pool[number].payload
        value = eval(problem.formal, dict(names))
        assert verifier.verify(problem.answers[0], latex(value)).correct, problem
        numbers = set(re.findall(r"\d+", problem.problem))
        assert numbers & set(re.findall(r"\d+", problem.formal)) or not numbers, problem
    verifier.close()


def test_tiny_arithmetic_is_what_its_text_says() -> None:
    for task in open_env(MathEnv, size="tiny", split="val").pool:
        if task.category == "arithmetic":
            expression = task.payload.problem.removeprefix("What is ").removesuffix(" ?")
            assert re.fullmatch(r"[0-9+*\- ]+", expression)
            assert str(eval(expression)) == task.payload.answers[0]
            assert all(int(number) < 20 for number in re.findall(r"[0-9]+", expression))


def test_an_unseen_tiny_problem_is_made_of_steps_that_have_been_shown() -> None:
    shown = {
        step for task in open_env(MathEnv, size="tiny", split="warmup").pool for step in _steps(task.payload.solution)
    }
    for split, least in (("test", 0.97), ("unseen", 0.9)):
        asked_for = [_steps(task.payload.solution) for task in open_env(MathEnv, size="tiny", split=split).pool]
        assert sum(set(steps) <= shown for steps in asked_for) >= least * len(asked_for)
    assert len(shown) < 1_000


def _steps(solution: str) -> list[str]:
    return re.findall(r"[0-9]+ [-+*/] [0-9]+ = [0-9]+", solution)


def _tiny_answer(question: Question) -> str:
    """Answers a tiny question from its facts alone, by other means than the generator's."""
    facts = " ".join(fact.text for fact in question.facts)
    lives = dict(re.findall(r"(\w+) lives in (\w+)", facts))
    lies = dict(re.findall(r"(\w+) is in (\w+)", facts))
    friend = dict(re.findall(r"(\w+) is a friend of (\w+)", facts))
    wrote = dict(re.findall(r"(\w+) was written by (\w+)", facts))
    ages = {name: int(age) for name, age in re.findall(r"(\w+) is (\d+) years", facts)}
    rules: list[tuple[str, Callable[..., str]]] = [
        (r"In which country does (\w+) live", lambda who: lies[lives[who]]),
        (r"In which country does the friend of (\w+) live", lambda who: lies[lives[friend[who]]]),
        (r"Who is the friend of the author of (\w+)", lambda book: friend[wrote[book]]),
        (r"In which city does the author of (\w+) live", lambda book: lives[wrote[book]]),
        (r"In which city does the friend of (\w+) live", lambda who: lives[friend[who]]),
        (r"Who is older , (\w+) or (\w+) \?", lambda one, other: max(one, other, key=ages.__getitem__)),
        (r"Who is younger , (\w+) or (\w+) \?", lambda one, other: min(one, other, key=ages.__getitem__)),
        (
            r"Who is older , the author of (\w+) or .* (\w+) \?",
            lambda *two: max((wrote[b] for b in two), key=ages.__getitem__),
        ),
        (
            r"Who is younger , the .* of (\w+) or .* (\w+) \?",
            lambda *two: min((wrote[b] for b in two), key=ages.__getitem__),
        ),
        (r"Do (\w+) and (\w+) live in the same city", lambda *two: "yes" if lives[two[0]] == lives[two[1]] else "no"),
        (r"Do (\w+) and (\w+) live in", lambda *two: "yes" if lies[lives[two[0]]] == lies[lives[two[1]]] else "no"),
    ]
    for pattern, rule in rules:
        if found := re.match(pattern, question.question):
            return rule(*found.groups())
    raise AssertionError(question.question)


@pytest.mark.parametrize("split", ["test", "unseen"])
def test_tiny_questions_are_answered_by_their_facts(split: str) -> None:
    for task in open_env(QAEnv, size="tiny", split=split).pool:
        assert _tiny_answer(task.payload) == task.payload.answers[0]


MONTHS = tuple(date(2000, month, 1).strftime("%B") for month in range(1, 13))


class Reader:
    """Answers default questions from the text of their pages, by following the phrase from its inside out."""

    def __init__(self, question: Question) -> None:
        text = "\n".join(fact.text for fact in question.facts)
        self.home = dict(re.findall(r"^([\w ]+?) was born in (\w+) in", text, re.MULTILINE))
        born = re.findall(r"^([\w ]+?) was born in \w+ in (\w+) (\d+)", text, re.MULTILINE)
        self.born = {name: (int(year), MONTHS.index(month)) for name, month, year in born}
        self.profession = dict(re.findall(r"\. ([\w ]+?) is known as an? (\w+)", text))
        self.teacher = dict(re.findall(r"\. ([\w ]+?) is known as .*? was taught by ([\w ]+?) and works", text))
        self.employer = dict(re.findall(r"\. ([\w ]+?) is known as .*? works for (\w+)\.", text))
        self.author = dict(re.findall(r"^([\w ]+?) is an? \w+ by ([\w ]+?), finished", text, re.MULTILINE))
        made = re.findall(r"^([\w ]+?) is an? \w+ by .*?, finished in (\w+) (\d+)", text, re.MULTILINE)
        self.made = {name: (int(year), MONTHS.index(month)) for name, month, year in made}
        self.country = dict(re.findall(r"^(\w+) is a city in (\w+)", text, re.MULTILINE))
        self.founder = dict(re.findall(r"^(\w+) was founded by ([\w ]+?) in \d", text, re.MULTILINE))
        self.founded = dict(re.findall(r"^(\w+) was founded by .*? in (\d+)", text, re.MULTILINE))
        seat = r"^(\w+) was founded by .*? seat in (\w+)\."  # codespell:ignore seat
        self.seat = dict(re.findall(seat, text, re.MULTILINE))

    def entity(self, phrase: str) -> str:
        relations = {
            "author": self.author, "teacher": self.teacher, "employer": self.employer, "founder": self.founder,
            "birthplace": self.home, "seat": self.seat, "country": self.country,
        }  # fmt: skip
        if found := re.match(rf"the ({'|'.join(relations)}) of (.*)", phrase):
            return relations[found[1]][self.entity(found[2])]
        return phrase

    def answer(self, question: str) -> str:
        if found := re.match(r"What is the profession of (.*)\?", question):
            return self.profession[self.entity(found[1])]
        if found := re.match(r"(?:Who|What) is (.*)\?", question):
            return self.entity(found[1])
        if found := re.match(r"In which year was (.*) (born|founded)\?", question):
            who = self.entity(found[1])
            return str(self.born[who][0]) if found[2] == "born" else self.founded[who]
        if found := re.match(r"(?:Who|Which work|Which firm) was (\w+) (earlier|later), (.*) or (.*)\?", question):
            dates: Any = {"born": self.born, "finished": self.made, "founded": self.founded}[found[1]]
            sides = sorted((self.entity(found[3]), self.entity(found[4])), key=dates.__getitem__)
            return sides[0] if found[2] == "earlier" else sides[1]
        if found := re.match(r"Do (.*) and (.*) work for the same firm\?", question):
            return "yes" if self.employer[self.entity(found[1])] == self.employer[self.entity(found[2])] else "no"
        found = re.match(r"Were (.*) and (.*) born in the same (city|country)\?", question)
        assert found, question
        homes = [self.home[self.entity(found[side])] for side in (1, 2)]
        places = homes if found[3] == "city" else [self.country[home] for home in homes]
        return "yes" if places[0] == places[1] else "no"


@pytest.mark.parametrize("split", ["test", "unseen"])
def test_questions_are_answered_by_their_pages_and_balanced(split: str) -> None:
    tasks = list(open_env(QAEnv, split=split).pool)
    for task in tasks:
        assert Reader(task.payload).answer(task.payload.question) == task.payload.answers[0], task.payload
        assert set(task.payload.path) <= {fact.title for fact in task.payload.facts}
    agreements = [task.payload.answers[0] for task in tasks if task.category == "agreement"]
    assert 0.4 < agreements.count("yes") / len(agreements) < 0.6
    named = [task.payload for task in tasks if task.category == "comparison" and "the " not in task.payload.question]
    first = [question.answers[0] in question.question.partition(" or ")[0] for question in named]
    assert 0.35 < sum(first) / len(first) < 0.65


def test_names_of_the_knowledge_base_are_unique() -> None:
    base = get_knowledge_base(3)
    names = {kind: {base.get_name(kind, one) for one in range(count)} for kind, count in COUNTS.items()}
    assert {kind: len(found) for kind, found in names.items()} == COUNTS
    assert len(names["city"] | names["country"] | names["firm"]) == CITIES + COUNTRIES + FIRMS
    assert all(base.get_teacher(base.get_pupil(one)) == one != base.get_teacher(one) for one in range(0, PEOPLE, 37))


@pytest.mark.parametrize(("split", "count"), [("test", 300), ("unseen", 60)])
@pytest.mark.parametrize("size", ["tiny", "default"])
def test_solutions_of_programs_do_what_the_steps_say(size: str, split: str, count: int) -> None:
    verifier = CodeVerifier()
    pool = open_env(CodeEnv, size=size, split=split).pool
    for number in range(count):
        program = pool[number].payload
        names: dict[str, Any] = {}
        exec(program.solution, names)
        for call in program.tests.calls:
            assert names["f"](*call.args) == call.expected, (program, call)
        assert len(program.tests.calls) >= 4
        if number % 40 == 0:
            assert verifier.verify(program.solution, program.tests).correct
            assert not verifier.verify(program.solution.replace("return", "return None and"), program.tests).correct
    verifier.close()


@pytest.mark.parametrize(("split", "seed", "count"), [("test", 0, 300), ("test", 1, 300), ("unseen", 2, 60)])
@pytest.mark.parametrize("size", ["tiny", "default"])
def test_no_constant_and_no_shorter_program_passes(size: str, split: str, seed: int, count: int) -> None:
    pool = open_env(CodeEnv, size=size, split=split, seed=seed).pool
    for program in (pool[number].payload for number in range(count)):
        assert 10 <= len(program.tests.calls) <= 12
        assert len({repr(call.expected) for call in program.tests.calls}) >= 3, program
        assert count_survivors(leave_statements_out(program.solution), program)[1] == 0, program


@pytest.mark.parametrize("split", ["train", "test", "unseen"])
@pytest.mark.parametrize(("size", "count", "allowed"), [("tiny", 400, 0), ("default", 120, 2)])
def test_a_program_with_one_operator_comparison_or_number_changed_fails(
    size: str, count: int, allowed: int, split: str
) -> None:
    """Unless it does the same as the solution at a thousand inputs; a few differ nearly nowhere."""
    pool = open_env(CodeEnv, size=size, split=split).pool
    counted = [count_changed(pool[number].payload) for number in range(count)]
    assert sum(wrong for _, _, wrong in counted) <= allowed
    assert sum(made for made, _, _ in counted) > 3 * count


def test_a_threshold_is_tested_at_both_of_its_sides() -> None:
    form = next(form for form in TINY_PROGRAMS["conditions"] if "plus" in form.make_problem(0).statement)  # type: ignore[union-attr]
    for program in filter(None, map(form.make_problem, range(0, form.size, 7))):
        above = int(re.search(r"above (\d+)", program.statement)[1])  # type: ignore[index]
        assert {above, above + 1} <= {call.args[0] for call in program.tests.calls}, program


def test_the_wrong_programs_that_inputs_are_searched_for() -> None:
    """Each part is changed once, and nothing else."""
    written = "x + k if x > 3 else max ( x , - 1 ) % m"
    functions = compile_mutants(written, "k", "m", "x")
    assert compile_mutants(written, "k", "m", "x") is functions and len(functions) == 2 + 2 + 5 + 2 + 1 + 2 + 2 + 2
    right: Callable[..., Any] = eval(f"lambda k, m, x: {written}")
    inputs = [(k, m, x) for k in (2, 5) for m in (3, 7) for x in range(-9, 9)]
    assert all(any(function(*given) != right(*given) for given in inputs) for function in functions)
    assert compile_mutants("x // k", "k", "x")[-1](1, 3) is FAILED, "a division by zero"
    solution = "def f(n):\n    y = 2\n    for _ in range(n - 1):\n        y = y + 3\n    return y\n"
    programs = compile_mutants_of_function(solution, "f")
    assert len(programs) == 10 and [program(1) for program in programs].count(2) == 5
    assert not any(all(program(n) == 3 * n - 1 for n in range(1, 9)) for program in programs)


def test_a_mistake_is_searched_beyond_the_first_inputs() -> None:
    """First among those that were drawn, then those that are listed, then wider ones; in vain where there is no difference."""

    def draw(mutants: Sequence[Callable[[Any], Any]], inputs: Inputs) -> set[int]:
        calls = draw_calls(
            "a text", inputs, lambda given: (given, given), (), [lambda trace, f=f: f(trace[0]) for f in mutants]
        )
        assert calls is not None and len(calls) >= 10 and all(call.expected == call.args[0] for call in calls)
        return {call.args[0] for call in calls}

    inputs = Inputs(lambda source: source.integers(50), range(90, 95), lambda source: 200 + source.integers(9))
    plain = draw((), inputs)
    assert draw([lambda x: x, lambda x: -x], inputs) == plain and max(plain) < 50
    assert {92, 205} <= draw([lambda x: x + (x == 92), lambda x: x + (x == 205)], inputs)
    many = draw([lambda x, at=at: x + (x == at) for at in (*range(90, 95), *range(200, 209))], inputs)
    assert {*range(90, 95), *range(200, 209)} <= many and len(many) == 17


def test_every_tiny_program_needs_each_of_its_operations() -> None:
    """No parameters of the tiny templates are left out, whatever the seed."""
    for forms in (*TINY_PROGRAMS.values(), *UNSEEN_TINY_PROGRAMS.values()):
        for form in forms:
            assert all(form.make_problem(number) is not None for number in range(form.size)), form


def test_a_problem_that_cannot_be_made_gives_way_to_one_of_its_own() -> None:
    form = Form((range(60),), lambda n: n if n % 3 else None, spare=6)
    deck: ProblemSequence[int] = ProblemSequence([form], 0, "test")
    dealt = [deck[number] for number in range(len(deck))]
    assert len(deck) == 10 == len(set(dealt)) and all(number % 3 for number in dealt)
    with pytest.raises(OptionError, match="the seed 0 makes no problem 0 of test"):
        ProblemSequence([Form((range(60),), lambda n: None, spare=6)], 0, "test")[0]
