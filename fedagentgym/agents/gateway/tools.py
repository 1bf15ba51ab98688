"""Tool calls in a reply. Each function of `PARSERS` reads one form of calls.

A broken or incomplete call is never repaired: the reply is returned to the program as plain text.
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
    """The text of a reply and its calls. `whole` is False if a call is broken, or missing where the form requires one."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    whole: bool = True


def read_hermes(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """Read calls in the form of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` between text."""
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
    """Read a call in the form of Llama 3, in which the whole reply is `{"name": ..., "parameters": {...}}`."""
    call = _read_call(reply, tools)
    return ReadReply(reply, whole=not reply.lstrip().startswith("{")) if call is None else ReadReply("", (call,))


def read_action_tags(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """Read a call in the form of this package's prompts: `<action>...</action>` fills the only argument of the only tool."""
    before, opened, rest = reply.partition(_ACTION)
    action, closed, after = rest.partition(_END_ACTION)
    if not opened or not closed or _ACTION in after:
        return ReadReply(reply, whole=False)
    name, argument = find_single_argument(tools)
    call = ToolCall(name, format_json({argument: action.strip()}))
    return ReadReply((before + after).strip(), (call,))


def read_nothing(reply: str, tools: Sequence[Mapping[str, Any]]) -> ReadReply:
    """Return the reply as text without calls."""
    return ReadReply(reply)


PARSERS: Mapping[str, Callable[[str, Sequence[Mapping[str, Any]]], ReadReply]] = {
    "hermes": read_hermes,
    "json": read_json,
    "action-tags": read_action_tags,
    "none": read_nothing,
}


def find_single_argument(tools: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the name of the only tool, and the name of its only argument."""
    if len(tools) != 1:
        raise DataError(f"tools: action-tags call the only tool, and the request has {len(tools)}")
    function = tools[0]["function"]
    arguments = function.get("parameters", {}).get("properties", {})
    if not isinstance(arguments, dict) or len(arguments) != 1:
        raise DataError(f"tools: action-tags fill a tool's only argument, and {function['name']} has none or several")
    return function["name"], next(iter(arguments))


def _read_call(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall | None:
    """Return the call of a known tool that a text holds; None for any other text."""
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
