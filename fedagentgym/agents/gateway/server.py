"""The gateway's HTTP/1.1 server on the loopback address. It checks keys and fields, and passes requests to the playing thread.

Handlers run in a thread with its own event loop. Only the playing thread (`harness.py`) touches episodes, environments and
the model: it takes *tickets* from a queue and answers each once. Between two collections of episodes it takes no tickets, so
a program that asks for an episode waits for the time that it named, and then gets the empty status 204.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedagentgym.agents.gateway.episodes import OpenEpisode
from fedagentgym.agents.gateway.requests import (
    MAX_BYTES,
    GatewayError,
    make_unknown_episode,
    read_body,
    read_flag,
    read_number,
    read_text,
    refuse,
    refuse_others,
)
from fedagentgym.agents.text.tokens import make_encodable
from fedagentgym.base.errors import FedAgentGymError, describe_error
from fedagentgym.base.imports import require
from fedagentgym.base.peers import HostCheck
from fedagentgym.base.process import get_logger

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = get_logger(__name__)
MODEL = "policy"
MAX_CONNECTIONS, MAX_OPEN_CALLS, MAX_WAIT = 256, 64, 30.0
_START_SECONDS = 120.0
Kind = Literal["episode", "chat", "step", "reward", "finish"]


@dataclass(eq=False)
class Ticket:
    """A request that the playing thread answers. `body` holds the checked fields; for a chat, the raw JSON object."""

    kind: Kind
    body: dict[str, Any]
    answer: asyncio.Future[Any]
    episode: OpenEpisode | None = None
    worker: str = ""

    def settle(self, value: Any) -> None:
        """Set the answer, or an error that the handler raises. Called in the server's thread."""
        if not self.answer.done():
            self.answer.set_exception(value) if isinstance(value, Exception) else self.answer.set_result(value)

    @property
    def abandoned(self) -> bool:
        """True if no connection waits for the answer any more."""
        return self.answer.done()


@dataclass(eq=False)
class ChatAnswer:
    """The answer of the playing thread to a chat completion."""

    id: str
    content: str | None
    calls: list[dict[str, Any]]
    finish: str
    prompt_tokens: int
    tokens: int
    logprobs: list[dict[str, Any]] | None = None
    overridden: tuple[str, ...] = ()


class Doorkeeper(Protocol):
    """Finds the worker or the episode that a key belongs to."""

    closing: bool

    def find_worker(self, key: str) -> str | None:
        """Return the worker that has this run key; None if there is none."""

    def find_episode(self, key: str) -> OpenEpisode | None:
        """Return the open episode that has this key; None if there is none."""


@dataclass(eq=False)
class GatewayServer:
    """A server on a port of the loopback address, in its own thread. Port 0 takes a free port."""

    doorkeeper: Doorkeeper
    port: int = 0
    tickets: queue.SimpleQueue[Ticket] = field(default_factory=queue.SimpleQueue)
    _answers: list[tuple[Ticket, Any]] = field(default_factory=list)
    _server: Any = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        uvicorn: Any = require("uvicorn", "gateway")
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self.port))
        except OSError as error:
            listener.close()
            raise FedAgentGymError(
                f"the gateway cannot listen on port {self.port} of 127.0.0.1: {error.strerror}"
            ) from None
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            make_app(self.doorkeeper, self.tickets),
            http="h11",
            ws="none",
            loop="auto",  # uvloop where it is installed
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=1 << 16,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="gateway", daemon=True
        )
        self._thread.start()
        limit = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > limit:
                raise FedAgentGymError("the gateway's server did not start")
            time.sleep(0.002)

    def answer(self, ticket: Ticket, value: Any) -> None:
        """Queue an answer until `send` is called. Waking the server's thread takes time, so answers are sent together."""
        self._answers.append((ticket, value))

    def send(self) -> None:
        """Pass all queued answers to the server's thread."""
        given, self._answers = self._answers, []

        def settle() -> None:
            for ticket, value in given:
                ticket.settle(value)

        if given:
            with contextlib.suppress(RuntimeError):  # raised if the server's loop has ended
                given[0][0].answer.get_loop().call_soon_threadsafe(settle)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(5.0)
            self._server = self._thread = None


