"""Forgeries: of people who edit files, and of a forger who makes every digest and every number anew.

Each is tried on a folder of runs, and on the archive that a forger packs of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_yaml
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.results import ENTRY, SUITE, Result, read_suites
from fedagentgym.leaderboard.suite import Suite, load_suite, make_config
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.archive import Archive, write_archive
from fedagentgym.runs.claims import RefutedError
from fedagentgym.runs.folder import CONFIG, RANKED, RECORD, publish_config
from fedagentgym.runs.record import Usage
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE

Forgery = Callable[[Path], object]
EPISODES = f"guess-seed1/{RANKED}"
PLAYED, ON_VAL = f"preference-seed1/{RANKED}", "preference-seed0/evaluation/0001.jsonl"
FIRST, LAST = "uniform-seed0", "preference-seed1"
"""The first run of the suite `smoke`, and its last."""
ZEROS = "sha256:" + "0" * 64


def lines(change: Callable[[forger.Lines], object], name: str = EPISODES) -> Forgery:
    return lambda folder: forger.edit_lines(folder, name, change)


def document(change: Callable[[Any], object], name: str = ENTRY) -> Forgery:
    return lambda folder: forger.edit_json(folder / name, change)


def record(change: Callable[[Any], object], run: str = FIRST) -> Forgery:
    """Change the record of a run."""
    return document(change, f"{run}/{RECORD}")


def of_agent(**values: Any) -> Forgery:
    """Change what the records of the agents track say of the agent."""

    def forge(folder: Path) -> None:
        for run in forger.list_runs(folder):
            forger.edit_json(run / RECORD, lambda plain: plain["agent"].update(values))

    return forge


def of_config(**changes: Any) -> Forgery:
    """Other settings in the configurations of all runs."""

    def forge(folder: Path) -> None:
        for run in forger.list_runs(folder):
            plain = yaml.safe_load((run / CONFIG).read_text())
            (run / CONFIG).write_text(format_yaml(merge(plain, changes)))

    return forge


def write_config(folder: Path, changes: list[str], plugins: tuple[str, ...] = (), there: str | None = None) -> None:
    """The configurations that these changes of the method give, in all runs, with their digests."""
    for scenario, seed in Result(folder).keys:
        made = make_config(load_suite("smoke"), scenario, changes, seed=seed, plugins=plugins)
        if there is not None:
            made = made.model_copy(update={"plugins": (*made.plugins[:-1], there)})
        run = folder / f"{scenario}-seed{seed}"
        (run / CONFIG).write_text(format_yaml(publish_config(made.plain())))
        digest = made.digest
        forger.edit_json(run / RECORD, lambda plain, new=digest: plain.update(config_digest=new))


def turn(number: int, at: int = 0, **values: Any) -> Callable[[forger.Lines], object]:
    return lambda found: found[number]["turns"][at].update(values)


def change_action(found: forger.Lines) -> None:
    found[0]["turns"][0].update(acts=["guess 1"], reply="guess 1")


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


def make_brief(found: forger.Lines) -> None:
    """Leave out the seeds alone."""
    for episode in found:
        del episode["seed"]


def remove(name: str) -> Forgery:
    return lambda folder: (folder / name).unlink()


def leave_out_run(folder: Path) -> None:
    for path in sorted((folder / "other-seed1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "other-seed1").rmdir()


def edit_text(name: str, old: str, new: str) -> Forgery:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


def pose_as_random(folder: Path) -> None:
    """The expert's episodes as those of the random walker."""
    forger.edit_json(folder / ENTRY, lambda plain: plain["agent"].update(name="random"))
    for run in forger.list_runs(folder):
        forger.edit_lines(run, RANKED, every(agent="random"))
        plain = yaml.safe_load((run / CONFIG).read_text())
        (run / CONFIG).write_text(format_yaml({**plain, "agent": {"name": "random"}}))
        forger.edit_json(run / RECORD, lambda plain: plain["agent"]["settings"].update(name="random"))
    from fedagentgym.leaderboard.play import make_evaluation_config
    from fedagentgym.leaderboard.suite import open_scenario

    result = Result(folder)
    for scenario, seed in result.keys:
        made = make_evaluation_config(open_scenario(AGENTS_SUITE, scenario), result.entry, seed)
        place = folder / f"{scenario}-seed{seed}" / RECORD
        forger.edit_json(place, lambda plain, new=made.digest: plain.update(config_digest=new))


