"""Pools of games in a folder: every `game.tw-pddl` below it, in sorted path order.

The first time a folder is used each of its games is read and checked, which takes some milliseconds each; the result is
kept as an index in the cache and used as long as no file of the folder changed its size or time. A game is of the split
that a component of its path names (`train`, `valid_seen`, `valid_unseen`), and of `train` when none does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import cache_folder, data_folder, read_json, write_atomic
from fedagentgym.base.logs import logger
from fedagentgym.base.progress import progress
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.plans import shortest_plan
from fedagentgym.envs.alfworld.reader import GAME_FILE, TRAJECTORY_FILE, read_game
from fedagentgym.envs.alfworld.tables import tables_of
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.task import task_id

NATIVE_SPLITS = {"train": "train", "valid_seen": "val", "valid_unseen": "test"}
INSTALLED = "installed"
INDEX_VERSION = 2


class Entry(NamedTuple):
    """One game of a folder: where it is, and what a pool needs to know without opening it."""

    path: str
    split: str
    category: str
    sha256: str
    hardness: float | None
    """The length of the shortest plan, where the goal is of a form that can be planned for."""


class Index(NamedTuple):
    """The games of a folder, and the words that occur in their names and tasks."""

    entries: tuple[Entry, ...]
    words: tuple[str, ...]


def games_folder(games: str | os.PathLike[str]) -> Path:
    """The folder that the option `games` means: itself, or the imported data for the word `installed`."""
    if isinstance(games, str) and games == INSTALLED:
        folder = data_folder("alfworld")
        if not folder.is_dir():
            raise DataError(
                "the real ALFWorld games are not installed: `fedagentgym data fetch alfworld` downloads them, "
                "`fedagentgym data add alfworld --from FOLDER` imports a copy"
            )
        return folder
    if not isinstance(games, (str, os.PathLike)) or not os.fspath(games):
        raise OptionError(f"games is a folder, or 'installed', got {games!r}")
    folder = Path(games).expanduser()
    if not folder.is_dir():
        raise DataError(f"games={os.fspath(games)!r} is not a folder")
    return folder.resolve()


def folder_pool(folder: Path, split: str, *, env: str) -> TaskPool:
    """The games of a folder that belong to a split, or all of them."""
    entries = folder_index(folder).entries
    numbers: dict[str, int] = {}
    ids, chosen = [], []
    for entry in entries:
        number = numbers[entry.split] = numbers.get(entry.split, -1) + 1
        if split in ("all", entry.split):
            ids.append(task_id(env, entry.split, number))
            chosen.append(entry)
    return TaskPool(
        env=env,
        split=split,
        ids=ids,
        categories=[entry.category for entry in chosen],
        payload=lambda index: _recent_game(folder / chosen[index].path, chosen[index].sha256),
        hardness=lambda index: chosen[index].hardness,
        source={"games": digest([[entry.path, entry.sha256] for entry in entries])},
    )


@lru_cache(maxsize=4096)
def _recent_game(path: Path, sha256: str) -> Game:
    return read_game(path)


def folder_index(folder: Path) -> Index:
    """Every game below a folder, from the cache if nothing there has changed."""
    files = _found(folder)
    if not files:
        raise DataError(f"{folder}: there is no {GAME_FILE} below this folder")
    return _index(folder, digest([INDEX_VERSION, files]))


@lru_cache(maxsize=8)
def _index(folder: Path, state: str) -> Index:
    index = _kept(folder, state)
    if index is None:
        index = read_index(folder)
        keep_index(folder, index)
    return index


def read_index(folder: Path) -> Index:
    """The index of a folder, made by reading every game in it."""
    entries: list[Entry] = []
    words: set[str] = set()
    files = _found(folder)
    with progress(f"reading the games in {folder.name}", len(files)) as bar:
        for path, *_ in files:
            game = read_game(folder / path)
            sha256, plan = file_digest(folder / path), shortest_plan(game)
            hardness = None if plan is None else float(len(plan))
            entries.append(Entry(path, split_of(folder, path), game.category, sha256, hardness))
            words.update(_words(game))
            bar.advance()
    return Index(tuple(entries), tuple(sorted(words)))


def keep_index(folder: Path, index: Index) -> None:
    """Store an index in the cache; a cache that cannot be written costs time and nothing else."""
    content = {"state": digest([INDEX_VERSION, _found(folder)]), "entries": index.entries, "words": index.words}
    try:
        write_atomic(_cache_file(folder), json.dumps(content))
    except DataError as error:
        logger(__name__).warning("the index of %s is not kept: %s", folder, error)


def _kept(folder: Path, state: str) -> Index | None:
    """The kept index, unless it is absent, damaged, or of another state of the folder."""
    try:
        kept = read_json(_cache_file(folder))
        if kept["state"] != state:
            return None
        return Index(tuple(Entry(*row) for row in kept["entries"]), tuple(kept["words"]))
    except (DataError, KeyError, TypeError):
        return None


def _cache_file(folder: Path) -> Path:
    return cache_folder("alfworld", f"index-{digest(str(folder)).removeprefix('sha256:')[:16]}.json")


def _words(game: Game) -> Iterator[str]:
    for names in tables_of(game)[:3]:
        yield from (name.split(" ")[0] for name in names)
    yield from re.findall(r"[^\W\d_]+", game.task)


def _found(folder: Path) -> list[list[Any]]:
    """Game files below a folder with what tells that they changed: sizes and times, of the file beside each as well."""
    top = os.fspath(folder)
    return sorted(
        [f"{root}{os.sep}{GAME_FILE}"[len(top) + 1 :].replace(os.sep, "/"), *_stamps(root)]
        for root, _, files in os.walk(top)
        if GAME_FILE in files
    )


def _stamps(root: str) -> Iterator[list[int]]:
    for name in (GAME_FILE, TRAJECTORY_FILE):
        try:
            status = os.stat(os.path.join(root, name))  # noqa: PTH116, PTH118 - thousands of files, strings are faster
        except OSError:
            yield []
        else:
            yield [status.st_size, status.st_mtime_ns]


def split_of(folder: Path, path: str) -> str:
    """The canonical split that a path below a folder belongs to.

    >>> split_of(Path("json_2.1.1"), "valid_seen/look_at_obj_in_light-Book-None-DeskLamp-302/trial_1/game.tw-pddl")
    'val'
    """
    parts = (folder.name, *PurePosixPath(path).parts[:-1])
    return next((NATIVE_SPLITS[part] for part in reversed(parts) if part in NATIVE_SPLITS), "train")
