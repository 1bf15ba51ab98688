"""A program's view of the files: a root folder of its own, Landlock, and metadata of open files only.

The root folder holds the standard library, read-only, a few devices, and a place for the folder of a run. It is made
once, in a mount namespace of the server. The paths of the standard library stay the same, but the folders above it are
new. So another user can read it even if no other user may enter the home folder in which Python is installed.

Landlock restricts access to files, in the newest version that the kernel has. Version 4 adds TCP, 5 requests to devices, 6
signals and abstract sockets of processes outside. Landlock does not cover metadata (`stat`, `chmod`); the root folder and
`calls` do. If `calls` refuses metadata by path, `os.stat` and similar functions read it by opening the file.
"""
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH120

from __future__ import annotations

import os
import posix
import struct
import sysconfig

from fedagentgym.envs.verifiers.sandbox import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, REMOVE_FILE, MAKE_FILE = 1, 2, 4, 8, 32, 256
MOVE, TRUNCATE, DEVICE_REQUESTS = 1 << 13, 1 << 14, 1 << 15
TCP = 3
SIGNALS_AND_ABSTRACT_SOCKETS = 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446

_named = (os.path.dirname(os.__file__), sysconfig.get_config_var("DESTSHARED") or "", "/usr/share/zoneinfo")
_found = [path for path in _named if path and os.path.isdir(path)]
READABLE = tuple(dict.fromkeys([*map(os.path.realpath, _found), *_found]))
"""The folders of the standard library and the time zones, as named and resolved."""


def restrict_files(folder: str) -> int:
    """Restrict this process, permanently, to reading the standard library and using the folder. Returns Landlock's version."""
    version = kernel.call(_CREATE, None, 0, 1)  # the newest version of this kernel; OSError without Landlock
    handled = 0x1FFF
    for since, right in ((2, MOVE), (3, TRUNCATE), (5, DEVICE_REQUESTS)):
        handled |= right if version >= since else 0
    described = struct.pack(
        "<QQQ", handled, TCP if version >= 4 else 0, SIGNALS_AND_ABSTRACT_SOCKETS if version >= 6 else 0
    )
    ruleset = kernel.call(_CREATE, described, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    allowed = dict.fromkeys(READABLE, EXECUTE | READ_FILE | READ_FOLDER)
    allowed |= {path: READ_FILE | (WRITE_FILE if path == "/dev/null" else 0) for path in DEVICES}
    allowed[folder] = (READ_FILE | WRITE_FILE | READ_FOLDER | REMOVE_FILE | MAKE_FILE | TRUNCATE) & handled
    for path, access in allowed.items():
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            kernel.call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", access, opened), 0)
        finally:
            os.close(opened)
    kernel.call(_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return version


RUN_FOLDER = "/run"
MAX_TOTAL, MAX_FILES = 64 << 20, 4096
_HERE, _RECURSIVE, _EMPTY_PATH = -100, 0x8000, 0x1000
_CLONE_TREE, _FROM_EMPTY_PATH = 1, 4
_READ_ONLY, _NO_SET_USER, _NO_DEVICES = 1, 2, 4
_SET_ATTRIBUTES, _OPEN_TREE, _MOVE_MOUNT = 442, 428, 429
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PRIVATE, _RECURSIVE_MOUNT, _DETACH = 1 << 18, 1 << 14, 2
_PACKAGES = ("site-packages", "dist-packages")


def build_root(root: str) -> None:
    """Move this process into a root folder of its own, which is put over the folder `root`.

    The mount namespace has to be this process's own already.
    """
    if root == "/":
        raise OSError("there is no folder for temporary files")
    machine = os.uname().machine
    if machine not in _PIVOT_ROOT:
        raise OSError(f"no private files on {machine}")
    kernel.mount("none", "/", _RECURSIVE_MOUNT | _PRIVATE, "")
    trees = {path: copy_tree(path) for path in (*READABLE, *DEVICES) if os.path.exists(path)}
    kernel.mount("tmpfs", root, _NO_SET_USER | _NO_DEVICES, "mode=755,size=1m")
    for path, tree in sorted(trees.items()):
        attach_tree(tree, root + path, folder=os.path.isdir(path) and path not in DEVICES)
    for path in READABLE:
        for name in _PACKAGES:
            if os.path.isdir(f"{root}{path}/{name}"):
                kernel.mount(
                    "tmpfs", f"{root}{path}/{name}", _READ_ONLY | _NO_SET_USER | _NO_DEVICES, "mode=755,size=4k"
                )
    os.mkdir(root + RUN_FOLDER, 0o755)
    os.chdir(root)
    kernel.call(_PIVOT_ROOT[machine], b".", b".")
    kernel.unmount(".", _DETACH)
    os.chdir("/")
    _set_attributes(_HERE, "/", 0, _READ_ONLY)


def copy_tree(path: str) -> int:
    """A read-only copy of the mounts at a path, not yet attached anywhere."""
    tree = kernel.call(_OPEN_TREE, _HERE, path.encode(), _CLONE_TREE | _RECURSIVE | os.O_CLOEXEC)
    _set_attributes(tree, "", _EMPTY_PATH | _RECURSIVE, _READ_ONLY | _NO_SET_USER)
    return tree


def attach_tree(tree: int, path: str, folder: bool) -> None:
    """Mount the result of `copy_tree` at a path that is made for it."""
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o644))
    kernel.call(_MOVE_MOUNT, tree, b"", _HERE, path.encode(), _FROM_EMPTY_PATH)
    os.close(tree)


def mount_run_folder(user: int, group: int) -> str:
    """An empty folder in memory for one run."""
    options = f"mode=700,uid={user},gid={group},size={MAX_TOTAL},nr_inodes={MAX_FILES}"
    kernel.mount("tmpfs", RUN_FOLDER, _NO_SET_USER | _NO_DEVICES, options)
    return RUN_FOLDER


def unmount_run_folder() -> None:
    """Unmount the folder of a run, whose content is gone with it."""
    kernel.unmount(RUN_FOLDER, _DETACH)


def _set_attributes(opened: int, path: str, flags: int, attributes: int) -> None:
    described = struct.pack("<QQQQ", attributes, 0, 0, 0)
    kernel.call(_SET_ATTRIBUTES, opened, path.encode(), flags, described, len(described))


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
    """`os.access` for existence and reading. Execution is never permitted, and write access is not checked in advance."""
    try:
        stat(path)
    except OSError:
        return False
    return not mode & os.X_OK


def chmod(path: AnyPath, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
    """`os.chmod`, which does nothing if the file has this mode already, as in `shutil.copy`; the kernel refuses other modes."""
    if stat(path, dir_fd=dir_fd).st_mode & 0o7777 != mode:
        _real_chmod(path, mode, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