def rank_another_round(folder: Path) -> None:
    chosen = forger.read_file(folder / PLAYED)[0]["round"]
    forger.edit_lines(folder, PLAYED, every(round=1 if chosen != 1 else 2))


def change_category(found: forger.Lines) -> None:
    found[0]["category"] = "small" if found[0]["category"] != "small" else "large"


def every(**values: Any) -> Callable[[forger.Lines], object]:
    return lambda found: [{**one, **values} for one in found]


def call_no_baseline(change: Callable[[Any], object]) -> Forgery:
    """An entry that calls itself no baseline."""
    return document(lambda plain: (plain.update(baseline=False, name="mine"), change(plain)))


def changes_of_my_own(change: str) -> Forgery:
    return call_no_baseline(lambda plain: plain.update(changes=[change]))


def describe_epsilon(epsilon: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": None, "assumed": []}


ONE_REQUEST = Usage(requests=1).model_dump()


def train_for_ever(folder: Path) -> None:
    """Rounds that nobody could list, in the changes and in every configuration."""
    changes = [f"federation.rounds={10**12}"]
    call_no_baseline(lambda plain: plain.update(changes=changes))(folder)
    write_config(folder, changes)


def take_the_name_of_a_baseline(folder: Path) -> None:
    """Another method, which would stand in the suite's planned comparisons."""
    changes = ["learning.learning_rate=0.002"]
    document(lambda plain: plain.update(baseline=False, changes=changes))(folder)
    write_config(folder, changes)


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
    "a run left out": ("complete", leave_out_run),
    "seeds left out": ("schema", lines(make_brief)),
    "another pool": ("recomputed", record(lambda plain: plain["tasks"].update(pool=ZEROS), "guess-seed0")),
    "another verifier": ("configuration", record(lambda plain: plain["env"].update(verifier="rules-9"), "guess-seed0")),
    "fewer tasks": ("recomputed", record(lambda plain: plain["tasks"].update(tasks=4), "guess-seed0")),
    "another name of the suite": ("suite", edit_text(SUITE, "name: sample-agents-v1", "name: other-v1")),
    "another definition": ("suite", edit_text(SUITE, "tasks: 8", "tasks: 4")),
    "another ranking": ("suite", edit_text(SUITE, "pass_powers:", "rank_by: score\npass_powers:")),
    "a count of requests": ("recomputed", record(lambda plain: plain.update(usage=ONE_REQUEST), "guess-seed0")),
    "the expert's words as another's": ("replies", pose_as_random),
    "a program that is called a model": ("configuration", of_agent(kind="model", model="gpt-9")),
    "a program that claims to be hosted": ("configuration", of_agent(kind="hosted")),
    "weights of a program": ("configuration", of_agent(weights=ZEROS)),
    "another way from replies to actions": ("replayed", of_agent(parser="strict")),
    "settings of no agent": ("configuration", document(lambda plain: plain.update(agent={"name": "expert", "brain": 1}))),
    "a baseline that is none": ("configuration", document(lambda plain: plain.update(baseline=True))),
    "changes on the agents track": ("schema", document(lambda plain: plain.update(changes=["seed=1"]))),
    "no agent": ("schema", document(lambda plain: plain.update(agent=None))),
    "another seed of the episodes": ("configuration", record(lambda plain: plain.update(seed=4), "guess-seed0")),
    "another kind of run": ("configuration", record(lambda plain: plain.update(kind="training"), "guess-seed0")),
    "another world": ("configuration", of_config(env={"options": {"seed": 4}})),
}  # fmt: skip
METHOD: dict[str, tuple[str, Forgery]] = {
    "solved episodes": ("replayed", lines(solve, PLAYED)),
    "solved episodes on val": ("replayed", lines(solve, ON_VAL)),
    "negative number of tokens": ("replayed", lines(turn(0, 0, tokens=-1), PLAYED)),
    "a form that was broken": ("replayed", lines(turn(0, 0, format=False), PLAYED)),
    "a round left out": ("complete", remove("preference-seed0/evaluation/0002.jsonl")),
    "a round too many": ("complete", lambda folder: (folder / "preference-seed0/evaluation/0003.jsonl").write_text("")),
    "another segment": ("replayed", lines(turn(0, 0, segment=3), PLAYED)),
    "another round ranked": ("schema", rank_another_round),
    "another policy ranked": ("selection", lines(every(policy=ZEROS), PLAYED)),
    "another learning rate": ("configuration", of_config(learning={"learning_rate": 0.01})),
    "another world": ("configuration", of_config(env={"options": {"seed": 4}})),
    "another method": ("configuration", document(lambda plain: plain.update(changes=["algorithm=fedprox"]))),
    "another method's name": ("configuration", record(lambda plain: plain.update(algorithm="fedgrpo"))),
    "a change of what is the suite's": ("configuration", changes_of_my_own("evaluation.tasks=2")),
    "another agent": ("configuration", record(lambda plain: plain["agent"].update(settings={"name": "qwen"}))),
    "a parser beside the settings": ("configuration", record(lambda plain: plain["agent"].update(parser="strict"))),
    "beyond the budget": ("budget", record(lambda plain: plain["spent"].update(episodes=10_000))),
    "fewer rounds spent": ("budget", record(lambda plain: (plain["spent"].update(rounds=1), plain.update(rounds=1)))),
    "less spent on the curve": ("budget", record(lambda plain: plain["curve"][-1]["spent"].update(bytes_up=1))),
    "spent before the first round": ("budget", record(lambda plain: plain["curve"][0]["spent"].update(episodes=3))),
    "more steps of optimizers": ("budget", record(lambda plain: plain["spent"].update(optimizer_steps=99))),
    "answers of fewer tasks": ("budget", record(lambda plain: plain.update(labelled=3))),
    "fewer looks at val": ("budget", record(lambda plain: plain["curve"][-1]["spent"].update(looks=1))),
    "privacy that is not kept": ("budget", record(lambda plain: plain.update(privacy=describe_epsilon(0.5)))),
    "a baseline by another name": ("configuration", document(lambda plain: plain.update(name="zero-shot"))),
    "a baseline with another title": ("configuration", document(lambda plain: plain.update(title="Mine"))),
    "another random stream": ("configuration", document(lambda plain: plain.update(stream=1))),
    "a random stream of one's own": ("configuration", call_no_baseline(lambda plain: plain.update(stream=1))),
    "another method as a baseline": ("configuration", document(lambda plain: plain.update(changes=["algorithm.local_steps=2"]))),
    "another method by the name of a baseline": ("configuration", take_the_name_of_a_baseline),
    "code in the changes": ("configuration", changes_of_my_own("plugins=[antigravity]")),
    "a method without end": ("budget", train_for_ever),
    "a remark in a configuration": ("configuration", of_config(remark="checked")),
    "another name of the run": ("configuration", of_config(name="best")),
    "another division": ("configuration", record(lambda plain: plain["client_split"].update(digest=ZEROS))),
    "more clients": ("configuration", record(lambda plain: plain["client_split"].update(clients=9))),
    "another pool to learn from": ("configuration", record(lambda plain: plain["env"].update(pool=ZEROS))),
    "another seed of the run": ("configuration", record(lambda plain: plain.update(seed=4))),
    "another digest of the configuration": ("configuration", record(lambda plain: plain.update(config_digest=ZEROS))),
    "a call for a hosted model": ("configuration", record(lambda plain: plain.update(usage=Usage().model_dump()))),
    "another heterogeneity": ("suite", edit_text(SUITE, "level: 0.9", "level: 0.1")),
}  # fmt: skip
NUMBERS: dict[str, Forgery] = {
    "ranked success": record(lambda plain: plain["ranked"]["overall"]["success"].update(mean=0.99)),
    "an interval": record(lambda plain: plain["ranked"]["overall"]["success"].update(low=0.01)),
    "a category": record(lambda plain: plain["ranked"]["categories"].pop("small")),
    "a category's success": record(lambda plain: plain["ranked"]["categories"]["small"]["success"].update(mean=0.9)),
    "a measure of one's own": record(
        lambda plain: plain["ranked"]["overall"].update(brilliance={"mean": 1.0, "low": 1.0, "high": 1.0})
    ),
    "the number of episodes": record(lambda plain: plain["ranked"].update(episodes=99)),
    "the number of tasks": record(lambda plain: plain["ranked"].update(tasks=99)),
    "a client's success": record(lambda plain: plain["clients"][0].update(success=0.9)),
    "a client's tasks": record(lambda plain: plain["clients"][0].update(tasks=80)),
    "a client left out": record(lambda plain: plain["clients"].pop()),
    "a point of a curve": record(lambda plain: plain["curve"][-1]["overall"]["success"].update(mean=0.9)),
    "a category of a curve": record(lambda plain: plain["curve"][-1]["categories"].update(large=0.9)),
    "the last evaluation": record(lambda plain: plain["final"]["overall"]["success"].update(mean=0.9)),
    "the best round": record(lambda plain: plain.update(best_round=2 if plain["best_round"] != 2 else 1)),
    "sets of one's own": record(lambda plain: plain["ranked"].update(sets={"easy": {}})),
    "what was ranked": record(lambda plain: plain["tasks"].update(temperature=0.1)),
}  # fmt: skip
EDITED: dict[str, tuple[str, Forgery]] = {
    "another layout": ("schema", edit_text(f"{FIRST}/{RECORD}", '"seed":', '"seed": ')),
    "a number as text": ("schema", edit_text(f"{FIRST}/{RECORD}", '"format":1', '"format":"1"')),
    "a measure without an interval": ("schema", record(lambda plain: plain["ranked"]["overall"].update(a={"mean": 1.0}))),
    "a field of one's own": ("schema", record(lambda plain: plain.update(champion=True))),
    "a newer format": ("schema", edit_text(f"{FIRST}/{RECORD}", '"format":1', '"format":2')),
    "a name in letters that look alike": ("schema", document(lambda plain: plain.update(name="fed\u0430gent"))),
    "another layout of the entry": ("schema", edit_text(ENTRY, '"name":', '"name": ')),
    "a day that is none": ("schema", record(lambda plain: plain["made"].update(date="yesterday"))),
    "a negative epsilon": ("schema", record(lambda plain: plain.update(privacy=describe_epsilon(-1.0)))),
    "a number that is none": ("schema", edit_text(f"{FIRST}/{RECORD}", '"seconds":', '"seconds":NaN,"x":')),
    "a key twice": ("schema", edit_text(f"{FIRST}/{RECORD}", '"seed":', '"seed":1,"seed":')),
    "lists in lists": ("schema", lambda folder: (folder / FIRST / RECORD).write_text("[" * 100_000)),
    "no JSON": ("schema", lambda folder: (folder / FIRST / RECORD).write_text("{")),
    "no entry": ("schema", lambda folder: (folder / ENTRY).write_text("")),
    "a suite that is none": ("schema", lambda folder: (folder / SUITE).write_text("[]")),
    "no ranked episodes": ("complete", remove(f"{FIRST}/{RANKED}")),
    "an empty file of episodes": ("complete", lambda folder: (folder / FIRST / RANKED).write_text("")),
    "a line that is not ended": ("schema", lambda folder: (folder / FIRST / RANKED).write_text("{}")),
    "no episodes": ("schema", lambda folder: (folder / FIRST / RANKED).write_text("[]\n")),
    "another round of the policy": ("schema", record(lambda plain: plain["ranked"].update(round=1))),
    "no configuration": ("configuration", lambda folder: (folder / FIRST / CONFIG).write_text("[]")),
}  # fmt: skip


