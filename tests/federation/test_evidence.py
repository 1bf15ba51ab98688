"""A run's folder is evidence: whatever was changed in it is named before the run goes on, or written again and reported."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.base.encoding import bytes_digest, canonical_json, digest
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.record import read_result
from fedagentgym.experiment.run import resume, train
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.commits import Commit, read_chain
from fedagentgym.federation.records import drop_times
from fedagentgym.testing.runs import SMALL_CONFIG

Run = Callable[..., Commit]
OPTIONS: dict[str, Any] = {"rounds": 4, "clients": 5, "per_round": 2, "shown": True}


def look(number: int, state: ServerState) -> dict[str, float]:
    return {"success": float(state.parameters["w"][0])}


@pytest.fixture
def played(run_toy: Run, tmp_path: Path) -> Path:
    run_toy(tmp_path / "run", **OPTIONS, plan={"evaluate": look})
    return tmp_path / "run"


def go_on(run_toy: Run, folder: Path) -> Commit:
    return run_toy(folder, **{**OPTIONS, "rounds": 5}, plan={"evaluate": look})


def edit_note(folder: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a note and make its digest and seal anew, as a forger would."""
    file = folder / "rounds" / f"{number:04d}" / "round.json"
    plain = json.loads(file.read_text())
    change(plain)
    plain = {name: value for name, value in plain.items() if name not in ("digest", "seal")}
    try:
        plain["digest"] = digest({**plain, "record": drop_times(plain["record"])})
    except (KeyError, TypeError, AttributeError):
        plain["digest"] = digest(plain)
    file.write_text(json.dumps({**plain, "seal": digest(plain)}))
    found = file.with_name("evaluation.json")
    judged = {name: value for name, value in json.loads(found.read_text()).items() if name != "seal"}
    judged["commit"] = plain["digest"]
    found.write_text(json.dumps({**judged, "seal": digest(judged)}))


def forge_chain(folder: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a note and remake every link behind it."""
    edit_note(folder, number, change)
    for later in range(number + 1, 5):
        before = json.loads((folder / "rounds" / f"{later - 1:04d}" / "round.json").read_text())
        edit_note(folder, later, lambda plain, link=before["digest"]: plain.update(previous=link))  # type: ignore[misc]


NASTY: list[Any] = [None, True, -1, 10**20, 0.5, "x", "\x00", [], [1], {}, {"a": 1}]
PLACES = ("round", "inputs", "previous", "previous_evaluation", "state", "heads", "states", "trajectories", "record")
PLACES += ("record.round", "record.participants", "record.metrics", "record.clients", "record.bytes", "record.failures")
PLACES += ("record.bytes_total", "record.seconds", "record.seconds_total", "record.digest", "record.client_seconds")


UNBOUND = ("inputs", "heads", "states", "record.metrics", "record.clients", "record.failures", "record.client_seconds")
"""A forger of the whole chain can rewrite nothing of an old round from which a later one is computed."""


def test_every_field_of_a_note_with_every_nasty_value(run_toy: Run, played: Path, tmp_path: Path) -> None:
    """Every digest from the changed round on is made anew: what cannot be is still refused, and no error is not ours."""
    tried = 0
    for place in PLACES:
        for value in NASTY:
            copy = tmp_path / "copy"
            shutil.copytree(played, copy)

            def put(plain: dict[str, Any], place: str = place, value: Any = value) -> None:
                *above, last = place.split(".")
                for name in above:
                    plain = plain[name]
                plain[last] = value

            forge_chain(copy, 2, put)
            tried += 1
            try:
                chain = read_chain(copy)
                assert chain is not None
                go_on(run_toy, copy)
                assert place in UNBOUND, (place, value)
            except FedAgentGymError as error:
                assert "the chain of rounds is broken at round" in str(error) and "\n" not in str(error)
            shutil.rmtree(copy)
    assert tried > 200


EVALUATIONS: list[Any] = [
    *(None, [], {}, {"success": None}, {"success": "0.9"}, {"success": True}, {"success": 10**400}, 0.5),
    *({"success": 0.5, "digest": "x"}, {"success": 0.5, "overall": 3}, {"success": 0.5, "overall": {}}),
    {"success": 0.5, "overall": {"success": {"mean": "x"}}, "categories": {}, "tasks": 3, "episodes": 3},
    {"success": 0.5, "digest": "sha256:" + "0" * 64},
]


@pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda value: str(value)[:40])
def test_an_evaluation_that_cannot_be_is_refused_under_new_digests(run_toy: Run, played: Path, evaluation: Any) -> None:
    """The newest round's: no later link holds it, so it is checked for itself."""
    file = played / "rounds" / "0004" / "evaluation.json"
    plain = json.loads(file.read_text())
    plain.update(evaluation=evaluation, digest=digest(evaluation))
    plain.pop("seal")
    file.write_text(json.dumps({**plain, "seal": digest(plain)}))
    with pytest.raises(DataError, match="broken at round 4"):
        go_on(run_toy, played)


def change_record(plain: dict[str, Any]) -> None:
    plain["record"]["metrics"]["norm"] = 123.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: edit_note(f, 2, change_record), "broken at round 3: it does not follow from the round before"),
        (lambda f: (f / "rounds/0001/round.json").write_text("{}"), "broken at round 1"),
        (lambda f: shutil.rmtree(f / "rounds/0002"), "broken at round 2: .*0002 is missing"),
        (lambda f: shutil.rmtree(f / "rounds/0000"), "broken at round 0: .*0000 is missing"),
        (
            lambda f: (f / "rounds/0002/evaluation.json").unlink(),
            "broken at round 3: the evaluation of round 2 is missing",
        ),
        (lambda f: (f / "rounds/0004/global.bin").write_bytes(b"x"), "broken at round 4: .*damaged"),
        (lambda f: (f / "rounds/0003/global.bin").write_bytes(b"x"), "broken at round 3: .*damaged"),
        (lambda f: (f / "trajectories/0002.jsonl").write_text("{}\n"), "broken at round 2: .*was changed"),
        (lambda f: (f / "trajectories/0001.jsonl").unlink(), "broken at round 1: .*is missing"),
        (lambda f: (f / "trajectories/0000.jsonl").write_text("{}\n"), "broken at round 0: .*does not belong"),
        (lambda f: edit_note(f, 4, lambda p: p["record"].update(participants=[0])), "has other participants"),
    ],
)
def test_the_first_broken_link_is_named(
    run_toy: Run, played: Path, change: Callable[[Path], object], message: str
) -> None:
    change(played)
    before = {path: path.read_bytes() for path in played.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=message) as caught:
        go_on(run_toy, played)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in played.rglob("*") if path.is_file()} == before


