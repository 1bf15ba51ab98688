"""Evaluate a hosted model behind any server with the chat completions protocol.

python examples/hosted_model.py                                              # with a small server on this machine
OPENAI_API_KEY=... python examples/hosted_model.py https://HOST/v1 MODEL      # with your server
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fedagentgym
from fedagentgym.agents import make_agent
from fedagentgym.envs import open_env


class Halving(BaseHTTPRequestHandler):
    """A mock of a model server, which answers each request by halving the range of possible numbers."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = " ".join(message["content"] for message in request["messages"])
        low = max([0, *map(int, re.findall(r"higher than (\d+)", text))])
        high = min(map(int, re.findall(r"(?:between 1 and|lower than) (\d+)", text)))
        reply = {"role": "assistant", "content": f"<think>halve</think><action>guess {(low + high + 1) // 2}</action>"}
        usage = {"prompt_tokens": len(text) // 4, "completion_tokens": 10}
        body = json.dumps({"choices": [{"message": reply, "finish_reason": "stop"}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def main(url: str | None = None, model: str = "halving") -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Halving)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {
        "url": url or f"http://127.0.0.1:{server.server_port}/v1",
        "concurrency": 4,
        "input_price": 0.5,  # per million tokens
        "output_price": 1.5,
        "cost_cap": 1.0,
    }
    agent = make_agent({"name": "endpoint", "model": model, "options": options})
    evaluated = fedagentgym.evaluate(agent, open_env("fedagentgym/Guess-v0", split="test"), {"tasks": 12})
    success = evaluated.overall["success"]
    print(f"success {success.mean:.2f} [{success.low:.2f}, {success.high:.2f}] over 12 tasks")
    print(
        f"{agent.usage['requests']} requests, {agent.usage['prompt_tokens']} tokens read, {agent.usage['cost']:.4f} spent"
    )
    agent.close()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main(*sys.argv[1:])
