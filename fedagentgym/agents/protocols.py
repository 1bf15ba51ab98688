"""The interfaces of agents and policies, on which rollouts, evaluation and training are built.

There are two levels:

* `Player` / `Players` (text level, used by rollouts and evaluation): episodes in, `Move`s out. Every kind of agent implements
  it: a language model, an expert, a random agent, a person, a hosted model. A language model's moves hold the token ids, the
  log-probs at generation and (when constrained) the sets of allowed tokens, so that a trainer never renders, encodes or parses.
* `Policy` / `Session` (token level, implemented by engines): token ids in, token ids and log-probs out, over many turns.

Randomness: every row samples from its own stream by inverse CDF, and one `act` of a language model draws exactly
`max_new_tokens` uniforms from the row's stream, whatever is generated. So a row's reply depends on its stream and its tokens,
not on other rows, except for floating point: another batch shape may change the last bits of a logit, and a uniform that is this
close to a boundary of the CDF then picks the neighbouring token (rare in float32, far more frequent in bfloat16).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from pydantic import Field

from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import Settings
from fedagentgym.base.shorten import show_fields

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from fedagentgym.agents.text.tokens import TextTokenizer
    from fedagentgym.base.streams import Stream
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.tasks import Task
    from fedagentgym.envs.view import Episode

FinishReason = Literal["stop", "length", "context"]
"""The reason why a reply ended: a stop token, `max_new_tokens`, or a full context, in which nothing was generated."""


class Decoding(Settings):
    """Settings for generating tokens. With temperature 0 the most likely token is taken, and all log-probabilities are 0."""

    temperature: float = Field(default=1.0, ge=0.0, description="divides the logits; 0 takes the most likely token")
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="draw from the smallest set of tokens with this probability; 1 keeps all",
    )
    max_new_tokens: int = Field(default=16, ge=1, description="most tokens in one reply")
    constrained: bool = Field(default=False, description="only replies that are admissible actions can be generated")


class Completion(NamedTuple):
    """One reply in tokens, including its stop token if it has one; `logprobs` are those of the sampling distribution."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    allowed: tuple[tuple[int, ...], ...] = ()
    """In constrained generation, the token ids allowed at each position, over which the distribution was renormalised."""


class Constraint(Protocol):
    """A rule for the tokens that may come next. States are plain values; while a reply goes on, at least one token is allowed."""

    def start(self) -> Any: ...

    def get_allowed_tokens(self, state: Any) -> tuple[int, ...]:
        """Return the ids that may follow, sorted and distinct. They include a stop token if the reply may end."""
        ...

    def advance(self, state: Any, token: int) -> Any: ...


Row = TypeVar("Row")


class Rows(Generic[Row]):
    """Numbered rows that are added and removed. Leaving the context removes all."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._rows.clear()

    def _add(self, row: Row) -> int:
        self._next += 1
        self._rows[self._next] = row
        return self._next


@dataclass(slots=True, eq=False)
class SessionRow:
    """A row of a session. `ids` are its tokens so far."""

    ids: list[int]


class Session(Rows[Any], ABC):
    """Rows of tokens that grow turn by turn and keep their key-value cache. A row is known by its number.

    To write an engine, derive a class with `open` and `_continue`. `_rows` maps numbers to rows, each of them a `SessionRow` or
    of a class derived from it. `on_close` is called once, at the end. A session is a context manager.
    """

    def __init__(self, context_length: int, on_close: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.context_length = context_length
        self._on_close = on_close

    def close(self) -> None:
        """Free all rows. A second call does nothing."""
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        """Add `copies` rows per prompt, adjacent in the result. Rows with the same prompt share its computation."""

    def append(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        """Add given tokens (an observation) to the rows. They are computed by the next `generate`."""
        for row, chunk in zip(rows, chunks, strict=True):
            self._rows[row].ids.extend(chunk)

    def generate(
        self,
        rows: Sequence[int],
        streams: Sequence[Stream],
        decoding: Decoding,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> list[Completion]:
        """Continue each row by one reply, which is appended to the row. Draws `max_new_tokens` uniforms per stream.

        A row without room for a reply is not changed, and its completion has the finish `context`.
        """
        most = decoding.max_new_tokens
        uniforms = [stream.uniform(most) for stream in streams]
        rules = constraints or [None] * len(rows)
        fits = [index for index, row in enumerate(rows) if self.length(row) + most <= self.context_length]
        answers = [Completion((), (), "context")] * len(rows)
        if fits:
            held = [self._rows[rows[index]] for index in fits]
            found = self._continue(held, [uniforms[i] for i in fits], decoding, [rules[i] for i in fits])
            for index, answer in zip(fits, found, strict=True):
                answers[index] = answer
        return answers

    @abstractmethod
    def _continue(
        self,
        rows: list[Any],
        uniforms: Sequence[NDArray[np.float64]],
        decoding: Decoding,
        constraints: Sequence[Constraint | None],
    ) -> list[Completion]:
        """`generate` for one or more rows with enough room."""

    def length(self, row: int) -> int:
        """Return the number of tokens that a row holds."""
        return len(self._rows[row].ids)

    def drop(self, rows: Sequence[int]) -> None:
        """Free rows. Their numbers are never reused."""
        for row in rows:
            del self._rows[row]

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            if not prompt:
                raise DataError("a prompt with no tokens cannot be continued")
            if len(prompt) >= self.context_length:
                raise DataError(
                    f"a prompt of {len(prompt)} tokens does not fit into the model's context of {self.context_length}: "
                    "shorten the prompt (template, history) or use a model with a longer context"
                )


class Policy(Protocol):
    """An engine that generates. `version` counts how often its weights have changed."""

    name: str
    context_length: int

    @property
    def tokenizer(self) -> TextTokenizer: ...

    @property
    def version(self) -> int: ...

    def open_session(self) -> Session:
        """Open a session on the present weights, which must not change while it is open."""
        ...

    def close(self) -> None: ...


class WeightOwner(Protocol):
    """A learner that shares a model with other learners. The model holds the weights of one of them at a time."""

    def save_weights(self) -> None:
        """Copy the weights from the model, which is about to hold another learner's weights."""
        ...


