"""Requests and replies as Flower messages, the same in simulation and in a deployment.

A Flower message carries one record of arrays that hold our canonical bytes. Flower sends an array in pieces, so a message may be
larger than what gRPC or a database takes at once. Flower reports a dead client only after a minute or more, so this module keeps
its own time and waits until the deadline of the call; there is one reply per request.

Neither side trusts the other. A record must hold exactly our parts, as bytes. A reply must come from the node that was called
and name the request that it answers. Otherwise the call of that node's client fails, and no other client is affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError
from fedagentgym.base.imports import require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.exchange import MAX_ERROR_LENGTH, ApplicationSpec, Reply, Request, clean_text

log = get_logger(__name__)
RECORD = "fedagentgym"
QUERY, TRAIN = "query", "train"
_NOTHING = b"\0"
Handler = Callable[[Request, ApplicationSpec, "bytes | None"], Reply]
"""The function with which a client's machine serves a request."""
_POLL_SECONDS = 0.05
_REQUEST_FRAMING = 1 << 24
_REPLY_FRAMING = 1 << 16
_TTL_SECONDS = 86_400.0


def encode_request(request: Request, recipe: Mapping[str, Any], state: bytes | None) -> Any:
    """The record of a request: its header, the application's specification, the message, and the state if it is sent."""
    parts = {"header": encode({**request.to_header(), "recipe": dict(recipe)}), "message": request.body}
    return make_record(parts if state is None else {**parts, "state": state})


def decode_request(content: Any) -> tuple[Request, ApplicationSpec, bytes | None]:
    """Request, specification and state of a record."""
    parts = read_record(content, ("header", "message"), ("state",))
    header = decode(parts["header"], limit=_REQUEST_FRAMING)
    if not isinstance(header, dict):
        raise DataError("malformed request: its header is no mapping")
    recipe = ApplicationSpec.load(header.pop("recipe", None))
    return Request.from_header(header, parts["message"]), recipe, parts.get("state")


def answer_content(content: Any, handle: Handler) -> Any:
    """The record that answers the record of a request. Errors are returned in the record, never raised."""
    try:
        request, recipe, state = decode_request(content)
    except DataError as error:
        return encode_reply(Reply(0, "error", error=clean_text(error, MAX_ERROR_LENGTH)), "")
    try:
        reply = handle(request, recipe, state)
    except Exception as error:
        text = clean_text(f"{type(error).__name__}: {error}", MAX_ERROR_LENGTH)
        reply = Reply(request.client, "error", error=text)
    return encode_reply(reply, request.digest)


def encode_reply(reply: Reply, answers: str) -> Any:
    """The record of a reply to the request with the digest `answers`. A state that stays on its machine is sent empty."""
    parts = {"header": encode({**reply.to_header(), "answers": answers}), "message": reply.body}
    return make_record(parts if reply.state is None else {**parts, "state": reply.state})


def decode_reply(content: Any, request: Request) -> Reply:
    """The reply to a request; one that answers another request, or has longer parts than allowed, is refused."""
    parts = read_record(content, ("header", "message"), ("state",))
    header = decode(parts["header"], limit=_REPLY_FRAMING)
    state = parts.get("state")
    if len(parts["message"]) > request.reply_limit or (state is not None and len(state) > request.state_limit):
        return Reply(request.client, "refused", error="its answer is longer than the declaration allows")
    reply = Reply.from_header(request.client, header, parts["message"], state)
    if reply.status == "ok" and header.get("answers") != request.digest:
        return Reply(request.client, "refused", error="it answers another request")
    return reply


def make_record(parts: Mapping[str, bytes]) -> Any:
    """The record of these parts. Flower accepts no empty array, so an empty part is one byte with the shape (0,)."""
    flower = require("flwr.app", "flower")
    arrays = {name: flower.Array("uint8", (len(part),), RECORD, part or _NOTHING) for name, part in parts.items()}
    return flower.RecordDict({RECORD: flower.ArrayRecord(arrays)})


def read_record(content: Any, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, bytes]:
    """The parts of one of our records, which must be the needed ones and may be the optional ones, all of them bytes."""
    record = content.get(RECORD)
    if not isinstance(record, require("flwr.app", "flower").ArrayRecord) or len(content) != 1:
        raise DataError("a Flower message that does not hold exactly one record of ours")
    if not set(needed) <= set(record) <= {*needed, *optional}:
        raise DataError("a Flower message with other parts than ours")
    parts = {}
    for name, array in record.items():
        data, shape = array.data, tuple(array.shape)
        if (array.dtype, array.stype) != ("uint8", RECORD) or type(data) is not bytes:
            raise DataError("a Flower message whose parts are not bytes")
        empty = shape == (0,) and data == _NOTHING
        if not empty and shape != (len(data),):
            raise DataError("a Flower message with a part whose length differs from its shape")
        parts[name] = b"" if empty else data
    return parts


def send_and_receive(
    grid: Any, requests: Sequence[tuple[int, Request]], contents: Sequence[Any], deadline: float | None
) -> list[Reply]:
    """Send each request to its node and wait for all replies, each until its deadline."""
    flower = require("flwr.app", "flower")
    started = time.monotonic()
    messages = [
        flower.Message(content=content, dst_node_id=node, message_type=TRAIN, ttl=_TTL_SECONDS)
        for (node, _), content in zip(requests, contents, strict=True)
    ]
    places = {name: place for place, name in enumerate(grid.push_messages(messages))}
    replies: list[Reply | None] = [None] * len(requests)
    while places:
        for answer in grid.pull_messages(list(places)):
            place = places.pop(answer.metadata.reply_to_message_id, None)
            if place is None:
                log.warning("an answer to a message that was not waiting for one was ignored")
                continue
            replies[place] = _parse_answer(answer, *requests[place], time.monotonic() - started)
        if deadline is not None and time.monotonic() - started > deadline:
            break
        time.sleep(_POLL_SECONDS)
    late = time.monotonic() - started
    for place in places.values():
        error = f"no answer within {deadline:g} s"
        replies[place] = Reply(requests[place][1].client, "timeout", error=error, seconds=late)
    return [reply for reply in replies if reply is not None]


def _parse_answer(answer: Any, node: int, request: Request, seconds: float) -> Reply:
    """The reply in a node's answer. Flower answers with an error for a node that vanished or an app that crashed.

    A client reports how long it computed, which counts up to the time measured here.
    """
    if answer.has_error():
        reason = clean_text(answer.error.reason or f"code {answer.error.code}", 4 * MAX_ERROR_LENGTH, lines=True)
        explanation = clean_text(
            f"Flower reports: {(reason.strip().splitlines() or ['no reason'])[-1]}", MAX_ERROR_LENGTH
        )
        return Reply(request.client, "dead", error=explanation, seconds=seconds)
    if answer.metadata.src_node_id != node:
        return Reply(request.client, "refused", error="its answer came from another node", seconds=seconds)
    try:
        reply = decode_reply(answer.content, request)
    except Exception as error:  # Flower may raise any error for a forged record
        explanation = clean_text(f"malformed answer: {error}", MAX_ERROR_LENGTH)
        return Reply(request.client, "refused", error=explanation, seconds=seconds)
    return replace(reply, seconds=min(reply.seconds, seconds))
