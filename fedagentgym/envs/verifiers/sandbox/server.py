"""A warm interpreter that forks one confined child per program. Run as a script; serves one run at a time.

A run arrives on the socket that is the server's standard input: a frame of JSON with its mode and limits, and descriptors of
the program (source, tests), its standard input, output and error, and the sockets that the child may use. The server forks a
child, which reads its program, confines itself and runs it. The server watches the clock, the child's end, the readers of its
output, and the server's own parent. Then it kills the whole process group with its orphans, removes the folder of the run, and
sends the outcome.

The server never holds a program, its input, its output or an expected answer, so a child finds nothing of earlier runs in the
memory that it inherits.

Modes: `script` (run a program with its input), `serve` (load a program, then answer calls over a socket), `grade` (run a
test that calls a program served by another child; its verdict goes out over a second socket).
"""
# ruff: noqa: E402, PTH100, PTH120, SIM905

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import types
from typing import Any

PACKAGE = ("fedagentgym", "fedagentgym.envs", "fedagentgym.envs.verifiers", "fedagentgym.envs.verifiers.sandbox")
LOADED_AHEAD = """abc array ast bisect builtins bz2 calendar cmath codecs collections collections.abc contextlib copy
    ctypes dataclasses datetime decimal difflib enum fractions functools graphlib hashlib heapq inspect io itertools json
    keyword linecache locale lzma math numbers operator pprint queue random re statistics string struct subprocess sys
    tempfile textwrap threading time timeit tokenize traceback types typing unicodedata uuid zlib _multiprocessing""".split()


if __name__ == "__main__":
    # this folder's modules are imported by their full names without importing the packages above them
    for _name in PACKAGE:
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = []
    sys.modules[PACKAGE[-1]].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from fedagentgym.envs.verifiers.sandbox import kernel, messages, view
from fedagentgym.envs.verifiers.sandbox.confine import Prepared, Protection, confine, list_names_up, prepare
from fedagentgym.envs.verifiers.sandbox.programs import MAX_DESCRIPTORS, become
from fedagentgym.envs.verifiers.sandbox.runs import Children, Folder, make_folder, remove_folder, sweep_folders, watch

_NO_LOCK = -1


class Host:
    """The shared data of this server's runs."""

    def __init__(self, control: socket.socket, prepared: Prepared, children: Children, base: str) -> None:
        self.control, self.prepared, self.children, self.base = control, prepared, children, base
        self.up: tuple[str, ...] = ()

    def serve(self, run: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Fork the child of a run and watch it to its end. The descriptors are those of `become`."""
        folder = self.open_folder()
        run["folder"], run["protections"] = folder.path, self.up
        pid = kernel.fork_into(self.prepared.namespaces)
        if pid == 0:
            become(run, self.prepared, descriptors)
        program, given, out, err, *handles = descriptors
        for descriptor in (program, given, *handles):
            os.close(descriptor)
        outcome = watch(self.control, pid, (out, err), run["seconds"], self.children)
        self.close_folder(folder)
        if outcome["status"] == "abandoned":
            os._exit(0)
        return outcome

    def open_folder(self) -> Folder:
        """An empty folder that belongs to the user of the run."""
        user = self.prepared.user
        if self.prepared.private_files:
            owner, group = (os.geteuid(), os.getegid()) if user is None else (user, user)
            return Folder(view.mount_run_folder(owner, group), _NO_LOCK)
        folder = make_folder(self.base)
        if user is not None:
            os.chown(folder.path, user, user)
        return folder

    def close_folder(self, folder: Folder) -> None:
        if folder.lock == _NO_LOCK:
            view.unmount_run_folder()
        else:
            remove_folder(folder)

    def find_protections(self) -> list[Protection]:
        """The active and missing protections around a program, found by activating them around a child."""
        folder = self.open_folder()
        ours, theirs = os.pipe()
        pid = kernel.fork_into(self.prepared.namespaces)
        if pid == 0:
            try:
                os.write(theirs, json.dumps(confine(folder.path, 5, 256 << 20, self.prepared)).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        received = os.read(ours, 65536)
        os.close(ours)
        os.waitpid(pid, 0)
        self.close_folder(folder)
        found = [Protection(*one) for one in json.loads(received)]
        self.up = list_names_up(found)
        return found


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED_AHEAD:
        with contextlib.suppress(ImportError):
            __import__(name)
    if kernel.LINUX:
        kernel.set_process_option(kernel.CHILD_SUBREAPER, 1)
    base, tempfile.tempdir = tempfile.gettempdir(), None
    sweep_folders(base)
    children = Children()
    host = Host(control, prepare(sys.argv[1:], base), children, base)
    messages.send(control, json.dumps(host.find_protections()).encode())
    for name in PACKAGE:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    while True:
        try:
            head, handles, _, _ = socket.recv_fds(control, messages.HEADER, MAX_DESCRIPTORS)
            if len(head) < messages.HEADER:
                head += messages.receive_exactly(control, messages.HEADER - len(head)) if head else b""
            if not head:
                return
            run = json.loads(messages.receive_exactly(control, int.from_bytes(head, "big")))
        except (EOFError, OSError):
            return
        messages.send(control, json.dumps(host.serve(run, list(handles))).encode())


if __name__ == "__main__":
    main()
