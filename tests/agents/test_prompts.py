"""Prompts: what is told, in which context, and that both contexts tell the same."""

from __future__ import annotations

from typing import Literal

import pytest

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.dialogue import Dialogue
from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.view import View

from .worlds import AskEnv, ShopEnv

SHOP, ASK = ShopEnv(), AskEnv()
START = View("Find me red shoes, please.", ("search[<query>]",))
LATER = View("Results: search[hat].", ("click[buy now]", "click[< prev]"))
PAST = [PastTurn(START.observation, "search[hat]"), PastTurn("two", "click[a]"), PastTurn("three", "click[b]")]


def test_standard_tells_everything() -> None:
    text = Template("standard", think=True).render_first(SHOP, START)
    for part in (SHOP.role, SHOP.action_help, START.observation, "- search[<query>]", "<think>", "</action>"):
        assert part in text
    assert "<think>" not in Template("standard", think=False).render_first(SHOP, START)


def test_a_reply_world_is_told_nothing_of_action_tags() -> None:
    text = Template("standard").render_first(ASK, View("Say red shoes."))
    assert ASK.action_help in text
    assert "<action>" not in text


def test_the_window_shows_start_past_and_present() -> None:
    text = Template("standard").render_window(SHOP, START.observation, PAST[1:], 3, LATER)
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
    text = Template("standard").render_window(SHOP, START.observation, PAST[:1], 1, LATER)
    assert text.count(START.observation) == 1
    assert "taken 1 step so far" in text


def test_a_window_without_past_still_says_how_far_we_are() -> None:
    text = Template("standard").render_window(SHOP, START.observation, [], 3, LATER)
    assert "taken 3 steps" in text
    assert START.observation in text
    assert "The last of them" not in text


def test_the_first_window_is_the_first_prompt() -> None:
    for name in ("standard", "compact"):
        template = Template(name)  # type: ignore[arg-type]
        assert template.render_window(SHOP, START.observation, [], 0, START) == template.render_first(SHOP, START)


def test_compact_contexts_agree_while_the_window_holds_everything() -> None:
    template = Template("compact", think=False)
    dialogue = (
        template.render_first(SHOP, START)
        + template.render_reply(SHOP, "search[hat]")
        + template.render_next(SHOP, LATER)
    )
    assert template.render_window(SHOP, START.observation, PAST[:1], 1, LATER) == dialogue


def test_compact_repeats_the_goal_after_the_first_observation() -> None:
    template, goal = Template("compact", think=False), "red shoes"
    assert goal not in template.render_first(SHOP, LATER)
    assert template.render_next(SHOP, LATER, goal) == f"\n{LATER.observation}\n{goal}\n"
    assert template.render_window(SHOP, START.observation, PAST, 3, LATER, goal).endswith(
        f"{LATER.observation}\n{goal}\n"
    )
    assert goal not in Template("standard").render_next(SHOP, LATER, goal)


def test_compact_marks_what_it_leaves_out() -> None:
    text = Template("compact", think=False).render_window(SHOP, START.observation, PAST[2:], 3, LATER)
    assert text == f"{START.observation}\n...\nthree\n<action>click[b]</action>\n{LATER.observation}\n"


@pytest.mark.parametrize("think", [True, False])
def test_replies_keep_the_form(think: bool) -> None:
    from fedagentgym.agents.text.parsing import parse_strict

    reply = Template("standard", think).render_reply(SHOP, "click[buy now]")
    assert parse_strict(reply, think) == ("click[buy now]", True)
    assert Template("standard", think).render_reply(ASK, "<answer>4</answer>") == "<answer>4</answer>"


def test_a_request_opens_the_episode_in_place_of_role_and_help() -> None:
    template = Template("standard", request="This is the problem: {observation}")
    assert template.render_first(ASK, View("2 + 2 {?}")) == "This is the problem: 2 + 2 {?}"
    opened = template.render_first(SHOP, START)
    assert opened.startswith(f"This is the problem: {START.observation}\n\nThe actions you can take now:")
    for past, turn in ((PAST[1:], 3), (PAST[:1], 1), ([], 3)):
        window = template.render_window(SHOP, START.observation, past, turn, LATER)
        assert window.startswith(f"This is the problem: {START.observation}\n\nYou have taken {turn} step")
        assert window.count(START.observation) == 1 and SHOP.role not in window
        assert all(f"You did: {old.action}" in window for old in past)


def test_a_request_in_the_compact_style_agrees_in_both_contexts() -> None:
    template = Template("compact", think=False, request="Task: {observation}!")
    dialogue = (
        template.render_first(SHOP, START)
        + template.render_reply(SHOP, "search[hat]")
        + template.render_next(SHOP, LATER)
    )
    assert dialogue.startswith(f"Task: {START.observation}!\n")
    assert template.render_window(SHOP, START.observation, PAST[:1], 1, LATER) == dialogue
    cut = template.render_window(SHOP, START.observation, PAST[2:], 3, LATER)
    assert cut.startswith(f"Task: {START.observation}!\n...\n")


def test_a_request_must_say_where_the_observation_belongs() -> None:
    with pytest.raises(OptionError, match=r"write \{observation\} where"):
        AgentSettings.load({"name": "tiny", "request": "Solve {problem}"}, "agent")


@pytest.mark.parametrize("context", ["session", "window"])
def test_a_hosted_model_gets_the_system_prompt_first_and_once(context: Literal["session", "window"]) -> None:
    (episode,) = SHOP.reset_many([SHOP.pool[0]], [0])
    dialogue = Dialogue(SHOP, Template("standard", system="Be brief."), context, 2, episode.view.observation)
    for _ in range(2):
        messages = dialogue.build_messages(episode)
        assert [message["content"] for message in messages if message["role"] == "system"] == ["Be brief."]
        assert messages[0]["role"] == "system" and messages[-1]["role"] == "user"
        dialogue.record_turn(episode, messages, "search[hat]", "search[hat]")
