"""Every row of every table has the settings that its paper states, and no test set chooses a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.files import parse_yaml
from fedagentgym.cli.main import main
from fedagentgym.envs.make import read_options
from fedagentgym.envs.protocols import count_published
from fedagentgym.envs.reasoning.math import MathEnv
from fedagentgym.experiment.config import RunConfig, list_presets, list_variants, load_config
from fedagentgym.experiment.opened import open_data
from fedagentgym.leaderboard.suite import count_tasks, list_suites, load_suite, to_yaml

from .conftest import Workshop
from .rows import list_rows

STATED = parse_yaml((files("fedagentgym.experiment") / "stated.yaml").read_text("utf-8"), "stated.yaml")
ROWS = {row[0]: row for row in list_rows().values() if len(row) == 1}
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "papers.md").read_text("utf-8")


@cache
def expand(row: str) -> RunConfig:
    return load_config(row)


def split_row(row: str) -> tuple[str, set[str]]:
    preset, _, variants = row.partition(":")
    return preset, set(filter(None, variants.split(",")))


def find_rows(rule: Mapping[str, Any]) -> Iterator[str]:
    """The rows about which a statement is."""
    for row in ROWS:
        preset, variants = split_row(row)
        with_any, without = set(rule.get("with", ())), set(rule.get("without", ()))
        method = rule.get("method")
        if preset not in rule["presets"] or variants & without or (with_any and not variants & with_any):
            continue
        if not set(rule.get("all", ())) <= variants:
            continue
        if method is None or expand(row).algorithm["name"] == method:
            yield row


def read_value(config: RunConfig, key: str) -> Any:
    """The value of a key of a configuration, or what follows from several keys."""
    plain = config.plain()
    roles, algorithm = plain["partition"]["roles"], plain["algorithm"]
    derived = {
        "prompt": lambda: f"{config.agent.system}\n{config.agent.request}",
        "steps": lambda: config.federation.rounds * algorithm["local_steps"],
        "batch": lambda: config.learning.episodes_per_step,
        "trained": lambda: algorithm["expert_steps"] > 0,
        "held": lambda: round(roles["server"] * plain["partition"]["server_overlap"]),
        "samples": lambda: (
            roles["server"]
            if algorithm["name"] == "fedgrpo"
            else plain["env"]["options"]["train_tasks"] - roles["auxiliary"]
        ),
    }
    if key in derived:
        return derived[key]()
    for part in key.split("."):
        plain = plain[part]
    return plain


@pytest.mark.parametrize("paper", list(STATED))
def test_every_row_has_what_its_paper_states(paper: str) -> None:
    compared: set[str] = set()
    for statement in STATED[paper]:
        rows = list(find_rows(statement["rows"]))
        assert rows, f"{paper}, {statement['where']}: no row has {statement['rows']}"
        for row in rows:
            left_out = [key for name in split_row(row)[1] for key in statement.get("except", {}).get(name, ())]
            for key, value in statement["states"].items():
                if key not in left_out:
                    assert read_value(expand(row), key) == value, (
                        f"{paper}, {statement['where']}: {row} has another {key}"
                    )
        compared |= set(rows)
    presets = {preset for statement in STATED[paper] for preset in statement["rows"]["presets"]}
    assert {row for row in ROWS if split_row(row)[0] in presets and "zero-shot" not in row} <= compared


def test_every_part_of_a_row_is_on_the_page() -> None:
    missing = {
        part
        for row in ROWS
        for part in {split_row(row)[0], *split_row(row)[1]}
        if f"`{part}" not in PAGE and f"{part}`" not in PAGE
    }
    assert not missing, f"docs/reference/papers.md has no line for {sorted(missing)}"


# ---- what chooses a round ---------------------------------------------------------------------------------------------


def list_configurations() -> Iterator[tuple[str, RunConfig]]:
    """Every preset with each of its variants that goes alone, and every row."""
    yield from ((row, expand(row)) for row in ROWS)
    for preset in list_presets():
        if not preset.startswith("paper-"):
            sets = parse_yaml(
                (files("fedagentgym.experiment") / "presets" / f"{preset}.yaml").read_text("utf-8"), preset
            )
            judged = [name for name in list_variants(preset) if "evaluation" in sets["variants"][name]]
            for name in ("", *judged):
                try:
                    yield f"{preset}:{name}", expand(f"{preset}:{name}" if name else preset)
                except Exception as error:
                    assert "unknown key 'algorithm." in str(error), name


def test_no_test_set_takes_part_in_choosing_a_round() -> None:
    for name, config in list_configurations():
        judged = config.evaluation
        assert judged is not None
        choosing = [one for one in judged.sets if (one.split != "test" if one.select is None else one.select)]
        assert all(one.split == "val" and one.options is None for one in choosing), f"{name} chooses by {choosing}"
    for suite in map(load_suite, list_suites()):
        assert suite.selection.split == "val" != suite.ranking.split or suite.track == "agents", suite.name


@pytest.mark.parametrize("name", list_suites())
def test_every_suite_counts_the_tasks_by_which_it_chooses_and_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data, where these are published."""
    monkeypatch.setenv("FEDAGENTGYM_DATA", "/nowhere")
    suite = load_suite(name)
    for scenario in suite.scenarios:
        counts, ranked = count_tasks(suite, scenario), suite.get_ranking(scenario).split
        splits = [ranked] if suite.track == "agents" else list(dict.fromkeys([suite.selection.split, ranked]))
        assert list(counts) == splits and all(min(sizes) > 0 for sizes in counts.values())


