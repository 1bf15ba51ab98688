"""Every error that a user can cause: one sentence that names the fault, where it is, and what to do about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

MAX_LISTED = 30
"""Maximum number of names that a message lists besides the nearest one; a pool has thousands of tasks."""


class FedAgentGymError(Exception):
    """The base class of all errors of this package; a command prints its text as one sentence and exits with code 2."""


class UnknownNameError(FedAgentGymError):
    """A name that is not in its registry, pool or table; the message suggests the nearest known name."""


class OptionError(FedAgentGymError):
    """An argument, configuration key or command-line value that cannot be used."""


class OutOfRangeError(OptionError, IndexError):
    """An index that is out of range; also an `IndexError`, which Python's own sequences raise."""


class DataError(FedAgentGymError):
    """A file or value that is missing, malformed, or does not match what it is used with."""


class RefusedError(FedAgentGymError):
    """A client's machine cannot take part, or its owner does not allow it. The server reads the message, so it quotes no data."""


class ProcessUnusableError(FedAgentGymError):
    """A process lost something that all further work needs, and ends; a worker process is then replaced by a new one."""


class MissingExtraError(FedAgentGymError, ImportError):
    """A library of an optional extra is not installed; the message names the extra. Also an `ImportError`."""


def find_closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to `name`, or None if no name is similar enough."""
    candidates = list(known)
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def join_names(names: Iterable[str], limit: int = 8) -> str:
    """Names joined for a message, cut to a readable length."""
    names = list(names)
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"


def unknown_name_error(kind: str, name: object, known: Iterable[str], *, registered: bool = False) -> UnknownNameError:
    """The error for an unknown name, with the nearest known one and, unless there are very many, the list of all. If users can
    register such names in plugins (`registered`), an error without a near name also mentions `--plugin`.

    >>> str(unknown_name_error("loss", "huber", ["ppo", "reinforce"], registered=True))
    "unknown loss 'huber': known are ppo, reinforce; load a file of your own with --plugin FILE"
    """
    names = list(known)
    text = name[:200] if isinstance(name, str) else ""
    guess = find_closest_name(text, names)
    what = f"unknown {kind} {repr(text) if text else show_value(name)}"
    if guess is None:
        own = "; load a file of your own with --plugin FILE" if registered else ""
        return UnknownNameError(f"{what}: known are {join_names(names) or 'none'}{own}")
    rest = f" (known are {join_names(names, MAX_LISTED)})" if len(names) <= MAX_LISTED else ""
    return UnknownNameError(f"{what}: did you mean {guess!r}?{rest}")


def show_value(value: object) -> str:
    """A value for a message, cut to a readable length. A value that cannot be written as text (a number of thousands of digits,
    a list nested too deeply) is named by its type."""
    try:
        return repr(str(value)[:80])
    except Exception:
        return f"a value of type {type(value).__name__}"


def require_type(what: str, value: object, *kinds: type) -> None:
    """Raise unless an argument is of one of these types.

    >>> require_type("a reply is a text", 3, str)
    Traceback (most recent call last):
    fedagentgym.base.errors.OptionError: a reply is a text, got '3'
    """
    if not isinstance(value, kinds):
        raise OptionError(f"{what}, got {show_value(value)}")


def check_choice(kind: str, value: str, allowed: Iterable[str]) -> str:
    """Return the value if it is allowed; otherwise raise an `OptionError`."""
    if value not in allowed:
        raise OptionError(f"{kind} must be one of {join_names(allowed)}, got {value!r}")
    return value


MAX_ERROR_LENGTH = 300
"""Maximum number of characters of another library's error that a message repeats."""


def describe_error(error: BaseException, *, named: bool = True) -> str:
    """Another library's error on one line, with the name of its class if `named`. Its text may have many lines or none, and its
    `__str__` may fail.

    >>> describe_error(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    if len(text) > MAX_ERROR_LENGTH:
        text = text[:MAX_ERROR_LENGTH] + "..."
    if not text:
        return name
    return f"{name}: {text}" if named else text


# ---- foreign texts in messages ----------------------------------------------------------------------------------------

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def is_clean_text(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8 and used in a path: no NUL, no lone surrogates.

    >>> is_clean_text("caf\u00e9"), is_clean_text("a\\0"), is_clean_text("\\ud800")
    (True, False, False)
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def holds_halves(value: object) -> bool:
    """Return whether a text in a plain value holds half of a character (a lone surrogate), which UTF-8 cannot encode.

    >>> holds_halves({"a": ["\\ud800"]}), holds_halves({"a": ["\\U0001f600"]})
    (True, False)
    """
    waiting, seen = [value], set[int]()  # no recursion: a value may be nested thousands deep, or contain itself
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if not part.isascii() and any("\ud800" <= character <= "\udfff" for character in part):
                return True
        elif isinstance(part, list | tuple):
            if part and id(part) not in seen:
                seen.add(id(part))
                waiting += part
        elif isinstance(part, Mapping) and part and id(part) not in seen:
            seen.add(id(part))
            waiting += [*part, *part.values()]
    return False


def show_invisible_characters(text: str) -> str:
    """A text in which invisible characters, and those that change the writing direction, are replaced by their code points.

    >>> show_invisible_characters("pay \u202e01 euro")
    'pay ⟨U+202E⟩01 euro'
    """
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
