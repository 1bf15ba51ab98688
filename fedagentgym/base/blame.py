"""Whose code failed: the line of a user's own code in an error, and what the hook that was called expects."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fedagentgym.base.errors import describe_error

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = tuple(
    Path(place)
    for name, place in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_CALLERS = (_PACKAGE / "cli" / "guard.py",)
"""Files that call a whole command; what they call is no hook of a user."""


@dataclass(frozen=True)
class Blame:
    """The place in a user's code at which an error arose.

    Attributes:
        file: The file.
        line: The line.
        hook: The user's function that this package called, with its class.
        expected: How the package calls it and what that should give, if a class of the package says so; else empty.
    """

    file: Path
    line: int
    hook: str
    expected: str

    def describe(self, error: BaseException) -> str:
        """One sentence for the user."""
        expects = f"; {self.expected}" if self.expected else ""
        return f"{self.hook} failed at {self.file}, line {self.line}: {describe_error(error)}{expects}"


def find_blame(error: BaseException) -> Blame | None:
    """Find the place in a user's code, called by this package, in which the error arose; installed code is not a user's."""
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    installed = (_PACKAGE, *_INSTALLED)
    own = [
        place
        for place, file in enumerate(files)
        if not file.name.startswith("<") and not any(map(file.is_relative_to, installed))
    ]
    called = [
        place
        for place in own
        if place and files[place - 1].is_relative_to(_PACKAGE) and files[place - 1] not in _CALLERS
    ]
    if not called:
        return None
    hook, last = frames[called[-1]][0], own[-1]
    return Blame(files[last], frames[last][1], hook.f_code.co_qualname.replace(".<locals>", ""), _find_expected(hook))


def _find_expected(hook: FrameType) -> str:
    """The signature and the first sentence of the method of this package that a user's method replaces."""
    first = hook.f_code.co_varnames[:1]
    instance: Any = hook.f_locals.get(first[0]) if first else None
    owner = instance if isinstance(instance, type) else type(instance)
    name = hook.f_code.co_name
    for base in owner.__mro__[1:]:
        method = vars(base).get(name)
        function = getattr(method, "__func__", method)
        if base.__module__.startswith(f"{_PACKAGE.name}.") and inspect.isfunction(function):
            sentence = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
            return f"{name}{inspect.signature(function)} is what {base.__name__} asks for{': ' if sentence else ''}{sentence}"
    return ""
