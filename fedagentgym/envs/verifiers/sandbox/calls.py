"""The list of system calls that a program may make, some with certain arguments only. x86-64; 64-bit calls only.

All other calls are refused, also new ones of future kernels. `clone3` is reported as absent, so that the C library falls
back on `clone`, whose flags can be checked. If the files are not private (`view`), the calls that report or change
metadata by path are refused too, as are `fchmod` and `fstatfs`, because Landlock does not cover them.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

MACHINE = "x86_64"
_ARCHITECTURE = 0xC000003E


def _read_table(text: str) -> dict[str, int]:
    """Names and numbers of system calls, as written below."""
    return {name: int(number) for name, number in (pair.split() for pair in text.split(","))}


_ALWAYS = _read_table(
    """
    read 0, write 1, close 3, fstat 5, poll 7, lseek 8, mmap 9, mprotect 10, munmap 11, brk 12, rt_sigaction 13,
    rt_sigprocmask 14, rt_sigreturn 15, pread64 17, pwrite64 18, readv 19, writev 20, pipe 22, select 23,
    sched_yield 24, mremap 25, msync 26, madvise 28, dup 32, dup2 33, pause 34, nanosleep 35, getitimer 36, alarm 37,
    setitimer 38, getpid 39, sendfile 40, recvfrom 45, shutdown 48, getsockname 51, getpeername 52, exit 60, wait4 61,
    uname 63, flock 73, fsync 74, fdatasync 75, ftruncate 77, getdents 78, getcwd 79, chdir 80, fchdir 81, rename 82,
    unlink 87, umask 95, gettimeofday 96, getrlimit 97, getrusage 98, sysinfo 99, times 100, getuid 102, getgid 104,
    geteuid 107, getegid 108, getppid 110, getpgrp 111, getgroups 115, getresuid 118, getresgid 120,
    rt_sigpending 127, rt_sigtimedwait 128, rt_sigsuspend 130, sigaltstack 131, gettid 186, time 201, futex 202,
    epoll_create 213, getdents64 217, set_tid_address 218, restart_syscall 219, fadvise64 221, exit_group 231,
    epoll_wait 232, epoll_ctl 233, unlinkat 263, renameat 264, pselect6 270, ppoll 271, set_robust_list 273,
    epoll_pwait 281, eventfd 284, fallocate 285, eventfd2 290, epoll_create1 291, dup3 292, pipe2 293, preadv 295,
    pwritev 296, getcpu 309, renameat2 316, getrandom 318, copy_file_range 326, preadv2 327, pwritev2 328, rseq 334,
    close_range 436
    """
)
_IN_PRIVATE_FILES = _read_table(
    """
    stat 4, lstat 6, access 21, truncate 76, readlink 89, chmod 90, fchmod 91, utime 132, statfs 137, fstatfs 138,
    utimes 235, futimesat 261, newfstatat 262, readlinkat 267, fchmodat 268, faccessat 269, utimensat 280, statx 332,
    faccessat2 439
    """
)
_NO_SUCH_THING = _read_table(
    """
    getxattr 191, lgetxattr 192, fgetxattr 193, listxattr 194, llistxattr 195, flistxattr 196
    """
)
_ABSENT = {"clone3": 435}

_OPEN, _IOCTL, _SENDTO, _SOCKETPAIR, _CLONE, _FCNTL, _OPENAT = 2, 16, 44, 53, 56, 72, 257
_PRCTL, _SCHED_GETAFFINITY, _CLOCK_GETTIME, _CLOCK_GETRES, _CLOCK_NANOSLEEP = 157, 204, 228, 229, 230
_NEWFSTATAT, _PRLIMIT = 262, 302
_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Allowed requests of `ioctl`: the attributes and size of a terminal, the readable bytes, blocking mode, close-on-exec."""
_COMMANDS = (0, 1, 2, 3, 5, 6, 7, 1030, 1032)
"""Allowed commands of `fcntl`: duplicate, flags of the descriptor, flags of the file, locks, the size of a pipe."""
_SET_FLAGS, _ASYNCHRONOUS, _PATH_ONLY = 4, 0x2000, 0x200000
_THREAD, _THREAD_FLAGS = 0x10000, 0x7D0F00
_UNIX, _STREAM, _SOCKET_KIND = 1, 1, 0xF
_NAME_OF_THREAD = (15, 16)
_CLOCKS = 12
_EMPTY_PATH = 0x1000

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

