"""The databases of a site, made once in a process: its own, and others with other rows on which answers are checked."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock
from typing import NamedTuple

from fedagentgym.envs.records.domains import DOMAINS, LEVELS, Domain, Naming, Schema, Volume, draw_rows
from fedagentgym.envs.records.guard import Database
from fedagentgym.envs.records.questions import Size

OWN_VOLUME = {"default": Volume(800, 240, 4000), "tiny": Volume(60, 30, 240, 8)}
CHECKS = {"default": 24, "tiny": 8}
"""The number of other databases on which an answer is compared with the gold."""
MOST_SITES = 64
_sites: OrderedDict[tuple[int, Site], tuple[Database, ...]] = OrderedDict()
_lock = RLock()


class Site(NamedTuple):
    """What decides the rows and the tables of a generated database; `population` 0 is the one that all share."""

    domain: str
    size: Size
    seed: int
    population: int = 0
    naming: Naming = Naming()

    @property
    def schema(self) -> Schema:
        return Schema(DOMAINS[self.domain], self.naming)


def open_databases(site: Site) -> tuple[Database, ...]:
    """The site's own database, and after it those on which answers are checked, which do not depend on the population."""
    key = os.getpid(), site  # a connection belongs to the process that opened it
    with _lock:
        if key not in _sites:
            own = DOMAINS[site.domain]
            made = [_build(own, site, find_volume(site), site.seed, "site", site.population)]
            made += [
                _build(own, site, find_check_volume(site.size, number), site.seed, "check", number)
                for number in range(CHECKS[site.size])
            ]
            _sites[key] = tuple(made)
            while len(_sites) > MOST_SITES:
                _sites.popitem(last=False)
        _sites.move_to_end(key)
        return _sites[key]


def find_volume(site: Site) -> Volume:
    """The volume of a site's own database: other populations are also distributed otherwise."""
    volume = OWN_VOLUME[site.size]
    if site.population:
        volume = volume._replace(skew=(1.0, 0.5, 2.0)[site.population % 3], empty=(0.5, 0.1, 0.7)[site.population % 3])
    return volume


def find_check_volume(size: Size, number: int) -> Volume:
    """The volume of a database for checks: small ones of many shapes, so that bounds, ties and empty groups are met.

    In some of them all numbers are equal, in others a few numbers occur again and again.
    """
    scale = 1 if size == "default" else 2
    people = (24, 40, 60, 90, 16, 130)[number % 6] // scale + 8
    events = (60, 140, 90, 260, 40, 200)[number % 6] // scale + 16
    levels = (8, LEVELS, 8, 4, 8, 2)[number % 6] if number % 8 != 7 else 1
    skew = (0.0, 1.0, 0.0, 2.0)[number // 2 % 4]
    return Volume(people, people // 2 + 10, events, levels, (0.3, 0.6, 0.15)[number % 3], skew)


def _build(domain: Domain, site: Site, volume: Volume, *path: int | str) -> Database:
    rows = draw_rows(domain, volume, site.seed, "records", domain.name, *path)
    return Database.build(site.schema.make_statements(), site.schema.make_inserts(rows))


def close_sites() -> None:
    """Forget the databases of this process."""
    with _lock:
        for databases in _sites.values():
            for database in databases:
                database.close()
        _sites.clear()


def describe_database(database: Database) -> Sequence[str]:
    """The names of the tables."""
    return tuple(database.statements)
