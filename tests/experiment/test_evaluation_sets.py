"""Runs that are evaluated on several sets, and on what each client has trained: through the same loop as every run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.reports import count_categories, evaluate_mixtures, measure_mixture
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.envs.data_sets import find_data_set
from fedagentgym.experiment.config import list_presets, list_variants, load_config
from fedagentgym.experiment.evaluation import check_episodes
from fedagentgym.experiment.opened import open_data
from fedagentgym.experiment.record import read_result
from fedagentgym.experiment.run import resume, train
from fedagentgym.federation.commits import read_chain
from fedagentgym.learning.evaluation import count_evaluated, evaluate, evaluate_sets, open_sets
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.partitions import federate
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.envs.reasoning.published_rows import ROWS, write

MATH = "fedagentgym/Math-v0"
SETS = [
    {"name": "own", "split": "val", "tasks": 3},
    {"name": "other-seed", "options": {"size": "tiny", "seed": 1}, "repeats": 2},
    {"name": "questions", "env": "QA", "options": {"size": "tiny"}, "split": "test", "temperature": 0.0},
]
CONFIG: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "env": {"id": MATH, "options": {"size": "tiny"}},
        "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8}},
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "evaluation": {"sets": SETS, "at_clients": ["held_out"], "tasks": 2, "every": 1},
    },
)


def run(folder: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return dict(train(merge(CONFIG, {**(changes or {}), "output": {"folder": str(folder)}}), force=True).record)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(merge(CONFIG, {"output": {"folder": str(folder), "report": "html"}}), force=True)
    return folder


def test_every_set_is_judged_and_counts_the_same(finished: Path) -> None:
    record = read_result(finished).model_dump(mode="json")
    final = record["final"]
    assert set(final["sets"]) == set(final["categories"]) == {"own", "other-seed", "questions"}
    assert {name: found["tasks"] for name, found in final["sets"].items()} == {
        "own": 3,
        "other-seed": 2,
        "questions": 2,
    }
    assert {name: found["episodes"] for name, found in final["sets"].items()} == {
        "own": 3,
        "other-seed": 4,
        "questions": 2,
    }
    assert (final["tasks"], final["episodes"]) == (7, 9)
    for measure, estimate in final["overall"].items():
        means = [final["sets"][name]["overall"][measure]["mean"] for name in final["sets"]]
        assert estimate["mean"] == pytest.approx(np.mean(means))
        assert estimate["low"] <= estimate["mean"] <= estimate["high"]
    assert "reward/accuracy/qa" not in final["overall"] and "reward/format" in final["overall"]
    told = record["evaluation_sets"]
    assert told["questions"]["env"] == "fedagentgym/QA-v0" and told["own"]["split"] == "val"
    assert told["other-seed"]["pool"] == open_env(MATH, size="tiny", seed=1, split="test").pool.digest
    assert "evaluation sets" in read_chain(finished).newest.links.inputs  # type: ignore[union-attr]
    page = (finished / "report.html").read_text()
    assert "questions" in page and "Each of 3 clients by its own mixture" in page


def test_no_test_set_takes_part_in_choosing_the_best_round(finished: Path) -> None:
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        found = record["evaluation"]
        assert found["choice"] == found["sets"]["own"]["overall"]["success"]["mean"], "the other two are test splits"
    found = read_result(finished)
    best = next(point for point in found.curve if point.round == found.best_round)
    assert best.categories["own"] == max(record["evaluation"]["choice"] for record in records)


@pytest.mark.parametrize(
    ("sets", "choice"),
    [([{"name": "b", "split": "test"}], None), ([{"name": "a", "split": "val", "select": False}], None)],
)
def test_without_a_set_that_chooses_there_is_no_best_round(sets: list[dict[str, Any]], choice: None) -> None:
    from fedagentgym.agents.presets import make_agent

    settings = EvaluationSettings.load({"tasks": 2, "sets": sets})
    found = evaluate_sets(make_agent("random"), open_sets(settings, MATH, {"size": "tiny"}), settings, seed=3)
    assert found.describe_choice() == {"choice": choice}


@pytest.mark.parametrize(("env", "split"), [(MATH, "test"), ("ALFWorld", "test"), ("ALFWorld", "valid_unseen")])
def test_no_set_that_tests_chooses_a_round(env: str, split: str) -> None:
    chosen = EvaluationSettings.load({"sets": [{"name": "a", "env": env, "split": split, "select": True}]})
    with pytest.raises(OptionError, match="the evaluation set 'a': no round is chosen by a test split"):
        open_sets(chosen, MATH, {"size": "tiny"})


def test_the_episodes_of_every_set_are_replayed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = finished / "evaluation" / "0002.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["set"] for line in lines] == ["own"] * 3 + ["other-seed"] * 4 + ["questions"] * 2
    assert {line["env"] for line in lines if line["set"] == "questions"} == {"fedagentgym/QA-v0"}
    assert all(line["verifier"] for line in lines)
    assert check_episodes(finished) == check_episodes(file) == check_episodes(file, only="other-seed") == []
    found = check_episodes(file, env=MATH, options={"size": "tiny", "seed": 2}, split="test", only="other-seed")
    assert "this environment has the pool sha256:" in found[0] and len(found) > 1, "the tasks of another seed"
    with pytest.raises(OptionError, match="holds the evaluation sets own, other-seed, questions"):
        check_episodes(file, env=MATH)
    with pytest.raises(FedAgentGymError, match="unknown evaluation set"):
        check_episodes(file, only="owl")
    asked = ["eval", "--env", "QA", "--env-set", "size=tiny", "--split", "test", "--check", str(file)]
    assert main([*asked, "--only", "questions"]) == 0
    assert main(asked) == 2 and main([*asked[:-2], "--only", "own"]) == 2
    assert "does nothing without --check" in capsys.readouterr().err


def test_a_set_alone_is_judged_as_evaluate_does() -> None:
    from fedagentgym.agents.presets import make_agent

    settings = EvaluationSettings.load(
        {"tasks": 5, "sets": [{"name": "a", "split": "val"}, {"name": "b", "split": "test"}]}
    )
    opened = open_sets(settings, MATH, {"size": "tiny"})
    agent = make_agent("random")
    together = evaluate_sets(agent, opened, settings, seed=3)
    from fedagentgym.base.streams import derive

    for one in opened:
        alone = evaluate(agent, one.env, one.settings, seed=derive(3, "set", one.name))
        assert alone.groups == together.sets[one.name].groups
    single = evaluate_sets(agent, opened[:1], settings, seed=3)
    assert single.overall == single.sets["a"].overall


def test_local_models_are_judged_in_the_rounds_that_are_evaluated(finished: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert "local/success" not in records[0]["metrics"], "there are no local models before the first round"
    for record in records[1:]:
        own = [numbers["local/success"] for numbers in record["clients"].values()]
        assert len(own) == 2 and record["metrics"]["local/success"] == pytest.approx(np.mean(own))
        assert record["metrics"]["local/success/worst"] == min(own)
        assert record["metrics"]["local/success/p10"] == pytest.approx(np.percentile(own, 10))
        assert "local/questions/success" in record["metrics"] and "local/own/reward/format" in record["metrics"]
        clients = record["evaluation"]["at_clients"]["held_out"]
        assert clients["clients"] == 3 and clients["worst"] <= clients["p10"] <= clients["mean"]
    seldom = run(tmp_path / "seldom", {"evaluation": {**CONFIG["evaluation"], "every": 2}})
    judged = [json.loads(line) for line in (tmp_path / "seldom" / "metrics.jsonl").read_text().splitlines()]
    assert ["local/success" in record["metrics"] for record in judged] == [False, False, True]
    assert seldom["state"] == read_result(finished).state, "evaluating changes nothing"


@pytest.mark.parametrize("name", ["fedavg-grpo", "fedprox", "fedmoa", "pubswap", "local", "fedpetuning"])
def test_every_method_that_trains_local_models_judges_them(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"name": name, "local_steps": 1}
    changes: dict[str, Any] = {
        "algorithm": settings,
        "evaluation": {"at_clients": ["held_out"], "tasks": 3, "every": 2},
    }
    config = {**CONFIG, **changes, "federation": {"rounds": 2, "quorum": None}}
    if name == "pubswap":
        settings |= {"local_steps": 2, "public_tasks": 2}
    if name == "fedmoa":
        config["learning"] = {**CONFIG["learning"], "objectives": [{"name": "accuracy"}, {"name": "format"}]}
    if name == "fedpetuning":
        settings |= {"objective": "sft", "supervised": {"batch_size": 2}}
        config["agent"] = {"name": "untrained-tiny", "adapter": {"rank": 2}, "decoding": {"max_new_tokens": 40}}
    config["output"] = {"folder": str(tmp_path / "run"), "report": "none"}
    record = train(config, force=True).record
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "local/success" in last["metrics"] and "local/own" in last["metrics"]
    assert all("local/success" in numbers for numbers in last["clients"].values())
    assert record["final"]["at_clients"]["held_out"]["clients"] == 3


def test_a_local_model_is_what_the_server_gets(tmp_path: Path) -> None:
    """With one client a round the average is the client's model: both are evaluated alike."""
    changes = {
        "federation": {"rounds": 2, "clients_per_round": 1, "quorum": None},
        "algorithm": {"name": "fedagent", "local_steps": 2},
        "learning": {**CONFIG["learning"], "learning_rate": 0.01},
    }
    run(tmp_path / "run", changes)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1:]:
        record = json.loads(line)
        for name, found in record["evaluation"]["sets"].items():
            for measure in ("success", "score", "reward/format", "reward/tags"):
                assert record["metrics"][f"local/{name}/{measure}"] == found["overall"][measure]["mean"]


