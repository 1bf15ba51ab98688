"""Conditions that several checks share."""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedagentgym.base.blame import find_blame
from fedagentgym.base.errors import FedAgentGymError, MissingExtraError, describe_error
from fedagentgym.base.imports import missing_explained


@contextmanager
def global_generators_untouched(who: str) -> Iterator[None]:
    """Check that whatever runs inside draws no number from the process's global generators."""
    before = (random.getstate(), repr(np.random.get_state()))
    yield
    assert (random.getstate(), repr(np.random.get_state())) == before, f"{who} draws from a global generator"


@contextmanager
def errors_as_failures(
    duty: str = "",
    find: Callable[[], object] = lambda: None,
    *,
    who: str = "it",
    hints: Mapping[str, str] = MappingProxyType({}),
    callers: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Convert every error that the checked object raises or causes into a failed check, in one sentence: what failed, the file
    and the line, the error, and the duty.

    Args:
        duty: What is asked of the object.
        find: Finds the object, whose file and line are named if the error arose outside of its code.
        who: How the sentence names the object.
        hints: The duty of single methods, in place of `duty`.
        callers: Functions of this package that call a method, by their qualified names.
    """
    try:
        with missing_explained():
            yield
    except (AssertionError, MissingExtraError, Warning):
        raise
    except FedAgentGymError as error:
        raise AssertionError(str(error)) from error
    except Exception as error:
        method = _find_method(error, hints, callers)
        place = _find_place(error, find, method)
        text = f"{method or who}{f' ({place})' if place else ''} raised {describe_error(error)}"
        asked = hints.get(method, duty)
        raise AssertionError(f"{text}: {asked}" if asked else text) from error


def call_hook(owner: object, method: str, *arguments: object) -> Any:
    """Call a method of the checked object; an error in it, or in calling it, is then known to be the method's."""
    return getattr(owner, method)(*arguments)


def _find_method(error: BaseException, hints: Mapping[str, str], callers: Mapping[str, str]) -> str:
    """The innermost method with a duty of its own in which, or in calling which, an error arose; empty if there is none."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if code is call_hook.__code__ and frame.f_locals["method"] in hints:
            return str(frame.f_locals["method"])
        if code.co_qualname in callers:
            return callers[code.co_qualname]
        if code.co_name in hints:
            return code.co_name
    return ""


def _find_place(error: BaseException, find: Callable[[], object], method: str) -> str:
    """The file and line of the checked object's code in which an error arose, or else of its definition; empty if unknown."""
    blame = find_blame(error)
    if blame is not None:
        return f"{blame.file.name}, line {blame.line}"
    try:
        owners = [
            frame.f_locals["owner"]
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if frame.f_code is call_hook.__code__ and frame.f_locals["method"] == method
        ]
        found: Any = owners[-1] if owners else find()
        parts = [*([getattr(found, method)] if method else []), found, *vars(found).values()]
        code = next(one.__code__ for one in map(inspect.unwrap, parts) if hasattr(one, "__code__"))
    except Exception:  # a text that names nothing, or code that is compiled
        return ""
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
