"""A generated knowledge base: people, works, cities, countries and firms, with a page about each except the countries.

Everything follows from the seed by permutations. So names are unique, no two people are born in the same month of the same
year, every city has ten residents by birth, and every country has ten cities. This makes balanced questions possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedagentgym.base.streams import stream
from fedagentgym.envs.reasoning.generators.problems import Fact, split_words

PEOPLE, WORKS, CITIES, COUNTRIES, FIRMS = 4_000, 4_000, 400, 40, 200
PER_CITY = PEOPLE // CITIES
MONTHS = split_words("January February March April May June July August September October November December")
PROFESSIONS = split_words(
    "painter engineer surgeon lawyer sculptor botanist architect chemist pilot banker composer geologist"
)
KINDS = split_words("novel opera film ballad poem painting symphony play")
FIRST = split_words(
    """Alma Boris Clara Dario Edith Fabio Greta Henri Irma Jonas Karla Lucas Mira Nils Olga Pavel Rosa Stefan Tilda Ugo Vera
    Walter Yara Zeno Agnes Bruno Celia Diego Elsa Felix Gwen Hanno Ines Jakob Kira Leon Marta Nico Opal Piet Quirin Rita Silas
    Thea Umar Viola Wanda Xaver Ylva Zara Anton Birgit Cosmo Dagny Eamon Flora Goran Hedda Ivo Judit Kolya Lena Matteo Nora
    Oskar Petra Rolf Sonia Tibor Ursula Viktor Wilma Yuri Zelda Arno Blanca Casper Delia Emeric Freya"""
)
LAST = split_words(
    """Adler Brandt Castell Dorn Ekholm Farrow Galvan Hartwig Ibarra Jansen Kestrel Lindqvist Moreau Novak Ostrow Palmer Quist
    Rinaldi Stroud Tamsin Ulrich Vance Winter Xylander Yarrow Zeller Ashby Bellamy Corvin Drexel Emory Finch Grange Holloway
    Ingram Jolie Kramer Lorne Maddox Norden Oakley Pryce Radner Sorel Thorne Upton Varga Weller York Zuber"""
)
ADJECTIVES = split_words(
    """Silent Golden Broken Hidden Crimson Distant Eternal Fading Gentle Hollow Iron Jade Lonely Midnight Northern Open Pale
    Quiet Restless Scarlet Tender Unseen Velvet Wild Amber Burning Cold Drifting Empty Frozen Green Humble Ivory Lost Misty
    Narrow Old Patient Rising Sleeping"""
)
NOUNS = split_words(
    """Harbor Garden Mirror River Tower Winter Voyage Lantern Orchard Bridge Castle Desert Echo Forest Glacier Horizon Island
    Journey Kingdom Labyrinth Mountain Night Ocean Palace Quarry Road Shadow Temple Umbrella Valley Window Abbey Bell Canyon
    Door Engine Feather Gate Hill Inn Key Letter Meadow Needle Oath Path Queen Rain Shore Train Veil Wheel Archer Ballad Cipher
    Dancer Ember Falcon Giant Hunter Ink Jewel Kite Lark Mask Nest Owl Pearl Quill Raven Saint Thief Urn Vow Wolf Anchor Beacon
    Crown Dream Eagle Flame Ghost Heart Idol Jest Knot Leaf Moon Novel Omen Prince Quest Rose Sword Tide Unicorn Vine Well Zenith
    Arrow"""
)
CITY_HEADS = split_words("Bel Cor Dun Esk Far Gal Hol Ist Kar Lun Mor Nor Os Pel Rav Sel Tor Ul Ver Zan")
CITY_TAILS = split_words(
    "mora stad wick ano heim ford via dale grad port ovia burg ello mere ton avar haven ika mund ola"
)
COUNTRY_HEADS = split_words("Alba Brev Carm Dras Elor Fenn Gord Hest")
COUNTRY_TAILS = split_words("onia aria istan land mark")
FIRM_HEADS = split_words("Nor Vex Lum Ard Quo Syn Tri Orb Kel Zin Pax Dyn Hel Mag Axi Bor Cal Fus Gen Ion")
FIRM_TAILS = split_words("vex tron corp dyne tech works labs soft line gate")


COUNTS: Mapping[str, int] = {"person": PEOPLE, "work": WORKS, "city": CITIES, "country": COUNTRIES, "firm": FIRMS}
NAMES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "person": (FIRST, LAST),
    "work": ([f"The {adjective}" for adjective in ADJECTIVES], NOUNS),
    "city": (CITY_HEADS, CITY_TAILS),
    "country": (COUNTRY_HEADS, COUNTRY_TAILS),
    "firm": (FIRM_HEADS, FIRM_TAILS),
}
"""The first and the second parts of names. They are separate words in the names of people and works only."""


class KnowledgeBase:
    """A knowledge base in which an entity is a number within its kind; the methods give names, relations and pages.

    `residents` are the people born in each city, `employees` those of each firm, `cities` those of each country.
    """

    def __init__(self, seed: int) -> None:
        def permute(what: str, count: int) -> list[int]:
            return [int(number) for number in stream(seed, "knowledge", what).permutation(count)]

        self._codes = {kind: permute(kind, count) for kind, count in COUNTS.items()}
        self._born, self._made, self._founded = (
            permute("born", PEOPLE),
            permute("made", WORKS),
            permute("founded", FIRMS),
        )
        self._home, self._author, self._land = (
            permute("home", PEOPLE),
            permute("author", WORKS),
            permute("land", CITIES),
        )
        self._circle, self._founder = permute("teacher", PEOPLE), permute("founder", PEOPLE)
        self._place_in_circle = {person: place for place, person in enumerate(self._circle)}
        self.employees: list[list[int]] = [[] for _ in range(FIRMS)]
        for person, place in enumerate(self._founder):
            self.employees[place % FIRMS].append(person)
        self.residents: list[list[int]] = [[] for _ in range(CITIES)]
        for person, place in enumerate(self._home):
            self.residents[place % CITIES].append(person)
        self.cities: list[list[int]] = [[] for _ in range(COUNTRIES)]
        for city, place in enumerate(self._land):
            self.cities[place % COUNTRIES].append(city)

    def get_name(self, kind: str, one: int) -> str:
        (heads, tails), code = NAMES[kind], self._codes[kind][one]
        between = " " if kind in ("person", "work") else ""
        return f"{heads[code % len(heads)]}{between}{tails[code // len(heads)]}"

    # relations
    def get_birthplace(self, person: int) -> int:
        return self._home[person] % CITIES

    def get_country(self, city: int) -> int:
        return self._land[city] % COUNTRIES

    def get_author(self, work: int) -> int:
        return self._author[work]

    def get_teacher(self, person: int) -> int:
        """The teacher of a person: the next one in a circle of all people."""
        return self._circle[(self._place_in_circle[person] + 1) % PEOPLE]

    def get_pupil(self, person: int) -> int:
        """The person whose teacher this person is."""
        return self._circle[(self._place_in_circle[person] - 1) % PEOPLE]

    def get_employer(self, person: int) -> int:
        return self._founder[person] % FIRMS

    def get_founder(self, firm: int) -> int:
        return self._founder[firm]

    def get_seat(self, firm: int) -> int:
        return self._land[firm] % CITIES

    def get_founding_year(self, firm: int) -> int:
        return 1750 + self._founded[firm]

    def get_profession(self, person: int) -> str:
        return PROFESSIONS[(self._born[person] + self._home[person]) % len(PROFESSIONS)]

    def get_date(self, kind: str, one: int) -> tuple[int, int]:
        """Year and month in which a person was born or a work was finished; the months are counted from 0 on."""
        year, month = divmod(self._born[one] if kind == "person" else self._made[one], 12)
        return year + (1600 if kind == "person" else 1650), month

    def write_page(self, kind: str, one: int) -> Fact:
        """The page about a person, a work, a city or a firm."""
        name = self.get_name(kind, one)
        if kind == "person":
            year, month = self.get_date(kind, one)
            born = f"{name} was born in {self.get_name('city', self.get_birthplace(one))} in {MONTHS[month]} {year}."
            known = f"{name} is known as {_add_article(self.get_profession(one))}"
            taught = f"was taught by {self.get_name('person', self.get_teacher(one))}"
            text = f"{born} {known}, {taught} and works for {self.get_name('firm', self.get_employer(one))}."
        elif kind == "work":
            year, month = self.get_date(kind, one)
            what = _add_article(KINDS[self._made[one] % len(KINDS)])
            author = self.get_name("person", self.get_author(one))
            text = f"{name} is {what} by {author}, finished in {MONTHS[month]} {year}."
        elif kind == "firm":
            founded = f"{self.get_name('person', self.get_founder(one))} in {self.get_founding_year(one)}"
            seat = self.get_name("city", self.get_seat(one))
            text = f"{name} was founded by {founded} and has its seat in {seat}."
        else:
            text = f"{name} is a city in {self.get_name('country', self.get_country(one))}."
        return Fact(name, text)


def _add_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@lru_cache(maxsize=4)
def get_knowledge_base(seed: int) -> KnowledgeBase:
    """The knowledge base of a seed, cached."""
    return KnowledgeBase(seed)


KNOWLEDGE_WORDS = (
    *split_words(" ".join((*MONTHS, *PROFESSIONS, *KINDS, *FIRST, *LAST, *ADJECTIVES, *NOUNS))),
    *(head + tail for head in CITY_HEADS for tail in CITY_TAILS),
    *(head + tail for head in COUNTRY_HEADS for tail in COUNTRY_TAILS),
    *(head + tail for head in FIRM_HEADS for tail in FIRM_TAILS),
    *split_words("The was born in is known as a an taught by and works for finished city founded has its seat"),
)
