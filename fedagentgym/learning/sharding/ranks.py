"""The ranks of this process: other processes, one for each further device, that follow what is done here.

This process is rank 0. It sends commands to the others over pipes, executes them itself, and waits until they are done; weights
and gradients go through a `torch.distributed` group. A rank that ends loses its parts of the weights, so nothing can continue:
the others are ended too, with one error. Followers end with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import OptionError, ProcessUnusableError, describe_error

LONGEST_WAIT = timedelta(minutes=30)
"""How long one rank waits for another within a single exchange."""
GRACE_SECONDS = 10.0
"""How long an exchange with a rank that has ended may take to fail by itself."""
_LOOK_SECONDS = 0.2
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def list_devices(first: torch.device, count: int) -> tuple[str, ...]:
    """The devices of all ranks, starting with the first one's.

    >>> list_devices(torch.device("cpu"), 2)
    ('cpu', 'cpu')
    """
    if first.type != "cuda":
        return (first.type,) * count
    start, there = first.index or 0, torch.cuda.device_count()
    if start + count > there:
        raise OptionError(
            f"learning.sharding.devices is {count}, but from cuda:{start} on there are {there - start} GPUs here"
        )
    return tuple(f"cuda:{start + rank}" for rank in range(count))


def join_group(rank: int, devices: Sequence[str], meeting: str) -> DeviceMesh:
    """Join the group that meets at a file; the others join at the same time."""
    kind = torch.device(devices[rank]).type
    if kind == "cuda":
        torch.cuda.set_device(torch.device(devices[rank]))
    with _speak_within_machine():
        torch.distributed.init_process_group(
            _BACKENDS[kind],
            store=FileStore(meeting, len(devices)),
            rank=rank,
            world_size=len(devices),
            timeout=LONGEST_WAIT,
        )
        return init_device_mesh(kind, (len(devices),))


@contextlib.contextmanager
def _speak_within_machine() -> Iterator[None]:
    """All ranks are on this machine: no traffic leaves it."""
    name, loopback = "GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo"
    before = os.environ.get(name)
    os.environ.setdefault(name, loopback)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


class Follower:
    """The process of another rank, and the pipe to it."""

    def __init__(self, rank: int, devices: Sequence[str], meeting: str) -> None:
        self.rank, self.device, self._ranks = rank, devices[rank], len(devices)
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.follower", str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self.pipe: Connection[Any, Any] = Connection(ours.detach())
        self.send(
            {
                "path": sys.path,
                "rank": rank,
                "devices": list(devices),
                "meeting": meeting,
                "threads": torch.get_num_threads(),
            }
        )

    def send(self, message: Mapping[str, Any]) -> None:
        self.pipe.send_bytes(encode(message))

    def wait_until_done(self) -> None:
        """Wait until the command is done; `EOFError` if the process ended before."""
        found = decode(self.pipe.recv_bytes())
        if "error" in found:
            raise ProcessUnusableError(f"{self} failed: {found['error']}")

    def describe_end(self, seconds: float) -> str | None:
        """How it ended, or with which error, if it ends within some time."""
        with contextlib.suppress(EOFError, OSError, ProcessUnusableError):
            while self.pipe.poll(seconds):
                found = decode(self.pipe.recv_bytes())
                if "error" in found:
                    return f"{self} failed: {found['error']}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(seconds)
            how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
            return f"{self} ended ({how})"
        return None

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __str__(self) -> str:
        return f"rank {self.rank} of {self._ranks} ({self.device}) of the sharded model"


class Ranks:
    """The group as rank 0 sees it. Use `open_ranks`: a process has one."""

    def __init__(self, devices: Sequence[str]) -> None:
        if torch.distributed.is_initialized():
            raise OptionError(
                "learning.sharding starts a torch.distributed group of its own, and this process is in one already"
            )
        self.devices = tuple(devices)
        self._folder = tempfile.TemporaryDirectory(prefix="fedagentgym-ranks-")
        self._inside = self._busy = False
        self._dropped: list[int] = []
        self._last = 0
        meeting = str(Path(self._folder.name) / "meeting")
        self._followers = [Follower(rank, devices, meeting) for rank in range(1, len(devices))]
        self._ended = False
        threading.Thread(target=self._watch, daemon=True).start()
        with self._break_off_together("the start"):
            for follower in self._followers:
                follower.wait_until_done()  # it is about to join, so waiting for it will end
            self.mesh = join_group(0, devices, meeting)
            for follower in self._followers:
                follower.wait_until_done()

    @property
    def is_usable(self) -> bool:
        return not self._ended

    def make_number(self) -> int:
        """A name for an object that all ranks have."""
        self._last += 1
        return self._last

    def drop(self, number: int) -> None:
        """Let the others drop an object with their next command."""
        self._dropped.append(number)

    @contextlib.contextmanager
    def together(self, do: str, number: int, **arguments: Any) -> Iterator[None]:
        """The other ranks execute the block too: `do` names the command, `number` the object. Within a common command there
        is no other, since its parts are common as well."""
        if self._inside:
            yield
            return
        if self._ended:
            raise ProcessUnusableError(
                "the ranks of the sharded model have ended: nothing can be computed with it any more"
            )
        command = {"do": do, "number": number, "arguments": arguments, "dropped": self._dropped}
        with self._break_off_together(do):
            self._dropped = []
            for follower in self._followers:
                follower.send(command)
            self._inside = True
            yield
            for follower in self._followers:
                follower.wait_until_done()

    @contextlib.contextmanager
    def _break_off_together(self, what: str) -> Iterator[None]:
        self._busy = True
        try:
            yield
        except BaseException as error:
            found = None if isinstance(error, KeyboardInterrupt) else self._find_reason(error)
            self.end()
            if found is None:
                raise
            raise ProcessUnusableError(f"{found}, during {what}; what it held of the weights is lost") from error
        finally:
            self._inside = self._busy = False

    def _find_reason(self, error: BaseException) -> str:
        """The rank that failed: another one, if one has; else this one."""
        if isinstance(error, ProcessUnusableError):
            return str(error)
        for follower in self._followers:
            if found := follower.describe_end(1.0):
                return found
        return f"rank 0 of {len(self.devices)} ({self.devices[0]}) of the sharded model failed: {describe_error(error)}"

    def _watch(self) -> None:
        """Abort an exchange that waits for a rank which has ended; if that does not help, end this process."""
        while not self._ended:
            time.sleep(_LOOK_SECONDS)
            gone = next((one for one in self._followers if one.process.poll() is not None), None)
            if gone is not None and self._busy:
                if self._gets_free(GRACE_SECONDS):
                    return
                with contextlib.suppress(Exception):
                    torch.distributed.distributed_c10d._abort_process_group()
                if not self._gets_free(GRACE_SECONDS):
                    sys.stderr.write(f"fedagentgym: {gone} ended, and the others cannot continue without it\n")
                    sys.stderr.flush()
                    os._exit(2)
                return

    def _gets_free(self, seconds: float) -> bool:
        """Whether the running command ends within some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._ended or not self._busy:
                return True
            time.sleep(_LOOK_SECONDS)
        return False

    def end(self) -> None:
        """End the other ranks; the sharded models cannot be used any more."""
        if self._ended:
            return
        self._ended = True
        for follower in self._followers:
            follower.kill()
        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group()
        self._folder.cleanup()


_OPEN: list[Ranks] = []


def open_ranks(devices: Sequence[str]) -> Ranks:
    """The ranks of this process on these devices. A process has one group: a former one ends, with all its objects."""
    if _OPEN and _OPEN[0].is_usable and _OPEN[0].devices == tuple(devices):
        return _OPEN[0]
    close_ranks()
    _OPEN.append(Ranks(devices))
    return _OPEN[0]


def close_ranks() -> None:
    """End the other ranks, if there are any."""
    while _OPEN:
        _OPEN.pop().end()


atexit.register(close_ranks)
