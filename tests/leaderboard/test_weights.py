"""Weights at hand generate the same replies again, and others are detected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.model.pretrained import get_shipped_folder
from fedagentgym.agents.model.store import add_model, identify_model
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.entries import make_agent_entry
from fedagentgym.leaderboard.play import SuiteRun, open_entry, write_weights
from fedagentgym.leaderboard.results import Result, name_run
from fedagentgym.leaderboard.suite import load_suite, open_scenario
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.claims import RefutedError
from fedagentgym.runs.folder import RANKED, RECORD
from fedagentgym.runs.record import describe_agent
from tests.agents.models import sharpened
from tests.leaderboard import forger
from tests.leaderboard.conftest import play_and_pack
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
    packed = play_and_pack(SUITE, entry, tmp_path, tmp_path / "packed.zip").path
    (record,) = Result(packed).records.values()
    assert record.agent.weights == identify_model(models / "m1")
    folder = forger.unpack(packed, tmp_path / "packed")
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not any(str(tmp_path) in text or str(models) in text for text in texts)
    unproven = {claim.name for claim in verify(packed, suite=SUITE).claims if claim.status == "not provable"}
    assert unproven == {"replies", "tokens", "about"}
    found = {claim.name: claim for claim in verify(packed, suite=SUITE, models=[models / "m1"]).claims}
    assert found["replies"].status == "proven" and "16 of 16 episodes are equal" in found["replies"].about
    with pytest.raises(RefutedError, match="does not hold the weights"):
        verify(folder, suite=SUITE, models=[models / "m2"])
    for count, told in ((1, "success is written as"), (2, "another policy played")):
        forged = forger.copy(folder, tmp_path / f"forged{count}")
        forger.solve_failed(forged / "guess-seed0", SUITE, count)
        forger.remake_all(forged, SUITE)
        try:
            claims = {claim.name: claim for claim in verify(forged, suite=SUITE, models=[models / "m1"]).claims}
        except RefutedError as error:
            assert told in str(error)
        else:
            assert claims["replies"].status == "not provable" and told in claims["replies"].about
    nameless = forger.copy(folder, tmp_path / "nameless")
    forger.edit_json(nameless / "guess-seed0" / RECORD, lambda plain: plain["agent"].update(weights=None))
    with pytest.raises(RefutedError, match="does not hold the weights"):
        verify(nameless, suite=SUITE, models=[models / "m1"])
    other = identify_model(models / "m2")
    forger.edit_json(folder / "guess-seed0" / RECORD, lambda plain: plain["agent"].update(weights=other))
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
    run = open_entry(suite, make_agent_entry({"name": "tiny"}), tmp_path)
    assert list(run.opened) == ["houses", "mathematics"] and run.left_out == ["shop", "questions"]
    chosen = open_entry(suite, make_agent_entry({"name": "expert"}, scenarios=("shop", "houses")), tmp_path)
    assert list(chosen.opened) == ["houses", "shop"] and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_tiny_agent_of_the_package_plays_a_suite(tmp_path: Path) -> None:
    """`--agent tiny` needs no training where the package brings the agent; whoever verifies has its weights."""
    entry = make_agent_entry({"name": "tiny"})
    packed = play_and_pack(SUITE, entry, tmp_path, tmp_path / "packed.zip").path
    shipped = get_shipped_folder() / "tiny-guess"
    for models in ((), (shipped,)):
        found = {claim.name: claim for claim in verify(packed, suite=SUITE, models=models).claims}
        assert found["replies"].status == "proven" and "16 of 16" in found["replies"].about


# ---- methods track --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policies(smoke: SuiteRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policies of `honest_method`, one for each run."""
    folder = tmp_path_factory.mktemp("weights") / "policies"
    places = write_weights(smoke, folder)
    assert [place.name for place in places] == [run.name for run in smoke.runs]
    return folder


def test_policies_of_a_method_say_the_same_again(honest_method: Path, policies: Path) -> None:
    found = {claim.name: claim for claim in verify(honest_method, models=[policies]).claims}
    assert found["replies"].status == found["tokens"].status == "proven"
    assert found["selection"].status == found["budget"].status == "not provable"
    assert "the other 8 rounds, 48 episodes" in found["selection"].about
    assert found["replies"].about.endswith(
        "4 of 4 runs were played again with the weights: 48 of 48 episodes are equal,"
        " and 24 of 24 on val in the ranked rounds)"
    )


