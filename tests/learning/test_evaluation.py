from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Move
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.streams import Stream
from fedagentgym.cli.main import main
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.view import Episode
from fedagentgym.learning.evaluation import estimate_measures, evaluate, explain_malformed, summarise
from fedagentgym.learning.export import export_conversations, format_episode, to_conversation
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.learning.trajectory import Trajectory, Turn, read_lines

from .test_rollouts import Guesser


@pytest.fixture(scope="module")
def env() -> GuessEnv:
    return open_env(GuessEnv, split="val")


def test_an_evaluation_counts_every_task_and_category(env: GuessEnv) -> None:
    result = evaluate(Guesser(), env, EvaluationSettings(repeats=2), seed=4)
    episodes = [trajectory for group in result.groups for trajectory in group]
    assert result.tasks == len(env.pool) and len(episodes) == 2 * len(env.pool)
    success = result.overall["success"]
    assert success.mean == np.mean([t.success for t in episodes])
    assert success.low < success.mean < success.high
    sizes = env.pool.categories
    weighted = sum(result.categories[name]["success"].mean * sizes[name] for name in sizes) / len(env.pool)
    assert weighted == pytest.approx(success.mean)
    assert json.loads(json.dumps(result.to_plain()))["overall"]["success"]["mean"] == success.mean


def test_an_evaluation_says_what_was_earned_of_each_reward(env: GuessEnv) -> None:
    result = evaluate(Guesser(), env, EvaluationSettings(tasks=9))
    earned = [sum(turn.rewards["accuracy/guess"] for turn in t.turns) for group in result.groups for t in group]
    assert result.overall["reward/accuracy/guess"].mean == pytest.approx(np.mean(earned)) and any(earned)


def test_what_was_written_is_read(env: GuessEnv, tmp_path: Path) -> None:
    file = tmp_path / "0000.jsonl"
    result = evaluate(Guesser(), env, EvaluationSettings(tasks=7), file=file, about={"policy": "sha256:0"})
    lines = list(read_lines(file))
    assert len(lines) == 7 and lines[0].about == {
        "agent": "guesser",
        "env": "fedagentgym/Guess-v0",
        "pool": env.pool.digest,
        "policy": "sha256:0",
    }
    assert [format_episode(line.trajectory) for line in lines] == [format_episode(group[0]) for group in result.groups]


def test_every_episode_names_the_verifier_that_judged_it(tmp_path: Path) -> None:
    class Silent(Guesser):
        def _move(self, stream: Stream, episode: Episode) -> Move:
            return Move("I do not know", "I do not know")

    env, file = open_env(MathEnv, size="tiny", split="val", verifier="math-verify"), tmp_path / "0000.jsonl"
    evaluate(Silent(), env, EvaluationSettings(tasks=2), file=file)
    assert {line.about["verifier"] for line in read_lines(file)} == {env.get_verifier_version()}


def test_an_evaluation_of_nothing_is_an_error() -> None:
    with pytest.raises(OptionError, match="no episodes"):
        summarise([], EvaluationSettings())


