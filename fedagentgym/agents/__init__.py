"""Agents behind one protocol: language models, experts, scripted players, people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import Registry, attach

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent as TokenAgent
    from fedagentgym.agents.model.loading import make_tiny_model as make_tiny_model
    from fedagentgym.agents.model.policy import TorchPolicy as TorchPolicy
    from fedagentgym.agents.players.conversation import Conversation as Conversation
    from fedagentgym.agents.players.own import Agent as Agent
    from fedagentgym.agents.presets import make_agent as make_agent
    from fedagentgym.agents.protocols import Decoding as Decoding
    from fedagentgym.agents.protocols import Move as Move
    from fedagentgym.agents.protocols import Player as Player
    from fedagentgym.agents.protocols import Players as Players
    from fedagentgym.agents.settings import AgentSettings as AgentSettings
    from fedagentgym.agents.text.prompts import Template as Template
    from fedagentgym.agents.text.published import PublishedTemplate as PublishedTemplate
    from fedagentgym.agents.text.published import read_prompts as read_prompts

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".agent": ("TokenAgent",),
        ".model.loading": ("make_tiny_model",),
        ".model.policy": ("TorchPolicy",),
        ".players.conversation": ("Conversation",),
        ".players.own": ("Agent",),
        ".presets": ("make_agent",),
        ".protocols": ("Decoding", "Move", "Player", "Players"),
        ".settings": ("AgentSettings",),
        ".text.prompts": ("Template",),
        ".text.published": ("PublishedTemplate", "read_prompts"),
    },
)

_PRESETS = "fedagentgym.agents.presets"
AGENTS = Registry(
    "agent",
    {
        "tiny": f"{_PRESETS}:make_tiny_agent",
        "untrained-tiny": f"{_PRESETS}:make_untrained_agent",
        "transformers": f"{_PRESETS}:make_transformers_agent",
        "vllm": f"{_PRESETS}:make_vllm_agent",
        "smollm2": f"{_PRESETS}:make_smollm2_agent",
        "endpoint": "fedagentgym.agents.players.endpoint:make_endpoint_agent",
        "expert": "fedagentgym.agents.players.scripted:make_expert_agent",
        "random": "fedagentgym.agents.players.scripted:make_random_agent",
        "human": "fedagentgym.agents.players.human:make_human_agent",
        "qwen2.5-1.5b-instruct": f"{_PRESETS}:make_paper_agent",
        "qwen2.5-3b-instruct": f"{_PRESETS}:make_paper_agent",
        "qwen2.5-7b-instruct": f"{_PRESETS}:make_paper_agent",
        "llama-3.2-3b-instruct": f"{_PRESETS}:make_paper_agent",
    },
)
"""Name -> `AgentFactory`; see `agents/presets.py`."""
