"""A run as the server sees it: its folder, if files are not private, and its end.

A folder is locked while it is used, and then removed; folders of dead servers are swept later. The lock belongs to the open
folder, so the kernel releases it however the server ends. So a folder that can be locked belongs to no running server.
"""
# ruff: noqa: PTH106, PTH112, PTH118

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import stat
import tempfile
import time
from typing import Any, NamedTuple

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
    """Empty a folder. Folders in folders are moved to the top first, so depth costs neither stack nor descriptors."""
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


_ATTEMPTS_TO_REAP = 500


class Children:
    """The numbers of this process's children, readable even when `/proc` can no longer be reached."""

    def __init__(self) -> None:
        me = os.getpid()
        try:
            self._list = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1

    def kill(self) -> None:
        """Kill all present children."""
        try:
            for orphan in os.pread(self._list, 65536, 0).split():
                os.kill(int(orphan), signal.SIGKILL)
        except (OSError, ValueError):
            pass


def watch(
    control: socket.socket, pid: int, outputs: tuple[int, ...], seconds: float, children: Children
) -> dict[str, Any]:
    """Watch a child until it ends or must be ended; the status `abandoned` means that the process which ordered the run is gone.

    `outputs` are the ends into which the child writes. They stay open here, so that a poll shows when their reader closes them
    because of too much output; the run is then stopped.
    """
    status = _wait(control, pid, outputs, time.monotonic() + seconds)
    # kill the group, then its orphans, until nothing is left
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ChildProcessError):
        for _ in range(_ATTEMPTS_TO_REAP):
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                children.kill()
                time.sleep(0.001)
    for output in outputs:
        os.close(output)
    return {"status": "killed by a signal" if status == "ended" and code < 0 else status, "code": code}


def _wait(control: socket.socket, pid: int, outputs: tuple[int, ...], deadline: float) -> str:
    poll = select.poll()
    for output in outputs:
        poll.register(output, 0)  # only an error is reported, when the reading end is closed
    poll.register(control, select.POLLIN)
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    if ended >= 0:
        poll.register(ended, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            for ready, _ in poll.poll(left * 1000 if ended >= 0 else min(left * 1000, 5)):
                if ready == control.fileno():
                    return "abandoned"
                return "ended" if ready == ended else "too much output"
            if ended < 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return "ended"
    finally:
        if ended >= 0:
            os.close(ended)
