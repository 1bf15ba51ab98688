"""DPSDA-FL on loaded data: the language model writes the candidates, and its variations of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.algorithms.synthetic_tasks import WrittenTasks, is_generated, write_replies
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import stream
from fedagentgym.experiment.run import train
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.testing import check_algorithm
from fedagentgym.testing.runs import SMALL_CONFIG

from .fixed_models import make_fixed_model


def write(problem: str, answer: str) -> str:
    return f"<problem> {problem} </problem>\n<think> it is {answer} </think>\n<answer> {answer} </answer>"


GOOD = tuple(write(f"What is {a} + {b} ?", str(a + b)) for a in range(20) for b in range(20))
JUDGED = write("How many legs has a spider?", "8")
BAD = (
    JUDGED,
    write("", "3"),
    write("What is nothing?", ""),
    "<problem> Half a task",
    "<answer> 3 </answer>",
    write("x" * 3000, "1"),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A data set as loaded, and models that write: well, badly, not at all."""
    where = tmp_path_factory.mktemp("written")
    rows = [{"question": f"Tom has {n} pens and buys {n}. How many now?", "answer": f"#### {2 * n}"} for n in range(40)]
    held = [{"question": "How many legs has a spider?", "answer": "#### 8"}]
    (where / "data").mkdir()
    for name, part in (("train", rows), ("test", held)):
        (where / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)), "utf-8")
    models = {"writer": (*GOOD, *BAD), "babbler": BAD}
    made = {name: make_fixed_model(where / name, "qwen2", replies, sharpness=0.2) for name, replies in models.items()}
    return {"data": str(where / "data"), **made}


def config(places: dict[str, str], model: str = "writer", **algorithm: Any) -> dict[str, Any]:
    return {
        "env": {"id": "fedagentgym/Math-v0", "options": {"source": "gsm8k", "data": places["data"]}},
        "partition": {"clients": 2, "tasks_per_client": 12, "roles": {}},
        "agent": {"name": "transformers", "model": places[model], "decoding": {"max_new_tokens": 1}},
        "learning": {"tasks_per_step": 2, "group_size": 3, "learning_rate": 1e-3},
        "algorithm": {
            "name": "dpsda-fl",
            "candidates": 12,
            "synthetic_tasks": 7,
            "iterations": 3,
            "secret": False,
            **algorithm,
        },
    }


def make(plain: dict[str, Any]) -> Any:
    spec = ExperimentSpec.load({"rounds": 1, **plain})
    return make_algorithm(spec, Runtime(spec))


def prepare(folder: Path, algorithm: Any) -> Commit:
    plan = ServerConfig(folder, 0, FederationSettings(rounds=0))
    return run_rounds(algorithm, SequentialBackend(algorithm, folder / "states"), plan).commit


def test_what_is_trained_on_was_written_by_the_model(places: dict[str, str], tmp_path: Path) -> None:
    algorithm = make(config(places))
    commit = prepare(tmp_path, algorithm)
    records = commit.state.memory["synthetic"]
    assert len(records) == 7 == commit.record["metrics"]["synthetic/tasks"]
    assert commit.record["metrics"]["scored"] >= 12 + 6 + 6
    assert "privacy/epsilon" not in commit.record["metrics"], "noise that can be drawn again protects nobody"
    problems = [record["payload"]["problem"] for record in records]
    assert len(set(problems)) == 7
    sums = [f"What is {a} + {b} ?" for a in range(20) for b in range(20)]
    assert set(problems) <= set(sums)
    env = algorithm.open_survivors(records)
    for task in env.pool:
        (episode,) = env.reset_many([task], [0])
        said = env.expert().act(episode)
        assert said.startswith("<think> it is") and env.step_many([episode], [said])[0].view.success


