"""The server's side of where tasks are: the target that machines build, and what clients are asked besides training.

The tasks of `algorithms/sites.py` are opened where clients train; these two classes are the server's side, chosen once for a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedagentgym.algorithms import APPLICATION, HELD_APPLICATION
from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.algorithms.held import call_join, evaluate_at_clients
from fedagentgym.algorithms.reports import evaluate_mixtures
from fedagentgym.base.errors import OptionError
from fedagentgym.federation.algorithm import ServerState

if TYPE_CHECKING:
    from fedagentgym.federation.backends import Backend
    from fedagentgym.learning.evaluation import SetsEvaluation


class Deployment(Protocol):
    """The calls of a run that differ with the place of the tasks."""

    application: ClassVar[str]
    """The target that workers and clients' machines build."""

    def check_backend(self, name: str) -> None:
        """Refuse a backend that does not reach the tasks."""
        ...

    def ask_all(self, backend: Backend, deadline: float | None) -> None:
        """Before the first round: a client that does not take part says so."""
        ...

    def evaluate_held_out(
        self, backend: Backend, round_number: int, state: ServerState, deadline: float | None, found: SetsEvaluation
    ) -> dict[str, Any]:
        """The success of the global model for every client; `found` is its evaluation on the run's own sets."""
        ...


@dataclass(frozen=True)
class DividedDeployment:
    """The server can open all tasks: nobody is asked, and clients are evaluated by their mixtures of categories."""

    algorithm: BaseAlgorithm[Any]
    application: ClassVar[str] = APPLICATION

    def check_backend(self, name: str) -> None:
        """Every backend reaches them."""

    def ask_all(self, backend: Backend, deadline: float | None) -> None:
        """The server's configuration decides for everybody."""

    def evaluate_held_out(
        self, backend: Backend, round_number: int, state: ServerState, deadline: float | None, found: SetsEvaluation
    ) -> dict[str, Any]:
        return evaluate_mixtures(found, self.algorithm.runtime.client_split)


@dataclass(frozen=True)
class HeldDeployment:
    """Clients hold their tasks: each is asked whether it takes part, and evaluates on what it holds back."""

    algorithm: BaseAlgorithm[Any]
    application: ClassVar[str] = HELD_APPLICATION

    def check_backend(self, name: str) -> None:
        if name == "in-process":
            raise OptionError(
                "the tasks of this run lie on the clients' machines (partition.sampler held): start it as a Flower deployment,"
                " with `fedagentgym flower init` and `flwr run`"
            )

    def ask_all(self, backend: Backend, deadline: float | None) -> None:
        call_join(self.algorithm, backend, deadline)

    def evaluate_held_out(
        self, backend: Backend, round_number: int, state: ServerState, deadline: float | None, found: SetsEvaluation
    ) -> dict[str, Any]:
        return evaluate_at_clients(self.algorithm, backend, round_number, state, deadline)