def test_judged_rounds_are_the_same_bits_after_a_stop_and_in_workers(finished: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class StopAfterOne:
        def begin(self, rounds: int) -> None: ...

        def round_done(self, record: Mapping[str, Any]) -> None:
            if record["round"] == 1:
                raise Stop

    def strip(folder: Path) -> list[Any]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = ("round", "clients", "digest")
        return [{name: line[name] for name in kept} | {"found": line["evaluation"]["sets"]} for line in lines]

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_times(below) for key, below in value.items() if not key.startswith("seconds")}
        return [without_times(below) for below in value] if isinstance(value, list) else value

    with pytest.raises(Stop):
        train(merge(CONFIG, {"output": {"folder": str(tmp_path / "stopped")}}), observers=[StopAfterOne()], force=True)
    resume(tmp_path / "stopped")
    run(tmp_path / "pool", {"federation": {**CONFIG["federation"], "workers": 1}})
    wanted = without_times(strip(finished))
    assert without_times(strip(tmp_path / "stopped")) == wanted
    assert without_times(strip(tmp_path / "pool")) == wanted


# ---- data sets by name ----------------------------------------------------------------------------------------------


def test_a_data_set_is_judged_on_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "installed"))
    settings = EvaluationSettings.load({"sets": ["AIME24", "math500", {"name": "humaneval", "repeats": 2}]})
    with pytest.raises(DataError, match="the evaluation set 'AIME24': the data set aime24 is not installed"):
        open_sets(settings, MATH, {"size": "tiny"})
    rows: dict[str, Any] = {
        "aime24": {"problem": "p", "answer": "33"},
        "math500": {"problem": "p", "solution": "s", "answer": "2", "subject": "Algebra", "level": 1},
        "humaneval": {
            "prompt": "def f():\n    pass\n",
            "entry_point": "f",
            "test": "def check(c): pass",
            "task_id": "x",
        },
    }
    for name, row in rows.items():
        (tmp_path / "data.jsonl").write_text(json.dumps(row))
        find_data_set(name).add(tmp_path / "data.jsonl")
    opened = open_sets(settings, MATH, {"size": "tiny"})
    assert [one.env.id for one in opened] == [MATH, MATH, "fedagentgym/Code-v0"]
    assert [one.settings.repeats for one in opened] == [1, 1, 2] and all(len(one.env.pool) == 1 for one in opened)


