"""The version and the address for bug reports. A build reads the version from this file without importing the package."""

__version__ = "0.1.0"
ISSUES = "https://github.com/fedagentgym/fedagentgym/issues"
"""The address at which bugs of this package are reported."""
