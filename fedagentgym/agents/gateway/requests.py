"""Requests of a program, read and checked field by field. The error message of a refused request says what to send instead.

The policy is trained under its own decoding settings, since a token drawn at another temperature has another log-prob. So the
fields that every library sends (`temperature`, `top_p`) are overridden. All other fields that would change the distribution
are refused (overridden with `strict: false`), and fields without effect are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn

from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.errors import DataError, show_invisible_characters, show_value
from fedagentgym.base.files import parse_json

MAX_BYTES, MAX_MESSAGES, MAX_DEPTH = 1 << 22, 2000, 32
MAX_STOPS, MAX_STOP_LENGTH, MAX_TOOLS = 4, 256, 128
_ROLES = ("system", "developer", "user", "assistant", "tool")
_WITHOUT_EFFECT = (
    "model", "stream", "stream_options", "user", "metadata", "store", "parallel_tool_calls", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
}
"""Fields that would change the distribution or the format of a reply, each with the values that have no effect."""
_INSTEAD = {
    "n": "ask n times",
    "top_logprobs": "only the log-probs of the drawn tokens are known: leave it out",
    "response_format": "only {'type': 'text'} can be trained: ask for the format in the prompt",
    "functions": "name them as tools",
    "modalities": "only texts are read and written",
}


class GatewayError(Exception):
    """An error that is answered in OpenAI's format."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def to_plain(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = show_invisible_characters(str(self))
        return {"error": {"message": message, "type": kind, "code": self.code, "param": self.param}}


def make_unknown_episode() -> GatewayError:
    """Return the error for a key that belongs to no open episode."""
    return GatewayError(401, "unknown_episode", "no such episode: it has ended, took too long, or was restarted")


def refuse(message: str, param: str | None, code: Literal["malformed", "unsupported"] = "malformed") -> NoReturn:
    raise GatewayError(400, code, message, param)


class ToolCall(NamedTuple):
    """A call of a tool. `arguments` is a JSON text in normalized form, so that calls can be compared."""

    name: str
    arguments: str


class ChatMessage(NamedTuple):
    """The parts of a message that are compared; ids of calls, names and annotations are left out."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()


class ChatRequest(NamedTuple):
    """A checked request for a reply. `overridden` are the names of fields whose values are not used."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...]
    reads_calls: bool
    max_tokens: int
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    overridden: tuple[str, ...] = ()
    seeded: bool = False


def read_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body is an empty object."""
    if not body:
        return {}
    try:
        plain = parse_json(body, "the body", halves=True, deepest=MAX_DEPTH)
    except DataError as error:
        if "levels deep" in str(error):
            raise GatewayError(413, "too_large", f"the body is nested more than {MAX_DEPTH} levels deep") from None
        refuse(str(error), None)
    if not isinstance(plain, dict):
        refuse("the body must be a JSON object", None)
    return plain


# ---- fields of any request --------------------------------------------------------------------------------------------


def read_text(plain: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a text field; it is required if it has no default."""
    value = plain.get(name, default)
    if not isinstance(value, str):
        refuse(f"{name} must be a text, got {show_value(value)}", name)
    return value


def read_number(plain: Mapping[str, Any], name: str, low: float, high: float, default: float | None = None) -> float:
    """Return a finite number within bounds; it is required if it has no default."""
    value = plain.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        refuse(f"{name} must be a finite number, got {show_value(value)}", name)
    if not low <= value <= high:
        refuse(f"{name} must be a number from {low:g} to {high:g}, got {show_value(value)}", name)
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def read_flag(plain: Mapping[str, Any], name: str) -> bool:
    value = plain.get(name)
    if value is not None and not isinstance(value, bool):
        refuse(f"{name} must be true or false, got {show_value(value)}", name)
    return bool(value)


def refuse_others(plain: Mapping[str, Any], *known: str) -> None:
    """Refuse unknown fields, since a misspelt field would otherwise be ignored silently."""
    if unknown := next((name for name in plain if name not in known), None):
        refuse(f"unknown field {show_value(unknown)}; the fields are {', '.join(known) or 'none'}", unknown[:100])


# ---- chat completions -------------------------------------------------------------------------------------------------


def read_chat(plain: Mapping[str, Any], decoding: Decoding, *, strict: bool) -> ChatRequest:
    """Return a checked chat completion request. Without `strict`, fields that would change the distribution are overridden."""
    overridden: list[str] = []

    def refuse_or_override(name: str, message: str) -> None:
        if strict:
            refuse(message, name, "unsupported")
        overridden.append(name)

    for name, low, high, own in (("temperature", 0, 2, decoding.temperature), ("top_p", 0, 1, decoding.top_p)):
        if plain.get(name) is not None and read_number(plain, name, low, high) != own:
            overridden.append(name)
    for name, neutral in _NEUTRAL.items():
        value = plain.get(name)
        if value is not None and (isinstance(value, bool) or value not in neutral):
            refuse_or_override(name, f"{name}: {_INSTEAD.get(name, 'it changes what is drawn: leave it out')}")
    known = (*_WITHOUT_EFFECT, *_NEUTRAL, "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop",
             "seed", "logprobs", "tools", "tool_choice", "function_call")  # fmt: skip
    for name, value in plain.items():
        if name not in known and value is not None:
            refuse_or_override(
                name[:100], f"the field {show_value(name)} is not known, and may change what is drawn: leave it out"
            )
    choice = _read_tool_choice(plain, refuse_or_override)
    tools = _read_tools(plain.get("tools"))
    options = plain.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        refuse("stream_options must be an object", "stream_options")
    for where, name in ((plain, "stream"), (options or {}, "include_usage")):
        read_flag(where, name)  # checked here; the server reads the two flags when it sends the answer
    if plain.get("seed") is not None and (isinstance(plain["seed"], bool) or not isinstance(plain["seed"], int)):
        refuse("seed must be an integer", "seed")
    return ChatRequest(
        messages=_read_messages(plain.get("messages")),
        tools=tools,
        reads_calls=bool(tools) and choice != "none",
        max_tokens=min(_read_length(plain), decoding.max_new_tokens),
        stop=_read_stop(plain.get("stop")),
        logprobs=read_flag(plain, "logprobs"),
        overridden=tuple(overridden),
        seeded=plain.get("seed") is not None,
    )