@pytest.mark.parametrize("one", ["gms8k", {"name": "gms8k", "tasks": 3}])
def test_a_misspelt_data_set_is_not_the_runs_own_environment(one: str | dict[str, Any]) -> None:
    settings = EvaluationSettings.load({"sets": [one]})
    with pytest.raises(FedAgentGymError, match=r"evaluation set 'gms8k'.*did you mean 'gsm8k'.*names its split"):
        open_sets(settings, MATH, {"size": "tiny"})
    with pytest.raises(FedAgentGymError, match="did you mean 'gsm8k'"):
        count_evaluated(settings, MATH, {"size": "tiny"})
    own = EvaluationSettings.load({"sets": [{"name": "gms8k", "split": "test"}]})
    assert open_sets(own, MATH, {"size": "tiny"})[0].env.id == MATH


def test_clients_of_different_data_sets_are_judged_on_each_and_on_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedMOA's table 1 in small: sets that are called like the members of the mixture that clients train on."""
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "installed"))
    for name in ("gsm8k", "mbpp", "humaneval"):
        row, key = dict(ROWS[name][0]), "question" if name == "gsm8k" else "text"
        rows = [row if name == "humaneval" else {**row, key: f"{row[key]} ({n})"} for n in range(6)]
        write(tmp_path, "train.jsonl", *rows)
        find_data_set(name).add(tmp_path / "train.jsonl")
    made = {
        "gsm8k": {"source": "gsm8k", "data": "installed", "holdout": {"test": 2}},
        "mbpp": {"source": "mbpp", "data": "installed", "bad_rows": 0.0},
    }
    envs = {"gsm8k": "Math", "mbpp": "Code"}
    members = [{"name": name, "env": envs[name], "options": options} for name, options in made.items()]
    sets: list[Any] = [
        {"name": "gsm8k", "options": made["gsm8k"], "env": "Math"},
        {"name": "humaneval", "tasks": 2, "category": "mbpp"},
    ]
    folder = tmp_path / "run"
    config = {
        **CONFIG,
        "env": {"id": "fedagentgym/Mixture-v0", "options": {"members": members}},
        "partition": {"sampler": "by_source", "clients": 2},
        "algorithm": {"name": "fedmoa", "local_steps": 1, "objectives": [["accuracy", "format"]]},
        "federation": {"rounds": 1, "quorum": None},
        "evaluation": {"sets": sets, "at_clients": ["held_out"]},
        "output": {"folder": str(folder), "report": "none"},
    }
    record = train(config, force=True).record
    assert record["env"]["protections"], "programs are run, so what confined them is recorded"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    first, second = last["clients"]["0"], last["clients"]["1"]
    assert first["local/own"] == first["local/gsm8k/success"]
    assert second["local/own"] == second["local/humaneval/success"], (
        "nothing is held out of MBPP: HumanEval evaluates it"
    )
    assert {"local/humaneval/success", "local/gsm8k/reward/format"} <= set(second)
    assert record["final"]["at_clients"]["held_out"]["clients"] == 2
    with pytest.raises(FedAgentGymError, match=r"the evaluation set 'humaneval'.*did you mean 'mbpp'"):
        train(config, ["evaluation.sets=[{name: humaneval, category: mbbp}]", f"output.folder={tmp_path / 'none'}"])
    told = record["evaluation_sets"]
    assert told["humaneval"]["verifier"].startswith("code/") and told["gsm8k"]["verifier"].startswith("math-verify")
    file = folder / "evaluation" / "0001.jsonl"
    assert check_episodes(file, only="gsm8k") == []


