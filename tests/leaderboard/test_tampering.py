"""Forgeries: of people who edit files, and of a forger who makes every digest and every number anew."""

from __future__ import annotations

import contextlib
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import RunConfig
from fedagentgym.leaderboard.cells import publish_config
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.record import CellRecord, Usage
from fedagentgym.leaderboard.results import CLIENTS, CONFIGS, CURVES, ResultFolder, read_suites
from fedagentgym.leaderboard.suite import Suite, load_suite, make_config
from fedagentgym.leaderboard.verify import verify
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE

Forgery = Callable[[Path], object]
EPISODES = "episodes/guess-seed1.jsonl.xz"
RANKED, ON_VAL = "episodes/preference-seed1.jsonl.xz", "selection/preference-seed0.jsonl.xz"
ZEROS = "sha256:" + "0" * 64


def lines(change: Callable[[forger.Lines], object], name: str = EPISODES) -> Forgery:
    return lambda folder: forger.edit_lines(folder, name, change)


def document(change: Callable[[Any], object], name: str = "manifest.json") -> Forgery:
    return lambda folder: forger.edit_json(folder / name, change)


def turn(number: int, at: int = 0, **values: Any) -> Callable[[forger.Lines], object]:
    return lambda found: found[number]["turns"][at].update(values)


def change_action(found: forger.Lines) -> None:
    found[0]["turns"][0].update(action="guess 1", reply="guess 1")


def steal_easy_task(found: forger.Lines) -> None:
    """Another task's episode under this one's name."""
    found[2] = {**found[0], "task": found[2]["task"], "seed": found[2]["seed"]}


def cut_episode(found: forger.Lines) -> None:
    """Leave out the turns that would count, as if there had been no room."""
    episode = next(one for one in found if len(one["turns"]) > 1)
    episode["turns"] = episode["turns"][:-1]
    episode.update(success=False, score=0.0, terminated=False, truncated=True)


def solve(found: forger.Lines) -> None:
    for episode in found:
        episode.update(success=True, score=1.0)


def drop_last_round(found: forger.Lines) -> forger.Lines:
    return [line for line in found if line["round"] != 2]


def leave_out_cell(folder: Path) -> None:
    forger.edit_json(folder / "manifest.json", lambda plain: plain["cells"].pop())
    (folder / "episodes" / "other-seed1.jsonl.xz").unlink()


def edit_text(name: str, old: str, new: str) -> Forgery:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


def pose_as_expert(folder: Path) -> None:
    """The expert's episodes as those of the random walker."""
    for path in (folder / "episodes").iterdir():
        forger.edit_lines(folder, f"episodes/{path.name}", every(agent="random"))
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"]["agent"]["settings"].update(name="random"))
    (folder / "agent.yaml").write_text("name: random\n")


def rank_another_round(folder: Path) -> None:
    chosen = forger.read_packed(folder / RANKED)[0]["round"]
    other = 1 if chosen != 1 else 2
    forger.edit_lines(folder, RANKED, every(round=other))


def change_category(found: forger.Lines) -> None:
    found[0]["category"] = "small" if found[0]["category"] != "small" else "large"


def every(**values: Any) -> Callable[[forger.Lines], object]:
    return lambda found: [{**one, **values} for one in found]


def last_point(curves: Any) -> Any:
    return curves["cells"][0]["points"][-1]


def first_point(curves: Any) -> Any:
    return curves["cells"][0]["points"][0]["spent"]


def spent_of(manifest: Any) -> Any:
    return manifest["cells"][0]["spent"]


def of_config(**changes: Any) -> Callable[[Any], object]:
    """Other settings in the configurations of all cells."""

    def change(plain: Any) -> None:
        for cell in plain["cells"]:
            cell["config"] = merge(cell["config"], changes)

    return change


def write_config(folder: Path, record: CellRecord, config: RunConfig) -> None:
    """Another configuration of a cell."""

    def change(plain: Any) -> None:
        for cell in plain["cells"]:
            if (cell["scenario"], cell["seed"]) == (record.scenario, record.seed):
                cell["config"] = publish_config(config.plain())

    forger.edit_json(folder / CONFIGS, change)


