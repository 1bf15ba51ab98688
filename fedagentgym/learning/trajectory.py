"""The record of an episode: the turns that people read, the token segments on which the loss is computed, and its line on disk.

One type serves both values of `agent.context`. With `session` an episode has one segment, with `window` one per turn; if a
harness plays, it has any number. The tokens that the agent chose are those whose mask is true; `Turn.tokens` gives how many of
them, in order, belong to each turn. A row of the loss is a segment, with an advantage for each of these tokens.

On disk an episode is one JSON line. It holds the fields of `about`, which are the same in all lines of a file (environment, pool,
agent, policy), and the episode: its task, seed, outcome and turns in the order of time. A turn has the observation, the reply
with its number of `tokens` and the `segment` that holds them, the `acts` that the reply led to (one, in environments of this
package), and the rewards of these. A *brief* line leaves out what a replay restores: the seed, observations and admissible
actions. Texts may hold lone surrogates, for example where a reply was cut; JSON has an escape for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import check_line, parse_json, read_json_line_texts
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.base.shorten import show_fields

if TYPE_CHECKING:
    from fedagentgym.agents.protocols import Move


Kind = TypeVar("Kind")
_NO_REWARDS: Mapping[str, float] = {}  # unlike a mapping proxy, a dict can be sent to another process


NO_IDS: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
NO_LOGPROBS: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
NO_VALUES: NDArray[np.float64] = np.zeros(0, dtype=np.float64)


class Segment(NamedTuple):
    """A text as the model saw it: a prompt, then tokens; those whose `mask` is true are the agent's own.

    If generation was constrained, `allowed_counts` has the number of allowed token ids for each of the agent's tokens, and
    `allowed_ids` lists these ids one after the other; the log-probs are those of the distribution renormalised over them.
    """

    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    allowed_ids: NDArray[np.int32] = NO_IDS
    allowed_counts: NDArray[np.int32] = NO_IDS
    played: NDArray[np.float32] = NO_LOGPROBS
    """With `learning.correction`, the log-probs that the rollout engine recorded; `logprobs` are then the recomputed ones."""

    def __repr__(self) -> str:
        return show_fields(self)


class Turn(NamedTuple):
    """The observation and reply of one turn, the actions that the reply led to, in order, and the reward of these actions."""

    observation: str
    reply: str
    acts: tuple[str, ...]
    reward: float
    valid: bool
    format: bool
    rewards: Mapping[str, float] = _NO_REWARDS
    score: float = 0.0
    tokens: int = 0
    learn: bool = True
    """False for noise in a demonstration, which is played but not imitated."""
    admissible: tuple[str, ...] = ()
    """The listed actions, for people who read the episode; not part of messages."""
    segment: int = 0
    """Index of the episode's segment that holds the turn's tokens."""

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def action(self) -> str:
        """The actions of the turn, one per line."""
        return "\n".join(self.acts)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode: the turns that people read, and the tokens that a model learns from.

    Attributes:
        task: Id of the task.
        seed: Seed of the environment.
        turns: The turns, each with `observation`, `reply`, `acts`, `reward`, `valid`, `format`, `rewards` and `score`.
        segments: The texts as the model saw them, with the tokens that it generated and their log-probabilities; empty for
            agents without tokens.
        category: Category of the task.
        sample: Number of the episode among those with the same task and seed.
        score: Final score, between 0 and 1.
        success: Whether the task was solved.
        terminated: Whether the episode ended by itself.
        truncated: Whether the episode was cut off because its turns, or the agent's context, were used up.
        labels: Further plain values that a method attaches.
        last: The observation after the last action, for people; not part of messages.
    """

    task: str
    seed: int
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...] = ()
    category: str = ""
    sample: int = 0
    score: float = 0.0
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    labels: Mapping[str, Any] = field(default_factory=dict)
    last: str = ""

    def __repr__(self) -> str:
        about = f"{count_things(len(self.turns), 'turn')}, score {format_fixed(self.score, 3)}"
        return f"Trajectory({self.task[:80]}: {about}{', success' if self.success else ''})"

    @property
    def reward(self) -> float:
        """Sum of the rewards of all turns."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def tokens(self) -> int:
        """Number of tokens that the agent generated."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of all turns."""
        return tuple(act for turn in self.turns for act in turn.acts)


