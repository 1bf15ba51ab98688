"""The protections around a program, with their names and purposes. `prepare` activates some of them once for the server;
`confine` activates the others around each program, permanently.

Each protection is tried; one that the system lacks is reported with its reason, and the others are activated all the
same.
"""
# ruff: noqa: PTH123

from __future__ import annotations

import os
import resource
import socket
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from fedagentgym.envs.verifiers.sandbox import calls, kernel, view

LIMITS, PRIVILEGES, CAPABILITIES, USER = "limits", "no new privileges", "no capabilities", "other user"
USER_SPACE, PROCESS_SPACE, NETWORK_SPACE = "user namespace", "process namespace", "network namespace"
FILES, ACCESS, CALLS = "private files", "file access", "system calls"

PURPOSES: Mapping[str, str] = {
    LIMITS: "limits on memory, processor time, file sizes and open files",
    PRIVILEGES: "no program can be started with more rights",
    CAPABILITIES: "none of the rights of an administrator",
    USER: "a user that owns nothing else on the machine",
    USER_SPACE: "a user namespace for each run",
    PROCESS_SPACE: "a process namespace for each run: other processes cannot be named, and no process stays",
    NETWORK_SPACE: "a network without connections, and no host name, shared memory or message queues of the machine",
    FILES: "a root folder that holds the standard library, read-only, and the folder of the run, and nothing else",
    ACCESS: "Landlock: no file but the standard library and the folder of the run; no signals to others",
    CALLS: "seccomp: a list of the system calls that are allowed",
}

REMOVABLE = (CAPABILITIES, USER, USER_SPACE, PROCESS_SPACE, NETWORK_SPACE, FILES, ACCESS, CALLS)
"""Protections that a kernel may lack, and that a test may therefore leave out."""


class Protection(NamedTuple):
    """One protection: its name, whether it is up, and why or why not."""

    name: str
    up: bool
    reason: str


def list_names_up(protections: Iterable[Protection]) -> tuple[str, ...]:
    return tuple(one.name for one in protections if one.up)


NOBODY, OWN_USERS = 65534, 2_000_000_000
MAX_FILE_SIZE = 4 << 20
MAX_TASKS = 256
KILL_SIGNAL = 9
_END_OTHERS = 5
REMOVED = "left out on request"
NO_LINUX = "this system is not 64-bit Linux"
CPU_TIME_GRACE = 1
STAT_BY_EMPTY_PATH = "with this C library a program that calls the kernel directly can learn the sizes of other files"


class Prepared(NamedTuple):
    """The data for `confine`: the user to become, the namespaces to fork into, and which protections are active already."""

    user: int | None
    namespaces: int
    mapped: int
    filter: bytes | None
    private_files: bool
    left_out: frozenset[str]
    known: tuple[Protection, ...]


def prepare(left_out: Collection[str], base: str) -> Prepared:
    """Activate the protections that last as long as the server, and find those that can be activated around each program.

    `base` is a folder over which the server's private root folder can be mounted.
    """
    left = frozenset(left_out)
    try:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 256 << 20
    users, why_none = _find_users()
    if not kernel.LINUX:
        down = [Protection(name, False, NO_LINUX) for name in (USER_SPACE, PROCESS_SPACE, NETWORK_SPACE, FILES)]
        user, outcome = _choose_user(users, why_none, left, base)
        return Prepared(user, 0, mapped, None, False, left, (*down, outcome))
    _enter_user_namespace()

    def leave_network() -> None:
        kernel.leave_namespaces(kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_HOST_NAME)
        socket.sethostname("sandbox")

    def leave() -> None:
        kernel.leave_namespaces(kernel.PRIVATE_MOUNTS)
        view.build_root(base)
        view.mount_run_folder(os.geteuid(), os.getegid())
        view.unmount_run_folder()

    def leave_files() -> None:
        _try_in_a_child(leave)
        leave()

    network = _attempt(NETWORK_SPACE, left, leave_network, "an empty network")
    files = _attempt(FILES, left, leave_files, "a root folder in memory")
    user, outcome = _choose_user(users, why_none, left, None if files.up else base)
    namespaces, spaces = _choose_namespaces(left)
    program = None
    if calls.why_impossible() is None and CALLS not in left:

        def stat_an_open_file() -> None:
            kernel.set_process_option(kernel.NO_NEW_PRIVILEGES, 1)
            kernel.attach_filter(calls.compile_filter(False, False))
            os.fstat(0)

        # does this C library read the metadata of an open file by an empty path?
        empty_paths = _in_a_child(stat_an_open_file) is not None
        program = calls.compile_filter(files.up, empty_paths)
        if empty_paths and not files.up:
            files = files._replace(reason=f"{files.reason}; {STAT_BY_EMPTY_PATH}")
    return Prepared(user, namespaces, mapped, program, files.up, left, (network, files, outcome, *spaces))


