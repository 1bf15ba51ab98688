"""Conformance checks for your own extensions. A check that fails raises `AssertionError` with one sentence."""

from fedagentgym.testing.agents import check_agent, check_template
from fedagentgym.testing.environments import check_env, check_sampler, check_variant, digest_episode, play_steps
from fedagentgym.testing.federation import check_aggregation, check_backend
from fedagentgym.testing.learning import check_advantage, check_loss, check_objective
from fedagentgym.testing.runs import check_algorithm, check_tracker

__all__ = [
    "check_advantage",
    "check_agent",
    "check_aggregation",
    "check_algorithm",
    "check_backend",
    "check_env",
    "check_loss",
    "check_objective",
    "check_sampler",
    "check_template",
    "check_tracker",
    "check_variant",
    "digest_episode",
    "play_steps",
]
