"""Tasks in messages: the data from which the receiver can open them.

A question is sent whole, with its answer (environments that take replies). A WebShop goal or an ALFWorld game exists at every
site, so its id is enough (environments that take commands).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError
from fedagentgym.envs.pool import TaskPool

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

TASK_BYTES = 1 << 15


def make_task_records(env: TextEnv, ids: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The tasks of an env's pool as plain values; of a pool without answers, without them."""
    chosen = env.pool if ids is None else env.pool.subset(ids)
    if env.takes == "command":
        return [{"id": identifier} for identifier in chosen.ids]
    return [{"id": task.id, "category": task.category, "payload": to_plain_payload(task.payload)} for task in chosen]


def to_plain_payload(payload: Any) -> Any:
    """A payload as plain values: records become mappings."""
    if hasattr(payload, "_asdict"):
        return {name: to_plain_payload(value) for name, value in payload._asdict().items()}
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        return {field.name: to_plain_payload(getattr(payload, field.name)) for field in dataclasses.fields(payload)}
    if isinstance(payload, Mapping):
        return {str(name): to_plain_payload(value) for name, value in payload.items()}
    if isinstance(payload, tuple | list):
        return [to_plain_payload(item) for item in payload]
    return payload


def pool_from_records(records: Any, env: TextEnv) -> TaskPool:
    """A pool of the tasks in a message; invalid data is one clear error, since messages come from other machines."""
    if not isinstance(records, list | tuple) or not all(isinstance(record, Mapping) for record in records):
        raise DataError("expected a list of task records")
    if env.takes == "command":
        return env.pool.subset([str(record.get("id")) for record in records])
    return TaskPool.from_records(records, env=env.id)
