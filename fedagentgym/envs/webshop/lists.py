"""Word lists written as running text."""

from __future__ import annotations


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a list: separated by blanks, or by commas where an entry has blanks in it.

    >>> split_list("red blue"), split_list("navy blue, red")
    (('red', 'blue'), ('navy blue', 'red'))
    """
    parts = text.split(",") if "," in text else text.split()
    return tuple(" ".join(part.split()) for part in parts)
