r"""The environments of this package as a taskset of verifiers, which finds the taskset by the name of this file.

    cd examples
    PYTHONPATH=. vf-eval verifiers_taskset --env.taskset.env math --env.player.harness.id null \
        --env.player.runtime.type subprocess --client.base-url https://HOST/v1 --client.api-key-var OPENAI_API_KEY -m MODEL

verifiers has pins of its own: pip install 'fedagentgym[verifiers]' in an environment of its own.
"""

from __future__ import annotations

from fedagentgym.bridges.verifiers import GymEnv, GymTaskset

__all__ = ["GymEnv", "GymTaskset"]
