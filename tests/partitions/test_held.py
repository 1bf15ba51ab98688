"""Tasks of a client written to a folder, and opened again where the client is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym import federate
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import ENVIRONMENTS, TaskPool, TextEnv, View
from fedagentgym.envs.pool import represent
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.held import choose_held_out, export_client, open_held
from fedagentgym.partitions.verification import read_questions

NO_SIZES = ("fedagentgym/Guess-v0", "fedagentgym/Own-v0", "fedagentgym/Skills-v0")
SHIPPED = [name for name in ENVIRONMENTS.names() if name.startswith("fedagentgym/") and "ReasoningGym" not in name]


def split_of(env_id: str, **more: Any) -> ClientSplit:
    options = {} if env_id in NO_SIZES else {"size": "tiny"}
    return federate(env_id, clients=3, tasks_per_client=12, seed=1, env=options, **more)


@pytest.mark.parametrize("env_id", SHIPPED)
def test_an_exported_client_plays_the_same_episodes(env_id: str, tmp_path: Path) -> None:
    client = split_of(env_id)[1]
    held = open_held(export_client(client, tmp_path / "client"))
    there, here = client.open_env(), held.env
    assert list(here.pool) == list(there.pool) and here.max_turns == there.max_turns
    ids = list(there.pool.ids)
    assert [one.view for one in here.reset_many(ids, [3] * 12)] == [one.view for one in there.reset_many(ids, [3] * 12)]
    assert held.held_out is None and held.settings.client == 1


def test_a_variant_and_a_changed_number_of_turns_are_exported(tmp_path: Path) -> None:
    split = federate(
        "fedagentgym/WebShop-v0",
        clients=2,
        tasks_per_client=4,
        variant="lookalikes",
        env={"size": "tiny", "max_turns": 9},
    )
    held = open_held(export_client(split[1], tmp_path / "client"))
    assert held.env.max_turns == 9 and held.env.variant == split[1].open_env().variant is not None


def test_tasks_are_held_back_by_their_ids(tmp_path: Path) -> None:
    folder = export_client(split_of("fedagentgym/Guess-v0")[0], tmp_path / "client")
    file = folder / "client.yaml"
    before = open_held(folder)
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "held_out": 0.25}))
    held = open_held(folder)
    assert held.held_out is not None and len(held.held_out.pool) == 3 and held.digest != before.digest
    assert set(held.env.pool.ids) | set(held.held_out.pool.ids) == set(before.env.pool.ids)
    assert not set(held.env.pool.ids) & set(held.held_out.pool.ids)
    assert choose_held_out(before.env.pool.ids[:11], 0.25) <= choose_held_out(before.env.pool.ids, 0.5)
    with pytest.raises(DataError, match="none to hold out"):
        choose_held_out(["one"], 0.5)


@pytest.mark.parametrize("env", ["fedagentgym/Math-v0", "fedagentgym/Guess-v0"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.95])
def test_a_task_and_its_double_are_on_one_side(env: str, share: float, tmp_path: Path) -> None:
    """By the text of a question, in which blanks do not count, or by its payload."""
    described: dict[str, Any] = {"client": 0, "env": {"id": env}, "held_out": share}
    if "Math" in env:
        asked = [f"What is {number % 13} + {number % 13}?{' ' * (number // 13)}" for number in range(30)]
        lines = [json.dumps({"question": text, "answer": 2 * (place % 13)}) for place, text in enumerate(asked)]
        described["env"]["options"] = {"data": "questions.jsonl"}
        (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    (tmp_path / "client.yaml").write_text(yaml.safe_dump(described))
    held = open_held(tmp_path)
    assert held.held_out is not None
    texts = [
        {
            read_questions(part, name, 1) if "Math" in env else represent(part.pool[name].payload)
            for name in part.pool.ids
        }
        for part in (held.env, held.held_out)
    ]
    assert texts[0] and texts[1] and not texts[0] & texts[1]
    whole = len(held.env.pool) + len(held.held_out.pool)
    assert abs(len(held.held_out.pool) - share * whole) < whole / 10


def test_tasks_that_are_all_the_same_are_not_divided(tmp_path: Path) -> None:
    (tmp_path / "same.jsonl").write_text('{"question": "What is 1 + 1?", "answer": 2}\n' * 9)
    described = {"client": 0, "env": {"id": "fedagentgym/Math-v0", "options": {"data": "same.jsonl"}}, "held_out": 0.5}
    (tmp_path / "client.yaml").write_text(yaml.safe_dump(described))
    with pytest.raises(DataError, match="the 9 tasks of the client are all the same task"):
        open_held(tmp_path)


def test_a_changed_task_changes_the_digest_and_a_bad_one_is_named(tmp_path: Path) -> None:
    folder = export_client(split_of("fedagentgym/Guess-v0")[0], tmp_path / "client")
    before = open_held(folder).digest
    lines = (folder / "tasks.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    (folder / "tasks.jsonl").write_text(
        "\n".join([json.dumps({**row, "payload": {**row["payload"], "number": 2}}), *lines[1:]])
    )
    assert open_held(folder).digest != before
    for bad, says in [
        ({"payload": 1}, "line 2: a task is a mapping"),
        ({**row, "payload": {"high": "x"}}, "line 2: a payload"),
    ]:
        (folder / "tasks.jsonl").write_text("\n".join([lines[1], json.dumps(bad)]))
        with pytest.raises(DataError, match=says):
            open_held(folder)


@dataclass(frozen=True)
class Riddle:
    text: str


class RiddleEnv(TextEnv):
    id = "test/Riddle-v0"
    role, action_help = "You solve.", "anything"

    def load_pool(self, split: str) -> TaskPool:
        rows = [{"category": "a", "payload": Riddle(str(number))} for number in range(4)]
        return TaskPool.from_records(rows, env=self.id, split=split)

    def begin(self, task: Any, seed: int) -> tuple[Any, View]:
        return None, View(observation=task.payload.text)


def test_an_environment_of_ones_own_names_the_type_of_its_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedagentgym.register_env("test/Riddle-v0", RiddleEnv, replace=True)
    split = federate("test/Riddle-v0", clients=2)
    with pytest.raises(OptionError, match="payload_type"):
        export_client(split[0], tmp_path / "none")
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(RiddleEnv, "payload_type", Riddle)
    assert list(open_held(export_client(split[0], tmp_path / "own")).env.pool) == list(split[0].pool)


def test_the_command_writes_one_client_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(split_of("fedagentgym/Guess-v0").save(tmp_path / "split.json"))
    assert main(["split", "export", file, "--client", "2", "--out", str(tmp_path / "one")]) == 0
    assert main(["split", "export", file, "--all", "--out", str(tmp_path / "all")]) == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["client-0", "client-1", "client-2"]
    same = [(tmp_path / place / "tasks.jsonl").read_text() for place in ("one", "all/client-2")]
    assert same[0] == same[1] and "12 tasks of `fedagentgym/Guess-v0`" in (tmp_path / "one/README.md").read_text()
    assert main(["split", "export", file, "--out", str(tmp_path / "two")]) == 2
    assert main(["split", "export", file, "--client", "2", "--out", str(tmp_path / "one")]) == 2
    assert main(["split", "export", file, "--client", "7", "--out", str(tmp_path / "two")]) == 2
    assert not (tmp_path / "two").exists() and "exists already" in capsys.readouterr().err
