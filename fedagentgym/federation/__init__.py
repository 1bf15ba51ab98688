"""The exchange between a server and its clients, independent of what is learned and of where the clients run.

The package contains messages and counts of their bytes, calls of clients (`Clients.call`) and their failures, client states that
outlive workers, backends, aggregation rules and commits. Its modules import neither an algorithm nor a model nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach

if TYPE_CHECKING:
    from fedagentgym.federation.aggregation import AggregationRule as AggregationRule
    from fedagentgym.federation.aggregation import Mean as Mean
    from fedagentgym.federation.aggregation import aggregate as aggregate
    from fedagentgym.federation.algorithm import FederationSettings as FederationSettings
    from fedagentgym.federation.algorithm import RoundResult as RoundResult
    from fedagentgym.federation.algorithm import ServerState as ServerState
    from fedagentgym.federation.backends import Backend as Backend
    from fedagentgym.federation.backends.in_process import SequentialBackend as SequentialBackend
    from fedagentgym.federation.backends.in_process import open_backend as open_backend
    from fedagentgym.federation.exchange import Operation as Operation
    from fedagentgym.federation.message import ArrayForm as ArrayForm
    from fedagentgym.federation.message import Form as Form
    from fedagentgym.federation.message import Message as Message
    from fedagentgym.federation.message import freeze as freeze
    from fedagentgym.federation.progress import TrainingProgress as TrainingProgress
    from fedagentgym.federation.round import ServerConfig as ServerConfig
    from fedagentgym.federation.round import run_rounds as run_rounds

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".aggregation": ("AggregationRule", "Mean", "aggregate"),
        ".algorithm": ("FederationSettings", "RoundResult", "ServerState"),
        ".backends.in_process": ("SequentialBackend", "open_backend"),
        ".backends": ("Backend",),
        ".message": ("ArrayForm", "Form", "Message", "freeze"),
        ".exchange": ("Operation",),
        ".progress": ("TrainingProgress",),
        ".round": ("ServerConfig", "run_rounds"),
    },
)
