"""The numbers of every round as TensorBoard files, if TensorBoard is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedagentgym.base.extras import require
from fedagentgym.federation.records import headline_bytes


class TensorBoard:
    """An observer that writes scalars by round."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "dev")
        writer = require("torch.utils.tensorboard", "train").SummaryWriter
        self._writer = writer(str(folder))

    def begin(self, rounds: int) -> None:
        self._writer.add_scalar("rounds", rounds, 0)

    def round_done(self, record: Mapping[str, Any]) -> None:
        number = record["round"]
        for name, value in record["metrics"].items():
            self._writer.add_scalar(f"train/{name}", value, number)
        for name, estimate in record.get("evaluation", {}).get("overall", {}).items():
            self._writer.add_scalar(f"evaluation/{name}", estimate["mean"], number)
        self._writer.add_scalar("bytes/total", headline_bytes(record["bytes_total"]), number)
        self._writer.add_scalar("failures", len(record["failures"]), number)
        self._writer.flush()
