"""Calls of tools in a reply: each form is read by one function of `PARSERS`. An incomplete call stays text.

A broken call is never repaired by guessing: the reply is given back as text, and the program answers it like any text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedagentgym.agents.gateway.requests import ToolCall, format_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import parse_json

_ACTION, _END_ACTION = "<action>", "</action>"
_CALL, _END_CALL = "<tool_call>", "</tool_call>"


class ReadReply(NamedTuple):
    """The text of a reply, its calls, and whether all of its calls are whole."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    whole: bool = True


def read_hermes(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once or several times, with text around it: Hermes, Qwen."""
    texts, calls, rest = list[str](), list[ToolCall](), reply
    while True:
        before, opened, rest = rest.partition(_CALL)
        texts.append(before)
        if not opened:
            return ReadReply("".join(texts).strip() if calls else reply, tuple(calls))
        inside, _, rest = rest.partition(_END_CALL)
        call = _read_call(inside, tools)
        if call is None:
            return ReadReply(reply, whole=False)
        calls.append(call)


def read_json(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """The whole reply is `{"name": ..., "parameters": {...}}`: Llama 3."""
    call = _read_call(reply, tools)
    return ReadReply(reply, whole=not reply.lstrip().startswith("{")) if call is None else ReadReply("", (call,))


def read_action_tags(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """`<action>...</action>` calls the only tool, whose only argument is the action: prompts of this package."""
    before, opened, rest = reply.partition(_ACTION)
    action, closed, after = rest.partition(_END_ACTION)
    if not opened or not closed or _ACTION in after:
        return ReadReply(reply, whole=False)
    name, argument = find_single_argument(tools)
    call = ToolCall(name, format_json({argument: action.strip()}))
    return ReadReply((before + after).strip(), (call,))


def read_nothing(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """No calls: all is text."""
    return ReadReply(reply)


PARSERS: Mapping[str, Callable[[str, Sequence[Mapping[str, Any]]], ReadReply]] = {
    "hermes": read_hermes,
    "json": read_json,
    "action-tags": read_action_tags,
    "none": read_nothing,
}


def find_single_argument(tools: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The name of the only tool, and that of its only argument."""
    if len(tools) != 1:
        raise DataError(f"tools: action-tags call the only tool, and the request has {len(tools)}")
    function = tools[0]["function"]
    arguments = function.get("parameters", {}).get("properties", {})
    if not isinstance(arguments, dict) or len(arguments) != 1:
        raise DataError(f"tools: action-tags fill a tool's only argument, and {function['name']} has none or several")
    return function["name"], next(iter(arguments))


def _read_call(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall | None:
    """Read a text that is a call of a known tool; None for any other text."""
    try:
        plain = parse_json(text, "")
    except DataError:
        return None
    if not isinstance(plain, dict):
        return None
    name, arguments = plain.get("name"), plain.get("arguments", plain.get("parameters", {}))
    if (
        not isinstance(name, str)
        or not isinstance(arguments, dict)
        or name not in [tool["function"]["name"] for tool in tools]
    ):
        return None
    return ToolCall(name, format_json(arguments))
