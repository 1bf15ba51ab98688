"""Clients that hold their own tasks: what leaves their machines, and what their owners refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml

from fedagentgym import federate, train
from fedagentgym.algorithms import APPLICATION, HELD_APPLICATION
from fedagentgym.algorithms.base import ALGORITHMS, describe_method
from fedagentgym.algorithms.card import METRICS, SECTIONS, Card, Scale, Sent
from fedagentgym.algorithms.held import limit_reply
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, RefusedError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import resume
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.resident import NodeConfig, ResidentWorker
from fedagentgym.federation.exchange import ApplicationSpec, Reply, Request
from fedagentgym.federation.message import Message
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.held import Allowed, HeldSettings, Shared, export_client
from fedagentgym.testing.runs import SMALL_CONFIG

WORKERS: dict[int, ResidentWorker] = {}


class LocalNodes:
    """Resident workers of this process in place of Flower's nodes."""

    def __init__(self, recipe: ApplicationSpec) -> None:
        self._recipe = recipe.plain()

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        return [self._serve(request) for request in requests]

    def _serve(self, request: Request) -> Reply:
        header, message = WORKERS[request.client].handle_request(request, self._recipe)
        return Reply.from_header(request.client, header, message, b"" if header["changed"] else None)

    def commit(self, heads: Any) -> None: ...
    def prune(self, heads: Any) -> None: ...
    def close(self) -> None: ...


def open_nodes(recipe: ApplicationSpec, **_: Any) -> LocalNodes:
    return LocalNodes(recipe)


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    BACKENDS.register("local-nodes", open_nodes, replace=True)
    WORKERS.clear()
    yield
    WORKERS.clear()


CONFIG: dict[str, Any] = {
    **merge(SMALL_CONFIG, {"algorithm": {"name": "fedagent", "local_steps": 1}, "evaluation": {"tasks": 2}}),
    "partition": {"sampler": "held", "clients": 3},
    "federation": {"rounds": 2, "backend": "local-nodes"},
}


def configure(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    plain = CONFIG
    for change in changes:
        plain = merge(plain, change)
    return merge(plain, {"output": {"folder": str(folder)}})


def start_node(folder: Path, place: Path, **more: str) -> ResidentWorker:
    node = {
        "tasks": str(folder),
        "workplace": str(place),
        "trust": f"{APPLICATION},{HELD_APPLICATION}",
        **more,
    }
    worker = ResidentWorker(NodeConfig.from_node_config(node))
    WORKERS[worker.place.clients[0]] = worker
    return worker


def start_nodes(split: ClientSplit, tmp_path: Path, **settings: Any) -> list[Path]:
    folders = [export_client(client, tmp_path / f"data{client.index}") for client in split]
    for folder in folders:
        change_client(folder, **settings)
        start_node(folder, tmp_path / f"node-{folder.name}")
    return folders


def change_client(folder: Path, **settings: Any) -> None:
    file = folder / "client.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **settings}))


def guess_split() -> ClientSplit:
    return federate("fedagentgym/Guess-v0", partition="preference", clients=3, tasks_per_client=8, omega=0.9)


def test_exported_clients_end_where_the_split_file_ends(tmp_path: Path) -> None:
    split = guess_split()
    start_nodes(split, tmp_path)
    learning = {"learning": {"keep_optimizer": True}}
    held = train(configure(tmp_path / "held", learning))
    alone = configure(tmp_path / "alone", learning, {"federation": {"backend": "in-process"}})
    alone["partition"] = {"file": str(split.save(tmp_path / "split.json"))}
    assert held.digest == train(alone).digest
    assert list((tmp_path / "held").rglob("*.state")) == []


def test_each_node_evaluates_on_what_it_holds_back(tmp_path: Path) -> None:
    start_nodes(guess_split(), tmp_path, held_out=0.25, share=["count", "categories"])
    record = train(
        configure(tmp_path / "run", {"evaluation": {"at_clients": ["held_out"]}, "output": {"report": "html"}})
    ).record
    found = record["final"]["at_clients"]["held_out"]
    assert (found["clients"], found["failed"]) == (3, 0) and found["worst"] <= found["p10"] <= found["mean"]
    assert found["each"]["1"]["tasks"] == 2 and found["each"]["1"]["categories"].keys() <= {"small", "medium", "large"}
    files = sorted((tmp_path / "node-data1").rglob("*.jsonl"))
    assert [file.name for file in files] == ["0000.jsonl", "0001.jsonl", "0002.jsonl"]
    assert "10th percentile" in (tmp_path / "run" / "report.html").read_text()
    assert main(["client", "report", str(tmp_path / "node-data1")]) == 0
    (page,) = (tmp_path / "node-data1").rglob("report.html")
    assert "of the held-out tasks were solved" in page.read_text() and "guess/train/" in page.read_text()
    assert main(["client", "report", str(tmp_path)]) == 2


def test_an_owner_shares_nothing_or_does_not_take_part(tmp_path: Path) -> None:
    folders = start_nodes(guess_split(), tmp_path, held_out=0.25, share=[])
    each = train(configure(tmp_path / "equal", {"evaluation": {"at_clients": ["held_out"]}})).record["final"]
    assert set(each["at_clients"]["held_out"]["each"]["0"]) == {"success"}
    weighted = {"algorithm": {"aggregation": {"name": "weighted"}}}
    with pytest.raises(FedAgentGymError, match=r"client 0 does not take part: it does not share its number of tasks"):
        train(configure(tmp_path / "weighted", weighted))
    change_client(folders[2], allow=["metrics"])
    with pytest.raises(FedAgentGymError, match=r"client 2 does not take part: it does not allow parameters"):
        train(configure(tmp_path / "parameters"))
    change_client(folders[2], allow=["parameters", "evaluation"], held_out=0.0)
    with pytest.raises(FedAgentGymError, match=r"client 2 does not take part: it holds no tasks back"):
        train(configure(tmp_path / "held-out", {"evaluation": {"at_clients": ["held_out"]}}))
    record = train(configure(tmp_path / "quiet")).folder / "metrics.jsonl"
    assert "success" not in json.loads(record.read_text().splitlines()[-1])["clients"].get("2", {})


SENT: dict[str, tuple[dict[str, Any], set[str]]] = {
    "fedagent": ({}, {"parameters"}),
    "fedprox": ({"proximal": 0.1}, {"parameters"}),
    "scaffold": ({}, {"parameters"}),
    "fedmoa": ({}, {"parameters", "objectives", "count"}),
    "fedgrpo": ({"expert_steps": 0, "experts": 2, "neighbours": 2}, {"scores"}),
    "pubswap": ({"local_steps": 2, "public_tasks": 2}, {"parameters", "answers"}),
}
"""What each method sends besides metrics, counts and evaluations, which an owner may keep."""


def record_replies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, Message]]:
    """Every reply as it leaves a client's machine."""
    seen: list[tuple[Request, Message]] = []
    serve = LocalNodes._serve

    def recorded(self: LocalNodes, request: Request) -> Reply:
        reply = serve(self, request)
        if reply.message:
            seen.append((request, Message.decode(reply.message)))
        return reply

    monkeypatch.setattr(LocalNodes, "_serve", recorded)
    return seen


