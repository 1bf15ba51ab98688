"""Who spoke: weights that are at hand say the same words again, and others are found out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedagentgym.agents.engines.tiny import make_tiny_model
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.models.pretrained import get_shipped_folder
from fedagentgym.agents.models.store import identify_model
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.entries import make_agent_entry
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.results import ResultFolder
from fedagentgym.leaderboard.runs import SuiteRun, open_run, pack_run, play_runs, write_weights
from fedagentgym.leaderboard.suite import load_suite
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
    found = {claim.name: claim for claim in verify(folder, suite=SUITE, models=[models / "m1"]).claims}
    assert found["who-spoke"].status == "proven" and "16 of 16 episodes are equal" in found["who-spoke"].about
    with pytest.raises(RefutedError, match="does not hold the weights"):
        verify(folder, suite=SUITE, models=[models / "m2"])
    other = identify_model(models / "m2")
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"]["agent"].update(weights=other))
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, suite=SUITE, models=[models / "m2"])


def test_the_tiny_agent_plays_the_scenarios_that_the_package_has_it_for(tmp_path: Path) -> None:
    suite = load_suite("agents-tiny-v1")
    run = open_run(suite, make_agent_entry({"name": "tiny"}), tmp_path)
    assert list(run.opened) == ["houses", "mathematics"] and run.left_out == ["shop", "questions"]
    assert len({cell.identity["agent"]["weights"] for cell in run.cells}) == 2
    chosen = open_run(suite, make_agent_entry({"name": "expert"}, scenarios=("shop", "houses")), tmp_path)
    assert list(chosen.opened) == ["houses", "shop"] and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_tiny_agent_of_the_package_plays_a_suite(tmp_path: Path) -> None:
    """`--agent tiny` needs no training where the package brings the agent; whoever verifies has its weights."""
    entry = make_agent_entry({"name": "tiny"})
    play_runs([open_run(SUITE, entry, tmp_path)], workers=1)
    pack_run(open_run(SUITE, entry, tmp_path), tmp_path / "packed")
    shipped = get_shipped_folder() / "tiny-guess"
    for models in ((), (shipped,)):
        found = {claim.name: claim for claim in verify(tmp_path / "packed", suite=SUITE, models=models).claims}
        assert found["who-spoke"].status == "proven" and "16 of 16" in found["who-spoke"].about


# ---- methods track --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policies(smoke: SuiteRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policies of `honest_method`, one for each cell."""
    folder = tmp_path_factory.mktemp("weights") / "policies"
    places = write_weights(smoke, folder)
    assert [place.name for place in places] == [cell.key for cell in smoke.cells]
    return folder


def test_policies_of_a_method_say_the_same_again(honest_method: Path, policies: Path) -> None:
    found = {claim.name: claim for claim in verify(honest_method, models=[policies]).claims}
    assert found["who-spoke"].status == found["tokens"].status == "proven"
    assert found["selection"].status == found["budget"].status == "not provable"
    assert "the other 8 rounds, 48 episodes" in found["selection"].about
    assert found["who-spoke"].about.endswith(
        "4 of 4 cells were played again with the weights: 48 of 48 episodes are equal,"
        " and 24 of 24 on val in the ranked rounds)"
    )


def test_one_policy_proves_its_own_cells_alone(honest_method: Path, policies: Path) -> None:
    cells = ResultFolder(honest_method).manifest.cells
    own = sum(cell.policy == cells[0].policy for cell in cells)
    assert 0 < own < len(cells)
    found = {claim.name: claim for claim in verify(honest_method, models=[policies / cells[0].key]).claims}
    assert found["who-spoke"].status == "not provable" and f"{own} of 4 cells" in found["who-spoke"].about
    assert found["tokens"].status == "not provable"


def test_another_policy_than_a_methods_is_refused(honest_method: Path, models: Path) -> None:
    with pytest.raises(RefutedError, match="no cell of this result"):
        verify(honest_method, models=[models / "m1"])


def test_a_forger_cannot_lend_a_cell_the_policy_of_another(honest_method: Path, policies: Path, tmp_path: Path) -> None:
    """Every mention of one policy is replaced by another that is public, and every digest is made anew."""
    folder = tmp_path / "forged"
    shutil.copytree(honest_method, folder)
    cells = ResultFolder(folder).manifest.cells
    public = next(cell for cell in cells if cell.policy != cells[-1].policy)
    own, stolen = cells[-1].policy, public.policy

    def relabel(lines: forger.Lines) -> None:
        for line in lines:
            if line["policy"] == own:
                line["policy"] = stolen

    for cell in cells:
        for kind in ("episodes", "selection"):
            forger.edit_lines(folder, f"{kind}/{cell.key}.jsonl.gz", relabel)
    forger.remake_all(folder, load_suite("smoke"))
    verify(folder)
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, models=[policies / public.key])


def test_weights_are_refused_before_anything_is_packed(smoke: SuiteRun, policies: Path, tmp_path: Path) -> None:
    taken = tmp_path / "weights" / "smoke" / "fedagent"
    taken.mkdir(parents=True)
    line = [
        "bench",
        "pack",
        str(smoke.folder),
        "--to",
        str(tmp_path / "results"),
        "--weights",
        str(tmp_path / "weights"),
    ]
    assert main(line) == 2 and not (tmp_path / "results").exists()
    taken.rmdir()
    assert main(line) == 0
    assert sorted(path.name for path in taken.iterdir()) == sorted(path.name for path in policies.iterdir())


def test_agents_have_no_policies_to_write(honest_agent: Path, tmp_path: Path) -> None:
    run = open_run(AGENTS_SUITE, make_agent_entry({"name": "expert"}), tmp_path)
    with pytest.raises(OptionError, match="nothing is trained"):
        write_weights(run, tmp_path / "weights")
    with pytest.raises(RefutedError, match="no weights that could be given"):
        verify(honest_agent, suite=AGENTS_SUITE, models=[tmp_path])
