"""A numpy-only algorithm to test the federation with: weights drift by the client's own noise, its state counts its calls.

Loaded by tests and by worker processes as a plugin file, so that a worker finds the same code.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.encoding import canonical_json
from fedagentgym.federation.aggregation import Mean, aggregate
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.checks import UpdateChecks
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import ArrayForm, Form, Message, update_norm


class Toy:
    """`calls` operations per round. `faults` names what goes wrong: {round: {client: kind}}, by string keys."""

    def __init__(
        self,
        size: int = 8,
        calls: int = 1,
        stateful: bool = True,
        noise: float = 0.1,
        faults: Mapping[str, Mapping[str, str]] | None = None,
        folder: str = "",
        pause: float = 0.0,
        device: str = "",
        clients: int = 4,
        shown: bool = False,
    ) -> None:
        self.size, self.calls, self.stateful, self.noise = size, calls, stateful, noise
        self.faults, self.folder, self.pause, self.device = faults or {}, folder, pause, device
        vector = ArrayForm("float32", (size,))
        self.clients, self.metered, self.shown = clients, True, shown
        self.operations = {
            "drift": Operation(
                self.drift,
                request=Form({"w": vector}, text=64),
                reply=Form({"w": vector}, text=64),
                state=Form({"sum": vector}, text=64) if stateful else Form(),
            )
        }

    def client_ids(self) -> range:
        return range(self.clients)

    def resources(self, client: int) -> int:
        return 10 + client

    def drift(self, state: Message, message: Message, client: ClientContext[int]) -> tuple[Message, Message]:
        step = int(message.control["step"])
        weights = np.array(message.weights["w"])
        weights += np.float32(0.1) + self.noise * client.stream("drift", step).normal(size=self.size).astype(np.float32)
        if self.pause:
            time.sleep(self.pause)
        fault = self.faults.get(str(client.round), {}).get(str(client.id), "")
        sent = self.disturb(fault, weights, client)
        answer = Message(weights={"w": sent}, control={"examples": client.resources}, report={"pid": os.getpid()})
        if not self.stateful:
            return state, answer
        count = int(state.control.get("count", 0)) + 1
        total = np.asarray(state.weights.get("sum", np.zeros(self.size, np.float32))) + weights
        return Message(weights={"sum": total}, control={"count": count}), answer

    def disturb(self, fault: str, weights: np.ndarray, client: ClientContext[int]) -> np.ndarray:
        if fault.startswith("write "):  # straight into the pipe of the worker's program, and no answer after it
            os.write(int(sys.argv[1]), bytes.fromhex(fault.removeprefix("write ")))
            time.sleep(60.0)
        match fault:
            case "raise":
                raise RuntimeError("this client is broken")
            case "hang":
                time.sleep(60.0)
            case "late":
                time.sleep(2.5)
            case "die":
                os._exit(3)
            case "die once":
                marker = Path(self.folder) / f"died-{client.round}-{client.id}"
                if not marker.exists():
                    marker.touch()
                    os._exit(3)
            case "nan":
                return np.full_like(weights, np.nan)
            case "shape":
                return np.zeros(self.size + 1, dtype=np.float32)
            case "huge":
                return np.zeros(self.size * 100_000, dtype=np.float32)
            case "far":
                return weights + np.float32(100.0 * self.noise * np.sqrt(self.size))
        return weights

    def initial_state(self) -> ServerState:
        return ServerState({"w": np.zeros(self.size, dtype=np.float32)})

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        return RoundResult(state)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        asked, norms = list(this_round.participants), {}
        for step in range(self.calls):
            message = Message(weights=state.parameters, control={"step": step})
            replies = this_round.clients.call("drift", dict.fromkeys(asked, message))
            norms = {k: update_norm(state.parameters, reply.weights) for k, reply in replies.items()}
            refused = UpdateChecks().find_refused(norms)
            this_round.clients.refuse(refused)
            left_out = {failure.client for failure in refused}
            updates = [(reply.weights, 1.0) for k, reply in replies.items() if k not in left_out]
            state = aggregate(Mean(), state, updates)
        metrics = {"norm": float(np.mean(list(norms.values())))}
        shown = norms if self.shown else {}
        episodes = [canonical_json({"client": k, "round": this_round.number, "norm": n}) for k, n in shown.items()]
        return RoundResult(state, metrics, {k: {"norm": n} for k, n in norms.items()}, episodes)

    def policy_parameters(self, state: ServerState) -> Mapping[str, Any]:
        return state.parameters


def build(**arguments: Any) -> Toy:
    return Toy(**arguments)


def failing(**arguments: Any) -> Toy:
    raise ValueError("nothing here works")


__all__ = ["Toy", "build"]