def _read_length(plain: Mapping[str, Any]) -> int:
    most = 1 << 40
    for name in ("max_tokens", "max_completion_tokens"):
        value = plain.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            refuse(f"{name} must be a positive whole number, got {show_value(value)}", name)
        most = most if value is None else min(most, value)
    return most


def _read_stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        refuse("stop must be a text or a list of texts, none of them empty", "stop")
    if len(stops) > MAX_STOPS or any(len(one) > MAX_STOP_LENGTH for one in stops):
        refuse(f"stop may have at most {MAX_STOPS} texts of at most {MAX_STOP_LENGTH} characters", "stop")
    return tuple(stops)


def _read_tool_choice(plain: Mapping[str, Any], refuse_or_override: Callable[[str, str], None]) -> str:
    for name in ("tool_choice", "function_call"):
        value = plain.get(name)
        if value is None or value in ("auto", "none"):
            continue
        if not isinstance(value, str | Mapping):
            refuse(f"{name} must be a text or an object, got {show_value(value)}", name)
        refuse_or_override(name, f"{name} is auto or none: a call cannot be forced, since that changes what is drawn")
    return "none" if plain.get("tool_choice") == "none" else "auto"


def _read_tools(value: Any) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        refuse(f"tools must be a list of at most {MAX_TOOLS}", "tools")
    for place, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            refuse("a tool must be {'type': 'function', 'function': {...}}", f"tools[{place}]")
        if not _is_name(function.get("name")):
            refuse(
                "a function's name must have 1 to 64 letters, digits, '_', '-' or '.'", f"tools[{place}].function.name"
            )
        if not isinstance(function.get("parameters", {}), dict) or not isinstance(
            function.get("description") or "", str
        ):
            refuse("a function's description must be a text, and its parameters an object", f"tools[{place}].function")
    return tuple(value)


def _is_name(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= 64
        and value.isascii()
        and all(sign.isalnum() or sign in "_-." for sign in value)
    )


# ---- messages -----------------------------------------------------------------------------------------------------------


def _read_messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        refuse("messages must be a list of at least one message", "messages")
    if len(value) > MAX_MESSAGES:
        raise GatewayError(413, "too_large", f"more than {MAX_MESSAGES:,} messages", "messages")
    messages = tuple(_read_message(one, f"messages[{place}]") for place, one in enumerate(value))
    if messages[-1].role == "assistant":
        refuse(
            "the last message is the assistant's: the beginning of a reply cannot be given; end with a user's or a tool's",
            "messages",
            "unsupported",
        )
    return messages


def _read_message(plain: Any, where: str) -> ChatMessage:
    if not isinstance(plain, dict):
        refuse("a message must be an object", where)
    role = plain.get("role")
    if role == "function":
        refuse("the role function is deprecated: use tools and the role tool", f"{where}.role", "unsupported")
    if not isinstance(role, str) or role not in _ROLES:
        refuse(f"a role must be one of {', '.join(_ROLES)}, got {show_value(role)}", f"{where}.role")
    if plain.get("function_call") is not None:
        refuse("function_call is deprecated: use tool_calls", f"{where}.function_call", "unsupported")
    if plain.get("audio") is not None:
        refuse("only texts are supported", f"{where}.audio", "unsupported")
    calls = _read_calls(plain.get("tool_calls"), where)
    if calls and role != "assistant":
        refuse("only messages of the assistant may have tool_calls", f"{where}.tool_calls")
    content = plain.get("content")
    if content is None and role != "assistant":
        refuse("a message must have content", f"{where}.content")
    text = _read_content(content, f"{where}.content")
    role = "system" if role == "developer" else role
    return ChatMessage(role, text.strip() if role == "assistant" else text, calls)


def _read_content(value: Any, where: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        refuse(f"content must be a text or a list of parts, got {show_value(value)}", where)
    parts = []
    for place, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            refuse("a part must be an object with a type", f"{where}[{place}]")
        if part["type"] not in ("text", "refusal"):
            refuse(f"only texts are supported, not {show_value(part['type'])}", f"{where}[{place}].type", "unsupported")
        if not isinstance(part.get(part["type"]), str):
            refuse("a part of type text must have a text", f"{where}[{place}]")
        parts.append(part[part["type"]])
    return "".join(parts)


def _read_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    where = f"{where}.tool_calls"
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        refuse(f"tool_calls must be a list of at most {MAX_TOOLS}", where)
    calls = []
    for place, one in enumerate(value):
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            refuse("a call must have a function with a name", f"{where}[{place}].function")
        arguments = function.get("arguments", "{}")
        if not isinstance(arguments, str):
            refuse("the arguments of a call must be a JSON text", f"{where}[{place}].function.arguments")
        calls.append(ToolCall(function["name"], normalize_arguments(arguments)))
    return tuple(calls)


def normalize_arguments(text: str) -> str:
    """Return JSON arguments with sorted keys and uniform white space. Text that is not JSON is returned unchanged."""
    try:
        return format_json(parse_json(text or "{}", "", halves=True))
    except DataError:
        return text


def format_json(value: Any) -> str:
    """Return the JSON text of a value in the form used in prompts and records: sorted keys, no escapes of non-ASCII letters."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
