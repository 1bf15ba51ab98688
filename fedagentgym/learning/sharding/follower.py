"""The program of a following rank: it executes rank 0's commands on its own part, until rank 0 ends."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import describe_error
from fedagentgym.base.interruption import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_ERROR = 1000


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        start = decode(pipe.recv_bytes())
        sys.path[:] = start["path"]
        _follow(pipe, start)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0
    except BaseException as error:
        code = 1
        _tell_error(pipe, error)
    os._exit(code)  # skip the interpreter's shutdown, which could wait for ranks that have ended


def _tell_error(pipe: Connection[Any, Any], error: BaseException) -> None:
    try:
        pipe.send_bytes(encode({"error": describe_error(error)[:LONGEST_ERROR]}))
    except OSError:
        sys.stderr.write(f"fedagentgym: {describe_error(error)}\n")


def _follow(pipe: Connection[Any, Any], start: Mapping[str, Any]) -> None:
    import torch

    from fedagentgym.learning.sharding.commands import Follow
    from fedagentgym.learning.sharding.ranks import join_group

    torch.set_num_threads(start["threads"])
    pipe.send_bytes(encode({"done": True}))
    mesh = join_group(start["rank"], start["devices"], start["meeting"])
    follow = Follow(mesh, torch.device(start["devices"][start["rank"]]))
    pipe.send_bytes(encode({"done": True}))
    while True:
        follow.run(decode(pipe.recv_bytes()))
        pipe.send_bytes(encode({"done": True}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
