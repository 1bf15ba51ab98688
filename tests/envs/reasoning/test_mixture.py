"""Several kinds of question in one world: each is played by the rules of its own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.data_sets import find_data_set
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.envs.reasoning.mixture import MixtureEnv
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.partitions import federate, load_client_split
from fedagentgym.runs.replay import find_difference
from fedagentgym.testing import check_env
from tests.envs.reasoning.published_rows import ROWS, write

MIXTURE = "fedagentgym/Mixture-v0"
TWO_SEEDS = [
    {"name": "first", "env": "Math", "options": {"size": "tiny"}},
    {"name": "second", "env": "fedagentgym/Math-v0", "options": {"size": "tiny", "seed": 1}},
]


def test_it_conforms() -> None:
    check_env("fedagentgym/Mixture-v0", size="tiny", kinds=["math", "qa"])


def test_every_kind_is_played_by_its_own_rules() -> None:
    env = open_env(MixtureEnv, kinds=("math", "qa", "code"), size="tiny")
    for kind, start in zip(("math", "qa", "code"), (0, 3000, 6000), strict=True):
        task = env.pool[start]
        assert task.category == kind and task.id == f"mixture/{kind}/train/00000"
        (episode,) = env.reset_many([task], [0])
        (done,) = env.step_many([episode], [env.expert().act(episode)])
        assert done.view.success and done.view.rewards[f"accuracy/{kind}"] == 1.0
    own, alone = env.pool[5], open_env(MathEnv, size="tiny").pool[5]
    assert own.payload == ("math", alone.payload)


def test_a_client_of_one_kind_knows_one_accuracy() -> None:
    env: Any = gymnasium.make("fedagentgym/Mixture-v0", size="tiny", tasks=["mixture/code/train/00001"]).unwrapped
    assert [name for name in env.reward_names if name.startswith("accuracy")] == ["accuracy/code"]
    assert set(env.reset(seed=0)[1]["rewards"]) == set(env.reward_names)


@pytest.mark.parametrize(
    "options",
    [
        {"kinds": ()},
        {"kinds": ("math", "math")},
        {"kinds": "math"},
        {"kinds": ("moth",)},
        {"kinds": [{"name": "math"}]},
        {"kinds": [["math"]]},
        {"kinds": [3, None]},
        {"kinds": ["math"], "sandbox": {"network": ["none"]}},
        {"kinds": ["qa"], "verifier": "math-verify"},
        {"variant": {}},
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(FedAgentGymError):
        open_env(MixtureEnv, size="tiny", **options)


# ---- named members ------------------------------------------------------------------------------------------------


@pytest.fixture
def members(tmp_path: Path) -> list[dict[str, Any]]:
    """MATH and GSM8K, MedQA and MedMCQA, MBPP with HumanEval's test: files written by hand."""
    rows = {
        "math": ["train.jsonl", *({**ROWS["math"][0], "problem": f"p{n}"} for n in range(8))],
        "gsm8k": ["train.jsonl", *({**ROWS["gsm8k"][0], "question": f"q{n}"} for n in range(4))],
        "medqa": ["train.jsonl", *({**ROWS["medqa"][0], "question": f"q{n}"} for n in range(6))],
        "medmcqa": ["train.jsonl", *({**ROWS["medmcqa"][0], "question": f"q{n}"} for n in range(2))],
        "mbpp": ["train.jsonl", *(ROWS["mbpp"][0],) * 4],
        "humaneval": ["test.jsonl", ROWS["humaneval"][0]],
    }
    envs = {"medqa": "QA", "medmcqa": "qa", "mbpp": "Code", "humaneval": "code"}
    made = []
    for name, (file, *content) in rows.items():
        (tmp_path / name).mkdir()
        data = write(tmp_path / name, str(file), *content)
        options = {"source": name, "data": str(data)}
        made.append({"name": name, "env": envs.get(name, "Math"), "options": options})
    return made


