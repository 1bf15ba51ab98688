"""`fedagentgym split` and `fedagentgym label`: what they do, and one sentence with exit code 2 for every mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.partitions import federate
from fedagentgym.partitions.side_by_side import plot_side_by_side

MAKE = ["split", "make", "preference", "--env", "Guess", "--clients", "6", "--tasks-per-client", "20", "--omega", "0.9"]


def test_make_show_verify_plot_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.zip"
    assert (
        main([*MAKE, "--seed", "3", "--role", "public=30", "--out", str(first), "--plot", str(tmp_path / "a.png")]) == 0
    )
    assert main([*MAKE, "--seed", "4", "--out", str(second), "--json"]) == 0
    capsys.readouterr()
    assert main(["split", "show", str(first)]) == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("preference", "6 with 120 tasks", "Jaccard", "dispersion", "public 30", "sha256:")
    )
    assert main(["split", "show", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["clients"] == 6
    assert main(["split", "verify", str(first)]) == 0 and main(["split", "verify", str(second), "--json"]) == 0
    capsys.readouterr()
    assert main(["split", "plot", str(second), "--out", str(tmp_path / "b.svg")]) == 0
    assert (tmp_path / "a.png").exists() and (tmp_path / "b.svg").exists()
    capsys.readouterr()
    assert main(["split", "diff", str(first), str(second)]) == 0
    assert "role.public" in (out := capsys.readouterr().out) and "6 of 6 common clients differ" in out
    assert main(["split", "diff", str(first), str(first)]) == 0
    assert "the same split" in capsys.readouterr().out
    assert main(["split", "diff", str(first), str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == 6
    assert main(["split", "presets"]) == 0 and main(["split", "presets", "--json"]) == 0


def test_make_has_an_option_for_every_parameter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, out = ["split", "make"], ["--env", "Guess", "--clients", "3", "--out", str(tmp_path / "a.json"), "--json"]
    for words, expected in (
        (["pathological", "--categories-per-client", "2"], {"categories_per_client": 2}),
        (["dirichlet", "--alpha", "0.3", "--equal-size", "true"], {"beta": 0.3, "equal_size": True}),
        (["shards", "--shards-per-client", "2"], {"shards_per_client": 2}),
        (["by_source", "--sources", "{small+medium: 2, large: 1}"], {"sources": {"small+medium": 2, "large": 1}}),
    ):
        assert main([*command, *words, *out]) == 0
        shown = json.loads(capsys.readouterr().out)["sampler"]["parameters"]
        assert {name: shown[name] for name in expected} == expected
    assert main([*command, "pathological", "--categories-per-client", "many", *out]) == 2
    assert "categories_per_client" in capsys.readouterr().err
    assert main([*command, "--help"]) == 0
    assert "--shard-size" in (shown := capsys.readouterr().out) and "--alpha" in shown


def test_a_figure_that_cannot_be_drawn_is_refused_before_the_split_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*MAKE, "--out", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]) == 2
    assert "[plots]" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [False, True])
def test_a_split_and_its_figure_are_written_together_or_not_at_all(
    kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, figure, blocked = tmp_path / "a.json", tmp_path / "a.png", tmp_path / "b.json"
    blocked.mkdir()
    if kept:
        figure.write_bytes(b"before")
    for out, plot in (
        (file, Path("/proc/x.png")),
        (blocked, figure),
        (figure, figure),
        (tmp_path / "c", tmp_path / "c/a.png"),
    ):
        assert main([*MAKE, "--out", str(out), "--plot", str(plot)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
        assert {path.name for path in tmp_path.iterdir()} == ({"b.json", "a.png"} if kept else {"b.json"})
        assert not kept or figure.read_bytes() == b"before"


def test_only_splits_of_the_same_tasks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tmp_path / "split.json"
    assert main([*MAKE, "--out", str(stored)]) == 0
    capsys.readouterr()
    for more in ([], ["--json"], ["--out", str(tmp_path / "two.svg")]):
        assert main(["split", "compare", str(stored), "uniform", "--env", "Skills", *more]) == 2
        out, err = capsys.readouterr()
        assert not out and "only splits of the same tasks can be compared" in err
    assert not (tmp_path / "two.svg").exists()
    with pytest.raises(OptionError, match="unit must be one of share, tasks, got 'x'"):
        plot_side_by_side([federate("Guess", clients=2)], unit="x")  # type: ignore[arg-type]


def test_compare_files_and_samplers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, figure = tmp_path / "a.json", tmp_path / "both.png"
    assert main([*MAKE, "--out", str(stored)]) == 0
    assert main(["split", "make", "natural", "--by", "high", "--env", "Guess", "--out", str(tmp_path / "n.json")]) == 0
    assert "3 with 600 tasks" in capsys.readouterr().out
    sources = "by_source,sources={small+medium: 2, large: 2}"
    command = ["split", "compare", str(stored), "dirichlet,beta=0.3", sources, "--env", "Guess", "--clients", "4"]
    assert main([*command, "--out", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "Preference: \u03c9 = 0.9" in shown and "Dirichlet: \u03b2 = 0.3" in shown and figure.stat().st_size > 5000
    assert main([*command, "--json"]) == 0
    assert [row["statistics"]["clients"] for row in json.loads(capsys.readouterr().out)] == [6, 4, 4]
    for wrong, said in (
        (["nosuch"], "unknown split file or sampler"),
        (["uniform,tasks_per_client=5"], "name one with --env"),
        ([str(stored), "--unit", "pounds", "--out", "x.png"], "--unit is share or tasks"),
        ([str(stored), "--out", "x.gif"], ".png or .svg"),
        (["uniform,env=x", "--env", "Guess"], "'env' is no parameter"),
    ):
        assert main(["split", "compare", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_label_then_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, split = tmp_path / "labels.jsonl", tmp_path / "hard.json"
    command = [
        "label",
        "Guess",
        "--error",
        "0.6",
        "--turns",
        "6",
        "--out",
        str(labels),
        "--pack",
        str(tmp_path / "packed.json"),
    ]
    assert main(command) == 0 and main(command) == 0
    assert "of 600 tasks count as solved" in capsys.readouterr().out
    assert json.loads((tmp_path / "packed.json").read_text())["policy"]["name"] == "handicapped"
    hard = ["split", "make", "hardness", "--env", "Guess", "--clients", "5", "--tasks-per-client", "20", "--xi", "1"]
    assert main([*hard, "--labels", str(labels), "--out", str(split)]) == 0
    assert main(["split", "verify", str(split)]) == 0
    assert main(["label", "Guess", "--agent", "random", "--turns", "3", "--out", str(tmp_path / "random.jsonl")]) == 0


def test_any_agent_can_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "expert.jsonl")
    assert main(["label", "Guess", "--agent", "expert", "--attempts", "1", "--threshold", "1", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "600 of 600 tasks count as solved" in shown and "one-sided" in shown


def test_worlds_and_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = [
        "split",
        "make",
        "uniform",
        "--env",
        "Math",
        "--env-set",
        "size=tiny",
        "--clients",
        "3",
        "--tasks-per-client",
        "5",
    ]
    out = ["--out", str(tmp_path / "w.json"), "--json"]
    assert main([*base, "--variant", "{kind: wording, choices: 3}", "--set", "disjoint=true", *out]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variant"] == {"kind": "wording", "choices": 3} and found["sampler"]["parameters"]["disjoint"] is True
    assert found["env"]["options"] == {"size": "tiny"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split", "make", "preferense", "--env", "Guess", "--clients", "2"], "did you mean 'preference'"),
        (["split", "make", "preference", "--clients", "2"], "name a sampler and an environment"),
        (["split", "make", "--preset", "nothing"], "unknown partition preset"),
        ([*MAKE[:7]], "needs omega"),
        ([*MAKE[:-1], "-1"], "omega"),
        ([*MAKE, "--role", "public"], "write it as name=number"),
        ([*MAKE, "--role", f"public={'9' * 5000}"], "write it as name=number"),
        ([*MAKE, "--variant", "[1"], "--variant: not YAML"),
        ([*MAKE, "--set", "anchr=log"], "did you mean 'anchor'"),
        ([*MAKE, "--out", "split.gif/../x/y.json", "--split", "val"], "never divided among clients"),
        (["split", "show", "nowhere.json"], "there is no split file nowhere.json"),
        (["split", "plot", "nowhere.json"], "there is no split file nowhere.json"),
        ([*MAKE, "--plot", "a.gif"], "written as .png or .svg"),
        (["label", "Guess", "--out", "."], "it is a folder"),
        (["label", "Nothing"], "unknown environment 'Nothing'"),
        (["label", "Guess", "--threshold", "5"], "threshold must be between 1 and the 4 attempts"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error


def test_a_split_that_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed, with its digest made anew: shown without complaint, refused by verify."""
    from dataclasses import replace

    from fedagentgym.partitions import split_files
    from fedagentgym.partitions.client_split import load_client_split

    path = tmp_path / "a.json"
    assert main([*MAKE, "--out", str(path)]) == 0
    opened = load_client_split(path)
    split_files.save(replace(opened.record, seed=9), tmp_path / "b.json", opened.table.ids)
    assert main(["split", "show", str(tmp_path / "b.json")]) == 0
    assert main(["split", "verify", str(tmp_path / "b.json")]) == 2
    assert "re-sampling: 6 of 6 clients do not follow from the seed" in capsys.readouterr().err.replace("\n", " ")
