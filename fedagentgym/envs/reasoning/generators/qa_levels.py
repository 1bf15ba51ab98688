"""Multi-hop questions over the knowledge base, in four types at five levels.

A level fixes the number of hops and how many distracting pages lie among the supporting ones: 2, 6, 6, 10 and 14.
From level 1 to 5 a question takes two hops (1, 2), three (3, 4) and four (5); a comparison or an agreement counts the pages of
both its sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedagentgym.base.streams import stream
from fedagentgym.envs.reasoning.generators.knowledge import (
    CITIES,
    COUNTRIES,
    FIRMS,
    MONTHS,
    PEOPLE,
    PER_CITY,
    WORKS,
    KnowledgeBase,
    get_knowledge_base,
)
from fedagentgym.envs.reasoning.generators.problems import Fact, Form, Question, split_words

DISTRACTORS = (2, 6, 6, 10, 14)
_PLURAL = {"person": PEOPLE, "work": WORKS, "firm": FIRMS}


class Chain(NamedTuple):
    """A path through the knowledge base: its end, the pages on it, and its description in words."""

    kind: str
    at: int
    pages: tuple[Fact, ...]
    phrase: str


def _start_chain(base: KnowledgeBase, kind: str, one: int) -> Chain:
    name = {"person": base.get_person_name, "work": base.get_work_title, "firm": base.get_firm_name}[kind](one)
    return Chain(kind, one, (), name)


def _write_page(base: KnowledgeBase, kind: str, one: int) -> Fact:
    return {
        "person": base.write_person_page,
        "work": base.write_work_page,
        "firm": base.write_firm_page,
        "city": base.write_city_page,
    }[kind](one)


STEPS: dict[str, tuple[str, str, str, Callable[[KnowledgeBase, int], int]]] = {
    "author": ("work", "person", "the author of {}", lambda base, one: base.get_author(one)),
    "teacher": ("person", "person", "the teacher of {}", lambda base, one: base.get_teacher(one)),
    "founder": ("firm", "person", "the founder of {}", lambda base, one: base.get_founder(one)),
    "employer": ("person", "firm", "the employer of {}", lambda base, one: base.get_employer(one)),
    "birthplace": ("person", "city", "the birthplace of {}", lambda base, one: base.get_birthplace(one)),
    "seat": ("firm", "city", "the seat of {}", lambda base, one: base.get_seat(one)),
    "country": ("city", "country", "the country of {}", lambda base, one: base.get_country(one)),
}


def _follow_steps(base: KnowledgeBase, chain: Chain, steps: Sequence[str]) -> Chain:
    for step in steps:
        kind, target, phrase, follow = STEPS[step]
        assert chain.kind == kind, (chain.kind, step)
        page = _write_page(base, kind, chain.at)
        chain = Chain(target, follow(base, chain.at), (*chain.pages, page), phrase.format(chain.phrase))
    return chain


def _get_name(base: KnowledgeBase, kind: str, one: int) -> str:
    return {
        "person": base.get_person_name,
        "firm": base.get_firm_name,
        "city": base.get_city_name,
        "country": base.get_country_name,
    }[kind](one)


def _make_question(base: KnowledgeBase, level: int, text: str, answer: str, support: Sequence[Fact]) -> Question:
    """A question with its support among distracting pages, in an order that follows from the question itself."""
    draw = stream(level, "question", text)
    pages = {fact.title: fact for fact in support}
    wanted = len(pages) + DISTRACTORS[level - 1]
    makers: tuple[tuple[Callable[[int], Fact], int], ...] = (
        (base.write_person_page, PEOPLE),
        (base.write_work_page, WORKS),
        (base.write_firm_page, FIRMS),
        (base.write_city_page, CITIES),
    )
    while len(pages) < wanted:
        maker, count = draw.pick(makers)
        page = maker(draw.integers(count))
        pages.setdefault(page.title, page)
    path = tuple(dict.fromkeys(fact.title for fact in support))
    said = " ".join(dict.fromkeys(fact.text for fact in support))
    return Question(text, (answer,), tuple(draw.shuffled(list(pages.values()))), path, said)


# ---- the four types -------------------------------------------------------------------------------------------------


def _compositional(base: KnowledgeBase, level: int, kind: str, steps: Sequence[str]) -> Callable[[int], Question]:
    def make(one: int) -> Question:
        chain = _follow_steps(base, _start_chain(base, kind, one), steps)
        ask = "Who" if chain.kind == "person" else "What"
        return _make_question(
            base, level, f"{ask} is {chain.phrase}?", _get_name(base, chain.kind, chain.at), chain.pages
        )

    return make


def _bridge(base: KnowledgeBase, level: int, kind: str, steps: Sequence[str], ask: str) -> Callable[[int], Question]:
    def make(one: int) -> Question:
        chain = _follow_steps(base, _start_chain(base, kind, one), steps)
        support = (*chain.pages, _write_page(base, chain.kind, chain.at))
        if ask == "profession":
            text, answer = f"What is the profession of {chain.phrase}?", base.get_profession(chain.at)
        elif ask == "year":
            text, answer = f"In which year was {chain.phrase} born?", str(base.get_birth_date(chain.at)[0])
        else:
            text, answer = f"In which year was {chain.phrase} founded?", str(base.get_founding_year(chain.at))
        return _make_question(base, level, text, answer, support)

    return make


def _comparison(
    base: KnowledgeBase, level: int, kind: str, steps: Sequence[str], first: bool
) -> Callable[[int, int], Question]:
    def make(one: int, gap: int) -> Question:
        other = (one + gap) % _PLURAL[kind]
        sides = [_follow_steps(base, _start_chain(base, kind, side), steps) for side in (one, other)]
        support = [page for side in sides for page in (*side.pages, _write_page(base, side.kind, side.at))]
        if sides[0].kind == "work":
            dates, verb = [base.get_completion_date(side.at) for side in sides], "finished"
        else:
            dates, verb = [base.get_birth_date(side.at) for side in sides], "born"
        names = [
            base.get_work_title(side.at) if side.kind == "work" else base.get_person_name(side.at) for side in sides
        ]
        answer = names[0] if (dates[0] < dates[1]) == first else names[1]
        ask = "Which work" if sides[0].kind == "work" else "Who"
        text = f"{ask} was {verb} {'earlier' if first else 'later'}, {sides[0].phrase} or {sides[1].phrase}?"
        return _make_question(base, level, text, answer, support)

    return make


def _agreement(base: KnowledgeBase, level: int, place: str, teachers: bool) -> Callable[[int, bool, int], Question]:
    """Balanced: the second person is drawn from the same city, country or firm, or from another one, as the task says."""

    def make(one: int, same: bool, which: int) -> Question:
        candidates = _list_same_place(base, place, one, which) if same else _list_other_place(base, place, one, which)
        pair = [one, [person for person in candidates if person != one][which]]
        if teachers:
            pair = [base.get_pupil(person) for person in pair]
        sides = [
            _follow_steps(base, _start_chain(base, "person", person), ("teacher",) if teachers else ())
            for person in pair
        ]
        support = [page for side in sides for page in (*side.pages, base.write_person_page(side.at))]
        if place == "country":
            support += [base.write_city_page(base.get_birthplace(side.at)) for side in sides]
        one_side, other_side = (side.phrase for side in sides)
        text = f"Were {one_side} and {other_side} born in the same {place}?"
        if place == "firm":
            text = f"Do {one_side} and {other_side} work for the same firm?"
        return _make_question(base, level, text, "yes" if same else "no", support)

    return make


def _list_same_place(base: KnowledgeBase, place: str, one: int, which: int) -> list[int]:
    home = base.get_birthplace(one)
    if place == "firm":
        return base.list_employees(base.get_employer(one))
    if place == "city":
        return base.list_residents(home)
    cities = [city for city in base.list_cities(base.get_country(home)) if city != home]
    return base.list_residents(cities[which % len(cities)])


def _list_other_place(base: KnowledgeBase, place: str, one: int, which: int) -> list[int]:
    home = base.get_birthplace(one)
    if place == "firm":
        return base.list_employees((base.get_employer(one) + 1 + 5 * which) % FIRMS)
    if place == "city":
        return base.list_residents((home + 1 + 7 * which) % CITIES)
    return base.list_residents(base.list_cities((base.get_country(home) + 1 + which) % COUNTRIES)[which])


def make_question_templates(seed: int) -> dict[str, tuple[tuple[Form[Question], ...], ...]]:
    """The forms of each type at each level."""
    base = get_knowledge_base(seed)
    people, works, pairs = range(PEOPLE), range(WORKS), range(1, 1_000)

    def make_compositional(level: int, *paths: tuple[str, Sequence[str]]) -> tuple[Form[Question], ...]:
        return tuple(Form((range(_PLURAL[kind]),), _compositional(base, level, kind, steps)) for kind, steps in paths)

    def make_bridge(level: int, *paths: tuple[str, Sequence[str], str]) -> tuple[Form[Question], ...]:
        return tuple(
            Form((range(_PLURAL[kind]),), _bridge(base, level, kind, steps, ask)) for kind, steps, ask in paths
        )

    def make_comparison(level: int, kind: str, steps: Sequence[str]) -> tuple[Form[Question], ...]:
        spread = people if kind == "person" else works
        return tuple(Form((spread, pairs), _comparison(base, level, kind, steps, first)) for first in (True, False))

    def make_agreement(level: int, place: str, teachers: bool) -> tuple[Form[Question], ...]:
        return (Form((people, (True, False), range(PER_CITY - 1)), _agreement(base, level, place, teachers)),)

    return {
        "compositional": (
            make_compositional(1, ("work", ("author", "birthplace")), ("person", ("teacher", "birthplace"))),
            make_compositional(2, ("work", ("author", "employer")), ("person", ("birthplace", "country"))),
            make_compositional(
                3, ("work", ("author", "birthplace", "country")), ("work", ("author", "teacher", "birthplace"))
            ),
            make_compositional(
                4, ("person", ("teacher", "employer", "founder")), ("work", ("author", "employer", "seat"))
            ),
            make_compositional(
                5,
                ("work", ("author", "teacher", "birthplace", "country")),
                ("person", ("teacher", "employer", "seat", "country")),
            ),
        ),
        "bridge": (
            make_bridge(1, ("work", ("author",), "profession"), ("person", ("teacher",), "profession")),
            make_bridge(2, ("work", ("author",), "year"), ("person", ("teacher",), "year")),
            make_bridge(
                3, ("work", ("author", "teacher"), "profession"), ("person", ("teacher", "teacher"), "profession")
            ),
            make_bridge(4, ("work", ("author", "employer"), "founded"), ("person", ("employer", "founder"), "year")),
            make_bridge(
                5,
                ("work", ("author", "employer", "founder"), "profession"),
                ("work", ("author", "teacher", "teacher"), "year"),
            ),
        ),
        "comparison": (
            make_comparison(1, "person", ()),
            make_comparison(2, "work", ()),
            make_comparison(3, "work", ("author",)),
            make_comparison(4, "person", ("teacher",)),
            make_comparison(5, "work", ("author", "teacher")),
        ),
        "agreement": (
            make_agreement(1, "city", False),
            make_agreement(2, "firm", False),
            make_agreement(3, "country", False),
            make_agreement(4, "city", True),
            make_agreement(5, "country", True),
        ),
    }


QUESTION_WORDS = split_words(
    f"""{" ".join(MONTHS)} Who What is the author of teacher founder employer birthplace seat country profession In which year was
    born founded Which work finished earlier later or Were and in same city Do work for firm ? , . yes no"""
)
