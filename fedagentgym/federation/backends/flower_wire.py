"""How requests and replies travel as Flower messages, the same in simulation and in a deployment.

A Flower message carries one record with our canonical bytes. Waiting is ours: Flower gives no sign of a client that died for a
minute or more, so every request has a deadline of its own, and there is one reply per request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.extras import require
from fedagentgym.federation.exchange import Reply, Request

RECORD = "fedagentgym"
QUERY, TRAIN = "query", "train"
_POLL_SECONDS = 0.05
_REPLY_FRAMING = 1 << 16
_TTL_SECONDS = 86_400.0


def encode_request(request: Request, recipe: Mapping[str, Any], state: bytes | None) -> Any:
    """The record of a request: its header, the recipe that it belongs to, the message, and the state if it travels."""
    parts = {"header": encode({**request.to_header(), "recipe": dict(recipe)}), "message": request.body}
    return make_record(parts if state is None else {**parts, "state": state})


def decode_request(content: Any) -> tuple[Request, dict[str, Any], bytes | None]:
    """Request, recipe and state of a record."""
    parts = read_record(content)
    header = decode(parts["header"])
    return Request.from_header(header, parts["message"]), header["recipe"], parts.get("state")


def encode_reply(reply: Reply) -> Any:
    """The record of a reply. A state that stays on its machine is an empty one that says so."""
    told = {"status": reply.status, "error": reply.error, "detail": reply.detail, "seconds": reply.seconds}
    parts = {"header": encode(told), "message": reply.body}
    return make_record(parts if reply.state is None else {**parts, "state": reply.state})


def decode_reply(content: Any, request: Request) -> Reply:
    """The reply to a request; longer parts than it admits are refused."""
    parts = read_record(content)
    header = decode(parts["header"], limit=_REPLY_FRAMING)
    state = parts.get("state")
    if len(parts["message"]) > request.reply_limit or (state is not None and len(state) > request.state_limit):
        return Reply(request.client, "refused", error="its answer is longer than the declaration admits")
    told = {name: header[name] for name in ("error", "detail", "seconds")}
    return Reply(request.client, header["status"], parts["message"], state, **told)


def make_record(parts: Mapping[str, bytes]) -> Any:
    flower = require("flwr.app", "flower")
    return flower.RecordDict({RECORD: flower.ConfigRecord(dict(parts))})


def read_record(content: Any) -> dict[str, bytes]:
    if RECORD not in content:
        raise DataError("a Flower message without a record of ours")
    return dict(content[RECORD])


def send_and_receive(
    grid: Any, requests: Sequence[tuple[int, Request]], contents: Sequence[Any], deadline: float | None
) -> list[Reply]:
    """Send each request to its node and wait for all answers, each no longer than the deadline."""
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
            place = places.pop(answer.metadata.reply_to_message_id)
            replies[place] = _parse_answer(answer, requests[place][1], time.monotonic() - started)
        if deadline is not None and time.monotonic() - started > deadline:
            break
        time.sleep(_POLL_SECONDS)
    late = time.monotonic() - started
    for place in places.values():
        error = f"no answer within {deadline:g} s"
        replies[place] = Reply(requests[place][1].client, "timeout", error=error, seconds=late)
    return [reply for reply in replies if reply is not None]


def _parse_answer(answer: Any, request: Request, seconds: float) -> Reply:
    """What came back, or why nothing useful did: a node that vanished or an app that crashed is an error of Flower's."""
    if answer.has_error():
        reason = str(answer.error.reason or f"code {answer.error.code}").strip().splitlines()
        return Reply(
            request.client,
            "dead",
            error=f"Flower reports: {reason[-1] if reason else 'no reason'}"[:500],
            seconds=seconds,
        )
    try:
        return decode_reply(answer.content, request)
    except (FedAgentGymError, KeyError, TypeError) as error:
        return Reply(request.client, "refused", error=f"malformed answer: {error}"[:500], seconds=seconds)
