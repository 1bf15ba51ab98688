"""Flower's trust boundary: a client that lies to the server, and a server that lies to a client's machine.

Stand-ins carry Flower's records without Flower's processes, so that hundreds of lies take seconds; `test_flower.py` has the
real deployment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.encoding import canonical_json, decode, encode
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.federation.algorithm import Clients, Failure
from fedagentgym.federation.backends import flower_deployment, flower_wire
from fedagentgym.federation.backends.flower_deployment import FlowerNodes, find_nodes, make_claim, read_claim
from fedagentgym.federation.backends.flower_wire import (
    RECORD,
    answer_content,
    decode_reply,
    decode_request,
    make_record,
)
from fedagentgym.federation.backends.resident import KEPT_RUNS, NodeConfig, ResidentWorker
from fedagentgym.federation.exchange import ApplicationSpec, Reply, Request, StateName, perform
from fedagentgym.federation.message import Message
from tests.federation.conftest import TOY, TOY_FILE
from tests.federation.forging import MESSAGE, forge, forge_text, nest

flower = pytest.importorskip("flwr.app")
RECIPE = {"target": f"{TOY}:build", "arguments": {}, "plugins": [TOY_FILE]}
LIAR = 2
Content = Any


@pytest.fixture(autouse=True)
def _messages_without_flower(monkeypatch: Any) -> None:
    """Flower makes a message only inside its own processes."""

    def message(content: Content, *, dst_node_id: int, message_type: str, ttl: float | None = None) -> Any:
        return SimpleNamespace(
            content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type)
        )

    monkeypatch.setattr(flower, "Message", message)
    monkeypatch.setattr(flower_deployment, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(flower_wire, "_POLL_SECONDS", 0.01)


class Grid:
    """Nodes 101, 102, ... that answer at once; `answer` makes what comes back for a message, in a list of answers."""

    def __init__(self, answer: Callable[[int, Any, str], list[Any]], nodes: Sequence[int] = (101, 102, 103)) -> None:
        self.answer, self.nodes = answer, nodes
        self.waiting: list[Any] = []
        self.names = (f"message-{number}" for number in itertools.count())

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        names = [next(self.names) for _ in messages]
        for name, message in zip(names, messages, strict=True):
            self.waiting += self.answer(message.metadata.dst_node_id, message, name)
        return names

    def pull_messages(self, names: Sequence[str]) -> list[Any]:
        come, self.waiting = self.waiting, []
        return come


def answer_of(node: int, name: str, content: Content) -> Any:
    metadata = SimpleNamespace(src_node_id=node, reply_to_message_id=name)
    return SimpleNamespace(metadata=metadata, content=content, has_error=lambda: False)


def error_of(name: str, reason: str | None) -> Any:
    metadata = SimpleNamespace(src_node_id=1, reply_to_message_id=name)
    return SimpleNamespace(metadata=metadata, has_error=lambda: True, error=SimpleNamespace(code=3, reason=reason))


def record(**parts: Any) -> Content:
    if not all(isinstance(part, bytes) for part in parts.values()):
        return flower.RecordDict({RECORD: flower.ConfigRecord(parts)})
    return make_record(parts)


def tampered(content: Content, **parts: Any) -> Content:
    return record(**{**read_parts(content), **parts})


def reshape(content: Content, **changes: Any) -> Content:
    """The record with a header whose array claims something else."""
    array = content[RECORD]["header"]
    told = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data, **changes}
    return flower.RecordDict({RECORD: flower.ArrayRecord({**dict(content[RECORD]), "header": flower.Array(**told)})})


def read_parts(content: Content) -> dict[str, bytes]:
    return {name: array.data[: array.shape[0]] for name, array in content[RECORD].items()}


def header(content: Content, **changes: Any) -> Content:
    """The same answer with other values in its header; values that `encode` refuses are written as they are."""
    return tampered(content, header=encode({**decode(read_parts(content)["header"]), **changes}))


def body(tree: dict[str, Any], arrays: Sequence[Any] = (("<f4", (8,)),), data: bytes = bytes(32)) -> bytes:
    return forge({**MESSAGE, **tree}, list(arrays), data)


W = {"weights": {"w": {"$array": 0}}}
_REPORT = forge_text('{"arrays":[],"tree":' + nest(5000) + "}")
NESTED_REPORT = body(
    {"report": {"$bytes": 0}, "weights": {"w": {"$array": 1}}},
    [["|u1", [len(_REPORT)]], ["<f4", [8]]],
    _REPORT + bytes(32),
)
LIES: dict[str, Callable[[Content], Content]] = {
    "no record": lambda honest: flower.RecordDict(),
    "a record of another name": lambda honest: flower.RecordDict({"x": honest[RECORD]}),
    "a record more": lambda honest: flower.RecordDict({RECORD: honest[RECORD], "x": flower.MetricRecord({"a": 1})}),
    "arrays in place of bytes": lambda honest: flower.RecordDict({RECORD: flower.ArrayRecord([np.zeros(2)])}),
    "an array of another type": lambda honest: reshape(honest, dtype="float32"),
    "an array of another serialization": lambda honest: reshape(honest, stype="numpy.ndarray"),
    "an array longer than its bytes": lambda honest: reshape(honest, shape=(1 << 40,)),
    "an array shorter than its bytes": lambda honest: reshape(honest, shape=(1,)),
    "an empty array with bytes": lambda honest: reshape(honest, shape=(0,)),
    "an array of two dimensions": lambda honest: reshape(honest, shape=(1, 1)),
    "metrics in place of bytes": lambda honest: flower.RecordDict({RECORD: flower.MetricRecord({"header": 1})}),
    "no content": lambda honest: None,
    "text as header": lambda honest: tampered(honest, header="x"),
    "a list of bytes as header": lambda honest: tampered(honest, header=[b"x"]),
    "a part more": lambda honest: tampered(honest, more=b"x"),
    "no header": lambda honest: record(message=b""),
    "no message": lambda honest: record(header=read_parts(honest)["header"]),
    "an empty header": lambda honest: tampered(honest, header=b""),
    "a header that claims 2^50 bytes": lambda honest: tampered(
        honest, header=b"FAG1" + (1 << 50).to_bytes(8, "little")
    ),
    "a header that is a list": lambda honest: tampered(honest, header=encode([1])),
    "a nested header": lambda honest: tampered(honest, header=forge_text('{"arrays":[],"tree":' + nest(20_000) + "}")),
    "a header of a megabyte": lambda honest: header(honest, error="x" * (1 << 20)),
    "an unknown status": lambda honest: header(honest, status="fine"),
    "a status that is a list": lambda honest: header(honest, status=["ok"]),
    "a status that is an array": lambda honest: header(honest, status=np.zeros(3)),
    "seconds that are no number": lambda honest: header(honest, seconds=float("nan")),
    "infinite seconds": lambda honest: header(honest, seconds=float("inf")),
    "negative seconds": lambda honest: header(honest, seconds=-1.0),
    "seconds without end": lambda honest: header(honest, seconds=1e300),
    "seconds as text": lambda honest: header(honest, seconds="1"),
    "an error that is a mapping": lambda honest: header(honest, error={"a": 1}),
    "a detail that is a number": lambda honest: header(honest, detail=1),
    "an error with terminal codes": lambda honest: header(honest, status="error", error="\x1b[2J[red]\x00\n" * 900),
    "a detail with terminal codes": lambda honest: header(honest, status="error", detail="\x1b[2J\r\n" * 900),
    "another request's answer": lambda honest: header(honest, answers="sha256:" + "0" * 64),
    "nobody's answer": lambda honest: header(honest, answers=None),
    "a message of nothing": lambda honest: tampered(honest, message=b""),
    "a message beyond the limit": lambda honest: tampered(honest, message=bytes(4 << 20)),
    "a state beyond the limit": lambda honest: tampered(honest, state=bytes(4 << 20)),
    "half a message": lambda honest: tampered(honest, message=read_parts(honest)["message"][:-1]),
    "NaN": lambda honest: tampered(honest, message=Message(weights={"w": np.full(8, np.nan, np.float32)}).encoded),
    "another dtype": lambda honest: tampered(honest, message=Message(weights={"w": np.zeros(8)}).encoded),
    "another shape": lambda honest: tampered(honest, message=Message(weights={"w": np.zeros(9, np.float32)}).encoded),
    "text for weights": lambda honest: tampered(honest, message=Message(weights={"w": "x"}).encoded),
    "a nested value": lambda honest: tampered(honest, message=body({**W, "control": {"x": [[[[1]]]] * 500}})),
    "a nested report": lambda honest: tampered(honest, message=NESTED_REPORT),
    "the server's state as answer": lambda honest: tampered(honest, message=encode({"weights": {}})),
}


@pytest.fixture
def tell(toy: ModuleType) -> Callable[..., tuple[Clients, dict[int, Message]]]:
    """A call to clients 1, 2 and 3 on three nodes, of which that of client 2 makes `lie` of its honest answer."""

    def call(lie: Callable[[int, str, Content], list[Any]], deadline: float | None = None, rounds: int = 1) -> Any:
        application = toy.build()

        def answer(node: int, message: Any, name: str) -> list[Any]:
            if message.metadata.message_type == "query":
                return [answer_of(node, name, make_claim([node - 100]))]
            honest = answer_content(
                message.content, lambda request, recipe, state: perform(application, request, state)
            )
            return lie(node, name, honest) if node == 100 + LIAR else [answer_of(node, name, honest)]

        grid = Grid(answer)
        backend = FlowerNodes(ApplicationSpec("a:b"), grid, find_nodes(grid, (1, 2, 3), 5.0))
        for number in range(1, rounds + 1):
            clients = Clients(
                backend, application.operations, (1, 2, 3), round_number=number, seed=7, heads={}, deadline=deadline
            )
            message = Message(weights={"w": np.zeros(8, np.float32)}, control={"step": 0})
            answers = clients.call("drift", dict.fromkeys((1, 2, 3), message))
        return clients, answers

    return call


def check_failure(clients: Clients, answers: dict[int, Message]) -> Failure:
    """Only the liar failed, nothing of it is in force, and the record of the round can be written."""
    failure = clients.failed[LIAR]
    assert set(answers) == set(clients.heads) == {1, 3}
    assert failure.message.isprintable()
    assert len(failure.message) <= 500
    assert "\x1b" not in failure.detail
    assert len(canonical_json([clients.failures, sorted(clients.seconds.items())])) < 8000
    return failure


@pytest.mark.parametrize("name", LIES)
def test_a_lying_client_costs_itself_its_call(tell: Any, name: str) -> None:
    failure = check_failure(*tell(lambda node, message, honest: [answer_of(node, message, LIES[name](honest))]))
    assert failure.reason == ("error" if "terminal" in name else "refused")


def test_an_answer_that_is_replayed_from_an_earlier_round_is_refused(tell: Any) -> None:
    kept: list[Content] = []

    def replay(node: int, name: str, honest: Content) -> list[Any]:
        kept.append(honest)
        return [answer_of(node, name, kept[0])]

    assert check_failure(*tell(replay, rounds=2)).message == "it answers another request"


def test_answers_of_others_twice_unasked_and_late_are_not_taken(tell: Any) -> None:
    failure = check_failure(*tell(lambda node, name, honest: [answer_of(103, name, honest)]))
    assert failure.message == "its answer came from another node"
    late = check_failure(*tell(lambda node, name, honest: [answer_of(node, "message-0", honest)], deadline=0.3))
    assert late.reason == "timeout"
    clients, answers = tell(
        lambda node, name, honest: [answer_of(node, n, honest) for n in ("forged", name, name, "message-4")]
    )
    assert set(answers) == {1, 2, 3} and not clients.failed
    for reason in ("a\x1b[2J\nlast\x07 line" * 500, "\n\n", "", None):
        assert check_failure(*tell(lambda node, name, honest, r=reason: [error_of(name, r)])).reason == "dead"


def test_a_client_is_believed_about_its_time_up_to_what_passed(tell: Any) -> None:
    clients, _ = tell(lambda node, name, honest: [answer_of(node, name, header(honest, seconds=1e8))])
    assert clients.seconds[LIAR] < 60.0


def test_every_flipped_byte_of_a_header_is_harmless(toy: ModuleType) -> None:
    request = request_of()
    honest = answer_content(content_of(request), lambda r, recipe, state: perform(toy.build(), r, state))
    good = read_parts(honest)["header"]
    for place, bit in itertools.product(range(len(good)), (1, 8, 64)):
        broken = bytearray(good)
        broken[place] ^= bit
        try:
            reply = decode_reply(tampered(honest, header=bytes(broken)), request)
        except DataError:
            continue
        assert reply.client == request.client
        assert reply.status != "ok" or 0.0 <= reply.seconds <= 1e9


# ---- which node stands for whom -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [b"", b"a", b"-1", b"1,,2", b"9" * 5000, b"1.5", b"\xff", b"../1", str(1 << 40).encode(), b"1," * (1 << 20)],
)
def test_a_claim_that_names_no_clients_leaves_its_node_out(claim: bytes) -> None:
    with pytest.raises(DataError):
        read_claim(record(clients=claim))
    honest, forged = make_claim([1, 2]), record(clients=claim)
    grid = Grid(lambda node, _, name: [answer_of(node, name, forged if node == 101 else honest)], nodes=(101, 102))
    assert find_nodes(grid, (1, 2), 2.0).of_client == {1: 102, 2: 102}


def claims(**of_nodes: str) -> Grid:
    told = {int(node[1:]): clients for node, clients in of_nodes.items()}
    return Grid(
        lambda node, message, name: [answer_of(node, name, record(clients=told[node].encode()))], nodes=sorted(told)
    )


def test_simulated_nodes_share_the_clients_among_them() -> None:
    answers = {7: make_claim((0,), 2), 8: make_claim((1,), 2)}
    grid = Grid(lambda node, _, name: [answer_of(node, name, answers[node])], nodes=(7, 8))
    found = find_nodes(grid, (0, 1, 2, 5), 2.0)
    assert found.of_client == {0: 7, 1: 8, 2: 7, 5: 8} and found.simulated == {7, 8}
    with pytest.raises(DataError):
        read_claim(record(clients=b"0", partitions=b"x"))


def test_two_nodes_that_claim_one_client_stop_the_run_unless_somebody_decides(monkeypatch: Any) -> None:
    monkeypatch.setattr(flower_deployment, "GRACE_SECONDS", 0.1)
    with pytest.raises(FedAgentGymError, match=r"nodes 7 and 8 both claim client 1.*options\.nodes"):
        find_nodes(claims(n7="0,1", n8="1"), (0, 1), 2.0)
    assert find_nodes(claims(n7="0,1", n8="1"), (0, 1), 2.0, {7: (0,), 8: (1,)}).of_client == {0: 7, 1: 8}
    assert find_nodes(claims(n7="0,1,55", n8="55"), (0, 1), 2.0).of_client == {0: 7, 1: 7}
    with pytest.raises(FedAgentGymError, match="no SuperNode for the clients 1 "):
        find_nodes(claims(n7="0,1"), (0, 1), 0.3, {7: (0,)})


# ---- a server that lies -------------------------------------------------------------------------------------------


def request_of(client: int = 1, call: int = 0, base: StateName | None = None) -> Request:
    message = Message(weights={"w": np.zeros(8, np.float32)}, control={"step": call})
    return Request(client, StateName(1, call), "drift", message.encoded, base, 7, client, 1 << 21, 1 << 21)


def content_of(request: Request, **changes: Any) -> Content:
    told = {**request.to_header(), "recipe": RECIPE, **changes}
    return record(
        header=encode({name: value for name, value in told.items() if value != "absent"}), message=request.body
    )


@pytest.fixture
def worker(toy: ModuleType, tmp_path: Path) -> ResidentWorker:
    node = {"clients": "1,2", "workplace": str(tmp_path / "work"), "plugins": TOY_FILE}
    return ResidentWorker(NodeConfig.from_node_config({**node, "trust": f"{TOY}:build"}))


def ask(worker: ResidentWorker, content: Content) -> Reply:
    """The answer of ClientApp and resident worker to a record, without the socket between them."""

    def forward(request: Request, recipe: ApplicationSpec, state: bytes | None) -> Reply:
        told, message = worker.serve(encode({**request.to_header(), "recipe": recipe.plain()}), request.body)
        return Reply.from_header(request.client, told, message, b"" if told["changed"] else None)

    answer = answer_content(content, forward)
    told = decode(read_parts(answer)["header"])
    assert len(told["error"]) <= 500
    assert told["error"].isprintable()
    assert told["detail"] == ""
    return Reply.from_header(0, told, read_parts(answer)["message"], read_parts(answer).get("state"))


RUN = "fedagentgym.federation.backends.workers:subprocess.check_output"
REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "a path for a client": ({"client": "../../etc"}, "malformed request"),
    "text for a client": ({"client": "1"}, "malformed request"),
    "true for a client": ({"client": True}, "malformed request"),
    "a negative client": ({"client": -1}, "malformed request"),
    "a huge client": ({"client": 1 << 200}, "malformed request"),
    "a client of another machine": ({"client": 5}, "client 5 is not on this machine"),
    "a negative round": ({"name": [-1, 0]}, "malformed request"),
    "a huge round": ({"name": [1 << 40, 0]}, "malformed request"),
    "a path for a call": ({"name": [1, "../x"]}, "malformed request"),
    "a name of one": ({"name": [1]}, "malformed request"),
    "a name of text": ({"name": "12"}, "malformed request"),
    "a state with a path": ({"base": ["..", "key"]}, "malformed request"),
    "a state that was never made": ({"base": [0, 7]}, "client 1 has no state 0000-007 of this run"),
    "a state of the future": ({"base": [9, 0]}, "malformed request"),
    "a negative seed": ({"seed": -1}, "malformed request"),
    "a stream of text": ({"stream": "x"}, "malformed request"),
    "negative limits": ({"limits": [-1, -1]}, "malformed request"),
    "one limit": ({"limits": [1]}, "malformed request"),
    "an operation with a path": ({"operation": "../../x"}, "unknown operation"),
    "an operation without end": ({"operation": "x" * 100_000}, "malformed request"),
    "an operation of Python's": ({"operation": "__class__"}, "unknown operation"),
    "no recipe": ({"recipe": "absent"}, "malformed recipe"),
    "a recipe of text": ({"recipe": "os:system"}, "malformed recipe"),
    "a recipe without arguments": ({"recipe": {"target": RECIPE["target"], "plugins": []}}, "malformed recipe"),
    "plugins that are numbers": ({"recipe": {**RECIPE, "plugins": [1]}}, "malformed recipe"),
    "plugins that are text": ({"recipe": {**RECIPE, "plugins": "os"}}, "malformed recipe"),
    "a plugin by path": ({"recipe": {**RECIPE, "plugins": ["/tmp/evil.py"]}}, "does not load the plugin"),
    "a plugin by module": ({"recipe": {**RECIPE, "plugins": ["os"]}}, "does not load the plugin 'os'"),
    "a target of Python": ({"recipe": {**RECIPE, "target": "os:system"}}, "does not run 'os:system'"),
    "a target through our modules": ({"recipe": {**RECIPE, "target": RUN}}, "does not run"),
    "a target of our tests": ({"recipe": {**RECIPE, "target": "fedagentgym.testing.federation:build"}}, "does not run"),
    "a target that is a list": ({"recipe": {**RECIPE, "target": [RECIPE["target"]]}}, "malformed recipe"),
    "an argument that nobody takes": ({"recipe": {**RECIPE, "arguments": {"evil": 1}}}, "TypeError"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_lying_server_gets_an_error_and_the_worker_goes_on(worker: ResidentWorker, tmp_path: Path, name: str) -> None:
    changes, says = REQUESTS[name]
    reply = ask(worker, content_of(request_of(), **changes))
    assert (reply.status, reply.body, reply.state) == ("error", b"", None)
    assert says in reply.error
    assert str(tmp_path) not in reply.error
    assert ask(worker, content_of(request_of(client=2))).status == "ok"
    files = [path.relative_to(tmp_path / "work").parts for path in (tmp_path / "work").rglob("*") if path.is_file()]
    assert {parts[0] for parts in files} == {"states"}
    assert {parts[2] for parts in files} == {"000002"}


def test_no_name_in_a_recipe_leads_to_a_program(worker: ResidentWorker, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    recipe = {"target": RUN, "arguments": {"args": ["touch", str(marker)]}, "plugins": []}
    assert "does not run" in ask(worker, content_of(request_of(), recipe=recipe)).error
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        record(header=b"", message=b""),
        record(header=encode([1]), message=b""),
        record(header=forge_text('{"arrays":[],"tree":' + nest(50_000) + "}"), message=b""),
        record(header=b"FAG1" + b"\xff" * 8, message=b""),
        record(header="text", message=b""),
        record(header=encode({"client": 1})),
        flower.RecordDict(),
    ],
)
def test_a_record_that_is_no_request_gets_an_error(worker: ResidentWorker, content: Content) -> None:
    assert ask(worker, content).status == "error"
    with pytest.raises(DataError):
        decode_request(content)


@pytest.mark.parametrize("data", [b"", b"x", encode([1]), forge_text('{"arrays":[],"tree":' + nest(3000) + "}")])
def test_nonsense_on_the_socket_does_not_end_the_worker(worker: ResidentWorker, data: bytes) -> None:
    told, message = worker.serve(data, data)
    assert (told["status"], message) == ("error", b"")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "not an encoded value"),
        (Message(weights={"w": np.full(8, np.nan, np.float32)}, control={"step": 0}).encoded, "not finite"),
        (Message(weights={"w": np.zeros(1 << 19, np.float32)}, control={"step": 0}).encoded, "at most"),
        (Message(weights={"w": np.zeros(8, np.float32)}, control={"step": "x"}).encoded, "ValueError"),
        (Message(weights={"w": np.zeros(8, np.float32)}, control={"step": 1 << 250}).encoded, ""),
    ],
)
def test_a_message_that_is_not_as_declared_is_refused(worker: ResidentWorker, message: bytes, says: str) -> None:
    reply = ask(worker, tampered(content_of(request_of()), message=message))
    assert reply.status in ("error", "ok")
    assert says in reply.error


def test_the_states_of_a_run_are_out_of_reach_of_another(worker: ResidentWorker, tmp_path: Path) -> None:
    other = {**RECIPE, "arguments": {"noise": 0.5}}
    assert ask(worker, content_of(request_of())).status == "ok"
    assert "has no state" in ask(worker, content_of(request_of(call=1, base=StateName(1, 0)), recipe=other)).error
    assert ask(worker, content_of(request_of(), recipe=other)).status == "ok"
    later = content_of(request_of(call=2, base=StateName(1, 0)))
    first = ask(worker, later)
    assert (first.status, first.body) == ("ok", ask(worker, later).body)
    for number in range(2 * KEPT_RUNS):
        recipe = {**RECIPE, "arguments": {"noise": 1.0 + number}}
        assert ask(worker, content_of(request_of(), recipe=recipe)).status == "ok"
    assert len(list((tmp_path / "work" / "states").iterdir())) == KEPT_RUNS


def test_a_damaged_state_is_told_without_its_place(worker: ResidentWorker, tmp_path: Path) -> None:
    assert ask(worker, content_of(request_of())).status == "ok"
    (state,) = (tmp_path / "work").rglob("*.state")
    state.write_bytes(b"x")
    error = ask(worker, content_of(request_of(call=1, base=StateName(1, 0)))).error
    assert error == "DataError: client 1 has no state 0001-000 of this run" or "has no state 0001-000" in error
    assert str(tmp_path) not in error


@pytest.mark.parametrize(
    "wrong", [{"idle": "nan"}, {"idle": "-1"}, {"idle": "x"}, {"clients": "1,-2"}, {"clients": "9" * 5000}]
)
def test_a_node_config_that_cannot_be_used_is_one_sentence(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(DataError, match="--node-config") as refused:
        NodeConfig.from_node_config({"clients": "1", "workplace": str(tmp_path), **wrong})
    assert len(str(refused.value)) < 250


def test_the_socket_is_never_in_a_folder_that_others_can_open(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = NodeConfig(tmp_path / "work", (1,))
    private = Path(place.address).parent
    private.chmod(0o755)
    with pytest.raises(DataError, match="this user alone"):
        _ = place.address
    private.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    private.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="this user alone"):
        _ = place.address
    assert len(place.key) == 64
    assert place.key == place.key
    assert not (place.folder / "key").stat().st_mode & 0o077
