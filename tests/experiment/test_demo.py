"""The demo: one client alone beside all together, on the terminal and on the page, from runs that are played."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.base.files import format_yaml
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment import demo
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.report.page import read_comparison, write_report
from fedagentgym.learning import pretrain

SMALL = (
    "learning.tasks_per_step=1",
    "learning.group_size=2",
    "algorithm.local_steps=1",
    "federation={rounds: 1, workers: 0}",
    "evaluation.tasks=8",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo in small, from the package's own agent: nothing is imitated."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAGENTGYM_CACHE", str(folder / "cache"))
        patch.delattr(pretrain, "warm_start")
        assert demo.run(folder / "report", 3, SMALL) == folder / "report" / "index.html"
    return folder / "report"


def test_both_runs_start_alike_and_are_judged_on_the_same_tasks(runs: Path) -> None:
    alone, together = (json.loads((runs / name / "result.json").read_text()) for name in ("alone", "together"))
    assert (alone["algorithm"], together["algorithm"]) == ("local", "fedagent")
    assert alone["curve"][0]["policy"] == together["curve"][0]["policy"] and alone["seed"] == 3
    assert alone["curve"][0]["overall"] == together["curve"][0]["overall"]
    assert alone["spent"]["env_steps"] < together["spent"]["env_steps"]


def test_the_comparison_says_what_the_runs_say(runs: Path) -> None:
    found = read_comparison(runs / "together")
    assert found is not None and found.start is not None
    (one,) = found.alone
    together = json.loads((runs / "together" / "result.json").read_text())["final"]
    alone = json.loads((runs / "alone" / "result.json").read_text())["final"]
    assert (one.client, one.held, one.steps, found.steps) == (2, {"Heat"}, 1, 1)
    assert one.evaluation["overall"] == alone["overall"] and found.together["overall"] == together["overall"]
    difference = together["overall"]["success"]["mean"] - alone["overall"]["success"]["mean"]
    assert one.gain is not None and one.gain.mean == pytest.approx(difference)
    assert one.gain.low <= one.gain.mean <= one.gain.high
    shares = json.loads((runs / "together" / "background.json").read_text())
    assert found.expert == shares["expert_categories"] and found.expert_overall == shares["expert"]
    assert read_comparison(runs / "alone") is None, "a client alone is not compared with itself"


def test_the_page_has_the_matrix_and_the_headline(runs: Path) -> None:
    page = (runs / "index.html").read_text()
    section = page[page.index("<h2>Alone and together</h2>") : page.index("<h2>The federation</h2>")]
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", section)
    assert heads == ["held-out tasks", "start", "client 2 alone", "together", "expert"]
    assert "Together the clients solve" in section and "as many steps of its own (1)" in section
    assert len(re.findall(r"<tr>", section)) == 2 + len(read_categories(runs))
    assert not re.search(r"(src|href)=(?!.data:)|https?://|url\(", page)


def read_categories(runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / "together" / "result.json").read_text())["final"]["categories"]
    return found


def test_without_a_lone_client_beside_it_a_page_has_no_such_section(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    lonely = (runs / "together").rename(tmp_path / "runs" / "together")
    try:
        assert read_comparison(lonely) is None and "Alone and together" not in write_report(lonely).read_text()
    finally:
        lonely.rename(runs / "together")
        write_report(runs / "together")


@pytest.mark.parametrize(
    ("finished", "seed", "kept"),
    [
        ((), 3, {"alone", "together"}),
        (("alone",), 3, {"alone", "together"}),
        (("alone", "together"), 3, set()),
        (("alone",), 4, set()),
    ],
)
def test_a_demo_goes_on_where_it_was_stopped_and_is_played_anew_when_it_is_finished(
    tmp_path: Path, finished: tuple[str, ...], seed: int, kept: set[str]
) -> None:
    def load(number: int) -> dict[str, RunConfig]:
        return {
            name: load_config(preset, [f"seed={number}", f"output.folder={tmp_path / name}"])
            for name, preset in demo.PRESETS.items()
        }

    for name, config in load(3).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(format_yaml(config.plain()))
        if name in finished:
            (tmp_path / name / "result.json").write_text("{}")
    demo._make_room(load(seed))
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_run_of_something_else_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "alone").mkdir()
    mine = format_yaml(load_config("tiny-skills").plain())
    (tmp_path / "alone" / "config.yaml").write_text(mine)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "something else, 'tiny-skills'" in capsys.readouterr().err
    assert (tmp_path / "alone" / "config.yaml").read_text() == mine


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "report"), "--set", "learning.learnig_rate=1"]) == 2
    assert "did you mean 'learning_rate'" in capsys.readouterr().err and not (tmp_path / "report").exists()


def test_without_torch_it_shows_the_clients_and_how_to_train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedagentgym.cli.train.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line[:1].isdecimal()]
    assert [(row[0], row[1]) for row in rows] == list(
        zip("012345", ["Clean", "Cool", "Heat", "Look", "Pick", "Pick2"], strict=True)
    )
    assert all(row[2] == "500" and row[-2:] == ["100", "%"] for row in rows)
    assert "fedagentgym[train]" in " ".join(lines) and not list(tmp_path.iterdir())


def test_the_page_names_the_settings_in_which_a_lone_run_differs(runs: Path, tmp_path: Path) -> None:
    """A run with another learning rate is no comparison of methods alone."""
    shutil.copytree(runs, tmp_path / "runs")
    found = read_comparison(tmp_path / "runs" / "together")
    assert found is not None and not any("differ" in told for _, told in found.sentences)
    change = {"learning": {"learning_rate": 0.5, "advantage": {"name": "other"}}, "federation": {"rounds": 9}}
    place = tmp_path / "runs" / "alone" / "config.yaml"
    place.write_text(yaml.safe_dump(merge(yaml.safe_load(place.read_text()), change)))
    found = read_comparison(tmp_path / "runs" / "together")
    assert found is not None
    ((_, told),) = found.sentences
    keys = "learning.advantage, learning.learning_rate, federation.rounds"
    assert told.startswith("Together minus alone: ") and told.endswith(f" The two runs also differ in {keys}.")
    write_report(tmp_path / "runs" / "together")
    page = (tmp_path / "runs" / "together" / "report.html").read_text()
    assert f"The two runs also differ in {keys}." in page and "local (other settings)" in page
