"""Pools of games in a folder: every `game.tw-pddl` below it, in sorted path order.

When a folder is used for the first time, each of its games is read and checked, which takes some milliseconds per game. The
result is stored as an index in the cache, and used until the size or time of a file in the folder changes. A component of
a game's path names its split (`train`, `valid_seen`, `valid_unseen`); without one, the game belongs to `train`.

The real games (json_2.1.1) are imported from a copy or downloaded, with the filters of the original package. The import
keeps the games that ALFWorld itself plays: those with a game file that is not marked as unsolvable, outside folders that
name movable receptacles or slices. They are stored in `data_folder("alfworld")` under `train`, `valid_seen` and
`valid_unseen`, and played with `games="installed"`.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import (
    atomic_folder,
    cache_folder,
    data_folder,
    get_name,
    read_json,
    stamp_file,
    write_atomic,
)
from fedagentgym.base.peers import PeerError, open_answer
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.alfworld.game import Game
from fedagentgym.envs.alfworld.gamefiles import GAME_FILE, TRAJECTORY_FILE
from fedagentgym.envs.alfworld.plans import find_shortest_plan
from fedagentgym.envs.alfworld.reader import read_game, read_json_object, require_trajectory
from fedagentgym.envs.alfworld.tables import tables_of
from fedagentgym.envs.data_sets import DataSet, Findings
from fedagentgym.envs.options import INSTALLED
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import make_task_id

PUBLISHED_GAMES = {"train": 3553, "val": 140, "test": 134}
NATIVE_SPLITS = {"train": "train", "valid_seen": "val", "valid_unseen": "test"}
INDEX_VERSION = 2


class FolderEntry(NamedTuple):
    """One game of a folder: its path, and what a pool needs to know without opening it."""

    path: str
    split: str
    category: str
    sha256: str
    hardness: float | None
    """The length of the shortest plan; None if no plan is found, or none can be made for a goal of this form."""


class FolderIndex(NamedTuple):
    """The games of a folder, and the words that occur in their names and tasks."""

    entries: tuple[FolderEntry, ...]
    words: tuple[str, ...]


def resolve_games_folder(games: str | os.PathLike[str]) -> Path:
    """The folder that the option `games` names; for the word `installed`, the folder of the imported data."""
    if isinstance(games, str) and games == INSTALLED:
        folder = data_folder("alfworld")
        if not folder.is_dir():
            raise DataError(
                "the real ALFWorld games are not installed: `fedagentgym data add alfworld` downloads them, "
                "`fedagentgym data add alfworld --from FOLDER` imports a copy"
            )
        return folder
    if not isinstance(games, (str, os.PathLike)) or not os.fspath(games):
        raise OptionError(f"games must be a folder, or 'installed', got {games!r}")
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
        split_of=lambda index: chosen[index].split,
        source={"games": digest_games(entries)},
    )


def digest_games(entries: Sequence[FolderEntry]) -> str:
    """The digest of the paths and contents of all games of a folder."""
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
    try:
        kept = read_json(_cache_file(folder))
        if kept["state"] == state:
            return FolderIndex(tuple(FolderEntry(*row) for row in kept["entries"]), tuple(kept["words"]))
    except (DataError, KeyError, TypeError):
        pass  # there is no index, or it is damaged
    index = build_folder_index(folder)
    cache_index(folder, index)
    return index


def build_folder_index(folder: Path) -> FolderIndex:
    """The index of a folder, made by reading every game in it."""
    entries: list[FolderEntry] = []
    words: set[str] = set()
    files = _list_game_files(folder)
    with show_progress(f"reading the games in {get_name(folder)}", len(files)) as bar:
        for path, *_ in files:
            game = read_game(folder / path)
            sha256, plan = file_digest(folder / path), find_shortest_plan(game)
            hardness = None if plan is None else float(len(plan))
            entries.append(FolderEntry(path, infer_split(folder, path), game.category, sha256, hardness))
            words.update(name.split(" ")[0] for names in tables_of(game)[:3] for name in names)
            words.update(re.findall(r"[^\W\d_]+", game.task))
            bar.advance()
    return FolderIndex(tuple(entries), tuple(sorted(words)))


def cache_index(folder: Path, index: FolderIndex) -> None:
    """Store an index in the cache; if it cannot be written, a warning is logged, since only time is lost."""
    content = {
        "state": digest([INDEX_VERSION, _list_game_files(folder)]),
        "entries": index.entries,
        "words": index.words,
    }
    try:
        write_atomic(_cache_file(folder), json.dumps(content))
    except DataError as error:
        get_logger(__name__).warning("the index of %s is not kept: %s", folder, error)


def _cache_file(folder: Path) -> Path:
    return cache_folder("alfworld", f"index-{digest(str(folder)).removeprefix('sha256:')[:16]}.json")


def _list_game_files(folder: Path) -> list[list[Any]]:
    """The game files below a folder, with sizes and times of each and of the trajectory file beside it, to detect changes."""
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
    parts = (get_name(folder), *PurePosixPath(path).parts[:-1])
    return next((NATIVE_SPLITS[part] for part in reversed(parts) if part in NATIVE_SPLITS), "train")


RELEASES = (
    "https://github.com/alfworld/alfworld/releases/download/0.2.2/json_2.1.1_json.zip",
    "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip",
)
"""The archives of trajectories and of games; the second adds its files to the folders of the first."""
EXCLUDED_WORDS = ("movable", "Sliced")
MAX_SECONDS = 6 * 3600.0
"""The time that the download of an archive may take."""
MAX_UNPACKED = 64 << 30


def import_data(folder: Path) -> Path:
    """Check the games of a folder and copy those that ALFWorld plays to the data folder, which is returned."""
    target = data_folder("alfworld")
    if target.exists():
        raise DataError(f"the ALFWorld games are there already, in {target}; remove that folder to import them again")
    chosen = list(find_playable_games(Path(folder)))
    if not chosen:
        raise DataError(f"{folder}: no playable ALFWorld game ({GAME_FILE} beside {TRAJECTORY_FILE}) below this folder")
    with atomic_folder(target) as fresh, show_progress("importing ALFWorld games", len(chosen)) as bar:
        for source, place in chosen:
            (fresh / place).mkdir(parents=True)
            for name in (GAME_FILE, TRAJECTORY_FILE):
                shutil.copyfile(source / name, fresh / place / name)
            bar.advance()
        index = build_folder_index(fresh)
    cache_index(target, index)
    counts = Counter(entry.split for entry in index.entries)
    get_logger(__name__).info("%d ALFWorld games imported: %s", len(index.entries), dict(counts))
    return target


def find_playable_games(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Folders with a game that the original package plays, each with the relative path that it is imported to."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        source = Path(root)
        # The part of the path that begins with the name of a split; without one, the game is a training game.
        parts = (get_name(folder), *source.relative_to(folder).parts)
        starts = [position for position, part in enumerate(parts) if part in NATIVE_SPLITS]
        place = Path(*parts[starts[-1] :]) if starts else Path("train", *parts[1:])
        if GAME_FILE not in files or any(word in place.as_posix() for word in EXCLUDED_WORDS):
            continue
        require_trajectory(source)
        if read_json_object(source / GAME_FILE).get("solvable", True):
            yield source, place


def fetch(urls: Sequence[str] = RELEASES) -> Path:
    """Download the published archives and import the games in them."""
    target = data_folder("alfworld")
    if target.exists():
        raise DataError(f"the ALFWorld games are there already, in {target}; remove that folder to fetch them again")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".alfworld-download-") as temporary:
        for url in urls:
            archive = Path(temporary, "archive.zip")
            download(url, archive)
            unpack(archive, Path(temporary, "games"), url)
            archive.unlink()
        return import_data(Path(temporary, "games"))


def download(url: str, path: Path) -> None:
    """Fetch a file; one that ends before its announced length is an error."""
    try:
        with open_answer(url, seconds=MAX_SECONDS, idle=60.0, follow=True) as answer, path.open("wb") as file:
            if answer.status != 200:
                raise PeerError(f"status {answer.status}")
            announced = answer.headers.get("Content-Length", "")
            total = int(announced[:12]) if announced.isdecimal() else None
            with show_progress(f"downloading {url.rpartition('/')[2]}", total) as bar:
                for part in answer.iter_parts(MAX_UNPACKED):
                    file.write(part)
                    bar.advance(len(part))
    except PeerError as error:
        raise DataError(
            f"cannot download {url} ({error}); download it yourself, unpack it, "
            "and run `fedagentgym data add alfworld --from FOLDER`"
        ) from None


def unpack(archive: Path, folder: Path, name: str) -> None:
    """Unpack the two files of each game from an archive, and nothing that would lie outside the folder."""
    try:
        with zipfile.ZipFile(archive) as content:
            members: list[zipfile.ZipInfo] = []
            for member in content.infolist():
                parts = member.filename.replace("\\", "/").split("/")
                inside = not member.filename.startswith("/") and ".." not in parts
                if inside and parts[-1] in (GAME_FILE, TRAJECTORY_FILE):
                    members.append(member)
            if sum(member.file_size for member in members) > MAX_UNPACKED:
                raise DataError(f"{name}: the archive would unpack to more than {MAX_UNPACKED >> 30} GiB")
            with show_progress(f"unpacking {name.rpartition('/')[2]}", len(members)) as bar:
                for member in members:
                    content.extract(member, folder)
                    bar.advance()
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{name}: not a usable zip archive ({error})") from None


def check_games(folder: Path | None) -> Findings:
    """The installed games, or those of a folder, by split; each is read and checked the first time."""
    place = resolve_games_folder(INSTALLED if folder is None else folder)
    entries = get_folder_index(place).entries
    return Findings(
        place=place,
        tasks=dict(Counter(entry.split for entry in entries)),
        digest=digest_games(entries),
        rows=len(entries),
        columns=(GAME_FILE, TRAJECTORY_FILE),
    )


DATA_SETS: Mapping[str, DataSet] = {
    "alfworld": DataSet(
        name="alfworld",
        about="fedagentgym/ALFWorld-v0, the household games of ALFWorld (json_2.1.1)",
        licence="MIT",
        columns=f"folders with {GAME_FILE} and {TRAJECTORY_FILE}",
        splits="train, val (valid_seen), test (valid_unseen)",
        use="games: installed",
        published=(PUBLISHED_GAMES,),
        install=lambda folder, subset: import_data(folder),
        check=lambda folder, subset: check_games(folder),
        download=lambda subset: fetch(),
    )
}
