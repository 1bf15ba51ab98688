"""The updates of one round, stored until their weights are known.

Whether an update is refused can depend on the norms of all others, and a client's weight on the reports of all others. So
updates are stored here: the first few in memory, the rest in a temporary file (in the folder that `TMPDIR` names), which keeps
the memory of a round the same for ten clients and for ten thousand.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.federation.running_mean import HELD_BYTES, HELD_MODELS
from fedagentgym.federation.vectors import Array, Parameters


class _Place(NamedTuple):
    """The position of an array in the file."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int


class UpdateStore:
    """Parameters by client. A context manager that removes the file on exit."""

    def __init__(self, held_models: int = HELD_MODELS, held_bytes: int = HELD_BYTES) -> None:
        self._held_models, self._held_bytes = held_models, held_bytes
        self._memory: dict[int, Parameters] = {}
        self._places: dict[int, list[_Place]] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._exit = ExitStack()

    def __enter__(self) -> UpdateStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.clear()
        self._exit.close()

    def put(self, client: int, parameters: Parameters) -> None:
        """Keep a client's parameters."""
        size = sum(array.nbytes for array in parameters.values())
        if len(self._memory) < self._held_models and self._bytes + size <= self._held_bytes:
            self._memory[client] = parameters
            self._bytes += size
        else:
            self._places[client] = self._write(parameters)

    def take(self, clients: Sequence[int]) -> Iterator[Parameters]:
        """The parameters of these clients, one after the other; each can be read once."""
        for client in clients:
            if client in self._memory:
                yield self._memory.pop(client)
            else:
                yield self._read(self._places.pop(client))

    def _write(self, parameters: Parameters) -> list[_Place]:
        try:
            if self._file is None:
                self._file = self._exit.enter_context(tempfile.TemporaryFile(prefix="fedagentgym-"))  # noqa: SIM115
            places, offset = [], self._file.seek(0, 2)
            for name, array in parameters.items():
                places.append(_Place(name, array.dtype, array.shape, offset))
                offset += self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise DataError(
                f"a client's update could not be written to a temporary file ({error.strerror}): let TMPDIR name a"
                " folder with more space"
            ) from None
        return places

    def _read(self, places: Sequence[_Place]) -> dict[str, Array]:
        assert self._file is not None
        arrays: dict[str, Array] = {}
        for name, dtype, shape, offset in places:
            self._file.seek(offset)
            data = self._file.read(dtype.itemsize * math.prod(shape))
            arrays[name] = np.ndarray(shape, dtype=dtype, buffer=data)
        return arrays
