"""FedGRPO whose clients have models of another kind than the server's, and who may check against gold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.experts import make_task_records, score_by_replay
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import derive
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Message
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import SiteState, get_trainable_policy
from fedagentgym.testing import check_algorithm

from .fixed_models import BARE, LAID_OUT, make_fixed_model

ADAPTER = {"adapter": {"rank": 2, "alpha": 4.0}, "dtype": "float32"}
SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Math-v0", "options": {"size": "tiny"}},
    "rounds": 2,
    "learning": {"tasks_per_step": 3, "group_size": 8, "learning_rate": 1e-3},
    "partition": {"clients": 3, "tasks_per_client": 20, "roles": {"auxiliary": 6, "server": 30}},
    "algorithm": {"name": "fedgrpo", "neighbours": 3},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    where = tmp_path_factory.mktemp("fixed_models")
    return {kind: make_fixed_model(where / kind, kind) for kind in ("qwen2", "llama")}


def use_model(folder: str, **more: Any) -> dict[str, Any]:
    return {"name": "transformers", "model": folder, "decoding": {"max_new_tokens": 2}, **more}


def make(folders: dict[str, str], own: bool = True, bench: Any = None, **settings: Any) -> Any:
    expert = {"expert_agent": use_model(folders["llama"])} if own else {}
    changes = {"agent": use_model(folders["qwen2"]), "algorithm": {**expert, **settings}}
    spec = ExperimentSpec.load(merge(merge(SPEC, changes), bench or {}))
    return make_algorithm(spec, Runtime(spec))


def run(folder: Path, algorithm: Any, rounds: int = 1) -> Commit:
    plan = ServerConfig(folder, 0, FederationSettings(rounds=rounds))
    return run_rounds(algorithm, SequentialBackend(algorithm, folder / "states"), plan).commit


def context(algorithm: Any, client: int = 0) -> ClientContext[Any]:
    return ClientContext(client, 1, 0, client, algorithm.resources(client))


def question(algorithm: Any, position: int, replies: list[str]) -> dict[str, Any]:
    """A question that client 0 does not hold, with one candidate for each of these replies."""
    task = algorithm.questions.pool[position]
    (record,) = make_task_records(algorithm.questions, [task.id])
    candidates = [{"actions": [reply], "seed": 7, "replies": [reply], "ended": [True]} for reply in replies]
    return {"task": record, "candidates": candidates}


# ---- another architecture and tokenizer ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, ADAPTER], ids=["all weights", "adapter"])
@pytest.mark.parametrize("steps", [0, 1])
def test_experts_answers_are_those_of_the_expert_run_alone(
    folders: dict[str, str], how: dict[str, Any], steps: int
) -> None:
    expert = use_model(folders["llama"], **how)
    learning = {"objectives": [{"name": "tags"}], "learning_rate": 0.05}  # what a random model can learn something from
    algorithm = make(folders, expert_agent=expert, expert_steps=1, expert_learning=learning, answers="off")
    prepare = Message(text={"auxiliary": make_task_records(algorithm.auxiliary)}, control={"steps": steps})
    state, told = algorithm.train_expert(Message(), prepare, context(algorithm))
    questions = [question(algorithm, position, [*BARE[:10], "no answer"]) for position in range(8)]
    _, scored = algorithm.score(state, Message(text={"questions": questions}), context(algorithm))
    algorithm.runtime.resident.load(algorithm.runtime.initial_weights)  # the server's model is another one

    alone: Any = make_agent(AgentSettings.load(expert), algorithm.runtime.env, seed=derive(0, "expert agent"))
    trained = {name: np.array(value) for name, value in state.sets.get("expert", {}).items()}
    assert bool(trained) == bool(steps)
    if trained:
        before = get_trainable_policy(alone).get_weights()
        assert any(not np.array_equal(before[name], value) for name, value in trained.items())
        get_trainable_policy(alone).set_weights(trained)
    env = algorithm.runtime.open_env(pool=algorithm.questions.pool.subset(algorithm.questions.pool.ids[:8]))
    played = collect(alone, env, list(env.pool.ids), seed=context(algorithm).derive("answer")).groups
    expected = []
    for each, (own,) in zip(questions, played, strict=True):
        task = env.with_belief(env.pool[each["task"]["id"]], own.turns[-1].reply)
        rows = [0.0] * 11 if task is None else [score_by_replay(env, task, one) for one in each["candidates"]]
        expected.append(rows)
    assert scored.scores["scores"].tolist() == expected
    assert 0 < np.sum(expected) <= 8, "some expert gives an answer, and no two candidates agree with it"
    marks = collect(
        alone, algorithm.auxiliary, list(algorithm.auxiliary.pool.ids), seed=context(algorithm).derive("auxiliary")
    )
    assert np.unpackbits(told.scores["right"], count=6).astype(bool).tolist() == [g[0].success for g in marks.groups]


@pytest.mark.parametrize("how", [{}, ADAPTER], ids=["all weights", "adapter"])
def test_likelihoods_are_those_of_the_expert_run_alone(folders: dict[str, str], how: dict[str, Any]) -> None:
    """Prompted and encoded by hand, one plain forward pass."""
    expert = use_model(folders["llama"], **how, system="Score .", request="Problem: {observation}")
    algorithm = make(folders, expert_agent=expert, scorer="reward_model", answers="off")
    replies = [*BARE[:3], "a longer reply, of many tokens", LAID_OUT[4]]
    asked = question(algorithm, 0, replies)
    asked["candidates"][3]["ended"] = [False]
    _, scored = algorithm.score(Message(), Message(text={"questions": [asked]}), context(algorithm))

    policy = TorchPolicy.load(folders["llama"])
    tokenizer = policy.tokenizer
    observation = algorithm.questions.reset_many([asked["task"]["id"]], [0])[0].view.observation
    prompt = list(tokenizer.encode(f"Score .\n\nProblem: {observation}"))
    expected = []
    for number, reply in enumerate(replies):
        said = [*tokenizer.encode(reply), *([tokenizer.hf.eos_token_id] if number != 3 else [])]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + said])).logits[0].double()
        steps = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        expected.append(float(steps.gather(1, torch.tensor(said)[:, None]).mean().exp()))
    assert scored.scores["scores"][0].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_candidate_too_long_for_the_expert_is_a_hole(folders: dict[str, str]) -> None:
    expert = use_model(folders["llama"], context_length=400)
    algorithm = make(folders, expert_agent=expert, scorer="reward_model", answers="off")
    asked = question(algorithm, 0, ["x" * 500, BARE[0]])
    _, scored = algorithm.score(Message(), Message(text={"questions": [asked]}), context(algorithm))
    assert np.isnan(scored.scores["scores"][0]).tolist() == [True, False]
    for broken in ({"replies": ["a", "b"]}, {"ended": None}):
        asked["candidates"] = [{"actions": ["a"], "replies": ["a"], "ended": [True], "seed": 1, **broken}]
        with pytest.raises(DataError, match="candidate"):
            algorithm.score(Message(), Message(text={"questions": [asked]}), context(algorithm))


@pytest.mark.parametrize("scorer", ["self_answer", "reward_model"])
def test_a_clients_process_never_loads_the_servers_model(folders: dict[str, str], scorer: str) -> None:
    algorithm = make(folders, scorer=scorer, answers="off")
    assert set(algorithm.operations) == {"prepare", "score"}
    prepare = Message(text={"auxiliary": make_task_records(algorithm.auxiliary)}, control={"steps": 0})
    algorithm.train_expert(Message(), prepare, context(algorithm))
    algorithm.score(Message(), Message(text={"questions": [question(algorithm, 0, ["a"])]}), context(algorithm))
    assert "resident" not in vars(algorithm.runtime) and "expert_model" in vars(algorithm)


@pytest.mark.parametrize(
    ("scorer", "workers"),
    [("self_answer", 0), ("reward_model", 0), pytest.param("reward_model", 1, marks=pytest.mark.slow)],
)
def test_a_whole_run_with_experts_of_their_own(folders: dict[str, str], scorer: str, workers: int) -> None:
    """Twice alike, resumed alike, in worker processes alike; the server's policy learns from what they say."""
    config = {**{key: SPEC[key] for key in ("env", "partition")}, "agent": use_model(folders["qwen2"])}
    config["learning"] = {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3}
    expert = use_model(folders["llama"], **ADAPTER)
    found = check_algorithm(
        "fedgrpo",
        config=config,
        workers=workers,
        expert_agent=expert,
        scorer=scorer,
        neighbours=3,
        expert_steps=1,
        expert_refresh=1,
        answers="holders_first",
    )
    assert not found.record["failures"]


