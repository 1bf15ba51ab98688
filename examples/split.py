"""Make a client split, measure it, save it, and open it again."""

from __future__ import annotations

import tempfile

import fedagentgym


def main() -> None:
    made = fedagentgym.federate(
        "fedagentgym/WebShop-v0",
        partition="preference",
        clients=20,
        tasks_per_client=20,
        omega=0.9,
        env={"size": "tiny"},
    )
    for client in made[:3]:
        print(f"client {client.index}: {client.pool.categories}")
    with tempfile.TemporaryDirectory() as folder:
        again = fedagentgym.load_client_split(made.save(f"{folder}/split.json"))
    print("the same split:", again.digest == made.digest, [check.name for check in again.verify() if check.ok])
    env = again[-1].make()
    observation, info = env.reset(seed=0)
    print(info["task"], "belongs to the last client:", info["task"] in again[-1].tasks)


if __name__ == "__main__":
    main()
