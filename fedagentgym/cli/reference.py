"""The page of the documentation that lists every command with its options: `python -m fedagentgym.cli.reference`.

It is made from the commands themselves, so that it agrees with `--help`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from fedagentgym.cli.application import load_application

_HEAD = """# Commands

Written by `python -m fedagentgym.cli.reference > docs/reference/commands.md`; a test compares. Every command says the same
with `--help` or `-h`; `-q` may stand before a command or among its options. An error ends with exit code 2 and one sentence,
an interruption with 130.
"""


def write_reference() -> str:
    """The page in Markdown."""
    application = load_application()
    before = [f"## Before any command\n\n{_list_parameters(application)}"]
    return "\n".join([_HEAD, *before, *_describe(application, "fedagentgym", 2)])


def _describe(command: click.Command, name: str, level: int) -> Iterator[str]:
    if not isinstance(command, click.Group):
        usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
        yield f"{'#' * level} {name}\n\n{_flatten(command.help)}\n\n```text\n{usage}\n```\n"
        if command.epilog:
            yield f"Example: `{command.epilog.removeprefix('Example: ')}`\n"
        parameters = _list_parameters(command)
        if parameters:
            yield parameters
        return
    if level > 2:
        yield f"{'#' * (level - 1)} {name}\n\n{_flatten(command.help)}\n"
    for below, one in sorted(command.commands.items()):
        yield from _describe(one, f"{name} {below}", level + isinstance(one, click.Group))


def _list_parameters(command: click.Command) -> str:
    listed = command.get_params(click.Context(command))
    everywhere = {"--help"} if isinstance(command, click.Group) else {"--help", "--quiet"}
    rows = [_write_row(one) for one in listed if not getattr(one, "hidden", False) and not everywhere & set(one.opts)]
    return "\n".join(["| | | default |", "|---|---|---|", *rows, ""]) if rows else ""


def _write_row(one: click.Parameter) -> str:
    context = click.Context(click.Command("any"))
    if isinstance(one, click.Option):
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        value = "" if one.is_flag or one.count else f" `{one.make_metavar(context)}`"
    else:
        names, value = f"`{one.make_metavar(context)}`", ""
    shown = one.default is not None and one.default is not False and not callable(one.default) and one.default != ()
    default = f"`{one.default}`" if shown and "UNSET" not in repr(one.default).upper() else ""
    return f"| {names}{_escape(value)} | {_escape(_flatten(getattr(one, 'help', None)))} | {default} |"


def _flatten(text: str | None) -> str:
    """A help text without formatting for the terminal: line ends within a sentence, and click's marks."""
    return re.sub(r"\s+", " ", (text or "").replace("\b", "")).strip()


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(write_reference())
