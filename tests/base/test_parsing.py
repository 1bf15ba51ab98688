"""YAML within limits."""

from __future__ import annotations

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import MAX_DEPTH, parse_json, parse_yaml
from fedagentgym.base.settings import assign

REFUSED = {
    "[" * 20_000: "nested",
    "- " * 5000: "nested",
    "a: &a [*a]": "contains itself",
    "!!set {a}": "makes no plain value",
    "!!python/object:os.system x": "makes no plain value",
    '"\\0"': "a NUL or half of a character",
    "9" * 5000: "digits",
    "x" * 70_000: "70,000 characters",
    "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)): "20,000",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_plain_value_of_bounded_size_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=REFUSED[text]):
        parse_yaml(text, "here")
    with pytest.raises(OptionError):
        assign({}, f"key={text}")


def test_plain_values_are_read() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: [yes, ~, 1.5]}", "here")["b"] == {"x": 1, "y": [True, None, 1.5]}
    assert parse_yaml("", "here") is None
    assert parse_yaml("a: {x: 1}\nb: {x: 2}", "here") == {"a": {"x": 1}, "b": {"x": 2}}
    for text in ("{small: 1, small: 2}", "a: [{b: 1, 'b': 1}]", "x: 1\ny: 2\nx: 3"):
        with pytest.raises(DataError, match=r"here: not usable YAML: .*the key '.*' stands twice in one mapping"):
            parse_yaml(text, "here")
    assert parse_yaml("2024-13-45", "here") == "2024-13-45"  # a date is text


def test_json_may_be_nested_but_not_without_end() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "here")
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(DataError, match="nested"):
            parse_json("[" * levels + "]" * levels, "here")
    with pytest.raises(DataError, match="not usable JSON"):
        parse_json("9" * 5000, "here")
