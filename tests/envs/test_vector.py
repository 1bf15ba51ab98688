"""Text spaces and gymnasium's vector environments, with and without shared memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError
from fedagentgym.envs.spaces import TextSpace

GUESS = "fedagentgym/Guess-v0"


@given(st.text())
def test_every_text_is_in_the_space(text: str) -> None:
    assert text in TextSpace() and text.encode("utf-8", "surrogatepass") not in TextSpace()


def test_samples_are_reproducible_and_vary() -> None:
    first, second = TextSpace(seed=3), TextSpace(seed=3)
    texts = [first.sample() for _ in range(50)]
    assert texts == [second.sample() for _ in range(50)] and len(set(texts)) > 40
    assert first.from_jsonable(first.to_jsonable(texts)) == texts


ACTIONS = ("guess 3", "é🙂\ud800 \x00", "")
QUERIES = ("describe[members]", "query[SELECT name FROM patients]", "query[SELECT count(*) FROM patients]")
SEARCHES = ("<tool> search[Oslo] </tool>", "<tool> search[the founder of a firm] </tool>", "<tool> search[é🙂] </tool>")


@pytest.mark.parametrize(
    ("env_id", "options", "actions", "mode", "shared_memory"),
    [
        *((GUESS, {}, ACTIONS, mode, shared) for mode in ("sync", "async") for shared in (True, False)),
        ("fedagentgym/Records-v0", {}, QUERIES, "sync", False),
        ("fedagentgym/Records-v0", {}, QUERIES, "async", True),
        ("fedagentgym/QA-v0", {"tools": ["search"], "corpus": "all"}, SEARCHES, "sync", False),
    ],
)
def test_vector_environments_agree_with_single_ones(
    env_id: str, options: dict[str, Any], actions: tuple[str, ...], mode: str, shared_memory: bool
) -> None:
    extra = {"shared_memory": shared_memory} if mode == "async" else {}
    vector = gymnasium.make_vec(env_id, num_envs=3, vectorization_mode=mode, vector_kwargs=extra, **options)
    singles = [gymnasium.make(env_id, **options) for _ in range(3)]
    try:
        observations, infos = vector.reset(seed=11)
        expected = [env.reset(seed=11 + number) for number, env in enumerate(singles)]
        assert tuple(observations) == tuple(observation for observation, _ in expected)
        assert list(infos["task"]) == [info["task"] for _, info in expected]
        assert vector.single_observation_space.contains(observations[0]) and vector.observation_space.contains(
            observations
        )
        for _ in range(3):
            observations, rewards, _, _, infos = vector.step(actions)
            steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            assert tuple(observations) == tuple(step[0] for step in steps)
            assert rewards.tolist() == [step[1] for step in steps]
            assert list(infos["valid"]) == [step[4]["valid"] for step in steps]
        vector.step(vector.action_space.sample())
    finally:
        vector.close()


def test_the_copy_of_an_observation_does_not_change_later() -> None:
    vector = gymnasium.make_vec(GUESS, num_envs=2, vectorization_mode="async")
    try:
        first, _ = vector.reset(seed=0)
        kept = tuple(first)
        vector.step(("?", "?"))
        assert tuple(first) == kept
    finally:
        vector.close()


def test_episodes_restart_on_the_step_after_their_end() -> None:
    vector = gymnasium.make_vec(GUESS, num_envs=1, max_turns=1)
    vector.reset(seed=0)
    assert vector.step(("?",))[3].tolist() == [True]
    observations, _, _, truncated, infos = vector.step(("ignored",))
    assert truncated.tolist() == [False] and infos["turn"].tolist() == [0] and "number between" in observations[0]


def test_a_text_too_long_for_its_slot_is_one_sentence() -> None:
    from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

    space = TextSpace(slot_bytes=16)
    memory = create_shared_memory(space, n=2)
    write_to_shared_memory(space, 1, "sixteen bytes !!", memory)
    texts = read_from_shared_memory(space, memory, n=2)
    assert tuple(texts) == ("", "sixteen bytes !!") and texts[-1] == texts[1] and texts[0:2] == ("", "sixteen bytes !!")
    with pytest.raises(DataError, match="shared_memory"):
        write_to_shared_memory(space, 0, "é" * 9, memory)
