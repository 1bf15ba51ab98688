"""Registries, errors and settings: what is wrong is named, and the nearest right thing beside it."""

from __future__ import annotations

import re
from typing import Literal, Self

import pytest
from pydantic import Field, model_validator

from fedagentgym.base.errors import MissingExtraError, OptionError, UnknownNameError, unknown_name_error
from fedagentgym.base.imports import Registry, require, resolve
from fedagentgym.base.settings import Settings, assign, merge


class Empty(Settings):
    pass


class Inner(Settings):
    name: str = "x"
    rate: float = Field(1.0, gt=0)
    odd: bool = False
    empty: Empty = Empty()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.odd and self.rate <= 1:
            raise ValueError("odd rates are above 1")
        return self


class Outer(Settings):
    inner: Inner = Inner()
    mode: Literal["fast", "slow"] = "fast"
    count: int = 1
    tags: tuple[str, ...] = Field(("a",), min_length=1)
    label: str = Field("run", pattern=r"^[\w.-]+$")
    sure: bool = False


def test_a_registry_imports_when_asked() -> None:
    registry = Registry("thing", {"there": "json:dumps", "broken": "no_such_module_at_all:x"})
    registry.register("object", 5)
    assert registry.get("there")([1]) == "[1]" and registry.get("object") == 5
    assert registry.names() == ("there", "broken", "object") and "there" in registry and len(registry) == 3
    with pytest.raises(OptionError, match="Python finds no module 'no_such_module_at_all'"):
        registry.get("broken")
    with pytest.raises(UnknownNameError, match="did you mean 'there'"):
        registry.get("theer")
    with pytest.raises(OptionError, match="already"):
        registry.register("there", "json:loads")
    registry.register("there", "json:loads", replace=True)
    for name, target in (("", 1), ("bad", "not a reference"), ("bad", "a b:c")):
        with pytest.raises(OptionError):
            registry.register(name, target)


def test_references_are_checked() -> None:
    with pytest.raises(OptionError, match="no attribute"):
        resolve("json:nothing")
    with pytest.raises(OptionError, match="form"):
        resolve("json")


def test_unknown_names_list_what_is_known() -> None:
    said = "unknown fruit 'aple': did you mean 'apple'? (known are apple, pear)"
    assert str(unknown_name_error("fruit", "aple", ["apple", "pear"])) == said
    many = [f"task{number}" for number in range(100)]
    assert str(unknown_name_error("task", "tusk5", many)) == "unknown task 'tusk5': did you mean 'task5'?"
    assert "apple, pear" in str(unknown_name_error("fruit", "zzzzz", ["apple", "pear"]))
    assert "(12 in all)" in str(unknown_name_error("fruit", "-", [f"fruit{number}" for number in range(12)]))