# ---- who may check against gold -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("std", "experts"), [("population", 3), ("none", 2), ("sample", 1)])
def test_if_all_experts_know_all_answers_fedgrpo_is_central_grpo(
    folders: dict[str, str], tmp_path: Path, std: str, experts: int
) -> None:
    """The same candidates, the same reward (8 x score + format, the objectives of its baselines), to 1e-6.

    M equal rows change neither mean nor population deviation; the sample deviation is the same for one expert.
    """
    reward = {"objectives": [{"name": "score", "weight": 8}, {"name": "format", "weight": 1}]}
    learning = {"tasks_per_step": 6, "group_size": 16, **reward}
    short = {"agent": {"decoding": {"max_new_tokens": 1}}}
    algorithm = make(folders, own=False, bench={"learning": learning, **short}, answers="all", std=std, experts=experts)
    fed = run(tmp_path, algorithm)
    runtime = algorithm.runtime
    held = runtime.open_env(pool=runtime.client_split.pool.subset(algorithm.questions.pool.ids))
    advantage = {"name": "dr_grpo"} if std == "none" else {"name": "grpo", "std": std}
    central = LearningSettings.load({**SPEC["learning"], **learning, "advantage": advantage})
    local = LocalTraining(runtime.agent, held, central)
    local.load_state(SiteState(runtime.initial_weights))
    groups = local.collect_groups(derive(0, "server", 1, "play"))
    assert {trajectory.score for group in groups for trajectory in group} == {0.0, 1.0}
    assert {trajectory.turns[0].rewards["format"] for group in groups for trajectory in group} == {0.0, 1.0}
    local.update(groups)
    after = local.get_state().weights
    assert max(float(np.abs(after[name] - value).max()) for name, value in runtime.initial_weights.items()) > 1e-4
    for name, value in after.items():
        assert np.abs(value - np.asarray(fed.state.parameters[name])).max() < 1e-6
    assert fed.record["metrics"]["scores/missing"] == 0.0


