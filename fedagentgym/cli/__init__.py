"""The commands, one module each; they parse options, call the packages below, and print."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
