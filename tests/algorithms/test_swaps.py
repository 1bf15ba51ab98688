"""PubSwap's exchange of answers, for every pattern of right and wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.algorithms.pubswap import draw_balanced_swap, draw_random_swap
from fedagentgym.base.streams import stream

patterns = st.integers(1, 8).flatmap(
    lambda size: st.dictionaries(
        st.integers(0, 9), st.lists(st.booleans(), min_size=size, max_size=size), min_size=1, max_size=5
    )
)


@given(patterns, st.integers(0, 1000))
def test_balanced_brings_everybody_up_to_half_and_takes_nothing_away(right: dict[int, list[bool]], seed: int) -> None:
    taken = draw_balanced_swap(right, stream(seed))
    assert set(taken) == set(right)
    for client, own in right.items():
        size, correct = len(own), sum(own)
        donors = sum(sum(theirs) for other, theirs in right.items() if other != client)
        places = [place for place, _, _ in taken[client]]
        sources = [(donor, source) for _, donor, source in taken[client]]
        assert all(not own[place] for place in places), "a right answer was replaced"
        assert all(donor != client and right[donor][source] for donor, source in sources), "not another's right answer"
        assert len(set(places)) == len(places) and len(set(sources)) == len(sources)
        expected = correct if correct >= size // 2 else max(correct, min(size // 2, correct + donors))
        assert correct + len(places) == expected


@given(patterns, st.integers(0, 1000))
def test_random_gives_everybody_the_same_answers(right: dict[int, list[bool]], seed: int) -> None:
    taken = draw_random_swap(right, stream(seed))
    size = len(next(iter(right.values())))
    sources = {tuple((donor, source) for _, donor, source in given) for given in taken.values()}
    assert len(sources) == 1 and all([place for place, _, _ in given] == list(range(size)) for given in taken.values())
    (chosen,) = sources
    assert len(set(chosen)) == size and all(donor in right and 0 <= source < size for donor, source in chosen)


def test_who_is_replaced_is_drawn() -> None:
    right = {0: [False] * 6, 1: [True] * 6}
    places = {tuple(place for place, _, _ in draw_balanced_swap(right, stream(seed))[0]) for seed in range(60)}
    assert len(places) > 10
