"""A model of the hub, from a stand-in of the hub that speaks its protocol on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from fedagentgym.agents.model.sources import choose_files
from fedagentgym.agents.model.store import find_model, locate_model
from fedagentgym.base.errors import DataError
from tests.hub_server import COMMIT, HubServer
from tests.network import stop_server

from .models import make_policy


class Hub(HubServer):
    """Serves one folder as the repository `someone/Tiny-Model`; `failing`: names of files that are refused once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.failing = folder, list[str](), set[str]()
        super().__init__()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = request.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/someone/Tiny-Model"):
            names = [file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file()]
            about = {"id": "someone/Tiny-Model", "sha": COMMIT, "cardData": {"license": "mit"}, "tags": []}
            plain = {**about, "siblings": [{"rfilename": name} for name in names]}
            self.send(request, json.dumps(plain).encode(), body=body)
        elif path.startswith(f"/someone/Tiny-Model/resolve/{COMMIT}/") and name not in self.failing:
            if body:
                self.asked.append(name)
            self.send_file(request, (self.folder / name).read_bytes(), body)
        else:
            self.send(request, status=404 if name not in self.failing else 403)
            self.failing.discard(name)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    make_policy("own").save(tmp_path / "repository")
    (tmp_path / "repository" / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / "repository" / "consolidated.safetensors").write_bytes(b"the same weights again")
    (tmp_path / "repository" / "onnx").mkdir()
    (tmp_path / "repository" / "onnx" / "config.json").write_text("{}", "utf-8")
    made = Hub(tmp_path / "repository")
    yield made
    stop_server(made.server)


TWICE = "import sys; from fedagentgym.cli.main import main; print([main(sys.argv[1:]), main(sys.argv[1:])])"
"""The same command two times in one process: it imports for seconds."""


def test_a_models_own_files_are_fetched_once_and_found_by_name_and_by_hub_id(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.failing = {"model.safetensors"}
    done = hub.run(tmp_path, "-c", TWICE, "model", "add", "someone/Tiny-Model")
    assert done.stdout.endswith("[2, 0]\n") and "licence: mit" in done.stdout, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if not line.startswith("adding tiny-model, ")]
    assert "cannot fetch someone/Tiny-Model from the hub" in said, done.stderr
    assert "model.safetensors" in hub.asked and not hub.failing
    assert sorted(set(hub.asked)) == sorted(hub.asked), "no file is fetched twice"
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    found = find_model("tiny-model")
    assert found is not None and found.source == "hub someone/Tiny-Model"
    assert json.loads((found.folder / "model.json").read_text("utf-8"))["commit"] == COMMIT
    assert not {"pytorch_model.bin", "consolidated.safetensors", "onnx"} & set(os.listdir(found.folder))
    assert locate_model("tiny-model") == locate_model("someone/Tiny-Model") == found.folder
    assert not list((tmp_path / "cache" / "downloads").iterdir())


def test_a_model_that_the_hub_does_not_have_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    failed = hub.run(tmp_path, "-m", "fedagentgym", "model", "add", "someone/nothing", "--revision", "v1")
    assert failed.returncode == 2 and failed.stderr.startswith(
        "fedagentgym: cannot fetch someone/nothing from the hub: "
    )
    assert failed.stderr.count("\n") == 1, failed.stderr


def test_pickles_are_never_taken() -> None:
    with pytest.raises(DataError, match="a/b has no weights in safetensors files"):
        choose_files(["config.json", "pytorch_model.bin", "onnx/model.safetensors"], "a/b")
    wanted = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "tokenizer.model",
        "merges.txt",
        "LICENSE",
        "README.md",
    ]
    assert choose_files([*wanted, "model.gguf", "rust_model.ot", "run.py", "x/config.json"], "a/b") == wanted
