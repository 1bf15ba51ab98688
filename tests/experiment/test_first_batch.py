"""Gates before learning: their numbers are those of the episodes, and a run that cannot learn gets the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.agents import make_agent
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.first_batch import FirstBatch, open_environments, play_first_batch
from fedagentgym.experiment.opened import open_data
from fedagentgym.experiment.run import train
from fedagentgym.learning.rollouts import collect
from fedagentgym.testing.runs import SMALL_CONFIG

torch = pytest.importorskip("torch")


def play(agent: str, **options: Any) -> Any:
    env = open_env("fedagentgym/Guess-v0", **options)
    return collect(make_agent(agent, env), env, env.pool.ids[:6], group_size=8).groups


def test_an_agent_that_always_succeeds_has_nothing_to_learn() -> None:
    constant, room, form = FirstBatch(play("expert"), "", {"score": 1.0}, 0.1).gates
    assert (constant.value, room.value, form.value) == (1.0, 0.0, 1.0)
    assert (constant.passed, room.passed, form.passed) == (False, False, True)
    assert "it can do these tasks" in room.describe()
    assert "missed" in constant.describe() and form.describe().endswith("passed")


def test_numbers_are_those_of_the_episodes() -> None:
    groups = play("random", max_turns=3)
    constant, room, _ = FirstBatch(groups, "", {"score": 1.0}, 0.0).gates
    solved = [[episode.success for episode in group] for group in groups]
    assert room.value == pytest.approx(sum(map(any, solved)) / 6 - sum(map(sum, solved)) / 48, abs=0.01)
    ever, once = (float(part.strip("()")) for part in room.name.split()[3:6:2])
    assert room.value == pytest.approx(ever - once), "the difference is that of the numbers beside it"
    assert constant.value == sum(len({round(episode.reward, 9) for episode in group}) == 1 for group in groups) / 6


def test_the_tiny_agent_of_skills_passes_and_the_same_seed_says_the_same() -> None:
    changes = ["learning.group_size=4"]
    batch = play_first_batch(load_config("tiny-skills", changes), tasks=8)
    assert batch.gates == play_first_batch(load_config("tiny-skills", changes), tasks=8).gates
    assert batch.gates[2].passed and batch.fault is None and batch.spread > 0 and batch.parsed == batch.gates[2].value
    assert batch.groups[0][0].turns[0].observation in batch.prompt


def test_where_clients_have_variants_each_plays_its_own() -> None:
    def open_worlds(*changes: str) -> list[tuple[Any, list[str]]]:
        config = load_config("tiny-skills", ["agent={name: expert}", "warm_start=null", *changes])
        runtime = Runtime(config.spec(), client_split=open_data(config)[0])
        return [(env.variant, tasks) for env, tasks in open_environments(config, runtime, 12)]

    ((variant, tasks),) = open_worlds()
    assert variant is None and len(set(tasks)) == 12
    worlds = open_worlds("partition={sampler: uniform, clients: 2, variant: swapped_procedures}")
    assert sorted(variant is None for variant, _ in worlds) == [False, True], "one of two worlds is the unchanged one"
    assert sum(len(tasks) for _, tasks in worlds) == 12


HOPELESS = {
    "no reply that could be read": ["agent.decoding.constrained=false", "agent.decoding.max_new_tokens=4"],
    "no group in which two episodes earned different rewards": ["learning.objectives=[{name: format}]"],
}


@pytest.mark.parametrize("fault", HOPELESS)
def test_a_run_that_has_nothing_to_learn_from_does_not_begin(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence with the keys to change, and nothing written; with --force it begins."""
    changes = [*HOPELESS[fault], f"output.folder={tmp_path / 'run'}"]
    config = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None, "learning": {"format_penalty": 0.0}})
    with pytest.raises(OptionError, match=fault) as raised:
        train(config, changes)
    assert "agent.decoding" in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    assert train(config, changes, force=True).record["rounds"] == 1
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merge(config, {"output": {"folder": str(tmp_path / "other")}})))
    words = [str(tmp_path / "run.yaml"), *(word for change in HOPELESS[fault] for word in ("--set", change))]
    assert main(["-q", "train", *words]) == 2
    capsys.readouterr()
    assert main(["first-batch", *words, "--tasks", "8", "--json"]) == 1
    assert fault in json.loads(capsys.readouterr().out)["fault"]
    assert main(["-q", "train", *words, "--force"]) == 0


def test_the_first_batch_changes_nothing_of_the_run(tmp_path: Path) -> None:
    """Not even the number of threads, on which the last bits depend: it is set when the agent is opened."""
    digests = []
    for force in (True, False):
        torch.set_num_threads(2)
        config = merge(SMALL_CONFIG, {"output": {"folder": str(tmp_path / f"force-{force}")}})
        digests.append(train(config, force=force).digest)
        assert torch.get_num_threads() == 1
    assert digests[0] == digests[1]


def test_the_first_batch_is_shown_with_prompt_reply_and_grade(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first-batch", "tiny-skills", "--tasks", "4"]) in (0, 1)
    shown = capsys.readouterr().out
    for part in ("prompt\n", "reply\n", "grade\n", "batch of 4 tasks x", "variance of rewards", "pass@8"):
        assert part in shown, part


def test_a_methods_own_objectives_are_what_its_clients_learn_from(tmp_path: Path) -> None:
    """The configured objective pays all the same; the length of replies, which FedMOA's clients have, does not."""
    config = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None, "learning": {"format_penalty": 0.0}})
    flat = ["learning.objectives=[{name: format}]"]
    with pytest.raises(OptionError, match="no group in which two episodes earned different rewards"):
        train(config, [*flat, f"output.folder={tmp_path / 'flat'}"])
    own = ["algorithm={name: fedmoa, objectives: [[format, accuracy/guess]]}", f"output.folder={tmp_path / 'own'}"]
    assert train(config, [*flat, *own]).record["rounds"] == 1


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo"])
def test_groups_of_one_have_nothing_to_compare(
    advantage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None})
    changes = ["learning.group_size=1", f"learning.advantage={advantage}", f"output.folder={tmp_path / 'run'}"]
    with pytest.raises(OptionError, match=r"learning\.group_size must be at least 2"):
        train(config, changes)
    assert not (tmp_path / "run").exists()
    assert train(config, changes, force=True).record["spent"]["optimizer_steps"] == 0
    line = ["first-batch", "tiny-skills", "--tasks", "4", "--set", "learning.group_size=1"]
    assert main([*line, "--set", f"learning.advantage={advantage}"]) == 1
    assert "learning.group_size must be at least 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [["learning.advantage=gae"], ["learning.advantage=gigpo"], ["algorithm={name: es, population: 2}"]],
    ids=["values", "turns", "no gradient"],
)
def test_groups_of_one_suffice_without_comparison(changes: list[str], tmp_path: Path) -> None:
    config = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "evaluation": None})
    found = train(config, ["learning.group_size=1", *changes, f"output.folder={tmp_path / 'run'}"])
    assert found.record["rounds"] == 1
