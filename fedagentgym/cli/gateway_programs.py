"""The programs and run files that `fedagentgym gateway init` writes, one for each library."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Send a request to the gateway; the answer is None if it has nothing yet."""
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
        except Exception as error:  # a failed episode counts with the reward that it has so far
            traceback.print_exc()
            post("/v1/finish", {"status": "failed", "error": str(error)}, episode["key"])
"""
_READ_ACTION = '''
def read_action(reply, takes):
    """The action in a reply, or the whole reply if the environment takes replies."""
    action, closed, _ = reply.partition("<action>")[2].partition("</action>")
    return reply if takes == "reply" else action if closed else ""

'''
_PLAYS: Mapping[str, tuple[str, str, str]] = {
    "plain": (
        "only the standard library",
        "",
        _READ_ACTION
        + '''
def play(episode):
    """Ask, act, tell, until the episode is over."""
    messages, over = episode["task"]["messages"], False
    while not over:
        answer = post("/v1/chat/completions", {"model": "policy", "messages": messages}, episode["key"])
        reply = answer["choices"][0]["message"]["content"]
        step = post("/v1/step", {"action": read_action(reply, episode["task"]["takes"])}, episode["key"])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": step["content"]}]
        over = step["over"]
''',
    ),
    "openai": (
        "the openai client",
        "\nfrom openai import OpenAI\n",
        _READ_ACTION
        + '''
def play(episode):
    """Ask, act, tell, until the episode is over."""
    client = OpenAI(base_url=episode["base_url"], api_key=episode["key"])
    messages, over = episode["task"]["messages"], False
    while not over:
        reply = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
        step = post("/v1/step", {"action": read_action(reply, episode["task"]["takes"])}, episode["key"])
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

    answers = episode["task"]["takes"] == "reply"  # the reply is the answer: no tool
    model = ChatOpenAI(model="policy", base_url=episode["base_url"], api_key=episode["key"])
    agent, messages = create_agent(model, [] if answers else [act]), episode["task"]["messages"]
    for _ in range(8):  # a reply without a call ends the graph, not the episode
        if not over:
            messages = agent.invoke({"messages": messages}, {"recursion_limit": 100})["messages"]
            said = act(messages[-1].content) if answers else "Go on."
            messages = [*messages, {"role": "user", "content": said}]
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

    def act(action: str) -> str:
        """Act in the world.

        Args:
            action: What to do.
        """
        nonlocal over
        step = post("/v1/step", {"action": action}, episode["key"])
        over = step["over"]
        return step["content"]

    answers = episode["task"]["takes"] == "reply"  # the reply is the answer: no tool
    model = OpenAIChatCompletionsModel("policy", AsyncOpenAI(base_url=episode["base_url"], api_key=episode["key"]))
    agent = Agent(name="player", model=model, tools=[] if answers else [function_tool(act)])
    messages = episode["task"]["messages"]
    for _ in range(8):  # a reply without a call ends the run, not the episode
        if not over:
            result = Runner.run_sync(agent, messages, max_turns=50)
            said = act(result.final_output) if answers else "Go on."
            messages = [*result.to_input_list(), {"role": "user", "content": said}]
''',
    ),
    "smolagents": (
        "smolagents",
        "\nfrom smolagents import OpenAIModel, ToolCallingAgent, tool\n"
        "from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction\n",
        '''
def play(episode):
    """Let the agent call its tool until the episode is over."""
    over = False

    @tool
    def act(action: str) -> str:
        """Act in the world.

        Args:
            action: What to do.
        """
        nonlocal over
        step = post("/v1/step", {"action": action}, episode["key"])
        over = step["over"]
        return step["content"]

    class TinyModel(OpenAIModel):
        """For the tiny agent: it sees task and latest observation, and its actions become calls. Others: use OpenAIModel."""

        def generate(self, messages, tools_to_call_from=None, **fields):
            return super().generate(messages[1:2] + messages[2:][-1:], **fields)

        def parse_tool_calls(self, message):
            action = message.content.partition("<action>")[2].partition("</action>")[0]
            name, arguments = ("final_answer", {"answer": "over"}) if over else ("act", {"action": action})
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            message.tool_calls = [ChatMessageToolCall(function=function, id="call", type="function")]
            return message

    model = TinyModel("policy", api_base=episode["base_url"], api_key=episode["key"])
    agent = ToolCallingAgent(tools=[act], model=model, max_steps=10, verbosity_level=0)
    agent.run(episode["task"]["messages"][-1]["content"])
''',
    ),
}


def compose_program(library: str, imports: str, play: str) -> str:
    """A program that plays every episode with its function `play`; its first line names `library`."""
    return _HEAD.format(library=library, imports=imports) + play + _TAIL


PROGRAMS: Mapping[str, str] = {name: compose_program(*parts) for name, parts in _PLAYS.items()}
"""The program of each library."""


NEEDED: Mapping[str, str] = {
    "plain": "",
    "openai": "openai",
    "langgraph": "langchain langgraph langchain-openai",
    "agents": "openai-agents",
    "smolagents": "'smolagents[openai]'",
}
"""The packages to install for each library."""
RUN_FILE = """\
# Two clients train the program my_agent.py together: fedagentgym train run.yaml
name: my-agent
env: {id: fedagentgym/Guess-v0}
partition: {sampler: uniform, clients: 2}
agent: {name: tiny, harness: {command: [python, my_agent.py], processes: 2}}
learning: {tasks_per_step: 4, group_size: 4, learning_rate: 0.001}
algorithm: {name: fedagent, local_steps: 2}
federation: {rounds: 3}
evaluation: {tasks: 20}
output: {folder: runs/my-agent}
"""