def list_policies(result: Path) -> dict[str, str | None]:
    """The ranked policy of every run."""
    return {name_run(key): one.ranked.policy for key, one in Result(result).records.items() if one.ranked is not None}


def test_one_policy_proves_its_own_runs_alone(honest_method: Path, policies: Path) -> None:
    ranked = list_policies(honest_method)
    first = next(iter(ranked))
    own = sum(policy == ranked[first] for policy in ranked.values())
    assert 0 < own < len(ranked)
    found = {claim.name: claim for claim in verify(honest_method, models=[policies / first]).claims}
    assert found["replies"].status == "not provable" and f"{own} of 4 runs" in found["replies"].about
    assert found["tokens"].status == "not provable"


def test_another_policy_than_a_methods_is_refused(honest_method: Path, models: Path) -> None:
    with pytest.raises(RefutedError, match="no run of this result"):
        verify(honest_method, models=[models / "m1"])


def test_a_forger_cannot_lend_a_run_the_policy_of_another(honest_method: Path, policies: Path, tmp_path: Path) -> None:
    """Every mention of one policy is replaced by another that is public, and every digest is made anew."""
    folder = forger.copy(honest_method, tmp_path / "forged")
    ranked = list_policies(folder)
    own = list(ranked.values())[-1]
    public = next(run for run, policy in ranked.items() if policy != own)
    stolen = ranked[public]

    def relabel(lines: forger.Lines) -> None:
        for line in lines:
            if line["policy"] == own:
                line["policy"] = stolen

    for file in folder.glob("*/evaluation/*.jsonl"):
        forger.edit_lines(file.parent, file.name, relabel)
    forger.remake_all(folder, load_suite("smoke"))
    verify(folder)
    with pytest.raises(RefutedError, match="another policy played"):
        verify(folder, models=[policies / public])


SMOKE = load_suite("smoke")
Forgery = Callable[[Sequence[Path]], object]
"""Changes the folders of the runs."""
ALL = (0, 1, 2, 3)
ON_VAL = "evaluation/[0-9]*.jsonl"
VAL = open_env(GUESS, split="val")


def solve(count: int, numbers: Sequence[int], round_: int | None = None) -> Forgery:
    """Invent successes in these runs: ranked, or on val after a round."""

    def forge(runs: Sequence[Path]) -> None:
        for number in numbers:
            forger.solve_failed(runs[number], SMOKE, count, round_)

    return forge


def change_lines(files: str, change: Callable[[dict[str, Any]], object], numbers: Sequence[int] = ALL) -> Forgery:
    def forge(runs: Sequence[Path]) -> None:
        for file in (file for number in numbers for file in runs[number].glob(files)):
            forger.edit_lines(file.parent, file.name, lambda lines: [change(line) for line in lines] and None)

    return forge


def say_fewer_tokens(line: dict[str, Any]) -> None:
    for turn in line["turns"]:
        turn["tokens"] = 1


def lose(line: dict[str, Any]) -> None:
    """After the ranked round nothing is solved on val, so that it seems to be the best."""
    if line["round"] and line["success"]:
        line.update(forger.play_badly(VAL, line))


def spend_nothing(runs: Sequence[Path]) -> None:
    def lower(plain: dict[str, Any]) -> None:
        for spent in (plain["spent"], *(point["spent"] for point in plain["curve"])):
            spent.update(bytes_up=0, bytes_down=0, episodes=0, env_steps=0)

    for run in runs:
        forger.edit_json(run / RECORD, lower)


def rank_the_last(runs: Sequence[Path]) -> None:
    """Successes on val after the last round make it the ranked one; the ranked numbers are claimed for its policy."""
    run = runs[0]
    forger.solve_failed(run, SMOKE, 3, 2)
    last = forger.read_file(run / "evaluation" / "0002.jsonl")[0]["policy"]
    forger.edit_lines(run, RANKED, lambda lines: [line.update(round=2, policy=last) for line in lines] and None)


