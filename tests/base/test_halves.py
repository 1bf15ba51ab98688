"""Halves of characters (lone surrogates), which JSON can name and UTF-8 cannot hold: refused at the door, or carried whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym import federate, load_client_split, load_config
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, holds_halves, is_clean_text
from fedagentgym.cli.main import main
from fedagentgym.envs.pool import TaskPool
from fedagentgym.learning.trajectory import Trajectory, Turn, format_line, parse_lines, read_lines

HALF = "\ud83d"
ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(12)]

plain = st.recursive(
    st.none() | st.integers() | st.text(st.characters(exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_characters="\0")), inner),
    max_leaves=10,
)


@given(plain)
def test_halves_are_what_no_file_can_hold(value: Any) -> None:
    assert holds_halves(value) != is_clean_text(json.dumps(value, ensure_ascii=False))


def test_values_that_are_deep_or_contain_themselves_are_searched() -> None:
    deep: Any = [HALF]
    for _ in range(5000):
        deep = [deep, {"a": deep}]
    assert holds_halves(deep)
    around: dict[str, Any] = {"a": []}
    around["a"] += [around, around["a"]]
    assert not holds_halves(around)


@pytest.mark.parametrize("field", ["question", "answer", "category", "id", HALF])
def test_rows_that_a_program_gives_hold_none(field: str) -> None:
    rows = [{**row, field: f"{HALF}{number}"} for number, row in enumerate(ROWS)]
    with pytest.raises(FedAgentGymError, match="half of a character"):
        federate("Math", clients=2, env={"data": rows})


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
@pytest.mark.parametrize("field", ["question", "answer", "category", "id"])
def test_rows_of_a_file_hold_none(field: str, name: str, tmp_path: Path) -> None:
    rows = [{**row, field: HALF} for row in ROWS]
    text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="half of a character"):
        federate("Math", clients=2, env={"data": str(tmp_path / name)})


@pytest.mark.parametrize("changed", [{"id": HALF}, {"category": HALF}, {"city": HALF}, {HALF: 1}])
def test_names_and_fields_of_tasks_hold_none(changed: Mapping[str, Any]) -> None:
    with pytest.raises(DataError, match="half of a character"):
        TaskPool.from_records([{"category": "x", "payload": 1, **changed}], env="fedagentgym/Guess-v0")


def test_a_split_of_tasks_whose_content_holds_one_is_saved_and_loaded(tmp_path: Path) -> None:
    records = [{"category": "x", "payload": f"{HALF}{number}"} for number in range(12)]
    pool = TaskPool.from_records(records, env="fedagentgym/Guess-v0")
    split = federate("Guess", pool=pool, clients=3)
    split.save(tmp_path / "split.json")
    assert load_client_split(tmp_path / "split.json", pool=pool).digest == split.digest


@pytest.mark.parametrize("path", ["output.folder", "env.options.data", "agent.model", "name"])
def test_settings_hold_none(path: str) -> None:
    settings: Any = load_config("tiny-skills").plain()
    *sections, last = path.split(".")
    inner = settings
    for section in sections:
        inner = inner[section]
    inner[last] = HALF
    with pytest.raises(OptionError, match="half of a character"):
        load_config(settings)


def test_an_episode_with_a_reply_that_was_cut_is_read_as_it_was(tmp_path: Path) -> None:
    """A record of an agent that cuts an emoji in two can be printed, checked and compared."""
    (tmp_path / "own.py").write_text(
        "from fedagentgym import Agent, register_agent\n\n\nclass Halved(Agent):\n    def reply(self, observation, info):\n"
        "        return 'guess 5 ' + chr(0xD83D)\n\n\nregister_agent('halved', Halved, replace=True)\n"
    )
    place, plugin = str(tmp_path / "played"), ["--plugin", str(tmp_path / "own.py")]
    line = ["eval", "--agent", "halved", "--env", "Guess", "--tasks", "2", "--out", place, *plugin]
    assert main(line) == 0
    (first, *_) = read_lines(tmp_path / "played" / "evaluation" / "ranked.jsonl")
    assert first.trajectory.turns[0].reply == f"guess 5 {HALF}"
    for again in (
        ["eval", "--check", place, *plugin],
        ["episodes", place],
        ["chats", place, "--out", str(tmp_path / "out.jsonl")],
    ):
        assert main(again) == 0, again


@given(st.text(st.characters()), st.text(st.characters()))
def test_lines_of_episodes_carry_every_text(reply: str, seen: str) -> None:
    played = Trajectory("t", 0, (Turn(seen, reply, (reply,), 0.0, True, True),), last=seen)
    (read,) = parse_lines([format_line(played)], "here")
    assert read.trajectory == played
