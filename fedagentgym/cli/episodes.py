"""`fedagentgym episodes`: prints episodes, of one source or of two side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.progress import get_console
from fedagentgym.base.text import show_invisible_characters

if TYPE_CHECKING:
    from fedagentgym.experiment.report.episodes import ShownEpisode, Source

Row = tuple["ShownEpisode", ...]
"""The episodes of one task, one for each source."""
LONGEST = 4000
"""Characters of an observation or a reply that are printed."""


def episodes(
    source: Annotated[Path, typer.Argument(help="A file of episodes, or a run: its last evaluation.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another file or run: the same tasks are shown side by side.")
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="For a run: compare the first evaluation with the last one.")
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="For a run: the sampled training episodes of its clients.")
    ] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only unsolved episodes.")] = False,
    solved: Annotated[bool, typer.Option("--solved", help="Only solved episodes.")] = False,
    invalid: Annotated[bool, typer.Option("--invalid", help="Only episodes with an invalid action.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Side by side: only where the outcomes differ.")] = False,
    category: Annotated[str | None, typer.Option("--category", help="Only tasks of this category.")] = None,
    client: Annotated[int | None, typer.Option("--client", min=0, help="Only episodes of this client.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only tasks whose id contains this.")] = None,
    actions: Annotated[bool, typer.Option("--actions", help="List the admissible actions of every turn.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print at most this many.")] = 3,
    listing: Annotated[bool, typer.Option("--list", help="One line for each instead of the whole episode.")] = False,
) -> None:
    """Print episodes: task, every turn with observation, reply and action, rewards, invalid actions, the last answer."""
    if (other is not None) + before + training > 1:
        raise OptionError("a second source, --before and --training exclude each other")
    if failed and solved:
        raise OptionError("--failed and --solved exclude each other")
    sources = _open_sources(source, other, before=before, training=training)
    if changed and len(sources) == 1:
        raise OptionError("--changed compares two sources: name another one, or add --before")
    rows = _pair(sources)
    tests: list[Callable[[Row], bool]] = [
        lambda row: not failed or not row[-1].trajectory.success,
        lambda row: not solved or row[-1].trajectory.success,
        lambda row: not invalid or any(not turn.valid for one in row for turn in one.trajectory.turns),
        lambda row: not changed or len({one.trajectory.success for one in row}) == 2,
        lambda row: category is None or row[-1].trajectory.category == category,
        lambda row: client is None or row[-1].client == client,
        lambda row: task is None or task in row[-1].trajectory.task,
    ]
    chosen = [row for row in rows if all(test(row) for test in tests)]
    if not chosen:
        raise DataError(f"none of the {len(rows):,} episodes of {source} matches{_list_categories(rows, category)}")
    _print(sources, chosen[: None if listing else limit], actions=actions, listing=listing)
    shown = len(chosen) if listing else min(limit, len(chosen))
    how = " side by side" if len(sources) > 1 else ""
    get_console().print(
        f"{shown:,} of {len(chosen):,} that match, {len(rows):,} in all{how}", highlight=False, style="dim"
    )


def _open_sources(source: Path, other: Path | None, *, before: bool, training: bool) -> list[Source]:
    from fedagentgym.experiment.report.episodes import Source, read_episodes, read_samples

    if training:
        return [Source(str(source), read_samples(source))]
    if before:
        files = _list_evaluations(source)
        if len(files) < 2:
            raise OptionError(f"{source} was evaluated only once: there is nothing to compare it with")
        return [Source(f"round {int(file.stem)}", read_episodes(file)) for file in (files[0], files[-1])]
    chosen = [source] if other is None else [source, other]
    return [Source(str(one), read_episodes(_list_evaluations(one)[-1] if one.is_dir() else one)) for one in chosen]


def _list_evaluations(run: Path) -> list[Path]:
    files = sorted(file for file in (run / "evaluation").glob("*.jsonl") if file.stem.isdecimal())
    if not files:
        raise DataError(f"{run} is not a run with evaluated episodes")
    return files


def _pair(sources: Sequence[Source]) -> list[Row]:
    """Pair the episodes of the same task and copy; of two sources only those that both have."""
    by_task: list[dict[tuple[object, ...], ShownEpisode]] = []
    for source in sources:
        counts: dict[tuple[object, ...], int] = {}
        found: dict[tuple[object, ...], ShownEpisode] = {}
        for shown in source.episodes:
            identity: tuple[object, ...] = (
                shown.set,
                shown.trajectory.task,
                shown.trajectory.sample,
                shown.client,
                shown.round,
            )
            identity = identity[:3] if len(sources) > 1 else identity
            counts[identity] = counts.get(identity, 0) + 1
            found[(*identity, counts[identity])] = shown
        by_task.append(found)
    common = [identity for identity in by_task[0] if all(identity in found for found in by_task)]
    if not common:
        raise DataError(
            "these sources have no episode of the same task" if len(sources) > 1 else "there are no episodes"
        )
    return [tuple(found[identity] for found in by_task) for identity in common]


def _list_categories(rows: Sequence[Row], category: str | None) -> str:
    from fedagentgym.base.errors import join_names

    if category is None:
        return ""
    return f" (categories: {join_names(sorted({row[-1].trajectory.category for row in rows}))})"


def _print(sources: Sequence[Source], rows: Sequence[Row], *, actions: bool, listing: bool) -> None:
    out = get_console()
    for row in rows:
        if listing:
            out.print(_format_line(row), highlight=False)
        elif len(row) == 1:
            out.print(_format(row[0], actions), highlight=False)
        else:
            table = Table(expand=True, pad_edge=False, box=box.SIMPLE)
            for source in sources:
                table.add_column(show_invisible_characters(source.name), ratio=1, overflow="fold")
            table.add_row(*(_format(one, actions) for one in row))
            out.print(table, soft_wrap=False)


def _format_line(row: Row) -> str:
    last = row[-1]
    outcomes = " → ".join("solved" if one.trajectory.success else "failed" for one in row)
    about = [last.trajectory.category, last.set, "" if last.client is None else f"client {last.client}"]
    told = ", ".join(part for part in about if part)
    return show_invisible_characters(
        f"{outcomes:8s} {last.trajectory.task}  {told}  {len(last.trajectory.turns)} turns, score {last.trajectory.score:g}"
    )


def _format(shown: ShownEpisode, actions: bool) -> str:
    from fedagentgym.learning.export import format_episode

    return show_invisible_characters(format_episode(shown.trajectory, actions=actions, longest=LONGEST))