FOREIGN = "foreign"
"""The label of an episode of another policy whose replies were tokenized anew, for losses that treat it differently."""
Group = tuple[Trajectory, ...]
"""The episodes of one task that are compared with each other."""
Values = NDArray[np.float64]
PerTurn = tuple[Values, ...]
"""One array per trajectory of a group, with one number per turn."""


def to_plain(trajectory: Trajectory, *, segments: bool = True, admissible: bool = False) -> dict[str, Any]:
    """The trajectory as plain values and arrays, for a message. With `segments=False` it is plain JSON for people: without
    tokens, but with the last observation and optionally the admissible actions of every turn."""
    turns = []
    for turn in trajectory.turns:
        turns.append(turn._asdict() | {"rewards": dict(turn.rewards), "acts": list(turn.acts)})
        del turns[-1]["admissible"]
        if admissible and turn.admissible:
            turns[-1]["admissible"] = list(turn.admissible)
    plain: dict[str, Any] = {
        "task": trajectory.task,
        "seed": trajectory.seed,
        "sample": trajectory.sample,
        "category": trajectory.category,
        "score": trajectory.score,
        "success": trajectory.success,
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "turns": turns,
    }
    if trajectory.labels:
        plain["labels"] = dict(trajectory.labels)
    if segments:
        plain["segments"] = [segment._asdict() for segment in trajectory.segments]
        for segment in plain["segments"]:
            if not len(segment["played"]):
                del segment["played"]
    else:
        plain["last"] = trajectory.last
    return plain


def from_plain(plain: Mapping[str, Any], *, brief: bool = False) -> Trajectory:
    """The inverse of `to_plain`; the values are validated, since messages come from other machines. A brief episode has no seed
    and no observations."""
    try:
        turns = tuple(_parse_turn(turn, brief=brief) for turn in _take(plain, "turns", list))
        segments = tuple(_parse_segment(segment) for segment in plain.get("segments", ()))
        trajectory = Trajectory(
            task=_take(plain, "task", str),
            seed=0 if brief else _take(plain, "seed", int),
            turns=turns,
            segments=segments,
            category=_take(plain, "category", str),
            sample=_take(plain, "sample", int),
            score=_take(plain, "score", float),
            success=_take(plain, "success", bool),
            terminated=_take(plain, "terminated", bool),
            truncated=_take(plain, "truncated", bool),
            labels=_take(plain, "labels", dict) if "labels" in plain else {},
            last=_take(plain, "last", str) if "last" in plain else "",
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"not a trajectory: {type(error).__name__} {error}") from None
    for number, segment in enumerate(segments):
        owned, claimed = int(segment.mask.sum()), sum(turn.tokens for turn in turns if turn.segment == number)
        if owned != claimed:
            raise DataError(
                f"not a trajectory: its turns claim {claimed} tokens of segment {number}, which has {owned} of the agent's"
            )
    if segments and any(turn.segment >= len(segments) for turn in turns):
        raise DataError(f"not a trajectory: a turn belongs to none of its {len(segments)} segments")
    return trajectory


def _parse_turn(plain: Mapping[str, Any], *, brief: bool) -> Turn:
    rewards, segment = _take(plain, "rewards", dict), _take(plain, "segment", int)
    if segment < 0:
        raise ValueError("segment is a whole number from 0 on")
    return Turn(
        observation="" if brief else _take(plain, "observation", str),
        reply=_take(plain, "reply", str),
        acts=_take_texts(plain, "acts"),
        reward=_take(plain, "reward", float),
        valid=_take(plain, "valid", bool),
        format=_take(plain, "format", bool),
        rewards={name: _take(rewards, name, float) for name in rewards},
        score=_take(plain, "score", float),
        tokens=_take(plain, "tokens", int),
        learn=_take(plain, "learn", bool),
        admissible=_take_texts(plain, "admissible") if "admissible" in plain else (),
        segment=segment,
    )


