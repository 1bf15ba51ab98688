"""Playing a house in the terminal, saving the story, and playing it again."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from fedagentgym.envs.alfworld.env import ALFWorldEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.transcripts import format_transcript, read_transcript, replay
from fedagentgym.testing import check_env


def test_what_was_played_is_saved_and_can_be_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = tmp_path / "story.txt"
    typed = f"look\nhelp\ngarbage\n:undo\n:save {story}\n:save {tmp_path}\n:quit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    which = ["fedagentgym/ALFWorld-v0", "--env-set", "size=tiny", "--task", "alfworld/train/00003"]
    assert main(["play", *which]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "take a step back" in shown.out and "not recognised" in shown.out
    assert "it is a folder" in shown.out
    read = read_transcript(story.read_text())
    assert read == ("alfworld/train/00003", 0, ("look",))
    assert format_transcript(replay(open_env(ALFWorldEnv, size="tiny"), *read)) == story.read_text()


def test_an_expert_episode_survives_the_way_there_and_back() -> None:
    env = open_env(ALFWorldEnv, size="small", wording="put")
    (episode,), expert, actions = env.reset_many([env.pool.ids[5]], [0]), env.expert(), []
    while not episode.over:
        actions.append(expert.act(episode))
        (episode,) = env.step_many([episode], [actions[-1]])
    text = format_transcript(replay(env, env.pool.ids[5], 0, actions))
    assert text.endswith(f"(solved, {len(actions)} turns, score 1)\n")
    assert read_transcript(text).actions == tuple(actions)


def test_the_environment_conforms_in_every_size_and_wording() -> None:
    for options in (
        {"size": "tiny"},
        {"size": "small", "wording": "put"},
        {"split": "valid_unseen", "reward": "success10"},
    ):
        check_env("fedagentgym/ALFWorld-v0", **options)