def test_members_of_one_kind_have_ids_categories_and_pools_of_their_own(members: list[dict[str, Any]]) -> None:
    env = open_env(MixtureEnv, members=members)
    assert env.pool.categories == {"math": 8, "gsm8k": 4, "medqa": 6, "medmcqa": 2, "mbpp": 4}
    assert len(set(env.pool.ids)) == len(env.pool) == 24
    assert env.pool.ids[8] == "mixture/gsm8k/train/00000" and env.pool[8].category == "gsm8k"
    hidden = pickle.loads(pickle.dumps(env.pool.without_answers(env.pool.ids[8:])))
    assert [hidden[n].payload[1][1] for n in range(3)] == [(), (), ()] and not hidden[0].graded
    assert env.pool[8].payload[1].answers == ("5",) and env.pool[0].hardness == pytest.approx(0.8)
    assert open_env(MixtureEnv, members=members, split="test").pool.ids == ["mixture/humaneval/test/00000"]
    assert len(open_env(MixtureEnv, members=members, split="all").pool) == 25
    with pytest.raises(DataError, match=r"'val' is empty.*humaneval is a test set"):
        open_env(MixtureEnv, members=members, split="val")
    assert len({open_env(MixtureEnv, members=some).pool.digest for some in (members, members[:2], members[1::-1])}) == 3


def test_every_member_is_played_as_it_is_alone(members: list[dict[str, Any]]) -> None:
    env = open_env(MixtureEnv, members=members, split="all")
    for one in members:
        alone = open_env(env._envs[one["name"]].id, **one["options"], split="all")
        own = [task for task in env.pool if task.category == one["name"]]
        assert len(own) == len(alone.pool)
        for task, single in zip(own, alone.pool, strict=True):
            reply = alone.expert().act(alone.reset_many([single], [3])[0])
            for said in (reply, "<answer> 17 </answer>"):
                (here,) = env.step_many(env.reset_many([task], [3]), [said])
                (there,) = alone.step_many(alone.reset_many([single], [3]), [said])
                assert here.view == there.view and here.reward == there.reward


def test_two_members_of_generated_tasks(tmp_path: Path) -> None:
    check_env(MIXTURE, members=TWO_SEEDS)
    env = open_env(MixtureEnv, members=TWO_SEEDS)
    assert env.pool[0].payload != env.pool[3000].payload and env.pool[3000].id == "mixture/second/train/00000"
    assert env.pool is open_env(MixtureEnv, members=TWO_SEEDS).pool, "pools of generated tasks are shared"
    assert pickle.loads(pickle.dumps(env)).pool.digest == env.pool.digest
    own = open_env(MixtureEnv, members=TWO_SEEDS, categories="own").pool
    assert len(own.categories) == 16 and "second/geometry" in own.categories
    assert own.digest != env.pool.digest


def test_splits_labels_and_files_know_the_members(members: list[dict[str, Any]], tmp_path: Path) -> None:
    made = federate(MIXTURE, partition="by_source", clients=5, env={"members": members[:5]}, seed=1)
    kinds = [{task.category for task in client.pool} for client in made]
    assert kinds == [{"gsm8k"}, {"math"}, {"mbpp"}, {"medmcqa"}, {"medqa"}]
    assert all(result.ok is not False for result in made.verify())
    path = made.save(tmp_path / "split.json")
    assert str(tmp_path) not in path.read_text(), "a split says nothing of where data lies"
    opened = load_client_split(path, env={"members": members[:5]})
    assert opened.digest == made.digest and opened.client(0).tasks == made.client(0).tasks
    env: Any = gymnasium.make(MIXTURE, client_split=path, client=1, members=members[:5]).unwrapped
    assert set(env.pool.ids) == set(made.client(1).tasks)
    with pytest.raises(OptionError, match="would change the tasks of the split, which was made with members"):
        load_client_split(path, env={"members": members[:4]})
    with pytest.raises(FedAgentGymError):
        load_client_split(path)
    halves = federate(
        MIXTURE,
        partition="hardness",
        clients=4,
        env={"members": [{**one, "options": {"train_tasks": 100, "seed": n}} for n, one in enumerate(TWO_SEEDS)]},
        labels="pool",
        tasks_per_client=20,
        mean_solved=10,
        max_solved=20,
        xi=1.0,
    )
    assert all(result.ok is not False for result in halves.verify())
    hostile = json.loads(path.read_text())
    hostile["env"]["options"]["members"] = members[:5]
    (tmp_path / "hostile.json").write_text(json.dumps(hostile))
    with pytest.raises(DataError):
        load_client_split(tmp_path / "hostile.json", env={"members": members[:5]})