def list_kinds(message: Message, card: Card) -> set[str]:
    """The kinds of everything that a reply holds; a value that nothing names is `unnamed`."""
    named = {key: one.kind for one in card.list_sent(evaluated=True) for key in one.keys}
    found = {named.get(key, "unnamed") for key in message.control}
    sections = {**message.kinds, "report": message.report}
    sent = {one.kind for one in card.sent}
    return found.union(*(kinds & sent or {"unnamed"} for section, kinds in SECTIONS.items() if sections[section]))


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("method", SENT)
def test_a_client_sends_what_its_owner_allows_and_nothing_else(
    method: str, everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, needed = SENT[method]
    allow, share = sorted(needed - {"count"}), sorted(needed & {"count"})
    if everything:
        allow, share = [*allow, "metrics", "evaluation"], ["count", "categories"]
    split = federate("fedagentgym/QA-v0", env={"size": "tiny"}, clients=3, tasks_per_client=8)
    start_nodes(split, tmp_path, held_out=0.25, allow=allow, share=share)
    replies = record_replies(monkeypatch)
    changes = {
        "env": {"id": "fedagentgym/QA-v0", "options": {"size": "tiny"}},
        "algorithm": {"name": method, **settings},
        "learning": {"objectives": [{"name": "accuracy"}, {"name": "format"}]} if method == "fedmoa" else {},
        "evaluation": {"at_clients": ["held_out"]},
        "federation": {"rounds": 1},
    }
    plain = configure(tmp_path / "run", changes)
    plain["agent"] = {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}}
    plain["partition"] = {**plain["partition"], "roles": {"public": 8, "auxiliary": 4, "server": 6}}
    card = describe_method(load_config(plain).algorithm, Scale())
    found = train(plain).record["final"]["at_clients"]["held_out"]
    kinds = set[str]().union(*(list_kinds(message, card) for _, message in replies))
    assert kinds <= {*allow, *share} and needed <= kinds
    assert ({"evaluation", "categories"} <= kinds) == everything
    assert (found["clients"], found["withheld"], found["failed"]) == ((3, 0, 0) if everything else (0, 3, 0))
    assert all(value not in json.dumps(found) for value in ("low", "tasks", "categories")) or everything


