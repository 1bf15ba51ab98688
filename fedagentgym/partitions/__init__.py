"""The division of tasks and environment variants among clients. Imports nothing about models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedagentgym.base.registry import resolve
from fedagentgym.partitions.samplers import SAMPLERS

if __name__ != "fedagentgym.partitions":
    raise ImportError(
        "the folder `partitions` at the root is a link for readers: import fedagentgym.partitions instead"
    )

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import Client, ClientSplit, federate, load_client_split
    from fedagentgym.partitions.files.split import SplitRecord

_LAZY = {
    "Client": "fedagentgym.partitions.client_split:Client",
    "ClientSplit": "fedagentgym.partitions.client_split:ClientSplit",
    "SplitRecord": "fedagentgym.partitions.files.split:SplitRecord",
    "federate": "fedagentgym.partitions.client_split:federate",
    "load_client_split": "fedagentgym.partitions.client_split:load_client_split",
}

__all__ = ["SAMPLERS", "Client", "ClientSplit", "SplitRecord", "federate", "load_client_split"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return resolve(_LAZY[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
