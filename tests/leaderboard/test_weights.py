"""Who spoke: weights that are at hand say the same words again, and others are found out."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedagentgym.agents.engines.tiny import make_tiny_model
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.models.store import identify_model
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.entries import make_agent_entry
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.pack import pack_run
from fedagentgym.leaderboard.runs import open_run, play_runs
from fedagentgym.leaderboard.verify import verify
from tests.agents.models import sharpened
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE, GUESS

SUITE = AGENTS_SUITE.model_copy(
    update={"scenarios": {"guess": AGENTS_SUITE.scenarios["guess"]}, "seeds": (0,), "name": "weights-v1"}
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        model, tokenizer = make_tiny_model(open_env(GUESS).vocabulary(), "0.1m", 256, 0)
        TorchPolicy(sharpened(model, seed), tokenizer, name="tiny").save(folder / f"m{seed}")
    return folder


def test_weights_say_the_same_again_and_others_do_not(models: Path, tmp_path: Path) -> None:
    settings = {"name": "tiny", "model": str(models / "m1"), "decoding": {"max_new_tokens": 4, "constrained": True}}
    entry = make_agent_entry(settings)
    play_runs([open_run(SUITE, entry, tmp_path)], workers=1)
    folder = tmp_path / "packed"
    made = pack_run(open_run(SUITE, entry, tmp_path), folder)
    assert made.entry.agent.weights == identify_model(models / "m1")
    assert str(tmp_path) not in (folder / "manifest.json").read_text() + (folder / "agent.yaml").read_text()
    unproven = {claim.name for claim in verify(folder, suite=SUITE).claims if claim.status == "not provable"}
    assert unproven == {"who-spoke", "tokens", "about"}
    found = {claim.name: claim for claim in verify(folder, suite=SUITE, model=models / "m1").claims}
    assert found["who-spoke"].status == "proven" and "16 of 16 episodes are equal" in found["who-spoke"].about
    with pytest.raises(RefutedError, match="does not hold the weights"):
        verify(folder, suite=SUITE, model=models / "m2")
    other = identify_model(models / "m2")
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"]["agent"].update(weights=other))
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, suite=SUITE, model=models / "m2")