def test_a_value_that_a_method_does_not_name_stays(tmp_path: Path) -> None:
    owner = HeldSettings.load({"client": 0, "env": {"id": "fedagentgym/Guess-v0"}, "share": []})
    card = Card(sent=(Sent("objectives", "weights", keys=("objectives",)), METRICS))
    kept = limit_reply(Message(control={"examples": 7, "success": 0.5}, report={"metrics": {"loss": 1.0}}), card, owner)
    assert dict(kept.control) == {"success": 0.5} and kept.report == {"metrics": {"loss": 1.0}}
    for control, told in (
        ({"mine": 1}, "'mine', which the method's card does not name"),
        ({"objectives": {}}, "objectives"),
    ):
        with pytest.raises(RefusedError, match=told):
            limit_reply(Message(control=control), card, owner)
    with pytest.raises(RefusedError, match="scores"):
        limit_reply(Message(scores={"s": np.zeros(1, "float32")}), card, owner)


def test_every_kind_of_every_method_can_be_allowed() -> None:
    words = {*get_args(Allowed), *get_args(Shared)}
    for name in ALGORITHMS.names():
        card = describe_method({"name": name}, Scale())
        assert {one.kind for one in card.list_sent(evaluated=True)} <= words, name
    assert set().union(*SECTIONS.values()) <= words


def test_client_check_lists_everything_that_a_run_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = start_nodes(guess_split(), tmp_path, held_out=0.25, share=[], allow=["parameters"])[:1]
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(configure(tmp_path / "run", {"evaluation": {"at_clients": ["held_out"]}})))
    assert main(["client", "check", str(folder), "--run", str(run)]) == 0
    told = capsys.readouterr().out
    rows = {
        line.split()[0]: line for line in told.splitlines() if line.startswith(("parameters ", "evaluation ", "count "))
    }
    said = {kind: "yes" in row.split() for kind, row in rows.items()}
    assert said == {"parameters": True, "evaluation": False, "count": False} and "left out" in rows["evaluation"]
    assert "may be sent to the server: parameters; always sent: a digest of the tasks" in told
    change_client(folder, client=7)
    assert main(["client", "check", str(folder), "--run", str(run)]) == 2
    assert "the clients 0 to 2, and this file describes client 7" in capsys.readouterr().err


class Stop(Exception):
    pass


class Stopper:
    """Ends a run after its first round."""

    def begin(self, rounds: int) -> None: ...

    def round_done(self, record: Any) -> None:
        if record["round"] == 1:
            raise Stop


def test_a_run_goes_on_with_unchanged_tasks_only(tmp_path: Path) -> None:
    folders = start_nodes(guess_split(), tmp_path)
    run = configure(tmp_path / "run", {"learning": {"keep_optimizer": True}})
    with pytest.raises(Stop):
        train(run, observers=[Stopper()])
    for folder in folders:  # a node that is started again goes on
        start_node(folder, tmp_path / f"node-{folder.name}")
    again = resume(tmp_path / "run")
    assert again.digest == train(merge(run, {"output": {"folder": str(tmp_path / "whole")}})).digest
    lines = (folders[1] / "tasks.jsonl").read_text().splitlines()
    (folders[1] / "tasks.jsonl").write_text("\n".join(lines[:-1]))
    with pytest.raises(FedAgentGymError, match="tasks of client 1 are not those with which this run began"):
        resume(tmp_path / "run")


def test_a_node_stands_for_its_own_client_and_for_runs_with_held_tasks(tmp_path: Path) -> None:
    folders = start_nodes(guess_split(), tmp_path)
    WORKERS[1] = WORKERS[0]
    with pytest.raises(FedAgentGymError, match="client 1 does not take part: client 1 is not on this machine"):
        train(configure(tmp_path / "stranger"))
    with pytest.raises(DataError, match="two files are of one client"):
        start_node(Path(f"{folders[0]},{folders[0] / 'client.yaml'}"), tmp_path / "double")
    divided = configure(tmp_path / "divided", {"federation": {"quorum": 1.0}})
    divided["partition"] = {"clients": 3, "tasks_per_client": 8}
    with pytest.raises(FedAgentGymError, match=r"needs partition\.sampler held"):
        train(divided)


