"""Forged values and messages: refused in one short sentence, and never anything but `DataError`."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.encoding import MAX_BITS, MAX_DEPTH, canonical_json, decode, encode
from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import ArrayForm, Form, Message
from tests.federation.forging import MESSAGE, forge, forge_text, nest

FORM = Form({"w": ArrayForm("float32", (2,)), "v": ArrayForm("float32", (2,), optional=True)}, text=64)
ZEROS = bytes(8)
ENTRY = ["<f4", [2]]

HEADERS = {
    "a list nested by the thousand": forge_text('{"arrays":[],"tree":' + nest(100_000) + "}"),
    "a list nested a little too deep": forge_text('{"arrays":[],"tree":' + nest(MAX_DEPTH + 2) + "}"),
    "blanks": forge_text('{"arrays": [],"tree":1}'),
    "a key twice": forge_text('{"arrays":[],"tree":{"a":1,"a":2}}'),
    "keys in another order": forge_text('{"tree":1,"arrays":[]}'),
    "infinity by overflow": forge_text('{"arrays":[],"tree":1e999}'),
    "NaN": forge_text('{"arrays":[],"tree":NaN}'),
    "digits by the thousand": forge_text('{"arrays":[],"tree":' + "9" * 100_000 + "}"),
    "a whole number too wide": forge(1 << MAX_BITS),
    "half a character": forge_text('{"arrays":[],"tree":"\\ud800"}'),
    "half a character in a key": forge_text('{"arrays":[],"tree":{"\\ud800":1}}'),
    "a boolean of 255": forge({"$array": 0}, [["|b1", [1]]], b"\xff"),
    "an array that is not there": forge({"$array": 0}),
    "an array twice": forge([{"$array": 0}, {"$array": 0}], [ENTRY], ZEROS),
    "arrays in another order": forge([{"$array": 1}, {"$array": 0}], [ENTRY, ENTRY], ZEROS + ZEROS),
    "an array that nobody names": forge(1, [ENTRY], ZEROS),
    "an array with a negative number": forge({"$array": -1}, [ENTRY], ZEROS),
    "an array named by a list": forge({"$array": [0]}, [ENTRY], ZEROS),
    "floats as bytes": forge({"$bytes": 0}, [ENTRY], ZEROS),
    "a foreign dtype": forge({"$array": 0}, [["|O8", [1]]], ZEROS),
    "a dtype that is a list": forge({"$array": 0}, [[["<f4"], [1]]], ZEROS),
    "a negative size": forge({"$array": 0}, [["<f4", [-2]]], ZEROS),
    "sizes whose product overflows": forge({"$array": 0}, [["<f4", [1 << 40, 1 << 40]]], ZEROS),
    "a size of nothing beside a huge one": forge({"$array": 0}, [["<f4", [0, 1 << 47, 1 << 47]]]),
    "many dimensions": forge({"$array": 0}, [["<f4", [1] * 33]], ZEROS),
    "an entry of three": forge({"$array": 0}, [["<f4", [2], 1]], ZEROS),
    "an escape of a word": forge({"$dict": "pickle"}),
    "an escape of a list": forge({"$dict": [1]}),
    "an escape that is not needed": forge({"$dict": {"a": 1}}),
    "no header": forge_text(""),
    "a header that is a list": forge_text("[]"),
    "a header with more": forge_text('{"arrays":[],"more":1,"tree":1}'),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_forged_value_is_refused_in_one_short_sentence(name: str) -> None:
    with pytest.raises(DataError) as refused:
        decode(HEADERS[name])
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "value",
    [[[]] * 3 + [{"a": {}}], 1 << (MAX_BITS - 1), -0.0, {"$array": 1}, {"$dict": {"$bytes": 2}}, b"", "ä\U0001f600"],
)
def test_what_encode_makes_is_read(value: object) -> None:
    assert encode(decode(encode(value))) == encode(value)


@pytest.mark.parametrize("value", [1 << MAX_BITS, "\ud800", {"\ud800": 1}])
def test_what_would_not_be_read_is_not_encoded(value: object) -> None:
    with pytest.raises(DataError, match="no canonical encoding"):
        encode(value)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(DataError, match="deeper than"):
        encode(deep)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$array", "$bytes", "$dict", "a", "weights", "format"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(json_values, st.lists(json_values | st.just(ENTRY), max_size=3), st.binary(max_size=24))
def test_a_value_has_one_encoding_and_anything_else_is_a_data_error(tree: object, arrays: list, data: bytes) -> None:
    forged = forge(tree, arrays, data)
    try:
        value = decode(forged)
    except DataError:
        return
    assert encode(value) == forged


def message(**sections: object) -> bytes:
    return forge({**MESSAGE, "weights": {"w": {"$array": 0}}, **sections}, [ENTRY], ZEROS)


MESSAGES = {
    "empty lists by the thousand": (message(control={"x": [[]] * 300}), "bytes of plain values|declares a header"),
    "empty mappings": (message(control={"x": [{}] * 200}), "bytes of plain values|declares a header"),
    "a header that is all text": (message(control={"x": "y" * 5000}), "declares a header"),
    "a name by the thousand": (message(control={"n" * 700: 1}), "bytes of plain values|declares a header"),
    "text for a declared array": (forge({**MESSAGE, "weights": {"w": "x"}}), "plain value in place"),
    "text for an optional array": (message(weights={"v": "x", "w": {"$array": 0}}), "plain value in place"),
    "a version that is true": (message(version=True), "message of version True"),
    "a version of text": (message(version="1" * 200), "message of version"),
    "a section by the name of everything": (message(**{"z" * 100: {}}), "malformed sections"),
    "a section that is a list": (message(control=[]), "malformed sections"),
    "a report that is not encoded": (message(report={"a": 1}), "report is not encoded"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_forged_message_is_refused_in_one_short_sentence(name: str) -> None:
    data, says = MESSAGES[name]
    with pytest.raises(DataError, match=says) as refused:
        Message.decode(data, FORM)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (bytes(1 << 21), "report of 2097152 bytes: at most 1048576"),
        (forge_text('{"arrays":[],"tree":' + nest(5000) + "}"), "malformed header|deeper than|canonical"),
        (encode([1]), "report is not a mapping"),
        (b"", "not an encoded value"),
    ],
)
def test_a_report_is_bounded_by_its_declaration_whatever_room_the_arrays_leave(report: bytes, says: str) -> None:
    roomy = Form({"w": ArrayForm("float32", (2,)), "m": ArrayForm("float32", (1 << 20,))}, text=64)
    tree = {**MESSAGE, "report": {"$bytes": 0}, "weights": {"w": {"$array": 1}}}
    with pytest.raises(DataError, match=says):
        Message.decode(forge(tree, [["|u1", [len(report)]], ENTRY], report + ZEROS), roomy)


def test_plain_values_take_no_memory_beyond_what_was_declared() -> None:
    """A model's room for arrays is no room for a header, whose lists take many times their bytes."""
    roomy = Form({"m": ArrayForm("float32", (1 << 20,))}, text=64)
    bomb = forge({**MESSAGE, "control": {"x": [[]] * 1_000_000}})
    assert len(bomb) < roomy.limits.total
    tracemalloc.start()
    with pytest.raises(DataError, match="declares a header"):
        Message.decode(bomb, roomy)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_names_of_undeclared_arrays_are_cut_in_the_sentence() -> None:
    form = Form({"w": ArrayForm("float32", (2,))}, text=100_000)
    sent = Message(weights={"w": np.zeros(2, np.float32), "\x1b[31m" + "n" * 50_000: np.zeros(1, np.float32)})
    with pytest.raises(DataError) as refused:
        Message.decode(sent.encoded, form)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()
    assert canonical_json(str(refused.value))
