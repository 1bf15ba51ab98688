"""Every method that averages, with a value head: sent where clients share it, kept where it is their own, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.federation.message import Message
from fedagentgym.federation.states import StateStore
from tests.algorithms.test_inherited_options import METHODS, SPEC, run, spec_of

HEAD = {"value_head.weight", "value_head.bias"}
REFUSED = {"fedmoa": "compares the episodes of a group", "fedpetuning sft": "with objective=sft it imitates"}
STAYS = {"local-all"}
"""Methods that send no parameters."""
ALWAYS = ("fedprox", "scaffold", "flexlora", "fedsa-lora", *REFUSED)


def use_values(head: str) -> dict[str, Any]:
    return {"learning": {"advantage": {"name": "gae", "head": head}}}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("head", ["shared", "own"])
@pytest.mark.parametrize("method", [m if m in ALWAYS else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_a_head_is_sent_if_clients_share_it(method: str, head: str, tmp_path: Path) -> None:
    spec = spec_of(method, use_values(head))
    if method in REFUSED:
        with pytest.raises(OptionError, match=REFUSED[method]):
            run(tmp_path, spec)
        return
    commit = run(tmp_path, spec, rounds=2)
    assert not commit.record["failures"]
    sent = set(commit.state.parameters) & HEAD
    assert sent == (HEAD if head == "shared" and method not in STAYS else set())
    if sent:
        assert commit.state.parameters["value_head.weight"].any()
    if head == "own":
        store = StateStore(tmp_path / "states")
        kept = [Message.decode(store.get(client, name) or b"") for client, name in commit.heads.items()]
        assert kept and all(set(state.sets["optimizer"]) >= HEAD for state in kept)


@pytest.mark.parametrize("name", ["fedgrpo", "es", "hacpo", "swarm"])
def test_methods_without_values_refuse_a_head(name: str) -> None:
    plain = merge(SPEC, {**use_values("shared"), "algorithm": {"name": name}})
    with pytest.raises(OptionError, match=f"{name} cannot learn by a value head"):
        make_algorithm(ExperimentSpec.load(plain), Runtime(ExperimentSpec.load(plain)))
    with pytest.raises(OptionError, match=f"{name} cannot learn by a value head"):
        load_config("tiny-skills", [f"algorithm={name}", "learning.advantage=gae"])
