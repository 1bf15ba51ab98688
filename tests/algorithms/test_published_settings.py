"""The settings that papers and their published code need, each run in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.federation.algorithm import OPTIMIZER, FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.federation.states import StateStore
from fedagentgym.learning.penalties import KL
from fedagentgym.learning.supervised import collect_demonstrations, make_examples

GUESS: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 4}},
    "agent": {"name": "untrained-tiny", "context": "window", "decoding": {"temperature": 0.7}},
    "rounds": 2,
    "learning": {"tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-3},
    "partition": {"clients": 2, "tasks_per_client": 8, "roles": {"public": 8}},
}
MATH: dict[str, Any] = {
    **GUESS,
    "env": {"id": "fedagentgym/Math-v0", "options": {"size": "tiny"}},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 100, "constrained": False}},
}
LOCAL_STEP = {
    "minibatch_rows": 8,
    "minibatch_fill": True,
    "loss": {"name": "token", "rows": 4},
    "format_penalty_on": "turn",
    "advantage": {"name": "grpo", "std": "sample", "baseline": "turns"},
    "kl": {"coefficient": 0.01, "reference": "base"},
    "dual_clip": 3.0,
    "entropy": 0.001,
}
PUBSWAP = {
    "loss": "sequence",
    "kl": {"coefficient": 1e-4, "reference": "base"},
    "clip": [0.2, 0.25],
    "gradient_epochs": 2,
    "advantage": {"name": "grpo", "std": "sample"},
}


def make(bench: Any, **changes: Any) -> Any:
    spec = ExperimentSpec.load(merge(bench, changes))
    return make_algorithm(spec, Runtime(spec))


def run(folder: Path, algorithm: Any, rounds: int = 1) -> tuple[Commit, StateStore]:
    plan = ServerConfig(folder, 0, FederationSettings(rounds=rounds))
    backend = SequentialBackend(algorithm, folder / "states")
    return run_rounds(algorithm, backend, plan).commit, backend


def test_the_local_step_of_the_published_agent_code(tmp_path: Path) -> None:
    """One optimizer step for every eight rows, rows being turns: as many as the episodes' turns need."""
    learning = {**LOCAL_STEP, "keep_optimizer": True}
    algorithm = make(GUESS, learning=learning, algorithm={"name": "fedagent", "local_steps": 1})
    commit, store = run(tmp_path, algorithm)
    from fedagentgym.federation.message import Message

    for client, name in commit.heads.items():
        kept = store.get(client, name)
        assert kept is not None
        counts = Message.decode(kept).sets[OPTIMIZER]["counts"]
        turns = commit.record["clients"][str(client)]["turns"] * 2 * 4
        assert set(counts.tolist()) == {float(-(-round(turns) // 8))} and counts[0] > 2


def test_pubswaps_step_reaches_its_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equation 2's mean over each sequence, and KL to the model as first loaded, in private and in public steps."""
    algorithm = make(
        GUESS,
        learning=PUBSWAP,
        agent={"adapter": {"rank": 2, "alpha": 4.0}},
        algorithm={"name": "pubswap", "local_steps": 4, "swap_period": 2, "public_tasks": 2},
    )
    initial = {name: np.array(value) for name, value in algorithm.runtime.initial_weights.items()}
    bases: list[bool] = []
    honest = KL.__init__

    def init(self: KL, coefficient: float, base: Any = None) -> None:
        bases.append(all(np.array_equal(base[name], value) for name, value in initial.items()))
        honest(self, coefficient, base)

    monkeypatch.setattr(KL, "__init__", init)
    commit, _ = run(tmp_path, algorithm, rounds=2)
    assert len(bases) >= 2 * 2 * 4 and all(bases), "also when a client goes on in the middle of its round"
    assert commit.record["metrics"]["kl"] > 0


def test_imitation_in_the_prompt_that_its_paper_gives() -> None:
    """Only the solution is learnt: what comes before it has no weight."""
    request = "Below is an instruction that describes a task .\nInstruction: {observation}\nResponse: "
    algorithm = make(
        MATH,
        agent={"adapter": {"rank": 2}, "request": request},
        algorithm={
            "name": "fedpetuning",
            "objective": "sft",
            "supervised": {"observation_weight": 0, "learning_rate": 1e-5, "batch_size": 2},
        },
    )
    site = algorithm.resources(0)
    (shown, *_) = collect_demonstrations(site.agent, site.env, 1)
    tokens = site.agent.tokenizer
    assert tuple(shown.segments[0].prompt_ids.tolist()) == tokens.encode(
        request.replace("{observation}", shown.turns[0].observation) + "\n"
    )
    (example,) = make_examples([shown], algorithm.settings.supervised.observation_weight)
    prompt = len(shown.segments[0].prompt_ids)
    assert not example.weights[:prompt].any() and (example.weights[prompt:] == 1).all()


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({"name": "fedpetuning", "supervised": {"batch_size": 2}}, "it needs objective=sft"),
        ({"name": "dpsda-fl", "supervised": {"batch_size": 2}}, "it needs objective=sft"),
        ({"name": "fedpetuning", "objective": "sft", "supervised": {"steps": 9}}, "leave out steps"),
        ({"name": "dpsda-fl", "objective": "sft", "supervised": {"steps": 9}}, "leave out steps"),
    ],
)
def test_settings_of_imitation_that_would_do_nothing_are_refused(algorithm: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make(MATH, algorithm=algorithm)


AGENT_CODE = [
    "learning.minibatch_rows=64",
    "learning.minibatch_fill=true",
    "learning.format_penalty_on=turn",
    "learning.loss={name: token, rows: 8}",
    "learning.advantage={name: grpo, std: sample, baseline: turns}",
    "agent.context=window",
    "agent.parser=published",
    "evaluation.tasks=64",
]
FEDGRPO_CODE = [
    "algorithm={name: fedgrpo}",
    "algorithm.selection=random",
    "algorithm.answers=all",
    "algorithm.aggregate=split",
    "learning.group_size=4",
    "algorithm.std=none",
    "learning.loss=token",
    "learning.gradient_epochs=3",
    "learning.clip=[0.2,0.3]",
    "learning.kl={coefficient: 0.01, reference: base}",
    "agent.decoding={temperature: 1.0, top_p: 0.95, max_new_tokens: 2048}",
]
PUBSWAP_PAPER = [
    "algorithm={name: pubswap}",
    "learning.loss=sequence",
    "learning.kl={coefficient: 1.0e-4, reference: base}",
    "learning.clip=[0.2,0.25]",
    "learning.gradient_epochs=2",
    "agent.decoding={temperature: 0.7, max_new_tokens: 2048}",
    "evaluation.temperature=0.7",
]


@pytest.mark.parametrize("changes", [AGENT_CODE, FEDGRPO_CODE, PUBSWAP_PAPER], ids=["agent", "fedgrpo", "pubswap"])
def test_what_the_page_says_of_published_code_can_be_configured(changes: list[str]) -> None:
    page = Path(__file__).parents[2].joinpath("docs/explanation/papers-and-code.md").read_text("utf-8")
    plain = {key: value for key, value in MATH.items() if key not in ("rounds", "agent")}
    config = load_config(plain, changes)
    assert all(f"`{change}`" in page for change in changes if not change.startswith("algorithm={"))
    assert load_config(config.plain()).digest == config.digest
