"""The version and the address for faults, in a module of its own so that a build can read it without importing the package."""

__version__ = "0.1.0"
ISSUES = "https://github.com/fedagentgym/fedagentgym/issues"
"""Where faults of this package are reported."""
