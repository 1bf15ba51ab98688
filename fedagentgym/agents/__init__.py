"""Everything that can play - language models, experts, people - behind one protocol (``protocols.py``)."""

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
        "tiny": f"{_PRESETS}:tiny",
        "transformers": f"{_PRESETS}:transformers",
        "vllm": f"{_PRESETS}:vllm",
        "endpoint": "fedagentgym.agents.players.endpoint:make",
        "expert": "fedagentgym.agents.players.scripted:expert",
        "random": "fedagentgym.agents.players.scripted:random",
        "human": "fedagentgym.agents.players.human:make",
        "qwen2.5-1.5b-instruct": f"{_PRESETS}:qwen_1_5b",
        "qwen2.5-3b-instruct": f"{_PRESETS}:qwen_3b",
        "qwen2.5-7b-instruct": f"{_PRESETS}:qwen_7b",
        "llama-3.2-3b-instruct": f"{_PRESETS}:llama_3b",
    },
)
"""Name -> ``AgentFactory``; see ``agents/make.py``."""
