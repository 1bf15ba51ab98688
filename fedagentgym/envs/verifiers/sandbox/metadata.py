"""`os.stat` and its kin for programs whose system calls may not tell metadata by path: a file tells its metadata once it is open.

Landlock says which files may be opened, so a program learns about its own files and the standard library, and no others.
"""

from __future__ import annotations

import os
import posix

AnyPath = int | str | bytes | os.PathLike[str] | os.PathLike[bytes]

_real_stat, _real_chmod = posix.stat, posix.chmod
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def replace_stat() -> None:
    """From now on this process reads metadata by opening files."""
    for module in (os, posix):
        for function in (stat, lstat, access, chmod):
            setattr(module, function.__name__, function)


def stat(path: AnyPath, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    if isinstance(path, int):
        return _real_stat(path)
    opened = os.open(path, _FLAGS | (0 if follow_symlinks else os.O_NOFOLLOW), dir_fd=dir_fd)
    try:
        return os.fstat(opened)
    finally:
        os.close(opened)


def lstat(path: AnyPath, *, dir_fd: int | None = None) -> os.stat_result:
    return stat(path, dir_fd=dir_fd, follow_symlinks=False)


def access(path: AnyPath, mode: int, **_options: object) -> bool:
    """`os.access` for reading and existence; nobody may execute, and who may write finds out by writing."""
    try:
        stat(path)
    except OSError:
        return False
    return not mode & os.X_OK


def chmod(path: AnyPath, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
    """`os.chmod`: a mode that a file has already needs no change (`shutil.copy` requests that); the kernel refuses others."""
    if stat(path, dir_fd=dir_fd).st_mode & 0o7777 != mode:
        _real_chmod(path, mode, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
