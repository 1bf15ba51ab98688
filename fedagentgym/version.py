"""The version and the address for bug reports, in a module of its own so that a build reads them without the package."""

__version__ = "0.1.0"
ISSUES = "https://github.com/fedagentgym/fedagentgym/issues"
"""The address for bug reports."""
