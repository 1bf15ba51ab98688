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
    Knowledge,
    knowledge,
)
from fedagentgym.envs.reasoning.generators.question import Fact, Question
from fedagentgym.envs.reasoning.generators.space import Form, words

DISTRACTORS = (2, 6, 6, 10, 14)
_PLURAL = {"person": PEOPLE, "work": WORKS, "firm": FIRMS}


class Chain(NamedTuple):
    """A path through the knowledge base: where it stands, the pages it passed, and how it is said in words."""

    kind: str
    at: int
    pages: tuple[Fact, ...]
    phrase: str


def _start(base: Knowledge, kind: str, one: int) -> Chain:
    name = {"person": base.person, "work": base.work, "firm": base.firm}[kind](one)
    return Chain(kind, one, (), name)


def _page(base: Knowledge, kind: str, one: int) -> Fact:
    return {"person": base.person_page, "work": base.work_page, "firm": base.firm_page, "city": base.city_page}[kind](
        one
    )


STEPS: dict[str, tuple[str, str, str, Callable[[Knowledge, int], int]]] = {
    "author": ("work", "person", "the author of {}", lambda base, one: base.author(one)),
    "teacher": ("person", "person", "the teacher of {}", lambda base, one: base.teacher(one)),
    "founder": ("firm", "person", "the founder of {}", lambda base, one: base.founder(one)),
    "employer": ("person", "firm", "the employer of {}", lambda base, one: base.firm_of(one)),
    "birthplace": ("person", "city", "the birthplace of {}", lambda base, one: base.home(one)),
    "seat": ("firm", "city", "the seat of {}", lambda base, one: base.seat(one)),
    "country": ("city", "country", "the country of {}", lambda base, one: base.land(one)),
}


def _walk(base: Knowledge, chain: Chain, steps: Sequence[str]) -> Chain:
    for step in steps:
        kind, target, phrase, follow = STEPS[step]
        assert chain.kind == kind, (chain.kind, step)
        page = _page(base, kind, chain.at)
        chain = Chain(target, follow(base, chain.at), (*chain.pages, page), phrase.format(chain.phrase))
    return chain


def _name(base: Knowledge, kind: str, one: int) -> str:
    return {"person": base.person, "firm": base.firm, "city": base.city, "country": base.country}[kind](one)


def _made(base: Knowledge, level: int, text: str, answer: str, support: Sequence[Fact]) -> Question:
    """A question with its support among distracting pages, in an order that follows from the question itself."""
    draw = stream(level, "question", text)
    pages = {fact.title: fact for fact in support}
    wanted = len(pages) + DISTRACTORS[level - 1]
    makers: tuple[tuple[Callable[[int], Fact], int], ...] = (
        (base.person_page, PEOPLE),
        (base.work_page, WORKS),
        (base.firm_page, FIRMS),
        (base.city_page, CITIES),
    )
    while len(pages) < wanted:
        maker, count = draw.pick(makers)
        page = maker(draw.integers(count))
        pages.setdefault(page.title, page)
    path = tuple(dict.fromkeys(fact.title for fact in support))
    said = " ".join(dict.fromkeys(fact.text for fact in support))
    return Question(text, (answer,), tuple(draw.shuffled(list(pages.values()))), path, said)


# ---- the four types -------------------------------------------------------------------------------------------------


def _compositional(base: Knowledge, level: int, kind: str, steps: Sequence[str]) -> Callable[[int], Question]:
    def make(one: int) -> Question:
        chain = _walk(base, _start(base, kind, one), steps)
        ask = "Who" if chain.kind == "person" else "What"
        return _made(base, level, f"{ask} is {chain.phrase}?", _name(base, chain.kind, chain.at), chain.pages)

    return make


def _bridge(base: Knowledge, level: int, kind: str, steps: Sequence[str], ask: str) -> Callable[[int], Question]:
    def make(one: int) -> Question:
        chain = _walk(base, _start(base, kind, one), steps)
        support = (*chain.pages, _page(base, chain.kind, chain.at))
        if ask == "profession":
            text, answer = f"What is the profession of {chain.phrase}?", base.profession(chain.at)
        elif ask == "year":
            text, answer = f"In which year was {chain.phrase} born?", str(base.born(chain.at)[0])
        else:
            text, answer = f"In which year was {chain.phrase} founded?", str(base.founded(chain.at))
        return _made(base, level, text, answer, support)

    return make


def _comparison(
    base: Knowledge, level: int, kind: str, steps: Sequence[str], first: bool
) -> Callable[[int, int], Question]:
    def make(one: int, gap: int) -> Question:
        other = (one + gap) % _PLURAL[kind]
        sides = [_walk(base, _start(base, kind, side), steps) for side in (one, other)]
        support = [page for side in sides for page in (*side.pages, _page(base, side.kind, side.at))]
        if sides[0].kind == "work":
            dates, verb = [base.made(side.at) for side in sides], "finished"
        else:
            dates, verb = [base.born(side.at) for side in sides], "born"
        names = [base.work(side.at) if side.kind == "work" else base.person(side.at) for side in sides]
        answer = names[0] if (dates[0] < dates[1]) == first else names[1]
        ask = "Which work" if sides[0].kind == "work" else "Who"
        text = f"{ask} was {verb} {'earlier' if first else 'later'}, {sides[0].phrase} or {sides[1].phrase}?"
        return _made(base, level, text, answer, support)

    return make