def confine(folder: str, seconds: float, memory: int, prepared: Prepared) -> list[Protection]:
    """Activate every protection around this process, permanently. Returns all protections, up or down."""
    _limit(seconds, prepared.mapped + memory)
    found = [Protection(LIMITS, True, "limits of the process"), *prepared.known]
    if prepared.user is not None:
        os.setgroups([])
        os.setresgid(prepared.user, prepared.user, prepared.user)
        os.setresuid(prepared.user, prepared.user, prepared.user)
    if not kernel.LINUX:
        found += [Protection(name, False, NO_LINUX) for name in (PRIVILEGES, CAPABILITIES, ACCESS, CALLS)]
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return found
    # the number of threads is limited if they can be counted apart from the user's other threads; otherwise a program may start
    # none, unless its system calls are filtered
    apart = prepared.user is not None or bool(prepared.namespaces & kernel.NEW_USER)
    if apart or prepared.filter is None:
        most = MAX_TASKS if apart else 0
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    left = prepared.left_out
    # a user namespace of the run, unless its fork made it already
    if not prepared.namespaces & kernel.NEW_USER:
        for place, one in enumerate(found):
            if one.name == USER_SPACE and one.up:
                found[place] = _attempt(USER_SPACE, (), _enter_user_space, "one for each run")
    found.append(_attempt(PRIVILEGES, (), lambda: kernel.set_process_option(kernel.NO_NEW_PRIVILEGES, 1), "always"))
    found.append(_attempt(CAPABILITIES, left, kernel.drop_capabilities, "all were given up"))
    kernel.set_process_option(kernel.PARENT_DEATH_SIGNAL, KILL_SIGNAL)
    found.append(_attempt(ACCESS, left, lambda: view.restrict_files(folder), "Landlock version {}"))
    if prepared.filter is None:
        return [*found, Protection(CALLS, False, REMOVED if CALLS in left else calls.why_impossible() or "")]
    if not prepared.private_files:
        view.replace_stat()
    program = prepared.filter
    found.append(_attempt(CALLS, left, lambda: kernel.attach_filter(program), "a list of allowed calls"))
    return found


def _attempt(name: str, left_out: Collection[str], action: Callable[[], object], done: str) -> Protection:
    if name in left_out:
        return Protection(name, False, REMOVED)
    try:
        return Protection(name, True, done.format(action()))
    except (OSError, ValueError) as error:
        return Protection(name, False, f"the system does not permit it ({_reason_of(error)})")


def _reason_of(error: Exception) -> str:
    return str(error.args[-1]) if error.args else type(error).__name__


# ---- once for the server ---------------------------------------------------------------------------------------------


def _find_users() -> tuple[list[int], str]:
    """Return the users that programs may run as, and the reason if there are none.

    These users own no files. The first has no other processes; `nobody`, which may have some, comes last.
    """
    if os.geteuid() != 0:
        return [], f"only root can change the user; programs run as user {os.geteuid()}"
    why_none = "this system cannot change the user"
    if not hasattr(os, "setresuid"):
        return [], why_none
    try:
        with open("/proc/self/uid_map") as file:
            ranges = [tuple(map(int, line.split())) for line in file]
    except OSError:
        users = [NOBODY]
    else:
        wanted = (OWN_USERS + os.getpid(), 60_000 + os.getpid() % 5_000, NOBODY)
        users = [user for user in wanted if any(first <= user < first + count for first, _, count in ranges)]
    if users and kernel.LINUX:
        # a container can take the right to end other users' processes (CAP_KILL) from root
        with open("/proc/self/status") as file:
            rights = next(line.split()[1] for line in file if line.startswith("CapEff"))
        if not int(rights, 16) >> _END_OTHERS & 1:
            return [], "root may not end the processes of other users here"
    return users, why_none