def _take(plain: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    """A field of the expected type; a whole number is accepted as a `float`."""
    value = plain[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} is of type {type(value).__name__}, {kind.__name__} is expected")
    return value


def _take_texts(plain: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _take(plain, name, list)
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} are a list of texts")
    return tuple(values)


def _parse_segment(plain: Mapping[str, Any]) -> Segment:
    segment = Segment(
        prompt_ids=np.asarray(plain["prompt_ids"], dtype=np.int32),
        token_ids=np.asarray(plain["token_ids"], dtype=np.int32),
        mask=np.asarray(plain["mask"], dtype=np.bool_),
        logprobs=np.asarray(plain["logprobs"], dtype=np.float32),
        allowed_ids=np.asarray(plain.get("allowed_ids", NO_IDS), dtype=np.int32),
        allowed_counts=np.asarray(plain.get("allowed_counts", NO_IDS), dtype=np.int32),
        played=np.asarray(plain.get("played", NO_LOGPROBS), dtype=np.float32),
    )
    if any(array.ndim != 1 for array in segment):
        raise ValueError("the arrays of a segment have one dimension")
    if not len(segment.token_ids) == len(segment.mask) == len(segment.logprobs):
        raise ValueError("token_ids, mask and logprobs of a segment are equally long")
    if len(segment.played) not in (0, len(segment.logprobs)):
        raise ValueError("played has as many log-probs as the segment has tokens, or none")
    counts = segment.allowed_counts
    if len(counts) and (
        len(counts) != segment.mask.sum() or (counts < 1).any() or counts.sum() != len(segment.allowed_ids)
    ):
        raise ValueError("allowed_counts has one positive number per masked token, and they add up to allowed_ids")
    return segment


def number_segments(moves: Sequence[Move]) -> list[int]:
    """The segment index of each move of an episode: a fresh move begins a new segment. All are 0 if no move has tokens."""
    generated = any(move.token_ids for move in moves)
    return list(accumulate(int(generated and move.fresh and place > 0) for place, move in enumerate(moves)))


def make_segments(moves: Sequence[Move], numbers: Sequence[int] | None = None) -> tuple[Segment, ...]:
    """The segments of one episode's moves, each with the context of its first move as prompt; none if no move has
    tokens. `numbers` has the segment index of each move, if the moves of a segment need not be consecutive."""
    if not any(move.token_ids for move in moves):
        return ()
    numbers = number_segments(moves) if numbers is None else numbers
    segments = []
    for _, members in groupby(sorted(zip(numbers, moves, strict=True), key=itemgetter(0)), key=itemgetter(0)):
        joined = [move for _, move in members]
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        for index, move in enumerate(joined):
            given = () if index == 0 else move.context_ids
            ids += [*given, *move.token_ids]
            mask += [False] * len(given) + [True] * len(move.token_ids)
            logprobs += [0.0] * len(given) + list(move.logprobs or [0.0] * len(move.token_ids))
        allowed = [choices for move in joined for choices in move.allowed]
        segment = Segment(
            prompt_ids=np.array(joined[0].context_ids, dtype=np.int32),
            token_ids=np.array(ids, dtype=np.int32),
            mask=np.array(mask, dtype=np.bool_),
            logprobs=np.array(logprobs, dtype=np.float32),
            allowed_ids=np.array([token for choices in allowed for token in choices], dtype=np.int32),
            allowed_counts=np.array([len(choices) for choices in allowed], dtype=np.int32),
        )
        segments.append(segment)
    return tuple(segments)


def map_tokens_to_turns(trajectory: Trajectory) -> list[NDArray[np.int64]]:
    """For each segment, the turn of each of the agent's tokens in it."""
    owner = np.repeat(np.arange(len(trajectory.turns)), [turn.tokens for turn in trajectory.turns])
    segment = np.array([turn.segment for turn in trajectory.turns], dtype=np.int64)[owner]
    return [owner[segment == number] for number in range(len(trajectory.segments))]


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of token ids; `own` are the positions of the agent's tokens in it. The other arrays have an entry for each of
    these tokens, except for `allowed_ids`, which lists the allowed tokens of all of them, or are empty."""

    ids: NDArray[np.int64]
    own: NDArray[np.int64]
    behaviour: NDArray[np.float32]
    advantages: NDArray[np.float64]
    allowed_ids: NDArray[np.int32]
    allowed_counts: NDArray[np.int32]
    played: NDArray[np.float32] = field(default_factory=lambda: NO_LOGPROBS)
    weight: float = 1.0
    """The row's weight in a mean over rows."""
    values: NDArray[np.float64] = field(default_factory=lambda: NO_VALUES)
    returns: NDArray[np.float64] = field(default_factory=lambda: NO_VALUES)
    """With a value head, `values` of the states before the own tokens when the step began, and their targets (`returns`)."""
    foreign: bool = False
    """True if another policy generated the text, in other tokens."""

    @property
    def active(self) -> bool:
        """True if the policy gradient of this row can differ from zero."""
        return bool(np.any(self.advantages))


def build_rows(groups: Sequence[Group], advantages: Sequence[PerTurn], *, by_episode: bool = False) -> list[Row]:
    """The rows of all groups, in order. With `by_episode` the weights of an episode's rows add up to 1."""
    rows = [
        row
        for group, per_turn in zip(groups, advantages, strict=True)
        for trajectory, turns in zip(group, per_turn, strict=True)
        for row in build_trajectory_rows(trajectory, turns)
    ]
    if not by_episode:
        return rows
    shares = [1.0 / len(one.segments) for group in groups for one in group for _ in one.segments]
    return [replace(row, weight=share) for row, share in zip(rows, shares, strict=True)]


def build_trajectory_rows(trajectory: Trajectory, advantages: NDArray[np.float64]) -> Iterator[Row]:
    """One row per segment; each token has the advantage of its turn."""
    for segment, owner in zip(trajectory.segments, map_tokens_to_turns(trajectory), strict=True):
        places = np.flatnonzero(segment.mask)
        own = len(segment.prompt_ids) + places
        if len(own) and own[0] == 0:
            raise DataError(
                f"a segment of task {trajectory.task!r} begins with a token of the agent: nothing precedes it"
            )
        logprobs, played = segment.logprobs[places], segment.played[places] if len(segment.played) else NO_LOGPROBS
        if not (np.isfinite(logprobs).all() and np.isfinite(played).all()):
            raise DataError(f"a segment of task {trajectory.task!r} holds a log-prob that is not finite")
        ids = np.concatenate([segment.prompt_ids, segment.token_ids]).astype(np.int64)
        row = Row(ids, own, logprobs, advantages[owner], segment.allowed_ids, segment.allowed_counts, played)
        yield replace(row, foreign=True) if FOREIGN in trajectory.labels else row


def leave_out_cut_replies(
    rows: Sequence[Row], groups: Sequence[Group], stop_ids: frozenset[int]
) -> tuple[list[Row], int]:
    """Remove the tokens of replies that were cut off from the loss.

    A reply was cut off unless its last token is one of `stop_ids`. A row without remaining tokens still counts as a row.

    Args:
        rows: The rows of all groups, in order.
        groups: The groups.
        stop_ids: The tokens that end a reply.

    Returns:
        The rows with only the remaining tokens as their own, and the number of replies that were left out.
    """
    kept, cut = [], 0
    segments = ((one, number) for group in groups for one in group for number in range(len(one.segments)))
    for row, (trajectory, number) in zip(rows, segments, strict=True):
        lengths = [turn.tokens for turn in trajectory.turns if turn.segment == number and turn.tokens]
        ends = np.cumsum(lengths, dtype=np.int64)
        whole = np.isin(row.ids[row.own[ends - 1]], sorted(stop_ids))
        cut += int((~whole).sum())
        kept.append(row if whole.all() else _keep_tokens(row, np.repeat(whole, lengths)))
    return kept, cut


def _keep_tokens(row: Row, kept: NDArray[np.bool_]) -> Row:
    """The row with only the `kept` ones of its own tokens in the loss."""
    along = ("own", "behaviour", "advantages", "allowed_counts", "played", "values", "returns")
    arrays = {name: getattr(row, name) for name in along}
    allowed = row.allowed_ids[np.repeat(kept, row.allowed_counts)] if len(row.allowed_counts) else row.allowed_ids
    parts = {name: array[kept] for name, array in arrays.items() if len(array)}
    return replace(row, **parts, allowed_ids=allowed)


# ---- lines on disk -------------------------------------------------------------------------------------------------------

_EXAMPLE = Trajectory("", 0, (), labels={"any": 0})
_OWN = frozenset({*to_plain(_EXAMPLE), *to_plain(_EXAMPLE, segments=False)})
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False)


