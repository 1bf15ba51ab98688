"""Escaping of texts that others wrote (titles, names, categories, tasks, file names, errors), one function per kind of output.

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
    """A text as one line of Markdown, in which nothing acts as formatting, HTML, a comment or the end of a table's cell.

    >>> escape_markdown("a|b --> <i>")
    'a\\\\|b --\\\\> \\\\<i\\\\>'
    >>> escape_markdown("1. one"), escape_markdown("# two")
    ('1\\\\. one', '\\\\# two')
    """
    plain = show_invisible_characters(" ".join(text.split()))
    return _START.sub(r"\1\\\2", _MARKS.sub(lambda found: f"\\{found[0]}", plain))


def escape_csv(text: str) -> str:
    """A text for a cell of a CSV file: one line that spreadsheets do not take for a formula. The CSV writer adds the quotes.

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
    """A text for a terminal or a log, with control characters as escapes, so that it cannot move the cursor or hide a line.

    >>> escape_terminal("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
