"""The worlds of the suites in Skills: every seed has its own procedures, misconceptions, tasks, warm start and stream.

The division is of the same kind in all worlds. A client of `skills-32` holds four categories: of each of two procedures one with
a misconception and one without, or, if there are more procedures, one category of each of four procedures, two of them with a
misconception. A client of `one-procedure` holds four categories of one procedure, two of them with a misconception.
"""

from __future__ import annotations

from fedagentgym.base.errors import OptionError
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.learning.misconceptions import draw_misconceptions
from fedagentgym.learning.settings import MisconceptionSettings

CLIENTS = 8


def make_world(seed: int, source: str) -> tuple[str, ...]:
    """The changes that give a seed its world."""
    changes = (f"env.options.seed={seed}", f"warm_start.misconceptions.seed={seed}", f"partition.seed={seed}")
    if "skills-32" not in source or "iid" in source:
        return changes
    groups = group_categories(load_config(source, changes[:1]), seed, mixed="one-procedure" not in source)
    sources = ", ".join(f"{'+'.join(group)}: 1" for group in groups)
    return (*changes, f"partition.sources={{{sources}}}")


def group_categories(config: RunConfig, seed: int, mixed: bool) -> list[list[str]]:
    """The categories of each client: if `mixed`, of all procedures (at most four), else of one procedure."""
    env = open_env(config.env.id, **{**config.env.options, "split": "val"})
    shown = draw_misconceptions(env, MisconceptionSettings(seed=seed))
    kinds: dict[tuple[str, bool], list[str]] = {}
    for category, about in shown.items():
        kinds.setdefault((about.own, about.misled), []).append(category)
    procedures = sorted({own for own, _ in kinds})
    count = len(procedures)
    if len(kinds) != 2 * count or {len(categories) * count for categories in kinds.values()} != {2 * CLIENTS}:
        raise OptionError(f"the world of seed {seed} does not divide into {CLIENTS} clients of equal kinds")
    if mixed:
        groups = []
        for first in range(0, 2 * CLIENTS, 2):
            misled, others = ({procedures[(at + more) % count] for more in (0, 1)} for at in (first, first + 2))
            groups.append([kinds[kind][first // count] for kind in kinds if kind[0] in (misled if kind[1] else others)])
        return groups
    pairs = [(kinds[own, True], kinds[own, False]) for own in procedures]
    return [[*misled[at : at + 2], *others[at : at + 2]] for misled, others in pairs for at in range(0, CLIENTS, 2)]
