"""Multi-hop questions over the knowledge base, in four types at five levels.

A level fixes the number of hops and of distracting pages: 2, 6, 6, 10 and 14 pages at levels 1 to 5. A compositional or
bridge question takes two hops at levels 1 and 2, three at levels 3 and 4, and four at level 5. A comparison or an agreement
takes two pages at levels 1 and 2, four at levels 3 and 4, and six at level 5, half of them for each side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedagentgym.base.streams import stream
from fedagentgym.envs.reasoning.generators.knowledge import (
    CITIES,
    COUNTRIES,
    COUNTS,
    FIRMS,
    MONTHS,
    PER_CITY,
    KnowledgeBase,
    get_knowledge_base,
)
from fedagentgym.envs.reasoning.generators.problems import Fact, Form, Question, split_words

DISTRACTORS = (2, 6, 6, 10, 14)
STEPS: dict[str, tuple[str, str, str, Callable[[KnowledgeBase, int], int]]] = {
    "author": ("work", "person", "the author of {}", KnowledgeBase.get_author),
    "teacher": ("person", "person", "the teacher of {}", KnowledgeBase.get_teacher),
    "founder": ("firm", "person", "the founder of {}", KnowledgeBase.get_founder),
    "employer": ("person", "firm", "the employer of {}", KnowledgeBase.get_employer),
    "birthplace": ("person", "city", "the birthplace of {}", KnowledgeBase.get_birthplace),
    "seat": ("firm", "city", "the seat of {}", KnowledgeBase.get_seat),
    "country": ("city", "country", "the country of {}", KnowledgeBase.get_country),
}


class Chain(NamedTuple):
    """A path through the knowledge base: its end, the pages on it, and its description in words."""

    kind: str
    at: int
    pages: tuple[Fact, ...]
    phrase: str


def _follow(base: KnowledgeBase, path: str, one: int) -> Chain:
    """Follow a path from one entity. The path names the entity's kind and then the steps, as in `work author birthplace`."""
    start, *steps = path.split()
    chain = Chain(start, one, (), base.get_name(start, one))
    for step in steps:
        kind, target, phrase, follow = STEPS[step]
        assert chain.kind == kind, (chain.kind, step)
        pages = (*chain.pages, base.write_page(kind, chain.at))
        chain = Chain(target, follow(base, chain.at), pages, phrase.format(chain.phrase))
    return chain


def _make_question(base: KnowledgeBase, level: int, text: str, answer: str, support: Sequence[Fact]) -> Question:
    """A question with its support among distracting pages. Its text and level determine these pages and the order of all."""
    draw = stream(level, "question", text)
    pages = {fact.title: fact for fact in support}
    wanted = len(pages) + DISTRACTORS[level - 1]
    while len(pages) < wanted:
        kind = draw.pick(("person", "work", "firm", "city"))
        page = base.write_page(kind, draw.integers(COUNTS[kind]))
        pages.setdefault(page.title, page)
    path = tuple(dict.fromkeys(fact.title for fact in support))
    said = " ".join(dict.fromkeys(fact.text for fact in support))
    return Question(text, (answer,), tuple(draw.shuffled(list(pages.values()))), path, said)


# ---- the four types -------------------------------------------------------------------------------------------------


def _compositional(base: KnowledgeBase, level: int, path: str, one: int) -> Question:
    chain = _follow(base, path, one)
    text = f"{'Who' if chain.kind == 'person' else 'What'} is {chain.phrase}?"
    return _make_question(base, level, text, base.get_name(chain.kind, chain.at), chain.pages)


def _bridge(base: KnowledgeBase, level: int, path: str, ask: str, one: int) -> Question:
    chain = _follow(base, path, one)
    support = (*chain.pages, base.write_page(chain.kind, chain.at))
    if ask == "profession":
        text, answer = f"What is the profession of {chain.phrase}?", base.get_profession(chain.at)
    elif ask == "born":
        text, answer = f"In which year was {chain.phrase} born?", str(base.get_date("person", chain.at)[0])
    else:
        text, answer = f"In which year was {chain.phrase} founded?", str(base.get_founding_year(chain.at))
    return _make_question(base, level, text, answer, support)


def _comparison(base: KnowledgeBase, level: int, path: str, first: bool, one: int, gap: int) -> Question:
    other = (one + gap) % COUNTS[path.split(maxsplit=1)[0]]
    sides = [_follow(base, path, side) for side in (one, other)]
    support = [page for side in sides for page in (*side.pages, base.write_page(side.kind, side.at))]
    kind = sides[0].kind
    if kind == "firm":
        dates = [(base.get_founding_year(side.at), 0) for side in sides]
    else:
        dates = [base.get_date(kind, side.at) for side in sides]
    names = [base.get_name(kind, side.at) for side in sides]
    asked = {"work": "Which work was finished", "firm": "Which firm was founded"}.get(kind, "Who was born")
    text = f"{asked} {'earlier' if first else 'later'}, {sides[0].phrase} or {sides[1].phrase}?"
    return _make_question(base, level, text, names[0] if (dates[0] < dates[1]) == first else names[1], support)


