"""`python -m fedagentgym`: the command line without the console script, as for `torchrun -m fedagentgym train`."""

from fedagentgym.cli.main import run

run()
