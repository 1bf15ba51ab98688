"""`fedagentgym hub` against a stand-in of the hub that speaks its protocol on this machine, with faults."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.base import hub as hub_module
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.hub import check_hub_name, pull_folder
from fedagentgym.cli.hub import identify, prepare
from fedagentgym.partitions.client_split import ClientSplit
from tests.committed import RESULTS
from tests.hub_server import COMMIT, HubServer
from tests.network import stop_server


class Hub(HubServer):
    """Repositories in memory: kind and name -> path -> content. `cut`: a file whose transfer breaks off."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], dict[str, bytes]] = {}
        self.cut: str | None = None
        super().__init__()

    def change(self, request: BaseHTTPRequestHandler, sent: bytes) -> None:
        path = request.path.partition("?")[0].strip("/").split("/")
        if path[1] == "repos":
            asked = json.loads(sent)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.repositories.setdefault((f"{asked.get('type', 'model')}s", name), {})
            return self.send_plain(request, {"url": f"{self.url}/{name}", "name": name})
        if len(path) < 5:
            return self.send_plain(request, {"errors": [], "warnings": []})  # the card is valid
        files = self.repositories[path[1], f"{path[2]}/{path[3]}"]
        if path[4] == "preupload":
            named = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(sent)["files"]
            ]
            return self.send_plain(request, {"files": named})
        for line in map(json.loads, sent.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        kind = "" if path[1] == "models" else f"{path[1]}/"
        url = f"{self.url}/{kind}{path[2]}/{path[3]}/commit/{COMMIT}"
        return self.send_plain(request, {"success": True, "commitOid": COMMIT, "commitUrl": url})

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = request.path.partition("?")[0].strip("/").split("/")
        if path[0] == "api" and path[1] in ("datasets", "models"):
            files = self.repositories.get((path[1], "/".join(path[2:4])))
            if files is None:
                return self.send_plain(request, {"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            if "tree" in path:
                entries = [
                    {"type": "file", "path": one, "size": len(data), "oid": "0" * 40} for one, data in files.items()
                ]
                return self.send_plain(request, entries)
            siblings = [{"rfilename": one, "size": len(data)} for one, data in files.items()]
            return self.send_plain(
                request, {"id": "/".join(path[2:4]), "sha": COMMIT, "siblings": siblings, "tags": []}
            )
        if "resolve" not in path:
            return self.send_plain(request, {}, 404)
        kind = "datasets" if path[0] == "datasets" else "models"
        path = path[1:] if kind == "datasets" else path
        name = "/".join(path[4:])
        data = self.repositories[kind, "/".join(path[:2])][name]
        if body and name == self.cut:
            request.send_response(200)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data[: len(data) // 2])
            return None
        return self.send_file(request, data, body)

    def send_plain(self, request: BaseHTTPRequestHandler, value: Any, status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        self.send(request, json.dumps(value).encode(), status, headers=named)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    stop_server(made.server)


@pytest.fixture(scope="module")
def split() -> ClientSplit:
    return fedagentgym.federate("fedagentgym/Guess-v0", partition="dirichlet", beta=0.5, clients=4)


def list_parts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in ("hf", "cache", "split.json")]


@pytest.mark.slow
def test_a_split_is_pushed_and_pulled_and_loaded_by_its_name(hub: Hub, split: ClientSplit, tmp_path: Path) -> None:
    file = split.save(tmp_path / "split.json")
    pushed = hub.run(tmp_path, "-m", "fedagentgym", "hub", "push", file, "me/clients")
    assert pushed.returncode == 0, pushed.stderr
    held = hub.repositories["datasets", "me/clients"]
    assert set(held) >= {"README.md", "croissant.json", "fedagentgym.json", "split.json"}
    assert split.digest in held["README.md"].decode()
    again = hub.run(tmp_path, "-m", "fedagentgym", "hub", "push", file, "me/clients")
    assert again.returncode == 0, again.stderr
    pulled = hub.run(tmp_path, "-m", "fedagentgym", "hub", "pull", "me/clients", "--out", tmp_path / "pulled")
    assert pulled.returncode == 0 and split.digest in pulled.stdout, pulled.stderr
    assert fedagentgym.load_client_split(tmp_path / "pulled" / "split.json").digest == split.digest
    program = "import fedagentgym; print(fedagentgym.load_client_split('me/clients').digest)"
    assert hub.run(tmp_path, "-c", program).stdout.strip() == split.digest
    hub.repositories.clear()
    assert hub.run(tmp_path, "-c", program).stdout.strip() == split.digest, "it is in the cache"
    missing = hub.run(tmp_path, "-m", "fedagentgym", "hub", "pull", "me/clients", "--out", tmp_path / "more")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1, missing.stderr
    assert missing.stderr.startswith("fedagentgym: cannot pull me/clients: ") and not (tmp_path / "more").exists()


@pytest.mark.slow
def test_a_transfer_that_breaks_off_or_a_changed_file_leaves_nothing(
    hub: Hub, split: ClientSplit, tmp_path: Path
) -> None:
    file = split.save(tmp_path / "split.json")
    assert hub.run(tmp_path, "-m", "fedagentgym", "hub", "push", file, "me/clients").returncode == 0
    hub.cut = "split.json"
    broken = hub.run(tmp_path, "-m", "fedagentgym", "hub", "pull", "me/clients", "--out", tmp_path / "pulled")
    assert broken.returncode == 2 and broken.stderr.count("\n") == 1, broken.stderr
    hub.cut, held = None, hub.repositories["datasets", "me/clients"]
    held["split.json"] = held["split.json"].replace(b"guess/train/00001", b"guess/train/00002")
    changed = hub.run(tmp_path, "-m", "fedagentgym", "hub", "pull", "me/clients", "--out", tmp_path / "pulled")
    assert changed.returncode == 2 and changed.stderr.count("\n") == 1, changed.stderr
    held["../outside.json"] = b"{}"
    held["run.py"] = b"print()"
    assert list_parts(tmp_path) == []


LINES = (
    "import json, sys; from fedagentgym.cli.main import main; print([main(line) for line in json.loads(sys.argv[1])])"
)
"""Commands one after the other in one process: the library is imported once."""


def test_a_result_and_an_agent_come_back_as_they_were(hub: Hub, tmp_path: Path) -> None:
    result, agent = RESULTS / "methods-small-skills-v1" / "pubswap.zip", tmp_path / "agent"
    make_agent_folder(agent)
    pairs = {"me/result": result, "me/agent": agent}
    folders = {name: tmp_path / name.replace("/", "-") for name in pairs}
    lines = [("push", path, name) for name, path in pairs.items()] + [
        ("pull", name, "--out", folder) for name, folder in folders.items()
    ]
    done = hub.run(tmp_path, "-c", LINES, json.dumps([["hub", *map(str, line)] for line in lines]))
    assert done.stdout.endswith("[0, 0, 0, 0]\n"), done.stderr
    for name, path in pairs.items():
        back = folders[name]
        assert identify(back) == identify(path)
        for file in path.rglob("*") if path.is_dir() else [path]:
            found = list(back.rglob(file.name))
            assert [one.read_bytes() for one in found] == [file.read_bytes()]
    assert ("models", "me/agent") in hub.repositories
    held = hub.repositories["datasets", "me/result"]
    assert {"runs.parquet", "README.md"} <= set(held) and any(path.endswith("pubswap.zip") for path in held)


def make_agent_folder(folder: Path) -> None:
    folder.mkdir()
    plain = {"agent": {"name": "tiny", "model": "."}, "env": {"id": "fedagentgym/Guess-v0"}, "run": {"name": "mine"}}
    (folder / "agent.yaml").write_text(yaml.safe_dump({"format": "fedagentgym/agent-1", **plain}), "utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_what_a_repository_of_a_split_holds(split: ClientSplit, tmp_path: Path) -> None:
    kind, about = prepare(split.save(tmp_path / "mine.json"), tmp_path / "out", "me/clients")
    assert kind == "dataset" and about == f"the client split {split.digest}" == identify(tmp_path / "out")[1]
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\ntags:") and 'load_client_split("me/clients")' in card and split.pool.digest in card
    head = read_head(card)
    assert head["license"] == "apache-2.0" and head["size_categories"] == ["n<1K"]
    (config,) = head["configs"]
    (rows,) = config["data_files"]
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    held = pyarrow.parquet.read_table(tmp_path / "out" / rows["path"]).to_pylist()
    assert [[row["task"] for row in held if row["client"] == one.index] for one in split] == [
        list(one.tasks) for one in split
    ]
    described = json.loads((tmp_path / "out" / "croissant.json").read_text())
    assert [file["contentUrl"] for file in described["distribution"]] == ["split.json", "clients.parquet"]


def test_a_folder_and_what_was_pulled_can_be_pushed(split: ClientSplit, tmp_path: Path) -> None:
    """A split of many assignments is a folder of integers, of which the hub gets one zip."""
    _, about = prepare(split.save(tmp_path / "large"), tmp_path / "first", "me/clients")
    assert identify(tmp_path / "first")[1] == about and all(
        hub_module._is_taken(one) for one in names(tmp_path / "first")
    )
    assert prepare(tmp_path / "first", tmp_path / "second", "me/again")[1] == about
    assert names(tmp_path / "first") == names(tmp_path / "second")


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def read_head(card: str) -> dict[str, Any]:
    """The metadata of a card, as the library reads it."""
    hub = pytest.importorskip("huggingface_hub")
    found = hub.DatasetCard(card).data.to_dict()
    assert found == yaml.safe_load(card.split("---")[1])
    return dict(found)


def test_what_is_no_name_or_nothing_to_push_is_one_sentence(tmp_path: Path) -> None:
    for name in ("mine", "a/b/c", "../x", "a/..b", "https://x/y", ""):
        with pytest.raises(OptionError, match="OWNER/NAME"):
            check_hub_name(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.txt").write_text("words")
    for path in (tmp_path / "empty", tmp_path / "words.txt", tmp_path / "nowhere"):
        with pytest.raises(DataError):
            identify(path)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"), [((200, 200, 9), 400, 2), ((200, 201, 0), 400, 0), ((None, None, None), 300, 2)]
)
def test_a_repository_of_too_many_bytes_is_refused(
    sizes: tuple[int | None, ...], most: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the sizes that the hub declares, before anything is fetched, or by those of the files if it declares none."""
    (tmp_path / "sent.json").write_bytes(b"{}" * 100)
    fetched = list[str]()
    names = ("a.json", "b.json", "run.py")
    files = [SimpleNamespace(rfilename=name, size=size) for name, size in zip(names, sizes, strict=True)]

    def fetch(name: str, path: str, **_: Any) -> str:
        fetched.append(path)
        return str(tmp_path / "sent.json")

    api = SimpleNamespace(dataset_info=lambda name, **_: SimpleNamespace(siblings=files, sha=COMMIT))
    library = SimpleNamespace(HfApi=lambda: api, hf_hub_download=fetch)
    monkeypatch.setattr(hub_module, "open_hub", lambda failure: nullcontext(library))
    monkeypatch.setitem(hub_module.MAX_BYTES, "dataset", most)
    fits = sizes == (200, 200, 9)
    with nullcontext() if fits else pytest.raises(DataError, match=f"^me/clients holds more than {most} bytes"):
        pull_folder("me/clients", tmp_path / "pulled", lambda made: None)
    assert len(fetched) == expected and (tmp_path / "pulled").exists() is fits
