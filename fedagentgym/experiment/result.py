"""The result that `train` returns: the record of a run with its success, its learning curve, and its episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError, require_type
from fedagentgym.base.files import read_jsonl
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.tables import make_table

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.learning.trajectory import Trajectory


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run; `train` and `resume` return it, and `load` opens that of a finished run.

    Attributes:
        folder: The run's folder.
        record: The content of `result.json`: environment, agent, results, cost and versions.
    """

    folder: Path
    record: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> RunResult:
        """Open the result of a finished run.

        Args:
            folder: The run's folder.

        Returns:
            The result, as `train` returned it.

        Raises:
            DataError: If there is no run in the folder, it is not finished, or its files were changed.
        """
        from fedagentgym.experiment.record import read_result
        from fedagentgym.runs.folder import CONFIG, RunFolder

        require_type("load takes the folder of a run", folder, str, Path)
        run = RunFolder(Path(folder))
        if not run.is_run:
            raise DataError(f"there is no run in {run.path}: {CONFIG} is missing")
        run.refuse_evaluation()
        if not run.is_finished:
            raise DataError(
                f"the run in {run.path} is not finished: it is under way, or was stopped and goes on with fedagentgym.resume"
            )
        return cls(run.path, read_result(run.path).model_dump(mode="json"))

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

    def load_agent(
        self,
        number: int | None = None,
        *,
        best: bool = False,
        plugins: Sequence[str] = (),
        trust_plugins: bool = False,
    ) -> TokenAgent:
        """Load the trained agent, with the prompt, parser and decoding of the run.

        Args:
            number: The round; by default the last one.
            best: Whether to take the best evaluated round.
            plugins: The plugins of the run's configuration, which must be named again, since their code runs.
            trust_plugins: Whether everything that the folder's configuration names may run.

        Returns:
            The agent, for `evaluate`, `collect` or further training.

        Raises:
            OptionError: If both `number` and `best` are given, or a plugin of the run was not named.
            DataError: If the folder has no such round, or its files were changed.
            MissingExtraError: If torch is not installed, or another library that the configuration needs.
        """
        from fedagentgym.experiment.export import open_policy
        from fedagentgym.experiment.stored import Trust

        trust = Trust(tuple(plugins), trust_plugins)
        return open_policy(self.folder, number=number, best=best, trust=trust).agent

    def export(
        self,
        folder: str | Path,
        number: int | None = None,
        *,
        best: bool = False,
        adapter: bool = False,
        plugins: Sequence[str] = (),
        trust_plugins: bool = False,
    ) -> int:
        """Write the trained agent to a folder that transformers, vLLM and `fedagentgym.load_agent` load.

        Args:
            folder: The folder to write; it must not exist.
            number: The round; by default the last one.
            best: Whether to take the best evaluated round.
            adapter: Whether to write only the LoRA adapter, not merged into its base.
            plugins: The plugins of the run's configuration, which must be named again, since their code runs.
            trust_plugins: Whether everything that the folder's configuration names may run.

        Returns:
            The round that was written.

        Raises:
            OptionError: If the arguments do not go together, or a plugin of the run was not named.
            DataError: If the run's folder has no such round, its files were changed, or the folder to write exists.
            MissingExtraError: If torch is not installed, or another library that the configuration needs.
        """
        from fedagentgym.experiment.export import export_policy
        from fedagentgym.experiment.stored import Trust

        trust = Trust(tuple(plugins), trust_plugins)
        return export_policy(self.folder, folder, number=number, best=best, adapter_only=adapter, trust=trust)

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
