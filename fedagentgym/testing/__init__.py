"""Conformance checks for what you write yourself: each raises `AssertionError` with one sentence, or returns."""

from fedagentgym.testing.algorithms import check_algorithm
from fedagentgym.testing.environments import check_env, golden_episode, played
from fedagentgym.testing.samplers import check_sampler
from fedagentgym.testing.variants import check_variant

__all__ = ["check_algorithm", "check_env", "check_sampler", "check_variant", "golden_episode", "played"]