# ---- requests and their handlers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a request: a JSON object, the text of a stream of events, or nothing."""

    body: Mapping[str, Any] | str | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Desk:
    """The handlers of all requests. They check keys and fields, and wait for the answers of the playing thread."""

    doorkeeper: Doorkeeper
    tickets: queue.SimpleQueue[Ticket]

    async def begin_episode(self, request: Request) -> Answer:
        worker = self.doorkeeper.find_worker(_read_key(request))
        if worker is None:
            raise GatewayError(401, "wrong_key", "this is not the key of the run, which the variable GATEWAY_KEY holds")
        plain = await _read(request)
        refuse_others(plain, "wait")
        wait = read_number(plain, "wait", 0.0, MAX_WAIT, MAX_WAIT)
        given = None if self.doorkeeper.closing else await self._ask_for_episode(worker, wait)
        if given is not None:
            return Answer({**given, "base_url": f"http://{request.headers['host']}/v1"})
        if self.doorkeeper.closing:
            raise GatewayError(410, "run_over", "the run is over: the program should exit")
        return Answer(None)

    async def complete_chat(self, request: Request) -> Answer:
        episode = self._find_episode(request)
        if episode.open_calls >= MAX_OPEN_CALLS:
            raise GatewayError(429, "busy", f"{MAX_OPEN_CALLS} calls of this episode are already waiting")
        episode.open_calls += 1
        try:
            body = await _read(request)
            answer: ChatAnswer = await self._ask("chat", body, episode)
        finally:
            episode.open_calls -= 1
        headers = {"x-fedagentgym-overridden": ", ".join(answer.overridden)} if answer.overridden else {}
        headers = {name: value.encode("ascii", "replace").decode() for name, value in headers.items()}
        if read_flag(body, "stream"):
            usage = read_flag(body.get("stream_options") or {}, "include_usage")
            return Answer("".join(format_stream(answer, usage)), headers)
        return Answer(format_completion(answer), headers)

    async def list_models(self, request: Request) -> Answer:
        if self.doorkeeper.find_worker(_read_key(request)) is None:
            self._find_episode(request)
        one = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fedagentgym"}
        return Answer({"object": "list", "data": [one]})

    async def step(self, request: Request) -> Answer:
        episode, plain = self._find_episode(request), await _read(request)
        refuse_others(plain, "action")
        return Answer(await self._ask("step", {"action": make_encodable(read_text(plain, "action"))}, episode))

    async def reward(self, request: Request) -> Answer:
        episode, plain = self._find_episode(request), await _read(request)
        refuse_others(plain, "reward", "success")
        low, high = float("-inf"), float("inf")  # the playing thread knows the range
        body: dict[str, Any] = {"reward": read_number(plain, "reward", low, high)}
        if plain.get("success") is not None:
            body["success"] = read_flag(plain, "success")
        return Answer(await self._ask("reward", body, episode))

    async def finish(self, request: Request) -> Answer:
        episode, plain = self._find_episode(request), await _read(request)
        refuse_others(plain, "status", "error")
        status = read_text(plain, "status", "done")
        if status not in ("done", "failed", "discard"):
            refuse("status must be done, failed or discard", "status")
        error = "" if plain.get("error") is None else read_text(plain, "error")
        return Answer(await self._ask("finish", {"status": status, "error": error[:2000]}, episode))

    def _find_episode(self, request: Request) -> OpenEpisode:
        key = _read_key(request)
        episode = self.doorkeeper.find_episode(key)
        if episode is not None:
            return episode
        if self.doorkeeper.find_worker(key) is None:
            raise make_unknown_episode()
        about = "this is the key of the run; use the key of the episode, which /v1/episodes returned"
        raise GatewayError(401, "wrong_key", about)

    async def _ask(self, kind: Kind, body: dict[str, Any], episode: OpenEpisode) -> Any:
        """The playing thread's answer to a request of an episode."""
        ticket = Ticket(kind, body, asyncio.get_running_loop().create_future(), episode)
        self.tickets.put(ticket)
        episode.waiting += 1
        try:
            return await ticket.answer
        finally:
            episode.waiting -= 1

    async def _ask_for_episode(self, worker: str, wait: float) -> Any:
        """An episode for this worker; None if there is none within `wait` seconds, or before the run ends."""
        loop = asyncio.get_running_loop()
        ticket = Ticket("episode", {"wait": wait}, loop.create_future(), worker=worker)
        self.tickets.put(ticket)
        limit = loop.time() + wait
        while loop.time() < limit and not self.doorkeeper.closing:
            # checked twice a second, so that a waiting program is answered soon after the run ends
            done, _ = await asyncio.wait([ticket.answer], timeout=min(0.5, max(limit - loop.time(), 0.0)))
            if done:
                break
        if not ticket.answer.done():
            ticket.answer.cancel()
            return None
        return ticket.answer.result()


