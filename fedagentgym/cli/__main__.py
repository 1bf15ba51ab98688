"""`python -m fedagentgym.cli`: the command line without the console script."""

from fedagentgym.cli.main import run

run()
