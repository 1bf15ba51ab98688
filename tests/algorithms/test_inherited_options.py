"""Every method that averages, with every option that it inherits: each option changes what it should, or is refused."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.federation.aggregation import AGGREGATION_RULES, AggregationRule, Mean
from fedagentgym.federation.algorithm import FederationSettings, ServerState
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import Reply, Request
from fedagentgym.federation.round import ServerConfig, run_rounds

SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 3}},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6}},
    "rounds": 2,
    "learning": {"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3, "objectives": [{"name": "length"}]},
    "partition": {"sampler": "coverage", "clients": 3, "xi": 2.0, "mean_tasks": 8, "roles": {"public": 8}},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedagent": {},
    "fedavg-grpo": {},
    "fedprox": {},
    "local": {"keep_optimizer": False},
    "centralized": {"keep_optimizer": False},
    "fedpetuning": {},
    "fedpetuning sft": {"objective": "sft", "supervised": {"batch_size": 2}},
    "fedmoa": {"objectives": [["accuracy", "length"]]},
    "pubswap": {"swap_period": 2, "public_tasks": 2, "swap": "random"},
    "scaffold": {},
    "feddyn": {"alpha": 1.0},
    "fedit": {},
    "flexlora": {},
    "fedex-lora": {},
    "flora": {},
    "ram": {"density": 0.5},
    "ffa-lora": {},
    "fedsa-lora": {},
    "fgrpo": {},
    "local-all": {"keep_optimizer": False},
    "personal-head": {},
    "personal-layers": {"layers": ["*.1.*"]},
    "personal-adapter": {"personal_rank": 1},
    "fedavg-finetune": {"finetune_steps": 1},
    "clustered": {},
}
PRIVACY = {"clip_norm": 0.05, "noise_multiplier": 1.0, "delta": 0.01}
OPTIONS: dict[str, dict[str, Any]] = {
    "privacy": {"algorithm": {"privacy": PRIVACY}},
    "clip": {"algorithm": {"checks": {"clip_norm": 1e-4}}},
    "refuse": {"algorithm": {"checks": {"max_norm": 1e-7}}},
    "median": {"algorithm": {"aggregation": "median"}},
    "server": {"algorithm": {"server_step": 0.5, "server_momentum": 0.9}},
    "fedadam": {"algorithm": {"aggregation": "fedadam"}},
    "weighted": {"algorithm": {"aggregation": "weighted"}},
    "proximal": {"algorithm": {"proximal": 1000.0}},
    "keep_optimizer": {"learning": {"keep_optimizer": True}},
    "minibatch_rows": {"learning": {"minibatch_rows": 1}},
}
ON_ADAPTERS = (
    "fedpetuning",
    "personal-adapter",
    "fedit",
    "ffa-lora",
    "fedsa-lora",
    "flexlora",
    "fedex-lora",
    "flora",
    "ram",
)
ON_PRODUCTS = ("flexlora", "fedex-lora", "flora", "ram")
REFUSED = {
    ("fedavg-grpo", "privacy"): "privacy is for the plain mean",
    ("fedpetuning", "privacy"): "privacy is for the plain mean",
    ("fedpetuning sft", "privacy"): "privacy is for the plain mean",
    **{(name, "median"): "median ignores weights" for name in ("fedavg-grpo", "fedpetuning", "fedpetuning sft")},
    **{(name, "privacy"): "privacy cannot be used with it" for name in ("fedmoa", "fgrpo")},
    ("fgrpo", "median"): "median ignores weights",
    ("pubswap", "privacy"): "privacy cannot be used with public steps",
    ("fedpetuning sft", "proximal"): "cannot be combined with objective=sft",
    ("fedpetuning sft", "keep_optimizer"): "makes a new optimizer",
    ("fedmoa", "median"): "'two_stage' or 'mean'",
    ("fedmoa", "fedadam"): "'two_stage' or 'mean'",
    ("fedmoa", "weighted"): "'two_stage' or 'mean'",
    **{(name, "privacy"): "privacy cannot be used with" for name in ("scaffold", "feddyn")},
    **{(name, "proximal"): "leave out proximal" for name in ("scaffold", "feddyn")},
    **{
        (name, option): "leave out privacy"
        for name in ("local-all", "clustered")
        for option in ("privacy", "median", "fedadam", "weighted", "server")
    },
    **{("local-all", option): "leave out privacy, checks" for option in ("clip", "refuse")},
    **{(name, "privacy"): "privacy is for the plain mean" for name in ON_PRODUCTS},
    **{(name, "keep_optimizer"): "leave out learning.keep_optimizer" for name in ON_PRODUCTS},
    **{(name, rule): "aggregation" for name in ON_PRODUCTS for rule in ("median", "fedadam", "weighted")},
    **{(name, rule): "aggregation" for name in ("scaffold", "feddyn") for rule in ("median", "fedadam", "weighted")},
}
ONE_CLIENT = {"local", "centralized"}
KEPT = {
    "pubswap",
    "fedmoa",
    "scaffold",
    "feddyn",
    "fedavg-finetune",
    "fedsa-lora",
    *(name for name in METHODS if name.startswith("personal")),
}
"""Methods whose clients keep something in any case."""
UNCHANGED = {
    **{
        (method, rule): "one client: every rule gives what it brings"
        for method in ONE_CLIENT
        for rule in ("median", "weighted")
    },
    **{
        ("local-all", option): "nothing is shared: it changes what clients keep"
        for option in ("proximal", "keep_optimizer", "minibatch_rows")
    },
    ("fgrpo", "weighted"): "its own weights count, not the numbers of tasks",
    ("fedpetuning sft", "minibatch_rows"): "imitation takes no policy steps",
    **{(name, "weighted"): "its default" for name in ("fedavg-grpo", "fedpetuning", "fedpetuning sft")},
}


def spec_of(method: str, option: dict[str, Any] | None = None) -> ExperimentSpec:
    own = {"name": method.split(maxsplit=1)[0], "local_steps": 3, **METHODS[method]}
    plain = merge(SPEC, {"algorithm": own})
    if method.startswith(ON_ADAPTERS):
        plain = merge(plain, {"agent": {"adapter": {"rank": 2, "train": "B" if method == "ffa-lora" else "both"}}})
    if method in (*ONE_CLIENT, "local-all") and option is not None and "keep_optimizer" in option.get("learning", {}):
        option = {"algorithm": option["learning"]}
    return ExperimentSpec.load(merge(plain, option or {}))


def run(
    folder: Path, spec: ExperimentSpec, *, rounds: int = 1, dead: bool = False, quorum: float | None = None
) -> Commit:
    algorithm = make_algorithm(spec, Runtime(spec))
    backend: SequentialBackend = (Dead if dead else SequentialBackend)(algorithm, folder / "states")
    private = spec.algorithm.get("privacy") is not None
    settings = FederationSettings(rounds=rounds, quorum=quorum)
    return run_rounds(algorithm, backend, ServerConfig(folder, 0, settings, private=private)).commit


class Dead(SequentialBackend):
    """Nobody is there."""

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        return (Reply(request.client, "dead", error="nobody is there") for request in requests)


def same(first: Commit, second: Commit) -> bool:
    """The same policies: parameters, and what a method has changed of the base."""
    ours, theirs = ({**one.state.parameters, **one.state.memory.get("base", {})} for one in (first, second))
    return ours.keys() == theirs.keys() and all(np.array_equal(value, theirs[name]) for name, value in ours.items())


def test_every_method_that_averages_is_crossed() -> None:
    averaging = {name for name in ALGORITHMS.names() if issubclass(ALGORITHMS.get(name), Averaging)}
    ours = {name for name in averaging if ALGORITHMS.get(name).__module__.startswith("fedagentgym.algorithms.")}
    assert ours == {method.split()[0] for method in METHODS}


@functools.cache
def run_plainly(method: str, rounds: int) -> Commit:
    """The method without the option, run once."""
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), spec_of(method), rounds=rounds)


BY_DAY = 9


def test_every_option_and_every_method_has_a_case_by_day() -> None:
    assert math.gcd(BY_DAY, len(OPTIONS)) == 1 and min(len(OPTIONS), len(METHODS)) >= BY_DAY


@pytest.mark.by_day(BY_DAY)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_an_option_changes_the_result_or_is_refused(method: str, option: str, tmp_path: Path) -> None:
    if (method, option) in REFUSED:
        with pytest.raises(OptionError, match=REFUSED[method, option]):
            run(tmp_path, spec_of(method, OPTIONS[option]))
        return
    if option == "privacy":
        pytest.importorskip("dp_accounting")
    if option == "refuse":
        commit = run(tmp_path, spec_of(method, OPTIONS[option]), quorum=0)
        assert {failure["reason"] for failure in commit.record["failures"]} == {"refused"}
        assert same(commit, run_plainly(method, 0))
        return
    rounds = 2 if option == "keep_optimizer" else 1
    commit = run(tmp_path, spec_of(method, OPTIONS[option]), rounds=rounds)
    assert not commit.record["failures"]
    assert same(commit, run_plainly(method, rounds)) == ((method, option) in UNCHANGED)
    assert ("privacy/epsilon" in commit.record["metrics"]) == (option == "privacy")
    assert bool(commit.state.optimizer) == (option in ("server", "fedadam"))
    assert bool(commit.heads) == (option == "keep_optimizer" or method in (*KEPT, "local-all"))


class Counting(AggregationRule):
    """The mean by a rule that remembers how often it was asked."""

    name: Literal["counting"] = "counting"
    uses_weights: ClassVar[bool] = True

    def begin(self, state: ServerState) -> Any:
        mean = Mean().begin(state)

        def finish() -> ServerState:
            after = mean.finish()
            return replace(after, memory={**after.memory, "asked": after.memory.get("asked", 0) + 1})

        return SimpleNamespace(add=mean.add, finish=finish)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("method", [method for method in METHODS if (method, "fedadam") not in REFUSED])
def test_what_a_rule_remembers_is_kept(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATION_RULES._entries, "counting", Counting)
    spec = spec_of(method, {"algorithm": {"aggregation": "counting", "local_steps": 1}})
    commit = run(tmp_path, spec, rounds=2)
    assert commit.state.memory["asked"] == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_round_without_replies_leaves_the_model_as_it_is(method: str, tmp_path: Path) -> None:
    commit = run(tmp_path, spec_of(method), rounds=1, dead=True, quorum=0)
    assert same(commit, run_plainly(method, 0))
    assert all(failure["reason"] == "dead" for failure in commit.record["failures"])
    assert json.dumps(commit.record)


def test_a_private_round_without_replies_adds_its_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    commit = run(tmp_path, spec_of("fedagent", OPTIONS["privacy"]), rounds=1, dead=True, quorum=0)
    start = run_plainly("fedagent", 0)
    moved = np.concatenate([(v - start.state.parameters[k]).ravel() for k, v in commit.state.parameters.items()])
    assert float(moved.std()) == pytest.approx(PRIVACY["clip_norm"] * PRIVACY["noise_multiplier"] / 3, rel=0.02)


def test_privacy_works_in_pubswap_without_public_steps_and_never_beside_checks(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    quiet = {"algorithm": {"swap_period": 4, "privacy": PRIVACY}}
    assert "privacy/epsilon" in run(tmp_path, spec_of("pubswap", quiet), rounds=1).record["metrics"]
    both = {"algorithm": {"privacy": PRIVACY, "checks": {"clip_norm": 1.0}}}
    with pytest.raises(OptionError, match="cannot be combined with checks"):
        run(tmp_path / "both", spec_of("fedagent", both))
