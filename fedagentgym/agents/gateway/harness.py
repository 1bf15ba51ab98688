"""Episodes that programs play: one thread hands out the episodes, answers calls in batches, and plays the actions.

This thread, which collects the episodes, alone changes episodes, the environment and the model's session, ticket by ticket.
So no locks are needed, a keyboard interrupt reaches the work, and torch keeps the thread settings of the process. Timeouts
are measured by this thread's clock.

The random stream of a call is named by (seed, episode, digest of the prompt's ids, how often this prompt was sent before), so
its draws depend on the prompt and not on the time. The tokens are the same for any number of processes, for any order of
concurrent calls, and for every attempt after a kill.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import secrets
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.gateway.episodes import REASONS, AnsweredCall, OpenEpisode, Prompt, count_episode
from fedagentgym.agents.gateway.programs import Programs
from fedagentgym.agents.gateway.render import MessageRenderer, make_call_id
from fedagentgym.agents.gateway.requests import (
    ChatMessage,
    ChatRequest,
    GatewayError,
    format_json,
    make_unknown_episode,
    read_chat,
)
from fedagentgym.agents.gateway.server import ChatAnswer, GatewayServer, Ticket
from fedagentgym.agents.gateway.tools import PARSERS, ReadReply
from fedagentgym.agents.protocols import Completion, Job, Move, PlayedEpisode
from fedagentgym.agents.settings import HarnessSettings
from fedagentgym.agents.text.prompts import Dialogue
from fedagentgym.base.errors import DataError, OptionError, describe_error
from fedagentgym.base.process import get_logger
from fedagentgym.base.streams import stream

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.protocols import Session
    from fedagentgym.envs.core import TextEnv

log = get_logger(__name__)
GATHER_SECONDS = 0.02
"""The longest time that a batch waits for one more call."""
TICK_SECONDS = 0.05
"""The time between two checks for timeouts and ended programs."""
MAX_ROWS = 4
"""The most session rows that an episode keeps; each holds one of its latest conversations."""
COUNTED = (
    "calls",
    "segments",
    *REASONS,
    "overridden",
    "seeded",
    "calls_after_end",
    "refused",
    "retries",
    "without_action",
    "failed",
    *(f"lost/{reason}" for reason in ("discarded", "failed", "idle", "too_long", "ended", "generation")),
)
"""The counts of a collection. All start at 0, because a metric that only some steps report is averaged over those steps alone."""


@dataclass(eq=False)
class Harness:
    """Plays an agent's episodes with a program. The server and the program's processes start at the first collection and are
    kept until `close`."""

    settings: HarnessSettings
    closing: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of the last collection."""
    keys: dict[str, str] = field(default_factory=dict)
    """Run keys of programs that this harness does not start, each with the name of its worker."""
    _server: GatewayServer | None = None
    _programs: Programs | None = None
    _play: _Play | None = None
    _others: dict[tuple[str, ...], Harness] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def open(self, port: int = 0) -> str:
        """Start the server and all programs, unless they are running. Returns the server's address."""
        if self._server is None:
            self.closing = False
            atexit.register(self.close)
            self._server = GatewayServer(self, port)
            self._server.start()
            self._programs = Programs(self.settings)
        assert self._programs is not None
        self._programs.start(self._server.url)
        return self._server.url

    def close(self) -> None:
        """Tell the programs that the run is over, and end those that do not end by themselves."""
        self.closing = True
        if self._programs is not None:
            self._programs.end_all()
        if self._server is not None:
            self._server.stop()
        self._server = self._programs = None
        for other in self._others.values():
            other.close()
        atexit.unregister(self.close)

    @property
    def evaluates(self) -> bool:
        return self.settings.evaluate

    def for_client(self, client: int) -> Harness:
        """Return the harness of a client's own program, or this harness if the client has none. The other harness starts when it
        first plays, and closes with this one."""
        command = self.settings.clients.get(client)
        if command is None:
            return self
        if command not in self._others:
            self._others[command] = Harness(self.settings.model_copy(update={"command": command, "clients": {}}))
        return self._others[command]

    def play(self, agent: TokenAgent, env: TextEnv, jobs: Sequence[Job], seed: int) -> Iterator[PlayedEpisode]:
        """Let the programs play these episodes; each is yielded when it is finished or lost."""
        self._check(agent, env)
        if not (self.settings.command or self.keys):
            raise OptionError("agent.harness names no program: set agent.harness.command")
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self.open()
        assert self._server is not None and self._programs is not None
        with agent.policy.open_session() as session:
            self._play = _Play(self, agent, env, deque(jobs), seed, session, self._server, self._programs)
            try:
                yield from self._play.run()
            except BaseException:
                self._play.refuse_rest()
                self.close()
                raise
            finally:
                self._play.refuse_rest()
                self._play = None

    def _check(self, agent: TokenAgent, env: TextEnv) -> None:
        if agent.decoding.constrained:
            raise OptionError("agent.decoding.constrained must be false: a program's calls cannot be constrained")
        own = getattr(env, "is_reported", False)
        if own != (self.settings.world == "own"):
            here, there = ("own", "gateway") if own else ("gateway", "own")
            raise OptionError(f"{env.id} needs agent.harness.world={here}, not {there}")

    # ---- called by the server's thread --------------------------------------------------------------------------------

    def find_worker(self, key: str) -> str | None:
        for known, worker in list(self.keys.items()):
            if secrets.compare_digest(known.encode(), key.encode()):
                return worker
        program = None if self._programs is None or not key.isascii() else self._programs.find(key)
        if program is None:
            return None
        program.asked = True
        return str(program.worker)

    def find_episode(self, key: str) -> OpenEpisode | None:
        play = self._play
        return None if play is None else play.by_key.get(key)

    def warn_once(self, name: str, message: str) -> None:
        """Log a warning, unless this harness has logged one of this name."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning(message)


class _Play:
    """One collection of episodes."""

    def __init__(
        self,
        harness: Harness,
        agent: TokenAgent,
        env: TextEnv,
        jobs: deque[Job],
        seed: int,
        session: Session,
        server: GatewayServer,
        programs: Programs,
    ) -> None:
        self.harness, self.settings, self.agent, self.env, self.seed = harness, harness.settings, agent, env, seed
        self.session, self.server, self.programs = session, server, programs
        tools = self.settings.tools or ("hermes" if agent.chat else "action-tags")
        self.renderer = MessageRenderer(agent.tokenizer, chat=agent.chat, tools=tools)
        self.waiting: deque[tuple[Job, int]] = deque((job, 0) for job in jobs)
        self.asking: deque[Ticket] = deque()
        self.by_key: dict[str, OpenEpisode] = {}
        self.finished: deque[PlayedEpisode] = deque()
        self.left = len(jobs)
        self.patience = GATHER_SECONDS

    def run(self) -> Iterator[PlayedEpisode]:
        checked = 0.0
        while self.left:
            if calls := self._gather():
                began = time.monotonic()
                self._answer_chats(calls)
                self.server.send()
                self.patience = min((time.monotonic() - began) / 2, GATHER_SECONDS)
            if (now := time.monotonic()) - checked >= TICK_SECONDS:
                checked = now
                self._find_late(now)
                self._find_ended()
            while self.finished:
                self.left -= 1
                yield self.finished.popleft()

    def refuse_rest(self) -> None:
        """Close all episodes and answer the requests that still wait for them; no tickets are read until the next collection.

        Requests for a new episode stay in the queue for the next collection."""
        for episode in self.by_key.values():
            episode.closed = True
        self.by_key.clear()
        waiting = [*self.asking]
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self.server.tickets.get_nowait())
        for ticket in waiting:
            if ticket.kind != "episode":
                self.server.answer(ticket, make_unknown_episode())
            elif not ticket.abandoned:
                self.server.tickets.put(ticket)  # for the next collection, if the program still waits by then
        self.server.send()

    # ---- tickets ------------------------------------------------------------------------------------------------------

    def _gather(self) -> list[Ticket]:
        """Return the model calls of the next batch, and serve all other tickets meanwhile.

        A program that has played its step soon calls the model again. So after each call this waits for one more, until there
        are as many calls as open episodes, or none comes within half the time of the last batch (at most `GATHER_SECONDS`).
        """
        calls: list[Ticket] = []
        limit = time.monotonic() + TICK_SECONDS
        while (left := limit - time.monotonic()) > 0 and (calls or not self.finished):
            try:
                ticket = self.server.tickets.get_nowait()
            except queue.Empty:
                self._hand_out()
                self.server.send()
                if len(calls) >= len(self.by_key) > 0:
                    break
                try:
                    ticket = self.server.tickets.get(timeout=left)
                except queue.Empty:
                    break
            if ticket.kind != "chat":
                self._serve(ticket)
                continue
            limit = time.monotonic() + self.patience
            calls.append(ticket)
        self._hand_out()
        self.server.send()
        return calls

    def _serve(self, ticket: Ticket) -> None:
        """Answer a ticket that is not a model call; a ticket for a new episode is queued."""
        if ticket.kind == "episode":
            self.asking.append(ticket)
            return
        episode = ticket.episode
        assert episode is not None
        try:
            self._check_open(episode)
            serve = {"step": self._step, "reward": self._reward, "finish": self._finish}[ticket.kind]
            self.server.answer(ticket, serve(episode, ticket.body))
        except GatewayError as error:
            self.harness.counts["refused"] += 1
            self.server.answer(ticket, error)

    def _check_open(self, episode: OpenEpisode) -> None:
        if episode.closed:
            raise make_unknown_episode()
        episode.latest = time.monotonic()

    def _hand_out(self) -> None:
        """Give the next episodes to the programs that wait for one."""
        while self.asking and self.waiting:
            ticket = self.asking.popleft()
            if ticket.abandoned:
                continue
            job, attempt = self.waiting.popleft()
            (start,) = self.env.reset_many([job.task], [job.seed])
            agent = self.agent
            saw, longest = start.view.observation, agent.longest_prompt
            dialogue = Dialogue(self.env, agent.template, agent.context, agent.history, saw, longest)
            key = secrets.token_hex(16)
            episode = OpenEpisode(job, self.env, attempt, key, ticket.worker, dialogue, start, start)
            self.by_key[key] = episode
            seconds = self.settings.limits.longest
            task = episode.describe_task()
            self.server.answer(
                ticket, {"key": key, "number": job.number, "attempt": attempt, "deadline": seconds, "task": task}
            )

    def _step(self, episode: OpenEpisode, body: dict[str, Any]) -> dict[str, Any]:
        if self.settings.world == "own":
            raise GatewayError(
                422, "wrong_world", "the program has its own world (agent.harness.world): report with /v1/reward"
            )
        if episode.episode.over:
            raise GatewayError(422, "episode_over", "the episode is over: call /v1/finish")
        content = episode.act(body["action"])
        now, view = episode.episode, episode.episode.view
        return {
            "content": content,
            "observation": view.observation,
            "reward": float(now.reward),
            "score": float(view.score),
            "success": bool(view.success),
            "over": now.over,
            "turn": now.turn,
        }

    def _reward(self, episode: OpenEpisode, body: dict[str, Any]) -> dict[str, Any]:
        if self.settings.world != "own":
            raise GatewayError(422, "wrong_world", "the environment grades its own episodes: play it with /v1/step")
        low, high = self.settings.reward_range
        if not low <= body["reward"] <= high:
            message = f"a reward must lie between {low:g} and {high:g} (agent.harness.reward_range)"
            raise GatewayError(400, "malformed", message, "reward")
        share = (body["reward"] - low) / (high - low)
        episode.reported = format_json({"success": share >= 1.0, **body, "score": share})
        return {"taken": True}

    def _finish(self, episode: OpenEpisode, body: dict[str, Any]) -> dict[str, Any]:
        status = body["status"]
        if status == "discard":
            self._end(episode, "discarded")
        elif status == "failed" and self.settings.failed == "drop":
            self._end(episode, "failed")
        else:
            if status == "failed":
                episode.counts["failed"] += 1
                episode.truncated = True
            self._end(episode)
        return {"kept": status == "done" or (status == "failed" and self.settings.failed == "zero")}

    def _end(self, episode: OpenEpisode, lost: str | None = None) -> None:
        """Close an episode and record it."""
        self._forget(episode)
        if episode.reported is not None and not episode.episode.over:
            episode.act(episode.reported)
        self.harness.counts.update(count_episode(episode.counts, episode.turns, episode.segments))
        self.finished.append(episode.finish(lost))

    def _forget(self, episode: OpenEpisode) -> None:
        episode.closed = True
        self.by_key.pop(episode.key, None)
        rows = [call.row for call in episode.calls if call.row is not None]
        self.session.drop(rows)
        for call in episode.calls:
            call.row = None

    def _find_late(self, now: float) -> None:
        limits = self.settings.limits
        for episode in list(self.by_key.values()):
            # an episode that awaits an answer is not idle
            if not episode.waiting and now - episode.latest > limits.idle:
                self._lose(episode, "idle")
            elif now - episode.begun > limits.longest:
                self._lose(episode, "too_long")

    def _find_ended(self) -> None:
        """Restart programs that have ended, and begin their episodes again."""
        ended = set(map(str, self.programs.collect_ended()))
        for episode in list(self.by_key.values()):
            if episode.worker in ended:
                self._lose(episode, "ended")
        if ended:
            self.programs.start(self.server.url)

    def _lose(self, episode: OpenEpisode, reason: str) -> None:
        """Begin an episode again with the same draws, or record it as lost after too many attempts or a failure of the engine.

        With new draws, long replies, which exceed a timeout more often, would be replaced until they are short."""
        if episode.attempt < self.settings.limits.retries and reason != "generation":
            self._forget(episode)
            self.harness.counts["retries"] += 1
            self.waiting.appendleft((episode.job, episode.attempt + 1))
        else:
            self._end(episode, reason)

    # ---- calls of the model ---------------------------------------------------------------------------------------------

    def _answer_chats(self, tickets: Sequence[Ticket]) -> None:
        """Answer the calls of a batch. Calls with the same limit on the reply's length are generated together."""
        asked: dict[int, list[tuple[Ticket, ChatRequest, Prompt]]] = {}
        for ticket in tickets:
            episode = ticket.episode
            assert episode is not None
            try:
                self._check_open(episode)
                request = read_chat(ticket.body, self.agent.decoding, strict=self.settings.strict)
                if episode.episode.over:  # loops that ask "anything else?" end
                    episode.counts["calls_after_end"] += 1
                    key = make_call_id(episode.number, episode.attempt, len(episode.calls), "end")
                    self.server.answer(ticket, ChatAnswer(f"chatcmpl-{key}", "", [], "stop", 0, 0))
                    continue
                if len(episode.calls) >= self.settings.limits.calls:
                    message = f"an episode has at most {self.settings.limits.calls} calls (agent.harness.limits.calls)"
                    raise GatewayError(422, "too_many_calls", message)
                self.renderer.check_tools(request.tools)
                prompt = episode.find_prompt(request, self.renderer, self.settings.history)
                room = self.agent.policy.context_length - len(prompt.ids)
                if room < 1 or not prompt.ids:
                    episode.truncated = True
                    message = (
                        f"this model's maximum context length is {self.agent.policy.context_length} tokens, and the messages have"
                        f" {len(prompt.ids)}: shorten the history"
                    )
                    raise GatewayError(400, "context_length_exceeded", message, "messages")
            except GatewayError as error:
                self.harness.counts["refused"] += 1
                self.harness.warn_once(error.code, f"the gateway refused a program's request ({error.code}): {error}")
                self.server.answer(ticket, error)
                continue
            if request.overridden:
                episode.counts["overridden"] += 1
                names = ", ".join(request.overridden)
                self.harness.warn_once(
                    "overridden", f"a program sets {names}, which is ignored: the policy's own decoding settings apply"
                )
            episode.counts["seeded"] += request.seeded
            asked.setdefault(min(request.max_tokens, room), []).append((ticket, request, prompt))
        for most, group in asked.items():
            self._draw(most, group)

    def _draw(self, most: int, group: Sequence[tuple[Ticket, ChatRequest, Prompt]]) -> None:
        episodes = [ticket.episode for ticket, _, _ in group]
        streams = []
        for episode, (_, _, prompt) in zip(episodes, group, strict=True):
            assert episode is not None
            streams.append(stream(self.seed, "call", episode.number, *episode.count_prompt(prompt.ids)))
            if prompt.parent is not None and prompt.parent.row is not None and not prompt.branch:
                self.session.drop([prompt.parent.row])  # the new row, opened below, finds its cached tokens again
                prompt.parent.row = None
        decoding = self.agent.decoding.model_copy(update={"max_new_tokens": most})
        try:
            rows = [self.session.open([prompt.ids])[0] for _, _, prompt in group]
            found = self.session.generate(rows, streams, decoding)
        except (RuntimeError, DataError) as error:
            log.warning("the engine failed: %s", describe_error(error))
            for ticket, _, _ in group:
                self.server.answer(
                    ticket, GatewayError(500, "generation_failed", "the engine failed: the episode is lost")
                )
                if ticket.episode is not None and not ticket.episode.closed:
                    self._lose(ticket.episode, "generation")
            return
        for row, completion, (ticket, request, prompt) in zip(rows, found, group, strict=True):
            self._give(row, completion, ticket, request, prompt)

    def _give(self, row: int, drawn: Completion, ticket: Ticket, request: ChatRequest, prompt: Prompt) -> None:
        """Record a reply, and send it to the program."""
        episode = ticket.episode
        assert episode is not None
        if episode.closed:
            self.session.drop([row])
            return
        drawn, text = cut_at_stop(drawn, request.stop, self.agent.tokenizer.decode)
        read = PARSERS[self.renderer.tools](text, request.tools) if request.reads_calls else ReadReply(text)
        move = Move(
            text,
            "",
            self._has_form(request, read, text),
            prompt.ids if prompt.fresh else prompt.given,
            drawn.token_ids,
            drawn.logprobs,
            (),
            prompt.fresh,
            drawn.finish,
        )
        reply = ChatMessage("assistant", read.text.strip(), read.calls)
        stopped = drawn.token_ids[-1] in self.agent.tokenizer.stop_ids
        call = episode.add_call(request, prompt, move, reply, stopped=stopped)
        self._keep_row(episode, call, row)
        episode.latest = time.monotonic()
        place = len(episode.calls)
        key = make_call_id(episode.number, prompt.ids, place)
        calls = [
            {
                "id": make_call_id(key, number),
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for number, one in enumerate(read.calls)
        ]
        finish = "tool_calls" if calls else drawn.finish
        content = read.text if read.text or not calls else None
        logprobs = self._describe_logprobs(drawn) if request.logprobs else None
        answer = ChatAnswer(
            f"chatcmpl-{key}",
            content,
            calls,
            finish,
            len(prompt.ids),
            len(drawn.token_ids),
            logprobs,
            request.overridden,
        )
        self.server.answer(ticket, answer)

    def _has_form(self, request: ChatRequest, read: ReadReply, text: str) -> bool:
        """Return whether a reply has the required format: that of a tool call, or that of this package's prompts."""
        if request.reads_calls and self.renderer.tools != "action-tags":
            return read.whole
        if self.settings.world == "own" or self.settings.tools == "none":
            return True
        return self.agent.parse(self.env, text).format

    def _keep_row(self, episode: OpenEpisode, call: AnsweredCall, row: int) -> None:
        """Keep the row of a call until another call goes on after it. An episode keeps its latest `MAX_ROWS` rows."""
        if self.session.length(row) != len(call.ids):  # the reply was cut at a stop text
            self.session.drop([row])
            return
        call.row = row
        held = [one for one in episode.calls if one.row is not None]
        for one in held[:-MAX_ROWS]:
            assert one.row is not None
            self.session.drop([one.row])
            one.row = None

    def _describe_logprobs(self, drawn: Completion) -> list[dict[str, Any]]:
        decode = self.agent.tokenizer.decode
        return [
            {"token": decode([token]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(drawn.token_ids, drawn.logprobs, strict=True)
        ]


def cut_at_stop(drawn: Completion, stops: Sequence[str], decode: Any) -> tuple[Completion, str]:
    """Cut a reply after the token that completes a stop text, and return it with its text, which ends before the stop text.

    Later tokens can be dropped as if they had never been drawn, since earlier tokens do not depend on them."""
    text: str = decode(drawn.token_ids)
    if not any(stop in text for stop in stops):
        return drawn, text
    low, high = 1, len(drawn.token_ids)
    while low < high:  # the fewest tokens whose text holds a stop text
        middle = (low + high) // 2
        low, high = (
            (low, middle) if any(stop in decode(drawn.token_ids[:middle]) for stop in stops) else (middle + 1, high)
        )
    text = decode(drawn.token_ids[:low])
    ends = [text.find(stop) for stop in stops if stop in text]
    return Completion(drawn.token_ids[:low], drawn.logprobs[:low], "stop"), text[: min(ends)]
