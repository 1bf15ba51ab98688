"""Escaping of texts that others wrote, for each kind of output: titles, names, categories, tasks, file names, errors.

HTML is written by the templates of `fedagentgym.pages.render`, which escape every expression; JSON and YAML by their libraries.
Every other kind of output has one function here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from fedagentgym.base.errors import show_invisible_characters

_MARKS = re.compile(r"[\\|`*_~$&<>\[\]]")
_START = re.compile(r"^(\d*)([#\-+=]|(?<=\d)[.)])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FORMULA = ("=", "+", "-", "@")


def escape_markdown(text: str) -> str:
    """A text as one line of Markdown that neither formats, nor holds HTML or a comment, nor ends a table's cell.

    >>> escape_markdown("a|b --> <i>")
    'a\\\\|b --\\\\> \\\\<i\\\\>'
    >>> escape_markdown("1. one"), escape_markdown("# two")
    ('1\\\\. one', '\\\\# two')
    """
    plain = show_invisible_characters(" ".join(text.split()))
    return _START.sub(r"\1\\\2", _MARKS.sub(lambda found: f"\\{found[0]}", plain))


def escape_csv(text: str) -> str:
    """A text in a cell of a CSV file, which the writer quotes: one line that spreadsheets do not take for a formula.

    >>> escape_csv("=1+1"), escape_csv("a, b")
    ("'=1+1", 'a, b')
    """
    plain = show_invisible_characters(" ".join(text.split()))
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def quote_word(word: object) -> str:
    """A path or name as one word of a command to print, quoted for a shell and never mistaken for an option.

    >>> quote_word("runs/a b"), quote_word("-rf"), quote_word("$(id)")
    ("'runs/a b'", './-rf', "'$(id)'")
    """
    text = str(word)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def add_plugins(command: str, plugins: Iterable[str]) -> str:
    """A command to print, with a `--plugin` option for each of the user's plugins, without which it would be refused.

    >>> add_plugins("fedagentgym resume runs/mine", ["my methods.py", "mine.samplers"])
    "fedagentgym resume runs/mine --plugin 'my methods.py' --plugin mine.samplers"
    """
    return "".join((command, *(f" --plugin {quote_word(plugin)}" for plugin in dict.fromkeys(plugins))))


def escape_terminal(text: str) -> str:
    """Lines on a terminal or in a log: control characters are shown, so that nothing moves the cursor or hides a line.

    >>> escape_terminal("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
