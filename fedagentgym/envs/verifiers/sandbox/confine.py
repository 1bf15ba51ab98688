# ruff: noqa: PTH112, PTH116, PTH120, PTH123
"""Walls around a process that is about to run a program nobody trusts. Linux; each wall is used where the system has it.

Limits on memory, processor time, file sizes and open files; no new privileges; another user when we are root; a filter on
system calls (no processes, no programs, no network, no signals to others, no shared memory, no folders or links); and
access to no files but the standard library and one temporary folder.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys
import sysconfig

NOBODY = 65534
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, CHILD_SUBREAPER, SECCOMP = 38, 1, 36, 22
KILL_SIGNAL = 9
LARGEST_FILE = 4 << 20
CLONE_THREAD = 0x10000

try:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.syscall.restype = ctypes.c_long
    _linux = sys.platform == "linux"
except (OSError, AttributeError):
    _linux = False


def confine(folder: str, seconds: float, memory: int, other_user: bool) -> list[str]:
    """Put every wall up around this process, for good. Returns the names of those that stand."""
    standing = ["limits"]
    _limit(seconds, memory)
    if _linux:
        _prctl(PARENT_DEATH_SIGNAL, KILL_SIGNAL)
    if other_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        standing.append("other user")
        if _linux:
            _prctl(PARENT_DEATH_SIGNAL, KILL_SIGNAL)
    if _linux and _prctl(NO_NEW_PRIVILEGES, 1):
        standing.append("no new privileges")
        if _landlock(folder):
            standing.append("file access")
        if _filter_calls():
            standing.append("system calls")
    if "system calls" not in standing:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    return standing


def may_change_user() -> bool:
    """Are we root, and could another user still read the standard library?"""
    if not hasattr(os, "setresuid") or os.geteuid() != 0:
        return False
    folder = os.path.realpath(os.path.dirname(os.__file__))
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return False
        folder = os.path.dirname(folder)
    return True


def adopt_orphans() -> None:
    """Make this process the parent of whatever its children leave behind."""
    if _linux:
        _prctl(CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    return bool(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def _limit(seconds: float, memory: int) -> None:
    try:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 256 << 20
    whole = int(seconds) + 1
    wanted = {
        "RLIMIT_AS": mapped + memory,
        "RLIMIT_CPU": whole,
        "RLIMIT_FSIZE": LARGEST_FILE,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, limit in wanted.items():
        if hasattr(resource, name):
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))


# ---- files: landlock ------------------------------------------------------------------------------------------------

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, REMOVE_FILE, MAKE_FILE, TRUNCATE = 1, 2, 4, 8, 32, 256, 1 << 14
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446


def _landlock(folder: str) -> bool:
    version = _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    handled = 0x1FFF | (1 << 13 if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    ruleset = _libc.syscall(CREATE_RULESET, struct.pack("<Q", handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    reading = EXECUTE | READ_FILE | READ_FOLDER
    for path in READABLE:
        _allow(ruleset, path, reading & handled)
    for path in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        _allow(ruleset, path, READ_FILE | (WRITE_FILE if path == "/dev/null" else 0))
    _allow(ruleset, folder, (READ_FILE | WRITE_FILE | READ_FOLDER | REMOVE_FILE | MAKE_FILE | TRUNCATE) & handled)
    done = _libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return bool(done)


def _readable() -> list[str]:
    paths = [os.path.dirname(os.__file__), sysconfig.get_config_var("DESTSHARED") or "", "/usr/share/zoneinfo"]
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if path and os.path.isdir(path)))


READABLE = _readable()


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        access &= ~READ_FOLDER
    _libc.syscall(ADD_RULE, ruleset, 1, struct.pack("<Qi", access, opened), 0)
    os.close(opened)


# ---- system calls: seccomp ------------------------------------------------------------------------------------------

_REFUSED = {
    "x86_64": (
        *(57, 58, 59, 322, 41, 42, 43, 49, 50, 288),
        *(62, 200, 234, 129, 297, 424, 434, 438, 101, 310, 311),
        *(112, 109, 29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 240, 241, 248, 249, 250, 321, 298, 323, 425, 426, 427),
        *(165, 166, 155, 161, 272, 308, 83, 258, 133, 259, 88, 266, 86, 265, 319, 447, 141, 203, 144, 314),
        *(
            169,
            167,
            175,
            313,
            246,
            304,
            303,
            300,
            294,
            253,
            179,
            163,
            164,
            227,
            159,
            172,
            173,
            135,
            153,
            170,
            103,
            157,
            317,
        ),
        *(428, 429, 430, 431, 432, 442, 279, 256),
    ),
    "aarch64": (
        *(221, 281, 198, 203, 202, 200, 201, 242),
        *(129, 130, 131, 138, 240, 424, 434, 438, 117, 270, 271),
        *(
            157,
            154,
            194,
            195,
            196,
            190,
            191,
            193,
            186,
            187,
            188,
            189,
            180,
            181,
            217,
            218,
            219,
            280,
            241,
            282,
            425,
            426,
            427,
        ),
        *(40, 39, 41, 51, 97, 268, 34, 33, 36, 37, 279, 447, 140, 122, 119, 274),
        *(142, 224, 105, 273, 104, 265, 264, 262, 26, 60, 89, 170, 112, 171, 92, 58, 161, 116, 167, 277),
        *(428, 429, 430, 431, 432, 442, 239, 238),
    ),
}
_NUMBERS = {
    "x86_64": {"arch": 0xC000003E, "clone": 56, "clone3": 435, "prlimit": 302, "fcntl": 72},
    "aarch64": {"arch": 0xC00000B7, "clone": 220, "clone3": 435, "prlimit": 261, "fcntl": 25},
}
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
SIGNAL_OWNER_COMMANDS = (8, 10, 15)


def _program() -> bytes | None:
    machine = os.uname().machine
    if machine not in _REFUSED or sys.maxsize < 1 << 32:
        return None
    number = _NUMBERS[machine]
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, number["arch"]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    code += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]
    code += [(EQUAL, 0, 1, number["clone3"]), (RETURN, 0, 0, ABSENT)]
    code += [
        (EQUAL, 0, 4, number["clone"]),
        (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    code += [
        (EQUAL, 0, 4, number["prlimit"]),
        (LOAD, 0, 0, 16),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    code += [(EQUAL, 0, 6, number["fcntl"]), (LOAD, 0, 0, 24)]
    code += [(EQUAL, 3 - place, 0, command) for place, command in enumerate(SIGNAL_OWNER_COMMANDS)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    refused = _REFUSED[machine]
    code += [(EQUAL, len(refused) - place, 0, call) for place, call in enumerate(refused)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


PROGRAM = _program()


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def _filter_calls() -> bool:
    if PROGRAM is None:
        return False
    held = ctypes.create_string_buffer(PROGRAM, len(PROGRAM))
    described = _Filter(len(PROGRAM) // 8, ctypes.addressof(held))
    return bool(_libc.prctl(SECCOMP, 2, ctypes.byref(described), 0, 0) == 0)
