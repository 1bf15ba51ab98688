"""What was compared: the kind and the place of every entry, and the commands that make the comparison and its runs again."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_path, read_json
from fedagentgym.experiment.report.markup import render_table, show
from fedagentgym.experiment.report.results import describe_run
from fedagentgym.federation.metrics_log import read_metrics_log
from fedagentgym.leaderboard.compare import Comparison, list_runs
from fedagentgym.leaderboard.record import MANIFEST, read_manifest
from fedagentgym.version import __version__


def render_sources(found: Comparison, page: Path) -> str:
    """A table of the entries that were read from files, and the commands."""
    if not found.paths:
        return ""
    rows = [
        [
            f'<span class="entry">{show(name)}</span>',
            f'<span class="told">{_describe(path)}</span>',
            f"<code>{show(path)}</code>",
        ]
        for name, path in found.paths.items()
    ]
    heads = [("entry", False), ("what it is", False), ("place", False)]
    commands = [("this comparison again", _write_command(found, page))]
    for name, path in found.paths.items():
        commands += [(f"{name}: {what}", command) for what, command in _list_commands(path)]
    lines = "".join(f"<dt>{show(what)}</dt><dd><code>{show(command)}</code></dd>" for what, command in commands)
    return (
        f'<h2>What was compared</h2><div class="card sources">{render_table(heads, rows, "What was compared")}</div>'
        f'<h2>Commands</h2><div class="card"><dl class="commands">{lines}</dl></div>'
        f'<p class="note">Written by fedagentgym {__version__}.</p>'
    )


def _write_command(found: Comparison, page: Path) -> str:
    places = [str(path) for path in found.paths.values()]
    return shlex.join(["fedagentgym", "compare", *places, "--measure", found.measure, "--page", str(page)])


def _describe(path: Path) -> str:
    if (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        return show(
            f"packed result of {manifest.suite.name}, version {manifest.suite.version}; track {manifest.suite.track}"
        )
    runs = list_runs(path) if path.is_dir() else []
    if not runs:
        return "file of episodes"
    told = _describe_run(runs[0])
    return told if runs == [path] else f"{len(runs)} runs; the first, {show(runs[0].name)}: {told}"


def _describe_run(folder: Path) -> str:
    """The run in a line, and the evaluation that is compared, its last."""
    records = list(read_metrics_log(folder / "metrics.jsonl"))
    place = folder / "result.json"
    result = read_json(place) if place.is_file() else {}
    number = max((folder / "evaluation").glob("*.jsonl")).stem
    try:
        about = f"{describe_run(result, records)}; " if records else ""
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{format_path(place)} is malformed: it is not what a run of this version writes") from None
    return f"{about}its evaluation of round {show(number.lstrip('0') or '0')}"


def _list_commands(path: Path) -> list[tuple[str, str]]:
    place = shlex.quote(str(path))
    if (path / MANIFEST).is_file():
        return [("check every number", f"fedagentgym bench verify {place}")]
    if path.is_file():
        return [("read its episodes", f"fedagentgym episodes {place}")]
    runs = list_runs(path)
    config = shlex.quote(f"{runs[0]}/config.yaml")
    what = "the same run again" if runs == [path] else f"the first of its {len(runs)} runs again"
    return [(what, f"fedagentgym train {config} --set output.folder=again")]
