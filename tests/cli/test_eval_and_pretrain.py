"""`fedagentgym eval` and `fedagentgym pretrain`, as a person would type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.runs.folder import RANKED
from fedagentgym.testing.runs import SMALL_CONFIG


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["--quiet", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_an_evaluation_is_written_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, "eval", "--env", "Guess", "--agent", "expert", "--tasks", "9")
    assert code == 0 and "success 1.000" in out
    file = tmp_path / "evaluation" / "Guess-v0-val-expert-0" / RANKED
    assert len(file.read_text().splitlines()) == 9
    code, out, _ = command(capsys, "eval", "--env", "Guess", "--check", str(file))
    assert code == 0 and "replays as recorded" in out
    file.write_text(file.read_text().replace('"reward": 1.0', '"reward": 0.5', 1))
    code, _, err = command(capsys, "eval", "--env", "Guess", "--check", str(file))
    assert code == 2 and "does not replay as recorded" in err


def test_the_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(
        capsys, "eval", "--env", "Guess", "--agent", "random", "--tasks", "5", "--repeats", "2", "--json"
    )
    result = json.loads(out)
    assert code == 0 and result["tasks"] == 5 and result["episodes"] == 10
    assert set(result["overall"]["success"]) == {"mean", "low", "high"}


def test_a_tiny_agent_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("pretrain", "tiny", "--env", "Guess", "--set", "steps=5", "--set", "episodes=20")
    code, out, _ = command(capsys, *words)
    assert code == 0 and out.startswith("made ")
    code, out, _ = command(capsys, *words, "--json")
    assert json.loads(out)["reused"] is True
    code, out, _ = command(capsys, "eval", "--env", "Guess", "--tasks", "3", "--temperature", "0", "--json")
    assert code == 0 and json.loads(out)["tasks"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("eval", "--env", "Gues"), "unknown environment 'Gues'"),
        (("eval", "--env", "QA", "--env-set", "size=tiny", "--agent", "tiny"), "pretrain tiny"),
        (("eval", "--env", "Guess", "--env-set", "seed=1", "--agent", "tiny"), "comes with the package"),
        (("pretrain", "tiny"), "--env is missing: name the environment"),
        (("pretrain", "tiny", "--check", "--env", "QA"), "no tiny agent of fedagentgym/QA-v0"),
        (("pretrain", "smollm2", "--check"), "for the tiny agents of the package"),
        (("pretrain", "tiny", "--check", "--ship"), "does nothing beside"),
        (("pretrain", "tiny", "--ship", "--env", "Guess", "--set", "steps=3"), "does nothing beside --ship"),
        (("eval", "--env", "Guess", "--agent", "expret"), "did you mean 'expert'"),
        (("eval", "--env", "Guess", "--agent", "./nowhere"), "nowhere"),
        (("eval", "--env", "Guess", "--agent", "expert", "--split", "tset"), "did you mean 'test'"),
        (("eval", "--env", "Guess", "--agent", "expert", "--agent-set", "contxt=window"), "did you mean 'context'"),
        (("eval", "--env", "Guess", "--agent", "expert", "--env-set", "sed=1"), "did you mean 'seed'"),
        (("eval", "--env", "Guess", "--check", "gone.jsonl"), "gone.jsonl"),
        (("pretrain", "tiny", "--env", "Guess", "--set", "stesp=3"), "did you mean 'steps'"),
        (("pretrain", "tiny", "--env", "Guess", "--set", "size=huge"), "unknown tiny model size"),
        (("pretrain", "tiny", "--env", "Guess", "--set", "context_length=20", "--set", "episodes=2"), "tokens"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    code, _, err = command(capsys, *words)
    assert code == 2 and told in err and "Traceback" not in err


def test_a_run_is_not_evaluated_on_what_its_clients_train_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Other data for the same run: refused where it is a split for evaluation, said where another one is asked for."""
    rows = [{"question": f"What is {number} + {number}?", "answer": 2 * number} for number in range(40)]
    for name, parts in (("own", (rows[:30], rows[30:])), ("other", (rows[30:], rows[:30]))):
        for split, part in zip(("train", "val"), parts, strict=True):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    plain = merge(SMALL_CONFIG, {"env": {"id": "fedagentgym/Math-v0", "options": {"data": str(tmp_path / "own")}}})
    plain = merge(plain, {"partition": {"clients": 2, "tasks_per_client": 10}, "federation": {"clients_per_round": 2}})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merge(plain, {"output": {"folder": str(tmp_path / "run")}})))
    code, _, err = command(capsys, "train", "run.yaml", "--force")
    assert code == 0, err
    other = ("--env-set", f"data={tmp_path / 'other'}")
    code, _, err = command(capsys, "eval", "--run", "run", *other)
    assert code == 2 and "clients train on" in err and "of the split 'val'" in err
    code, out, _ = command(capsys, "eval", "--run", "run", "--split", "train", "--tasks", "30")
    assert code == 0 and "these 30 tasks: this is not success on held-out tasks" in out
    code, out, _ = command(capsys, "eval", "--run", "run", "--split", "train", "--tasks", "30", "--json")
    assert code == 0 and json.loads(out)["seen"] > 0
    code, out, _ = command(capsys, "eval", "--run", "run", "--split", "train", *other, "--tasks", "10")
    assert code == 0 and "held-out" not in out


@pytest.mark.parametrize(
    "line", ["report {}", "resume {}", "export {} --out exported", "eval --run {}"], ids=lambda line: line.split()[0]
)
def test_an_evaluation_is_not_taken_for_a_run(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "eval", "--env", "Guess", "--agent", "random", "--tasks", "2", "--out", "played")
    code, _, said = command(capsys, *line.format("played").split())
    assert code == 2 and "played is an evaluation, not a training run: fedagentgym episodes played" in said
    assert [one.name for one in tmp_path.iterdir()] == ["played"]


def test_another_evaluation_in_a_folder_is_replaced_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for agent, told in (("random", ""), ("random", ""), ("expert", "played holds another evaluation, of random")):
        caplog.clear()
        assert main(["eval", "--env", "Guess", "--agent", agent, "--tasks", "2", "--out", "played"]) == 0
        assert told in caplog.text and bool(told) == bool(caplog.text)


def test_chats_of_a_set_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "eval", "--env", "Guess", "--agent", "random", "--tasks", "2", "--out", "played")
    code, _, said = command(capsys, "chats", "played", "--only", "easy", "--out", "chats.jsonl")
    assert code == 2 and "unknown evaluation set 'easy': known are none" in said and not Path("chats.jsonl").exists()