def refuse(folder: Path, claim: str, suite: Suite | None = None, *, packed: bool) -> None:
    """The folder is refused, or its archive, in which no reader sees another thing."""
    place = folder
    if packed:
        try:
            place = forger.pack(folder, folder.with_suffix(".zip"))
        except DataError:  # what cannot be packed is no archive
            return
    with pytest.raises(RefutedError) as refused:
        verify(place, suite=suite)
    assert refused.value.claim == claim, refused.value
    assert "\n" not in str(refused.value)


PACKED = pytest.mark.parametrize(
    "packed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["folder", "archive"]
)


def remake(folder: Path, suite: Suite) -> None:
    """All numbers that can be made anew."""
    with contextlib.suppress(Exception):
        forger.remake_all(folder, suite)


def test_honest_results_pass(honest_agent: Path, honest_method: Path) -> None:
    proven = {claim.name for claim in verify(honest_agent, suite=AGENTS_SUITE).claims if claim.status == "proven"}
    assert proven == {"schema", "digests", "suite", "complete", "replayed", "recomputed", "replies"}
    found = {claim.name: claim.status for claim in verify(honest_method).claims}
    assert {name for name, status in found.items() if status == "not provable"} == {
        "about", "spent", "method", "replies", "tokens", "selection", "budget",
    }  # fmt: skip


