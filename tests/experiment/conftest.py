"""The toy of the federation's tests, for tests that draw reports of its runs."""

from tests.federation.conftest import open_toy, recipe, run_toy, toy

__all__ = ["open_toy", "recipe", "run_toy", "toy"]
