"""A client that fails, under each method: defined, survived, and written in the run's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.card import Work
from fedagentgym.algorithms.experts import Scorer
from fedagentgym.algorithms.fedagent import FedAgent
from fedagentgym.algorithms.reports import Report, read_report
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.settings import merge
from fedagentgym.federation.algorithm import Failure, FederationSettings, QuorumError
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit, CommitStore, read_chain
from fedagentgym.federation.exchange import ClientContext, Reply, Request
from fedagentgym.federation.message import Message
from fedagentgym.federation.records import count_episodes
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.trajectory import Trajectory, parse_lines, to_plain

SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6}},
    "rounds": 2,
    "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8, "auxiliary": 8, "server": 8}},
}
JUDGES = {"name": "fedgrpo", "experts": 3, "neighbours": 3, "scorer": "reward_model"}
SWAPS = {"name": "pubswap", "local_steps": 1, "swap_period": 1, "public_tasks": 2, "swap": "random"}
WEIGHS = {"name": "fedmoa", "local_steps": 1, "objectives": [["accuracy", "length"]]}
Place = tuple[int, str, int]
Fault = Callable[[Any], Any]


class Disturbed(SequentialBackend):
    """The sequential backend, where at (round, operation, client) a request or a reply is changed on its way, or nobody
    is there."""

    def __init__(self, application: Any, folder: Path, faults: Mapping[Place, Fault | str]) -> None:
        super().__init__(application, folder)
        self._faults = faults

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        return [self._disturbed(request, deadline) for request in requests]

    def _disturbed(self, request: Request, deadline: float | None) -> Reply:
        fault = self._faults.get((request.name.round, request.operation, request.client))
        if fault == "dead":
            return Reply(request.client, "dead", error="the worker died")
        if fault is not None and fault.__name__.startswith("asked"):
            request = replace(request, message=fault(Message.decode(request.message)).encoded)
        (reply,) = super().run([request], deadline)
        if fault is not None and fault.__name__.startswith("answered"):
            reply = replace(reply, message=fault(Message.decode(reply.message)).encoded)
        return reply


def make(algorithm: Mapping[str, Any], bench: Mapping[str, Any] | None = None) -> Any:
    loaded = ExperimentSpec.load({**merge(SPEC, bench or {}), "algorithm": algorithm})
    return make_algorithm(loaded, Runtime(loaded))


def go(
    folder: Path,
    algorithm: Mapping[str, Any],
    faults: Mapping[Place, Fault | str] | None = None,
    *,
    rounds: int = 1,
    quorum: float | int = 1,
    bench: Mapping[str, Any] | None = None,
) -> Commit:
    built = make(algorithm, bench)
    backend = Disturbed(built, folder / "states", faults or {})
    return run_rounds(built, backend, ServerConfig(folder, 0, FederationSettings(rounds=rounds, quorum=quorum))).commit


def failures(commit: Commit) -> list[tuple[str, int, str]]:
    return [(failure["operation"], failure["client"], failure["reason"]) for failure in commit.record["failures"]]


def theta(commit: Commit) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in commit.state.parameters.items() if "exp_avg" not in name}


# ---- averages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "operation"),
    [({"name": "fedagent", "local_steps": 1}, "train"), (WEIGHS, "train"), (SWAPS, "generate")],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_a_round_without_replies_changes_nothing(tmp_path: Path, algorithm: dict[str, Any], operation: str) -> None:
    gone: dict[Place, Fault | str] = {(1, operation, client): "dead" for client in range(3)}
    commit = go(tmp_path / "none", algorithm, gone, quorum=0)
    start = go(tmp_path / "start", algorithm, rounds=0)
    assert failures(commit) == [(operation, client, "dead") for client in range(3)]
    assert all(np.array_equal(value, theta(commit)[name]) for name, value in theta(start).items())
    after = go(tmp_path / "after", algorithm, gone, quorum=0, rounds=2)
    assert any(not np.array_equal(value, theta(after)[name]) for name, value in theta(start).items())
    with pytest.raises(QuorumError, match="0 of 3 clients answered"):
        go(tmp_path / "quorum", algorithm, gone)


# ---- FedGRPO ------------------------------------------------------------------------------------------------------


def test_an_expert_that_fails_in_mid_question_leaves_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had scored one question already: nothing of a failed call is used."""
    honest, asked = Scorer.score_candidates, []

    def scores(self: Scorer, *arguments: Any) -> list[float]:
        asked.append(self._site.client)
        if self._site.client == 1 and asked.count(1) == 2:
            raise RuntimeError("out of memory")
        return honest(self, *arguments)

    monkeypatch.setattr(Scorer, "score_candidates", scores)
    commit = go(tmp_path, JUDGES)
    assert failures(commit) == [("score", 1, "error")]
    assert "out of memory" in commit.record["failures"][0]["message"]
    assert commit.record["metrics"]["scores/missing"] == pytest.approx(1 / 3)
    assert commit.record["metrics"]["questions/skipped"] == 0.0
    assert {client: told["scores/missing"] for client, told in commit.record["clients"].items()} == {
        "0": 0.0,
        "1": 1.0,
        "2": 0.0,
    }
    assert all(told["questions"] == 2.0 for told in commit.record["clients"].values())


