"""Calls of the Linux kernel that Python does not offer. On other systems `LINUX` is false and nothing here is called."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PRIVATE_MOUNTS, NEW_IPC, NEW_HOST_NAME, NEW_USER, NEW_PROCESSES, NEW_NETWORK = (
    0x00020000,
    0x08000000,
    0x04000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, CHILD_SUBREAPER, SECCOMP = 38, 1, 36, 22
_CHILD_SIGNAL = 17
_CAPABILITY_VERSION = 0x20080522
_CLONE = {"x86_64": 56, "aarch64": 220}

try:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.syscall.restype = ctypes.c_long
    LINUX = sys.platform == "linux" and sys.maxsize > 1 << 32
except (OSError, AttributeError):
    LINUX = False


def call(number: int, *arguments: int | bytes | None) -> int:
    """A system call by its number; OSError when it fails."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *given), f"system call {number}")


def set_process_option(option: int, value: int, pointer: object = 0) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0), f"prctl {option}")


def leave_namespaces(flags: int) -> None:
    """Continue in new namespaces of these kinds."""
    _check(_libc.unshare(flags), "unshare")


def mount(kind: str, target: str, flags: int, options: str) -> None:
    done = _libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(done, f"mount {kind}")


def unmount(target: str, flags: int) -> None:
    _check(_libc.umount2(target.encode(), flags), "umount")


def drop_capabilities() -> None:
    """Give up every right of an administrator, permanently if no new privileges can be gained."""
    _check(_libc.capset(struct.pack("<II", _CAPABILITY_VERSION, 0), bytes(24)), "capset")


def attach_filter(program: bytes) -> None:
    """Filter all further system calls of this process."""
    held = ctypes.create_string_buffer(program, len(program))
    described = _Filter(len(program) // 8, ctypes.addressof(held))
    set_process_option(SECCOMP, 2, ctypes.byref(described))


def fork_into(namespaces: int) -> int:
    """`os.fork` whose child is in new namespaces; the child is the first process of a new process namespace."""
    number = _CLONE.get(os.uname().machine)
    if not namespaces or number is None:
        return os.fork()
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    # the interpreter's lock stays held, as a fork needs it
    pid = int(_held.syscall(*(ctypes.c_long(one) for one in (number, namespaces | _CHILD_SIGNAL, 0, 0, 0, 0))))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    return _check(pid, "clone")


if LINUX:
    _held = ctypes.PyDLL(None, use_errno=True)
    _held.syscall.restype = ctypes.c_long


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