def test_a_missing_extra_names_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r"fedagentgym\[flower\]"):
        require("no_such_module_at_all", "flower")
    assert require("json", "flower").dumps(1) == "1"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"conut": 1}, "unknown key 'run.conut': did you mean 'count'?"),
        ({"inner": {"rat": 1}}, "unknown key 'run.inner.rat': did you mean 'rate'?"),
        ({"zzz": 1}, "known keys are inner, mode, count, "),
        ({"mode": "fas"}, "run.mode: it must be 'fast' or 'slow' (got 'fas')"),
        ({"inner": {"rate": 0}}, "run.inner.rate: it must be above 0"),
        ({"count": "many"}, "run.count: it must be a whole number (got 'many')"),
        ({"count": 2.5}, "run.count: it must be a whole number"),
        ({"inner": 3}, "run.inner: settings must be a mapping"),
        ({"tags": 3}, "run.tags: it must be a list (got '3')"),
        ({"tags": []}, "run.tags: it must have at least 1 item, not 0"),
        ({"label": 3}, "run.label: it must be a text (got '3')"),
        ({"label": "a b"}, "run.label: it must be letters, digits, dots, hyphens and underscores (got 'a b')"),
        ({"sure": "perhaps"}, "run.sure: it must be true or false (got 'perhaps')"),
        ({"inner": {"empty": {"x": 1}}}, "unknown key 'run.inner.empty.x': no key is known here"),
        ({"inner": {"rate": 0.5, "odd": True}}, "run.inner: odd rates are above 1"),
        (5, "run"),
    ],
)
def test_wrong_settings_are_one_sentence(data: object, sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        Outer.load(data, "run")
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert "odd" not in sentence or str(caught.value) == sentence  # the section is not repeated


class Needy(Settings):
    rate: float
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"raet": 1.0}, "unknown key 'run.raet': did you mean 'rate'?"),
        ({}, "the key 'run.rate' is missing"),
        ({"inner": {"raet": 1.0}}, "the key 'run.rate' is missing"),
    ],
)
def test_a_misspelt_key_is_told_before_the_missing_one(data: object, sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        Needy.load(data, "run")


@pytest.mark.parametrize("data", [{"inner": {"name": "a"}}, {"inner": {"name": 1}}, {"x": 1}, [], {"inner": 1e200}])
def test_parsed_data_are_checked_as_others_are(data: object) -> None:
    def load(**options: bool) -> object:
        try:
            return Outer.load(data, **options)
        except OptionError as error:
            return str(error)

    assert load(parsed=True) == load()


def test_a_string_is_short_for_a_name() -> None:
    assert Outer.load({"inner": "y"}).inner == Inner(name="y")


def test_assignments_are_laid_over() -> None:
    data = {"inner": {"name": "a", "rate": 2}}
    assert assign(data, "inner.rate=0.5") == {"inner": {"name": "a", "rate": 0.5}}
    assert assign({}, "a.b=[1, 2]") == {"a": {"b": [1, 2]}}
    assert merge({"a": 1}, {"a": {"b": 1}}) == {"a": {"b": 1}}
    assert merge({"a": "x"}, {"a": {"b": 1}}) == {"a": {"name": "x", "b": 1}}
    assert merge({"a": "x"}, {"a": {"name": "y"}}) == {"a": {"name": "y"}}
    assert assign({"a": "x"}, "a.b=1") == {"a": {"name": "x", "b": 1}}
    assert assign(data, "inner.name=b") == {"inner": {"name": "b", "rate": 2}}  # one key, and nothing else
    assert assign(data, "inner={name: b}") == {"inner": {"name": "b"}}
    assert data == {"inner": {"name": "a", "rate": 2}}
    for wrong in ("a", "=1", "a..b=1", "a=[1"):
        with pytest.raises(OptionError):
            assign({}, wrong)


@pytest.mark.parametrize(
    ("section", "below", "over", "found"),
    [
        ("algorithm", {"name": "a", "x": 1}, {"y": 2}, {"name": "a", "x": 1, "y": 2}),
        ("algorithm", {"name": "a", "x": 1}, {"name": "a", "y": 2}, {"name": "a", "x": 1, "y": 2}),
        ("algorithm", {"name": "a", "x": 1}, {"name": "b"}, {"name": "b"}),
        ("algorithm", {"name": "a", "x": 1}, "b", "b"),
        ("partition", {"sampler": "a", "x": 1}, {"sampler": "b", "y": 2}, {"sampler": "b", "y": 2}),
        ("partition", {"x": 1}, {"sampler": "b"}, {"x": 1, "sampler": "b"}),
        ("env", {"id": "a", "options": {"x": 1}}, {"id": "b"}, {"id": "b"}),
        ("options", {"source": "a", "x": 1}, {"source": "b"}, {"source": "b"}),
        ("options", {"source": "a", "id": 1}, {"id": 2}, {"source": "a", "id": 2}),
        ("variant", {"kind": "a", "x": 1}, {"kind": "b"}, {"kind": "b"}),
        ("sources", {"a": 1}, {"b": 2}, {"b": 2}),
    ],
)
def test_a_mapping_with_another_name_replaces(section: str, below: object, over: object, found: object) -> None:
    assert merge({"top": {section: below}}, {"top": {section: over}}) == {"top": {section: found}}


def test_a_name_is_guessed_from_its_short_form_and_a_plugins_hides_none_of_the_packages() -> None:
    def shorten(name: str) -> str:
        return name.rpartition("/")[2].partition("-v")[0].lower()

    things = Registry("thing", {"own/Round-v0": "collections:deque", "own/Square-v0": "collections:deque"}, shorten)
    things.register("mine/Round-v0", "collections:deque")
    for name, meant in (("roud", "own/Round-v0"), ("own/Roud-v0", "own/Round-v0"), ("mine/Roun-v0", "mine/Round-v0")):
        with pytest.raises(UnknownNameError, match=f"did you mean '{meant}'"):
            things.find(name)
    with pytest.raises(UnknownNameError, match="known are own/Round-v0, own/Square-v0, mine/Round-v0"):
        things.find("triangle")