def answered_fewer(answer: Message) -> Message:
    return Message(scores={"scores": np.array(answer.scores["scores"][:1])})


def answered_beyond(answer: Message) -> Message:
    return Message(scores={"scores": np.full_like(answer.scores["scores"], 1e6)})


def answered_infinity(answer: Message) -> Message:
    return Message(scores={"scores": np.full_like(answer.scores["scores"], np.inf)})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (answered_fewer, "scored 1 of 2 questions"),
        (answered_beyond, "between 0 and 1 or NaN, got 1e+06"),
        (answered_infinity, "between 0 and 1 or NaN, got inf"),
    ],
)
def test_what_is_no_score_is_refused_and_said(tmp_path: Path, fault: Fault, said: str) -> None:
    commit = go(tmp_path, JUDGES, {(1, "score", 2): fault})
    assert failures(commit) == [("score", 2, "refused")]
    assert said in commit.record["failures"][0]["message"]
    assert commit.record["metrics"]["scores/missing"] == pytest.approx(1 / 3)
    assert 0.0 <= commit.record["metrics"]["scores/mean"] <= 1.0


def answered_one_hole(answer: Message) -> Message:
    scores = np.array(answer.scores["scores"])
    scores[1] = np.nan
    return Message(scores={"scores": scores})


def test_an_expert_may_have_no_opinion(tmp_path: Path) -> None:
    commit = go(tmp_path, JUDGES, {(1, "score", 0): answered_one_hole})
    assert commit.record["failures"] == []
    assert commit.record["clients"]["0"]["scores/missing"] == 0.5
    assert commit.record["metrics"]["scores/missing"] == pytest.approx(1 / 6)


def asked_of_nowhere(message: Message) -> Message:
    questions = [{**question, "task": {"id": "guess/train/99999"}} for question in message.text["questions"]]
    return Message(text={"questions": questions})


def test_a_task_that_does_not_exist_is_an_error_and_no_score(tmp_path: Path) -> None:
    commit = go(tmp_path, JUDGES, {(1, "score", 1): asked_of_nowhere})
    assert failures(commit) == [("score", 1, "error")]
    assert "guess/train/99999" in commit.record["failures"][0]["message"]


def test_questions_without_scores_teach_nothing(tmp_path: Path) -> None:
    gone: dict[Place, Fault | str] = {(1, "score", client): "dead" for client in range(3)}
    commit = go(tmp_path / "none", JUDGES, gone, quorum=0)
    start = go(tmp_path / "start", JUDGES, rounds=0)
    assert commit.record["metrics"]["questions/skipped"] == 2.0
    assert commit.record["metrics"]["scores/missing"] == 1.0
    assert all(np.array_equal(value, theta(commit)[name]) for name, value in theta(start).items())
    with pytest.raises(QuorumError, match="0 of 3 clients answered 'score'"):
        go(tmp_path / "quorum", JUDGES, gone)