def test_episodes_that_are_kept_silent_are_not_proven(honest_method: Path, tmp_path: Path) -> None:
    """If clients fail there are fewer episodes than the configuration takes: the check reports that not all are counted."""
    folder = forger.copy(honest_method, tmp_path / "forged")
    record(lambda plain: (plain["spent"].update(episodes=20), plain["curve"][-1]["spent"].update(episodes=20)))(folder)
    found = {claim.name: claim.status for claim in verify(folder).claims}
    assert found["counted"] == "not provable"


def test_a_forger_who_changes_nothing_passes(honest_agent: Path, honest_method: Path, tmp_path: Path) -> None:
    for honest, suite in ((honest_agent, AGENTS_SUITE), (honest_method, load_suite("smoke"))):
        folder = forger.copy(honest, tmp_path / honest.stem)
        forger.remake_all(folder, suite)
        again = forger.pack(folder, tmp_path / f"{honest.stem}.zip")
        assert again.read_bytes() == honest.read_bytes()
        assert verify(folder, suite=suite).claims == verify(honest, suite=suite).claims


@PACKED
@pytest.mark.parametrize("name", AGENT)
def test_forged_agents_are_refused(name: str, packed: bool, honest_agent: Path, tmp_path: Path) -> None:
    claim, forge = AGENT[name]
    folder = forger.copy(honest_agent, tmp_path / "forged")
    forge(folder)
    if claim != "recomputed":
        remake(folder, AGENTS_SUITE)
    refuse(folder, claim, AGENTS_SUITE, packed=packed)


