"""The commands of `fedagentgym`. Their modules parse options, call other packages, and print."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as is usual in shells."""
