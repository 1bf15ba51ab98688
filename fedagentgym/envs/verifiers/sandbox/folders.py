"""Folders of runs where files are not private: made, locked during use, removed, and swept after a server died.

The lock belongs to the open folder, so the kernel releases it however its server ends: a folder that can be locked belongs
to nobody.
"""
# ruff: noqa: PTH106, PTH112, PTH118

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from typing import NamedTuple

PREFIX = "fedagentgym-run-"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(NamedTuple):
    """A folder and the descriptor that holds its lock."""

    path: str
    lock: int


def make_folder(base: str) -> Folder:
    """A new folder, locked. If a sweep removes it between making and locking, another one is made."""
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        try:
            lock = os.open(path, _OPEN_FOLDER)
        except FileNotFoundError:
            continue
        if _lock(lock) is not False and os.path.isdir(path):
            return Folder(path, lock)
        os.close(lock)


def remove_folder(folder: Folder) -> None:
    """Remove a folder with all its content, however deep, then release its lock."""
    try:
        _empty(folder.lock)
        os.rmdir(folder.path)
    except OSError:
        pass
    finally:
        os.close(folder.lock)


def sweep_folders(base: str) -> int:
    """Remove the folders of killed servers; returns their number. Those in use stay."""
    swept = 0
    for name in os.listdir(base):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(base, name)
        try:
            lock = os.open(path, _OPEN_FOLDER)
        except OSError:
            continue
        if os.geteuid() in (0, os.fstat(lock).st_uid) and _lock(lock):
            remove_folder(Folder(path, lock))
            swept += 1
        else:
            os.close(lock)
    return swept


def _lock(folder: int) -> bool | None:
    """Lock an open folder. False if another process holds the lock, None if the file system has no locks."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _empty(folder: int) -> None:
    """Folders in folders are moved to the top before they are emptied, so depth costs neither stack nor descriptors."""
    os.fchmod(folder, 0o700)
    number = 0
    waiting = os.listdir(folder)
    while waiting:
        name = waiting.pop()
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        opened = os.open(name, _OPEN_FOLDER, dir_fd=folder)
        try:
            os.fchmod(opened, 0o700)
            for inner in os.listdir(opened):
                if stat.S_ISDIR(os.lstat(inner, dir_fd=opened).st_mode):
                    number += 1
                    os.rename(inner, f".moved-{number}", src_dir_fd=opened, dst_dir_fd=folder)
                    waiting.append(f".moved-{number}")
                else:
                    os.unlink(inner, dir_fd=opened)
        finally:
            os.close(opened)
        os.rmdir(name, dir_fd=folder)