@PACKED
@pytest.mark.parametrize("name", METHOD)
def test_forged_methods_are_refused(name: str, packed: bool, honest_method: Path, tmp_path: Path) -> None:
    claim, forge = METHOD[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(folder)
    remake(folder, load_suite("smoke"))
    refuse(folder, claim, packed=packed)


@PACKED
@pytest.mark.parametrize("name", NUMBERS)
def test_forged_numbers_are_refused(name: str, packed: bool, honest_method: Path, tmp_path: Path) -> None:
    folder = forger.copy(honest_method, tmp_path / "forged")
    NUMBERS[name](folder)
    refuse(folder, "recomputed", packed=packed)


@PACKED
@pytest.mark.parametrize("name", EDITED)
def test_edited_files_are_refused(name: str, packed: bool, honest_method: Path, tmp_path: Path) -> None:
    claim, forge = EDITED[name]
    folder = forger.copy(honest_method, tmp_path / "forged")
    forge(folder)
    refuse(folder, claim, packed=packed)


def test_an_archive_with_more_or_less_is_refused(honest_method: Path, tmp_path: Path) -> None:
    """Files that belong to no run of a suite, and documents that are missing; `tests/runs` has archives that lie."""
    honest, files = Archive(honest_method), {}
    for run in honest.digests.runs:
        with honest.unpack(run.name) as place:
            files[run.name] = {one.name: (place / one.name).read_bytes() for one in run.files}
    documents = {name: honest.read(name) for name in (SUITE, ENTRY)}
    files[FIRST]["more.txt"] = b"x"
    write_archive(tmp_path / "more.zip", documents, files.items())
    with pytest.raises(RefutedError, match=r"digests: uniform-seed0: more\.txt belongs to no run"):
        verify(tmp_path / "more.zip")
    write_archive(tmp_path / "less.zip", {SUITE: documents[SUITE]}, files.items())
    with pytest.raises(RefutedError, match=r"entry\.json"):
        verify(tmp_path / "less.zip")


def test_a_result_cannot_make_the_verifier_run_code(honest_method: Path, tmp_path: Path) -> None:
    """Neither the changes of a method nor its configuration load a plugin that the verifier did not name."""
    folder, trace = forger.copy(honest_method, tmp_path / "forged"), tmp_path / "trace"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(trace)!r}, 'w')\n")
    call_no_baseline(lambda plain: plain.update(changes=[f"plugins=[{evil}]"]))(folder)
    for packed in (False, True):
        refuse(folder, "configuration", packed=packed)
    named = [{"name": "evil.py", "digest": file_digest(evil), "path": None}]
    forger.edit_json(folder / ENTRY, lambda plain: plain.update(changes=[], plugins=named))
    of_config(plugins=[str(evil)])(folder)
    found = {claim.name: claim.status for claim in verify(folder).claims}
    assert found["configuration"] == "not provable" and not trace.exists()


