"""The capabilities of this machine's processor, found without any heavy library."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Instruction sets with bfloat16 products, as Linux names them; without them bfloat16 is computed by slow conversion."""
_CPU_FILE = Path("/proc/cpuinfo")


class Ability(NamedTuple):
    """Whether the processor has a capability, and how this is known."""

    present: bool
    reason: str


def check_bfloat16() -> Ability:
    """Return whether products of bfloat16 are fast on this processor."""
    flags = _read_cpu_flags()
    if flags is None:
        return Ability(False, f"unknown: {_CPU_FILE} cannot be read")
    found = [flag for flag in BFLOAT16_FLAGS if flag in flags]
    return Ability(
        bool(found), f"the processor has {' and '.join(found or ['neither ' + ' nor '.join(BFLOAT16_FLAGS)])}"
    )


def read_processor_name() -> str:
    """Return what the system calls this kind of processor; where it has no name for it, the architecture."""
    return (_read_cpu_field("model name") or "").strip() or platform.machine()


def _read_cpu_flags() -> frozenset[str] | None:
    """Return the instruction sets of the first core; None where the system does not list them."""
    found = _read_cpu_field("flags", "Features")
    return None if found is None else frozenset(found.split())


def _read_cpu_field(*names: str) -> str | None:
    """Return what is said of the first core under one of these names."""
    try:
        lines = _CPU_FILE.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in names), None)


def count_usable_cores() -> int:
    """Return how many threads of this process may compute at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