def _choose_user(
    users: list[int], why_none: str, left_out: Collection[str], base: str | None
) -> tuple[int | None, Protection]:
    """The user that programs run as: the first to which a process can change and who can then enter `base`, the place of the
    folders of runs, and read the standard library."""
    if USER in left_out:
        return None, Protection(USER, False, REMOVED)

    def become_and_read(user: int) -> None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if base is not None:
            try:
                os.chdir(base)
            except OSError as error:
                raise OSError(0, f"another user cannot enter {base} ({error.strerror})") from None
        for folder in view.READABLE:
            try:
                os.listdir(folder)
            except OSError as error:
                raise OSError(0, f"another user cannot read {folder} ({error.strerror})") from None
        os.close(os.open(os.__file__, os.O_RDONLY))

    for user in users:
        problem = _in_a_child(partial(become_and_read, user))
        if problem is None:
            return user, Protection(USER, True, f"user {user}")
        why_none = problem
    return None, Protection(USER, False, why_none)


def _enter_user_namespace() -> None:
    """Enter a user namespace, in which a server that is not root can make other namespaces; do nothing where it is impossible."""
    if os.geteuid() == 0:
        return
    user, group = os.geteuid(), os.getegid()

    def enter() -> None:
        kernel.leave_namespaces(kernel.NEW_USER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    if _in_a_child(enter) is None:
        enter()


def _choose_namespaces(left_out: Collection[str]) -> tuple[int, list[Protection]]:
    """The namespaces into which each run is forked, and the state of the process and user namespaces, which are tried here."""
    user_flag = 0 if os.geteuid() == 0 or USER_SPACE in left_out else kernel.NEW_USER

    def fork() -> None:
        pid = kernel.fork_into(user_flag | kernel.NEW_PROCESSES)
        if pid == 0:
            os._exit(0 if os.getpid() == 1 else 1)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError(0, "a process in a namespace of its own ended at once")

    processes = _attempt(PROCESS_SPACE, left_out, fork, "one for each run")
    flags = kernel.NEW_PROCESSES if processes.up else 0
    users = _attempt(USER_SPACE, left_out, lambda: _try_in_a_child(_enter_user_space), "one for each run")
    if users.up and flags:
        flags |= user_flag
    return flags, [processes, users]


def _enter_user_space() -> None:
    kernel.leave_namespaces(kernel.NEW_USER)


def _try_in_a_child(action: Callable[[], None]) -> None:
    """Perform an action in a child process only; OSError if it fails there."""
    problem = _in_a_child(action)
    if problem is not None:
        raise OSError(0, problem)


def _in_a_child(action: Callable[[], None]) -> str | None:
    """The error of an action in a child process, or None. An action that fails half-way does not change this process."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except OSError as error:
            os.write(theirs, (_reason_of(error) or "it failed").encode()[:500])
        except BaseException:
            os.write(theirs, traceback.format_exc(limit=1).encode()[-500:])
        finally:
            os._exit(1)
    os.close(theirs)
    outcome = os.read(ours, 500).decode("utf-8", "replace")
    os.close(ours)
    return None if os.waitpid(pid, 0)[1] == 0 else outcome or "the attempt ended without a message"


# ---- around each program ---------------------------------------------------------------------------------------------


def _limit(seconds: float, memory: int) -> None:
    whole = int(seconds) + CPU_TIME_GRACE
    wanted = {
        "RLIMIT_AS": memory,
        "RLIMIT_CPU": whole,
        "RLIMIT_FSIZE": MAX_FILE_SIZE,
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
