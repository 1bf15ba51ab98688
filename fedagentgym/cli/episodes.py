"""`fedagentgym episodes` and `fedagentgym chats`: recorded episodes, printed or written as conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from fedagentgym.base.errors import DataError, OptionError, join_names, show_invisible_characters
from fedagentgym.base.files import format_path
from fedagentgym.base.progress import print_result
from fedagentgym.base.rounding import count_things
from fedagentgym.cli.options import JSON, NOT_NEGATIVE, PATH, PLUGINS, POSITIVE, command, option

if TYPE_CHECKING:
    from fedagentgym.learning.trajectory import Line
    from fedagentgym.pages.episodes import ShownEpisode, Source

Row = tuple["ShownEpisode", ...]
"""The episodes of one task, one for each source."""
SOURCE_HELP = "A run (its ranked episodes, or else its last evaluation), a file of episodes, or a result of a suite."
MAX_LENGTH = 4000
"""Maximum number of characters that are printed of an observation or a reply."""


@command(
    epilog="Example: fedagentgym episodes runs/demo --failed",
    excludes=(
        ("failed", "solved"),
        ("before", "training"),
        ("other", "before"),
        ("other", "training"),
        ("listing", "actions"),
    ),
)
@click.argument("source", type=PATH, help=SOURCE_HELP)
@click.argument(
    "other", type=PATH, required=False, help="A second source: the episodes of the same tasks are shown side by side."
)
@option("--before", is_flag=True, help="For a run: show its first evaluation beside its last one.")
@option("--training", is_flag=True, help="For a run: show the sampled training episodes of its clients.")
@option("--failed", is_flag=True, help="Only unsolved episodes.")
@option("--solved", is_flag=True, help="Only solved episodes.")
@option("--invalid", is_flag=True, help="Only episodes with an invalid action.")
@option("--changed", is_flag=True, help="With two sources or --before: only tasks whose outcomes differ.")
@option("--category", help="Only tasks of this category.")
@option("--client", type=NOT_NEGATIVE, help="Only episodes of this client.")
@option("--task", help="Only tasks whose id contains this text.")
@option("--actions", is_flag=True, help="List the admissible actions of every turn.")
@option("--limit", type=POSITIVE, help="Print at most this many; by default 3, with --list or --json all.")
@option("--list", "listing", is_flag=True, help="Print one line for each episode.")
@JSON
def episodes(
    source: Path,
    other: Path | None,
    before: bool,
    training: bool,
    failed: bool,
    solved: bool,
    invalid: bool,
    changed: bool,
    category: str | None,
    client: int | None,
    task: str | None,
    actions: bool,
    limit: int | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Print episodes: task, every turn with observation, reply and action, rewards, invalid actions, the last answer."""
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
        known = join_names(sorted({row[-1].trajectory.category for row in rows}))
        about = "" if category is None else f" (categories: {known})"
        raise DataError(f"none of the {len(rows):,} episodes of {source} matches{about}")
    most = len(chosen) if limit is None and (listing or as_json) else limit or 3
    if as_json:
        make = partial(_make_plain, listing=listing, actions=actions)
        shown = [list(map(make, sources, row)) for row in chosen[:most]]
        click.echo(json.dumps(shown if len(sources) > 1 else [one for (one,) in shown]))
        return
    for row in chosen[:most]:
        if listing:
            print_result(_format_line(row))
        elif len(row) == 1:
            print_result(_format(row[0], actions))
        else:
            table = Table(expand=True, pad_edge=False, box=box.SIMPLE)
            for one in sources:
                table.add_column(show_invisible_characters(one.name), ratio=1, overflow="fold")
            table.add_row(*(_format(one, actions) for one in row))
            print_result(table, soft_wrap=False)
    how = " side by side" if len(sources) > 1 else ""
    print_result(f"{min(most, len(chosen)):,} of {len(chosen):,} that match, {len(rows):,} in all{how}", style="dim")


