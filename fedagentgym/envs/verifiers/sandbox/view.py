"""A separate root folder: the standard library, read-only, a few devices, and a place for the folder of a run.

It is made once, in a mount namespace of the server. The paths of the standard library stay what they are, but the folders
above it are new: another user can read it even if nobody may enter the home folder in which Python is installed.
"""
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH120

from __future__ import annotations

import os
import struct

from fedagentgym.envs.verifiers.sandbox import kernel, landlock

RUN_FOLDER = "/run"
LARGEST_TOTAL, MOST_FILES = 64 << 20, 4096
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
    trees = {
        path: copy_tree(path) for path in (*landlock.readable_folders(), *landlock.DEVICES) if os.path.exists(path)
    }
    kernel.mount("tmpfs", root, _NO_SET_USER | _NO_DEVICES, "mode=755,size=1m")
    for path, tree in sorted(trees.items()):
        attach_tree(tree, root + path, folder=os.path.isdir(path) and path not in landlock.DEVICES)
    for path in landlock.readable_folders():
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
    """What is mounted at a path, read-only, not yet attached anywhere."""
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
    options = f"mode=700,uid={user},gid={group},size={LARGEST_TOTAL},nr_inodes={MOST_FILES}"
    kernel.mount("tmpfs", RUN_FOLDER, _NO_SET_USER | _NO_DEVICES, options)
    return RUN_FOLDER


def unmount_run_folder() -> None:
    """The folder is removed with its content."""
    kernel.unmount(RUN_FOLDER, _DETACH)


def _set_attributes(opened: int, path: str, flags: int, attributes: int) -> None:
    described = struct.pack("<QQQQ", attributes, 0, 0, 0)
    kernel.call(_SET_ATTRIBUTES, opened, path.encode(), flags, described, len(described))
