"""The tasks of one client as a Hugging Face data set, with the prompts that an agent would see."""

from __future__ import annotations

import fedagentgym
from fedagentgym.agents import Template


def main() -> None:
    split = fedagentgym.federate(
        "fedagentgym/WebShop-v0",
        partition="preference",
        clients=10,
        tasks_per_client=20,
        omega=0.9,
        env={"size": "tiny"},
    )
    env = split.client(3).open_env()
    dataset = env.pool.to_dataset(Template("standard", think=True), env=env, chat=True)
    print(dataset)
    print(dataset[0]["task"], dataset[0]["category"])
    print(dataset[0]["prompt"][0]["content"][:300])


if __name__ == "__main__":
    main()
