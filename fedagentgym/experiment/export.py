"""The policy of a run's commit: opened for play, or written as model or adapter folder with its agent and card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.base.escape import add_plugins, escape_markdown, quote_word
from fedagentgym.base.files import atomic_folder, write_atomic
from fedagentgym.base.imports import missing_explained
from fedagentgym.base.rounding import count_things, format_fixed, format_range
from fedagentgym.base.streams import derive
from fedagentgym.envs.make import read_options
from fedagentgym.envs.registry import find_env_id
from fedagentgym.experiment.agent_file import AGENT_FILE, AgentFile, describe_agent, has_agent_file
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.record import describe_privacy
from fedagentgym.experiment.stored import NO_TRUST, Trust, read_stored_config
from fedagentgym.federation.checks import format_privacy
from fedagentgym.federation.commits import CommitStore, read_chain
from fedagentgym.federation.records import best_rounds
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent


@dataclass(frozen=True)
class OpenedPolicy:
    """The policy of a round: its run, and the agent with that round's parameters."""

    run: Run
    round: int
    agent: TokenAgent
    record: Mapping[str, Any]

    def describe(self) -> AgentFile:
        """The content of `agent.yaml`, with the environment options that have the same meaning on every machine."""
        config, options = self.run.config, self.run.runtime.client_split.options
        evaluated = config.evaluation or EvaluationSettings()
        sets = [
            one
            if one.options is None
            else one.model_copy(
                update={"options": read_options(find_env_id(one.env or config.env.id), one.options).portable}
            )
            for one in evaluated.sets
        ]
        evaluated = evaluated.model_copy(update={"sets": tuple(sets)})
        # the privacy that was spent up to this round
        chain = read_chain(self.run.folder)
        records = [] if chain is None else [one for one in chain.list_records() if one["round"] <= self.round]
        result = {}
        if (found := self.record.get("evaluation")) is not None:
            success = found["overall"]["success"]
            result = {
                "success": success["mean"],
                "low": success["low"],
                "high": success["high"],
                "tasks": found["tasks"],
            }
        return AgentFile.load(
            {
                "agent": describe_agent(self.agent, config.agent).model_dump(exclude_unset=True),
                "env": {**config.env.model_dump(), "options": read_options(config.env.id, options).portable},
                "evaluation": evaluated.model_dump(mode="json", exclude_none=True),
                "seed": derive(config.seed, "evaluation"),
                "plugins": config.plugins,
                "run": {
                    "name": config.name,
                    "algorithm": config.algorithm["name"],
                    "round": self.round,
                    "rounds": config.federation.rounds,
                    "clients": len(self.run.runtime.client_split),
                    "version": __version__,
                    "configuration": config.digest,
                    **describe_privacy(records, self.run.algorithm.card.assumed),
                },
                "result": result,
            }
        )


@missing_explained()
def open_policy(
    folder: str | Path, *, number: int | None = None, best: bool = False, trust: Trust = NO_TRUST
) -> OpenedPolicy:
    """Open the policy of a run's round: the last, the best, or the given one. The run's files are checked first; `trust` says
    which of the folder's code may run."""
    place = Path(folder)
    if not (place / "config.yaml").is_file():
        other = f"; it is an exported agent: eval --agent {quote_word(place)}" if has_agent_file(place) else ""
        raise DataError(f"there is no run in {place}: config.yaml is missing{other}")
    if best and number is not None:
        raise OptionError("--best and --round exclude each other (best and number in Python)")
    rounds = CommitStore(place / "rounds")
    config, plugins = read_stored_config(place).load(trust)
    run = Run.open(config, place, plugins)
    chain = read_chain(place, run.inputs)
    if chain is None:
        raise DataError(f"{place} has no committed round yet")
    records, kept = chain.list_records(), rounds.list_rounds()
    if best:
        found = best_rounds(records)
        if not found:
            raise DataError(
                f"{place} was never evaluated on a split that chooses (a test split does not): leave --best out"
            )
        number = found.pop()
    if number is None:
        number = chain.newest.round
    elif number not in kept:
        raise DataError(f"round {number} of {place} is not kept: there are {join_names(map(str, kept), 20)}")
    weights = run.algorithm.policy_parameters(rounds.read(number).state)
    record = next(record for record in records if record["round"] == number)
    return OpenedPolicy(run, number, run.runtime.load_weights(weights), record)