def test_a_suite_that_would_rank_by_nothing_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The published code's division of WebShop has no test split; that of the original has, and so has the suite."""
    suite = load_suite("paper-fedagent-webshop-v1")
    assert count_tasks(suite, "uniform") == {"val": (1000,), "test": (500,)}
    empty = tmp_path / "empty.yaml"
    empty.write_text(to_yaml(suite).replace("goal_order: webshop", "goal_order: fedagent"))
    for command in (["bench", "show", str(empty)], ["bench", "plan", str(empty)]):
        assert main(command) == 2
        assert "the split 'test' has 0 tasks" in capsys.readouterr().err
    assert main(["bench", "plan", "paper-fedgrpo-v1"]) == 0
    assert "500 tasks of val choose the round, 500 or 5,000 tasks of test rank" in " ".join(
        capsys.readouterr().out.split()
    )


def test_published_counts_follow_the_options() -> None:
    options = {"source": "math", "merge_splits": True, "holdout": {"test": 1250, "val": 200}}

    def count(**options: Any) -> tuple[Mapping[str, int], ...]:
        return count_published(MathEnv, read_options(MathEnv.id, options))

    assert count(**options) == ({"train": 11_050, "val": 200, "test": 1250},) * 2
    drawn = {"source": "gsm8k", "holdout": 740, "train_tasks": 2100}
    assert count(**drawn) == ({"train": 2100, "val": 740, "test": 1319},)
    assert count(source="dapo-processed", subset="en")[0]["train"] == 14_116
    assert count(size="tiny") == ()


# ---- FedGRPO's questions, counted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "share"), [("paper-fedgrpo:qwen2.5-math-7b,without-answers", 0.0), ("paper-fedgrpo", 1.0)]
)
def test_who_holds_the_questions_of_the_server(row: str, share: float, workshop: Workshop) -> None:
    """Without answers no client holds one, so no expert is trained on a question that it scores; with them all are divided."""
    client_split, _ = open_data(load_config(workshop.shrink((row,))))
    questions = set(client_split.role("server").ids)
    held = {task for client in client_split for task in client.tasks}
    assert len(questions) == len(held) == 2000 // 50
    assert len(questions & held) == share * len(questions)
    assert not set(client_split.role("auxiliary").ids) & (questions | held)