def test_nothing_starts_without_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "none"))

    def fail(*given: Any, **named: Any) -> None:
        raise AssertionError("an agent was made although data is missing")

    monkeypatch.setattr("fedagentgym.experiment.opened.resolve_agent", fail)
    wanted: list[dict[str, Any]] = [
        {"evaluation": {"sets": ["math500"]}},
        {"env": load_config("paper-webshop").plain()["env"]},
        {"env": load_config("paper-alfworld").plain()["env"]},
        {"env": {"id": MATH, "options": {"source": "math", "data": "installed"}}},
        {"env": {"id": "fedagentgym/WebShop-v0", "options": {"data": "installed"}}},
        {"env": {"id": "fedagentgym/ALFWorld-v0", "options": {"games": "installed"}}},
    ]
    for changes in wanted:
        with pytest.raises(DataError, match=r"fedagentgym data add ") as caught:
            train({**CONFIG, **changes, "output": {"folder": str(tmp_path / "run")}})
        assert "\n" not in str(caught.value)
    monkeypatch.setattr("fedagentgym.experiment.estimate.plan.find_device_memory", lambda device: 1 << 30)
    for name in ("paper-webshop", "paper-alfworld"):
        with pytest.raises(DataError, match=r"fedagentgym data .* besides, .* needs at least"):
            train(name, [f"output.folder={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("preset", [name for name in list_presets() if name.startswith("paper-")])
def test_every_row_of_a_paper_names_original_data(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that its environment does not take."""
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("fedagentgym.experiment.opened.check_fit", lambda config: None)
    for name in (preset, *(f"{preset}:{variant}" for variant in list_variants(preset))):
        with pytest.raises(DataError, match=r"fedagentgym data add "):
            open_data(load_config(name))


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"sets": [{"name": "a"}, {"name": "a"}]}, "two sets named 'a'"),
        ({"sets": [{"name": "a/b"}]}, "evaluation.sets.0.name"),
        ({"sets": [{"name": "a", "world": "Math"}]}, "unknown key 'evaluation.sets.0.world'"),
        ({"sets": [{"name": "a", "temperature": -1}]}, "evaluation.sets.0.temperature"),
        ({"sets": [{"name": "a", "env": "Maths"}]}, "the evaluation set 'a': unknown environment"),
        ({"sets": [{"name": "a", "split": "exam"}]}, "the evaluation set 'a': unknown split"),
        ({"sets": [{"name": "a", "options": {"sise": "tiny"}}]}, "the evaluation set 'a'.*did you mean 'size'"),
        ({"sets": [{"name": "a", "options": {"split": "val"}}]}, "'split' is not an option"),
    ],
)
def test_unusual_sets_are_one_sentence(evaluation: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(FedAgentGymError, match=said) as caught:
        run(tmp_path / "run", {"evaluation": evaluation})
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["zero-shot", "fedgrpo"])
def test_methods_without_local_models_refuse_to_judge_them(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} trains none"):
        load_config(merge(CONFIG, {"algorithm": {"name": name}}) | {"algorithm": {"name": name}})


def test_a_run_goes_on_only_with_the_same_sets(tmp_path: Path) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text(json.dumps({"problem": "p", "answer": "33"}))
    sets = [{"name": "aime24", "env": "Math", "options": {"source": "aime24", "data": str(data)}}]
    record = run(tmp_path / "run", {"evaluation": {"sets": sets, "every": 1}})
    assert "data" not in record["evaluation_sets"]["aime24"]["options"]
    data.write_text(json.dumps({"problem": "q", "answer": "33"}))
    with pytest.raises(DataError, match="another evaluation sets"):
        resume(tmp_path / "run")


# ---- mixtures -------------------------------------------------------------------------------------------------------


def test_a_mixture_weighs_categories_by_what_a_client_holds() -> None:
    assert measure_mixture({"a": 3, "b": 1}, {"a": 1.0, "b": 0.0}) == (0.75, 1.0)
    assert measure_mixture({"a": 3, "c": 1}, {"a": 0.5, "b": 1.0}) == (0.5, 0.75)
    assert measure_mixture({"c": 1}, {"a": 1.0}) == (0.0, 0.0)


def test_mixtures_of_all_clients_are_those_of_each() -> None:
    from fedagentgym.agents.presets import make_agent

    made = federate(
        MATH, partition="preference", clients=7, tasks_per_client=30, omega=0.9, env={"size": "tiny"}, seed=2
    )
    settings = EvaluationSettings.load({"tasks": 60})
    found = evaluate_sets(make_agent("expert"), open_sets(settings, MATH, {"size": "tiny"}), settings, seed=0)
    lucky = {**found.measure_categories(), "algebra": 0.0}
    by_hand = [measure_mixture(client.pool.categories, lucky) for client in made]
    counts = count_categories(made)
    assert counts.sum() == 210
    for row, client in zip(counts, made, strict=True):
        assert {name: int(n) for name, n in zip(made.table.names, row, strict=True) if n} == client.pool.categories
    told = evaluate_mixtures(found, made)
    assert told["clients"] == 7 and told["mean"] == pytest.approx(1.0)
    assert all(coverage == 1.0 for _, coverage in by_hand)


def test_an_evaluation_is_named_once() -> None:
    with pytest.raises(OptionError, match="at_clients names the same evaluation twice"):
        load_config({**CONFIG, "evaluation": {"at_clients": ["held_out", "held_out"]}})
