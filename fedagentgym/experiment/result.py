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
        record: Configuration, versions, results and cost: the content of `result.json`.
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
        """The share of held-out tasks that the final policy solved; None if it was not evaluated."""
        found = self._get_success()
        return None if found is None else float(found["mean"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of `success`."""
        found = self._get_success()
        return None if found is None else (float(found["low"]), float(found["high"]))

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
        from fedagentgym.learning.episodes import read_lines

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
        ends = (
            ""
            if self.interval is None
            else f" [{format_fixed(self.interval[0], 3)}, {format_fixed(self.interval[1], 3)}]"
        )
        success = "not evaluated" if self.success is None else f"success {format_fixed(self.success, 3)}{ends}"
        about = f"{self.record['algorithm']}, rounds: {self.record['rounds']}"
        return f"RunResult({self.record['name']}: {about}, {success}; {self.folder})"

    def _get_success(self) -> Mapping[str, Any] | None:
        final = self.record["final"]
        found: Mapping[str, Any] | None = None if final is None else final["overall"]["success"]
        return found

    def _list_points(self) -> list[dict[str, Any]]:
        rows = [row for _, row in read_jsonl(self.folder / "metrics.jsonl")]
        return [
            {
                "round": row["round"],
                "success": row["evaluation"]["overall"]["success"]["mean"],
                "low": row["evaluation"]["overall"]["success"]["low"],
                "high": row["evaluation"]["overall"]["success"]["high"],
                "score": row["evaluation"]["overall"]["score"]["mean"],
                "bytes": row["bytes_total"],
                "seconds": row["seconds_total"],
            }
            for row in rows
            if "evaluation" in row and "success" in row["evaluation"].get("overall", {})
        ]
