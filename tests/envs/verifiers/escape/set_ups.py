"""Set-ups in which programs are run: as root, as a plain user, and with protections left out.

A set-up is a process of its own (`python set_ups.py USER LEFT_OUT...`): it reads programs as lines of JSON, runs each and
answers with how it ended. With CONTAINER among what is left out, the kernel itself refuses namespaces and mounts.
There, and for a plain user, others have to be able to read the interpreter and this package, so a private mount namespace shows
their folders under new folders when the real ones are closed.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

PLAIN_USER = 12_345
ROOT = Path(__file__).resolve().parents[4]
CONTAINER = "in a container"


def is_open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def show_to_all(paths: list[Path]) -> None:
    """Let every user reach these folders, in this process and its children only. All are copied before any closed folder above
    them is covered, since they may lie in one another or under the same one."""
    from fedagentgym.envs.verifiers.sandbox import kernel, view

    outermost = [path for path in paths if not any(other in path.parents for other in paths)]
    closed = {
        next(folder for folder in reversed((path, *path.parents)) if not folder.stat().st_mode & stat.S_IXOTH)
        for path in outermost
    }
    kernel.leave_namespaces(kernel.PRIVATE_MOUNTS)
    kernel.mount("none", "/", (1 << 14) | (1 << 18), "")
    trees = [(view.copy_tree(str(path)), path) for path in outermost]
    for folder in closed:
        kernel.mount("tmpfs", str(folder), 0, "mode=755,size=1m")
    for tree, path in trees:
        view.attach_tree(tree, str(path), folder=True)


def enter_container() -> None:
    """Forbid this process and its children what usual containers forbid: new namespaces and mounts."""
    from fedagentgym.envs.verifiers.sandbox import kernel

    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x00050001, 0x00050026
    code = [(load, 0, 0, 0), (equal, 0, 1, 435), (give, 0, 0, absent)]
    code += [
        line
        for call in (155, 165, 166, 272, 308, 428, 429, 442)
        for line in ((equal, 0, 1, call), (give, 0, 0, refuse))
    ]
    code += [
        (equal, 0, 3, 56),
        (load, 0, 0, 16),
        (any_bit, 0, 1, 0x7E020000),
        (give, 0, 0, refuse),
        (give, 0, 0, allow),
    ]
    kernel.set_process_option(kernel.NO_NEW_PRIVILEGES, 1)
    kernel.attach_filter(b"".join(struct.pack("<HBBI", *one) for one in code))


def become_plain(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


class SetUp:
    """One set-up, for as long as it is asked."""

    def __init__(self, user: int | None, left_out: list[str], folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(user or ""), *left_out],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "FEDAGENTGYM_CACHE": str(folder)},
        )
        self.protections: dict[str, tuple[bool, str]] = {}

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the set-up ended"
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


def main() -> None:
    from fedagentgym.envs.verifiers.code import Checks, CodeVerifier
    from fedagentgym.envs.verifiers.sandbox.pool import Limits

    user, left_out = sys.argv[1], [name for name in sys.argv[2:] if name != CONTAINER]
    if user or CONTAINER in sys.argv:
        needed = {Path(folder).resolve() for folder in (sys.base_prefix, sys.prefix, ROOT)}
        if hidden := sorted(path for path in needed if not is_open_to_all(path)):
            show_to_all(hidden)
    if user:
        become_plain(int(user))
    if CONTAINER in sys.argv:
        enter_container()
    verifier = CodeVerifier(workers=1, left_out=left_out, accept=["other user"])
    for line in sys.stdin:
        request = json.loads(line)
        limits = Limits(**request.get("limits", {}))
        if request["do"] == "protections":
            answer: Any = [list(one) for one in verifier.protections()]
        elif request["do"] == "run":
            answer = list(verifier.run(request["program"], request.get("input", ""), limits))
        elif request["do"] == "test":
            answer = list(verifier.verify(request["program"], Checks(**request["tests"]), limits))
        else:
            from fedagentgym.cli.doctor import examine_sandbox

            answer = examine_sandbox(left_out)
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer to whoever started this process
    verifier.close()


if __name__ == "__main__":
    main()
