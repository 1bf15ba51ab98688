"""The databases of a site, made once per process: its own, and others with other rows on which answers are checked."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Any, NamedTuple

from fedagentgym.envs.records.domains import DOMAINS, LEVELS, Naming, Schema, Volume, draw_rows
from fedagentgym.envs.records.guard import Database
from fedagentgym.envs.records.questions import Size

OWN_VOLUME = {"default": Volume(800, 240, 4000), "tiny": Volume(60, 30, 240, 8)}
CHECKS = {"default": 60, "tiny": 15}
"""The number of other databases on which an answer is compared with the gold."""
MAX_SITES = 64
"""Maximum number of sites and sets of checks that are kept."""


class Site(NamedTuple):
    """The values that decide the rows and the tables of a generated database; `population` 0 is that of clients by default."""

    domain: str
    size: Size
    seed: int
    population: int = 0
    naming: Naming = Naming()

    @property
    def schema(self) -> Schema:
        return Schema(DOMAINS[self.domain], self.naming)


_databases: OrderedDict[tuple[Any, ...], tuple[Database, ...]] = OrderedDict()
_lock = RLock()


def remember(key: tuple[Any, ...], make: Callable[[], tuple[Database, ...]]) -> tuple[Database, ...]:
    """The databases of a key, made once per process, because a connection belongs to the process that opened it."""
    own = os.getpid(), *key
    with _lock:
        if own not in _databases:
            _databases[own] = make()
            while len(_databases) > MAX_SITES:
                _databases.popitem(last=False)
        _databases.move_to_end(own)
        return _databases[own]


def open_site(site: Site) -> Database:
    """The site's own database."""
    return remember(("site", site), lambda: (build_database(site, find_volume(site), "site", site.population),))[0]


def open_checks(site: Site) -> tuple[Database, ...]:
    """The databases on which answers are checked, which do not depend on the population."""
    same = site._replace(population=0)

    def make() -> tuple[Database, ...]:
        numbers = range(CHECKS[site.size])
        return tuple(build_database(same, find_check_volume(site.size, number), "check", number) for number in numbers)

    return remember(("checks", same), make)


def find_volume(site: Site) -> Volume:
    """The volume of a site's own database; other populations also have other distributions."""
    volume = OWN_VOLUME[site.size]
    if site.population:
        volume = volume._replace(skew=(1.0, 0.5, 2.0)[site.population % 3], empty=(0.5, 0.1, 0.7)[site.population % 3])
    return volume


def find_check_volume(size: Size, number: int) -> Volume:
    """The volume of a database for checks. Databases differ in shape, so that bounds, ties and empty groups occur.

    Two of three are small, with few different days; half of these also have few different numbers, or only one. Every third
    one is larger, with all numbers and days.
    """
    round_, which = divmod(number, 3)
    skew, empty = (0.0, 1.0, 0.0, 2.0)[round_ % 4], (0.3, 0.6, 0.15)[round_ % 3]
    if which == 2:
        shrink = round_ % 5 + (1 if size == "default" else 3)
        return Volume(500 // shrink, 200 // shrink, 2000 // shrink, LEVELS, empty, skew / 2)
    people, events = (32, 48, 68, 98, 130)[round_ % 5], (60, 140, 90, 260, 200)[round_ % 5]
    levels = (8, LEVELS, LEVELS, 4, 8, LEVELS, 1, LEVELS)[(2 * round_ + which) % 8]
    return Volume(people, people // 2 + 10, events, levels, empty, skew, ("01-01", "01-01", "07-01", "12-31"))


def build_database(site: Site, volume: Volume, *path: int | str) -> Database:
    """A database with a site's tables; the path is a part of the seed of its rows."""
    schema = site.schema
    rows = draw_rows(schema.domain, volume, site.seed, "records", site.domain, *path)
    return Database.build(schema.make_statements(), schema.make_inserts(rows))
