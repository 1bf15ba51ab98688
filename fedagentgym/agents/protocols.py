"""Agents and policies: what rollouts, evaluation and training are built on.

There are two levels, so that no module has to know more than it needs:

* `Player` / `Players` (text level, used by rollouts and evaluation): give it episodes, get `Move`s. Every kind
  of agent has it - a language model, an expert, a random walker, a person, a hosted model - and a language model's
  moves carry the token ids, the behaviour log-probs and (when constrained) the allowed sets, so that a trainer never
  renders, encodes or parses.
* `Policy` / `Session` (token level, implemented by engines): token ids in, token ids and log-probs out, over many
  turns.

Randomness: every row samples from its own stream by inverse CDF, and one `act` consumes exactly `max_new_tokens`
uniforms of that row's stream whatever is generated. A row's reply therefore depends on its stream and its tokens, not
on the other rows - up to floating point: another batch shape may change a logit in the last bits, and a uniform that
falls within that distance of a boundary of the CDF picks the neighbouring token (rare in float32, far more frequent in
bfloat16).
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
"""The reason why a reply ended: a stop token, `max_new_tokens`, or a full context (then nothing was generated)."""


class Decoding(Settings):
    """The settings of drawing tokens. With temperature 0 the most likely token is taken, and all log-probabilities are 0."""

    temperature: float = Field(default=1.0, ge=0.0, description="divides the logits; 0 takes the most likely token")
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="smallest set of tokens with this much probability; 1 keeps all"
    )
    max_new_tokens: int = Field(default=16, ge=1, description="most tokens in one reply")
    constrained: bool = Field(default=False, description="only replies that are admissible actions can be generated")


class Completion(NamedTuple):
    """One reply in tokens, its stop token (if any) included; `logprobs` belong to the distribution sampled from."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    allowed: tuple[tuple[int, ...], ...] = ()
    """Constrained generation: the token ids allowed at each position (the distribution was renormalised over them)."""


class Constraint(Protocol):
    """The tokens that may come next. States are plain values; a state in which a reply goes on always allows a token."""

    def start(self) -> Any: ...

    def get_allowed_tokens(self, state: Any) -> tuple[int, ...]:
        """Return the ids that may follow, sorted and distinct; the stop token is among them if a reply may end."""
        ...

    def advance(self, state: Any, token: int) -> Any: ...


Row = TypeVar("Row")


class Rows(Generic[Row]):
    """Numbered rows that come and go, until all end with the context."""

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
    """A row of a session: its tokens so far."""

    ids: list[int]


