"""The protections around a program, by name: the purpose of each, and whether it is active."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
"""What a kernel may lack, and what a test may therefore leave out."""


class Protection(NamedTuple):
    """Whether one protection is up, and why, or why not."""

    name: str
    up: bool
    reason: str


def find_unacceptable(protections: Iterable[Protection], administrator: bool) -> list[Protection]:
    """Those that are down and without which no program may run: an administrator's programs need another user."""
    return [one for one in protections if not one.up and one.name == USER and administrator]


def list_names_up(protections: Iterable[Protection]) -> tuple[str, ...]:
    return tuple(one.name for one in protections if one.up)