def _read_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise GatewayError(401, "wrong_key", "a request needs the header Authorization: Bearer KEY")
    return key.strip()


async def _read(request: Request) -> dict[str, Any]:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES:
        raise GatewayError(413, "too_large", f"a body has at most {MAX_BYTES:,} bytes")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise GatewayError(413, "too_large", f"a body has at most {MAX_BYTES:,} bytes")
        parts.append(part)
    return read_body(b"".join(parts))


def make_app(doorkeeper: Doorkeeper, tickets: queue.SimpleQueue[Ticket]) -> Any:
    """Return the ASGI application: the routes to a desk, and errors in OpenAI's form."""
    require("starlette", "gateway")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def respond(handler: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                answer = await handler(request)
            except GatewayError as error:
                headers = {"Retry-After": "1"} if error.status == 429 else {}
                return JSONResponse(error.to_plain(), error.status, headers=headers)
            except ClientDisconnect:
                return Response(status_code=400)
            if answer.body is None:
                return Response(status_code=204)
            if isinstance(answer.body, str):
                return Response(answer.body, media_type="text/event-stream", headers=answer.headers)
            return JSONResponse(answer.body, headers=answer.headers)

        return handle

    async def explain(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            known = {
                404: ("not_found", "there is no such address"),
                405: ("not_found", "the address has another method"),
            }
            code, message = known.get(error.status_code, ("malformed", "the request is not understood"))
            return JSONResponse(GatewayError(error.status_code, code, message).to_plain(), error.status_code)
        log.warning("the gateway could not answer a request: %s", describe_error(error))
        return JSONResponse(GatewayError(500, "generation_failed", "the gateway failed").to_plain(), 500)

    desk = Desk(doorkeeper, tickets)
    posts = {
        "/v1/episodes": desk.begin_episode,
        "/v1/chat/completions": desk.complete_chat,
        "/v1/step": desk.step,
        "/v1/reward": desk.reward,
        "/v1/finish": desk.finish,
    }
    routes = [Route(path, respond(handler), methods=["POST"]) for path, handler in posts.items()]
    routes.append(Route("/v1/models", respond(desk.list_models), methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: explain, Exception: explain})
    return HostCheck(app)


# ---- answers in OpenAI's form -------------------------------------------------------------------------------------------


def _describe_message(answer: ChatAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    return message | ({"tool_calls": answer.calls} if answer.calls else {})


def _count_usage(answer: ChatAnswer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.tokens, "total_tokens": total}


def format_completion(answer: ChatAnswer) -> dict[str, Any]:
    """Return a completion as the JSON object of an answer without streaming."""
    choice: dict[str, Any] = {"index": 0, "message": _describe_message(answer), "finish_reason": answer.finish}
    choice["logprobs"] = None if answer.logprobs is None else {"content": answer.logprobs, "refusal": None}
    about = {"id": answer.id, "object": "chat.completion", "created": int(time.time()), "model": MODEL}
    return {**about, "choices": [choice], "usage": _count_usage(answer)}


def format_stream(answer: ChatAnswer, include_usage: bool) -> Iterator[str]:
    """Yield a completion as server-sent events. The reply is a single delta, since it is generated in a batch with others."""
    about = {"id": answer.id, "object": "chat.completion.chunk", "created": int(time.time()), "model": MODEL}
    delta = _describe_message(answer)
    if answer.calls:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(answer.calls)]
    logprobs = None if answer.logprobs is None else {"content": answer.logprobs, "refusal": None}
    last = {"index": 0, "delta": {}, "finish_reason": answer.finish}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}]},
        {"choices": [last]},
    ]
    if include_usage:
        chunks.append({"choices": [], "usage": _count_usage(answer)})
    for chunk in chunks:
        yield f"data: {json.dumps({**about, **chunk})}\n\n"
    yield "data: [DONE]\n\n"
