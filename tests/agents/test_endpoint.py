"""The endpoint agent against a local server that behaves well, badly, and expensively."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fedagentgym.agents.players.endpoint import CostCapError, EndpointAgent, EndpointError
from fedagentgym.agents.presets import make_agent
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.make import open_env
from fedagentgym.learning.evaluation import evaluate
from tests.network import stop_server

from .test_agent import play
from .worlds import AskEnv, ShopEnv

SHOP = open_env(ShopEnv)
Answer = Callable[[dict[str, Any], int], tuple[int, Any, dict[str, str]]]


def said(text: str, **more: Any) -> tuple[int, Any, dict[str, str]]:
    body = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    }
    return 200, {**body, **more}, {}


def shopper(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
    """Search for what the first message asks, then buy."""
    last = request["messages"][-1]["content"]
    if "click[buy now]" in last:
        return said("<think>buy</think><action>click[buy now]</action>")
    goal = request["messages"][0]["content"].split("Find me ")[1].split(",")[0]
    return said(f"<think>look</think><action>search[{goal}]</action>")


class Server:
    """A server on a free port; `requests` holds what came in, `busiest` the most that were under way at once."""

    def __init__(self) -> None:
        self.answer: Answer = shopper
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.busiest = self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(request)
                    outer.keys.append(self.headers.get("Authorization"))
                    number = len(outer.requests)
                    outer._now += 1
                    outer.busiest = max(outer.busiest, outer._now)
                status, body, headers = outer.answer(request, number)
                raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status if self.path == "/v1/chat/completions" else 404)
                for name, value in {"Content-Length": str(len(raw)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)
                with outer._lock:
                    outer._now -= 1

            def log_message(self, *args: Any) -> None:
                """Keep the tests' output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        stop_server(self._server)

    def agent(self, **more: Any) -> EndpointAgent:
        options = {"url": self.url, "pause": 0.0, **more.pop("options", {})}
        agent = make_agent({"name": "endpoint", "model": "m", "options": options, **more})
        assert isinstance(agent, EndpointAgent)
        return agent


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.mark.parametrize("context", ["session", "window"])
def test_episodes_are_played_and_counted(server: Server, context: str) -> None:
    agent = server.agent(
        context=context, options={"input_price": 2.0, "output_price": 10.0}, decoding={"temperature": 0.3}
    )
    found = play(SHOP, agent.play(SHOP), count=6)
    assert all([move.action for move in moves][-1] == "click[buy now]" for moves in found)
    assert all(move.format and not move.token_ids for moves in found for move in moves)
    assert agent.usage["requests"] == len(server.requests) == 12
    assert agent.usage["prompt_tokens"] == 1200
    assert agent.usage["cost"] == pytest.approx((1200 * 2.0 + 120 * 10.0) / 1e6)
    assert {request["temperature"] for request in server.requests} == {0.3}
    lengths = sorted(len(request["messages"]) for request in server.requests)
    assert lengths == ([1] * 12 if context == "window" else [1] * 6 + [3] * 6)
    assert len({request["seed"] for request in server.requests}) == 12
    agent.close()


def test_an_evaluation_asks_at_its_own_temperature(server: Server) -> None:
    agent = server.agent(decoding={"temperature": 0.9, "max_new_tokens": 7})
    evaluate(agent, SHOP, tasks=2, temperature=0.25)
    assert {(one["temperature"], one["max_tokens"]) for one in server.requests} == {(0.25, 7)}
    assert agent.usage["requests"] == len(server.requests) > 0 and agent.endpoint.decoding.temperature == 0.9


def test_rows_are_asked_concurrently_but_not_more_than_allowed(server: Server) -> None:
    barrier = threading.Barrier(3, timeout=5)

    def together(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
        barrier.wait()
        return shopper(request, number)

    server.answer = together
    play(SHOP, server.agent(options={"concurrency": 3}).play(SHOP), count=6)
    assert server.busiest == 3


def test_busy_servers_are_asked_again(server: Server) -> None:
    def moody(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
        return (503, "busy", {"Retry-After": "0"}) if number % 2 else shopper(request, number)

    server.answer = moody
    agent = server.agent(options={"concurrency": 1})
    assert len(play(SHOP, agent.play(SHOP), count=2)) == 2
    assert agent.usage["retries"] == 4


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((503, "busy", {}), "no answer after 3 attempts: status 503: busy"),
        ((401, {"error": {"message": "bad key"}}, {}), "refused the request for model 'm': status 401: bad key"),
        ((404, {"error": "no such model"}, {}), "no such model"),
        ((200, "<html>", {}), "not a chat completion: '<html>'"),
        ((200, {"choices": []}, {}), "not a chat completion"),
        ((200, [1], {}), "not a chat completion"),
    ],
)
def test_useless_answers_are_one_clear_sentence(server: Server, answer: Any, message: str) -> None:
    server.answer = lambda request, number: answer
    with pytest.raises(EndpointError, match=message):
        play(SHOP, server.agent(options={"retries": 2}).play(SHOP), count=2)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1"])
