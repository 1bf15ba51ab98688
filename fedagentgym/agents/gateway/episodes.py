"""An episode that a program plays: its calls, the order in which they go on after each other, and the actions between them.

A call *goes on after* an earlier one, its parent, if its messages begin with the parent's messages and reply. The first
call that does joins the parent's segment; another one (a branch, a second attempt) begins a segment whose prompt is all
of the parent's tokens, given and without loss. So every drawn token is learnt from exactly once, and no drawn text is
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
"""Reasons why a call begins another segment of its episode."""


@dataclass(eq=False)
class AnsweredCall:
    """A prompt and its reply. `ids` are all of its tokens, given and drawn; `row` is the session's row that holds them."""

    messages: tuple[ChatMessage, ...]
    tools: str
    reply: ChatMessage
    ids: Ids
    segment: int
    stopped: bool
    followed: bool = False
    row: int | None = None


class Prompt(NamedTuple):
    """The ids of a call: all of them, and those that were given since its parent, if it goes on after one."""

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
    """One attempt at an episode. All of it belongs to the thread that plays, but for `open_calls` and `waiting` (requests that
    wait for this thread), which the server counts."""

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
        """Return the name of a call's draws: the digest of all ids of the prompt, and how often it was asked before."""
        found = bytes_digest(struct.pack(f"<{len(ids)}I", *ids))
        self._asked[found] += 1
        return found, self._asked[found] - 1

    # ---- which call goes on after which -------------------------------------------------------------------------------

    def find_prompt(
        self, request: ChatRequest, renderer: MessageRenderer, history: Literal["tokens", "template"]
    ) -> Prompt:
        """Return the ids of a request's prompt. With `tokens`, a call that goes on after another keeps the ids drawn there;
        with `template`, it goes on only if its own ids, rendered whole, begin with all ids of the other."""
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
        """Return why a prompt goes on after no former reply."""
        asked = request.messages
        if by_ids and any(asked[: len(call.messages) + 1] == (*call.messages, call.reply) for call in self.calls):
            return "template"
        return "branch" if any(asked == call.messages for call in self.calls) else "edited"

    # ---- what happens ------------------------------------------------------------------------------------------------

    def add_call(
        self, request: ChatRequest, prompt: Prompt, move: Move, reply: ChatMessage, *, stopped: bool
    ) -> AnsweredCall:
        """Note a reply: its tokens, and a turn that has no actions yet."""
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
        """Play an action of the latest reply, and return the next message of our own player."""
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
        """The task as the program sees it."""
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
        """The episode as it is recorded."""
        self.closed = True
        truncated = self.truncated or not self.episode.over
        return PlayedEpisode(
            self.number, self.episode, tuple(self.turns), truncated and not self.episode.terminated, lost
        )


def count_episode(counts: Mapping[str, int], turns: Sequence[PlayedTurn], segments: int) -> Counter[str]:
    """Return an episode's counts for the metrics: its own, and the numbers of its calls and segments."""
    acted = any(turn.acts for turn in turns)
    found = Counter({name: number for name, number in counts.items() if number})
    found["calls"] += sum(1 for turn in turns if turn.move.token_ids)
    found["segments"] += segments
    found["without_action"] += not acted
    return found