def train_for_ever(folder: Path) -> None:
    """Rounds that nobody could list, in the changes and in every configuration."""
    changes = [f"federation.rounds={10**12}"]
    forger.edit_json(folder / "manifest.json", of_method(changes=changes))
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"].update(baseline=False))
    for record in ResultFolder(folder).manifest.cells:
        made = make_config(load_suite("smoke"), record.scenario, changes, seed=record.seed)
        write_config(folder, record, made)
        forger.edit_json(
            folder / "manifest.json",
            lambda plain, key=record.key, digest=made.digest: [
                cell.update(config=digest) for cell in plain["cells"] if f"{cell['scenario']}-seed{cell['seed']}" == key
            ],
        )


def replace_manifest_by_folder(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


def of_agent(**values: Any) -> Callable[[Any], object]:
    return lambda plain: plain["entry"]["agent"].update(values)


def of_method(**values: Any) -> Callable[[Any], object]:
    return lambda plain: plain["entry"]["method"].update(values)


def of_cell(**values: Any) -> Callable[[Any], object]:
    return lambda plain: plain["cells"][-1].update(values)


def choose_stream(folder: Path) -> None:
    """An entry that calls itself no baseline."""
    forger.edit_json(folder / "manifest.json", of_method(stream=1))
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"].update(baseline=False))


AGENT: dict[str, tuple[str, Forgery]] = {
    "a higher reward": ("replayed", lines(turn(0, -1, reward=2.0))),
    "a higher component": ("replayed", lines(turn(0, -1, rewards={"accuracy/guess": 2.0}))),
    "a higher score": ("replayed", lines(lambda found: found[3].update(score=2.0))),
    "a score on the way": ("replayed", lines(turn(0, 0, score=0.5))),
    "another action": ("replayed", lines(change_action)),
    "another reply": ("replayed", lines(turn(0, 0, reply="guess 1"))),
    "another observation": ("replayed", lines(turn(1, 0, observation="I think of 5."))),
    "another last answer": ("replayed", lines(lambda found: found[1].update(last="Well done!"))),
    "fewer admissible actions": ("replayed", lines(turn(0, 0, admissible=["guess 1"]))),
    "a turn left out": ("replayed", lines(lambda found: found[0]["turns"].pop(0))),
    "a turn after the end": ("replayed", lines(lambda found: found[0]["turns"].append(found[0]["turns"][-1]))),
    "an episode cut short": ("replayed", lines(cut_episode)),
    "an invalid action called valid": ("replayed", lines(turn(0, 0, valid=False))),
    "a broken form": ("replayed", lines(turn(0, 0, format=False))),
    "tokens of a program": ("replayed", lines(turn(0, 0, tokens=3))),
    "a turn that is not learned": ("replayed", lines(turn(0, 0, learn=False))),
    "labels": ("schema", lines(lambda found: found[0].update(labels={"a": 1}))),
    "another category": ("replayed", lines(change_category)),
    "an easier task's episode": ("replayed", lines(steal_easy_task)),
    "not terminated": ("replayed", lines(lambda found: found[0].update(terminated=False))),
    "an episode left out": ("complete", lines(lambda found: found.pop(5))),
    "a task left out": ("complete", lines(lambda found: found[2:])),
    "an episode doubled": ("complete", lines(lambda found: [*found[:3], found[2], *found[4:]])),
    "an episode too many": ("complete", lines(lambda found: [*found, found[-1]])),
    "two episodes in each other's place": ("complete", lines(lambda found: [found[2], found[1], found[0], *found[3:]])),
    "another seed": ("complete", lines(lambda found: found[0].update(seed=1))),
    "another copy's number": ("complete", lines(lambda found: found[1].update(sample=0))),
    "a task of another split": ("complete", lines(lambda found: found[0].update(task="guess/val/00000"))),
    "another split's name": ("schema", lines(every(split="val"))),
    "another agent's name": ("schema", lines(lambda found: found[0].update(agent="gpt"))),
    "a field more": ("schema", lines(lambda found: found[0].update(policy="x"))),
    "a cell left out": ("complete", leave_out_cell),
    "a seed left out": ("suite", document(lambda plain: plain.update(seeds=[0]))),
    "a scenario left out": ("complete", document(lambda plain: plain["scenarios"].pop())),
    "another pool": ("suite", document(lambda plain: plain["scenarios"][0].update(pool="sha256:" + "0" * 64))),
    "another verifier": ("suite", document(lambda plain: plain["scenarios"][0].update(verifier="rules-9"))),
    "fewer tasks": ("suite", document(lambda plain: plain["scenarios"][0].update(tasks=4))),
    "another version of the suite": ("suite", document(lambda plain: plain["suite"].update(version=2))),
    "another definition": ("suite", edit_text("suite.yaml", "tasks: 8", "tasks: 4")),
    "another ranking": ("suite", document(lambda plain: plain.update(ranked="score"))),
    "a count of requests": ("recomputed", document(of_cell(usage=Usage(requests=1).model_dump()))),
    "the expert's words as another's": ("who-spoke", pose_as_expert),
    "a program that is called a model": ("configuration", document(of_agent(model="gpt-9"))),
    "a program that claims to be hosted": ("configuration", document(of_agent(kind="hosted"))),
    "weights of a program": ("configuration", document(of_agent(weights=ZEROS))),
    "settings of no agent": ("configuration", document(of_agent(settings={"name": "expert", "brain": 1}))),
    "a baseline that is none": ("configuration", document(lambda plain: plain["entry"].update(baseline=True))),
    "weights of a cell": ("configuration", document(of_cell(policy=ZEROS))),
    "scenarios in another order": ("complete", document(lambda plain: plain["scenarios"].reverse())),
    "a scenario twice": ("complete", document(lambda plain: plain["scenarios"].append(plain["scenarios"][0]))),
}  # fmt: skip
METHOD: dict[str, tuple[str, Forgery]] = {
    "solved episodes": ("replayed", lines(solve, RANKED)),
    "solved episodes on val": ("replayed", lines(solve, ON_VAL)),
    "negative number of tokens": ("replayed", lines(turn(0, 0, tokens=-1), RANKED)),
    "a form that was broken": ("replayed", lines(turn(0, 0, format=False), RANKED)),
    "a round left out": ("complete", lines(drop_last_round, ON_VAL)),
    "another round ranked": ("schema", rank_another_round),
    "another policy ranked": ("schema", lines(every(policy=ZEROS), RANKED)),
    "another learning rate": ("configuration", document(of_config(learning={"learning_rate": 0.01}), CONFIGS)),
    "another world": ("configuration", document(of_config(env={"options": {"seed": 4}}), CONFIGS)),
    "another method": ("configuration", document(of_method(changes=["algorithm=fedprox"]))),
    "another method's name": ("configuration", document(of_method(algorithm="fedgrpo"))),
    "a change of what is the suite's": ("configuration", document(of_method(changes=["evaluation.tasks=2"]))),
    "another agent": ("configuration", document(lambda plain: plain["entry"]["agent"].update(settings={"name": "qwen"}))),
    "beyond the budget": ("budget", document(lambda plain: plain["cells"][0]["spent"].update(episodes=10_000))),
    "fewer rounds spent": ("budget", document(lambda plain: plain["cells"][0]["spent"].update(rounds=1))),
    "less spent on the curve": ("budget", document(lambda plain: last_point(plain)["spent"].update(bytes_up=1), CURVES)),
    "spent before the first round": ("budget", document(lambda curves: first_point(curves).update(episodes=3), CURVES)),
    "more steps of optimizers": ("budget", document(lambda plain: spent_of(plain).update(optimizer_steps=99))),
    "answers of fewer tasks": ("budget", document(lambda plain: spent_of(plain).update(labelled=3))),
    "fewer looks at val": ("budget", document(lambda curves: last_point(curves)["spent"].update(looks=1), CURVES)),
    "privacy that is not kept": ("budget", document(of_cell(epsilon=0.5))),
    "a baseline by another name": ("configuration", document(lambda plain: plain["entry"].update(name="zero-shot"))),
    "a baseline with another title": ("configuration", document(lambda plain: plain["entry"].update(title="Mine"))),
    "another random stream": ("configuration", document(of_method(stream=1))),
    "a random stream of one's own": ("configuration", choose_stream),
    "another method as a baseline": ("configuration", document(of_method(changes=["algorithm.local_steps=2"]))),
    "code in the changes": ("configuration", document(of_method(changes=["plugins=[antigravity]"]))),
    "a method without end": ("budget", train_for_ever),
    "a remark in a configuration": ("configuration", document(of_config(remark="checked"), CONFIGS)),
    "a configuration left out": ("complete", document(lambda plain: plain["cells"].pop(), CONFIGS)),
    "a configuration twice": ("complete", document(lambda plain: plain["cells"].append(plain["cells"][0]), CONFIGS)),
    "another name of the run": ("configuration", document(of_config(name="best"), CONFIGS)),
    "another division": ("suite", document(lambda plain: plain["scenarios"][1].update(client_split="sha256:" + "2" * 64))),
    "another heterogeneity": ("suite", document(lambda plain: plain["scenarios"][1].update(level=0.1))),
}  # fmt: skip
NUMBERS: dict[str, Forgery] = {
    "overall success": document(lambda plain: plain["overall"]["success"].update(mean=0.99)),
    "an interval": document(lambda plain: plain["overall"]["success"].update(low=0.1)),
    "a scenario's success": document(lambda plain: plain["by_scenario"]["uniform"]["success"].update(mean=0.99)),
    "a cell's success": document(lambda plain: plain["cells"][0]["measures"]["success"].update(mean=0.99)),
    "a category": document(lambda plain: plain["cells"][0]["categories"].pop("small")),
    "a measure of one's own": document(lambda plain: plain["overall"].update(brilliance={"mean": 1.0, "low": 1.0, "high": 1.0})),
    "the number of episodes": document(lambda plain: plain["cells"][0].update(episodes=99)),
    "the worst client": document(lambda plain: plain["overall"]["worst_client"].update(mean=0.9)),
    "a client's success": document(lambda plain: plain["cells"][0]["clients"][0].update(success=0.9), CLIENTS),
    "a client's tasks": document(lambda plain: plain["cells"][0]["clients"][0].update(tasks=80), CLIENTS),
    "a point of a curve": document(lambda plain: last_point(plain)["measures"]["success"].update(mean=0.9), CURVES),
    "a category of a curve": document(lambda plain: last_point(plain)["categories"].update(large=0.9), CURVES),
}  # fmt: skip
EDITED: dict[str, tuple[str, Forgery]] = {
    "a file that is edited": ("digests", lines(turn(0, 0, valid=False), RANKED)),
    "a file too many": ("digests", lambda folder: (folder / "more.txt").write_text("x")),
    "a verification of its own": ("digests", lambda folder: (folder / "verification.json").write_text("{}")),
    "a file that is gone": ("digests", lambda folder: (folder / CURVES).unlink()),
    "an empty folder": ("digests", lambda folder: (folder / "more").mkdir()),
    "a file behind a link": ("digests", lambda folder: (folder / "link").symlink_to("manifest.json")),
    "another layout": ("schema", edit_text("manifest.json", '"seeds": [', '"seeds":  [')),
    "a number as text": ("schema", edit_text("manifest.json", '"version": 1', '"version": "1"')),
    "a field of one's own": ("schema", document(lambda plain: plain.update(champion=True))),
    "another schema": ("schema", edit_text("manifest.json", '"format": 1', '"format": 2')),
    "a name in letters that look alike": ("schema", edit_text("manifest.json", '"name": "fedagent"', '"name": "fed\u0430gent"')),
    "a day that is none": ("schema", document(lambda plain: plain["made"].update(date="yesterday"))),
    "a negative epsilon": ("schema", document(of_cell(epsilon=-1.0))),
    "a number that is none": ("schema", edit_text("manifest.json", '"seconds": ', '"seconds": NaN, "x": ')),
    "a key twice": ("schema", edit_text("manifest.json", '"seeds": [', '"seeds": [], "seeds": [')),
    "lists in lists": ("schema", lambda folder: (folder / "manifest.json").write_text("[" * 100_000)),
    "a manifest that is a folder": ("schema", replace_manifest_by_folder),
    "no manifest": ("schema", lambda folder: (folder / "manifest.json").unlink()),
    "no JSON": ("schema", lambda folder: (folder / "manifest.json").write_text("{")),
}  # fmt: skip


def refuse(folder: Path, claim: str, suite: Suite | None = None) -> None:
    with pytest.raises(RefutedError) as refused:
        verify(folder, suite=suite)
    assert refused.value.claim == claim, refused.value


def remake(folder: Path, suite: Suite) -> None:
    """All that can be made anew: where the episodes are of no use for sums, the digests at least."""
    with contextlib.suppress(Exception):
        forger.remake_all(folder, suite)
    if (folder / "manifest.json").exists():
        forger.remake_digests(folder)


def test_honest_results_pass(honest_agent: Path, honest_method: Path, tmp_path: Path) -> None:
    proven = {claim.name for claim in verify(honest_agent, suite=AGENTS_SUITE).claims if claim.status == "proven"}
    assert proven == {"schema", "digests", "suite", "complete", "replayed", "recomputed", "who-spoke"}
    found = {claim.name: claim.status for claim in verify(honest_method).claims}
    assert {name for name, status in found.items() if status == "not provable"} == {
        "about", "spent", "method", "who-spoke", "tokens", "selection", "budget",
    }  # fmt: skip


def test_episodes_that_are_kept_silent_are_not_proven(honest_method: Path, tmp_path: Path) -> None:
    """If clients fail there are fewer episodes than the configuration takes: the check reports that not all are counted."""
    folder = forger.copy(honest_method, tmp_path / "forged")
    document(lambda plain: plain["cells"][0]["spent"].update(episodes=20))(folder)
    document(lambda curves: last_point(curves)["spent"].update(episodes=20), CURVES)(folder)
    remake(folder, load_suite("smoke"))
    found = {claim.name: claim.status for claim in verify(folder).claims}
    assert found["counted"] == "not provable"


def test_a_forger_who_changes_nothing_passes(honest_agent: Path, honest_method: Path, tmp_path: Path) -> None:
    agent, method = forger.copy(honest_agent, tmp_path / "a"), forger.copy(honest_method, tmp_path / "m")
    forger.remake_all(agent, AGENTS_SUITE)
    forger.remake_all(method, load_suite("smoke"))
    assert verify(agent, suite=AGENTS_SUITE) == verify(honest_agent, suite=AGENTS_SUITE)
    assert verify(method) == verify(honest_method)


@pytest.mark.parametrize("name", AGENT)
def test_forged_agents_are_refused(name: str, honest_agent: Path, tmp_path: Path) -> None:
    claim, forge = AGENT[name]
    folder = forger.copy(honest_agent, tmp_path / "forged")
    forge(folder)
    remake(folder, AGENTS_SUITE)
    refuse(folder, claim, AGENTS_SUITE)


@pytest.mark.parametrize("name", METHOD)
def test_forged_methods_are_refused(name: str, honest_method: Path, tmp_path: Path) -> None:
    claim, forge = METHOD[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(folder)
    remake(folder, load_suite("smoke"))
    refuse(folder, claim)


@pytest.mark.parametrize("name", NUMBERS)
def test_forged_numbers_are_refused(name: str, honest_method: Path, tmp_path: Path) -> None:
    folder = forger.copy(honest_method, tmp_path / "forged")
    NUMBERS[name](folder)
    forger.remake_digests(folder)
    refuse(folder, "recomputed")


@pytest.mark.parametrize("name", EDITED)
def test_edited_files_are_refused(name: str, honest_method: Path, tmp_path: Path) -> None:
    claim, forge = EDITED[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(folder)
    refuse(folder, claim)


def test_a_result_cannot_make_the_verifier_run_code(honest_method: Path, tmp_path: Path) -> None:
    """Neither the changes of a method nor its packed configuration load a plugin that the verifier did not name."""
    folder, trace = forger.copy(honest_method, tmp_path / "forged"), tmp_path / "trace"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(trace)!r}, 'w')\n")
    forger.edit_json(folder / "manifest.json", of_method(changes=[f"plugins=[{evil}]"]))
    refuse(folder, "configuration")
    named = [{"name": "evil.py", "digest": file_digest(evil)}]
    forger.edit_json(folder / "manifest.json", of_method(changes=[], plugins=named))
    forger.edit_json(folder / CONFIGS, of_config(plugins=[str(evil)]))
    forger.edit_json(folder / "manifest.json", lambda plain: plain["entry"].update(baseline=False))
    forger.remake_digests(folder)
    found = {claim.name: claim.status for claim in verify(folder).claims}
    assert found["configuration"] == "not provable" and not trace.exists()


def test_a_plugin_may_lie_elsewhere_on_the_verifiers_machine(honest_method: Path, tmp_path: Path) -> None:
    """The path at which it was loaded is part of the packed configuration, and of its digest."""
    folder, mine = forger.copy(honest_method, tmp_path / "result"), tmp_path / "mine.py"
    mine.write_text("")
    method = of_method(plugins=[{"name": "mine.py", "digest": file_digest(mine)}])
    forger.edit_json(folder / "manifest.json", lambda plain: (method(plain), plain["entry"].update(baseline=False)))
    for number, record in enumerate(ResultFolder(folder).manifest.cells):
        made = make_config(load_suite("smoke"), record.scenario, seed=record.seed, plugins=[str(mine)])
        there = made.model_copy(update={"plugins": (*made.plugins[:-1], "/elsewhere/mine.py")})
        write_config(folder, record, there)
        change = {"config": there.digest}
        forger.edit_json(folder / "manifest.json", lambda plain, at=number, new=change: plain["cells"][at].update(new))
    forger.remake_digests(folder)
    found = {claim.name: claim.status for claim in verify(folder, plugins=[str(mine)]).claims}
    assert found["configuration"] == "proven" and made.plugins[-1] == str(mine)


def test_a_file_that_unpacks_to_gigabytes_is_left_early(
    honest_agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line that does not belong there ends the check; no more than one line is held until then."""
    folder = forger.copy(honest_agent, tmp_path / "forged")
    (folder / EPISODES).write_bytes(lzma.compress(b"{}\n" * 100_000))
    forger.remake_digests(folder)
    refuse(folder, "schema", AGENTS_SUITE)
    shutil.copyfile(honest_agent / EPISODES, folder / EPISODES)
    forger.remake_digests(folder)
    monkeypatch.setattr("fedagentgym.leaderboard.evidence.MOST_CHARACTERS", 2000)
    refuse(folder, "schema", AGENTS_SUITE)


def test_some_scenarios_alone_are_a_result_that_says_so(honest_agent: Path, tmp_path: Path) -> None:
    """On the agents track; on the other a part of a suite is refused."""
    folder = forger.copy(honest_agent, tmp_path / "part")

    def leave_out(plain: Any) -> None:
        plain["scenarios"].pop()
        plain["cells"] = [one for one in plain["cells"] if one["scenario"] == "guess"]

    forger.edit_json(folder / "manifest.json", leave_out)
    for path in (folder / "episodes").glob("other-*"):
        path.unlink()
    forger.remake_all(folder, AGENTS_SUITE)
    found = {claim.name: claim for claim in verify(folder, suite=AGENTS_SUITE).claims}
    assert found["complete"].about.endswith("(not played: other)") and found["who-spoke"].status == "proven"


def test_descriptions_that_come_with_a_result_are_not_shown(honest_method: Path, tmp_path: Path) -> None:
    """They are no part of the digest, so that a suite can be described better; the page takes those of the package."""
    folder = forger.copy(honest_method, tmp_path / "forged")
    edit_text("suite.yaml", "about: Two methods", "about: Ours wins. Two methods")(folder)
    forger.remake_digests(folder)
    verify(folder)
    (found,) = read_suites([folder])
    assert found.suite == load_suite("smoke") and "Ours wins" in (folder / "suite.yaml").read_text()


def test_a_suite_that_nobody_knows_is_refused(honest_agent: Path) -> None:
    refuse(honest_agent, "suite")


def test_a_forger_of_compressed_files_is_told_so(honest_method: Path, tmp_path: Path) -> None:
    folder = forger.copy(honest_method, tmp_path / "forged")
    (folder / RANKED).write_bytes(b"not compressed")
    forger.remake_digests(folder)
    with pytest.raises(Exception, match="not a whole xz file"):
        verify(folder)
    assert json.loads((folder / "manifest.json").read_text())["files"][RANKED]
