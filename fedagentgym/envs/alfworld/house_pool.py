"""Pools of generated houses: how many tasks each split has, their mixture, and whose rooms they can be played in.

The default size `full` has ALFWorld's own numbers: 3,553 training, 140 seen and 134 unseen validation games with its mixture
of task types in each. `small` has the same numbers. `tiny` has 3,000 / 200 / 200, every task type equally often. Each size
has 2,000 warm-up games in addition, for demonstrations. Games are generated on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.envs.alfworld.figures import load_statistics
from fedagentgym.envs.alfworld.game import CATEGORIES, WORDINGS, Game
from fedagentgym.envs.alfworld.houses import GENERATOR_VERSIONS, HouseKey, generate_house
from fedagentgym.envs.alfworld.layouts import SIZES, TINY_OBJECTS, TINY_RECEPTACLES
from fedagentgym.envs.alfworld.plans import find_shortest_plan
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.task import TaskIds

SPLITS = ("train", "val", "test", "warmup")
TURNS = {"tiny": 20, "small": 50, "full": 50}
WARMUP = 2000
ALFWORLD_MIXTURE: Mapping[str, tuple[int, ...]] = {
    "train": (790, 308, 650, 459, 533, 813),
    "val": (35, 13, 27, 16, 25, 24),
    "test": (24, 18, 31, 23, 21, 17),
}
"""Games per split in the order of `CATEGORIES`, as in ALFWorld's data."""
TINY_SIZES = {"train": 3000, "val": 200, "test": 200, "warmup": WARMUP}


def make_house_pool(
    split: str,
    *,
    env: str,
    size: str = "full",
    seed: int = 0,
    wording: str = "move",
    owner: str = "",
) -> TaskPool:
    """The generated tasks of a split, or of all splits one after the other.

    An owner's private rooms change where tasks are played, never which tasks there are: ids, categories and digest stay.
    """
    check_house_options(size, seed, wording)
    names = SPLITS if split == "all" else (split,)
    mixtures = [get_category_counts(size, name) for name in names]
    codes = np.concatenate([_shuffle_categories(seed, size, name) for name in names])
    ends = np.cumsum([sum(counts) for counts in mixtures])

    def make_key(index: int) -> HouseKey:
        part = int(np.searchsorted(ends, index, side="right"))
        number = index - (int(ends[part - 1]) if part else 0)
        return HouseKey(seed, size, names[part], number, CATEGORIES[codes[index]], owner, wording)

    return TaskPool(
        env=env,
        split=split,
        ids=_make_ids(env, names, [sum(counts) for counts in mixtures]),
        categories=(CATEGORIES, codes),
        payload=lambda index: _get_house(make_key(index)),
        hardness=lambda index: _plan_length(make_key(index)),
        source={
            "generator": "houses",
            "version": GENERATOR_VERSIONS[size],
            "size": size,
            "seed": seed,
            "wording": wording,
        },
    )


def _make_ids(env: str, names: Sequence[str], counts: Sequence[int]) -> Sequence[str]:
    if len(names) == 1:
        return TaskIds(env, names[0], counts[0])
    return [identifier for name, count in zip(names, counts, strict=True) for identifier in TaskIds(env, name, count)]


@lru_cache(maxsize=1024)
def _get_house(key: HouseKey) -> Game:
    return generate_house(key)


@lru_cache(maxsize=8192)
def _plan_length(key: HouseKey) -> float:
    """How difficult a task is: the number of commands of its shortest plan."""
    return float(len(find_shortest_plan(_get_house(key)) or ()))


def get_category_counts(size: str, split: str) -> tuple[int, ...]:
    """How many games of each category a split has."""
    if size == "tiny":
        return _apportion(TINY_SIZES[split], (1,) * len(CATEGORIES))
    return _apportion(WARMUP, ALFWORLD_MIXTURE["train"]) if split == "warmup" else ALFWORLD_MIXTURE[split]


def _apportion(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """`total` in these proportions, rounded by largest remainder."""
    shares = [total * weight // sum(weights) for weight in weights]
    remainders = [total * weight % sum(weights) for weight in weights]
    for number in sorted(range(len(weights)), key=lambda n: (-remainders[n], n))[: total - sum(shares)]:
        shares[number] += 1
    return tuple(shares)


@lru_cache(maxsize=64)
def _shuffle_categories(seed: int, size: str, split: str) -> NDArray[np.int32]:
    """The category of each task of a split: the mixture in random order."""
    codes = np.repeat(np.arange(len(CATEGORIES), dtype=np.int32), get_category_counts(size, split))
    shuffled = codes[stream(seed, "alfworld", "mixture", size, split).permutation(len(codes))]
    shuffled.setflags(write=False)
    return shuffled


def check_house_options(size: str, seed: int, wording: str) -> None:
    """Refuse options of generated houses that make no sense, with the allowed ones."""
    if size not in SIZES:
        raise unknown_name_error("size of ALFWorld's houses", str(size), SIZES)
    if wording not in WORDINGS:
        raise unknown_name_error("wording of ALFWorld's games", str(wording), WORDINGS)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(f"the seed of ALFWorld's houses is a whole number from 0 on, got {seed!r}")


def list_house_words(size: str) -> frozenset[str]:
    """The kinds of receptacles and objects, in lower case, that houses of a size can name."""
    if size == "tiny":
        kinds = {kind for table in (TINY_RECEPTACLES, TINY_OBJECTS) for room in table.values() for kind in room}
    else:
        known = load_statistics()
        kinds = {kind for scene in known.scenes.values() for kind in scene.receptacles}
        kinds |= {kind for room in known.objects.values() for kind in room}
    return frozenset(kind.lower() for kind in kinds | set(load_statistics().lamps))