Instruction = tuple[int, int, int, int]


def why_impossible() -> str | None:
    """The reason why the list cannot be used on this machine, or None."""
    machine = os.uname().machine
    if machine != MACHINE or sys.maxsize < 1 << 32:
        return f"the list of system calls is for {MACHINE}, this machine is {machine}"
    return None


def compile_filter(private_files: bool, empty_paths: bool) -> bytes:
    """The list of allowed system calls as a program for the kernel.

    `empty_paths` is for C libraries that ask for the metadata of an open file by an empty path. The kernel's filters
    cannot see that the path is empty, so with such a library a program that calls the kernel directly can learn metadata.
    """
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURE),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    allowed = {**_ALWAYS, **(_IN_PRIVATE_FILES if private_files else {})}
    for number in allowed.values():
        code += _when(number, [(_RETURN, 0, 0, _ALLOW)])
    # these are allowed with some arguments only
    by_arguments: list[tuple[int, list[Instruction]]] = [
        (_OPEN, _without_bits(1, _PATH_ONLY | _ASYNCHRONOUS)),
        (_OPENAT, _without_bits(2, _PATH_ONLY | _ASYNCHRONOUS)),
        (_IOCTL, _one_of(1, _REQUESTS)),
        (_FCNTL, [_load(1), (_EQUAL, 0, 4, _SET_FLAGS), *_without_bits(2, _ASYNCHRONOUS), *_one_of(1, _COMMANDS)]),
        (_SENDTO, _zero(4)),
        (
            _SOCKETPAIR,
            [_load(0), (_EQUAL, 1, 0, _UNIX), _refuse(), _load(1), (_AND, 0, 0, _SOCKET_KIND), *_equal(_STREAM)],
        ),
        (_CLONE, [_load(0), (_ANY_BIT, 1, 0, _THREAD), _refuse(), *_without_bits(0, 0xFFFFFFFF & ~_THREAD_FLAGS)]),
        (_PRCTL, _one_of(0, _NAME_OF_THREAD)),
        (_SCHED_GETAFFINITY, _zero(0)),
        (_PRLIMIT, _zero(0)),
    ]
    below: list[Instruction] = [_load(0), (_AT_LEAST, 0, 1, _CLOCKS), _refuse(), (_RETURN, 0, 0, _ALLOW)]
    by_arguments += [(clock, below) for clock in (_CLOCK_GETTIME, _CLOCK_GETRES, _CLOCK_NANOSLEEP)]
    if empty_paths and not private_files:
        # glibc 2.33 to 2.38 calls it for an open file with an empty path and this flag
        by_arguments.append((_NEWFSTATAT, [_load(3), *_equal(_EMPTY_PATH)]))
    for number, body in by_arguments:
        code += _when(number, body)
    for number in _NO_SUCH_THING.values():
        code += _when(number, [_refuse(errno.EOPNOTSUPP)])
    for number in _ABSENT.values():
        code += _when(number, [_refuse(errno.ENOSYS)])
    code.append(_refuse())
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    """Instructions that run a body, which returns, for one system call; for all others, the call's number stays loaded."""
    return [(_EQUAL, 0, len(body), number), *body]


def _load(place: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * place + (4 if high else 0))


def _refuse(error: int = errno.EPERM) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _equal(value: int) -> list[Instruction]:
    return [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW), _refuse()]


def _one_of(place: int, values: tuple[int, ...]) -> list[Instruction]:
    tests: list[Instruction] = [(_EQUAL, len(values) - number, 0, value) for number, value in enumerate(values)]
    return [_load(place), *tests, _refuse(), (_RETURN, 0, 0, _ALLOW)]


def _without_bits(place: int, bits: int) -> list[Instruction]:
    return [_load(place), (_ANY_BIT, 0, 1, bits), _refuse(), (_RETURN, 0, 0, _ALLOW)]


def _zero(place: int) -> list[Instruction]:
    return [_load(place), (_EQUAL, 1, 0, 0), _refuse(), _load(place, high=True), *_equal(0)]