class SharedModel:
    """A base class for policies that remembers whose weights the policy's model holds."""

    _owner: weakref.ref[WeightOwner] | None = None

    def claim(self, owner: WeightOwner | None = None) -> None:
        """Let the present owner save its weights before others are loaded, and remember the next owner, if there is one."""
        before = None if self._owner is None else self._owner()
        if before is not None and before is not owner:
            before.save_weights()
        self._owner = None if owner is None else weakref.ref(owner)


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy whose weights are a torch module in this process, and can be trained, read and replaced.

    `model(input_ids=...).logits` is the full forward pass, with which the log-probs of sessions must agree. An open session may
    have merged an adapter into the weights, so train only while no session is open.
    """

    model: torch.nn.Module
    device: torch.device

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by name, always in the same order."""
        ...

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trainable parameters as arrays. bfloat16 becomes float32, which is exact."""
        ...

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Replace the trainable parameters, whose names and shapes must be those of `get_weights`. Increases the version.

        Calls `claim()` first, so that a learner whose weights the model held saves them.
        """
        ...

    def claim(self, owner: WeightOwner | None = None) -> None:
        """Let the present owner save its weights before others are loaded, and remember the next owner (see `SharedModel`)."""
        ...

    def bump_version(self) -> None:
        """Report that parameters were changed in place, as by an optimizer step. Increases the version."""
        ...

    def add_value_head(self) -> None:
        """Add a value head, `value_head`, to the trainable parameters, unless there is one. It is zero at first."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the model, with an adapter merged into it, and the tokenizer as an ordinary Hugging Face folder."""
        ...


class Move(NamedTuple):
    """An agent's part in one turn of one episode.

    The tokens of an episode are the `context_ids` (given, without loss) and the `token_ids` (generated) of its moves in order.
    Agents without tokens set only `reply`, `action` and `format`.

    Attributes:
        reply: The agent's text.
        action: The action for the environment.
        format: Whether the reply has the required format.
        context_ids: Tokens that were given to the model since the last move.
        token_ids: Tokens that the model generated.
        logprobs: Log-probability of each generated token under the distribution from which it was drawn.
        allowed: With constrained decoding, the tokens that were allowed at each position.
        fresh: Whether a new sequence of tokens begins with this move. In the context `window` this is every turn, in `session`
            the first.
        finish: `stop`, `length` (the reply was cut), or `context`: the context is full, nothing was generated, and the episode
            ends.
        learn: False for a random action in a demonstration, which is played but not imitated.
    """

    reply: str
    action: str
    format: bool = True
    context_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    allowed: tuple[tuple[int, ...], ...] = ()
    fresh: bool = True
    finish: FinishReason = "stop"
    learn: bool = True

    def __repr__(self) -> str:
        return show_fields(self)


