"""A space of any text, and the arguments of a reset.

gymnasium's `Text` accepts only texts of a given alphabet and length, which its shared memory holds as indices into the alphabet.
Actions and observations here are arbitrary: any Python string, lone surrogates included. A batch of texts is a tuple. In the
shared memory of a vector environment, each environment owns a range of bytes: a length, then UTF-8 (with surrogates).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from ctypes import c_char
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Tuple
from gymnasium.vector.utils import (
    batch_differing_spaces,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from fedagentgym.base.errors import DataError, OptionError, show_value

SLOT_BYTES = 1 << 16
_LENGTH_BYTES = 8
_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 []<>/$é雪🙂"


class TextSpace(gymnasium.Space[str]):
    """Every `str`. Samples are short texts, reproducible from the space's seed."""

    def __init__(self, *, slot_bytes: int = SLOT_BYTES, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=str, seed=seed)
        self.slot_bytes = slot_bytes

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        length = int(self.np_random.integers(1, 17))
        letters = self.np_random.integers(len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[letter] for letter in letters)

    def to_jsonable(self, sample_n: Any) -> list[str]:
        return list(sample_n)

    def from_jsonable(self, sample_n: Any) -> list[str]:
        return [str(sample) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.slot_bytes == other.slot_bytes

    def __hash__(self) -> int:
        return hash((TextSpace, self.slot_bytes))

    def __repr__(self) -> str:
        return "TextSpace()"


@batch_differing_spaces.register(TextSpace)
def _batch_differing(spaces: Any) -> Tuple[Any]:  # type: ignore[misc]
    return Tuple(list(spaces))


class SharedTexts(Sequence[str]):
    """The texts in a vector environment's shared memory, decoded on access; a deep copy is a tuple of the current texts.

    gymnasium reads the shared memory once, when it starts, and copies the result after every step.
    """

    def __init__(self, memory: memoryview, slots: int, slot_bytes: int) -> None:
        self._memory, self._slots, self._slot_bytes = memory, slots, slot_bytes

    def __len__(self) -> int:
        return self._slots

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(self._slots)))
        if not -self._slots <= index < self._slots:
            raise IndexError(index)
        start = index % self._slots * (_LENGTH_BYTES + self._slot_bytes)
        text = start + _LENGTH_BYTES
        length = int.from_bytes(self._memory[start:text], "little")
        return bytes(self._memory[text : text + length]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@create_shared_memory.register(TextSpace)
def _create_memory(space: TextSpace, n: int = 1, ctx: Any = multiprocessing) -> SynchronizedArray[Any]:
    memory: SynchronizedArray[Any] = ctx.Array(c_char, n * (_LENGTH_BYTES + space.slot_bytes))
    return memory


@write_to_shared_memory.register(TextSpace)
def _write_memory(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) > space.slot_bytes:
        raise DataError(
            f"a text of {len(raw)} bytes does not fit the {space.slot_bytes} bytes of shared memory that a vector "
            "environment has for it: pass vector_kwargs={'shared_memory': False}"
        )
    start = index * (_LENGTH_BYTES + space.slot_bytes)
    target = memoryview(shared_memory.get_obj()).cast("B")
    target[start : start + _LENGTH_BYTES] = len(raw).to_bytes(_LENGTH_BYTES, "little")
    target[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(raw)] = raw


@read_from_shared_memory.register(TextSpace)
def _read_memory(space: TextSpace, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(memoryview(shared_memory.get_obj()).cast("B"), n, space.slot_bytes)


def check_seed(seed: Any) -> int | None:
    """The seed of a reset as a Python int, checked."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
        raise OptionError(f"the seed of an episode must be a whole number from 0 on, got {show_value(seed)}")
    return None if seed is None else int(seed)


def read_task_option(options: Any) -> str | None:
    """The id of the task that the options of a reset name, or None."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise OptionError(f"reset options must be a mapping such as {{'task': id}}, got {show_value(options)}")
    if not options:
        return None
    if surplus := [name for name in options if name != "task"]:
        raise OptionError(f"unknown reset option {show_value(surplus[0])}: the only one is 'task'")
    if not isinstance(options["task"], str):
        raise OptionError(f"the reset option 'task' must be a task id, got {show_value(options['task'])}")
    return str(options["task"])
