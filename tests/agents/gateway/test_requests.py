"""Every field of a request with every nasty value: an error of the table, never a fault of the server, and the episode
goes on."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.agents.gateway.requests import MAX_BYTES, GatewayError, read_body, read_chat
from fedagentgym.agents.gateway.tools import PARSERS
from fedagentgym.agents.protocols import Decoding

from .clients import RUN_KEY, Client, make_agent, play, say

START = [say("user", "guess 4")]
TOOL = {
    "type": "function",
    "function": {"name": "act", "parameters": {"type": "object", "properties": {"action": {"type": "string"}}}},
}
CODES = {
    400: {"malformed", "unsupported", "context_length_exceeded"},
    401: {"wrong_key", "unknown_episode"},
    404: {"not_found"},
    405: {"not_found"},
    410: {"run_over"},
    413: {"too_large"},
    422: {"episode_over", "too_many_calls", "wrong_world"},
    429: {"busy"},
}
NASTY: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1 << 70,
    -(1 << 70),
    1e308,
    0.5,
    "",
    "a",
    "\0",
    "\ud800",
    "<|end|>",
    "x" * 5000,
    [],
    [[]],
    [None],
    [1],
    ["a"],
    [{}],
    {},
    {"a": 1},
    {"type": "text"},
    [{"type": "function"}],
    [{"role": "user"}],
    {"type": "json_object"},
]
FIELDS = (
    "messages",
    "model",
    "temperature",
    "top_p",
    "n",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "presence_penalty",
    "seed",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "logprobs",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    "user",
    "functions",
    "function_call",
    "stream",
    "stream_options",
    "parallel_tool_calls",
    "modalities",
    "store",
    "metadata",
    "surprise",
)


def check(status: int, plain: Any) -> None:
    """An answer, or an error of the table in OpenAI's form."""
    if status == 200:
        return
    assert set(plain) == {"error"} and set(plain["error"]) == {"message", "type", "code", "param"}
    assert plain["error"]["code"] in CODES[status], (status, plain)
    assert plain["error"]["message"]


def test_every_field_with_every_nasty_value() -> None:
    """Read alone, so that there may be many: what passes has its types."""
    for field in FIELDS:
        for value in NASTY:
            for strict in (True, False):
                body = json.dumps({"messages": START, field: value}).encode()
                try:
                    found = read_chat(read_body(body), Decoding(max_new_tokens=12), strict=strict)
                except GatewayError as error:
                    check(error.status, error.to_plain())
                else:
                    assert 1 <= found.max_tokens <= 12 and all(isinstance(one, str) for one in found.stop)


ROLES = ["user", "assistant", "tool"]
KEYS = ["role", "content", "tool_calls", "function", "name", "arguments", "type", "text"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["user", "tool"]),
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type", "text"]), below
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4), JSON)
@settings(max_examples=100)
def test_any_messages_and_tools(messages: Any, tools: Any) -> None:
    plain = {"messages": [*messages, *START], "tools": tools}
    try:
        read_chat(plain, Decoding(), strict=True)
    except GatewayError as error:
        check(error.status, error.to_plain())