def test_a_client_that_never_became_an_expert_is_not_asked(tmp_path: Path) -> None:
    commit = go(tmp_path, JUDGES, {(0, "prepare", 1): "dead"})
    assert sorted(commit.record["clients"]) == ["0", "2"]
    assert commit.record["metrics"]["scores/missing"] == pytest.approx(1 / 3)


def test_an_expert_that_fails_its_renewal_is_judged_by_what_it_did_before(tmp_path: Path) -> None:
    renewed = {**JUDGES, "expert_refresh": 1}
    commit = go(tmp_path / "run", renewed, {(2, "prepare", 1): "dead"}, rounds=2)
    before = go(tmp_path / "start", renewed, rounds=0)
    assert failures(commit) == [("prepare", 1, "dead")]
    assert np.array_equal(commit.state.memory["right"][1], before.state.memory["right"][1])
    assert sorted(commit.record["clients"]) == ["0", "1", "2"]


# ---- PubSwap ------------------------------------------------------------------------------------------------------


def test_a_donor_that_disappears_before_the_swap_leaves_the_round_not_its_answers(tmp_path: Path) -> None:
    commit = go(tmp_path / "gone", SWAPS, {(1, "learn", 1): "dead"})
    assert failures(commit) == [("learn", 1, "dead")]
    metrics = commit.record["metrics"]
    assert metrics["clients/left"] == 1.0 and metrics["public/answers"] == 3 * 2 * 3
    assert 0 < metrics["public/orphaned"] <= metrics["public/swapped"]
    assert sorted(commit.record["clients"]) == ["0", "2"]
    again = go(tmp_path / "back", SWAPS, {(1, "learn", 1): "dead"}, rounds=2)
    assert sorted(again.record["clients"]) == ["0", "1", "2"] and again.record["metrics"]["clients/left"] == 0.0


def test_who_never_answered_is_no_donor(tmp_path: Path) -> None:
    commit = go(tmp_path, SWAPS, {(1, "generate", 0): "dead"})
    assert failures(commit) == [("generate", 0, "dead")]
    assert commit.record["metrics"]["public/answers"] == 2 * 2 * 3
    assert commit.record["metrics"]["public/orphaned"] == 0.0


def answered_other_tasks(answer: Message) -> Message:
    return Message(text={"groups": list(reversed(answer.text["groups"]))})


def test_answers_to_other_tasks_are_refused_and_given_to_no_client(tmp_path: Path) -> None:
    commit = go(tmp_path, SWAPS, {(1, "generate", 2): answered_other_tasks})
    assert failures(commit) == [("generate", 2, "refused")]
    assert "names another task" in commit.record["failures"][0]["message"]
    assert sorted(commit.record["clients"]) == ["0", "1"]


def answered_foreign_tokens(answer: Message) -> Message:
    return with_segments(answer, lambda one: {**one, "token_ids": one["token_ids"] + 10**6})


def answered_impossible_logprobs(answer: Message) -> Message:
    return with_segments(answer, lambda one: {**one, "logprobs": one["logprobs"] + np.float32(np.nan)})


def with_segments(answer: Message, change: Fault) -> Message:
    groups = [
        [{**episode, "segments": [change(segment) for segment in episode["segments"]]} for episode in group]
        for group in answer.text["groups"]
    ]
    return Message(text={"groups": groups})


@pytest.mark.parametrize(
    ("fault", "said"),
    [(answered_foreign_tokens, "outside the vocabulary"), (answered_impossible_logprobs, "an invalid log-prob")],
)
def test_answers_that_no_client_could_learn_from_reach_no_client(tmp_path: Path, fault: Fault, said: str) -> None:
    commit = go(tmp_path, SWAPS, {(1, "generate", 0): fault})
    assert failures(commit) == [("generate", 0, "refused")] and said in commit.record["failures"][0]["message"]
    assert sorted(commit.record["clients"]) == ["1", "2"]


def asked_for_nothing_known(message: Message) -> Message:
    return Message(weights=message.weights, control={**message.control, "tasks": ["guess/train/99999"]})