class Session(Rows[Any], ABC):
    """Rows of tokens that grow turn by turn and keep their key-value cache. A context manager; rows are small ints.

    An engine derives a class and writes `open` and `_continue`. `_rows` maps numbers to rows, each a `SessionRow` or a class
    derived from it; `on_close` is called once, at the end.
    """

    def __init__(self, context_length: int, on_close: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.context_length = context_length
        self._on_close = on_close

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> list[int]:
        """Add `copies` rows per prompt (adjacent in the result); rows that share a prompt share its work."""

    def append(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        """Add given tokens (an observation) to the rows. Lazy: costs nothing until the next `generate`."""
        for row, chunk in zip(rows, chunks, strict=True):
            self._rows[row].ids.extend(chunk)

    def generate(
        self,
        rows: Sequence[int],
        streams: Sequence[Stream],
        decoding: Decoding,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> list[Completion]:
        """Continue each row by one reply, which becomes part of it; draws `max_new_tokens` uniforms per stream.

        A row without room for a reply stays as it is.
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
        """Free rows. Their numbers are not used again."""
        for row in rows:
            del self._rows[row]

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            if not prompt:
                raise DataError("a prompt of no tokens cannot be continued")
            if len(prompt) >= self.context_length:
                raise DataError(
                    f"a prompt of {len(prompt)} tokens does not fit into the model's context of {self.context_length}: "
                    "shorten the prompt (template, history) or use a model with a longer context"
                )


class Policy(Protocol):
    """An engine that generates. `version` counts the weights that were loaded into it."""

    name: str
    context_length: int

    @property
    def tokenizer(self) -> TextTokenizer: ...

    @property
    def version(self) -> int: ...

    def open_session(self) -> Session:
        """Open a session on the present weights. Weights must not change while it is open."""
        ...

    def close(self) -> None: ...


class WeightOwner(Protocol):
    """A learner whose weights a model holds."""

    def save_weights(self) -> None:
        """Copy the weights from the model, which is about to hold others."""
        ...


class SharedModel:
    """Remembers whose weights a policy's model holds, for policies to inherit."""

    _owner: weakref.ref[WeightOwner] | None = None

    def claim(self, owner: WeightOwner | None = None) -> None:
        """Let the present owner save its weights, before others are loaded, and note the next owner, if there is one."""
        before = None if self._owner is None else self._owner()
        if before is not None and before is not owner:
            before.save_weights()
        self._owner = None if owner is None else weakref.ref(owner)


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy whose weights are a torch module in this process, and can be trained, read and replaced.

    `model(input_ids=...).logits` is the full forward pass that log-probs must agree with.
    While a session is open a LoRA model may be merged: train only with no session open.
    """

    model: torch.nn.Module
    device: torch.device

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by name, always in the same order."""
        ...

    def get_weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trainable parameters as plain arrays (bfloat16 becomes float32, which is exact)."""
        ...

    def set_weights(self, weights: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Replace the trainable parameters; names and shapes must be those of `get_weights`. Raises the version.

        Claims the model first (`claim()`), so that a learner whose weights it held keeps them.
        """
        ...

    def claim(self, owner: WeightOwner | None = None) -> None:
        """Let the present owner save its weights, before others are loaded, and note the next owner (`SharedModel`)."""
        ...

    def bump_version(self) -> None:
        """Report that parameters were changed in place (an optimizer step). Raises the version."""
        ...

    def add_value_head(self) -> None:
        """Add a value head, `value_head`, to the trainable parameters, zero at first; nothing if there is one."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the model (an adapter merged into it) and the tokenizer as an ordinary Hugging Face folder."""
        ...


class Move(NamedTuple):
    """An agent's part in one turn of one episode.

    The tokens of an episode are the `context_ids` (given, without loss) and `token_ids` (generated) of its moves, one after the
    other. Agents without tokens set `reply`, `action` and `format` alone.

    Attributes:
        reply: The agent's text.
        action: The action for the environment.
        format: Whether the reply has the form that was asked for.
        context_ids: Tokens that were given to the model since the last move.
        token_ids: Tokens that it generated.
        logprobs: Log-probability of each generated token under the distribution that it was drawn from.
        allowed: With constrained decoding, the tokens that were allowed at each place.
        fresh: Whether a new text begins with this move: every turn in the context `window`, the first in `session`.
        finish: `stop`, `length` (too long a reply) or `context`: nothing was generated since the context is full, and the
            episode ends.
        learn: False for noise in a demonstration, which is played but not imitated.
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
    """A turn of an episode that a program played: a reply, the actions that it led to, and the episode before and after each.

    `segment` is the number of the text that holds the reply's tokens.
    """

    move: Move
    segment: int
    before: Episode
    acts: tuple[str, ...]
    after: tuple[Episode, ...]


class PlayedEpisode(NamedTuple):
    """An episode that a program played; `lost` says why it did not end properly, if it did not."""

    number: int
    episode: Episode
    turns: tuple[PlayedTurn, ...]
    truncated: bool = False
    lost: str | None = None


class Job(NamedTuple):
    """An episode to be played: its number, which names its draws, its task, the seed of the environment, and the number of the
    copy (`sample`)."""

    number: int
    task: Task
    seed: int
    sample: int


class Players(Protocol):
    """An agent that plays many episodes of one environment at once: rows that come and go. A context manager.

    Each row draws from its own stream, so that its moves do not depend on the rows beside it.

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
            episodes: The episodes; those of one task stand beside each other, so that they can share work.
            streams: The random stream of each.

        Returns:
            The row of each episode: a number for `act` and `leave`.
        """
        ...

    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        """Choose the next move of some rows.

        Args:
            rows: The rows.
            episodes: The present episode of each.

        Returns:
            The move of each.
        """
        ...

    def leave(self, rows: Sequence[int]) -> None:
        """Free rows whose episodes are over; their numbers may be used again.

        Args:
            rows: The rows.
        """
        ...

    def close(self) -> None:
        """End the play; called when the context ends."""

    def __enter__(self) -> Players: ...

    def __exit__(self, *error: object) -> None: ...


class RowPlayers(Rows[Row]):
    """`Players` that keep something for each row, for agents to inherit: they write `start_row` and `act`."""

    def __init__(self, env: TextEnv) -> None:
        super().__init__()
        self.env = env

    def start_row(self, episode: Episode, stream: Stream) -> Row:
        """Return what is kept for an episode that begins."""
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
        """False if it is for learning alone."""

    def play(self, agent: Any, env: TextEnv, jobs: Sequence[Job], seed: int) -> Iterator[PlayedEpisode]:
        """Play these episodes.

        Args:
            agent: The agent whose policy answers, with its present weights, and whose prompts and decoding hold.
            env: The environment of the tasks.
            jobs: The episodes.
            seed: The seed of the draws.

        Returns:
            The episodes in the order in which they end.
        """

    def for_client(self, client: int) -> PlaysEpisodes:
        """The program of a client, if it has one of its own; otherwise this one."""

    def close(self) -> None:
        """End the program."""


class Player(Protocol):
    """Anything that can play: the interface that `collect` and `evaluate` use. Language models are `TokenAgent`s.

    Few need it: derive a class from `Agent` and write `reply`, unless the agent wants all episodes of a turn at once. Then give
    it the attribute `name`, and `play`, which returns `Players`; `fedagentgym.testing.check_agent` checks it.
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
        """Release what the agent holds: models, connections."""
