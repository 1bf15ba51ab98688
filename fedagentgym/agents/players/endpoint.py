"""Hosted models behind an OpenAI-compatible server, for evaluation only: no tokens, no log-probs, nothing to train.

Requests of one turn run concurrently. Temporary errors (429, 5xx, timeouts, dropped connections) are retried with growing
pauses. Other errors, and a server that was never reached, end the evaluation at once with one sentence. Tokens and cost are
counted with the server's numbers if they are plausible, otherwise with estimates from the length of the texts. A cost cap can
stop the evaluation.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from fedagentgym.agents.protocols import Decoding, Move, RowPlayers
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.prompts import Dialogue, Message, Template, parse
from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    OptionError,
    describe_error,
    show_invisible_characters,
)
from fedagentgym.base.peers import (
    PeerError,
    UnreachableError,
    check_address,
    make_key_headers,
    open_answer,
    read_json_answer,
)
from fedagentgym.base.process import GENERATED, get_logger
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.settings import Settings
from fedagentgym.envs.protocols import get_action_tail

if TYPE_CHECKING:
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode

log = get_logger(__name__)
ENDPOINT_THINKS = True
"""True if hosted models are prompted for a thought by default."""
_RETRY_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_REFUSALS = (400, 422)
_REPLACED = {"max_tokens": "max_completion_tokens"}
"""Parameters that newer servers call by another name, with this name."""
_ABOUT_A_VALUE = re.compile(
    r"too (?:large|long|high|big|small|low|many)|context (?:length|window)|exceed|must be|reduce the|out of range|greater|less",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|unknown|unrecogni[sz]ed|unexpected|not (?:permitted|allowed|accepted)|deprecated",
    re.IGNORECASE,
)
_OPTIONAL = ("seed", "top_p", "temperature", "max_tokens", "max_completion_tokens")
"""Parameters that a model may refuse and an evaluation can omit."""
_MAX_ERROR_LENGTH = 10_000
_MILLION = 1_000_000
_MAX_PAUSE = 60.0
_MAX_TOKENS = 10**7
"""A server's token count for one request is ignored if it is larger than this."""
_BYTES_BY_TOKEN, _MAX_BYTES_PER_TOKEN = 4, 16
"""Bytes per token for estimates, and the most bytes per token for which a server's count is believed."""


class EndpointError(FedAgentGymError):
    """The server cannot be used: it is unreachable, refuses requests, or has another protocol."""


class CostCapError(FedAgentGymError):
    """The evaluation has reached its maximum cost."""


class EndpointOptions(Settings):
    """Options of the endpoint agent."""

    url: str = Field(
        default="http://localhost:8000/v1", description="base address, up to and without /chat/completions"
    )
    key_variable: str = Field(
        default="OPENAI_API_KEY", description="environment variable that holds the key, if one is needed"
    )
    concurrency: int = Field(default=8, ge=1, le=512, description="concurrent requests")
    retries: int = Field(default=5, ge=0, description="further attempts after a busy or broken answer")
    timeout: float = Field(
        default=120.0,
        gt=0.0,
        le=86_400.0,
        description="seconds to wait for all of one answer, from the connection to its end",
    )
    pause: float = Field(
        default=0.5, ge=0.0, description="seconds before the first retry; doubles each time, at most 30"
    )
    cost_cap: float | None = Field(default=None, gt=0.0, description="stop when this much was spent")
    input_price: float = Field(default=0.0, ge=0.0, description="price of a million prompt tokens")
    output_price: float = Field(default=0.0, ge=0.0, description="price of a million reply tokens")
    extra: dict[str, Any] = Field(
        default_factory=dict, description="further fields of each request, as the server expects them"
    )


