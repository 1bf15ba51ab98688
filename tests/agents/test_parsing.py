"""Parsing: both conventions, on replies as models write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.text.prompts import ParsedReply, parse, parse_published, parse_strict
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.protocols import get_action_tail
from fedagentgym.envs.webshop.env import WebShopEnv

WHOLE = "<think>cold</think><action>open fridge 1</action>"


@pytest.mark.parametrize(
    ("reply", "think", "expected"),
    [
        (WHOLE, True, ParsedReply("open fridge 1", True)),
        (f"  {WHOLE}\n", True, ParsedReply("open fridge 1", True)),
        ("<think>\na\n</think>\n\n<action>\n go \n</action>", True, ParsedReply("go", True)),
        (WHOLE, False, ParsedReply("open fridge 1", False)),
        ("<action>Go</action>", False, ParsedReply("Go", True)),
        ("<action>Go</action>", True, ParsedReply("Go", False)),
        ("<action>a</action><action>b</action>", False, ParsedReply("a", False)),
        ("<action><action>a</action>", False, ParsedReply("<action>a", False)),
        ("<action>a", False, ParsedReply("", False)),
        ("</action>a<action>", False, ParsedReply("", False)),
        ("<action>  </action>", False, ParsedReply("", False)),
        ("so <action>a</action>", False, ParsedReply("a", False)),
        ("<action>a</action> so", False, ParsedReply("a", False)),
        ("<think>x<think>y</think><action>a</action>", True, ParsedReply("a", False)),
        ("<ACTION>a</ACTION>", False, ParsedReply("", False)),
        ("", False, ParsedReply("", False)),
    ],
)
def test_strict(reply: str, think: bool, expected: ParsedReply) -> None:
    assert parse_strict(reply, think) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (WHOLE, ParsedReply("open fridge 1", True)),
        ("<think>x</think> <ACTION> Go To Fridge 1 </ACTION>", ParsedReply("go to fridge 1", True)),
        ("<THINK>x</THINK><action>a</action>", ParsedReply("a", False)),
        ("<action>a</action>", ParsedReply("a", False)),
        ("<think>x</think><action>a</action><action>b</action>", ParsedReply("a", True)),
        ("<think>x</think><action>打开</action>", ParsedReply("打开", False)),
        ("<think>x</think></action>a<action>", ParsedReply("", True)),
        ("I will now Open the Fridge 1", ParsedReply("i will now open the fridge 1"[-20:], False)),
        ("<think>x</think><action>open", ParsedReply("<think>x</think><action>open"[-20:], False)),
        ("", ParsedReply("", False)),
    ],
)
def test_published(reply: str, expected: ParsedReply) -> None:
    assert parse_published(reply, think=True, tail=20) == expected


def test_the_published_tail_depends_on_the_world() -> None:
    reply = "0123456789" * 5
    assert len(parse(reply, "published", True, get_action_tail(WebShopEnv)).action) == 20
    assert len(parse(reply, "published", True, get_action_tail(ALFWorldEnv)).action) == 30
    assert parse(reply, "strict", True).action == ""


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<action>", "</action>", "go", " ", "\n", "漢", "[x]"]), max_size=9
)


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
