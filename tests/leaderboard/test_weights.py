"""Weights at hand generate the same replies again, and others are detected."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fedagentgym.agents.engines.tiny import make_tiny_model
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.models.pretrained import get_shipped_folder
from fedagentgym.agents.models.store import add_model, identify_model
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.entries import describe_agent, make_agent_entry
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.record import CellRecord
from fedagentgym.leaderboard.results import ResultFolder
from fedagentgym.leaderboard.runs import SuiteRun, open_run, pack_run, play_runs, write_weights
from fedagentgym.leaderboard.suite import load_suite, open_scenario
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
    for count, told in ((1, "success is written as"), (2, "another policy played")):
        forged = forger.copy(folder, tmp_path / f"forged{count}")
        forger.solve_failed(forged, SUITE, made.cells[0], count)
        forger.remake_all(forged, SUITE)
        try:
            claims = {claim.name: claim for claim in verify(forged, suite=SUITE, models=[models / "m1"]).claims}
        except RefutedError as error:
            assert told in str(error)
        else:
            assert claims["who-spoke"].status == "not provable" and told in claims["who-spoke"].about
    nameless = forger.copy(folder, tmp_path / "nameless")
    forger.edit_json(nameless / "manifest.json", lambda plain: plain["entry"]["agent"].update(weights=None))
    with pytest.raises(RefutedError, match="does not hold the weights"):
        verify(nameless, suite=SUITE, models=[models / "m1"])
    other = identify_model(models / "m2")
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"]["agent"].update(weights=other))
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, suite=SUITE, models=[models / "m2"])


def test_an_added_model_is_recorded_without_the_folder_it_came_from(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    added = add_model(str(models / "m1"), "mine")
    told = describe_agent(AgentSettings.load({"name": "transformers", "model": "mine"}, "agent"))
    assert told.weights == added.digest == identify_model(models / "m1") and told.revision is None
    assert str(models) in added.source and str(models) not in told.model_dump_json()


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
            forger.edit_lines(folder, f"{kind}/{cell.key}.jsonl.xz", relabel)
    forger.remake_all(folder, load_suite("smoke"))
    verify(folder)
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, models=[policies / public.key])


SMOKE = load_suite("smoke")
Forgery = Callable[[Path, Sequence[CellRecord]], object]
ALL = (0, 1, 2, 3)
VAL = open_env(GUESS, split="val")


def solve(count: int, cells: Sequence[int], round_: int | None = None) -> Forgery:
    """Invent successes in these cells: ranked, or on val after a round."""

    def forge(folder: Path, records: Sequence[CellRecord]) -> None:
        for cell in cells:
            forger.solve_failed(folder, SMOKE, records[cell], count, round_)

    return forge


def change_lines(kind: str, change: Callable[[dict[str, Any]], object], cells: Sequence[int] = ALL) -> Forgery:
    def forge(folder: Path, records: Sequence[CellRecord]) -> None:
        for cell in cells:
            forger.edit_lines(
                folder, f"{kind}/{records[cell].key}.jsonl.xz", lambda lines: [change(line) for line in lines] and None
            )

    return forge


def say_fewer_tokens(line: dict[str, Any]) -> None:
    for turn in line["turns"]:
        turn["tokens"] = 1


def lose(line: dict[str, Any]) -> None:
    """After the ranked round nothing is solved on val, so that it seems to be the best."""
    if line["round"] and line["success"]:
        line.update(forger.play_badly(VAL, line))


def lower_spent(plain: dict[str, Any]) -> None:
    for cell in plain["cells"]:
        for point in cell["points"]:
            point["spent"].update(bytes_up=0, bytes_down=0, episodes=0, env_steps=0)


def spend_nothing(folder: Path, records: Sequence[CellRecord]) -> None:
    forger.edit_json(folder / "curves.json.xz", lower_spent)
    manifest = folder / "manifest.json"
    for number in ALL:
        forger.edit_json(
            manifest,
            lambda plain, at=number: plain["cells"][at]["spent"].update(
                bytes_up=0, bytes_down=0, episodes=0, env_steps=0
            ),
        )


def rank_the_last(folder: Path, records: Sequence[CellRecord]) -> None:
    """Successes on val after the last round make it the ranked one; the ranked numbers are claimed for its policy."""
    cell = records[0]
    forger.solve_failed(folder, SMOKE, cell, 3, 2)
    last = next(
        line["policy"] for line in forger.read_packed(folder / f"selection/{cell.key}.jsonl.xz") if line["round"] == 2
    )
    forger.edit_lines(
        folder,
        f"episodes/{cell.key}.jsonl.xz",
        lambda lines: [line.update(round=2, policy=last) for line in lines] and None,
    )


FORGED: dict[str, tuple[str, Forgery]] = {
    "a success in one cell": ("who-spoke tokens", solve(1, [0])),
    "a success in every cell, two of a hundred": ("who-spoke tokens", solve(1, ALL)),
    "two successes in one cell": ("refused", solve(2, [1])),
    "all of a cell": ("refused", solve(9, [0])),
    "val of the ranked round, one cell": ("refused", solve(1, [0], 0)),
    "val of the ranked round, every cell": ("refused", solve(3, ALL, 0)),
    "another round is ranked": ("who-spoke selection", rank_the_last),
    "val of rounds that are not ranked": ("selection", change_lines("selection", lose)),
    "fewer tokens": ("refused", change_lines("episodes", say_fewer_tokens)),
    "fewer tokens in one cell": ("refused", change_lines("episodes", say_fewer_tokens, [3])),
    "fewer tokens on val": ("refused", change_lines("selection", say_fewer_tokens)),
    "nothing spent": ("budget spent method", spend_nothing),
}
"""Forged results of a method whose weights are given: refused, or the claims that are not proven of it."""


@pytest.mark.parametrize("name", FORGED)
def test_what_weights_cannot_prove_is_not_shown_as_proven(
    name: str, honest_method: Path, policies: Path, tmp_path: Path
) -> None:
    expected, forge = FORGED[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(folder, ResultFolder(folder).manifest.cells)
    forger.remake_all(folder, SMOKE)
    if expected == "refused":
        with pytest.raises(RefutedError, match=r"^who-spoke: .* another policy played$"):
            verify(folder, models=[policies])
        return
    found = {claim.name: claim.status for claim in verify(folder, models=[policies]).claims}
    assert {name for name, status in found.items() if status == "proven"}.isdisjoint(expected.split())


def test_what_differs_counts_as_it_was_played_again(honest_method: Path, policies: Path, tmp_path: Path) -> None:
    """Of ten episodes or more one may differ, by the arithmetic of another machine: proven unless it is better as written."""
    folder = forger.copy(honest_method, tmp_path / "other")
    cell = ResultFolder(folder).manifest.cells[0]
    worse = forger.copy(folder, tmp_path / "worse")
    forger.solve_failed(folder, SMOKE, cell, 1)
    forger.remake_all(folder, SMOKE)
    told = {claim.name: claim.about for claim in verify(folder, models=[policies]).claims}
    assert told["who-spoke"].endswith(
        "47 of 48 episodes are equal, and 24 of 24 on val in the ranked rounds;"
        f" {cell.key}: success is written as 0.3333, played again it is 0.25)"
    )
    opened = open_scenario(SMOKE, cell.scenario)

    def fail(lines: forger.Lines) -> None:
        line = next(line for line in lines if line["success"])
        line.update(forger.play_badly(opened.env, line))

    forger.edit_lines(worse, f"episodes/{cell.key}.jsonl.xz", fail)
    forger.remake_all(worse, SMOKE)
    found = {claim.name: claim for claim in verify(worse, models=[policies]).claims}
    assert found["who-spoke"].status == "proven" and "47 of 48" in found["who-spoke"].about
    assert found["tokens"].status == "not provable"


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
