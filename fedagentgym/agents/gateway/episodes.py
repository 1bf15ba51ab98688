"""An episode that a program plays: its calls of the model, which call continues which, and the actions between calls.

A call *goes on after* an earlier call, its parent, if its messages begin with the parent's messages and reply. The first
such call joins the parent's segment. Any further one (a branch, a second attempt) begins a new segment, whose prompt holds
all tokens of the parent as given tokens without loss. So every drawn token is trained on exactly once, and no drawn text is
encoded again.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedagentgym.agents.gateway.render import Ids, MessageRenderer
from fedagentgym.agents.gateway.requests import ChatMessage, ChatRequest, format_json
from fedagentgym.agents.protocols import Job, Move, PlayedEpisode, PlayedTurn
from fedagentgym.agents.text.prompts import Dialogue
from fedagentgym.base.encoding import bytes_digest

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode

REASONS = ("branch", "edited", "template", "tools")
"""Reasons why a call begins a new segment of its episode."""


@dataclass(eq=False)
class AnsweredCall:
    """A prompt and its reply. `ids` are the tokens of both; `row` is the row of the session that holds these tokens."""

    messages: tuple[ChatMessage, ...]
    tools: str
    reply: ChatMessage
    ids: Ids
    segment: int
    stopped: bool
    followed: bool = False
    row: int | None = None


class Prompt(NamedTuple):
    """The prompt of a call: all of its ids, and as `given` those since the parent's reply (all ids without a parent).

    If the call is a `branch`, `given` holds all ids too. `reason` is one of `REASONS` if a segment begins with the call.
    """

    ids: Ids
    given: Ids
    parent: AnsweredCall | None
    branch: bool = False
    reason: str | None = None

    @property
    def fresh(self) -> bool:
        """True if a segment begins with this call."""
        return self.parent is None or self.branch


@dataclass(eq=False)
class OpenEpisode:
    """One attempt at an episode. Only the playing thread changes it, except for two counters of the server's thread:
    `open_calls`, and `waiting`, the requests that wait for the playing thread."""

    job: Job
    env: TextEnv
    attempt: int
    key: str
    worker: str
    dialogue: Dialogue
    start: Episode
    episode: Episode
    begun: float = field(default_factory=time.monotonic)
    latest: float = field(default_factory=time.monotonic)
    calls: list[AnsweredCall] = field(default_factory=list)
    turns: list[PlayedTurn] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reported: str | None = None
    truncated: bool = False
    closed: bool = False
    open_calls: int = 0
    waiting: int = 0
    segments: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        return self.job.number

    def count_prompt(self, ids: Ids) -> tuple[str, int]:
        """Return the key of a call's random stream: the digest of the prompt's ids, and how often this prompt was sent before."""
        found = bytes_digest(struct.pack(f"<{len(ids)}I", *ids))
        self._asked[found] += 1
        return found, self._asked[found] - 1

    # ---- which call goes on after which -------------------------------------------------------------------------------

    def find_prompt(
        self, request: ChatRequest, renderer: MessageRenderer, history: Literal["tokens", "template"]
    ) -> Prompt:
        """Return the prompt of a request. With `tokens`, a call that goes on after another keeps the ids drawn in the earlier
        call. With `template`, every prompt is rendered whole, and goes on after a call only if it begins with all ids of it."""
        by_ids = history == "template"
        whole = renderer.render_whole(request.messages, request.tools) if by_ids else ()
        reason = None
        for call in sorted(self.calls, key=lambda call: (-len(call.ids if by_ids else call.messages), call.followed)):
            if by_ids:
                if whole[: len(call.ids)] == call.ids and len(whole) > len(call.ids):
                    return self._go_on(call, whole[len(call.ids) :])
                continue
            known = (*call.messages, call.reply)
            if request.messages[: len(known)] != known or len(request.messages) == len(known):
                continue
            if call.tools != format_json(request.tools):
                reason = "tools"
                continue
            more = request.messages[len(known) :]
            given = renderer.render_next(call.messages, more, request.tools, stopped=call.stopped)
            if given is None:
                reason = "template"
                break
            return self._go_on(call, given)
        whole = whole or renderer.render_whole(request.messages, request.tools)
        return Prompt(whole, whole, None, reason=reason or self._explain(request, by_ids))

    def _go_on(self, parent: AnsweredCall, given: Ids) -> Prompt:
        ids, branch = parent.ids + given, parent.followed
        parent.followed = True
        return Prompt(ids, ids if branch else given, parent, branch, "branch" if branch else None)

    def _explain(self, request: ChatRequest, by_ids: bool) -> str:
        """Return the reason why a prompt goes on after no earlier call."""
        asked = request.messages
        if by_ids and any(asked[: len(call.messages) + 1] == (*call.messages, call.reply) for call in self.calls):
            return "template"
        return "branch" if any(asked == call.messages for call in self.calls) else "edited"

    # ---- what happens ------------------------------------------------------------------------------------------------

    def add_call(
        self, request: ChatRequest, prompt: Prompt, move: Move, reply: ChatMessage, *, stopped: bool
    ) -> AnsweredCall:
        """Record a reply as a call, and add a turn that has no actions yet."""
        if prompt.fresh:
            segment, self.segments = self.segments, self.segments + 1
        else:
            assert prompt.parent is not None
            segment = prompt.parent.segment
        if prompt.fresh and segment:
            self.counts[prompt.reason or "edited"] += 1
        call = AnsweredCall(
            messages=request.messages,
            tools=format_json(request.tools),
            reply=reply,
            ids=prompt.ids + move.token_ids,
            segment=segment,
            stopped=stopped,
        )
        self.calls.append(call)
        self.turns.append(PlayedTurn(move, segment, self.episode, (), ()))
        return call

    def act(self, action: str) -> str:
        """Play an action of the latest reply, and return the message that this package's player would show next."""
        before = self.episode
        (self.episode,) = self.env.step_many([before], [action])
        if not self.turns:  # an action before the first call
            self.turns.append(PlayedTurn(Move("", ""), 0, before, (), ()))
        last = self.turns[-1]
        self.turns[-1] = last._replace(acts=(*last.acts, action), after=(*last.after, self.episode))
        asked = self.dialogue.build_messages(before)
        self.dialogue.record_turn(before, asked, last.move.reply, action)
        return self.dialogue.build_messages(self.episode)[-1]["content"]

    def describe_task(self) -> dict[str, Any]:
        """Return the task as the program sees it."""
        task, takes = self.episode.task, "reply" if self.env.takes == "reply" else "command"
        data = self.env.get_data(task) if hasattr(self.env, "get_data") else {}
        return {
            "id": task.id,
            "category": task.category,
            "takes": takes,
            "messages": self.dialogue.build_messages(self.start),
            "data": data,
        }

    def finish(self, lost: str | None = None) -> PlayedEpisode:
        """Close the episode, and return its record. `lost` is the reason if the episode was lost."""
        self.closed = True
        truncated = self.truncated or not self.episode.over
        return PlayedEpisode(
            self.number, self.episode, tuple(self.turns), truncated and not self.episode.terminated, lost
        )


def count_episode(counts: Mapping[str, int], turns: Sequence[PlayedTurn], segments: int) -> Counter[str]:
    """Return an episode's counts for the metrics: the given counts, its calls and segments, and whether it has no action."""
    acted = any(turn.acts for turn in turns)
    found = Counter({name: number for name, number in counts.items() if number})
    found["calls"] += sum(1 for turn in turns if turn.move.token_ids)
    found["segments"] += segments
    found["without_action"] += not acted
    return found
