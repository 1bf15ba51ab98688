from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagentgym.base.encoding import MAGIC, canonical_json, encode
from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import KINDS, ArrayForm, AtMost, Form, Message, freeze, is_finite, update_norm
from fedagentgym.federation.records import Meter, add_counts, headline_bytes

VECTOR = Form({"w": ArrayForm("float32", (4,))}, text=64, report=0)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
arrays = hnp.arrays(
    st.sampled_from([np.dtype("float32"), np.dtype("int32"), np.dtype("bool"), np.dtype("float64")]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements={"allow_nan": False},
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=6)
sections = st.dictionaries(names, arrays | plain, max_size=4)


def vector(**control: object) -> Message:
    return Message(weights={"w": np.arange(4, dtype=np.float32)}, control=control)


@given(
    st.sampled_from(["float16", "float32", "float64"]),
    st.integers(0, 30_000),
    st.sampled_from([1.0, 60_000.0, 1e30, 1e300, np.inf, -np.inf, np.nan]),
    st.integers(0, 2**32),
)
def test_finite_is_what_numpy_says_also_of_numbers_whose_squares_overflow(
    dtype: str, size: int, odd: float, place: int
) -> None:
    with np.errstate(over="ignore"):
        array = np.ones(size, np.float64).astype(dtype)
        array[place % max(size, 1) :][:1] = np.array(odd).astype(dtype)
    assert is_finite(array) == bool(np.isfinite(array).all())


def decode_or_refuse(data: bytes, form: Form, start: dict[str, np.ndarray] | None) -> Message | str:
    try:
        return Message.decode(data, form, start)
    except DataError as error:
        return str(error)


@given(
    st.sampled_from(["float16", "float32", "float64"]),
    st.lists(st.integers(0, 30_000), min_size=1, max_size=3),
    st.sampled_from([1.0, 60_000.0, 3e38, 1e300, np.inf, -np.inf, np.nan]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_weights_measured_while_they_are_checked_are_refused_and_measured_as_in_two_passes(
    dtype: str, sizes: list[int], odd: float, finite: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    start = {f"{k}": draw.normal(size=size).astype(dtype) for k, size in enumerate(sizes)}
    sent = {name: value + draw.normal(size=value.size).astype(dtype) for name, value in start.items()}
    with np.errstate(over="ignore"):
        sent["0"][seed % max(sizes[0], 1) :][:1] = np.array(odd).astype(dtype)
    form = Form({str(k): ArrayForm(dtype, (size,), finite) for k, size in enumerate(sizes)})
    data = Message(weights=sent).encoded
    apart, together = decode_or_refuse(data, form, None), decode_or_refuse(data, form, start)
    if isinstance(together, str) or isinstance(apart, str):
        assert together == apart
        assert finite
        assert not np.isfinite(sent["0"]).all()
    else:
        assert np.array_equal(together.measure_distance(start), update_norm(start, sent), equal_nan=True)
        assert np.array_equal(together.measure_distance(sent), apart.measure_distance(sent), equal_nan=True)


@given(sections, sections, sections)
def test_a_message_comes_back_as_it_was_and_has_one_encoding(weights: dict, text: dict, report: dict) -> None:
    message = Message(weights=weights, text=text, report=report)
    back = Message.decode(message.encoded)
    assert back.encoded == message.encoded
    assert back.digest == message.digest
    assert back.count_payload() == message.count_payload()
    for name, array in message.get_arrays().items():
        assert back.get_arrays()[name].dtype == array.dtype
        assert np.array_equal(back.get_arrays()[name], array)


def test_the_order_of_names_does_not_change_the_bytes() -> None:
    first = Message(weights={"a": np.zeros(2), "b": np.ones(2)}, control={"x": 1, "y": 2})
    second = Message(weights={"b": np.ones(2), "a": np.zeros(2)}, control={"y": 2, "x": 1})
    assert first.encoded == second.encoded


def test_payload_counts_array_and_text_bytes_by_kind_and_nothing_else() -> None:
    message = Message(
        weights={"w": np.zeros((3, 5), np.float32)},
        text={"question": "ärger", "tokens": [np.zeros(7, np.int32)]},
        scores={"s": np.zeros(4, np.float32)},
        control={"step": 12, "name": "abc"},
        report={"loss": 0.25},
    )
    assert message.count_payload() == {"weights": 60, "text": 6 + 28, "scores": 16, "control": 3}
    meter = Meter()
    meter.record("up", message)
    for _ in range(3):
        meter.record("down", message)
    counts = meter.counts
    assert sum(counts["up"][kind] for kind in KINDS) == 60 + 34 + 16 + 3
    assert counts["down"]["weights"] == 180
    assert counts["up"]["report"] == len(encode(message.report))
    total = headline_bytes(counts, "up") + counts["up"]["report"]
    assert total == len(message.encoded)
    assert add_counts(counts, counts)["down"]["messages"] == 6


def test_a_message_that_is_as_declared_passes() -> None:
    message = vector(step=1)
    assert np.array_equal(Message.decode(message.encoded, VECTOR).weights["w"], np.arange(4, dtype=np.float32))
    ragged = Form(scores={"ids": ArrayForm("int32", (AtMost(10), 2))})
    for rows in (0, 10):
        sent = Message(scores={"ids": np.zeros((rows, 2), np.int32)})
        assert Message.decode(sent.encoded, ragged).scores["ids"].shape == (rows, 2)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(weights={"w": np.zeros(4, np.float64)}), "dtype float64, declared is float32"),
        (Message(weights={"w": np.zeros(3, np.float32)}), r"shape \(3,\), declared is \(4\)"),
        (Message(weights={"w": np.zeros((4, 1), np.float32)}), "shape"),
        (Message(weights={"w": np.array([0, np.nan, 0, 0], np.float32)}), "not finite"),
        (Message(weights={"w": np.array([0, np.inf, 0, 0], np.float32)}), "not finite"),
        (Message(weights={"v": np.zeros(4, np.float32)}), "'weights/v' that was not declared"),
        (Message(), "lacks the declared array 'weights/w'"),
        (Message(scores={"w": np.zeros(4, np.float32)}), "was not declared"),
        (vector(note="x" * 700), "bytes of plain values: 64 were declared"),
    ],
)
def test_what_was_not_declared_is_refused(message: Message, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Message.decode(message.encoded, VECTOR)


def test_too_many_bytes_are_refused_before_memory_is_taken() -> None:
    big = Message(weights={"w": np.zeros(1 << 20, np.float32)}).encoded
    header = {"tree": {"format": "x"}, "arrays": [["<f4", [1 << 40]]]}
    head = canonical_json(header).encode()
    forged = MAGIC + len(head).to_bytes(8, "little") + head + b"\0" * 64
    tracemalloc.start()
    for data in (big, forged):
        with pytest.raises(DataError, match=r"declares \d+ bytes, at most \d+ are allowed"):
            Message.decode(data, VECTOR)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_a_forged_length_a_truncated_array_and_an_unknown_version_are_refused() -> None:
    good = vector().encoded
    with pytest.raises(DataError, match="declares"):
        Message.decode(good[:-1], VECTOR)
    with pytest.raises(DataError, match="declares"):
        Message.decode(good + b"\0", VECTOR)
    with pytest.raises(DataError, match="declares a header"):
        Message.decode(MAGIC + (1 << 50).to_bytes(8, "little") + good[12:], VECTOR)
    with pytest.raises(DataError, match="version"):
        Message.decode(b"FAG9" + good[4:], VECTOR)
    with pytest.raises(DataError, match="message of version 2"):
        Message.decode(encode({"format": "fedagentgym/message", "version": 2}))
    with pytest.raises(DataError, match="not a message"):
        Message.decode(encode({"weights": {}}))
    with pytest.raises(DataError, match="malformed sections"):
        Message.decode(encode({"format": "fedagentgym/message", "version": 1, "extra": 1}))
    with pytest.raises(DataError):
        Message.decode(b"")


def test_every_single_flipped_byte_is_either_refused_or_leaves_a_well_formed_message() -> None:
    good = vector(step=3).encoded
    for position in range(len(good)):
        broken = bytearray(good)
        broken[position] ^= 0x41
        try:
            message = Message.decode(bytes(broken), VECTOR)
        except DataError:
            continue
        assert set(message.get_arrays()) == {"weights/w"}


def test_named_sets_are_encoded_beside_the_weights() -> None:
    zeros, ones = np.zeros(4, np.float32), np.ones(2, np.float32)
    message = Message(weights={"w": zeros}, sets={"optimizer": {"exp_avg/w": zeros, "counts": ones}, "none": {}})
    names = {"weights/w", "weights/optimizer/exp_avg/w", "weights/optimizer/counts"}
    form = Form(
        {"w": ArrayForm("float32", (4,))},
        sets={"optimizer": {"exp_avg/w": ArrayForm("float32", (4,)), "counts": ArrayForm("float32", (2,))}},
    )
    assert set(message.get_arrays()) == set(form.arrays) == names
    back = Message.decode(message.encoded, form)
    assert set(back.weights) == {"w"} and set(back.sets) == {"optimizer"}
    assert set(back.sets["optimizer"]) == {"exp_avg/w", "counts"} and back.digest == message.digest
    assert message.count_payload()["weights"] == 16 + 16 + 8
    flat = {"w": zeros, "optimizer/exp_avg/w": zeros, "optimizer/counts": ones}
    assert encode({"format": "fedagentgym/message", "version": 1, "weights": flat}) == message.encoded
    with pytest.raises(DataError, match="'weights/optimizer/counts' that was not declared"):
        Message.decode(message.encoded, Form(form.weights, sets={"optimizer": {"exp_avg/w": form.weights["w"]}}))
    with pytest.raises(DataError, match="cannot be called 'optimizer/w'"):
        _ = Message(weights={"optimizer/w": zeros}).encoded


def test_what_stays_in_this_process_is_not_copied_and_cannot_change() -> None:
    kept, given = np.ones(4, np.float32), freeze({"w": np.ones(4, np.float32)})
    sent = [Message(weights={"w": kept}), Message(weights=given)]
    digests = [message.digest for message in sent]
    kept[0] = 7.0
    back = [Message.decode(message.pieces, VECTOR) for message in sent]
    assert [message.digest for message in back] == digests == [digests[0]] * 2
    assert np.array_equal(back[0].weights["w"], np.ones(4))
    assert np.shares_memory(back[1].weights["w"], given["w"])
    assert not any(message.weights["w"].flags.writeable for message in back)


def test_bytes_that_keep_to_one_declaration_are_still_checked_against_another() -> None:
    pieces = vector().pieces
    assert Message.decode(pieces, VECTOR).digest == Message.decode(pieces, VECTOR).digest
    with pytest.raises(DataError, match="shape"):
        Message.decode(pieces, Form({"w": ArrayForm("float32", (5,))}))
    with pytest.raises(DataError, match="finite"):
        Message.decode(Message(weights={"w": np.full(4, np.nan, np.float32)}).pieces, VECTOR)
