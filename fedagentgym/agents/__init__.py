"""Agents - language models, experts, people - behind one protocol (``protocols.py``)."""

from __future__ import annotations

if __name__ != "fedagentgym.agents":
    raise ImportError(
        f"this folder was imported as {__name__!r}: import fedagentgym.agents instead (run pytest, not python -m pytest)"
    )

from fedagentgym.base.registry import Registry

_PRESETS = "fedagentgym.agents.presets"
AGENTS = Registry(
    "agent",
    {
        "tiny": f"{_PRESETS}:make_tiny_agent",
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
"""Name -> ``AgentFactory``; see ``agents/make.py``."""