def _agreement(base: KnowledgeBase, level: int, path: str, place: str, one: int, same: bool, which: int) -> Question:
    """A question for yes or no: the second person is of the same city, country or firm if `same`, else of another one."""
    home, employer = base.get_birthplace(one), base.get_employer(one)
    if place == "firm":
        people = base.employees[employer if same else (employer + 1 + 5 * which) % FIRMS]
    elif place == "city":
        people = base.residents[home if same else (home + 1 + 7 * which) % CITIES]
    elif same:
        cities = [city for city in base.cities[base.get_country(home)] if city != home]
        people = base.residents[cities[which % len(cities)]]
    else:
        people = base.residents[base.cities[(base.get_country(home) + 1 + which) % COUNTRIES][which]]
    pair = [one, [person for person in people if person != one][which]]
    if path == "person teacher":
        pair = [base.get_pupil(person) for person in pair]
    sides = [_follow(base, path, person) for person in pair]
    support = [page for side in sides for page in (*side.pages, base.write_page("person", side.at))]
    if place == "country":
        support += [base.write_page("city", base.get_birthplace(side.at)) for side in sides]
    names = f"{sides[0].phrase} and {sides[1].phrase}"
    text = f"Were {names} born in the same {place}?"
    if place == "firm":
        text = f"Do {names} work for the same firm?"
    return _make_question(base, level, text, "yes" if same else "no", support)


Paths = tuple[tuple[str, ...], ...]
Asked = tuple[tuple[tuple[str, str], ...], ...]


class Templates(NamedTuple):
    """The paths at every level; for bridges and agreements, each path with the property of its end that is asked for."""

    compositional: Paths
    bridge: Asked
    comparison: Paths
    agreement: Asked


COMPOSITIONAL = (
    ("work author birthplace", "person teacher birthplace"),
    ("work author employer", "person birthplace country"),
    ("work author birthplace country", "work author teacher birthplace"),
    ("person teacher employer founder", "work author employer seat"),
    ("work author teacher birthplace country", "person teacher employer seat country"),
)
BRIDGE = (
    (("work author", "profession"), ("person teacher", "profession")),
    (("work author", "born"), ("person teacher", "born")),
    (("work author teacher", "profession"), ("person teacher teacher", "profession")),
    (("work author employer", "founded"), ("person employer founder", "born")),
    (("work author employer founder", "profession"), ("work author teacher teacher", "born")),
)
COMPARISON = (("person",), ("work",), ("work author",), ("person teacher",), ("work author teacher",))
AGREEMENT = (
    (("person", "city"),),
    (("person", "firm"),),
    (("person", "country"),),
    (("person teacher", "city"),),
    (("person teacher", "country"),),
)
TEMPLATES = Templates(COMPOSITIONAL, BRIDGE, COMPARISON, AGREEMENT)
UNSEEN_TEMPLATES = Templates(
    (
        ("firm founder birthplace", "person employer founder"),
        ("firm founder teacher", "person employer seat"),
        ("firm founder teacher birthplace", "person employer seat country"),
        ("firm founder birthplace country", "person teacher teacher birthplace"),
        ("firm founder teacher birthplace country", "work author teacher teacher birthplace"),
    ),
    (
        (("firm founder", "profession"), ("person employer", "founded")),
        (("firm founder", "born"),),
        (("firm founder teacher", "profession"), ("person employer founder", "profession")),
        (("firm founder teacher", "born"), ("person teacher employer", "founded")),
        (("person teacher employer founder", "profession"), ("firm founder teacher teacher", "born")),
    ),
    (("firm",), ("firm",), ("firm founder",), ("firm founder teacher",), ("person teacher teacher",)),
    ((), (), (), (("person teacher", "firm"),), (("person teacher", "firm"),)),
)
"""Templates of the split `unseen` only: other paths through the same pages, with about as many hops."""


def make_question_templates(
    seed: int, templates: Templates = TEMPLATES
) -> dict[str, tuple[tuple[Form[Question], ...], ...]]:
    """The forms of each type at each level."""
    base = get_knowledge_base(seed)

    def make_form(
        ask: Callable[..., Question], level: int, path: str, *rest: Any, vary: Sequence[Any] = ()
    ) -> Form[Question]:
        return Form((range(COUNTS[path.split(maxsplit=1)[0]]), *vary), partial(ask, base, level, path, *rest))

    def list_gaps(path: str) -> tuple[range]:
        return (range(1, min(1_000, COUNTS[path.split(maxsplit=1)[0]])),)

    choices = ((True, False), range(PER_CITY - 1))
    return {
        "compositional": tuple(
            tuple(make_form(_compositional, level, path) for path in paths)
            for level, paths in enumerate(templates.compositional, start=1)
        ),
        "bridge": tuple(
            tuple(make_form(_bridge, level, path, ask) for path, ask in asked)
            for level, asked in enumerate(templates.bridge, start=1)
        ),
        "comparison": tuple(
            tuple(
                make_form(_comparison, level, path, first, vary=list_gaps(path))
                for path in paths
                for first in (True, False)
            )
            for level, paths in enumerate(templates.comparison, start=1)
        ),
        "agreement": tuple(
            tuple(make_form(_agreement, level, path, place, vary=choices) for path, place in asked)
            for level, asked in enumerate(templates.agreement, start=1)
        ),
    }


QUESTION_WORDS = split_words(
    f"""{" ".join(MONTHS)} Who What is the author of teacher founder employer birthplace seat country profession In which year was
    born founded Which work finished earlier later or Were and in same city Do work for firm ? , . yes no"""
)
