"""Texts that can be written, used as names, and displayed."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def is_clean_text(text: str) -> bool:
    """Whether a text can be encoded as UTF-8 and used in a path: no NUL, no lone surrogates.

    >>> is_clean_text("caf\u00e9"), is_clean_text("a\\0"), is_clean_text("\\ud800")
    (True, False, False)
    """
    return "\0" not in text and _is_encodable(text)


def show_control_characters(text: str) -> str:
    """A text that is safe to print on a terminal: control characters are escaped.

    >>> show_control_characters("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def show_invisible_characters(text: str) -> str:
    """A text without hidden characters: invisible characters and those that change the direction are shown by number.

    >>> show_invisible_characters("pay \u202e01 euro")
    'pay ⟨U+202E⟩01 euro'
    """
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
