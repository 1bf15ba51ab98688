"""The canonical encoding: one form per value, nothing executed, and no memory taken for a forged length."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagentgym.base.encoding import (
    DTYPES,
    MAGIC,
    bytes_digest,
    canonical_json,
    decode,
    digest,
    encode,
    encode_pieces,
    file_digest,
    is_fixed,
    split_pieces,
)
from fedagentgym.base.errors import DataError

arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | arrays
keys = st.text() | st.sampled_from(["$array", "$bytes", "$dict"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(values)
def test_pieces_are_the_same_bytes(value: Any) -> None:
    data = encode(value)
    for pieces in (encode_pieces(value), split_pieces(data)):
        assert pieces.as_bytes == data == b"".join(pieces.iter_buffers())
        assert len(pieces) == len(data)
        assert pieces.digest() == bytes_digest(data)
        assert same(decode(pieces), decode(data))
        assert all(map(is_fixed, pieces.arrays))


def test_pieces_share_what_is_fixed_and_copy_what_somebody_could_still_write_to() -> None:
    fixed, loose = np.arange(6.0).reshape(2, 3), np.arange(6.0)
    fixed = fixed.copy()
    fixed.flags.writeable = False
    shown = loose[:]
    shown.flags.writeable = False
    pieces = encode_pieces({"a": fixed, "b": loose, "c": shown})
    assert [np.shares_memory(pieces.arrays[0], fixed), *(np.shares_memory(p, loose) for p in pieces.arrays[1:])] == [
        True,
        False,
        False,
    ]
    loose[:] = -1.0
    assert np.array_equal(decode(pieces)["b"], np.arange(6.0))
    assert not is_fixed(decode(bytearray(encode(loose))))  # type: ignore[arg-type]


@given(values)
def test_every_value_comes_back(value: Any) -> None:
    data = encode(value)
    back = decode(data)
    assert same(value, back)
    assert encode(back) == data


@given(st.dictionaries(st.text(), st.integers(), max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert encode(dict(items)) == encode(value)
    assert digest(dict(items)) == digest(value)


def test_memory_layout_does_not_matter() -> None:
    array = np.arange(12.0).reshape(3, 4)
    forms = [array, np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, axis=1)[:, ::2]]
    assert len({encode(form) for form in forms}) == 1


def test_golden_bytes() -> None:
    data = encode({"b": np.array([1, 2], dtype="<i2"), "a": [1, 2.5, None, "é"], "c": b"x"})
    header = (
        b'{"arrays":[["<i2",[2]],["|u1",[1]]],"tree":{"a":[1,2.5,null,"\\u00e9"],"b":{"$array":0},"c":{"$bytes":1}}}'
    )
    assert data == MAGIC + len(header).to_bytes(8, "little") + header + b"\x01\x00\x02\x00x"


@given(values, st.data())
def test_a_truncated_or_lengthened_value_is_refused(value: Any, data: st.DataObject) -> None:
    raw = encode(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    for broken in (raw[:cut], raw + b"\x00"):
        with pytest.raises(DataError):
            decode(broken)


@given(values, st.data())
def test_a_changed_byte_never_does_harm(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DataError):
        decode(bytes(raw))


def forged(header: Any, rest: bytes = b"") -> bytes:
    head = (header if isinstance(header, str) else json.dumps(header)).encode()
    return MAGIC + len(head).to_bytes(8, "little") + head + rest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FAG2" + b"\x00" * 20,
        MAGIC + (1 << 62).to_bytes(8, "little"),
        forged({"arrays": [["<f8", [1 << 40]]], "tree": {"$array": 0}}),
        forged({"arrays": [["<f8", [1 << 40, 1 << 40, 0]]], "tree": 1}, b""),
        forged({"arrays": [["<f8", [-1]]], "tree": {"$array": 0}}),
        forged({"arrays": [["|O", [1]]], "tree": {"$array": 0}}, b"12345678"),
        forged({"arrays": [], "tree": {"$array": 0}}),
        forged({"arrays": [], "tree": {"$array": True}}),
        forged({"arrays": [["|u1", [1]]], "tree": [{"$array": 0}, {"$array": 0}]}, b"x"),
        forged({"arrays": [["|u1", [1]]], "tree": []}, b"x"),
        forged({"arrays": [], "tree": {"$dict": "exec"}}),
        forged({"arrays": [], "tree": 1, "more": 2}),
        forged("[" * 100_000),
        forged('{"arrays":[],"tree":NaN}'),
        forged('{"arrays":[],"tree":' + "[" * 5000 + "]" * 5000 + "}"),
    ],
)
def test_forged_bytes_are_refused_before_memory_is_taken(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(DataError):
        decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


def test_the_message_about_a_long_header_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(["a" * 100])
    length = len(data) - 12
    with pytest.raises(DataError, match=f"a header of {length} bytes, {length - 1} are there"):
        decode(data[:-1])
    for limits in ({"limit": 50}, {"header_limit": 50}, {"limit": 80, "header_limit": 50}):
        with pytest.raises(DataError, match=f"a header of {length} bytes, at most 50 are allowed"):
            decode(data, **limits)
    monkeypatch.setattr("fedagentgym.base.encoding.MAX_HEADER", 50)
    with pytest.raises(DataError, match=f"a header of {length} bytes, at most 50 are allowed"):
        decode(data)


def test_a_limit_refuses_what_declares_more() -> None:
    data = encode(np.zeros(1000))
    assert decode(data, limit=len(data)).shape == (1000,)
    with pytest.raises(DataError, match="at most"):
        decode(data, limit=len(data) - 1)


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, object(), np.array([object()]), np.array(["text"]), np.array([1j])])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(DataError):
        encode(value)


@pytest.mark.parametrize("value", [float("nan"), {1.5: object()}, {"a": {1, 2}}])
def test_digests_are_of_plain_values_only(value: Any) -> None:
    with pytest.raises(DataError):
        digest(value)


def test_canonical_json_is_pinned() -> None:
    assert canonical_json({"b": [1, 0.1, 1e100], "a": "é\ud800"}) == '{"a":"\\u00e9\\ud800","b":[1,0.1,1e+100]}'


def test_file_digests(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b" / "c").write_bytes(b"2")
    before = file_digest(tmp_path)
    (tmp_path / "b" / "c").write_bytes(b"3")
    assert file_digest(tmp_path) != before
    with pytest.raises(DataError, match="cannot read"):
        file_digest(tmp_path / "absent")
