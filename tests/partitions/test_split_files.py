"""Split files: what is written comes back; what was changed, cut or made for another pool is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.make import read_options
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions import split_files
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split

GUESS = "fedagentgym/Guess-v0"
FORMS = ["split.json", "split", "split.zip"]


@pytest.fixture(scope="module")
def client_split() -> ClientSplit:
    return federate(
        GUESS,
        partition="preference",
        clients=8,
        tasks_per_client=25,
        omega=0.9,
        seed=4,
        roles={"public": 30, "auxiliary": 10, "server": 40},
        server_overlap=0.5,
        labels="pool",
    )


@pytest.mark.parametrize("form", FORMS)
def test_round_trip(client_split: ClientSplit, form: str, tmp_path: Path) -> None:
    client_split.save(tmp_path / form)
    again = load_client_split(tmp_path / form)
    assert again.digest == client_split.digest and len(again) == 8
    for client in range(8):
        assert again.client(client).tasks == client_split.client(client).tasks
    assert dict(again.record.roles) == dict(client_split.record.roles)
    assert again.record.parameters == client_split.record.parameters
    assert again.record.labels is not None and client_split.record.labels is not None
    assert np.array_equal(again.record.labels.solved, client_split.record.labels.solved)
    assert all(check.ok for check in again.verify())


def test_forms_convert_into_each_other(client_split: ClientSplit, tmp_path: Path) -> None:
    client_split.save(tmp_path / "a.json")
    load_client_split(tmp_path / "a.json").save(tmp_path / "b")
    load_client_split(tmp_path / "b").save(tmp_path / "c.zip")
    load_client_split(tmp_path / "c.zip").save(tmp_path / "d.json")
    first, last = (tmp_path / name for name in ("a.json", "d.json"))
    assert first.read_bytes() == last.read_bytes()


@pytest.mark.parametrize("name", ["split-1.json", "split-1.zip"])
def test_split_files_of_format_1_open_in_every_version_0_1(name: str) -> None:
    """Written by version 0.1.0; these two files are never written again."""
    made = load_client_split(Path(__file__).parents[1] / "golden" / name)
    assert made.digest == "sha256:fed9f20d245939288ba3947b120558c9ed6268305c4692064df44ea3ef8b8823"
    assert len(made) == 4 and made.client(2).variant == {"kind": "wording", "phrasing": 1}
    assert made.client(2).tasks == (
        "math/train/00007",
        "math/train/00379",
        "math/train/00930",
        "math/train/01070",
        "math/train/02762",
        "math/train/02999",
    )
    assert all(result.ok is not False for result in made.verify())
    assert made.client(2).open_env().reset(options={"task": made.client(2).tasks[0]}, seed=0)[0]


def test_provenance_stands_outside_the_digest(client_split: ClientSplit, tmp_path: Path) -> None:
    client_split.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    assert set(data["provenance"]) == {"fedagentgym", "numpy", "scipy", "python", "date"}
    data["provenance"]["date"] = "1999-01-01"
    (tmp_path / "b.json").write_text(json.dumps(data))
    assert load_client_split(tmp_path / "b.json").digest == client_split.digest


@pytest.mark.parametrize(("env_id", "name"), [("WebShop", "data"), ("ALFWorld", "games"), ("Math", "data")])
def test_local_paths_are_not_stored(env_id: str, name: str) -> None:
    options = read_options(f"fedagentgym/{env_id}-v0", {"size": "tiny", name: "/some/where"})
    assert options.portable == {"size": "tiny"}


def _edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["clients"][0].pop(), "changed after it was made"),
        (lambda d: d["clients"].reverse(), "changed after it was made"),
        (lambda d: d.update(seed=5), "changed after it was made"),
        (lambda d: d["sampler"]["parameters"].update(omega=0.1), "changed after it was made"),
        (lambda d: d["roles"].update(public=[]), "changed after it was made"),
        (lambda d: d.pop("digest"), "changed after it was made"),
        (lambda d: d.update(schema="fedagentgym/split/9"), "not a split file of format"),
        (lambda d: d.pop("schema"), r"not a split file of format '.*' \(it names no format\)"),
        (lambda d: d.update(schema="fedagentgym/client-split/0"), "not a split file of format"),
        (
            lambda d: d.update(schema="fedagentgym/client-split/2"),
            "is a split file of format 2, this version of fedagentgym reads format 1: install a newer version",
        ),
        (lambda d: d.pop("pool_digest"), "'pool_digest' is missing"),
        (lambda d: d.update(env=[]), "'env' has the wrong type"),
        (lambda d: d["env"].pop("id"), "'env.id' is missing"),
        (lambda d: d.update(clients=7), '"clients" must be a list'),
        (lambda d: d.update(variants=[1]), '"variants" must be null'),
        (lambda d: d.update(labels={"tasks": 3}), "labels of the split file are malformed"),
        (lambda d: d.update(roles={"public": 3}), "every role must hold a list"),
    ],
)
def test_edited_files_are_refused(
    client_split: ClientSplit, tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    path = tmp_path / "split.json"
    client_split.save(path)
    _edit(path, change)
    with pytest.raises(DataError, match=message) as caught:
        load_client_split(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_truncated_files_are_refused(client_split: ClientSplit, tmp_path: Path, share: float) -> None:
    path = tmp_path / "split.json"
    client_split.save(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(DataError, match="not valid JSON"):
        load_client_split(path)


def test_damaged_folders_are_refused(client_split: ClientSplit, tmp_path: Path) -> None:
    def damaged(name: str, change: Callable[[Path], object]) -> str:
        folder = tmp_path / name
        client_split.save(folder)
        change(folder)
        with pytest.raises(FedAgentGymError) as caught:
            opened = load_client_split(folder)
            [opened.client(client).tasks for client in range(8)]
        return str(caught.value)

    def flip(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[8] ^= 1
        path.write_bytes(bytes(raw))

    assert "items.bin is missing" in damaged("a", lambda folder: (folder / "items.bin").unlink())
    assert "800 are expected" in damaged("b", lambda folder: (folder / "items.bin").write_bytes(b"1234"))
    assert "does not match its digest" in damaged("c", lambda folder: flip(folder / "items.bin"))
    assert "does not match its own digest" in damaged("d", lambda folder: flip(folder / "digests.bin"))
    assert "header.json" in damaged("e", lambda folder: (folder / "header.json").unlink())
    assert "header.json: not valid JSON" in damaged("f", lambda folder: (folder / "header.json").write_text("{"))
    assert "offsets.bin is damaged" in damaged("g", lambda folder: (folder / "offsets.bin").write_bytes(bytes(72)))
    with pytest.raises(DataError, match="there is no split file"):
        load_client_split(tmp_path / "nowhere")


def test_a_cut_zip_and_a_number_beyond_the_pool_are_refused(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.zip")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="not a whole zip file"):
        load_client_split(path)
    client_split.save(tmp_path / "folder")
    items = np.fromfile(tmp_path / "folder" / "items.bin", dtype="<i4")
    items[0] = 10**6
    items.tofile(tmp_path / "folder" / "items.bin")
    with pytest.raises(DataError, match="client 0 of the split holds a task number that the pool does not have"):
        load_client_split(tmp_path / "folder").client(0)


def test_a_folder_brings_its_labels(client_split: ClientSplit, tmp_path: Path) -> None:
    opened = load_client_split(client_split.save(tmp_path / "split"))
    assert opened.table.solved is not None and client_split.table.solved is not None
    assert np.array_equal(opened.table.solved, client_split.table.solved)


def test_a_client_of_a_folder_is_read_alone(client_split: ClientSplit, tmp_path: Path) -> None:
    """Damage in one client's slice does not keep another from being opened."""
    client_split.save(tmp_path / "split")
    path = tmp_path / "split" / "items.bin"
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(bytes(raw))
    opened = load_client_split(tmp_path / "split")
    assert opened.client(5).tasks == client_split.client(5).tasks
    with pytest.raises(DataError, match="client 0"):
        opened.client(0)


