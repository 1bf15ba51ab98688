"""From a reply to an action: which action is executed, and whether the format was kept.

The format is checked here and affects only the format penalty; the environment decides whether an action is valid.

* ``strict``: the whole reply is ``<think>...</think><action>...</action>`` (the thought only if it is asked for), each tag once
  and no others inside. Without a complete action pair the action is empty.
* ``published``: the convention of the published agent code. The reply is lower-cased; the text between the first opening and the
  first closing tag is the action; without both, its last characters are (as many as the environment's
  ``published_action_tail`` says) and the form is broken; so it is when a think tag is missing (as written) or a Chinese
  character occurs. Broken replies are executed all the same.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_OPEN, _CLOSE = "<action>", "</action>"
_PLAIN = re.compile(r"\A\s*+<action>(.*?)</action>\s*+", re.DOTALL)
_THOUGHTFUL = re.compile(r"\A\s*+<think>(?>(.*?)</think>\s*<action>)(.*?)</action>\s*+", re.DOTALL)
_TAG = re.compile(r"</?(?:think|action)>")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


class ParsedReply(NamedTuple):
    action: str
    format: bool


def parse_strict(reply: str, think: bool) -> ParsedReply:
    """
    >>> parse_strict("<action> go to fridge 1 </action>", think=False)
    ParsedReply(action='go to fridge 1', format=True)
    >>> parse_strict("go to fridge 1", think=False)
    ParsedReply(action='', format=False)
    """
    whole = (_THOUGHTFUL if think else _PLAIN).fullmatch(reply)
    if whole is not None and not any(_TAG.search(part) for part in whole.groups()) and whole.groups()[-1].strip():
        return ParsedReply(whole.groups()[-1].strip(), True)
    _, _, behind = reply.partition(_OPEN)
    action, closed, _ = behind.partition(_CLOSE)
    return ParsedReply(action.strip() if closed else "", False)


def parse_published(reply: str, think: bool, tail: int = 30) -> ParsedReply:
    """
    >>> parse_published("<think>cold</think><action>Open Fridge 1</action>", think=True)
    ParsedReply(action='open fridge 1', format=True)
    >>> parse_published("I would open the fridge 1", think=True, tail=13)
    ParsedReply(action=' the fridge 1', format=False)
    """
    lowered = reply.lower()
    start, end = lowered.find(_OPEN), lowered.find(_CLOSE)
    if start < 0 or end < 0:
        return ParsedReply(lowered[-tail:], False)
    thought = not think or ("<think>" in reply and "</think>" in reply)
    return ParsedReply(lowered[start + len(_OPEN) : end].strip(), thought and not _CHINESE.search(reply))


def parse(reply: str, parser: Literal["strict", "published"], think: bool, tail: int = 30) -> ParsedReply:
    """Apply the named convention; ``published`` takes the last ``tail`` characters of a reply without tags."""
    if parser == "strict":
        return parse_strict(reply, think)
    return parse_published(reply, think, tail)