def export_policy(
    folder: str | Path,
    output: str | Path,
    *,
    number: int | None = None,
    best: bool = False,
    adapter_only: bool = False,
    trust: Trust = NO_TRUST,
) -> int:
    """Write the policy of a round (the last, the best, or the given one) to a new folder; returns the round."""
    opened = open_policy(folder, number=number, best=best, trust=trust)
    if adapter_only and opened.run.config.agent.adapter is None:
        raise OptionError("--adapter: this run trained all weights, there is no adapter")
    from fedagentgym.agents.model.policy import save_adapter
    from fedagentgym.agents.model.store import find_model
    from fedagentgym.agents.presets import get_model

    policy: Any = opened.agent.policy
    if adapter_only and getattr(policy, "base_changes", None):  # other engines have none
        raise OptionError(
            "--adapter: this run's method changed the base too, so that the adapter alone is another policy: leave it out"
        )
    with atomic_folder(output) as part:
        if adapter_only:
            save_adapter(policy.model, part)
            policy.tokenizer.save(part)
        else:
            policy.save(part)
        file = opened.describe()
        write_atomic(part / AGENT_FILE, file.to_yaml())
        base = get_model(opened.run.config.agent)
        stored = None if base is None else find_model(base)
        licence = None if stored is None else stored.licence
        parameters = sum(weight.numel() for weight in policy.model.parameters())
        card = write_model_card(file, base=base, licence=licence, parameters=parameters)
        (part / "README.md").write_text(card, "utf-8")
    return opened.round


_LOADING = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
```
"""


def write_model_card(file: AgentFile, *, base: str | None, licence: str | None, parameters: int) -> str:
    """The card's text; `base` is the model that the run started from, None for a model made from scratch."""
    import yaml

    run, env, found = file.run, file.env, file.result
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if base is not None and base.count("/") == 1 and not base.startswith((".", "/", "~")):
        head["base_model"] = base
    if licence is not None:
        head["license"] = licence
    head["tags"] = ["reinforcement-learning", "fedagentgym"]
    result = "The run did not evaluate this round.\n"
    if found:
        names = ", ".join(escape_markdown(one.name) for one in file.evaluation.sets)
        where = names or f"the split {escape_markdown(file.evaluation.split)}"
        result = (
            f"Success {format_fixed(found['success'], 3)} (interval {format_range(found['low'], found['high'], 3)})"
            f" on {found['tasks']:,.0f} tasks of {where}, at temperature {file.evaluation.temperature:g}.\n"
        )
    form = "It answers in the form that it was trained in"
    limits = "It was evaluated only in the environment that it was trained in."
    if base is None:
        form += " and knows no other"
        limits += " Its replies to other texts are meaningless."
    else:
        limits += (
            f" Its replies to other texts were not tested, and may be worse than those of {escape_markdown(base)}."
        )
    origin = "made from scratch, a small network for one environment" if base is None else f"trained from {base}"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {escape_markdown(str(run['name']))}, round {run['round']}\n",
        f"An agent for {escape_markdown(env.id)} with {parameters:,} parameters, {escape_markdown(origin)}. It was trained by"
        f" reinforcement learning with fedagentgym {run['version']} (algorithm {escape_markdown(str(run['algorithm']))},"
        f" {count_things(run['clients'], 'client')}, {run['round']} of"
        f" {count_things(run['rounds'], 'round')}).\n",
        result,
        f"Training was {escape_markdown(format_privacy(run['privacy']))}.\n" if "privacy" in run else "",
        "## Use\n",
        f"{form}: `agent.yaml` holds its prompt, context, parser and decoding. To evaluate it with these:\n",
        f"```\n{add_plugins('fedagentgym eval --agent FOLDER', [Path(one).name for one in file.plugins])}\n```\n",
        "The weights and the tokenizer alone:\n",
        _LOADING,
        "## Limits\n",
        f"{limits}\n",
    ]
    return "\n".join(part for part in parts if part)