def test_a_split_for_another_pool_is_refused(client_split: ClientSplit, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    client_split.save(path)
    with pytest.raises(DataError, match=r"made for another pool .*made from other data or options"):
        load_client_split(path, pool=open_env(GUESS, seed=3).pool)
    few = TaskPool.from_records([{"category": "x", "payload": 1}], env=GUESS)
    with pytest.raises(DataError, match=r"of its task ids are not in this pool, the first is 'guess/train/"):
        load_client_split(path, pool=few)
    with pytest.raises(OptionError, match=r"seed=4 would change the tasks of the split, which was made with seed=3"):
        other = federate(GUESS, clients=2, tasks_per_client=3, env={"seed": 3})
        other.save(tmp_path / "other.json")
        load_client_split(tmp_path / "other.json", env={"seed": 4})


def test_too_many_assignments_for_one_json(
    client_split: ClientSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_files, "MAX_JSON_ASSIGNMENTS", 199)
    with pytest.raises(OptionError, match=r"200 assignments are too many .* folder .*zip"):
        client_split.save(tmp_path / "split.json")


def test_worlds_are_kept(tmp_path: Path) -> None:
    variant = {"kind": "wording", "choices": 4}
    made = federate("fedagentgym/Math-v0", clients=5, tasks_per_client=4, variant=variant, env={"size": "tiny"})
    for form in FORMS:
        made.save(tmp_path / form)
        again = load_client_split(tmp_path / form)
        assert again.digest == made.digest
        assert [client.variant for client in again] == [client.variant for client in made]
    path = tmp_path / "split.json"
    _edit(path, lambda data: data["variants"].reverse())  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="changed after it was made"):
        load_client_split(path)


def test_options_are_compared_as_they_are_stored(tmp_path: Path) -> None:
    """A tuple becomes a list in the file; giving the tuple again is no contradiction."""
    options = {"kinds": ("math", "qa"), "size": "tiny"}
    made = federate("fedagentgym/Mixture-v0", clients=2, tasks_per_client=3, env=options)
    path = made.save(tmp_path / "split.json")
    assert load_client_split(path, env=options).digest == made.digest
    with pytest.raises(OptionError, match="made with kinds="):
        load_client_split(path, env={"kinds": ("math",)})


def test_the_package_names_it() -> None:
    assert fedagentgym.federate is federate and fedagentgym.load_client_split is load_client_split
