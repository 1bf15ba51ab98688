"""Every row of the papers asks for the form by which it is graded: a model that does what the prompt says is paid for its
form, and one that just answers is not."""

from __future__ import annotations

import json
from typing import Any

from fedagentgym.agents.presets import complete_settings
from fedagentgym.agents.text.prompts import Dialogue, Template, parse
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.protocols import get_action_tail
from fedagentgym.envs.verifiers.formats import extract_answer
from fedagentgym.envs.view import Episode
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.opened import open_data
from fedagentgym.learning.rollouts import play_acts

from .conftest import Workshop
from .rows import list_rows

ASKING = ("template", "think", "system", "request", "parser", "context", "history")
"""The settings of an agent that decide what its prompt says."""


def find_ways() -> dict[str, tuple[str, ...]]:
    """A row for every way in which one asks: environments with their options, and settings of the prompt."""
    found: dict[str, tuple[str, ...]] = {}
    for row in list_rows().values():
        plain = load_config(row[0], row[1:]).plain()
        asked = {name: plain["agent"].get(name) for name in ASKING}
        found.setdefault(json.dumps([plain["env"], asked], sort_keys=True, default=str), row)
    return {row[0]: row for row in found.values()}


def render(env: TextEnv, settings: Any, episode: Episode) -> str:
    whole = complete_settings(settings)
    template = Template(whole.template, bool(whole.think), whole.system, whole.request)
    dialogue = Dialogue(env, template, whole.context, whole.history or 0, episode.view.observation)
    return "\n".join(message["content"] for message in dialogue.build_messages(episode))


def answer(env: TextEnv, episode: Episode) -> str:
    """What the environment's expert would do or answer, in no form at all."""
    move = env.expert().act(episode)
    said = extract_answer(move) if env.takes == "reply" else move
    assert said is not None
    return said.strip()


def obey(prompt: str, content: str) -> str:
    """A reply in the form that the prompt names, word for word; without one, just the content."""
    if "<action>" in prompt:
        return (
            f"<think> so </think><action>{content}</action>" if "<think>" in prompt else f"<action>{content}</action>"
        )
    if "<answer>" in prompt:
        thought = "<think>\n so </think>\n" if "<think>" in prompt else ""
        return f"{thought}<answer>\n {content} </answer>"
    return f"so it is \\boxed{{{content}}}" if "\\boxed" in prompt else content


def play(env: TextEnv, settings: Any, episode: Episode, reply: str) -> tuple[bool, Episode]:
    """Whether the reply's form is kept, and the episode after it."""
    if env.takes == "reply":
        action, form = reply, True
    else:
        whole = complete_settings(settings)
        action, form = parse(reply, whole.parser or "strict", bool(whole.think), get_action_tail(env))
    after, _ = play_acts(env, episode, (action,))
    return form and after.view.valid, after


def test_every_row_asks_for_the_form_that_it_grades(workshop: Workshop) -> None:
    ways = find_ways()
    assert len(ways) > 10
    for name, row in ways.items():
        check_form(name, load_config(workshop.shrink(row)))


def check_form(name: str, config: RunConfig) -> None:
    client_split, _ = open_data(config)
    env = client_split.client(0).open_env()
    pays_form = any(part.name == "format" for part in config.learning.objectives)
    for task in client_split[0].tasks[:4]:
        (episode,) = env.reset_many([task], [0])
        prompt, content = render(env, config.agent, episode), answer(env, episode)
        form, after = play(env, config.agent, episode, obey(prompt, content))
        assert form, f"{name}: a reply in the form that the prompt asks for is not read: {prompt}"
        if env.takes == "reply":
            assert after.view.score == 1.0, f"{name}: {after.view}"
            assert not pays_form or after.view.rewards["format"] == 1.0, f"{name}: {after.view}"
        form, after = play(env, config.agent, episode, f"It is {content}.")
        paid = after.view.rewards.get("format", 0.0) if env.takes == "reply" else float(form)
        assert not paid, f"{name}: a reply in no form is paid for its form"
