r"""The environments of this package as a taskset of verifiers. The name of the taskset is the name of this file.

    cd examples
    PYTHONPATH=. vf-eval verifiers_taskset --env.taskset.env math --env.player.harness.id null \
        --env.player.runtime.type subprocess --client.base-url https://HOST/v1 --client.api-key-var OPENAI_API_KEY -m MODEL

verifiers pins versions of its dependencies: pip install 'fedagentgym[verifiers]' in a separate virtual environment.
"""

from __future__ import annotations

from fedagentgym.bridges.verifiers import GymEnv, GymTaskset

__all__ = ["GymEnv", "GymTaskset"]
