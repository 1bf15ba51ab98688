"""Environments and client splits in a Flower app of your own: every node plays its client's tasks; the server prints the mean.

To run one of this package's methods on Flower, use `fedagentgym flower init` instead.
Tried with flwr 1.41 (extra [flower]).
"""

from __future__ import annotations

import time

import gymnasium as gym
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import fedagentgym
from fedagentgym.agents import make_agent

SPLIT = fedagentgym.federate("fedagentgym/Guess-v0", partition="dirichlet", beta=0.3, clients=3)
client_app, server_app = ClientApp(), ServerApp()


@client_app.query()
def play(message: Message, context: Context) -> Message:
    """Evaluate an agent on the tasks of this node's client, whose number is Flower's `partition-id`."""
    client = int(context.node_config["partition-id"])
    env = gym.make(
        "fedagentgym/Guess-v0", client_split=SPLIT, client=client
    )  # a gymnasium.Env, which your own model can play step by step
    agent = make_agent({"name": str(message.content["play"]["agent"])})
    evaluated = fedagentgym.evaluate(agent, env, {"tasks": 10})
    found = MetricRecord({"client": client, "success": evaluated.overall["success"].mean, "tasks": 10})
    return Message(RecordDict({"found": found}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    for agent in ("expert", "random"):
        content = RecordDict({"play": ConfigRecord({"agent": agent})})
        nodes = wait_for_nodes(grid, len(SPLIT))
        replies = grid.send_and_receive([Message(content, dst_node_id=node, message_type="query") for node in nodes])
        report(agent, list(replies))


def wait_for_nodes(grid: Grid, count: int) -> list[int]:
    """Wait until this many nodes have joined, and return them; on a busy machine nodes can join after the server has started."""
    while len(nodes := sorted(grid.get_node_ids())) < count:
        time.sleep(0.1)
    return nodes


def report(agent: str, replies: list[Message]) -> None:
    found = sorted((reply.content["found"] for reply in replies), key=lambda record: record["client"])
    shares = [f"client {record['client']} {record['success']:.2f}" for record in found]
    print(f"{agent}: {', '.join(shares)}; mean {sum(record['success'] for record in found) / len(found):.2f}")


if __name__ == "__main__":
    run_simulation(server_app=server_app, client_app=client_app, num_supernodes=len(SPLIT))
