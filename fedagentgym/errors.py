"""Errors that a user can cause. All derive from `FedAgentGymError`. Each message is one sentence, and commands exit with code 2.

Examples:
    >>> import fedagentgym
    >>> from fedagentgym.errors import UnknownNameError
    >>> try:
    ...     fedagentgym.federate("fedagentgym/Gues-v0")
    ... except UnknownNameError as error:
    ...     print(str(error).partition(" (")[0])
    unknown environment 'fedagentgym/Gues-v0': did you mean 'fedagentgym/Guess-v0'?
"""

from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    MissingExtraError,
    OptionError,
    OutOfRangeError,
    ProcessUnusableError,
    RefusedError,
    UnknownNameError,
)

__all__ = [
    "DataError",
    "FedAgentGymError",
    "MissingExtraError",
    "OptionError",
    "OutOfRangeError",
    "ProcessUnusableError",
    "RefusedError",
    "UnknownNameError",
]
