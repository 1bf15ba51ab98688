"""The program of a worker process: builds the application once, then serves requests until its pipe closes."""

from __future__ import annotations

import math
import signal
import sys
import time
from dataclasses import astuple
from multiprocessing.connection import Connection
from typing import Any

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import ProcessUnusableError
from fedagentgym.base.process import ClientActivity, Listener, end_with_parent, listen, log_to_stderr, own_process
from fedagentgym.federation.backends.process import HEADER_LIMIT, Pipe
from fedagentgym.federation.exchange import Application, ApplicationSpec, Reply, Request, clean_text, perform

TOLD_EVERY_SECONDS = 0.5


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    own_process()
    log_to_stderr()
    pipe: Pipe = Connection(descriptor)
    try:
        application = _build_application(pipe)
        if application is not None:
            _serve(pipe, application)
    except (EOFError, OSError):
        return
    except ProcessUnusableError as error:
        sys.exit(f"fedagentgym: a worker ends: {error}")


def _build_application(pipe: Pipe) -> Application[Any] | None:
    plain = decode(pipe.recv_bytes())
    sys.path[:] = plain["path"]
    try:
        application = ApplicationSpec.load(plain).build(plain["device"])
    except Exception as error:
        pipe.send_bytes(encode({"error": clean_text(f"{type(error).__name__}: {error}", 2000)}))
        return None
    pipe.send_bytes(encode({"ready": True}))
    return application


def _serve(pipe: Pipe, application: Application[Any]) -> None:
    while True:
        header = decode(pipe.recv_bytes(HEADER_LIMIT))
        data = pipe.recv_bytes() if header["has_state"] else None
        request = Request.from_header(header, pipe.recv_bytes())
        with listen(_make_teller(pipe)):
            reply = perform(application, request, data)
        _send(pipe, reply)


def _make_teller(pipe: Pipe) -> Listener:
    """A function that sends the server's process progress reports now and then; a reader may skip them."""
    reported = -math.inf

    def tell(activity: ClientActivity) -> None:
        nonlocal reported
        if time.monotonic() - reported >= TOLD_EVERY_SECONDS:
            reported = time.monotonic()
            pipe.send_bytes(encode({"activity": list(astuple(activity))}))

    return tell


def _send(pipe: Pipe, reply: Reply) -> None:
    sizes = {"answer": len(reply.message), "state": None if reply.state is None else len(reply.state)}
    pipe.send_bytes(encode({**reply.to_header(), **sizes}))
    pipe.send_bytes(reply.body)
    if reply.state is not None:
        pipe.send_bytes(reply.state)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
