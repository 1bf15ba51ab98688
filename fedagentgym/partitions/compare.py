"""Comparison of two splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedagentgym.partitions.files.split import SplitRecord


@dataclass(frozen=True)
class SplitDifference:
    """How two splits differ in what they were made of, and how far apart their clients are."""

    digests: tuple[str, str]
    fields: dict[str, tuple[Any, Any]]
    clients: int
    changed: int
    mean_jaccard: float
    least_jaccard: float
    least_client: int

    @property
    def identical(self) -> bool:
        return self.digests[0] == self.digests[1]

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "identical": self.identical}


def compare(first: SplitRecord, second: SplitRecord) -> SplitDifference:
    """Compare two splits whose task ids are known."""
    count = min(len(first), len(second))
    pairs = [(set(first.get_tasks(client)), set(second.get_tasks(client))) for client in range(count)]
    values = [len(a & b) / max(len(a | b), 1) if a | b else 1.0 for a, b in pairs]
    least = min(range(count), key=values.__getitem__)
    return SplitDifference(
        digests=(first.digest, second.digest),
        fields=_compare_fields(first, second),
        clients=count,
        changed=sum(a != b for a, b in pairs),
        mean_jaccard=sum(values) / count,
        least_jaccard=values[least],
        least_client=least,
    )


def _compare_fields(first: SplitRecord, second: SplitRecord) -> dict[str, tuple[Any, Any]]:
    left, right = _flatten_record(first), _flatten_record(second)
    names = [*left, *(name for name in right if name not in left)]
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def _flatten_record(record: SplitRecord) -> dict[str, Any]:
    header = record.to_header()
    flat = {f"env.{key}": value for key, value in header["env"].items()}
    flat["pool_digest"] = header["pool_digest"]
    flat["sampler"] = record.sampler
    flat.update({f"sampler.{key}": value for key, value in record.parameters.items()})
    flat.update({"seed": record.seed, "variant": record.variant, "clients": len(record)})
    flat.update({f"role.{name}": len(ids) for name, ids in record.roles.items()})
    flat["labels"] = None if record.labels is None else record.labels.source.get("digest")
    return flat
