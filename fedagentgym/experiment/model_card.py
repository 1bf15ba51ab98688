"""The README.md of an exported folder: what the model is, how it was made, how to load and evaluate it."""

from __future__ import annotations

from typing import Any

from fedagentgym.experiment.agent_file import AgentFile

_LOADING = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
```
"""


def write_model_card(file: AgentFile, *, base: str | None, licence: str | None, parameters: int) -> str:
    """The card's text; `base` is the model that the run started from, None for a model made from scratch."""
    run, env = file.run, file.env
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if base is not None and base.count("/") == 1 and not base.startswith((".", "/", "~")):
        head["base_model"] = base
    if licence is not None:
        head["license"] = licence
    head["tags"] = ["reinforcement-learning", "fedagentgym"]
    origin = "made from scratch, a small network for one environment" if base is None else f"trained from {base}"
    told = [
        _format_head(head),
        f"# {run['name']}, round {run['round']}\n",
        f"An agent for {env.id} with {parameters:,} parameters, {origin}. It was trained by reinforcement learning with"
        f" fedagentgym {run['version']} (algorithm {run['algorithm']}, {run['clients']} clients, {run['round']} of"
        f" {run['rounds']} rounds).\n",
        _describe_result(file),
        "## Use\n",
        "It answers in the form that it was trained in and knows no other: `agent.yaml` holds its prompt, context, parser and"
        " decoding. To evaluate it with these:\n",
        "```\nfedagentgym eval --agent FOLDER\n```\n",
        "The weights and the tokenizer alone:\n",
        _LOADING,
        "## Limits\n",
        "It was evaluated only in the environment that it was trained in. Its replies to other texts are meaningless.\n",
    ]
    return "\n".join(part for part in told if part)


def _format_head(head: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(head, sort_keys=False)
    return f"---\n{text}---\n"


def _describe_result(file: AgentFile) -> str:
    found, judged = file.result, file.evaluation
    if not found:
        return "The run did not evaluate this round.\n"
    where = f"the split `{judged.split}`" if not judged.sets else ", ".join(f"`{one.name}`" for one in judged.sets)
    return (
        f"Success {found['success']:.3f} (interval {found['low']:.3f} to {found['high']:.3f}) on {found['tasks']:,.0f} tasks of"
        f" {where}, at temperature {judged.temperature:g}.\n"
    )
