from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedagentgym.agents.protocols import Move
from fedagentgym.base.encoding import canonical_json, decode, encode
from fedagentgym.base.errors import DataError
from fedagentgym.learning.forward import batch_by_length
from fedagentgym.learning.trajectory import (
    Segment,
    Trajectory,
    Turn,
    build_rows,
    from_plain,
    make_segments,
    map_tokens_to_turns,
    to_plain,
)

Groups = list[tuple[Trajectory, ...]]


def same(a: Trajectory, b: Trajectory) -> bool:
    return canonical_json(to_plain(a, segments=False)) == canonical_json(to_plain(b, segments=False)) and all(
        np.array_equal(x, y) and x.dtype == y.dtype
        for first, second in zip(a.segments, b.segments, strict=True)
        for x, y in zip(first, second, strict=True)
    )


def test_a_trajectory_survives_the_wire(make_groups: Callable[..., Groups]) -> None:
    for group in make_groups():
        for trajectory in group:
            assert same(from_plain(decode(encode(to_plain(trajectory)))), trajectory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda plain: plain.pop("turns"),
        lambda plain: plain.update(turns="many"),
        lambda plain: plain.update(seed=[]),
        lambda plain: plain["turns"][0].update(tokens=99),
        lambda plain: plain["segments"][0].update(mask=np.ones(1, dtype=bool)),
        lambda plain: plain["segments"][0].update(prompt_ids=np.zeros((2, 2), dtype=np.int32)),
        lambda plain: plain["segments"][0].update(allowed_counts=np.array([-1])),
    ],
)
def test_a_damaged_trajectory_is_one_error(make_groups: Callable[..., Groups], damage: Callable[[Any], Any]) -> None:
    plain = to_plain(make_groups()[0][0])
    damage(plain)
    with pytest.raises(DataError, match="not a trajectory"):
        from_plain(plain)


def test_moves_of_a_session_make_one_segment() -> None:
    moves = [
        Move("x", "x", context_ids=(1, 2), token_ids=(3, 4), logprobs=(-0.1, -0.2), fresh=True),
        Move("y", "y", context_ids=(5,), token_ids=(6,), logprobs=(-0.3,), fresh=False),
    ]
    (segment,) = make_segments(moves)
    assert segment.prompt_ids.tolist() == [1, 2]
    assert segment.token_ids.tolist() == [3, 4, 5, 6]
    assert segment.mask.tolist() == [True, True, False, True]
    assert segment.logprobs.tolist() == pytest.approx([-0.1, -0.2, 0.0, -0.3])


def test_moves_of_a_window_make_one_segment_each() -> None:
    moves = [
        Move("x", "x", context_ids=(1,), token_ids=(3,), logprobs=(-0.1,), allowed=((3, 4),)),
        Move("y", "y", context_ids=(5, 7), token_ids=(6,), logprobs=(-0.3,), allowed=((6,),)),
    ]
    first, second = make_segments(moves)
    assert (first.prompt_ids.tolist(), second.prompt_ids.tolist()) == ([1], [5, 7])
    assert (first.allowed_ids.tolist(), first.allowed_counts.tolist()) == ([3, 4], [2])
    assert second.token_ids.tolist() == [6]


def test_every_own_token_belongs_to_the_turn_it_was_said_in(make_groups: Callable[..., Groups]) -> None:
    trajectory = make_groups()[0][0]
    (owner,) = map_tokens_to_turns(trajectory)
    assert np.bincount(owner).tolist() == [turn.tokens for turn in trajectory.turns]
    advantages = np.arange(len(trajectory.turns), dtype=np.float64)
    (row,) = build_rows([(trajectory,)], [(advantages,)])
    assert row.advantages.tolist() == owner.tolist()
    segment = trajectory.segments[0]
    assert row.ids[row.own].tolist() == segment.token_ids[segment.mask].tolist()


def test_a_reply_without_any_prompt_is_refused() -> None:
    segment = Segment(*(np.array(x, dtype=t) for x, t in (([], "i4"), ([1], "i4"), ([True], "?"), ([0.0], "f4"))))
    turn = Turn("", "a", ("a",), 0.0, True, True, tokens=1)
    with pytest.raises(DataError, match="nothing precedes it"):
        build_rows([(Trajectory("t", 0, (turn,), (segment,)),)], [(np.zeros(1),)])


def test_micro_batches_hold_every_row_once_within_the_bound(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(3, 5)
    rows = build_rows(groups, [tuple(np.ones(len(t.turns)) for t in group) for group in groups])
    for bound in (1, 20, 50, 10_000):
        batches = batch_by_length([len(row.ids) for row in rows], bound)
        assert sorted(index for batch in batches for index in batch) == list(range(15))
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(len(rows[index].ids) for index in batch) <= bound
