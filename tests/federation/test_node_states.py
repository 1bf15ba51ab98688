"""The states that clients' machines keep in a deployment: those of the rounds that the server keeps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedagentgym import train
from fedagentgym.algorithms import APPLICATION
from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.run import resume
from fedagentgym.federation.backends import BACKENDS, flower_deployment
from fedagentgym.federation.backends.flower_deployment import FlowerNodes, FoundNodes
from fedagentgym.federation.backends.flower_wire import decode_request
from fedagentgym.federation.backends.resident import NodeConfig, ResidentWorker
from fedagentgym.federation.commits import CommitStore
from fedagentgym.federation.exchange import MAX_KEPT, ApplicationSpec, Reply, Request, StateName
from fedagentgym.testing.runs import SMALL_CONFIG

pytest.importorskip("flwr")


WORKERS: dict[int, ResidentWorker] = {}


class Killed(Exception):
    pass


class Killer:
    """Ends a run after a round."""

    def __init__(self, last: int) -> None:
        self.last = last

    def begin(self, rounds: int) -> None: ...

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == self.last:
            raise Killed


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two machines of two clients each, behind the backend of a deployment; messages take no network. Gives their folder."""

    def start(number: int) -> ResidentWorker:
        clients = ",".join(str(client) for client in range(8) if client % 2 == number)
        node = {"clients": clients, "workplace": str(tmp_path / f"machine-{number}"), "trust": APPLICATION}
        return ResidentWorker(NodeConfig.from_node_config(node))

    def deliver(grid: Any, sent: Sequence[tuple[int, Request]], contents: Sequence[Any], deadline: Any) -> list[Reply]:
        replies = []
        for (node, given), content in zip(sent, contents, strict=True):
            request, recipe, state = decode_request(content)
            assert request.digest == given.digest and state is None
            if node not in WORKERS:
                WORKERS[node] = start(node)
            header, message = WORKERS[node].handle_request(request, recipe.plain())
            replies.append(Reply.from_header(request.client, header, message, b"" if header["changed"] else None))
        return replies

    def open_machines(recipe: ApplicationSpec, *, folder: Path | None = None, **_: Any) -> FlowerNodes:
        return FlowerNodes(recipe, None, FoundNodes({client: client % 2 for client in range(8)}, frozenset()), folder)

    monkeypatch.setattr(flower_deployment, "send_and_receive", deliver)
    BACKENDS.register("machines", open_machines, replace=True)
    WORKERS.clear()
    yield tmp_path
    WORKERS.clear()


def list_states(folder: Path) -> set[tuple[int, str]]:
    return {(int(path.parent.name), path.stem) for path in folder.glob("machine-*/states/*/*/*.state")}


def list_needed(rounds: CommitStore) -> set[tuple[int, str]]:
    return {(client, str(name)) for n in rounds.list_rounds() for client, name in rounds.read_note(n).heads.items()}


@pytest.mark.parametrize("keep", [2])
def test_machines_keep_the_states_of_the_rounds_that_are_kept(keep: int, machines: Path) -> None:
    """A deployment that was killed goes on from each of the rounds that the server keeps, to the same bits."""
    method = {"algorithm": {"name": "scaffold", "local_steps": 1}, "federation": {"rounds": 4, "backend": "machines"}}
    plain = merge(merge(SMALL_CONFIG, method), {"output": {"folder": str(machines / "run"), "keep_rounds": keep}})
    place = machines / "run" / "rounds"
    with pytest.raises(Killed):
        train(plain, observers=[Killer(2)])
    assert list_needed(CommitStore(place)) <= list_states(machines)
    WORKERS.clear()  # the machines start again
    finished = resume(machines / "run")
    elsewhere = merge(plain, {"output": {"folder": str(machines / "alone")}, "federation": {"backend": "in-process"}})
    assert finished.digest == train(elsewhere).digest

    kept = sorted(int(path.parent.name) for path in place.glob("*/global.bin"))
    assert len(kept) >= keep
    for back in reversed(kept[:-1]):
        WORKERS.clear()
        for folder in place.iterdir():
            if int(folder.name) > back:
                shutil.rmtree(folder)
        (machines / "run" / "result.json").unlink()
        assert resume(machines / "run").digest == finished.digest, back
    left = {(client, name) for client, name in list_states(machines) if int(name.partition("-")[0]) < min(kept)}
    assert not left - list_needed(CommitStore(place)), "states of rounds that are gone are removed"


@pytest.mark.parametrize("kept", ["all", 3, [3], [[1]], [[1, -1]], [["1", 2]], [[1, 2]] * (MAX_KEPT + 1)])
def test_a_list_of_kept_states_that_is_none_is_refused(kept: Any) -> None:
    header = Request(1, StateName(2, 0), "x", b"", StateName(1, 0), 7, 1, 10, 10, (StateName(1, 0),)).to_header()
    assert Request.from_header(header, b"").kept == (StateName(1, 0),)
    with pytest.raises(DataError, match="malformed request"):
        Request.from_header({**header, "kept": kept}, b"")
