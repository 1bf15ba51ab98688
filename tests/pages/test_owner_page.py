"""The page of an owner of tasks: its sentence says which rounds are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.pages.owner import write_owner_page

from .runs import CATEGORIES, make_episode, write_episodes


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        ((0, 2), "50 % of the held-out tasks were solved before training, 100 % after round 2."),
        ((0,), "50 % of the held-out tasks were solved before training."),
        ((3, 12), "50 % of the held-out tasks were solved after round 3, 100 % after round 12."),
        ((3,), "50 % of the held-out tasks were solved after round 3."),
    ],
)
def test_the_sentence_names_the_rounds_that_are_there(rounds: tuple[int, ...], sentence: str, tmp_path: Path) -> None:
    for place, number in enumerate(rounds):
        episodes = [make_episode(task, "", CATEGORIES, solved=place > 0 or task % 2 == 0) for task in range(4)]
        write_episodes(tmp_path / f"{number:04d}.jsonl", episodes)
    (tmp_path / "notes.jsonl").write_text("{}\n")
    assert write_owner_page(tmp_path, tmp_path / "report.html") == sentence


def test_other_files_are_no_evaluations(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="holds no evaluations of a client"):
        write_owner_page(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
