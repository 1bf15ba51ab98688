"""From messages to token ids. A conversation that goes on keeps the drawn ids; nothing that was drawn is encoded again.

Special tokens come from the chat template alone: a special token's name inside a message, a tool's output or an argument is
encoded as text. Without a chat template the texts of the messages are joined, as in the prompts of this package's player.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedagentgym.agents.gateway.requests import ChatMessage, refuse
from fedagentgym.agents.gateway.tools import find_single_argument
from fedagentgym.agents.text.tokens import TextTokenizer
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import parse_json

Tools = Sequence[Mapping[str, Any]]
Ids = tuple[int, ...]


class MessageRenderer:
    """Renders prompts for one tokenizer. `tools` is the form of tool calls in replies, a key of `PARSERS`."""

    def __init__(self, tokenizer: TextTokenizer, *, chat: bool, tools: str) -> None:
        self.tokenizer, self.chat, self.tools = tokenizer, chat, tools

    def check_tools(self, tools: Tools) -> None:
        """Refuse tools that a prompt cannot show or a reply cannot call."""
        if not tools or self.tools == "none":
            return
        if self.tools == "action-tags":
            try:
                find_single_argument(tools)
            except DataError as error:
                refuse(str(error), "tools", "unsupported")
        elif not self.chat:
            refuse(
                "this model has no chat template to show tools: set agent.harness.tools to action-tags",
                "tools",
                "unsupported",
            )

    def render_whole(self, messages: Sequence[ChatMessage], tools: Tools) -> Ids:
        """Return the ids of a conversation, up to the start of the next reply."""
        if not self.chat:
            return self._encode_plain(messages)
        shown, quoted = self._to_template(messages, tools), _Quoted(self.tokenizer.special_names)
        try:
            text = self.tokenizer.render_messages(*quoted.hide(shown))
        except DataError as error:
            refuse(str(error), "messages")
        return self.tokenizer.encode_rendered(text, quoted.names)

    def render_next(
        self, before: Sequence[ChatMessage], more: Sequence[ChatMessage], tools: Tools, *, stopped: bool
    ) -> Ids | None:
        """Return the ids between the reply to `before` and the next reply; None if they cannot be found in the rendered text.

        They hold the messages `more`, after the stop token of the reply if the reply itself has not `stopped`."""
        if not self.chat:
            return self._encode_plain(more)
        mark = make_mark("reply", repr((before, more, tools)))
        shown = self._to_template([*before, ChatMessage("assistant", mark), *more], tools)
        quoted = _Quoted(self.tokenizer.special_names)
        try:
            text = self.tokenizer.render_messages(*quoted.hide(shown))
        except DataError:
            return None
        _, found, rest = text.partition(mark)
        if not found or mark in rest:
            return None
        return self.tokenizer.encode_rendered(self.tokenizer.strip_stop(rest) if stopped else rest, quoted.names)

    def _encode_plain(self, messages: Sequence[ChatMessage]) -> Ids:
        ids: list[int] = []
        for place, message in enumerate(messages):
            text = "".join([message.text, *self._write_calls(message)])
            following = messages[place + 1].role if place + 1 < len(messages) else ""
            ids += self.tokenizer.encode(f"{text}\n\n" if message.role == "system" and following else text)
        return tuple(ids)

    def _write_calls(self, message: ChatMessage) -> list[str]:
        """Return the calls of a message as texts in action tags, as the model writes them."""
        written = []
        for call in message.calls:
            plain = _parse_arguments(call.arguments)
            values = [*plain.values()] if isinstance(plain, dict) else []
            action = values[0] if len(values) == 1 and isinstance(values[0], str) else call.arguments
            written.append(f"<action>{action}</action>")
        return written

    def _to_template(self, messages: Sequence[ChatMessage], tools: Tools) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return messages and tools as chat templates read them.

        The id of a call follows from its position, and the messages of tools are matched to the calls in order. With action
        tags no tools are shown, since the environment's own instructions explain the tags."""
        plainly = self.tools in ("action-tags", "none")
        found: list[dict[str, Any]] = []
        waiting: list[tuple[str, str]] = []
        for place, message in enumerate(messages):
            plain: dict[str, Any] = {"role": message.role, "content": message.text}
            if message.calls and plainly:
                plain["content"] = "\n".join(filter(None, [message.text, *self._write_calls(message)]))
            elif message.calls:
                waiting = [(make_call_id(place, number), call.name) for number, call in enumerate(message.calls)]
                plain["tool_calls"] = [
                    {
                        "id": key,
                        "type": "function",
                        "function": {"name": call.name, "arguments": _parse_arguments(call.arguments)},
                    }
                    for (key, _), call in zip(waiting, message.calls, strict=True)
                ]
            if message.role == "tool":
                if plainly:
                    plain["role"] = "user"
                elif waiting:
                    plain["tool_call_id"], plain["name"] = waiting.pop(0)
            found.append(plain)
        return found, [] if plainly else [*tools]


def make_call_id(*place: Any) -> str:
    """Return the id of a call: nine letters and digits, as the strictest chat template demands.

    It depends on the call's position alone and not on a counter, since some templates write it into the prompt."""
    return digest(list(place)).rpartition(":")[2][:9]


def _parse_arguments(text: str) -> Any:
    try:
        return parse_json(text, "", halves=True)
    except DataError:
        return text


class _Quoted:
    """Replaces the names of special tokens in messages and tools by plain words, until the rendered text is encoded."""

    def __init__(self, special: Sequence[str]) -> None:
        self._special = special
        self.names: dict[str, str] = {}

    def hide(self, value: Any) -> Any:
        """Return the value with a plain word for each special token in its texts and keys; `names` maps words to tokens."""
        found = [name for name in self._special if _holds(value, name)]
        if not found:
            return value
        whole = repr(value)
        # the longest first: a name may be part of another one
        for place, name in enumerate(sorted(found, key=len, reverse=True)):
            self.names[make_mark(f"quoted{place}", whole)] = name
        return _map_texts(value, self._hide_text)

    def _hide_text(self, text: str) -> str:
        for mark, name in self.names.items():
            text = text.replace(name, mark)
        return text


def make_mark(word: str, texts: str) -> str:
    """Return a plain word that does not occur in the texts."""
    mark, tries = f"{word}xmark", 0
    while mark in texts:
        mark, tries = f"{word}x{tries}mark", tries + 1
    return mark


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_texts(below, change) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(below, change) for below in value]
    return value


def _holds(value: Any, name: str) -> bool:
    if isinstance(value, str):
        return name in value
    if isinstance(value, Mapping):
        return any(_holds(key, name) or _holds(below, name) for key, below in value.items())
    return isinstance(value, list | tuple) and any(_holds(below, name) for below in value)
