"""Pools of games in a folder: every `game.tw-pddl` below it, in sorted path order.

The first time a folder is used each of its games is read and checked, which takes some milliseconds each; the result is
kept as an index in the cache and used as long as no file of the folder changed its size or time. A game is of the split
that a component of its path names (`train`, `valid_seen`, `valid_unseen`), and of `train` when none does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import cache_folder, data_folder, read_json, stamp_file, write_atomic
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.plans import find_shortest_plan
from fedagentgym.envs.alfworld.reader import GAME_FILE, TRAJECTORY_FILE, read_game
from fedagentgym.envs.alfworld.tables import tables_of
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.task import make_task_id

NATIVE_SPLITS = {"train": "train", "valid_seen": "val", "valid_unseen": "test"}
INSTALLED = "installed"
INDEX_VERSION = 2


class FolderEntry(NamedTuple):
    """One game of a folder: its path, and what a pool needs to know without opening it."""

    path: str
    split: str
    category: str
    sha256: str
    hardness: float | None
    """The length of the shortest plan, where the goal is of a form that can be planned for."""


class FolderIndex(NamedTuple):
    """The games of a folder, and the words that occur in their names and tasks."""

    entries: tuple[FolderEntry, ...]
    words: tuple[str, ...]


def resolve_games_folder(games: str | os.PathLike[str]) -> Path:
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


def make_folder_pool(folder: Path, split: str, *, env: str) -> TaskPool:
    """The games of a folder that belong to a split, or all of them."""
    entries = get_folder_index(folder).entries
    numbers: dict[str, int] = {}
    ids, chosen = [], []
    for entry in entries:
        number = numbers[entry.split] = numbers.get(entry.split, -1) + 1
        if split in ("all", entry.split):
            ids.append(make_task_id(env, entry.split, number))
            chosen.append(entry)
    return TaskPool(
        env=env,
        split=split,
        ids=ids,
        categories=[entry.category for entry in chosen],
        payload=lambda index: _get_game(folder / chosen[index].path, chosen[index].sha256),
        hardness=lambda index: chosen[index].hardness,
        source={"games": digest_games(entries)},
    )


def digest_games(entries: Sequence[FolderEntry]) -> str:
    """The identity of all games of a folder."""
    return digest([[entry.path, entry.sha256] for entry in entries])


@lru_cache(maxsize=4096)
def _get_game(path: Path, sha256: str) -> Game:
    return read_game(path)


def get_folder_index(folder: Path) -> FolderIndex:
    """Every game below a folder, from the cache if nothing there has changed."""
    files = _list_game_files(folder)
    if not files:
        raise DataError(f"{folder}: there is no {GAME_FILE} below this folder")
    return _load_or_build_index(folder, digest([INDEX_VERSION, files]))


@lru_cache(maxsize=8)
def _load_or_build_index(folder: Path, state: str) -> FolderIndex:
    index = _load_cached_index(folder, state)
    if index is None:
        index = build_folder_index(folder)
        cache_index(folder, index)
    return index


def build_folder_index(folder: Path) -> FolderIndex:
    """The index of a folder, made by reading every game in it."""
    entries: list[FolderEntry] = []
    words: set[str] = set()
    files = _list_game_files(folder)
    with show_progress(f"reading the games in {folder.name}", len(files)) as bar:
        for path, *_ in files:
            game = read_game(folder / path)
            sha256, plan = file_digest(folder / path), find_shortest_plan(game)
            hardness = None if plan is None else float(len(plan))
            entries.append(FolderEntry(path, infer_split(folder, path), game.category, sha256, hardness))
            words.update(_iter_words(game))
            bar.advance()
    return FolderIndex(tuple(entries), tuple(sorted(words)))


def cache_index(folder: Path, index: FolderIndex) -> None:
    """Store an index in the cache; if the cache cannot be written, only time is lost."""
    content = {
        "state": digest([INDEX_VERSION, _list_game_files(folder)]),
        "entries": index.entries,
        "words": index.words,
    }
    try:
        write_atomic(_cache_file(folder), json.dumps(content))
    except DataError as error:
        get_logger(__name__).warning("the index of %s is not kept: %s", folder, error)


def _load_cached_index(folder: Path, state: str) -> FolderIndex | None:
    """The kept index, unless it is absent, damaged, or of another state of the folder."""
    try:
        kept = read_json(_cache_file(folder))
        if kept["state"] != state:
            return None
        return FolderIndex(tuple(FolderEntry(*row) for row in kept["entries"]), tuple(kept["words"]))
    except (DataError, KeyError, TypeError):
        return None


def _cache_file(folder: Path) -> Path:
    return cache_folder("alfworld", f"index-{digest(str(folder)).removeprefix('sha256:')[:16]}.json")


def _iter_words(game: Game) -> Iterator[str]:
    for names in tables_of(game)[:3]:
        yield from (name.split(" ")[0] for name in names)
    yield from re.findall(r"[^\W\d_]+", game.task)


def _list_game_files(folder: Path) -> list[list[Any]]:
    """Game files below a folder with what tells that they changed: sizes and times, of the file beside each as well."""
    top = os.fspath(folder)
    return sorted(
        [f"{root}{os.sep}{GAME_FILE}"[len(top) + 1 :].replace(os.sep, "/"), *_stat_files(root)]
        for root, _, files in os.walk(top)
        if GAME_FILE in files
    )


def _stat_files(root: str) -> Iterator[tuple[int, ...]]:
    for name in (GAME_FILE, TRAJECTORY_FILE):
        try:
            yield stamp_file(os.path.join(root, name))  # noqa: PTH118 - thousands of files, strings are faster
        except OSError:
            yield ()


def infer_split(folder: Path, path: str) -> str:
    """The canonical split that a path below a folder belongs to.

    >>> infer_split(Path("json_2.1.1"), "valid_seen/look_at_obj_in_light-Book-None-DeskLamp-302/trial_1/game.tw-pddl")
    'val'
    """
    parts = (folder.name, *PurePosixPath(path).parts[:-1])
    return next((NATIVE_SPLITS[part] for part in reversed(parts) if part in NATIVE_SPLITS), "train")
