"""Constrained generation: every path through a trie is an admissible reply, and every reply has a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.text.constraints import MAX_SLOT_WORDS, ActionTrie, TrieCache
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer, make_word_tokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env

SEAM = make_word_tokenizer(["go to fridge cabinet search red shoes click buy now find me"])


def walk(trie: ActionTrie, seed: int) -> tuple[int, ...]:
    """Say something at random until a stop token."""
    source, state, said = stream(seed, "walk"), trie.start(), []
    while not said or said[-1] not in SEAM.stop_ids:
        allowed = trie.get_allowed_tokens(state)
        assert allowed and list(allowed) == sorted(set(allowed))
        said.append(source.pick(allowed))
        if said[-1] not in SEAM.stop_ids:
            state = trie.advance(state, said[-1])
    return tuple(said)


@given(
    st.lists(
        st.sampled_from(["go", "go to", "go to fridge 1", "go to fridge 12", "click[< prev]", "é"]),
        min_size=1,
        unique=True,
    ),
    st.integers(0, 50),
)
def test_walks_say_admissible_actions(actions: list[str], seed: int) -> None:
    replies = tuple(f"<action>{action}</action>" for action in actions)
    trie = TrieCache(SEAM, 32).get_trie(replies, "find me red shoes")
    assert SEAM.decode(walk(trie, seed)) in replies


def test_every_action_is_reachable() -> None:
    replies = tuple(f"<action>go to fridge {number}</action>" for number in range(1, 14))
    trie = TrieCache(SEAM, 16).get_trie(replies, "")
    for reply in replies:
        state = trie.start()
        for token in SEAM.encode(reply):
            assert token in trie.get_allowed_tokens(state)
            if token not in SEAM.stop_ids:
                state = trie.advance(state, token)


def test_slots_are_filled_with_words_of_the_start() -> None:
    maker = TrieCache(SEAM, 30)
    trie = maker.get_trie(
        ("<action>search[<query>]</action>", "<action>click[buy now]</action>"), "Find me red shoes, please!"
    )
    words = {"Find", "me", "red", "shoes", "please"}
    queries = set()
    for seed in range(200):
        said = SEAM.decode(walk(trie, seed))
        if said == "<action>click[buy now]</action>":
            continue
        assert said.startswith("<action>search[") and said.endswith("]</action>")
        queries.add(said[len("<action>search[") : -len("]</action>")])
    assert len(queries) > 20
    assert all(query.split() and set(query.split()) <= words for query in queries)
    assert max(len(query.split()) for query in queries) <= MAX_SLOT_WORDS
    assert (
        maker.get_trie(
            ("<action>search[<query>]</action>", "<action>click[buy now]</action>"), "please me Find shoes red"
        )
        is trie
    )


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("fedagentgym/WebShop-v0", {"size": "tiny"}),
        ("fedagentgym/WebShop-v0", {}),
        ("fedagentgym/ALFWorld-v0", {"size": "tiny"}),
        ("fedagentgym/ALFWorld-v0", {}),
        ("fedagentgym/Records-v0", {"size": "tiny"}),
    ],
    ids=["shop", "large shop", "tiny houses", "full houses", "tiny records"],
)
def test_what_the_expert_says_can_be_said(env_id: str, options: dict[str, str]) -> None:
    """A warm start imitates what a constrained agent is then allowed to do."""
    env = open_env(env_id, **options, split="warmup")
    seam = make_word_tokenizer(env.vocabulary())
    maker = TrieCache(seam, 96)
    for number, identifier in enumerate(env.pool.ids[:15]):
        (episode,), expert = env.reset_many([identifier], [number]), env.expert()
        start = episode.view.observation
        while not episode.over:
            action = expert.act(episode)
            replies = tuple(f"<action>{one}</action>" for one in episode.view.admissible)
            trie = maker.get_trie(replies, start)
            state = trie.start()
            for token in seam.encode(f"<action>{action}</action>"):
                assert token in trie.get_allowed_tokens(state), action
                if token not in seam.stop_ids:
                    state = trie.advance(state, token)
            (episode,) = env.step_many([episode], [action])


def test_a_word_of_a_slot_keeps_its_signs() -> None:
    """`women's`, `slip-ons` and `8.5` are one word each; what stands between words is left out."""
    free = TrieCache(SEAM, 40).get_trie(("<action>search[<query>]</action>",), "red women's slip-ons, size: 8.5 (new)")
    said = {word for seed in range(300) for word in SEAM.decode(walk(free, seed))[15:-10].split()}
    assert said == {"red", "women's", "slip-ons", "size", "8.5", "new"}


def test_a_slot_closes_in_time() -> None:
    for most in range(6, 14):
        trie = TrieCache(SEAM, most).get_trie(("<action>search[<query>]</action>",), "red unheard shoes of")
        for seed in range(50):
            assert len(walk(trie, seed)) <= most
    with pytest.raises(OptionError, match="fits"):
        TrieCache(SEAM, 5).get_trie(("<action>search[<query>]</action>",), "red unheard shoes of")


def test_actions_that_do_not_fit_are_left_out() -> None:
    replies = ("<action>go</action>", "<action>go to fridge 1</action>")
    trie = TrieCache(SEAM, 3).get_trie(replies, "")
    assert SEAM.decode(walk(trie, 0)) == "<action>go</action>"
    with pytest.raises(OptionError, match="no admissible action fits into max_new_tokens 2"):
        TrieCache(SEAM, 2).get_trie(replies, "")


def test_replies_that_end_without_a_stop_token_get_one() -> None:
    plain = HuggingFaceTokenizer(SEAM.hf)
    trie = TrieCache(plain, 16).get_trie(("<action>go</action>",), "")
    state, said = trie.start(), []
    while not said or said[-1] not in plain.stop_ids:
        (token,) = trie.get_allowed_tokens(state)
        said.append(token)
        if token not in plain.stop_ids:
            state = trie.advance(state, token)
    assert plain.decode(said) == "<action>go</action>"
    assert said[-1] == SEAM.hf.eos_token_id