@dataclass
class Usage:
    """The usage so far. `uncounted` answers had no plausible token counts, which are estimated from the texts instead."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    uncounted: int = 0
    cost: float = 0.0


class ChatReply(NamedTuple):
    text: str
    cut: bool


class Endpoint:
    """A chat-completions client with retries, counts of usage, and a cost cap. It is thread-safe."""

    def __init__(self, model: str, options: EndpointOptions, decoding: Decoding) -> None:
        check_address(options.url, "agent.options.url")
        if options.cost_cap is not None and not (options.input_price or options.output_price):
            raise OptionError("agent.options.cost_cap needs prices: set input_price and output_price")
        self.model, self.options, self.decoding = model, options, decoding
        self.usage = Usage()
        self.refused: list[str] = []
        self._headers = make_key_headers(options.key_variable)
        self._address = options.url.rstrip("/") + "/chat/completions"
        self._lock = threading.Lock()
        self._reached = False

    def request_completion(self, messages: Sequence[Message], seed: int) -> ChatReply:
        """Return one reply; temporary errors are retried."""
        fault, attempt, url = "", 0, self._address
        while attempt <= self.options.retries:
            self._check_cap()
            request = self._make_request(messages, seed)
            try:
                body = json.dumps(request, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
            except (TypeError, ValueError) as error:
                raise OptionError(f"agent.options.extra holds a value that JSON cannot express: {error}") from None
            if attempt:
                with self._lock:
                    self.usage.retries += 1
            asked = None
            try:
                with open_answer(url, seconds=self.options.timeout, body=body, headers=self._headers) as answer:
                    self._reached, asked = True, answer.headers.get("Retry-After")
                    status, content = answer.status, answer.read()
                if status == 200:
                    return self._read_completion(content, messages)
            except UnreachableError as error:
                fault = str(error)
                if not self._reached:
                    hint = "is the server running, and is this its address (agent.options.url)?"
                    raise EndpointError(f"{url} cannot be reached ({fault}): {hint}") from None
            except PeerError as error:
                fault = str(error)
            else:
                said = _read_error(content)
                fault = f"status {status}: {said.reason}"
                if status in _REFUSALS and self._leave_out(said.find_refused(request), fault):
                    continue
                if status not in _RETRY_STATUSES:
                    raise EndpointError(f"{url} refused the request for model {self.model!r}: {fault}")
            self._wait(attempt, asked)
            attempt += 1
        raise EndpointError(f"{url} gave no answer after {self.options.retries + 1} attempts: {fault}")

    def _make_request(self, messages: Sequence[Message], seed: int) -> dict[str, Any]:
        """Return the body of a request, without parameters that the server refused before. `options.extra` is always sent."""
        chosen = {
            "temperature": self.decoding.temperature,
            "top_p": self.decoding.top_p,
            "max_tokens": self.decoding.max_new_tokens,
            "seed": seed,
        }
        for name in tuple(self.refused):
            value = chosen.pop(name, None)
            if name in _REPLACED and value is not None:
                chosen[_REPLACED[name]] = value
        return {"model": self.model, "messages": list(messages), **chosen, **self.options.extra}

    def _leave_out(self, name: str | None, fault: str) -> bool:
        """Omit a parameter from now on, with one warning. Returns False if it cannot be omitted."""
        if name is None or name in self.options.extra:
            return False
        with self._lock:
            if name not in self.refused:
                self.refused.append(name)
                instead = f", {_REPLACED[name]} is sent instead" if name in _REPLACED else ""
                log.warning("model %r takes no %s: it is left out%s (%s)", self.model, name, instead, fault)
        return True

    def _wait(self, attempt: int, asked: str | None) -> None:
        if attempt == self.options.retries:
            return
        pause = min(self.options.pause * 2**attempt, 30.0)
        if asked is not None and asked.isdecimal():
            pause = max(pause, min(float(asked[:9]), _MAX_PAUSE, self.options.timeout))
        log.info("no answer from %s, trying again in %.1f s", self._address, pause)
        time.sleep(pause)

    def _check_cap(self) -> None:
        cap = self.options.cost_cap
        if cap is not None and self.usage.cost >= cap:
            raise CostCapError(
                f"the cost cap of {cap:g} is reached after {self.usage.requests} requests"
                f" ({format_fixed(self.usage.cost, 4)} spent): "
                "raise agent.options.cost_cap, or evaluate fewer episodes"
            )

    def _read_completion(self, content: bytes, messages: Sequence[Message]) -> ChatReply:
        """Return the reply in an answer, and count its usage.

        Raises:
            PeerError: If the answer is incomplete or malformed.
        """
        try:
            body = read_json_answer(content)
            choice = body["choices"][0]
            text, cut = choice["message"].get("content"), choice.get("finish_reason") == "length"
            used = body.get("usage") or {}
            said = used.get("prompt_tokens"), used.get("completion_tokens")
            if text is not None and not isinstance(text, str):
                raise TypeError("the content is no text")
        except (DataError, KeyError, IndexError, TypeError, AttributeError) as error:
            start = content[:200].decode("utf-8", "replace")
            raise PeerError(f"not a chat completion: {start!r} ({describe_error(error)})") from None
        reply = (text or "").encode("utf-8", "replace")  # half of a character outside the BMP is no text
        asked = sum(len(message["content"].encode("utf-8", "replace")) for message in messages)
        prompt_tokens, reply_tokens = _believe(said[0], asked), _believe(said[1], len(reply))
        unbelieved = prompt_tokens is None or reply_tokens is None
        prompt = -(-asked // _BYTES_BY_TOKEN) if prompt_tokens is None else prompt_tokens
        generated = -(-len(reply) // _BYTES_BY_TOKEN) if reply_tokens is None else reply_tokens
        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += prompt
            self.usage.reply_tokens += generated
            GENERATED.tokens += generated
            self.usage.uncounted += unbelieved
            self.usage.cost += (prompt * self.options.input_price + generated * self.options.output_price) / _MILLION
        return ChatReply(reply.decode("utf-8"), cut)


def _believe(said: object, size: int) -> int | None:
    """Return a server's count of the tokens in a text of `size` bytes; None if it is not plausible."""
    if isinstance(said, bool) or not isinstance(said, int):
        return None
    return said if size <= said * _MAX_BYTES_PER_TOKEN and said <= _MAX_TOKENS else None


