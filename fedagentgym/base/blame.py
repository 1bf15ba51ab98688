"""The line of a user's own code at which an error arose, and what this package expects of the hook that it called."""

from __future__ import annotations

import gc
import inspect
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

from fedagentgym.base.errors import describe_error

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = tuple(
    Path(place)
    for name, place in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_MISFIT = re.compile(r"\A([\w.<>]+)\(\) (?:takes|missing|got an unexpected|got multiple values|got some)\b")
"""Python's messages for a call that does not fit a function's parameters; the group is the function's qualified name."""
_MISSING = re.compile(r"\(\) missing \d+ required [\w-]+ arguments?: (.*)")
_TAKEN = re.compile(r"\(\) takes (?:from \d+ to )?(\d+) positional argument")
_CALLERS = (_PACKAGE / "cli" / "guard.py",)
"""Files that run a whole command; a function that they call is not a user's hook."""


@dataclass(frozen=True)
class Blame:
    """The place in a user's code at which an error arose.

    Attributes:
        file: The file.
        line: The line.
        hook: The user's function that this package called, with its class.
        expected: The signature and summary of the package's method that the hook overrides; empty if there is none.
        signature: The hook's signature if the error is that the call does not fit it; else empty.
    """

    file: Path
    line: int
    hook: str
    expected: str
    signature: str = ""

    def describe(self, error: BaseException) -> str:
        """One sentence for the user."""
        expects = f"; {self.expected}" if self.expected else ""
        if self.signature:
            does_not_fit = f"{self.signature} at {self.file}, line {self.line}, does not fit its call"
            return f"{does_not_fit}: {describe_error(error)}{expects}"
        return f"{self.hook} failed at {self.file}, line {self.line}: {describe_error(error)}{expects}"


def find_blame(error: BaseException) -> Blame | None:
    """Find where in a user's code the error arose. None if this package did not call a user's code there; installed packages
    do not count as a user's code."""
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    own = [place for place, file in enumerate(files) if _is_of_user(file)]
    if frames and not _is_of_user(files[-1]) and (misfit := _find_misfit(error, frames[-1][0])) is not None:
        return misfit
    called = [
        place
        for place in own
        if place and files[place - 1].is_relative_to(_PACKAGE) and files[place - 1] not in _CALLERS
    ]
    if not called:
        return None
    hook, last = frames[called[-1]][0], own[-1]
    first = hook.f_code.co_varnames[:1]
    instance: Any = hook.f_locals.get(first[0]) if first else None
    owner = instance if isinstance(instance, type) else type(instance)
    name = hook.f_code.co_name
    return Blame(files[last], frames[last][1], _shorten(hook.f_code.co_qualname), _find_expected(owner, name))


def _is_of_user(file: Path) -> bool:
    return not file.name.startswith("<") and not any(map(file.is_relative_to, (_PACKAGE, *_INSTALLED)))


def _shorten(name: str) -> str:
    return name.rpartition("<locals>.")[2]


def _find_misfit(error: BaseException, caller: FrameType) -> Blame | None:
    """The user's function that the last frame called with arguments that do not match its parameters."""
    if not isinstance(error, TypeError) or (said := _MISFIT.match(str(error))) is None:
        return None
    # the newest first: a notebook cell that was run twice has defined two functions of the same name
    alive = [one for generation in range(3) for one in reversed(gc.get_objects(generation))]
    functions = [
        one
        for one in alive
        if type(one) is FunctionType
        and one.__qualname__ == said[1]
        and _is_of_user(Path(one.__code__.co_filename))
        and _agrees(one, str(error))
    ]
    near = [one for one in functions if any(_holds(value, one) for value in caller.f_locals.values())]
    if not (found := near or functions):
        return None
    function = found[0]
    name = function.__name__
    owner = next(
        (one for one in alive if issubclass(type(one), type) and _unwrap(vars(one).get(name)) is function), object
    )
    code = function.__code__
    signature = f"{_shorten(function.__qualname__)}{inspect.signature(function)}"
    return Blame(
        Path(code.co_filename),
        code.co_firstlineno,
        _shorten(function.__qualname__),
        _find_expected(owner, name),
        signature,
    )


def _agrees(function: FunctionType, sentence: str) -> bool:
    """True if Python's message can be about this function; several functions may share a name, such as `<lambda>`."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if (missing := _MISSING.search(sentence)) is not None:
        return set(re.findall(r"'(\w+)'", missing[1])) <= set(names)
    if (taken := _TAKEN.search(sentence)) is not None:
        return code.co_argcount == int(taken[1])
    return True


def _holds(value: Any, function: FunctionType) -> bool:
    """True if a value is this function, a method of it, or a class or instance that has it as an attribute of any name."""
    if _unwrap(value) is function:
        return True
    classes = (value if issubclass(type(value), type) else type(value)).__mro__
    return any(_unwrap(own) is function for one in classes for own in vars(one).values())


def _unwrap(value: Any) -> Any:
    """The function of a method, class method or static method; any other value unchanged."""
    return value.__func__ if type(value) in (MethodType, classmethod, staticmethod) else value


def _find_expected(owner: type, name: str) -> str:
    """The signature and the first paragraph of the docstring of the package's method that a user's method overrides."""
    for base in owner.__mro__[1:]:
        method = vars(base).get(name)
        function = getattr(method, "__func__", method)
        if base.__module__.startswith(f"{_PACKAGE.name}.") and inspect.isfunction(function):
            sentence = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
            return f"{name}{inspect.signature(function)} is what {base.__name__} asks for{': ' if sentence else ''}{sentence}"
    return ""
