"""Transcripts: readable, and the same episode when played again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.transcripts import format_transcript, read_transcript, replay

WORLD = open_env(GuessEnv)
TASK = WORLD.pool.ids[0]


def test_a_transcript_reads_like_the_episode() -> None:
    number = WORLD.pool[TASK].payload.number
    text = format_transcript(replay(WORLD, TASK, 3, ["guess 0", f"guess {number}"]))
    first, *_, last = text.splitlines()
    assert first == f"{TASK}, seed 3"
    assert "> guess 0\n  That is not a guess.\n" in text
    assert last == "(solved, 2 turns, score 1)"


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["guess 1", "", " ", "> x", '"', "a\n> b", "\ud800"])), max_size=5)
)
def test_it_can_be_played_again(actions: list[str]) -> None:
    steps = replay(WORLD, TASK, 5, actions)
    read = read_transcript(format_transcript(steps))
    assert read == (TASK, 5, tuple(actions))
    assert replay(WORLD, *read) == steps


@pytest.mark.parametrize("text", ["", "hello", 'guess/train/00000, seed 1\n> "open'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a transcript"):
        read_transcript(text)


def test_nothing_has_no_transcript() -> None:
    with pytest.raises(DataError, match="at least the start"):
        format_transcript([])
