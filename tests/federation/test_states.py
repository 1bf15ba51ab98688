from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.federation.exchange import StateName
from fedagentgym.federation.states import StateStore

FIRST, SECOND, THIRD = StateName(1, 0), StateName(2, 0), StateName(2, 1)


def test_a_client_without_a_state_has_none() -> None:
    assert StateStore().get(3, None) is None
    with pytest.raises(DataError, match="client 3 has no state"):
        StateStore().get(3, FIRST)


@pytest.mark.parametrize("on_disk", [False, True])
def test_states_live_as_long_as_a_kept_round_refers_to_them(tmp_path: Path, on_disk: bool) -> None:
    store = StateStore(tmp_path if on_disk else None)
    for name, state in ((FIRST, b"one"), (SECOND, b"two"), (THIRD, b"three")):
        store.put(5, name, state)
    store.commit({5: FIRST})
    store.commit({5: THIRD})
    store.prune([{5: FIRST}, {5: THIRD}])
    assert store.get(5, THIRD) == b"three" and store.get(5, FIRST) == b"one"
    with pytest.raises(DataError):
        store.get(5, SECOND)
    store.prune([{5: THIRD}])
    with pytest.raises(DataError):
        store.get(5, FIRST)
    assert store.get(5, THIRD) == b"three"


def test_only_committed_states_are_there_after_a_restart(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.put(5, FIRST, b"one")
    store.commit({5: FIRST})
    store.put(5, SECOND, b"two")
    again = StateStore(tmp_path)
    assert again.get(5, FIRST) == b"one"
    with pytest.raises(DataError):
        again.get(5, SECOND)


def test_a_store_that_writes_through_knows_its_answers_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs a folder"):
        StateStore(write_through=True)
    store = StateStore(tmp_path, write_through=True)
    store.put(5, FIRST, b"one")
    store.put_answer(5, FIRST, "sha256:abc", b"answer\nwith lines")
    again = StateStore(tmp_path, write_through=True)
    assert again.get(5, FIRST) == b"one"
    assert again.get_answer(5, FIRST, "sha256:abc") == b"answer\nwith lines"
    assert again.get_answer(5, FIRST, "sha256:other") is None
    assert again.get_answer(5, SECOND, "sha256:abc") is None
    again.put(5, THIRD, b"three")
    again.put(5, SECOND, b"two")
    again.prune_client(5, THIRD, {SECOND, THIRD})
    assert again.get_answer(5, FIRST, "sha256:abc") is None
    assert again.get(5, SECOND) == b"two"
    assert again.get(5, THIRD) == b"three"


def test_a_damaged_state_is_noticed(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.put(5, FIRST, b"one")
    store.commit({5: FIRST})
    store.prune([{5: FIRST}])
    file = next(tmp_path.rglob("*.state"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        StateStore(tmp_path).get(5, FIRST)


def test_the_message_about_a_damaged_file_says_of_what_kind_it_is(tmp_path: Path) -> None:
    store = StateStore(tmp_path, write_through=True)
    store.put(5, FIRST, b"one")
    store.put_answer(5, FIRST, "sha256:abc", b"answer")
    for file in tmp_path.rglob("*.*"):
        file.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(DataError, match="the stored state is damaged"):
        store.get(5, FIRST)
    with pytest.raises(DataError, match="the stored answer is damaged"):
        store.get_answer(5, FIRST, "sha256:abc")
