"""A process that guards a program: `python keeper.py DESCRIPTOR COMMAND ...`. DESCRIPTOR is a pipe that the parent holds open.

A third-party program does not notice that its parent has ended, and a killed parent cannot end the program. The keeper can: when
the pipe closes, it kills the program's whole process group. When the program ends, the keeper ends with the same status. It
passes SIGTERM on, so that the program can shut down cleanly. This file imports nothing of the package, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(descriptor: int, command: list[str]) -> int:
    """Start the command in a process group of its own, and return its status."""
    os.set_inheritable(descriptor, False)
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127

    def watch() -> None:
        os.read(descriptor, 1)  # nothing is ever written to the pipe: the read returns when the other end is closed
        kill_group(program.pid)

    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    status = program.wait()
    kill_group(program.pid)  # processes that the program has left behind
    return status if status >= 0 else 128 - status


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