@pytest.mark.parametrize("chat", [False, True], ids=["texts", "chat template"])
def test_nothing_that_is_sent_breaks_the_server(chat: bool) -> None:
    """By HTTP: nasty fields on every address, broken bodies, sizes at the limits; then the episode is played as ever."""

    def script(client: Client, task: Any) -> None:
        for field in FIELDS:
            for value in NASTY[::3]:
                answer = client.post("/v1/chat/completions", {"messages": START, "max_tokens": 2, field: value})
                if not (field == "stream" and value is True):
                    check(answer.status, answer.plain)
        for path, fields in {
            "step": ["action"],
            "reward": ["reward", "success"],
            "finish": ["status", "error", "other"],
        }.items():
            for field in fields:
                for value in NASTY:
                    if path == "finish" and field == "error" and (value is None or isinstance(value, str)):
                        continue  # these end the episode
                    answer = client.post(f"/v1/{path}", {field: value})
                    if not (path == "step" and answer.status == 200):
                        assert answer.status != 200 or answer.plain["error"]
                        check(answer.status, answer.plain)
        deep = b"[" * 40 + b"]" * 40
        bodies = {
            b"": 400,
            b"{": 400,
            b"[]": 400,
            b"\xff": 400,
            b'{"a":NaN}': 400,
            deep: 413,
            b" " * (MAX_BYTES + 1): 413,
        }
        for body, status in bodies.items():
            answer = client.post("/v1/chat/completions", body)
            assert answer.status == status
            check(answer.status, answer.plain)
        many = json.dumps({"messages": START * 2001}).encode()
        assert client.post("/v1/chat/completions", many).code == "too_large"
        assert client.ask("GET", "/v1/nowhere", None, {"Authorization": f"Bearer {client.key}"}).code == "not_found"
        assert client.ask("GET", "/v1/step", None, {"Authorization": f"Bearer {client.key}"}).code == "not_found"
        assert client.chat(START).status == 200

    rollouts = play(make_agent(chat, limits={"calls": 10_000}), script)
    assert rollouts.program["refused"] > 0 and rollouts.program["lost"] == 0


def test_who_may_ask() -> None:
    def script(client: Client, task: Any) -> None:
        headers: dict[str, dict[str, str]] = {
            "no key": {},
            "another scheme": {"Authorization": f"Basic {client.key}"},
            "a wrong key": {"Authorization": "Bearer 1234"},
            "a key that is no text": {"Authorization": "Bearer \xe9"},
        }
        for header in headers.values():
            for path in ("/v1/chat/completions", "/v1/step", "/v1/episodes", "/v1/finish"):
                assert client.ask("POST", path, b"{}", header).status == 401
        assert client.post("/v1/chat/completions", {"messages": START}, key=RUN_KEY).code == "wrong_key"
        assert client.post("/v1/episodes", {}, key=client.key).code == "wrong_key"
        right = {"Authorization": f"Bearer {client.key}"}
        for name, value in (("Host", "evil.example"), ("Origin", "http://evil.example")):
            assert client.ask("POST", "/v1/chat/completions", b"{}", {**right, name: value}).status == 403
        models = client.ask("GET", "/v1/models", None, right)
        assert [one["id"] for one in models.plain["data"]] == ["policy"]
        assert "access-control-allow-origin" not in {name.lower() for name in models.headers}
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):  # loopback alone
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, int(client.host.rpartition(":")[2])), 1)

    play(make_agent(), script)


def test_limits_of_an_episode() -> None:
    def script(client: Client, task: Any) -> None:
        for _ in range(3):
            assert client.chat(START).status == 200
        assert client.chat(START).code == "too_many_calls"
        assert client.post("/v1/finish", {"status": "done"}).plain == {"kept": True}
        assert client.chat(START).code == client.post("/v1/finish").code == "unknown_episode"

    play(make_agent(limits={"calls": 3}), script)


def test_a_whole_completion_and_its_stream_say_the_same() -> None:
    def script(client: Client, task: Any) -> None:
        whole = client.chat(START, logprobs=True, max_tokens=5).plain
        assert whole["usage"]["completion_tokens"] == len(whole["choices"][0]["logprobs"]["content"]) <= 5
        assert whole["choices"][0]["finish_reason"] in ("stop", "length")
        streamed = client.chat([say("user", "guess 5")], stream=True, stream_options={"include_usage": True})
        assert streamed.headers["content-type"].startswith("text/event-stream")
        events = [line[6:] for line in streamed.body.decode().splitlines() if line]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(one) for one in events]
        assert chunks[-1]["usage"]["total_tokens"] > 0 and chunks[-2]["choices"][0]["finish_reason"]
        replies.append(chunks[0]["choices"][0]["delta"]["content"])

    replies: list[str] = []
    turns = play(make_agent(), script).trajectories[0].turns
    assert replies == [turns[1].reply]


