"""A server of an environment by OpenEnv's protocol, and a client of OpenEnv that plays one episode.

    python examples/openenv_server.py                     # server and client in one process
    cd examples; uvicorn openenv_server:app --port 8000   # only the server, for trainers in other processes

openenv 0.10 installs a web interface too: pip install 'fedagentgym[openenv]' in a separate virtual environment.
"""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from openenv.core.generic_client import GenericEnvClient

from fedagentgym.bridges.openenv import make_app
from fedagentgym.envs import open_env

app = make_app(open_env("fedagentgym/Guess-v0"))


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
        result = client.reset(seed=7)
        print(result.observation["text"])
        low, high = 1, len(result.observation["admissible"])
        while not result.done:
            guess = (low + high) // 2
            result = client.step({"text": f"guess {guess}"})
            print(f"> guess {guess}: {result.observation['text']}")
            low, high = (guess + 1, high) if "higher" in result.observation["text"] else (low, guess - 1)
        print("reward:", result.reward)
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