class PlayedTurn(NamedTuple):
    """A turn of an episode that a program played: a reply and the actions that followed it.

    `before` is the episode before the turn, and `after` holds the episode after each action. `segment` is the number of the token
    sequence that holds the reply's tokens.
    """

    move: Move
    segment: int
    before: Episode
    acts: tuple[str, ...]
    after: tuple[Episode, ...]


class PlayedEpisode(NamedTuple):
    """An episode that a program played. `lost` is the reason if the episode did not end properly, else None."""

    number: int
    episode: Episode
    turns: tuple[PlayedTurn, ...]
    truncated: bool = False
    lost: str | None = None


class Job(NamedTuple):
    """An episode to play. `number` names its random draws, `seed` is that of the environment, and `sample` is the number of the
    copy of the task."""

    number: int
    task: Task
    seed: int
    sample: int


class Players(Protocol):
    """Many episodes of one environment, which an agent plays at once. Each episode has a row. A context manager.

    Each row draws from its own random stream, so that its moves do not depend on other rows.

    Examples:
        >>> from fedagentgym import stream
        >>> from fedagentgym.agents import make_agent
        >>> from fedagentgym.envs import open_env
        >>> env = open_env("fedagentgym/Guess-v0")
        >>> episodes = env.reset_many(env.pool.ids[:2], [0, 1])
        >>> with make_agent("expert").play(env) as players:
        ...     rows = players.enter(episodes, [stream(0, row) for row in range(2)])
        ...     moves = players.act(rows, episodes)
        ...     episodes = env.step_many(episodes, [move.action for move in moves])
        ...     players.leave(rows)
        >>> [episode.turn for episode in episodes]
        [1, 1]
    """

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        """Add episodes that have just begun.

        Args:
            episodes: The episodes. Copies of a task are adjacent, so that they can share computation.
            streams: The random stream of each episode.

        Returns:
            The row of each episode: a number for `act` and `leave`.
        """
        ...

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        """Choose the next move of some rows.

        Args:
            rows: The rows.
            episodes: The present episode of each row.

        Returns:
            The move of each row.
        """
        ...

    def leave(self, rows: Sequence[int]) -> None:
        """Free rows whose episodes are over; their numbers may be used again.

        Args:
            rows: The rows.
        """
        ...

    def close(self) -> None:
        """Free all rows. Called when the context ends."""

    def __enter__(self) -> Players: ...

    def __exit__(self, *error: object) -> None: ...


class RowPlayers(Rows[Row]):
    """A base class for `Players` that keep a state for each row. Derived classes write `start_row` and `act`."""

    def __init__(self, env: TextEnv) -> None:
        super().__init__()
        self.env = env

    def start_row(self, episode: Episode, stream: Stream) -> Row:
        """Return the initial state of the row of an episode that begins."""
        raise NotImplementedError

    def enter(self, episodes: Sequence[Episode], streams: Sequence[Stream]) -> list[int]:
        return [self._add(self.start_row(*each)) for each in zip(episodes, streams, strict=True)]

    def leave(self, rows: Sequence[int]) -> None:
        for row in rows:
            del self._rows[row]


class PlaysEpisodes(Protocol):
    """A program that plays whole episodes with an agent's policy, in place of the agent's `play`."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of the last collection, by name."""

    @property
    def evaluates(self) -> bool:
        """False if the program plays only for training, and the agent itself plays evaluations."""

    def play(self, agent: Any, env: TextEnv, jobs: Sequence[Job], seed: int) -> Iterator[PlayedEpisode]:
        """Play these episodes.

        Args:
            agent: The agent whose policy answers with its present weights, and whose prompts and decoding apply.
            env: The environment of the tasks.
            jobs: The episodes.
            seed: The seed of the random draws.

        Returns:
            The episodes in the order in which they end.
        """

    def for_client(self, client: int) -> PlaysEpisodes:
        """Return the client's own program, or this program if the client has none."""

    def close(self) -> None:
        """End the program."""


class Player(Protocol):
    """The interface of agents that `collect` and `evaluate` use. Language models are `TokenAgent`s.

    For most agents it is enough to derive a class from `Agent` and write `reply`. Implement `Player` for an agent that acts in
    all episodes at once: it has the attribute `name` and the method `play`, which returns `Players`.
    `fedagentgym.testing.check_agent` checks such an agent.
    """

    @property
    def name(self) -> str:
        """Name in results."""

    def play(self, env: TextEnv) -> Players:
        """Start playing.

        Args:
            env: The environment.

        Returns:
            The players of its episodes, a context manager.
        """

    def close(self) -> None:
        """Release resources of the agent, such as models and connections."""