class Line(NamedTuple):
    """A line: its place for messages, its episode, its other fields, its text, and whether it is brief."""

    where: str
    trajectory: Trajectory
    about: dict[str, Any]
    text: str
    brief: bool


def format_line(trajectory: Trajectory, about: Mapping[str, Any] | None = None, *, brief: bool = False) -> str:
    """The line of an episode, without the newline; `about` adds fields such as a digest.

    Raises:
        DataError: If a number is not finite, or JSON cannot represent a label.
    """
    plain = to_plain(trajectory, segments=False, admissible=not brief)
    if brief:
        del plain["seed"], plain["last"]
        for turn in plain["turns"]:
            del turn["observation"]
    try:
        return _ENCODER.encode({**(about or {}), **plain})
    except (TypeError, ValueError) as error:
        raise DataError(f"an episode of {trajectory.task!r} cannot be written: {error}") from None


def read_lines(path: str | Path) -> Iterator[Line]:
    """Yield every episode of a file; one line is in memory at a time.

    Raises:
        DataError: If a line is not an episode, or has no newline.
    """
    for where, plain, text in read_json_line_texts(path, halves=True):
        yield _parse_line(where, plain, text)


def parse_lines(texts: Iterable[str], where: str) -> Iterator[Line]:
    """Like `read_lines`, for lines that were already read, without their ends; `where` names their source in messages."""
    for number, text in enumerate(texts, start=1):
        place = f"{where}, line {number}"
        check_line(text.encode("utf-8", "surrogatepass"), place)
        yield _parse_line(place, parse_json(text, place, halves=True), text)


def _parse_line(where: str, plain: Any, text: str) -> Line:
    if not isinstance(plain, dict):
        raise DataError(f"{where}: an episode is a JSON object, found {type(plain).__name__}")
    brief, turns = "seed" not in plain, plain.get("turns")
    if brief:
        of_turns = (turn for turn in turns if isinstance(turn, dict)) if isinstance(turns, list) else ()
        if "last" in plain or any("observation" in turn or "admissible" in turn for turn in of_turns):
            raise DataError(
                f"{where}: not a trajectory: without a seed a line is brief, and holds no observations either"
            )
    elif "last" not in plain:
        raise DataError(f"{where}: not a trajectory: with a seed a line is whole, and its last observation is missing")
    if "segments" in plain:
        raise DataError(f"{where}: not a trajectory: the tokens of an episode do not belong in its line")
    try:
        trajectory = from_plain(plain, brief=brief)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return Line(where, trajectory, {name: value for name, value in plain.items() if name not in _OWN}, text, brief)


def group_by_task(trajectories: Iterable[Trajectory]) -> tuple[Group, ...]:
    """Consecutive episodes of one task, as groups."""
    return tuple(tuple(members) for _, members in groupby(trajectories, key=lambda one: one.task))