def test_what_cannot_work_is_one_sentence(tmp_path: Path) -> None:
    for changes, says in [
        (["algorithm=centralized"], "all tasks in one place"),
        (["algorithm={name: fedgrpo, answers: holders_first}"], "ids of the server's questions"),
        (["partition.variant=lookalikes"], "owners of the tasks decide variant"),
        (["partition.tasks_per_client=3"], "owners of the tasks decide tasks_per_client"),
        (["partition.clients=null"], "how many clients"),
    ]:
        with pytest.raises(OptionError, match=says):
            load_config(configure(tmp_path / "run"), changes)
    with pytest.raises(OptionError, match="start it as a Flower deployment"):
        train(configure(tmp_path / "run", {"federation": {"backend": "in-process"}}))


SECRETS = [f"Zebra{number:03d}quokka" for number in range(200)]
"""Words of tasks, ids, categories and paths of three clients, 66 or 67 for each."""


def plant_secrets(tmp_path: Path, **settings: Any) -> list[Path]:
    """Three clients with questions of their own, in which every secret occurs once, in folders that are secrets too."""
    folders = []
    for client in range(3):
        own = SECRETS[client::3]
        folder = tmp_path / own[0]
        folder.mkdir()
        rows = [
            {
                "id": own[4 * number + 4],
                "category": own[4 * number + 5],
                "payload": {"question": f"Who is {own[4 * number + 6]}?", "answers": [own[4 * number + 7]]},
                "ward": own[1],
            }
            for number in range(15)
        ]
        (folder / own[2]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        about = {"client": client, "env": {"id": "fedagentgym/QA-v0"}, "tasks": own[2], **settings}
        (folder / "client.yaml").write_text(yaml.safe_dump(about))
        folders.append(folder)
    return folders


ALL = ["parameters", "metrics", "objectives", "scores", "answers"]
METHODS: dict[str, dict[str, Any]] = {
    "fedagent": {},
    "fedprox": {"proximal": 0.1},
    "fedmoa": {},
    "fedgrpo": {"expert_steps": 1, "experts": 2, "neighbours": 2},
    "pubswap": {"local_steps": 2, "public_tasks": 2},
}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_of_the_tasks_is_where_the_server_reads(
    method: str, broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's folder holds none of 200 words, also when a node fails with an error that quotes its task."""
    folders = plant_secrets(
        tmp_path / "clients" if (tmp_path / "clients").mkdir() is None else tmp_path, allow=ALL, held_out=0.2
    )
    for folder in folders:
        start_node(folder, tmp_path / f"work-{folder.name}")
    if broken:
        monkeypatch.setattr(WORKERS[1], "_check_tasks", lambda *_: None)
        application = WORKERS[1]._get_application

        def fail(recipe: ApplicationSpec) -> Any:
            found: Any = application(recipe)

            def quote(*_: Any) -> Any:
                raise ValueError(f"cannot play {folders[1]}: {(folders[1] / SECRETS[7]).read_text()}")

            object.__setattr__(found.algorithm, "resources", quote)
            return found

        monkeypatch.setattr(WORKERS[1], "_get_application", fail)
    changes: dict[str, Any] = {
        "env": {"id": "fedagentgym/QA-v0", "options": {"size": "tiny"}},
        "agent": {"decoding": {"max_new_tokens": 8}},
        "algorithm": {"name": method, **METHODS[method]},
        "learning": {"objectives": [{"name": "accuracy"}, {"name": "format"}]} if method == "fedmoa" else {},
        "evaluation": {"at_clients": ["held_out"]},
        "federation": {"rounds": 1, "quorum": 1},
        "output": {"report": "html", "sampled_episodes": 2},
    }
    plain = configure(tmp_path / "run", changes)
    plain["agent"] = {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}}
    plain["partition"] = {**plain["partition"], "roles": {"public": 8, "auxiliary": 4, "server": 6}}
    if broken:
        with pytest.raises(
            FedAgentGymError, match="client 1 does not take part: it failed on its own machine"
        ) as caught:
            train(plain)
        monkeypatch.setattr("fedagentgym.experiment.opened.call_join", lambda *_: None)
        plain["output"]["folder"] = str(tmp_path / "run" / "again")
        assert not any(secret in str(caught.value) for secret in SECRETS)
    record = train(plain).record
    assert record["failures"] == (1 if broken else 0) or method in ("pubswap", "fedgrpo")
    assert record["final"]["at_clients"]["held_out"]["failed"] == int(broken)
    read = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    found = [secret for secret in SECRETS if any(secret.encode() in text for text in read)]
    assert found == [] and len(read) > 5
    kept = b"".join(file.read_bytes() for file in (tmp_path / f"work-{folders[0].name}").rglob("*.jsonl"))
    assert SECRETS[12].encode() in kept or any(secret.encode() in kept for secret in SECRETS)
