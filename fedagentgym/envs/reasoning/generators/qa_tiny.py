"""Questions for very small models: two or three hops over at most five one-sentence facts, with a few dozen names.

Every task has its own facts, so that nothing can be memorised; only the method can be learned.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedagentgym.base.streams import stream
from fedagentgym.envs.reasoning.generators.problems import Fact, Form, Question, split_words

PEOPLE = ("Ann", "Bob", "Cid", "Dora", "Emil", "Fay", "Gus", "Hal", "Ivy", "Jim", "Kim", "Lou")
CITIES = ("Arno", "Belt", "Cado", "Dell", "Elm", "Firn", "Glen", "Holm")
LANDS = ("Ostia", "Pria", "Quent", "Rask", "Sova", "Tarn")
BOOKS = ("Dawn", "Ember", "Frost", "Grove", "Haven", "Iris")
AGES = range(10, 60)
ORDERED_PEOPLE = tuple((a, b) for a in PEOPLE for b in PEOPLE if a != b)
ORDERED_CITIES = tuple((a, b) for a in CITIES for b in CITIES if a != b)
ORDERED_LANDS = tuple((a, b) for a in LANDS for b in LANDS if a != b)
ORDERED_BOOKS = tuple((a, b) for a in BOOKS for b in BOOKS if a != b)
ORDERED_AGES = tuple((a, b) for a in AGES for b in AGES if a != b)
Pair = tuple[str, str]


def _make_question(text: str, answer: str, facts: Sequence[Fact], support: Sequence[Fact]) -> Question:
    """A question with its facts shuffled. The order depends on the texts only, so a task always has the same one."""
    shown = stream(0, "order", text, *(fact.text for fact in facts)).shuffled(facts)
    said = " ".join(fact.text for fact in support)
    return Question(text, (answer,), tuple(shown), tuple(fact.title for fact in support), said)


def _make_home_fact(person: str, city: str) -> Fact:
    return Fact(person, f"{person} lives in {city} .")


def _make_location_fact(city: str, land: str) -> Fact:
    return Fact(city, f"{city} is in {land} .")


def _country(people: Pair, cities: Pair, lands: Pair) -> Question:
    home, other = _make_home_fact(people[0], cities[0]), _make_home_fact(people[1], cities[1])
    place, elsewhere = _make_location_fact(cities[0], lands[0]), _make_location_fact(cities[1], lands[1])
    text = f"In which country does {people[0]} live ?"
    return _make_question(text, lands[0], [home, other, place, elsewhere], [home, place])


def _author_city(people: Pair, cities: Pair, books: Pair) -> Question:
    wrote = [Fact(book, f"{book} was written by {person} .") for person, book in zip(people, books, strict=True)]
    homes = [_make_home_fact(person, city) for person, city in zip(people, cities, strict=True)]
    text = f"In which city does the author of {books[0]} live ?"
    return _make_question(text, cities[0], [*wrote, *homes], [wrote[0], homes[0]])


def _friend_city(people: Pair, cities: Pair, third: int) -> Question:
    others = [person for person in PEOPLE if person not in people]
    third_person = others[third]
    friend = Fact(people[0], f"{people[0]} is a friend of {people[1]} .")
    stranger = Fact(third_person, f"{third_person} is a friend of {people[0]} .")
    homes = [_make_home_fact(people[1], cities[0]), _make_home_fact(third_person, cities[1])]
    text = f"In which city does the friend of {people[0]} live ?"
    return _make_question(text, cities[0], [friend, stranger, *homes], [friend, homes[0]])


def _compare_ages(people: Pair, ages: tuple[int, int], word: str) -> Question:
    facts = [Fact(person, f"{person} is {age} years old .") for person, age in zip(people, ages, strict=True)]
    answer = people[0] if (ages[0] > ages[1]) == (word == "older") else people[1]
    return _make_question(f"Who is {word} , {people[0]} or {people[1]} ?", answer, facts, facts)


def _same_city(people: Pair, cities: Pair, same: bool, third: int) -> Question:
    others = [person for person in PEOPLE if person not in people]
    facts = [_make_home_fact(people[0], cities[0]), _make_home_fact(people[1], cities[0] if same else cities[1])]
    facts.append(_make_home_fact(others[third], cities[1] if same else cities[0]))
    text = f"Do {people[0]} and {people[1]} live in the same city ?"
    return _make_question(text, "yes" if same else "no", facts, facts[:2])


TINY_QUESTIONS: dict[str, tuple[Form[Question], ...]] = {
    "compositional": (Form((ORDERED_PEOPLE, ORDERED_CITIES, ORDERED_LANDS), _country),),
    "bridge": (
        Form((ORDERED_PEOPLE, ORDERED_CITIES, ORDERED_BOOKS), _author_city),
        Form((ORDERED_PEOPLE, ORDERED_CITIES, range(10)), _friend_city),
    ),
    "comparison": (
        Form((ORDERED_PEOPLE, ORDERED_AGES, ("older",)), _compare_ages),
        Form((ORDERED_PEOPLE, ORDERED_AGES, ("younger",)), _compare_ages),
    ),
    "agreement": (Form((ORDERED_PEOPLE, ORDERED_CITIES, (True, False), range(10)), _same_city),),
}
# ---- templates of the split `unseen` only: other questions about the same kinds of facts ----------------------------


def _friend_country(people: Pair, cities: Pair, lands: Pair) -> Question:
    friend = Fact(people[0], f"{people[0]} is a friend of {people[1]} .")
    homes = [_make_home_fact(person, city) for person, city in zip(people, cities, strict=True)]
    places = [_make_location_fact(city, land) for city, land in zip(cities, lands, strict=True)]
    text = f"In which country does the friend of {people[0]} live ?"
    return _make_question(text, lands[1], [friend, *homes, *places], [friend, homes[1], places[1]])


def _author_friend(people: Pair, books: Pair, third: int, fourth: int) -> Question:
    others = [person for person in PEOPLE if person not in people]
    friends = [others[third], others[(third + 1 + fourth) % len(others)]]
    wrote = [Fact(book, f"{book} was written by {person} .") for person, book in zip(people, books, strict=True)]
    known = [Fact(one, f"{one} is a friend of {other} .") for one, other in zip(people, friends, strict=True)]
    text = f"Who is the friend of the author of {books[0]} ?"
    return _make_question(text, friends[0], [*wrote, *known], [wrote[0], known[0]])


def _compare_authors(people: Pair, books: Pair, ages: tuple[int, int], word: str) -> Question:
    wrote = [Fact(book, f"{book} was written by {person} .") for person, book in zip(people, books, strict=True)]
    facts = [Fact(person, f"{person} is {age} years old .") for person, age in zip(people, ages, strict=True)]
    answer = people[0] if (ages[0] > ages[1]) == (word == "older") else people[1]
    text = f"Who is {word} , the author of {books[0]} or the author of {books[1]} ?"
    return _make_question(text, answer, [*wrote, *facts], [*wrote, *facts])


def _same_country(people: Pair, cities: Pair, lands: Pair, same: bool) -> Question:
    homes = [_make_home_fact(person, city) for person, city in zip(people, cities, strict=True)]
    found = (lands[0], lands[0] if same else lands[1])
    places = [_make_location_fact(city, land) for city, land in zip(cities, found, strict=True)]
    text = f"Do {people[0]} and {people[1]} live in the same country ?"
    support = [homes[0], places[0], homes[1], places[1]]
    return _make_question(text, "yes" if same else "no", [*homes, *places], support)


UNSEEN_TINY_QUESTIONS: dict[str, tuple[Form[Question], ...]] = {
    "compositional": (Form((ORDERED_PEOPLE, ORDERED_CITIES, ORDERED_LANDS), _friend_country),),
    "bridge": (Form((ORDERED_PEOPLE, ORDERED_BOOKS, range(10), range(9)), _author_friend),),
    "comparison": (Form((ORDERED_PEOPLE, ORDERED_BOOKS, ORDERED_AGES, ("older", "younger")), _compare_authors),),
    "agreement": (Form((ORDERED_PEOPLE, ORDERED_CITIES, ORDERED_LANDS, (True, False)), _same_country),),
}
TINY_QA_WORDS = split_words(
    f"""{" ".join(PEOPLE + CITIES + LANDS + BOOKS)} lives live in is a friend of was written by years old In which country city
    does the author Who older younger or Do and same yes no 0 1 2 3 4 5 6 7 8 9 . , ?"""
)