def test_a_client_state_under_a_new_seal_is_found(run_toy: Run, played: Path) -> None:
    file = sorted((played / "states").rglob("*.state"))[0]
    data = file.read_bytes().partition(b"\n")[2][:-1] + b"\7"
    file.write_bytes(bytes_digest(data).encode() + b"\n" + data)
    heads = json.loads((played / "rounds/0004/round.json").read_text())["heads"]
    name = f"{heads[str(int(file.parent.name))][0]:04d}"
    if file.name.startswith(name):
        with pytest.raises(DataError, match="differs from the one that the round refers to"):
            go_on(run_toy, played)


@pytest.mark.parametrize("harm", ["missing", "edited", "cut", "rubbish", "more", "device"])
def test_metrics_are_written_again_from_the_commits(
    run_toy: Run, played: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    file = played / "metrics.jsonl"
    text = file.read_text()
    match harm:
        case "missing":
            file.unlink()
        case "edited":
            file.write_text(text.replace('"round":1', '"round":7', 1))
        case "cut":
            file.write_text(text[: len(text) // 2])
        case "rubbish":
            file.write_bytes(b"\xff\xfe\x00" * 100)
        case "more":
            file.write_text(text + text)
        case "device":
            file.unlink()
            file.symlink_to("/dev/null")
    with caplog.at_level(logging.WARNING):
        if harm == "device":
            with pytest.raises(DataError, match="cannot"):
                run_toy(played, **OPTIONS, plan={"evaluate": look})
            return
        run_toy(played, **OPTIONS, plan={"evaluate": look})
    assert file.read_text() == text
    assert "was rewritten" in caplog.text


def test_no_word_about_what_an_interrupted_run_lacks(
    run_toy: Run, played: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = played / "metrics.jsonl"
    text = file.read_text()
    for left in (text[: text[:-1].rfind("\n") + 1], text[:-20]):
        file.write_text(left)
        run_toy(played, **OPTIONS, plan={"evaluate": look})
        assert file.read_text() == text and not caplog.text


def test_what_was_half_written_is_removed(run_toy: Run, played: Path) -> None:
    for name in (".metrics.jsonl.abc.part", "trajectories/.x.part", "states/000000/.y.part", "evaluation/.z.part"):
        (played / name).parent.mkdir(exist_ok=True, parents=True)
        (played / name).write_text("x")
    (played / "rounds" / ".0005.q.part").mkdir()
    (played / "trajectories" / "0009.jsonl").write_text("{}\n")
    go_on(run_toy, played)
    assert not list(played.rglob("*.part")) and not (played / "trajectories" / "0009.jsonl").exists()


def test_a_lock_that_is_a_link_is_not_followed(run_toy: Run, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(DataError, match="cannot use the run folder"):
        run_toy(tmp_path / "run")
    assert precious.read_text() == "x"


# ---- whole runs -------------------------------------------------------------------------------------------------------

CONFIG = merge(SMALL_CONFIG, {"algorithm": {"name": "fedagent", "local_steps": 1}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence") / "run"
    train(CONFIG, [f"output.folder={folder}"])
    return folder


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("learning", "learning_rate", 0.1),
        ("federation", "rounds", 9),
        ("partition", "clients", 4),
        ("evaluation", "tasks", 5),
        ("output", "sampled_episodes", 0),
    ],
)
def test_an_edited_configuration_is_refused(
    run_copy: Path, section: str, key: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_copy / "config.yaml"
    plain = yaml.safe_load(file.read_text())
    plain[section][key] = value
    file.write_text(yaml.safe_dump(plain))
    assert main(["-q", "resume", str(run_copy)]) == 2
    assert "round 0: it was played with another" in capsys.readouterr().err
    assert main(["-q", "export", str(run_copy), "--out", str(run_copy / "model")]) == 2
    with pytest.raises(DataError):
        read_result(run_copy)


def test_the_record_names_its_commit_and_what_was_checked(finished: Path, tmp_path: Path) -> None:
    record = read_result(finished)
    chain = read_chain(finished)
    assert chain is not None and record.evidence is not None and record.evidence.commit == chain.newest.digest
    assert record.evidence.rounds == 3 and "client states" in record.evidence.checked
    again = train(CONFIG, [f"output.folder={tmp_path / 'again'}"])
    assert again.record["evidence"] == record.evidence.model_dump(mode="json")


@pytest.mark.parametrize("name", ["evaluation/0001.jsonl", "trajectories/0002.jsonl", "rounds/0001/evaluation.json"])
def test_edited_episodes_and_evaluations_are_refused(run_copy: Path, name: str) -> None:
    text = (run_copy / name).read_text()
    (run_copy / name).write_text(text.replace("0.", "1.", 1))
    with pytest.raises(DataError, match="the chain of rounds is broken at round"):
        resume(run_copy)


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 70},
        {"spent": {"env_steps": 10**9}},
        {"final": None},
        {"bytes": {}},
        {"format": 2},
        {"config": {}},
        {"made": {"seconds": "short"}},
        {"config_digest": None},
    ],
)
def test_an_edited_result_is_refused(run_copy: Path, change: dict[str, Any]) -> None:
    file = run_copy / "result.json"
    file.write_text(canonical_json({**json.loads(file.read_text()), **change}))
    with pytest.raises(DataError, match=r"result\.json"):
        read_result(run_copy)


def test_single_bytes_changed_at_random(run_copy: Path, tmp_path: Path) -> None:
    """Every file of the chain, a bit at a time: refused in our words, or nothing else comes out."""
    draw = random.Random(3)
    result = json.loads((run_copy / "result.json").read_text())["state"]
    names = ["config.yaml", "metrics.jsonl", "result.json", "rounds/0002/global.bin", "evaluation/0002.jsonl"]
    names += [f"rounds/000{n}/{kind}.json" for n in range(3) for kind in ("round", "evaluation")]
    for number, name in enumerate(names):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(run_copy, copy)
        raw = bytearray((copy / name).read_bytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(7)
        (copy / name).write_bytes(bytes(raw))
        try:
            found = resume(copy)
        except FedAgentGymError:
            continue
        assert found.digest == result


def test_export_gives_no_policy_of_a_broken_chain(run_copy: Path, tmp_path: Path) -> None:
    edit_note(run_copy, 1, lambda plain: plain["record"]["metrics"].update(episodes=5.0))
    with pytest.raises(DataError, match="broken at round 2"):
        export_policy(run_copy, tmp_path / "model")
    assert not os.path.lexists(tmp_path / "model")