FORGED: dict[str, tuple[str, Forgery]] = {
    "a success in one run": ("replies tokens", solve(1, [0])),
    "a success in every run, two of a hundred": ("replies tokens", solve(1, ALL)),
    "two successes in one run": ("refused", solve(2, [1])),
    "all of a run": ("refused", solve(9, [0])),
    "val of the ranked round, one run": ("refused", solve(1, [0], 0)),
    "val of the ranked round, every run": ("refused", solve(3, ALL, 0)),
    "another round is ranked": ("replies selection", rank_the_last),
    "val of rounds that are not ranked": ("selection", change_lines(ON_VAL, lose)),
    "fewer tokens": ("refused", change_lines(RANKED, say_fewer_tokens)),
    "fewer tokens in one run": ("refused", change_lines(RANKED, say_fewer_tokens, [3])),
    "fewer tokens on val": ("refused", change_lines(ON_VAL, say_fewer_tokens)),
    "nothing spent": ("budget spent method", spend_nothing),
}
"""Forged results of a method whose weights are given: refused, or the claims that are not proven of it."""


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", FORGED)
def test_what_weights_cannot_prove_is_not_shown_as_proven(
    name: str, honest_method: Path, policies: Path, tmp_path: Path
) -> None:
    expected, forge = FORGED[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(forger.list_runs(folder))
    forger.remake_all(folder, SMOKE)
    if expected == "refused":
        with pytest.raises(RefutedError, match=r"^replies: .* another policy played$"):
            verify(folder, models=[policies])
        return
    found = {claim.name: claim.status for claim in verify(folder, models=[policies]).claims}
    assert {name for name, status in found.items() if status == "proven"}.isdisjoint(expected.split())


def test_what_differs_counts_as_it_was_played_again(honest_method: Path, policies: Path, tmp_path: Path) -> None:
    """Of ten episodes or more one may differ, by the arithmetic of another machine: proven unless it is better as written."""
    folder = forger.copy(honest_method, tmp_path / "other")
    run = forger.list_runs(folder)[0].name
    worse = forger.copy(folder, tmp_path / "worse")
    forger.solve_failed(folder / run, SMOKE, 1)
    forger.remake_all(folder, SMOKE)
    told = {claim.name: claim.about for claim in verify(folder, models=[policies]).claims}
    assert told["replies"].endswith(
        "47 of 48 episodes are equal, and 24 of 24 on val in the ranked rounds;"
        f" {run}: success is written as 0.3333, played again it is 0.25)"
    )
    opened = open_scenario(SMOKE, "uniform")

    def fail(lines: forger.Lines) -> None:
        line = next(line for line in lines if line["success"])
        line.update(forger.play_badly(opened.env, line))

    forger.edit_lines(worse / run, RANKED, fail)
    forger.remake_all(worse, SMOKE)
    found = {claim.name: claim for claim in verify(worse, models=[policies]).claims}
    assert found["replies"].status == "proven" and "47 of 48" in found["replies"].about
    assert found["tokens"].status == "not provable"


def test_weights_are_refused_before_anything_is_packed(smoke: SuiteRun, policies: Path, tmp_path: Path) -> None:
    taken = tmp_path / "weights" / "smoke" / "fedagent"
    taken.mkdir(parents=True)
    line = [
        "bench",
        "pack",
        str(smoke.folder),
        "--out",
        str(tmp_path / "results"),
        "--weights",
        str(tmp_path / "weights"),
    ]
    assert main(line) == 2 and not (tmp_path / "results").exists()
    taken.rmdir()
    assert main(line) == 0
    assert sorted(path.name for path in taken.iterdir()) == sorted(path.name for path in policies.iterdir())


def test_agents_have_no_policies_to_write(honest_agent: Path, tmp_path: Path) -> None:
    run = open_entry(AGENTS_SUITE, make_agent_entry({"name": "expert"}), tmp_path)
    with pytest.raises(OptionError, match="nothing is trained"):
        write_weights(run, tmp_path / "weights")
    with pytest.raises(RefutedError, match="no weights that could be given"):
        verify(honest_agent, suite=AGENTS_SUITE, models=[tmp_path])
