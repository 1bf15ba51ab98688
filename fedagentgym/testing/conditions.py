"""Conditions that several checks test."""

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
    """Check that the code inside the block draws no number from the global generators of `random` and numpy."""
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
    """Convert every error that the checked object raises or causes into an `AssertionError` of one sentence.

    The sentence names the method that failed, the file and the line, the error, and the duty of the object.

    Args:
        duty: A clause on what the object must do.
        find: Returns the object, whose file and line are named if the error arose outside of its code.
        who: The name of the object in the sentence.
        hints: The duties of single methods, which replace `duty`.
        callers: Qualified names of functions of this package that call a method of the object, each with the method's name.
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
    """Call a method of the checked object, so that an error in the method or in the call is attributed to the method."""
    return getattr(owner, method)(*arguments)


def _find_method(error: BaseException, hints: Mapping[str, str], callers: Mapping[str, str]) -> str:
    """Return the innermost method with its own duty in which an error arose, or whose call failed; empty if there is none."""
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
    """Return the file and line of the object's code in which an error arose, or else of its definition; empty if unknown."""
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
    except Exception:  # the name is unknown, or the code is compiled
        return ""
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
