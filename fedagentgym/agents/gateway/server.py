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
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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

log = get_logger(__name__)
MODEL = "policy"
MAX_CONNECTIONS, MAX_OPEN_CALLS, MAX_WAIT = 256, 64, 30.0
_START_SECONDS = 120.0


@dataclass(eq=False)
class Ticket:
    """A request that the playing thread answers. `body` holds the checked fields; for a chat, the raw JSON object."""

    kind: Literal["episode", "chat", "step", "reward", "finish"]
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


def make_app(doorkeeper: Doorkeeper, tickets: queue.SimpleQueue[Ticket]) -> Any:
    """Return the ASGI application."""
    require("starlette", "gateway")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def read_key(request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise GatewayError(401, "wrong_key", "a request needs the header Authorization: Bearer KEY")
        return key.strip()

    def find_episode(request: Request) -> OpenEpisode:
        key = read_key(request)
        episode = doorkeeper.find_episode(key)
        if episode is None:
            if doorkeeper.find_worker(key) is not None:
                raise GatewayError(
                    401,
                    "wrong_key",
                    "this is the key of the run; use the key of the episode, which /v1/episodes returned",
                )
            raise make_unknown_episode()
        return episode

    async def read(request: Request) -> dict[str, Any]:
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

    async def ask(kind: Any, body: dict[str, Any], episode: OpenEpisode | None = None, worker: str = "") -> Any:
        loop = asyncio.get_running_loop()
        ticket = Ticket(kind, body, loop.create_future(), episode, worker)
        tickets.put(ticket)
        if episode is not None:
            episode.waiting += 1
            try:
                return await ticket.answer
            finally:
                episode.waiting -= 1
        limit = loop.time() + body["wait"]
        while loop.time() < limit and not doorkeeper.closing:
            # checked twice a second, so that a waiting program is answered soon after the run ends
            done, _ = await asyncio.wait([ticket.answer], timeout=min(0.5, max(limit - loop.time(), 0.0)))
            if done:
                break
        if not ticket.answer.done():
            ticket.answer.cancel()
            return None
        return ticket.answer.result()

    async def begin_episode(request: Request) -> Response:
        worker = doorkeeper.find_worker(read_key(request))
        if worker is None:
            raise GatewayError(401, "wrong_key", "this is not the key of the run, which the variable GATEWAY_KEY holds")
        plain = await read(request)
        refuse_others(plain, "wait")
        wait = read_number(plain, "wait", 0.0, MAX_WAIT, MAX_WAIT)
        given = None if doorkeeper.closing else await ask("episode", {"wait": wait}, worker=worker)
        if given is not None:
            base = f"http://{request.headers['host']}"
            return JSONResponse({**given, "base_url": f"{base}/v1"})
        if doorkeeper.closing:
            raise GatewayError(410, "run_over", "the run is over: the program should exit")
        return Response(status_code=204)

    async def complete_chat(request: Request) -> Response:
        episode = find_episode(request)
        if episode.open_calls >= MAX_OPEN_CALLS:
            raise GatewayError(429, "busy", f"{MAX_OPEN_CALLS} calls of this episode are already waiting")
        episode.open_calls += 1
        try:
            body = await read(request)
            answer: ChatAnswer = await ask("chat", body, episode)
        finally:
            episode.open_calls -= 1
        headers = {"x-fedagentgym-overridden": ", ".join(answer.overridden)} if answer.overridden else {}
        headers = {name: value.encode("ascii", "replace").decode() for name, value in headers.items()}
        if read_flag(body, "stream"):
            usage = read_flag(body.get("stream_options") or {}, "include_usage")
            return Response("".join(format_stream(answer, usage)), media_type="text/event-stream", headers=headers)
        return JSONResponse(format_completion(answer), headers=headers)

    async def list_models(request: Request) -> Response:
        key = read_key(request)
        if doorkeeper.find_worker(key) is None:
            find_episode(request)
        one = {"id": MODEL, "object": "model", "created": 0, "owned_by": "fedagentgym"}
        return JSONResponse({"object": "list", "data": [one]})

    async def step(request: Request) -> Response:
        episode, plain = find_episode(request), await read(request)
        refuse_others(plain, "action")
        return JSONResponse(await ask("step", {"action": make_encodable(read_text(plain, "action"))}, episode))

    async def reward(request: Request) -> Response:
        episode, plain = find_episode(request), await read(request)
        refuse_others(plain, "reward", "success")
        low, high = float("-inf"), float("inf")  # the playing thread knows the range
        body: dict[str, Any] = {"reward": read_number(plain, "reward", low, high)}
        if plain.get("success") is not None:
            body["success"] = read_flag(plain, "success")
        return JSONResponse(await ask("reward", body, episode))

    async def finish(request: Request) -> Response:
        episode, plain = find_episode(request), await read(request)
        refuse_others(plain, "status", "error")
        status = read_text(plain, "status", "done")
        if status not in ("done", "failed", "discard"):
            refuse("status must be done, failed or discard", "status")
        error = "" if plain.get("error") is None else read_text(plain, "error")
        return JSONResponse(await ask("finish", {"status": status, "error": error[:2000]}, episode))

    def guard(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Answer every error in OpenAI's form."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except GatewayError as error:
                headers = {"Retry-After": "1"} if error.status == 429 else {}
                return JSONResponse(error.to_plain(), error.status, headers=headers)
            except ClientDisconnect:
                return Response(status_code=400)

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

    posts = {
        "/v1/episodes": begin_episode,
        "/v1/chat/completions": complete_chat,
        "/v1/step": step,
        "/v1/reward": reward,
        "/v1/finish": finish,
    }
    routes = [Route(path, guard(handler), methods=["POST"]) for path, handler in posts.items()]
    routes.append(Route("/v1/models", guard(list_models), methods=["GET"]))
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