def test_a_server_that_was_never_reached_is_not_asked_again(url: str) -> None:
    agent = make_agent({"name": "endpoint", "model": "m", "options": {"url": url, "pause": 30.0}})
    with pytest.raises(
        EndpointError, match=r"cannot be reached \((ConnectionRefused|gai)[Ee]rror.*agent\.options\.url"
    ):
        play(SHOP, agent.play(SHOP), count=1)


def test_a_server_that_goes_away_is_asked_again() -> None:
    server = Server()
    agent = server.agent(options={"retries": 1})
    play(SHOP, agent.play(SHOP), count=1)
    server.close()
    with pytest.raises(EndpointError, match=r"gave no answer after 2 attempts: Connect"):
        play(SHOP, agent.play(SHOP), count=1)


def test_the_cost_cap_stops(server: Server) -> None:
    agent = server.agent(options={"cost_cap": 0.0005, "input_price": 1.0, "concurrency": 1})
    with pytest.raises(CostCapError, match=r"cost cap of 0\.0005 is reached after 5 requests"):
        play(SHOP, agent.play(SHOP), count=20)
    assert len(server.requests) == 5


def test_missing_counts_cut_replies_and_empty_content(server: Server) -> None:
    def sparse(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
        return 200, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, {}

    server.answer = sparse
    agent = server.agent()
    moves = play(SHOP, agent.play(SHOP), count=1)[0]
    assert moves[0].reply == "" and moves[0].finish == "length" and not moves[0].format
    assert agent.usage["uncounted"] == SHOP.max_turns


def test_reply_worlds_and_keys(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "secret")
    server.answer = lambda request, number: said("<answer>red shoes</answer>")
    env = open_env(AskEnv)
    moves = play(env, server.agent(options={"key_variable": "TEST_KEY"}).play(env), count=1)[0]
    assert moves[0].action == "<answer>red shoes</answer>"
    assert set(server.keys) == {"Bearer secret"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"url": "localhost:8000"}}, "http"),
        ({"options": {"cost_cap": 1.0}}, "needs prices"),
        ({"options": {"concurency": 1}}, "did you mean 'concurrency'"),
        ({"decoding": {"constrained": True}}, "cannot constrain"),
        ({"adapter": {"rank": 4}}, "does not use adapter"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_agent({"name": "endpoint", "model": "m", **settings})


@pytest.mark.parametrize("told", ["param", "text"])
def test_parameters_that_a_model_refuses_are_left_out_with_a_word(
    server: Server, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As reasoning models do: no temperature but their own, another name for the limit, no seed."""

    told_of = {
        "max_tokens": "Unsupported parameter: '{}' is not supported with this model. 'max_completion_tokens' must be used.",
        "temperature": "Unsupported value: '{}' does not support 0.4 with this model. Only the default is supported.",
        "seed": "Unknown name '{}': cannot find field.",
    }

    def picky(request: dict[str, Any], number: int) -> tuple[int, Any, dict[str, str]]:
        for name in ("max_tokens", "temperature", "seed"):
            if name in request:
                error = {"message": told_of[name].format(name)}
                return 400, {"error": {**error, **({"param": name} if told == "param" else {})}}, {}
        return shopper(request, number)

    server.answer = picky
    agent = server.agent(options={"concurrency": 1, "retries": 0})
    assert len(play(SHOP, agent.play(SHOP), count=2)) == 2
    assert agent.endpoint.refused == ["max_tokens", "temperature", "seed"]
    assert server.requests[-1]["max_completion_tokens"] == agent.endpoint.decoding.max_new_tokens
    assert "top_p" in server.requests[-1] and len(server.requests) == 4 + 3
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "model 'm' takes no max_tokens",
        "model 'm' takes no temperature",
        "model 'm' takes no seed",
    ]


def test_what_the_user_asked_for_is_never_left_out(server: Server) -> None:
    server.answer = lambda request, number: (400, {"error": {"message": "no seed here", "param": "seed"}}, {})
    with pytest.raises(EndpointError, match="no seed here"):
        play(SHOP, server.agent(options={"extra": {"seed": 1}}).play(SHOP), count=1)
    server.answer = lambda request, number: (422, {"error": "the messages are too long"}, {})
    with pytest.raises(EndpointError, match="too long"):
        play(SHOP, server.agent().play(SHOP), count=1)


@pytest.mark.parametrize(
    "said",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 760 tokens",
        "This model's maximum context length is 760 tokens. Please reduce the messages or max_tokens.",
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens, whereas you provided 5000.",
        "`inputs` tokens + `max_tokens` exceeds the context window",
        "temperature must be between 0 and 1",
        "top_p: Input should be less than or equal to 1",
        "seed is out of range",
    ],
)
@pytest.mark.parametrize("param", [None, "max_tokens", "temperature"])
def test_a_value_that_does_not_fit_is_no_parameter_that_a_model_lacks(
    server: Server, said: str, param: str | None
) -> None:
    """Otherwise later episodes would be played under other settings."""
    server.answer = lambda request, number: (400, {"error": {"message": said, "param": param}}, {})
    agent = server.agent(options={"concurrency": 1, "retries": 0})
    with pytest.raises(EndpointError, match="refused the request"):
        play(SHOP, agent.play(SHOP), count=1)
    assert agent.endpoint.refused == [] and len(server.requests) == 1