class _Refusal(NamedTuple):
    """A server's refusal: a short reason, the text of the answer, and the parameter that the server names, if it names one."""

    reason: str
    text: str
    parameter: object

    def find_refused(self, request: Mapping[str, Any]) -> str | None:
        """Return the optional parameter of a request that the server does not take; None if the refusal names none, or is about
        the parameter's value or the length of the prompt: then leaving it out would change what was asked for."""
        if _ABOUT_A_VALUE.search(self.text) and not _UNSUPPORTED.search(self.text):
            return None
        sent = [name for name in _OPTIONAL if name in request]
        if self.parameter in sent:
            return str(self.parameter)
        found = [(match.start(), name) for name in sent if (match := re.search(rf"\b{name}\b", self.text)) is not None]
        return min(found)[1] if found else None


def _read_error(content: bytes) -> _Refusal:
    text = content[:_MAX_ERROR_LENGTH].decode("utf-8", "replace")
    try:
        error = read_json_answer(content).get("error")
    except (DataError, AttributeError):
        error = None
    reason, parameter = (error.get("message"), error.get("param")) if isinstance(error, dict) else (error, None)
    shown = " ".join(show_invisible_characters(str(reason or text or "no reason given")[:_MAX_ERROR_LENGTH]).split())
    return _Refusal(shown[:300], text, parameter)


class EndpointAgent:
    """A hosted model with the prompts and parsers of this package. `usage` is its usage so far."""

    def __init__(self, settings: AgentSettings) -> None:
        if settings.model is None:
            raise OptionError("agent 'endpoint' needs a model: its name on the server")
        decoding = settings.decoding or Decoding(temperature=0.4, max_new_tokens=512)
        if decoding.constrained:
            raise OptionError("agent 'endpoint' cannot constrain a hosted model's replies: set constrained: false")
        self.name = settings.name
        self.settings = settings
        think = ENDPOINT_THINKS if settings.think is None else settings.think
        self.template = Template(settings.template or "standard", think, settings.system, settings.request)
        self.endpoint = Endpoint(settings.model, EndpointOptions.load(settings.options, "agent.options"), decoding)

    @property
    def usage(self) -> dict[str, float]:
        return asdict(self.endpoint.usage)

    def at_temperature(self, temperature: float) -> EndpointAgent:
        """Return the same agent with another sampling temperature. Both agents add to one `usage`."""
        found = copy.copy(self)
        found.endpoint = copy.copy(self.endpoint)
        found.endpoint.decoding = self.endpoint.decoding.model_copy(update={"temperature": temperature})
        return found

    def play(self, env: TextEnv) -> EndpointPlayers:
        return EndpointPlayers(self, env)

    def close(self) -> None:
        """Do nothing, since no connection stays open between two requests."""


class _RowState(NamedTuple):
    dialogue: Dialogue
    stream: Stream


class EndpointPlayers(RowPlayers[_RowState]):
    """`Players` of a hosted model: the rows of a turn are requested concurrently."""

    def __init__(self, agent: EndpointAgent, env: TextEnv) -> None:
        super().__init__(env)
        self.agent = agent
        self._threads = ThreadPoolExecutor(agent.endpoint.options.concurrency, thread_name_prefix="endpoint")

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        super().close()

    def start_row(self, episode: Episode, stream: Stream) -> _RowState:
        template, settings = self.agent.template, self.agent.settings
        start, context = episode.view.observation, settings.context or "session"
        dialogue = Dialogue(self.env, template, context, settings.history, start, settings.longest_prompt)
        return _RowState(dialogue, stream)

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        waiting = [
            self._threads.submit(self._act, self._rows[row], episode)
            for row, episode in zip(rows, episodes, strict=True)
        ]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            raise

    def _act(self, row: _RowState, episode: Episode) -> Move:
        asked = row.dialogue.build_messages(episode)
        answer = self.agent.endpoint.request_completion(asked, row.stream.integers(1 << 31))
        settings, takes_reply = self.agent.settings, self.env.takes == "reply"
        parsed = parse(answer.text, settings.parser or "strict", self.agent.template.think, get_action_tail(self.env))
        action, form = (answer.text, True) if takes_reply else parsed
        row.dialogue.record_turn(episode, asked, answer.text, action)
        return Move(answer.text, action, form, finish="length" if answer.cut else "stop")


def make_endpoint_agent(settings: AgentSettings, *, env: TextEnv | None = None, seed: int = 0) -> EndpointAgent:
    """Make an agent of a hosted model; nothing is sent yet."""
    return EndpointAgent(settings)