# ---- tools --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "reply", "text", "calls"),
    [
        ("action-tags", "<action> guess 4 </action>", "", [("act", {"action": "guess 4"})]),
        ("action-tags", "so <action>guess 4</action>", "so", [("act", {"action": "guess 4"})]),
        ("action-tags", "<action>guess", "<action>guess", None),
        (
            "hermes",
            'a <tool_call>\n{"name": "act", "arguments": {"action": "x"}}\n</tool_call>',
            "a",
            [("act", {"action": "x"})],
        ),
        ("hermes", '<tool_call>{"name": "act", "arguments": {}}</tool_call>' * 2, "", [("act", {}), ("act", {})]),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', None, None),
        ("hermes", '<tool_call>{"name": "act", "arguments": {}', "", [("act", {})]),
        ("hermes", "<tool_call>{broken</tool_call>", None, None),
        ("hermes", "only text", "only text", []),
        ("json", '{"name": "act", "parameters": {"action": "x"}}', "", [("act", {"action": "x"})]),
        ("json", '{"name": "act", "parameters": 3}', None, None),
        ("json", "only text", "only text", []),
        ("none", "<action>guess 4</action>", "<action>guess 4</action>", []),
    ],
)
def test_calls_in_replies(form: str, reply: str, text: str | None, calls: list[Any] | None) -> None:
    """What is no whole call stays text, and is said to be broken."""
    found = PARSERS[form](reply, [TOOL])
    if form == "hermes" and reply.endswith("{}"):
        return  # a call that the end of the reply cuts: whole JSON is taken
    assert found.whole == (calls is not None)
    assert found.text == (reply if text is None else text)
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == (calls or [])


@given(st.text(max_size=200), st.sampled_from(sorted(PARSERS)))
def test_any_reply_is_read(reply: str, form: str) -> None:
    found = PARSERS[form](reply, [TOOL])
    assert found.calls or found.text == reply


def test_a_tool_by_action_tags_plays_as_a_library_of_agents_does() -> None:
    """The reply becomes a call, its result comes back as a tool's message, and the conversation goes on."""

    def script(client: Client, task: Any) -> None:
        messages, over = list(task["messages"]), False
        while not over:
            answer = client.chat(messages, tools=[TOOL], tool_choice="auto").plain["choices"][0]
            message = answer["message"]
            messages.append(message)
            calls = message.get("tool_calls") or []
            action = json.loads(calls[0]["function"]["arguments"])["action"] if calls else ""
            assert bool(calls) == (answer["finish_reason"] == "tool_calls")
            step = client.post("/v1/step", {"action": action}).plain
            over = step["over"]
            about = {"role": "tool", "tool_call_id": calls[0]["id"]} if calls else {"role": "user"}
            messages.append({**about, "content": step["content"]})

    from .clients import make_trained_agent

    for trajectory in play(make_trained_agent(), script, 3).trajectories:
        assert len(trajectory.segments) == 1 and all(
            turn.format == ("<action>" in turn.reply) for turn in trajectory.turns
        )


def test_tools_that_cannot_be_shown_or_called_are_refused() -> None:
    def script(client: Client, task: Any) -> None:
        two = {"type": "function", "function": {"name": "look"}}
        assert client.chat(START, tools=[TOOL, two]).code == "unsupported"
        assert client.chat(START, tools=[TOOL], tool_choice="required").code == "unsupported"
        assert client.chat(START, tools=[TOOL], tool_choice="none").status == 200

    play(make_agent(), script)
    play(
        make_agent(tools="hermes"), lambda client, task: _expect(client.chat(START, tools=[TOOL]).code == "unsupported")
    )
    loose = play(make_agent(strict=False), lambda client, task: _expect(client.chat(START, n=3, top_k=5).status == 200))
    assert loose.program["overridden"] == 1


def _expect(held: bool) -> None:
    assert held
