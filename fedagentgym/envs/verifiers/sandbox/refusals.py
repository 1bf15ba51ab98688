"""Clear errors for what a program may not do here. The kernel refuses it anyway, with less clear errors."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

NO_PROCESSES = "programs may not start processes here; use threads"
NO_PROGRAMS = "programs may not start other programs here"

_REFUSED = {
    NO_PROCESSES: (("posix", "fork"), ("posix", "forkpty"), ("_multiprocessing", "SemLock")),
    NO_PROGRAMS: (
        *(("posix", name) for name in ("execv", "execve", "posix_spawn", "posix_spawnp", "system")),
        ("_posixsubprocess", "fork_exec"),
    ),
}


def explain_refusals() -> None:
    """Replace functions that would be refused by ones with a clear error."""
    for sentence, names in _REFUSED.items():
        for module, name in names:
            for holder in (sys.modules.get(module), os if module == "posix" else None):
                if holder is not None and hasattr(holder, name):
                    setattr(holder, name, _make_refusal(sentence))
    subprocess = sys.modules.get("subprocess")
    if subprocess is not None:
        vars(subprocess)["_fork_exec"] = _make_refusal(NO_PROGRAMS)


def _make_refusal(sentence: str) -> object:
    class Refused:
        SEM_VALUE_MAX = 1

        def __new__(cls, *_given: object, **_named: object) -> NoReturn:
            raise PermissionError(errno.EPERM, sentence)

    return Refused
