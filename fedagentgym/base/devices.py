"""The processes of a run: a single one, or the ranks that `torchrun` started, each of which holds a part of the model.

`here()` returns a `Torchrun` within `join`, otherwise a `OneProcess`. Ranks run the same program in step. Only rank 0 plays
episodes, reads clocks and signals, writes and prints; the others receive its results (`share`). A computation on the same
values gives the same result on all ranks, so it is not shared. If a rank is lost or fails alone, all ranks end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from fedagentgym.base.errors import OptionError, ProcessUnusableError, describe_error

T = TypeVar("T")
EXCHANGE_TIMEOUT = timedelta(minutes=30)
"""The time for which ranks wait for each other in a collective computation."""
PLAY_TIMEOUT = timedelta(days=7)
"""The time for which the other ranks wait for rank 0. If rank 0 ends, its connections close and they notice at once."""
FAILURE_TIMEOUT = timedelta(seconds=20)
"""The time for which a failed rank waits for the other ranks to fail as well."""


class Place(NamedTuple):
    """The rank of a process and the numbers of ranks, as `torchrun` sets them in environment variables."""

    rank: int
    size: int
    machine_size: int


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process among those that `torchrun` started; None for a process that `torchrun` did not start.

    >>> find_place({"RANK": "1", "WORLD_SIZE": "2"})
    Place(rank=1, size=2, machine_size=2)
    """
    if not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    size = environment["WORLD_SIZE"]
    try:
        return Place(int(environment["RANK"]), int(size), int(environment.get("LOCAL_WORLD_SIZE", size)))
    except ValueError:
        raise OptionError(
            f"RANK and WORLD_SIZE are numbers that torchrun sets, got {environment['RANK']!r}, {size!r}"
        ) from None


class OneProcess:
    """A run in a single process, in which `share` simply calls its function."""

    rank: int = 0
    size: int = 1
    device: Any = None
    """The device of a rank; None if the configuration chooses the device."""
    shards: ClassVar[bool] = False
    """True if every process holds a part of the model and gets its signals from torchrun."""
    alone: bool = False
    """True while rank 0 computes and the others wait for the outcome."""
    program: str = "fedagentgym"
    """The command that starts such a run."""

    def share(self, make: Callable[[], T], policy: object = None) -> T:
        """Call `make` on rank 0 while the other ranks wait, and return its value on all ranks.

        An error, or Ctrl-C on rank 0, is raised on all ranks. The weights of a sharded `policy` are gathered during the call.
        """
        return make()

    def make_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and then on the other ranks, which use the caches that rank 0 filled; return its value."""
        return make()

    def check_alike(self, error: BaseException) -> None:
        """Do nothing if every rank has failed; raise `ProcessUnusableError` if this rank failed alone or lost another one."""

    @contextlib.contextmanager
    def own_folder(self, folder: Path, *, filled: bool) -> Iterator[Path]:
        """Yield the folder itself on rank 0. The other ranks get a temporary path, removed at the end, which is a copy of the
        folder if `filled` and does not exist yet otherwise."""
        yield folder


class Torchrun(OneProcess):
    """The group of ranks that `torchrun` started, as seen from one rank."""

    shards = True

    def __init__(self, place: Place, device: Any, objects: Any, failures: Any) -> None:
        self.rank, self.size, self.device = place.rank, place.size, device
        self.program = f"torchrun --nproc-per-node {place.size} -m fedagentgym"
        self._objects, self._failures = objects, failures  # rank 0 may play for hours before it sends an object
        self._shared_error: BaseException | None = None
        """The error of rank 0 that all ranks raised last."""
        self._interrupted = False

    def share(self, make: Callable[[], T], policy: object = None) -> T:
        if self.alone:
            return make()
        from torch import distributed

        with getattr(policy, "gathered", contextlib.nullcontext)():
            made: T
            error: BaseException | None = None
            sent: list[tuple[T | None, BaseException | None]] = [(None, None)]
            if self.rank == 0:
                try:
                    self.alone = True
                    if self._interrupted:
                        raise KeyboardInterrupt
                    made = make()
                    pickle.dumps(made)  # an object that cannot be sent is an error on all ranks, like any other
                    sent = [(made, None)]
                except BaseException as failure:
                    error = _make_sendable(failure)
                    sent = [(None, error)]
                finally:
                    self.alone = False
            distributed.broadcast_object_list(sent, src=0, group=self._objects)
        if self.rank != 0:
            made, error = cast("tuple[T, BaseException | None]", sent[0])
        if error is not None:
            self._shared_error = error
            raise error
        return made

    def make_first(self, make: Callable[[], T]) -> T:
        made: list[T] = []
        self.share(lambda: made.append(make()))
        return made[0] if made else make()

    def check_alike(self, error: BaseException) -> None:
        if self.alone or error is self._shared_error:
            return
        from torch import distributed

        try:
            distributed.monitored_barrier(self._failures, timeout=FAILURE_TIMEOUT)
        except RuntimeError:
            # errors of gloo have no class of their own: their text holds a path of its source
            lost = isinstance(error, distributed.DistError) or "/gloo/" in str(error)
            what = "lost another rank, which has ended" if lost else f"failed alone ({describe_error(error)})"
            raise ProcessUnusableError(
                f"rank {self.rank} of {self.size} ({self.device}) {what}; the ranks of a sharded run end together, and resume"
                " continues from the last finished round"
            ) from error

    @contextlib.contextmanager
    def own_folder(self, folder: Path, *, filled: bool) -> Iterator[Path]:
        from torch import distributed

        with contextlib.ExitStack() as stack:
            place = folder
            if self.rank > 0:
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedagentgym-rank-"))) / "run"
                if filled:
                    shutil.copytree(folder, place)
            distributed.barrier(self._objects)  # rank 0 changes the folder only after all ranks have copied it
            yield place

    @contextlib.contextmanager
    def take_signals(self) -> Iterator[None]:
        """Let only rank 0 react to Ctrl-C and SIGTERM. While it computes alone, it stops at once; otherwise it stops at its
        next `share`, since the other ranks would wait for it in a collective computation."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: object) -> None:
            self._interrupted = True
            if self.alone:
                raise KeyboardInterrupt

        handler = stop if self.rank == 0 else signal.SIG_IGN
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, usual in before.items():
                signal.signal(number, usual)