def test_export_as_text_and_conversations(env: GuessEnv, tmp_path: Path) -> None:
    result = evaluate(Guesser(), env, EvaluationSettings(tasks=12))
    episodes = [group[0] for group in result.groups]
    text = format_episode(episodes[0])
    assert text.count("    > ") == len(episodes[0].turns) and episodes[0].task in text
    messages = to_conversation(episodes[0])["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * len(episodes[0].turns)
    assert messages[1]["content"] == episodes[0].turns[0].reply
    (tmp_path / "e.jsonl").write_text("")
    assert list(read_lines(tmp_path / "e.jsonl")) == []


def test_files_of_episodes_become_conversations(env: GuessEnv, tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    result = evaluate(Guesser(), env, EvaluationSettings(tasks=12), file=file, about={"set": "a", "round": 3})
    solved = sum(group[0].success for group in result.groups)
    assert 0 < solved < 12
    assert export_conversations(read_lines(file), tmp_path / "all.jsonl") == 12
    assert export_conversations(read_lines(file), tmp_path / "solved.jsonl", solved_only=True, only="a") == solved
    for line, (episode,) in zip((tmp_path / "all.jsonl").read_text().splitlines(), result.groups, strict=True):
        told = json.loads(line)
        assert (told["task"], told["success"], told["round"], told["env"]) == (episode.task, episode.success, 3, env.id)
        system, *said = told["messages"]
        assert system == {"role": "system", "content": f"{env.role}\n\n{env.action_help}"}
        assert [one["content"] for one in said] == [text for t in episode.turns for text in (t.observation, t.reply)]
    with pytest.raises(UnknownNameError, match=r"unknown evaluation set 'b': .*a"):
        export_conversations(read_lines(file), tmp_path / "out.jsonl", only="b")
    assert not (tmp_path / "out.jsonl").exists()


AGENT = make_agent("random")


def make_broken(replies: Sequence[str], broken: int) -> list[tuple[Trajectory, ...]]:
    turns = [
        Turn("what you see", reply, (), 0.0, number >= broken, number >= broken) for number, reply in enumerate(replies)
    ]
    return [(Trajectory("task", 0, tuple(turns)),)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("go to fridge 1", "lack <action>...</action>, such as 'go to fridge 1'"),
        (" \n", "are empty"),
        ("<action>look</action> and then <action>go</action>", "contain more than one action"),
        ("I will <action>look</action>", "do not have the form that the parser requires, such as 'I will"),
        ("x\x1b[31m" * 40, "lack <action>"),
    ],
)
def test_the_commonest_reason_is_told_with_an_example(reply: str, reason: str) -> None:
    told = explain_malformed(make_broken([reply] * 19 + ["fine"], 19), AGENT)
    assert told is not None and told.startswith("95% of replies are malformed: most") and reason in told
    assert "\n" not in told and "\x1b" not in told and len(told) < 250


def test_nothing_is_said_of_fewer() -> None:
    assert explain_malformed(make_broken(["a"] * 10, 9), AGENT) is None
    assert explain_malformed(make_broken([], 0), AGENT) is None


def test_a_name_is_evaluated_on_the_split_of_the_command(tmp_path: Path) -> None:
    """Without a word about it that is `val`, in Python as by `fedagentgym eval`; an opened environment keeps its own."""
    (group,) = evaluate("expert", "Guess", tasks=1).groups
    assert main(["eval", "--env", "Guess", "--agent", "expert", "--tasks", "1", "--out", str(tmp_path / "played")]) == 0
    (line,) = read_lines(tmp_path / "played" / "evaluation" / "ranked.jsonl")
    assert group[0].task == line.trajectory.task == "guess/val/00000"
    (group,) = evaluate("expert", "Guess", {"tasks": 1}, split="test").groups
    assert group[0].task.startswith("guess/test/")
    trained = open_env(GuessEnv)
    assert evaluate("expert", trained, EvaluationSettings(tasks=1)).groups[0][0].task.startswith("guess/train/")
    with pytest.raises(OptionError, match="opened with the split 'train': leave out split="):
        evaluate("expert", trained, tasks=1, split="test")


def test_no_interval_has_an_end_that_its_measure_cannot_have() -> None:
    names = ["success", "turns", "tokens", "reward/speed"]
    values = np.array([[1.0, 1.0, 2.0, -3.0], [0.0, 3.0, 40.0, 1.0]])
    found = estimate_measures(names, [values])
    assert found["turns"].low == found["tokens"].low == 0.0 and found["turns"].mean == 2.0
    assert found["turns"].high == pytest.approx(14.706, abs=1e-3)
    assert 0.0 <= found["success"].low <= found["success"].high <= 1.0
    assert found["reward/speed"].low < -1.0
