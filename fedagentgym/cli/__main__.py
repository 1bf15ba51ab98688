"""`python -m fedagentgym.cli`: the command line where the console script is not on the path."""

from fedagentgym.cli.main import run

run()
