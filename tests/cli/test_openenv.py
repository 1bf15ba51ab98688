"""`fedagentgym openenv init`: a whole package or nothing."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
import yaml

import fedagentgym
from fedagentgym.cli.main import main


def run(*words: object) -> int:
    return main(["openenv", "init", *map(str, words)])


def test_a_package_of_an_environment(tmp_path: Path) -> None:
    wheel = tmp_path / "fedagentgym-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    folder = tmp_path / "shop"
    assert run("webshop", "--env-set", "size=tiny", "--env-set", "split=val", "--out", folder, "--wheel", wheel) == 0
    manifest = yaml.safe_load((folder / "openenv.yaml").read_text())
    assert manifest["name"] == "webshop" and manifest["app"] == "server.app:app" and manifest["spec_version"] == 1
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["uv"]["sources"]["fedagentgym"]["path"] == f"wheels/{wheel.name}"
    assert (folder / "wheels" / wheel.name).read_bytes() == b"wheel"
    assert "open_env(\"fedagentgym/WebShop-v0\", size='tiny', split='val')" in (folder / "server/app.py").read_text()
    assert "python -m server.app" in (folder / "README.md").read_text()
    assert "uv run server" in (folder / "README.md").read_text()
    head = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert (head["sdk"], head["app_port"]) == (
        "docker",
        manifest["port"],
    )  # a Space, once its Dockerfile is at the root
    for file in folder.rglob("*.py"):
        ast.parse(file.read_text())
    assert not [file for file in folder.rglob("*") if file.is_file() and "${" in file.read_text()]


@pytest.mark.parametrize(("reward", "highest"), [("score", 1.0), ("success10", 10.0)])
def test_the_range_of_rewards_is_that_of_the_environment(reward: str, highest: float, tmp_path: Path) -> None:
    assert run("guess", "--env-set", f"reward={reward}", "--out", tmp_path / "made") == 0
    manifest = yaml.safe_load((tmp_path / "made" / "openenv.yaml").read_text())
    assert manifest["validation"]["reward"]["range"] == [0.0, highest]


def test_a_package_of_one_client_holds_the_split(tmp_path: Path) -> None:
    split = fedagentgym.federate("fedagentgym/Guess-v0", clients=3, tasks_per_client=4)
    file = split.save(tmp_path / "split.json")
    folder = tmp_path / "guess_env"
    assert run("guess", "--client-split", file, "--client", 1, "--out", folder) == 0
    again = fedagentgym.load_client_split(folder / "client_split.json")
    assert again.digest == split.digest and "client=1" in (folder / "server/app.py").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gues"], "unknown environment"),
        (["guess", "--client", "1"], "--client-split is missing"),
        (["guess", "--env-set", "sise=3"], "sise"),
        (["guess", "--wheel", "nowhere.whl"], "no wheel"),
        (["math", "--env-set", "data=mine.jsonl"], "mine.jsonl"),
    ],
)
def test_what_cannot_be_packed_is_one_sentence_and_writes_nothing(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert run(*words, "--out", folder) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1 and not folder.exists()


def test_a_folder_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert run("guess", "--out", tmp_path) == 2
    assert "exists already" in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