def _make_sendable(error: BaseException) -> BaseException:
    """The error itself, or a `RuntimeError` with its text if unpickling may not restore it."""
    kind = type(error)
    plain = all(isinstance(part, str | int) for part in (*error.args, *vars(error).values()))
    if plain and not isinstance(kind.__init__, FunctionType) and "<locals>" not in kind.__qualname__:
        return error
    return RuntimeError(describe_error(error)).with_traceback(error.__traceback__)


_here: OneProcess = OneProcess()


def here() -> OneProcess:
    """Return the process or group of ranks that this process belongs to."""
    return _here


@contextlib.contextmanager
def join(place: Place, kind: str) -> Iterator[None]:
    """Join the group of ranks for the duration of a block; each rank uses the device of this `kind` with its own number.

    An error in the block is raised unchanged if all ranks failed; otherwise it becomes a `ProcessUnusableError`.
    """
    global _here
    import torch
    from torch import distributed

    if distributed.is_initialized():
        raise OptionError(
            "learning.sharding needs a torch.distributed group of its own, but this process is in one already"
        )
    # all ranks are on this machine: their traffic does not leave it
    interfaces = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in os.environ]
    os.environ.update(dict.fromkeys(interfaces, "lo0" if sys.platform == "darwin" else "lo"))
    try:
        distributed.init_process_group("gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl", timeout=EXCHANGE_TIMEOUT)
        objects = distributed.new_group(backend="gloo", timeout=PLAY_TIMEOUT)
        failures = distributed.new_group(backend="gloo", timeout=FAILURE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        here = f"rank {place.rank} of {place.size}"
        raise ProcessUnusableError(f"{here} cannot join the others ({describe_error(error)})") from error
    finally:
        for name in interfaces:
            del os.environ[name]
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, place.rank)
    if kind != "cpu":
        torch.cuda.set_device(device)
    _here = ranks = Torchrun(place, device, objects, failures)
    try:
        with ranks.take_signals():
            try:
                yield
            except BaseException as error:
                ranks.check_alike(error)
                raise
        distributed.destroy_process_group()
    finally:
        _here = OneProcess()