def test_a_plugin_may_lie_elsewhere_on_the_verifiers_machine(
    honest_method: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path at which it was loaded is part of the configuration, and of its digest; the entry of an archive has none."""
    folder, mine = forger.copy(honest_method, tmp_path / "result"), tmp_path / "mine.py"
    mine.write_text("")
    named = [{"name": "mine.py", "digest": file_digest(mine), "path": None}]
    call_no_baseline(lambda plain: plain.update(plugins=named))(folder)
    write_config(folder, [], (str(mine),), "/elsewhere/mine.py")
    archive = forger.pack(folder, tmp_path / "result.zip")
    found = {claim.name: claim.status for claim in verify(archive, plugins=[str(mine)]).claims}
    assert found["configuration"] == "proven"
    assert main(["bench", "verify", str(archive)]) == 0
    assert "made with mine.py: name it (--plugin) to prove configuration" in capsys.readouterr().out
    assert main(["bench", "verify", str(archive), "--plugin", str(mine)]) == 0
    assert "made with" not in capsys.readouterr().out
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text("# other\n")
    assert main(["bench", "verify", str(archive), "--plugin", str(other)]) == 0
    assert "made with another version of mine.py: name it" in capsys.readouterr().out
    named[0]["path"] = str(mine)
    forger.edit_json(folder / ENTRY, lambda plain: plain.update(plugins=named))
    with pytest.raises(RefutedError, match="names no path and no secret"):
        verify(forger.pack(folder, tmp_path / "told.zip"), plugins=[str(mine)])


def test_some_scenarios_alone_are_a_result_that_says_so(honest_agent: Path, tmp_path: Path) -> None:
    """On the agents track; on the other a part of a suite is refused."""
    folder = forger.copy(honest_agent, tmp_path / "part")
    leave_out_run(folder)
    (folder / "other-seed0").rename(folder / "other-seed1")
    leave_out_run(folder)
    found = {claim.name: claim for claim in verify(folder, suite=AGENTS_SUITE).claims}
    assert found["complete"].about.endswith("(not played: other)") and found["replies"].status == "proven"


def test_descriptions_that_come_with_a_result_are_not_shown(honest_method: Path, tmp_path: Path) -> None:
    """They are no part of the digest, so that a suite can be described better; the page takes those of the package."""
    folder = forger.copy(honest_method, tmp_path / "forged")
    edit_text(SUITE, "about: Two methods", "about: Ours wins. Two methods")(folder)
    verify(folder)
    (found,) = read_suites([folder])
    assert found.suite == load_suite("smoke") and "Ours wins" in (folder / SUITE).read_text()


def test_an_unknown_suite_is_refused(honest_agent: Path) -> None:
    with pytest.raises(RefutedError) as refused:
        verify(honest_agent)
    assert refused.value.claim == "suite" and json.loads(Archive(honest_agent).read(ENTRY))["name"] == "expert"
