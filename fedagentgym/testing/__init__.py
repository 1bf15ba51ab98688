"""Conformance checks for your own extensions: each raises `AssertionError` with one sentence, or returns."""

from fedagentgym.testing.advantages import check_advantage
from fedagentgym.testing.agents import check_agent
from fedagentgym.testing.aggregation import check_aggregation
from fedagentgym.testing.algorithms import check_algorithm
from fedagentgym.testing.backends import check_backend
from fedagentgym.testing.environments import check_env, digest_episode, play_steps
from fedagentgym.testing.objectives import check_objective
from fedagentgym.testing.samplers import check_sampler
from fedagentgym.testing.templates import check_template
from fedagentgym.testing.trackers import check_tracker
from fedagentgym.testing.variants import check_variant

__all__ = [
    "check_advantage",
    "check_agent",
    "check_aggregation",
    "check_algorithm",
    "check_backend",
    "check_env",
    "check_objective",
    "check_sampler",
    "check_template",
    "check_tracker",
    "check_variant",
    "digest_episode",
    "play_steps",
]
