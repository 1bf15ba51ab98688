"""Prompts: their content, in which context, and that both contexts hold the same."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.settings import AgentSettings
from fedagentgym.agents.text.prompts import Dialogue, PastTurn, Template
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.view import MIN_RUN, View

from .worlds import AskEnv, ShopEnv

SHOP, ASK = open_env(ShopEnv), open_env(AskEnv)
START = View("Find me red shoes, please.", ("search[<query>]",))
LATER = View("Results: search[hat].", ("click[buy now]", "click[< prev]"))
PAST = [PastTurn(START.observation, "search[hat]"), PastTurn("two", "click[a]"), PastTurn("three", "click[b]")]


def test_the_standard_template_shows_everything() -> None:
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


def test_a_window_with_the_whole_past_does_not_show_the_start_twice() -> None:
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
    from fedagentgym.agents.text.prompts import parse_strict

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


def list_guesses(count: int) -> tuple[str, ...]:
    return tuple(f"guess {number}" for number in range(1, count + 1))


def test_many_actions_that_count_up_are_shown_by_their_ends() -> None:
    actions = ("look", *list_guesses(100), "open box 3", "open box 4")
    text = Template("standard").render_first(SHOP, View("What now?", actions))
    assert "- guess 1, guess 2 and so on, up to guess 100\n- open box 3\n- open box 4" in text
    assert "guess 50" not in text


@pytest.mark.parametrize(
    "actions",
    [
        list_guesses(MIN_RUN - 1),
        tuple(f"guess {number}" for number in range(0, 100, 2)),
        tuple(f"put box {number} in bin {number}" for number in range(30)),
        tuple(f"guess {number}" for number in range(30, 0, -1)),
        tuple(f"guess {number:02}" for number in range(9)),
        ("", "a", "7", "9" * 5000),
    ],
)
def test_every_other_list_is_shown_whole(actions: tuple[str, ...]) -> None:
    text = Template("standard").render_first(SHOP, View("What now?", actions))
    assert "\n".join(f"- {action}" for action in actions) in text


@given(st.lists(st.sampled_from(["a 1", "a 2", "b", *list_guesses(40)])), st.integers(0, 60))
def test_no_action_is_lost_in_a_shortened_list(before: list[str], count: int) -> None:
    actions = (*before, *list_guesses(count))
    lines = Template("standard").render_first(SHOP, View("What now?", actions)).partition("take now:\n")[2]
    shown: list[str] = []
    for line in lines.partition("\n\n")[0].removeprefix("- ").split("\n- ") if actions else ():
        run = re.fullmatch(r"guess (\d+), guess \d+ and so on, up to guess (\d+)", line)
        shown += [f"guess {n}" for n in range(int(run[1]), int(run[2]) + 1)] if run else [line]
    assert shown == list(actions)


def test_a_dialogue_does_not_repeat_the_list_it_has_just_shown() -> None:
    template = Template("standard")
    assert "same as before" in template.render_next(SHOP, LATER, listed=LATER.admissible)
    assert "- click[buy now]" in template.render_next(SHOP, LATER, listed=START.admissible)
    assert "- click[buy now]" in template.render_window(SHOP, START.observation, PAST, 3, LATER)


@pytest.mark.parametrize("context", ["session", "window"])
def test_guessing_in_a_hundred_numbers_keeps_every_prompt_short(context: Literal["session", "window"]) -> None:
    env = open_env(GuessEnv)
    task = next(task for task in env.pool if task.category == "large")
    episode = env.reset_many([task.id], [0])[0]
    dialogue = Dialogue(env, Template("standard", think=False), context, 2, episode.view.observation)
    for turn in range(3):
        messages = dialogue.build_messages(episode)
        assert sum(len(message["content"]) for message in messages) < 1500, turn
        assert messages[0]["content"].count("up to guess 100") == 1
        dialogue.record_turn(episode, messages, "<action>guess 3</action>", "guess 3")
        episode = env.step_many([episode], ["guess 3"])[0]
