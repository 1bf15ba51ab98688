"""The real games (json_2.1.1), imported from a copy or downloaded, with the filters of the original package.

Kept are the games that ALFWorld itself plays: those with a game file that is not marked as unsolvable, outside folders
that speak of movable receptacles or slices. They end up below `data_folder("alfworld")` under `train`, `valid_seen` and
`valid_unseen`, and are played with `games="installed"`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import atomic_folder, data_folder
from fedagentgym.base.process import get_logger
from fedagentgym.base.progress import show_progress
from fedagentgym.envs.alfworld.folders import (
    INSTALLED,
    NATIVE_SPLITS,
    build_folder_index,
    cache_index,
    digest_games,
    get_folder_index,
    resolve_games_folder,
)
from fedagentgym.envs.alfworld.reader import GAME_FILE, TRAJECTORY_FILE, read_json_object, require_trajectory
from fedagentgym.envs.data_sets import DataSet, Findings

RELEASES = (
    "https://github.com/alfworld/alfworld/releases/download/0.2.2/json_2.1.1_json.zip",
    "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip",
)
"""Trajectories and games; the second archive fills the folders of the first."""
EXCLUDED_WORDS = ("movable", "Sliced")
CHUNK = 1 << 20
MAX_UNPACKED = 64 << 30


def import_data(folder: Path) -> Path:
    """Check the games of a folder and copy those that ALFWorld plays to where the environment finds them."""
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
    """Folders with a game that the original package plays, each with the relative place it gets."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        source = Path(root)
        place = _map_to_split_folder(source.relative_to(folder), folder.name)
        if GAME_FILE not in files or any(word in place.as_posix() for word in EXCLUDED_WORDS):
            continue
        require_trajectory(source)
        if read_json_object(source / GAME_FILE).get("solvable", True):
            yield source, place


def _map_to_split_folder(relative: Path, folder_name: str) -> Path:
    """The part of a path that begins with the name of a split; without one, the game is a training game."""
    parts = (folder_name, *relative.parts)
    for position in range(len(parts) - 1, -1, -1):
        if parts[position] in NATIVE_SPLITS:
            return Path(*parts[position:])
    return Path("train", relative)


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
        with urllib.request.urlopen(url, timeout=60) as answer, path.open("wb") as file:
            announced = int(answer.headers.get("Content-Length") or 0)
            received = 0
            with show_progress(f"downloading {url.rpartition('/')[2]}", announced or None) as bar:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    received += len(chunk)
                    bar.advance(len(chunk))
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(
            f"cannot download {url} ({reason}); download it yourself, unpack it, "
            "and run `fedagentgym data add alfworld --from FOLDER`"
        ) from None
    if announced and received != announced:
        raise DataError(f"the download of {url} ended after {received} of {announced} bytes; try again")


def unpack(archive: Path, folder: Path, name: str) -> None:
    """Unpack the two files of each game from an archive, and nothing that would lie outside the folder."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = [member for member in content.infolist() if _is_wanted(member.filename)]
            if sum(member.file_size for member in members) > MAX_UNPACKED:
                raise DataError(f"{name}: the archive would unpack to more than {MAX_UNPACKED >> 30} GiB")
            with show_progress(f"unpacking {name.rpartition('/')[2]}", len(members)) as bar:
                for member in members:
                    content.extract(member, folder)
                    bar.advance()
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{name}: not a usable zip archive ({error})") from None


def _is_wanted(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    inside = not name.startswith("/") and ".." not in parts
    return inside and parts[-1] in (GAME_FILE, TRAJECTORY_FILE)


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
        published=({"train": 3553, "val": 140, "test": 134},),
        install=lambda folder, subset: import_data(folder),
        check=lambda folder, subset: check_games(folder),
        download=lambda subset: fetch(),
    )
}