def test_variations_are_asked_for_with_the_task_that_is_varied(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedagentgym.algorithms.synthetic_tasks as module

    asked: list[list[str]] = []

    def record(agent: Any, prompts: list[str], *more: Any) -> list[str]:
        asked.append(prompts)
        return write_replies(agent, prompts, *more)

    monkeypatch.setattr(module, "write_replies", record)
    algorithm = make(config(places))
    source = WrittenTasks(algorithm.runtime, frozenset(), 3)
    first = source.draw(5)
    (category,) = algorithm.runtime.client_split.pool.category_names
    assert all(f"on the topic: {category}." in prompt for prompt in asked[0])
    count = len(asked)
    varied = source.vary(first[:3])
    assert [candidate.text in prompt for candidate, prompt in zip(first, asked[count], strict=False)] == [True] * 3
    texts = [candidate.text for candidate in [*first, *varied]]
    assert len(set(texts)) == 8, "nothing is written twice"
    again = WrittenTasks(algorithm.runtime, frozenset(), 3)
    assert [*again.draw(5), *again.vary(first[:3])] == [*first, *varied]


def test_a_model_may_leave_out_the_beginning_and_go_on_after_the_end(places: dict[str, str]) -> None:
    source = WrittenTasks(make(config(places)).runtime, frozenset(), 0)
    written = source._read(f"{write('What is 2 + 2 ?', '4')}\n\n{write('What is 3 + 3 ?', '6')}", "x")
    assert written is not None and written.text == "What is 2 + 2 ?" and written.kept["payload"]["answers"] == ["4"]
    assert source._read(f"<problem> Half a task </problem>\n{write('What is 3 + 3 ?', '6')}", "x") is None
    (reply,) = write_replies(source._agent, ["Write ."], "<problem>", [stream(0, "a")], 1)
    assert reply.startswith("<problem>") and reply.count("<problem>") == 1


def test_prompts_show_public_tasks_and_no_clients_tasks(places: dict[str, str]) -> None:
    algorithm = make(config(places))
    shown = WrittenTasks(algorithm.runtime, frozenset(), 0).examples
    private = {task.payload.problem for task in algorithm.runtime.client_split.pool}
    assert len(shown) >= 50 and not any(problem in example for problem in private for example in shown)
    assert all("</problem>\n<think>" in example and example.endswith("</answer>") for example in shown)
    given = make(merge(config(places), {"partition": {"roles": {"public": 4}}}))
    public = {task.payload.problem for task in given.runtime.client_split.role("public")}
    found = WrittenTasks(given.runtime, frozenset(), 0).examples
    assert len(found) == 4 and all(any(problem in example for problem in public) for example in found)


def test_tasks_that_cannot_be_used_do_not_count(places: dict[str, str], tmp_path: Path) -> None:
    source = WrittenTasks(make(config(places)).runtime, frozenset({"How many legs has a spider?"}), 0)
    usable = [reply for reply in BAD if source._read(reply, "x") is not None]
    assert usable == [JUDGED], "which is known already: it is asked in an evaluation"
    babbler = make(config(places, "babbler"))
    assert WrittenTasks(babbler.runtime, frozenset({"How many legs has a spider?"}), 0).draw(4) == []
    with pytest.raises(DataError, match="wrote 0 usable candidates"):
        prepare(tmp_path, babbler)


def test_a_histogram_of_another_length_is_refused(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedagentgym.algorithms.dpsda_fl import DPSDA
    from fedagentgym.federation.message import Message

    honest = DPSDA.vote

    def short(self: DPSDA, state: Message, message: Message, client: Any) -> tuple[Message, Message]:
        kept, answer = honest(self, state, message, client)
        return kept, Message(scores={"votes": answer.scores["votes"][: 3 if client.id else None]})

    monkeypatch.setattr(DPSDA, "vote", short)
    commit = prepare(tmp_path, make(config(places, iterations=1)))
    told = [(failure["client"], failure["reason"]) for failure in commit.record["failures"]]
    assert told == [(1, "refused")] and len(commit.state.memory["synthetic"]) == 7


@pytest.mark.parametrize("objective", ["grpo", "sft"])
def test_a_whole_run_on_loaded_data(places: dict[str, str], objective: str) -> None:
    """Twice alike, resumed alike."""
    plain = config(places, objective=objective)
    settings = {key: value for key, value in plain.pop("algorithm").items() if key != "name"}
    if objective == "sft":
        plain["agent"]["decoding"]["max_new_tokens"] = 60
    plain["evaluation"] = {"every": 1, "tasks": 1, "split": "test"}
    plain["partition"]["roles"] = {"public": 1}
    found = check_algorithm("dpsda-fl", config=plain, workers=0, **settings)
    assert not found.record["failures"]


def test_the_server_imitates_with_one_optimizer_over_all_rounds(tmp_path: Path) -> None:
    """As it learns by reinforcement: it is no client, whose optimizer begins anew in every round."""
    plain = merge(SMALL_CONFIG, {"agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}}})
    method = {"name": "dpsda-fl", "candidates": 20, "synthetic_tasks": 10, "objective": "sft", "secret": False}
    changes = {"algorithm": {**method, "local_steps": 2}, "federation": {"rounds": 3}}
    done = train(merge(plain, merge(changes, {"output": {"folder": str(tmp_path / "run")}})))
    state = CommitStore(done.folder / "rounds").read(3).state
    assert state.memory["step"] == 6 and set(state.optimizer["counts"].tolist()) == {6.0}


def test_a_model_can_write_tasks_of_a_generated_world_too(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its clients draw their noise from their operating system unless the settings forbid it."""
    monkeypatch.setattr("fedagentgym.federation.exchange.ClientContext.stream", None)
    plain = merge(config(places, candidates_from="model", secret=True), {"partition": {"tasks_per_client": 30}})
    plain["env"] = {"id": "fedagentgym/QA-v0", "options": {"size": "tiny"}}
    commit = prepare(tmp_path, make(plain))
    assert commit.record["metrics"]["privacy/epsilon"] == pytest.approx(8.0)
    records = commit.state.memory["synthetic"]
    assert all(record["payload"]["question"].startswith("What is") for record in records)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"algorithm": {"candidates_from": "generator"}}, "candidates_from=model lets the language model write"),
        ({"learning": {"keep_optimizer": True}}, "leave out learning.keep_optimizer"),
        ({"agent": {"context_length": 60}}, "leaves no room"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    places: dict[str, str], tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises((OptionError, DataError), match=told):
        prepare(tmp_path, make(merge(config(places), changes)))


@pytest.mark.parametrize("world", ["Guess", "Code"])
def test_worlds_whose_tasks_are_no_questions_need_their_generator(tmp_path: Path, world: str) -> None:
    plain = {
        "env": {"id": f"fedagentgym/{world}-v0"},
        "partition": {"clients": 2, "tasks_per_client": 8},
        "agent": {"name": "untrained-tiny"},
        "algorithm": {"name": "dpsda-fl", "candidates": 4, "synthetic_tasks": 2, "candidates_from": "model"},
    }
    with pytest.raises(OptionError, match="a language model cannot write tasks of"):
        prepare(tmp_path, make(plain))


def test_a_mixture_is_generated_if_all_its_members_are() -> None:
    made, loaded = {"generator": "math"}, {"source": "gsm8k"}
    assert is_generated(made) and not is_generated(loaded)
    assert is_generated({"mixture": {"a": made, "b": made}}) and not is_generated({"mixture": {"a": made, "b": loaded}})
