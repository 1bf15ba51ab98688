"""The programs and run files that `fedagentgym gateway init` writes, one for each library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_HEAD = '''\
"""Plays the episodes that a gateway of fedagentgym hands out, with {library}. `fedagentgym train run.yaml` starts it."""

import json
import os
import traceback
import urllib.error
import urllib.request
{imports}
URL, RUN_KEY = os.environ["GATEWAY_URL"], os.environ["GATEWAY_KEY"]


def post(path, body, key):
    """Ask the gateway for something beside a reply; None if it has nothing yet."""
    headers = {{"Authorization": f"Bearer {{key}}", "Content-Type": "application/json"}}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")

'''
_TAIL = """

while True:
    try:
        episode = post("/v1/episodes", {}, RUN_KEY)
    except (urllib.error.HTTPError, urllib.error.URLError):  # the run is over
        break
    if episode:
        try:
            play(episode)
            post("/v1/finish", {"status": "done"}, episode["key"])
        except Exception as error:  # what the program cannot finish counts with the reward so far
            traceback.print_exc()
            post("/v1/finish", {"status": "failed", "error": str(error)}, episode["key"])
"""
_PLAYS: Mapping[str, tuple[str, str, str]] = {
    "openai": (
        "the openai client",
        "\nfrom openai import OpenAI\n",
        '''
def play(episode):
    """Ask, act, tell, until the episode is over."""
    client = OpenAI(base_url=episode["base_url"], api_key=episode["key"])
    messages, over = episode["task"]["messages"], False
    while not over:
        reply = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
        action = reply.partition("<action>")[2].partition("</action>")[0]
        step = post("/v1/step", {"action": action}, episode["key"])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": step["content"]}]
        over = step["over"]
''',
    ),
    "langgraph": (
        "LangGraph",
        "\nfrom langchain.agents import create_agent\nfrom langchain_openai import ChatOpenAI\n",
        '''
def play(episode):
    """Let the graph call its tool until the episode is over."""
    over = False

    def act(action: str) -> str:
        """Act in the world.

        Args:
            action: What to do.
        """
        nonlocal over
        step = post("/v1/step", {"action": action}, episode["key"])
        over = step["over"]
        return step["content"]

    model = ChatOpenAI(model="policy", base_url=episode["base_url"], api_key=episode["key"])
    agent, messages = create_agent(model, [act]), episode["task"]["messages"]
    for _ in range(8):  # a reply without a call ends the graph, not the episode
        if not over:
            messages = agent.invoke({"messages": messages}, {"recursion_limit": 100})["messages"]
            messages = [*messages, {"role": "user", "content": "Go on."}]
''',
    ),
    "agents": (
        "the OpenAI Agents SDK",
        "\nfrom agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled\n"
        "from openai import AsyncOpenAI\n\nset_tracing_disabled(True)\n",
        '''
def play(episode):
    """Let the agent call its tool until the episode is over."""
    over = False

    @function_tool
    def act(action: str) -> str:
        """Act in the world.

        Args:
            action: What to do.
        """
        nonlocal over
        step = post("/v1/step", {"action": action}, episode["key"])
        over = step["over"]
        return step["content"]

    client = AsyncOpenAI(base_url=episode["base_url"], api_key=episode["key"])
    agent = Agent(name="player", model=OpenAIChatCompletionsModel("policy", client), tools=[act])
    messages = episode["task"]["messages"]
    for _ in range(8):  # a reply without a call ends the run, not the episode
        if not over:
            messages = Runner.run_sync(agent, messages, max_turns=50).to_input_list()
            messages = [*messages, {"role": "user", "content": "Go on."}]
''',
    ),
    "smolagents": (
        "smolagents",
        "\nfrom smolagents import OpenAIModel, ToolCallingAgent, tool\n",
        '''
def play(episode):
    """Let the agent call its tool."""

    @tool
    def act(action: str) -> str:
        """Act in the world.

        Args:
            action: What to do.
        """
        return post("/v1/step", {"action": action}, episode["key"])["content"]

    model = OpenAIModel("policy", api_base=episode["base_url"], api_key=episode["key"])
    agent = ToolCallingAgent(tools=[act], model=model, max_steps=10, verbosity_level=0)
    agent.run(episode["task"]["messages"][-1]["content"])
''',
    ),
}
PROGRAMS: Mapping[str, str] = {
    name: _HEAD.format(library=library, imports=imports) + play + _TAIL
    for name, (library, imports, play) in _PLAYS.items()
}
"""The program of each library."""


class Needed(NamedTuple):
    """The needs of a library: packages, the agent that plays, and settings of the harness."""

    packages: str
    agent: str = "tiny"
    harness: str = ""


NEEDED: Mapping[str, Needed] = {
    "openai": Needed("openai"),
    "langgraph": Needed("langchain langgraph langchain-openai"),
    "agents": Needed("openai-agents"),
    "smolagents": Needed("'smolagents[openai]'", "smollm2, decoding: {constrained: false}", ", strict: false"),
}
RUN_FILE = """\
# Two clients train the program my_agent.py together: fedagentgym train run.yaml
name: my-agent
env: {{id: fedagentgym/Guess-v0}}
partition: {{sampler: uniform, clients: 2}}
agent: {{name: {agent}, harness: {{command: [python, my_agent.py], processes: 2{harness}}}}}
learning: {{tasks_per_step: 4, group_size: 4, learning_rate: 0.001}}
algorithm: {{name: fedagent, local_steps: 2}}
federation: {{rounds: 3}}
evaluation: {{tasks: 20}}
output: {{folder: runs/my-agent}}
"""