def test_members_find_installed_data_by_name(
    members: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "installed"))
    wanted = [{**one, "options": {"source": one["name"], "data": "installed"}} for one in members[:2]]
    with pytest.raises(DataError, match="the member 'math': the data set math is not installed: `fedagentgym data add"):
        open_env(MixtureEnv, members=wanted)
    for one in members[:2]:
        find_data_set(one["name"]).add(Path(one["options"]["data"]))
    made = federate(MIXTURE, partition="uniform", clients=2, tasks_per_client=4, env={"members": wanted})
    path = made.save(tmp_path / "split.json")
    assert load_client_split(path).digest == made.digest, "a split of installed data opens by itself"
    assert made.pool.digest == open_env(MixtureEnv, members=members[:2]).pool.digest


def test_episodes_are_written_and_replayed(members: list[dict[str, Any]], tmp_path: Path) -> None:
    env = open_env(MixtureEnv, members=members)
    from fedagentgym.agents.presets import make_agent

    file = tmp_path / "episodes.jsonl"
    found = evaluate(make_agent("expert"), env, file=file)
    assert found.overall["success"].mean == 1.0 and set(found.categories) == set(env.pool.categories)
    assert [find_difference(env, line.trajectory, None) for line in read_lines(file)] == [None] * len(env.pool)
    assert json.loads(file.read_text().splitlines()[0])["verifier"] == env.get_verifier_version()


def test_what_runs_programs_is_known() -> None:
    coded = [*TWO_SEEDS, {"name": "x", "env": "Code", "options": {"size": "tiny"}}]
    for options, expected in (({"size": "tiny"}, True), ({"kinds": ["code"]}, True), ({"kinds": ["math"]}, False)):
        assert open_env(MIXTURE, **options).runs_programs == expected
    assert open_env(MIXTURE, members=coded).runs_programs and not open_env(MIXTURE, members=TWO_SEEDS).runs_programs


def test_beliefs_and_turns_are_the_members(members: list[dict[str, Any]]) -> None:
    env = open_env(MixtureEnv, members=[*members[:2], {"name": "tools", "env": "Math", "options": {"tools": ["calc"]}}])
    assert env.max_turns == 9
    believed = env.with_belief(env.pool[8], "<answer> 6 </answer>")
    assert believed is not None and believed.payload[1].answers == ("6",) and believed.id == env.pool.ids[8]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "members must be a list"),
        ("math", "members must be a list"),
        (["math"], "has a name, an env and options"),
        ([{"name": "a"}], "has a name, an env and options"),
        ([{"name": "a/b", "env": "Math"}], "letters, digits"),
        ([{"name": "", "env": "Math"}], "letters, digits"),
        ([{"name": 3, "env": "Math"}], "letters, digits"),
        ([{"name": "a", "env": "Maths"}], "unknown environment"),
        ([{"name": "a", "env": None}], "unknown environment"),
        ([{"name": "a", "env": "WebShop"}], "a mixture is made of"),
        ([{"name": "a", "env": "Mixture"}], "a mixture is made of"),
        ([{"name": "a", "env": "Math"}] * 2, "two of the name 'a'"),
        ([{"name": "a", "env": "Math", "source": "gsm8k"}], "'source' is not one of them"),
        ([{"name": "a", "env": "Math", "options": {"split": "val"}}], "takes no 'split' of its own"),
        ([{"name": "a", "env": "Math", "options": {"sauce": 1}}], "the member 'a'.*did you mean 'source'"),
        ([{"name": "a", "env": "Math", "options": {"size": 3}}], "the member 'a'"),
        ([{"name": "a", "env": "Math", "options": ["size"]}], "must be a mapping"),
    ],
)
def test_unusual_members_are_one_sentence(given: Any, said: str) -> None:
    with pytest.raises(FedAgentGymError, match=said) as caught:
        open_env(MixtureEnv, members=given)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    if isinstance(given, list):
        with pytest.raises(FedAgentGymError):
            gymnasium.make(MIXTURE, members=given)


def test_members_and_kinds_exclude_each_other() -> None:
    for option in ({"kinds": ["math"]}, {"size": "tiny"}, {"verifier": "math-verify"}):
        with pytest.raises(OptionError, match="members have options of their own"):
            open_env(MixtureEnv, members=TWO_SEEDS, **option)
    verified = [{**TWO_SEEDS[0], "options": {"size": "tiny", "verifier": "math-verify"}}, TWO_SEEDS[1]]
    versions = open_env(MixtureEnv, members=verified).get_verifier_version().split()
    assert len(versions) == 2 and versions[0].startswith("math-verify-") and versions[1].startswith("exact/")
