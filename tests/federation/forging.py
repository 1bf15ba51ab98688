"""Bytes that `encode` would not make, for tests of readers of untrusted bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedagentgym.base.encoding import MAGIC


def forge_text(head: str, data: bytes = b"") -> bytes:
    """An encoded value with this text as its header."""
    raw = head.encode("ascii")
    return MAGIC + len(raw).to_bytes(8, "little") + raw + data


def forge(tree: object, arrays: Sequence[object] = (), data: bytes = b"") -> bytes:
    """An encoded value with this tree and these array entries, in canonical text."""
    return forge_text(json.dumps({"arrays": arrays, "tree": tree}, sort_keys=True, separators=(",", ":")), data)


def nest(depth: int) -> str:
    """The text of nested lists, this many levels deep."""
    return "[" * depth + "]" * depth


MESSAGE = {"format": "fedagentgym/message", "version": 1}
