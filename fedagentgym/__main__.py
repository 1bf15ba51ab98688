"""`python -m fedagentgym`: the command line without the console script; `torchrun -m fedagentgym train` starts its ranks so."""

from fedagentgym.cli.main import run

run()
