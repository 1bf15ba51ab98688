"""Access only to the standard library and one folder, by Landlock at the newest version that the kernel has.

Version 4 adds TCP, 5 requests to devices, 6 signals and abstract sockets of processes outside. Landlock does not cover
metadata (`stat`, `chmod`): `calls` and `view` do.
"""
# ruff: noqa: PTH112, PTH120

from __future__ import annotations

import os
import struct
import sysconfig

from fedagentgym.envs.verifiers.sandbox import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, REMOVE_FILE, MAKE_FILE = 1, 2, 4, 8, 32, 256
MOVE, TRUNCATE, DEVICE_REQUESTS = 1 << 13, 1 << 14, 1 << 15
TCP = 3
SIGNALS_AND_ABSTRACT_SOCKETS = 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446


def find_version() -> int:
    """The newest version of Landlock here; OSError where there is none."""
    return kernel.call(_CREATE, None, 0, 1)


def restrict_files(folder: str) -> int:
    """Allow this process the standard library to read and the folder to use, for good. Returns Landlock's version."""
    version = find_version()
    handled = 0x1FFF
    for since, access in ((2, MOVE), (3, TRUNCATE), (5, DEVICE_REQUESTS)):
        handled |= access if version >= since else 0
    described = struct.pack(
        "<QQQ", handled, TCP if version >= 4 else 0, SIGNALS_AND_ABSTRACT_SOCKETS if version >= 6 else 0
    )
    ruleset = kernel.call(_CREATE, described, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    for path in readable_folders():
        _allow(ruleset, path, EXECUTE | READ_FILE | READ_FOLDER)
    for path in DEVICES:
        _allow(ruleset, path, READ_FILE | (WRITE_FILE if path == "/dev/null" else 0))
    _allow(ruleset, folder, (READ_FILE | WRITE_FILE | READ_FOLDER | REMOVE_FILE | MAKE_FILE | TRUNCATE) & handled)
    kernel.call(_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return version


def readable_folders() -> tuple[str, ...]:
    """The folders of the standard library and the time zones, as named and resolved."""
    return _readable


def _find_readable() -> tuple[str, ...]:
    named = (os.path.dirname(os.__file__), sysconfig.get_config_var("DESTSHARED") or "", "/usr/share/zoneinfo")
    found = [path for path in named if path and os.path.isdir(path)]
    return tuple(dict.fromkeys([*map(os.path.realpath, found), *found]))


_readable = _find_readable()


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        kernel.call(_ADD_RULE, ruleset, 1, struct.pack("<Qi", access, opened), 0)
    finally:
        os.close(opened)
