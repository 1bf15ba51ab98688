"""Parsing: both conventions, on replies as models write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.agents.text.parsing import Parsed, parse, parse_published, parse_strict
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.webshop.env import WebShopEnv

WHOLE = "<think>cold</think><action>open fridge 1</action>"


@pytest.mark.parametrize(
    ("reply", "think", "expected"),
    [
        (WHOLE, True, Parsed("open fridge 1", True)),
        (f"  {WHOLE}\n", True, Parsed("open fridge 1", True)),
        ("<think>\na\n</think>\n\n<action>\n go \n</action>", True, Parsed("go", True)),
        (WHOLE, False, Parsed("open fridge 1", False)),
        ("<action>Go</action>", False, Parsed("Go", True)),
        ("<action>Go</action>", True, Parsed("Go", False)),
        ("<action>a</action><action>b</action>", False, Parsed("a", False)),
        ("<action><action>a</action>", False, Parsed("<action>a", False)),
        ("<action>a", False, Parsed("", False)),
        ("</action>a<action>", False, Parsed("", False)),
        ("<action>  </action>", False, Parsed("", False)),
        ("so <action>a</action>", False, Parsed("a", False)),
        ("<action>a</action> so", False, Parsed("a", False)),
        ("<think>x<think>y</think><action>a</action>", True, Parsed("a", False)),
        ("<ACTION>a</ACTION>", False, Parsed("", False)),
        ("", False, Parsed("", False)),
    ],
)
def test_strict(reply: str, think: bool, expected: Parsed) -> None:
    assert parse_strict(reply, think) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (WHOLE, Parsed("open fridge 1", True)),
        ("<think>x</think> <ACTION> Go To Fridge 1 </ACTION>", Parsed("go to fridge 1", True)),
        ("<THINK>x</THINK><action>a</action>", Parsed("a", False)),
        ("<action>a</action>", Parsed("a", False)),
        ("<think>x</think><action>a</action><action>b</action>", Parsed("a", True)),
        ("<think>x</think><action>打开</action>", Parsed("打开", False)),
        ("<think>x</think></action>a<action>", Parsed("", True)),
        ("I will now Open the Fridge 1", Parsed("i will now open the fridge 1"[-20:], False)),
        ("<think>x</think><action>open", Parsed("<think>x</think><action>open"[-20:], False)),
        ("", Parsed("", False)),
    ],
)
def test_published(reply: str, expected: Parsed) -> None:
    assert parse_published(reply, think=True, tail=20) == expected


def test_the_published_tail_depends_on_the_world() -> None:
    reply = "0123456789" * 5
    assert len(parse(reply, "published", True, WebShopEnv.published_action_tail).action) == 20
    assert len(parse(reply, "published", True, ALFWorldEnv.published_action_tail).action) == 30
    assert parse(reply, "strict", True).action == ""


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<action>", "</action>", "go", " ", "\n", "漢", "[x]"]), max_size=9
)


@settings(max_examples=200, deadline=None)
@given(PIECES, st.booleans())
def test_no_reply_is_an_error_and_good_form_means_one_clean_action(pieces: list[str], think: bool) -> None:
    reply = "".join(pieces)
    action, form = parse_strict(reply, think)
    assert action == action.strip()
    if form:
        assert action and "<" not in action
        assert reply.count("<action>") == reply.count("</action>") == 1
        assert reply.count("<think>") == reply.count("</think>") == int(think)
    parse_published(reply, think)