def _agreement(base: Knowledge, level: int, place: str, teachers: bool) -> Callable[[int, bool, int], Question]:
    """Balanced: the second person is drawn from the same city, country or firm, or from another one, as the task says."""

    def make(one: int, same: bool, which: int) -> Question:
        candidates = _from_same(base, place, one, which) if same else _from_another(base, place, one, which)
        pair = [one, [person for person in candidates if person != one][which]]
        if teachers:
            pair = [base.pupil(person) for person in pair]
        sides = [_walk(base, _start(base, "person", person), ("teacher",) if teachers else ()) for person in pair]
        support = [page for side in sides for page in (*side.pages, base.person_page(side.at))]
        if place == "country":
            support += [base.city_page(base.home(side.at)) for side in sides]
        one_side, other_side = (side.phrase for side in sides)
        text = f"Were {one_side} and {other_side} born in the same {place}?"
        if place == "firm":
            text = f"Do {one_side} and {other_side} work for the same firm?"
        return _made(base, level, text, "yes" if same else "no", support)

    return make


def _from_same(base: Knowledge, place: str, one: int, which: int) -> list[int]:
    home = base.home(one)
    if place == "firm":
        return base.workers(base.firm_of(one))
    if place == "city":
        return base.residents(home)
    cities = [city for city in base.cities_of(base.land(home)) if city != home]
    return base.residents(cities[which % len(cities)])


def _from_another(base: Knowledge, place: str, one: int, which: int) -> list[int]:
    home = base.home(one)
    if place == "firm":
        return base.workers((base.firm_of(one) + 1 + 5 * which) % FIRMS)
    if place == "city":
        return base.residents((home + 1 + 7 * which) % CITIES)
    return base.residents(base.cities_of((base.land(home) + 1 + which) % COUNTRIES)[which])


def question_forms(seed: int) -> dict[str, tuple[tuple[Form[Question], ...], ...]]:
    """The forms of each type at each level."""
    base = knowledge(seed)
    people, works, pairs = range(PEOPLE), range(WORKS), range(1, 1_000)

    def composed(level: int, *paths: tuple[str, Sequence[str]]) -> tuple[Form[Question], ...]:
        return tuple(Form((range(_PLURAL[kind]),), _compositional(base, level, kind, steps)) for kind, steps in paths)

    def bridged(level: int, *paths: tuple[str, Sequence[str], str]) -> tuple[Form[Question], ...]:
        return tuple(
            Form((range(_PLURAL[kind]),), _bridge(base, level, kind, steps, ask)) for kind, steps, ask in paths
        )

    def compared(level: int, kind: str, steps: Sequence[str]) -> tuple[Form[Question], ...]:
        spread = people if kind == "person" else works
        return tuple(Form((spread, pairs), _comparison(base, level, kind, steps, first)) for first in (True, False))

    def agreed(level: int, place: str, teachers: bool) -> tuple[Form[Question], ...]:
        return (Form((people, (True, False), range(PER_CITY - 1)), _agreement(base, level, place, teachers)),)

    return {
        "compositional": (
            composed(1, ("work", ("author", "birthplace")), ("person", ("teacher", "birthplace"))),
            composed(2, ("work", ("author", "employer")), ("person", ("birthplace", "country"))),
            composed(3, ("work", ("author", "birthplace", "country")), ("work", ("author", "teacher", "birthplace"))),
            composed(4, ("person", ("teacher", "employer", "founder")), ("work", ("author", "employer", "seat"))),
            composed(
                5,
                ("work", ("author", "teacher", "birthplace", "country")),
                ("person", ("teacher", "employer", "seat", "country")),
            ),
        ),
        "bridge": (
            bridged(1, ("work", ("author",), "profession"), ("person", ("teacher",), "profession")),
            bridged(2, ("work", ("author",), "year"), ("person", ("teacher",), "year")),
            bridged(3, ("work", ("author", "teacher"), "profession"), ("person", ("teacher", "teacher"), "profession")),
            bridged(4, ("work", ("author", "employer"), "founded"), ("person", ("employer", "founder"), "year")),
            bridged(
                5,
                ("work", ("author", "employer", "founder"), "profession"),
                ("work", ("author", "teacher", "teacher"), "year"),
            ),
        ),
        "comparison": (
            compared(1, "person", ()),
            compared(2, "work", ()),
            compared(3, "work", ("author",)),
            compared(4, "person", ("teacher",)),
            compared(5, "work", ("author", "teacher")),
        ),
        "agreement": (
            agreed(1, "city", False),
            agreed(2, "firm", False),
            agreed(3, "country", False),
            agreed(4, "city", True),
            agreed(5, "country", True),
        ),
    }


QUESTION_WORDS = words(
    f"""{" ".join(MONTHS)} Who What is the author of teacher founder employer birthplace seat country profession In which year was
    born founded Which work finished earlier later or Were and in same city Do work for firm ? , . yes no"""
)