def _open_sources(source: Path, other: Path | None, *, before: bool, training: bool) -> list[Source]:
    from fedagentgym.pages.episodes import Source, label_episodes, read_episodes
    from fedagentgym.runs.archive import read_evaluated
    from fedagentgym.runs.folder import RunFolder

    if training:
        return [Source(str(source), label_episodes(_read_training(source)))]
    if before:
        rounds = list(RunFolder(source).list_evaluations().items())
        if len(rounds) < 2:
            raise OptionError(f"{source} was evaluated only once: there is nothing to compare it with")
        return [Source(f"round {number}", read_episodes(file)) for number, file in (rounds[0], rounds[-1])]
    sources = [source] if other is None else [source, other]
    return [Source(str(one), label_episodes(read_evaluated(one))) for one in sources]


def _read_training(run: Path) -> list[Line]:
    from fedagentgym.runs.folder import RunFolder

    found = list(RunFolder(run).read_samples())
    if not found:
        raise DataError(f"{format_path(run)} is not a run with sampled training episodes")
    return found


def _pair(sources: Sequence[Source]) -> list[Row]:
    """Pair the episodes of the same task and copy. Of two sources, only episodes that both have are kept."""
    by_task: list[dict[tuple[object, ...], ShownEpisode]] = []
    for source in sources:
        counts: dict[tuple[object, ...], int] = {}
        found: dict[tuple[object, ...], ShownEpisode] = {}
        for shown in source.episodes:
            identity: tuple[object, ...] = (shown.set, shown.trajectory.task, shown.trajectory.sample)
            if len(sources) == 1:
                identity = (*identity, shown.client, shown.round)
            counts[identity] = counts.get(identity, 0) + 1
            found[(*identity, counts[identity])] = shown
        by_task.append(found)
    common = [identity for identity in by_task[0] if all(identity in found for found in by_task)]
    if not common:
        several = len(sources) > 1
        raise DataError("these sources have no episode of the same task" if several else "there are no episodes")
    return [tuple(found[identity] for found in by_task) for identity in common]


def _make_plain(source: Source, shown: ShownEpisode, *, listing: bool, actions: bool) -> dict[str, object]:
    """An episode as plain values. With `listing` it has the number of turns in place of the turns."""
    from fedagentgym.learning.trajectory import to_plain

    plain = to_plain(shown.trajectory, segments=False, admissible=actions)
    if listing:
        plain["turns"] = len(plain["turns"])
    return {"source": source.name, "set": shown.set or None, "client": shown.client, "round": shown.round, **plain}


def _format_line(row: Row) -> str:
    last = row[-1]
    outcomes = " → ".join("solved" if one.trajectory.success else "failed" for one in row)
    about = [last.trajectory.category, last.set, "" if last.client is None else f"client {last.client}"]
    details = ", ".join(part for part in about if part)
    return show_invisible_characters(
        f"{outcomes:8s} {last.trajectory.task}  {details}  {count_things(len(last.trajectory.turns), 'turn')},"
        f" score {last.trajectory.score:g}"
    )


def _format(shown: ShownEpisode, actions: bool) -> str:
    from fedagentgym.learning.export import format_episode

    return show_invisible_characters(format_episode(shown.trajectory, actions=actions, longest=MAX_LENGTH))


# ---- conversations --------------------------------------------------------------------------------------------------


@command(epilog="Example: fedagentgym chats runs/demo --out played.jsonl --solved", excludes=(("training", "only"),))
@click.argument("source", type=PATH, help=SOURCE_HELP)
@option("--out", "output", type=PATH, required=True, metavar="FILE", help="File to write, a conversation on each line.")
@option("--solved", is_flag=True, help="Only episodes that were solved.")
@option("--training", is_flag=True, help="For a run: its sampled training episodes, not its last evaluation.")
@option("--only", metavar="SET", help="Only the episodes of this evaluation set.")
@PLUGINS
def chats(source: Path, output: Path, solved: bool, training: bool, only: str | None) -> None:
    """Write episodes as conversations: system, user and assistant messages, with task, success and score beside them."""
    from fedagentgym.learning.export import export_conversations
    from fedagentgym.runs.archive import read_evaluated

    lines = _read_training(source) if training else read_evaluated(source)
    count = export_conversations(lines, output, solved_only=solved, only=only)
    print_result(f"{count:,} conversations are in {output}")