def select(algorithm: Any, folder: Path) -> tuple[list[str], list[list[int]], list[set[int]]]:
    """Every question of the server, the experts that would be asked, and who holds it."""
    commit = run(folder, algorithm, rounds=0)
    questions = list(algorithm.questions.pool.ids)

    class AnyRound:
        seed, number = 0, 1

        class clients:
            ids = (0, 1, 2)

    split = algorithm.runtime.client_split
    holders = [{k for k in range(3) if task in split.client(k).tasks} for task in questions]
    return questions, algorithm.select_experts(questions, commit.state, AnyRound()), holders


@pytest.mark.parametrize("selection", ["competence", "random"])
def test_holders_are_asked_first_where_that_is_wanted(folders: dict[str, str], tmp_path: Path, selection: str) -> None:
    some = {"partition": {"server_overlap": 0.5}}
    first = make(folders, bench=some, answers="holders_first", selection=selection, experts=1)
    _, chosen, holders = select(first, tmp_path / "first")
    assert sum(not held for held in holders) == 15
    assert all(set(experts) <= held for experts, held in zip(chosen, holders, strict=True) if held)
    assert all(len(experts) == 1 for experts in chosen)
    own = make(folders, bench=some, answers="own", selection=selection, experts=1)
    _, blind, _ = select(own, tmp_path / "own")
    hit = sum(bool(set(experts) & held) for experts, held in zip(blind, holders, strict=True))
    assert hit < 12, "without a report of holders, the server finds one by chance"


