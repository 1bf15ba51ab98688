"""The result that `train` returns: the record of a run with its success, its learning curve, and its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_jsonl
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.tables import make_table

if TYPE_CHECKING:
    from fedagentgym.learning.trajectory import Trajectory


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run; `train` returns it.

    Attributes:
        folder: The run's folder.
        record: The content of `result.json`: environment, agent, results, cost and versions.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the final global state: equal for runs that computed the same."""
        found: str = self.record["state"]
        return found

    @property
    def success(self) -> float | None:
        """The mean success of the last evaluation; None if the run was not evaluated."""
        final = self.record["final"]
        return None if final is None else float(final["overall"]["success"]["mean"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval of `success`, by default of 95 %; None if the run was not evaluated."""
        if self.record["final"] is None:
            return None
        success = self.record["final"]["overall"]["success"]
        return float(success["low"]), float(success["high"])

    @property
    def curve(self) -> Any:
        """The evaluated rounds as a DataFrame, or a list of dictionaries without pandas: `round`, `success`, `low`, `high`,
        `score`, `bytes` (sent until then) and `seconds`."""
        return make_table(self._list_points())

    def episodes(self, number: int | None = None) -> list[Trajectory]:
        """Return the episodes of an evaluation.

        Args:
            number: The round; by default the last one that was evaluated.

        Returns:
            The episodes, each with its observations, replies, actions and rewards.

        Raises:
            DataError: If the round was not evaluated, or its episodes are not in the folder.
        """
        from fedagentgym.learning.trajectory import read_lines

        evaluated = [point["round"] for point in self._list_points()]
        number = evaluated[-1] if number is None and evaluated else number
        file = self.folder / "evaluation" / f"{number if number in evaluated else 0:04d}.jsonl"
        if number not in evaluated or not file.is_file():
            raise DataError(f"{self.folder} has no evaluated episodes of round {number}: evaluated are {evaluated}")
        return [line.trajectory for line in read_lines(file)]

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the success over the rounds with its interval (extra `[plots]`).

        Args:
            path: If given, the figure is written there, as .png or .svg.

        Returns:
            The matplotlib axes.

        Raises:
            DataError: If no round was evaluated.
            MissingExtraError: If matplotlib is not installed.
        """
        from fedagentgym.partitions.plots import plot_curve

        points = self._list_points()
        if not points:
            raise DataError(f"{self.folder} has no evaluated rounds to draw")
        return plot_curve(str(self.record["name"]), points, path)

    def __repr__(self) -> str:
        success = "not evaluated"
        if self.success is not None and self.interval is not None:
            mean, low, high = (format_fixed(value, 3) for value in (self.success, *self.interval))
            success = f"success {mean} [{low}, {high}]"
        about = f"{self.record['algorithm']}, rounds: {self.record['rounds']}"
        return f"RunResult({self.record['name']}: {about}, {success}; {self.folder})"

    def _list_points(self) -> list[dict[str, Any]]:
        from fedagentgym.federation.records import headline_bytes

        points = []
        for _, row in read_jsonl(self.folder / "metrics.jsonl"):
            overall = row.get("evaluation", {}).get("overall", {})
            if "success" in overall:
                point = {"round": row["round"], "success": overall["success"]["mean"]}
                point |= {end: overall["success"][end] for end in ("low", "high")}
                point |= {
                    "score": overall["score"]["mean"],
                    "bytes": headline_bytes(row["bytes_total"]),
                    "seconds": row["seconds_total"],
                }
                points.append(point)
        return points
