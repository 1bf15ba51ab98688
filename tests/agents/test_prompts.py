"""Prompts: what is told, in which context, and that both contexts tell the same."""

from __future__ import annotations

import pytest

from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.envs.view import View

from .worlds import AskEnv, ShopEnv

SHOP, ASK = ShopEnv(), AskEnv()
START = View("Find me red shoes, please.", ("search[<query>]",))
LATER = View("Results: search[hat].", ("click[buy now]", "click[< prev]"))
PAST = [PastTurn(START.observation, "search[hat]"), PastTurn("two", "click[a]"), PastTurn("three", "click[b]")]


def test_standard_tells_everything() -> None:
    text = Template("standard", think=True).first(SHOP, START)
    for part in (SHOP.role, SHOP.action_help, START.observation, "- search[<query>]", "<think>", "</action>"):
        assert part in text
    assert "<think>" not in Template("standard", think=False).first(SHOP, START)


def test_a_reply_world_is_told_nothing_of_action_tags() -> None:
    text = Template("standard").first(ASK, View("Say red shoes."))
    assert ASK.action_help in text
    assert "<action>" not in text


def test_the_window_shows_start_past_and_present() -> None:
    text = Template("standard").window(SHOP, START.observation, PAST[1:], 3, LATER)
    order = [
        SHOP.role,
        "What you saw at the start:",
        START.observation,
        "taken 3 steps",
        "Step 2",
        "two",
        "Step 3",
        "three",
    ]
    places = [text.index(part) for part in [*order, LATER.observation, "- click[buy now]", "Think first"]]
    assert places == sorted(places)


def test_a_window_with_the_whole_past_does_not_tell_the_start_twice() -> None:
    text = Template("standard").window(SHOP, START.observation, PAST[:1], 1, LATER)
    assert text.count(START.observation) == 1
    assert "taken 1 step so far" in text


def test_a_window_without_past_still_says_how_far_we_are() -> None:
    text = Template("standard").window(SHOP, START.observation, [], 3, LATER)
    assert "taken 3 steps" in text
    assert START.observation in text
    assert "The last of them" not in text


def test_the_first_window_is_the_first_prompt() -> None:
    for name in ("standard", "compact"):
        template = Template(name)  # type: ignore[arg-type]
        assert template.window(SHOP, START.observation, [], 0, START) == template.first(SHOP, START)


def test_compact_contexts_agree_while_the_window_holds_everything() -> None:
    template = Template("compact", think=False)
    dialogue = template.first(SHOP, START) + template.reply(SHOP, "search[hat]") + template.following(SHOP, LATER)
    assert template.window(SHOP, START.observation, PAST[:1], 1, LATER) == dialogue


def test_compact_repeats_the_goal_after_the_first_observation() -> None:
    template, goal = Template("compact", think=False), "red shoes"
    assert goal not in template.first(SHOP, LATER)
    assert template.following(SHOP, LATER, goal) == f"\n{LATER.observation}\n{goal}\n"
    assert template.window(SHOP, START.observation, PAST, 3, LATER, goal).endswith(f"{LATER.observation}\n{goal}\n")
    assert goal not in Template("standard").following(SHOP, LATER, goal)


def test_compact_marks_what_it_leaves_out() -> None:
    text = Template("compact", think=False).window(SHOP, START.observation, PAST[2:], 3, LATER)
    assert text == f"{START.observation}\n...\nthree\n<action>click[b]</action>\n{LATER.observation}\n"


@pytest.mark.parametrize("think", [True, False])
def test_replies_keep_the_form(think: bool) -> None:
    from fedagentgym.agents.text.parsing import parse_strict

    reply = Template("standard", think).reply(SHOP, "click[buy now]")
    assert parse_strict(reply, think) == ("click[buy now]", True)
    assert Template("standard", think).reply(ASK, "<answer>4</answer>") == "<answer>4</answer>"
