"""The four agents of the FedAgent paper: their names lead to the models' hub ids and to the paper's protocol."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.agents import presets
from fedagentgym.agents.players.human import HumanAgent
from fedagentgym.agents.presets import make_agent

PAPER = {
    "qwen2.5-1.5b-instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b-instruct": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "llama-3.2-3b-instruct": "meta-llama/Llama-3.2-3B-Instruct",
}


@pytest.mark.parametrize("name", PAPER)
def test_a_papers_agent_is_its_model_under_the_papers_protocol(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    loaded = HumanAgent()

    def load(settings: Any, source: Any, seed: int) -> HumanAgent:
        asked.append((source, settings.context, settings.history, settings.parser, settings.think))
        return loaded

    monkeypatch.setattr(presets, "_load_agent", load)
    assert make_agent({"name": name}) is loaded
    assert asked == [(PAPER[name], "window", 2, "published", True)]