def test_a_public_task_that_does_not_exist_is_an_error_of_that_client(tmp_path: Path) -> None:
    commit = go(tmp_path, SWAPS, {(1, "generate", 1): asked_for_nothing_known})
    assert failures(commit) == [("generate", 1, "error")]


def test_moments_of_a_round_left_half_way_do_not_reach_the_next() -> None:
    built = make({**SWAPS, "local_steps": 2, "swap_period": 2})
    client = ClientContext(1, 1, 0, 1, built.resources(1))
    control = {"step": 0, "steps": 1, "tasks": list(built.public_env.pool.ids[:2]), "period": 0}
    message = Message(weights=built.runtime.initial_weights, control=control)
    left, _ = built.generate(Message(), message, client)
    assert left.sets["optimizer"], "the private step has left moments"
    assert (
        not built.open_learner(client.resources, built.read_start(left, message, client))
        .get_state(optimizer=True)
        .optimizer
    )


# ---- FedMOA -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objectives", "error", "said"),
    [
        ([["length"]], OptionError, "exactly one accuracy"),
        (
            [["accuracy", "length"], ["accuracy/math", "length"]],
            OptionError,
            "client 1 has the objectives accuracy/math",
        ),
        ([["accuracy", "lenght"]], UnknownNameError, "lenght.*did you mean.*length"),  # codespell:ignore lenght
    ],
)
def test_a_client_without_its_accuracy_is_refused_before_any_work(
    tmp_path: Path, objectives: list[list[str]], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        go(tmp_path, {**WEIGHS, "objectives": objectives})
    assert CommitStore(tmp_path / "rounds").list_rounds() == []


def test_a_client_whose_tasks_pay_no_accuracy_is_named() -> None:
    site: Any = SimpleNamespace(client=2, env=SimpleNamespace(reward_names=("format", "tags")))
    with pytest.raises(OptionError, match="client 2 has no accuracy objective: its tasks pay format, tags"):
        make(WEIGHS).resolve_objectives(site)


def answered_without_accuracy(answer: Message) -> Message:
    return Message(
        weights=answer.weights, control={**answer.control, "objectives": {"length": 1.0}}, report=answer.report
    )


def test_an_answer_without_accuracy_is_left_out(tmp_path: Path) -> None:
    commit = go(tmp_path, WEIGHS, {(1, "train", 0): answered_without_accuracy})
    assert failures(commit) == [("train", 0, "refused")]
    assert "exactly one accuracy" in commit.record["failures"][0]["message"]
    assert commit.record["metrics"]["members/accuracy/guess"] == 2.0


def test_a_cluster_that_empties_keeps_its_weights_and_counts_nothing(tmp_path: Path) -> None:
    mixed: dict[str, Any] = {
        **SPEC,
        "env": {"id": "fedagentgym/Mixture-v0", "options": {"size": "tiny", "kinds": ["math", "qa"]}},
        "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 4, "constrained": False}},
        "partition": {"sampler": "by_source", "clients": 2},
        "learning": {"tasks_per_step": 1, "group_size": 2, "learning_rate": 1e-3},
        "algorithm": {"name": "fedmoa", "local_steps": 1, "objectives": [["accuracy", "format"]]},
    }
    loaded = ExperimentSpec.load(mixed)
    built = make_algorithm(loaded, Runtime(loaded))
    sent: list[dict[str, np.ndarray]] = []

    def answered_and_seen(answer: Message) -> Message:
        sent.append({name: np.array(value) for name, value in answer.weights.items()})
        return answer

    faults: dict[Place, Fault | str] = {(2, "train", 1): "dead", (2, "train", 0): answered_and_seen}
    backend = Disturbed(built, tmp_path / "states", faults)
    commit = run_rounds(built, backend, ServerConfig(tmp_path, 0, FederationSettings(rounds=2, quorum=1))).commit
    first = CommitStore(tmp_path / "rounds").read(1)
    metrics, name = commit.record["metrics"], "accuracy/qa"
    assert failures(commit) == [("train", 1, "dead")]
    assert first.record["metrics"]["members/accuracy/qa"] == 1.0
    assert (metrics["members/accuracy/qa"], metrics["members/accuracy/math"], metrics["clusters"]) == (0.0, 1.0, 1.0)
    assert commit.state.memory["shared"][name] == first.state.memory["shared"][name]
    assert all(np.array_equal(value, theta(commit)[key]) for key, value in sent[0].items())


# ---- every method that averages -----------------------------------------------------------------------------------


def answered_no_examples(answer: Message) -> Message:
    return Message(weights=answer.weights, control={**answer.control, "examples": "many"}, report=answer.report)


def answered_wrong_objectives(answer: Message) -> Message:
    return Message(weights=answer.weights, control={**answer.control, "objectives": 5}, report=answer.report)


def answered_wrong_report(answer: Message) -> Message:
    report = {
        "metrics": {"loss": "low", "reward": 1.0, "huge": float("inf")},
        "episodes": [3, {"a": b"bytes"}, {"a": 1}],
    }
    return Message(weights=answer.weights, control=answer.control, report=report)


AVERAGES = {"fedagent": {"name": "fedagent", "local_steps": 1}, "pubswap": SWAPS, "fedmoa": WEIGHS}


@pytest.mark.parametrize("name", AVERAGES)
def test_a_client_that_hides_its_size_counts_nothing(tmp_path: Path, name: str) -> None:
    operation = "finish" if name == "pubswap" else "train"
    commit = go(tmp_path, AVERAGES[name], {(1, operation, 2): answered_no_examples})
    assert failures(commit) == [(operation, 2, "refused")]
    assert "no number of examples: 'many'" in commit.record["failures"][0]["message"]
    assert sorted(commit.record["clients"]) == ["0", "1"]


@pytest.mark.parametrize("name", AVERAGES)
def test_a_malformed_report_costs_no_client_the_round(tmp_path: Path, name: str) -> None:
    operation = "finish" if name == "pubswap" else "train"
    commit = go(tmp_path, AVERAGES[name], {(1, operation, 2): answered_wrong_report})
    assert commit.record["failures"] == []
    told = commit.record["clients"]["2"]
    assert told["reward"] == 1.0 and "loss" not in told and "huge" not in told and told["update_norm"] >= 0.0
    assert told["report/refused"] == 5.0


def answered_success(value: object) -> Fault:
    """A reply whose success is this value, or missing."""

    def answered(answer: Message) -> Message:
        kept = {name: number for name, number in answer.report["metrics"].items() if name != "success"}
        told = kept if value is None else {**kept, "success": value}
        return Message(weights=answer.weights, control=answer.control, report={**answer.report, "metrics": told})

    return answered


@pytest.mark.parametrize("value", [1e299, -0.5, float("nan"), "high", None])
def test_a_number_that_decides_is_checked_before_it_decides(
    tmp_path: Path, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reports 1e299 for its success would have all of the average."""
    monkeypatch.setattr(FedAgent, "deciding_metrics", {"success": (0.0, 1.0)})
    commit = go(tmp_path, AVERAGES["fedagent"], {(1, "train", 2): answered_success(value)})
    assert failures(commit) == [("train", 2, "refused")] and "'success'" in commit.record["failures"][0]["message"]
    assert sorted(commit.record["clients"]) == ["0", "1"]


def test_objectives_that_are_none_are_refused(tmp_path: Path) -> None:
    commit = go(tmp_path, WEIGHS, {(1, "train", 1): answered_wrong_objectives})
    assert failures(commit) == [("train", 1, "refused")]
    assert sorted(commit.record["clients"]) == ["0", "2"]


EPISODE = to_plain(Trajectory("t", 0, (), terminated=True), segments=False)
IMPOSSIBLE: dict[str, Any] = {
    "episodes": (-7, 7, 1.5, "many", None, True, float("nan"), float("inf"), -float("inf"), 10**30),
    "optimizer_steps": (1e18, -1),
    "scored": (1,),
    "env_steps": (-0.5, 1e299),
    "groups": (-1, [2]),
    "update/skipped": ("x",),
}
ODD_METRICS: dict[str, Any] = {
    "a word for a number": {"loss": "low"},
    "a flag for a number": {"loss": True},
    "nothing": {"loss": None},
    "not finite": {"loss": float("nan")},
    "a privacy of its own": {"privacy/epsilon": 0.1},
    "a number of ours": {"report/refused": -5.0},
    "a name that moves the cursor": {"\x1b[2J": 1.0},
    "a name without end": {"x" * 200: 1.0},
}
ODD_EPISODES: dict[str, Any] = {
    "a word": "x",
    "a mapping": {"a": 1},
    "bytes": {**EPISODE, "labels": {"a": b"x"}},
    "without turns": {**EPISODE, "turns": None},
    "a seed that is a word": {**EPISODE, "seed": "x"},
    "a score that is none": {**EPISODE, "score": float("nan")},
    "a score that is reported as none": {**EPISODE, "score": "nan"},
    "a turn without a reply": {**EPISODE, "turns": [{"observation": 1}]},
    "segments": {**EPISODE, "segments": [{"mask": "x"}]},
    "labels that are a number": {**EPISODE, "labels": 5},
    "more lists than a line may have": {**EPISODE, "labels": {"a": [[]] * 200_000}},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_counts_are_refused_and_named(name: str) -> None:
    """They would be added up: a run that played -7 episodes cannot be packed, and one lie could end it for want of budget."""
    for value in IMPOSSIBLE[name]:
        found = read_report(1, Message(report={"metrics": {name: value}}), Work(episodes=6, optimizer_steps=1), 2)
        assert isinstance(found, Failure) and (found.client, found.reason) == (1, "refused"), value
        assert found.message.startswith(f"its report: {name!r} is ") and len(found.message) < 150


@pytest.mark.parametrize("odd", [*ODD_METRICS.values(), *ODD_EPISODES.values()], ids=[*ODD_METRICS, *ODD_EPISODES])
def test_what_is_only_shown_is_left_out_and_counted(odd: Any) -> None:
    """And what is kept is written as readers read it."""
    metrics = {"episodes": 6.0, "reward": -0.5, **(odd if odd in ODD_METRICS.values() else {})}
    episodes = [{**EPISODE, "more": 1}, *([] if odd in ODD_METRICS.values() else [odd])]
    found = read_report(1, Message(report={"metrics": metrics, "episodes": episodes}), Work(episodes=6), 2)
    assert isinstance(found, Report)
    assert found.metrics == {"episodes": 6.0, "reward": -0.5, "report/refused": 1.0}
    (episode,) = found.episodes
    ((_, trajectory, about, _, _),) = parse_lines([episode], "report")
    assert about == {"client": 1} and trajectory.task == "t"


@pytest.mark.parametrize("report", [{"metrics": [1.0]}, {"episodes": 5}, {}, {"episodes": [EPISODE] * 3}])
def test_reports_of_another_form_are_empty(report: dict[str, Any]) -> None:
    found = read_report(1, Message(report=report), None)
    assert isinstance(found, Report) and not found.episodes and set(found.metrics) <= {"report/refused"}


@pytest.mark.parametrize("place", ["fedagent", "prepare", "score"])
def test_a_round_with_a_malformed_report_leaves_readable_records(place: str, tmp_path: Path) -> None:
    def answered(answer: Message) -> Message:
        kept = {"weights": answer.weights, "control": answer.control, "scores": answer.scores}
        return Message(**kept, report={"metrics": {"episodes": -7.0}})

    when = {"fedagent": (1, "train", 2), "prepare": (0, "prepare", 2), "score": (1, "score", 2)}[place]
    method = AVERAGES["fedagent"] if place == "fedagent" else JUDGES
    go(tmp_path, method, {when: answered})
    chain = read_chain(tmp_path)
    assert chain is not None
    failed = [one for record in chain.list_records() for one in record["failures"]]
    assert [(one["operation"], one["client"], one["reason"]) for one in failed] == [(when[1], 2, "refused")]
    assert count_episodes(chain.list_records()) > 0