def test_where_all_check_and_anybody_is_asked_no_client_is_prepared(folders: dict[str, str], tmp_path: Path) -> None:
    """The published code's way: nothing is trained or answered before round 1."""
    algorithm = make(folders, own=False, answers="all", selection="random", aggregate="split", std="none")
    commit = run(tmp_path, algorithm)
    up = commit.record["bytes_total"]["up"]
    assert up["scores"] == 3 * 2 * 8 * 4 and commit.record["metrics"]["scores/missing"] == 0.0


# ---- what a round costs -------------------------------------------------------------------------------------------


def test_no_model_is_copied_for_a_question(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[int, list[int]] = {}
    embedded: list[str] = []
    moves: list[str] = []
    for name in ("get_weights", "set_weights"):
        honest = getattr(TorchPolicy, name)

        def counted(self: TorchPolicy, *arguments: Any, _honest: Any = honest, _name: str = name) -> Any:
            moves.append(_name)
            return _honest(self, *arguments)

        monkeypatch.setattr(TorchPolicy, name, counted)
    import fedagentgym.learning.forward as embedding

    plain = embedding.embed
    monkeypatch.setattr(embedding, "embed", lambda policy, texts: embedded.extend(texts) or plain(policy, texts))
    for tasks in (2, 6):
        moves.clear()
        embedded.clear()
        algorithm = make(folders, bench={"learning": {"tasks_per_step": tasks}}, experts=3, answers="off")
        run(tmp_path / str(tasks), algorithm, rounds=3)
        counts[tasks] = [moves.count("get_weights"), moves.count("set_weights")]
        assert len(embedded) == len(set(embedded)) >= 6 + tasks, "no text is embedded twice"
    assert counts[2] == counts[6]


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "learning", "told"),
    [
        ({"answers": "all", "scorer": "reward_model"}, {}, "leave out scorer"),
        ({"answers": "all", "selection": "random", "expert_agent": "tiny"}, {}, "leave out expert_agent"),
        ({"answers": "all", "selection": "random", "expert_steps": 1}, {}, "leave out expert_steps"),
        ({"answers": "some"}, {}, "answers"),
        ({"expert_learning": {"learning_rate": 1e-3}}, {}, "set expert_steps"),
        ({"expert_steps": 1, "expert_learning": {"rate": 1e-3}}, {}, "unknown key 'algorithm.expert_learning.rate'"),
        ({"expert_agent": {"name": "tiny", "modell": "x"}}, {}, "did you mean 'model'"),
        ({}, {"keep_optimizer": True}, "leave out learning.keep_optimizer"),
        ({}, {"advantage": "dr_grpo"}, "leave out learning.advantage"),
        ({}, {"objectives": [{"name": "score", "weight": 2}]}, "make them agree"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(
    folders: dict[str, str], settings: dict[str, Any], learning: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        make(folders, own=False, bench={"learning": learning}, **settings)


def test_a_bare_off_is_read_as_it_is_meant(folders: dict[str, str]) -> None:
    from fedagentgym.experiment.config import load_config

    plain = {"env": SPEC["env"], "partition": SPEC["partition"], "algorithm": SPEC["algorithm"]}
    said = {
        value: load_config(plain, [f"algorithm.answers={value}"]).algorithm["answers"]
        for value in ("off", "true", "all")
    }
    assert said == {"off": "off", "true": "own", "all": "all"}


def test_experts_without_weights_of_their_own_are_refused(folders: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="cannot be trained"):
        _ = make(folders, own=False, expert_agent="random").expert_model
