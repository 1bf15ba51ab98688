"""Checks that apply to the arguments of every command, before the command runs.

Text that no file name can contain, numbers of more than 64 bits, `nan` and infinity, names longer than file systems allow: each
would fail somewhere in a command, in a different place for each command.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from fedagentgym.base.errors import OptionError
from fedagentgym.base.text import is_clean_text

LARGEST = (1 << 63) - 1
MOST_CHARACTERS = 100_000
MOST_BYTES_OF_NAME = 255
MOST_BYTES_OF_PATH = 4095


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse an argument that cannot be encoded or is very long."""
    for argument in arguments:
        if not is_clean_text(argument):
            raise OptionError(f"the argument {argument[:80]!r} cannot be written to a file")
        if len(argument) > MOST_CHARACTERS:
            raise OptionError(f"the argument {argument[:80]!r}... has {len(argument):,} characters")


def restrict_parameters(command: click.Command) -> None:
    """Limit the numbers and paths of a command and its subcommands."""
    for parameter in command.params:
        parameter.type = _restrict(parameter.type)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            restrict_parameters(each)


def _restrict(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    if isinstance(kind, click.Path):
        return _NamedPath()
    if isinstance(kind, click.IntRange):
        highest = LARGEST if kind.max is None else kind.max
        return click.IntRange(-LARGEST if kind.min is None else kind.min, highest, clamp=kind.clamp)
    if isinstance(kind, click.types.IntParamType):
        return click.IntRange(-LARGEST, LARGEST)
    if isinstance(kind, click.FloatRange):
        return _FiniteFloat(kind.min, kind.max)
    return _FiniteFloat(None, None) if isinstance(kind, click.types.FloatParamType) else kind


class _FiniteFloat(click.FloatRange):
    """A number in a range; `nan` and infinity are outside of every range."""

    def __init__(self, lowest: float | None, highest: float | None) -> None:
        super().__init__(min=lowest, max=highest)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


class _NamedPath(click.Path):
    """A path whose names file systems allow."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        raw = str(value).encode()
        if len(raw) > MOST_BYTES_OF_PATH or any(len(name) > MOST_BYTES_OF_NAME for name in raw.split(b"/")):
            self.fail(f"{str(value)[:60]!r}... is too long for the name of a file.", param, ctx)
        return super().convert(value, param, ctx)
