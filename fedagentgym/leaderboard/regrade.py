"""`bench regrade`: an old result scored again from its recorded replies, without a model, by the rules of this package.

After a grader or an environment was repaired, the same replies can earn other rewards. Every episode is played again: today's
parser reads the actions from the replies, and today's environment grades them. The new result names the digest of the old one.
A result is refused if its replies cannot be graded: if the tasks are others, if the agent would see another text in an episode,
or if another round of a run would be ranked now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path, read_bytes
from fedagentgym.base.progress import make_table
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.base.statistics import mean
from fedagentgym.envs.protocols import find_verifier
from fedagentgym.leaderboard.entries import Regraded
from fedagentgym.leaderboard.results import Result, RunKey, format_documents, name_run
from fedagentgym.leaderboard.suite import Suite, find_definition, open_scenario
from fedagentgym.leaderboard.verify import Held, check_config, make_agent_due, make_due
from fedagentgym.learning.trajectory import Line, Trajectory, format_line
from fedagentgym.runs.archive import write_archive
from fedagentgym.runs.claims import Expected, compute_numbers, read_played
from fedagentgym.runs.folder import CONFIG, RANKED, RECORD, WORLDS, RunFolder, format_document
from fedagentgym.runs.replay import replay
from fedagentgym.version import __version__

MAX_SHOWN = 40


@dataclass(frozen=True)
class Change:
    """An episode whose grades changed."""

    run: str
    file: str
    task: str
    sample: int
    before: float
    after: float
    success: tuple[bool, bool]


@dataclass
class Regrading:
    """The outcome of grading a result again: the changed episodes, and the ranked success of each run before and after."""

    path: Path
    episodes: int = 0
    changes: list[Change] = field(default_factory=list)
    success: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """The outcome as plain values, for `--json`."""
        changes = [{**vars(one), "success": list(one.success)} for one in self.changes]
        means = dict(zip(("before", "after"), self.means, strict=True))
        return {"result": str(self.path), "episodes": self.episodes, "changes": changes, **means}

    @property
    def means(self) -> tuple[float, float]:
        """The ranked success over all runs, before and after."""
        before, after = zip(*self.success.values(), strict=True)
        return mean(before), mean(after)

    def describe(self) -> Iterator[str | Table]:
        """The changed episodes as a table, and the means."""
        before, after = (format_fixed(one, 4) for one in self.means)
        changed = count_things(len(self.changes), "episode")
        if self.changes:
            rows = []
            for one in self.changes[:MAX_SHOWN]:
                rewards = format_fixed(one.before, 3), format_fixed(one.after, 3)
                rows.append((one.run, one.file, f"{one.task} copy {one.sample}", *rewards))
            yield make_table(("run", "file", "episode", "reward before", "after"), rows, text=3)
            if more := len(self.changes) - len(rows):
                yield f"and {more:,} more: --json lists all"
        yield f"{changed} of {self.episodes:,} changed; success {before} before, {after} after; {self.path}"


def regrade_result(path: Path, to: Path, *, suite: Suite | None = None, plugins: Sequence[str] = ()) -> Regrading:
    """Grade a result again, and write the new result to the archive `to`. `suite` is a definition outside of the package;
    `plugins` are those of the entry, which must be loaded."""
    if to.suffix != ".zip":
        raise OptionError(f"--out {format_path(to)}: a result is an archive, NEW.zip")
    result = Result(path)
    own = find_definition(result.suite.name, suite)
    if own is None:
        raise OptionError(f"{result.suite.name!r} is no suite of this package: give its definition with --suite FILE")
    if own.digest != result.suite.digest:
        raise DataError(f"{format_path(path)} was played under another definition of {own.name}: its tasks may differ")
    held = Held(result, own, {name: open_scenario(own, name) for name in result.scenarios}, tuple(plugins))
    found = Regrading(to)

    def grade() -> Iterator[tuple[str, Mapping[str, bytes]]]:
        for key in result.keys:
            with result.open_run(key) as run:
                files = _regrade_run(held, key, run, found)
            yield name_run(key), files

    regraded = Regraded(of=result.digest, by=f"fedagentgym {__version__}")
    write_archive(to, format_documents(own, result.entry.model_copy(update={"regraded": regraded})), grade())
    return found


def _regrade_run(held: Held, key: RunKey, run: RunFolder, found: Regrading) -> dict[str, bytes]:
    """The files of a run with new grades. Changed episodes are added to `found`."""
    record, where = run.record, name_run(key)
    if record.ranked is None:
        raise DataError(f"{where}: nothing is ranked, so nothing can be graded again")
    if held.is_method:
        due = make_due(held, key, check_config(held, key, run, record))
    else:
        due = make_agent_due(held, key, record.agent)
    texts: dict[str, list[str]] = {}

    def grade(expected: Expected, line: Line) -> Trajectory:
        env, place = expected.part.env, f"{where}: {expected.file}"
        if line.about.get("pool") != env.task_set.pool:
            raise DataError(f"{place}: the tasks of {env.id} have changed: play it again")
        former = replace(line.trajectory, seed=expected.seed) if line.brief else line.trajectory
        graded, over = replay(env, former, brief=line.brief, reader=due.reader)
        episode = f"{former.task}, copy {former.sample},"
        for one, other in zip(former.turns, graded.turns, strict=False):  # turns after its end are left out
            if one.observation != other.observation:
                raise DataError(f"{place}: in {episode} the agent would see another text now: play it again")
        if not over and (former.terminated or not former.truncated):
            raise DataError(f"{place}: {episode} goes on after its last turn now: play it again")
        if graded != former:
            solved = (former.success, graded.success)
            change = Change(where, expected.file, former.task, former.sample, former.reward, graded.reward, solved)
            found.changes.append(change)
        rules = {} if (verifier := find_verifier(env)) is None else {"verifier": verifier}
        text = format_line(graded, {**line.about, **rules}, brief=line.brief)
        texts.setdefault(expected.file, []).append(f"{text}\n")
        found.episodes += 1
        return graded

    made = compute_numbers(record, due, read_played(run, due, record, where, grade))
    assert made.ranked is not None
    if made.ranked.round != record.ranked.round:
        raise DataError(
            f"{where}: by the new grades round {made.ranked.round} is ranked, and the episodes are of round"
            f" {record.ranked.round}: play it again"
        )
    found.success[where] = record.ranked.overall["success"]["mean"], made.ranked.overall["success"]["mean"]
    verifier = find_verifier(due.ranked.env)
    made = made.model_copy(update={"env": record.env.model_copy(update={"verifier": verifier})})
    files = {RECORD: format_document(made).encode(), CONFIG: read_bytes(run.path / CONFIG)}
    ordered = sorted(texts, key=lambda name: (name != RANKED, name != WORLDS))
    return files | {name: "".join(texts[name]).encode() for name in ordered}
