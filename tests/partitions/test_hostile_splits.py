"""Forged split files: each is refused in one sentence, or changes nothing; none disturbs the interpreter.

Most forgeries below come with every digest made anew, as by a person who knows the format.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.cli.main import main
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split
from fedagentgym.partitions.record import _FIELDS, SCHEMA, compute_client_digest

GUESS = "fedagentgym/Guess-v0"
Plain = dict[str, Any]


@pytest.fixture(scope="module")
def client_split() -> ClientSplit:
    return federate(
        GUESS,
        partition="preference",
        clients=6,
        tasks_per_client=10,
        omega=0.9,
        seed=4,
        roles={"public": 12, "server": 8},
        server_overlap=0.5,
        labels="pool",
    )


def remake_digest(data: Plain) -> None:
    """Put the digest that belongs to the content of a JSON split into it, whatever the content is."""
    variants = data.get("variants") or [None] * len(data["clients"])
    digests = b"".join(
        compute_client_digest(ids, variant) for ids, variant in zip(data["clients"], variants, strict=True)
    )
    header = {"schema": SCHEMA, **{name: data[name] for name in _FIELDS}}
    data["digest"] = "sha256:" + hashlib.sha256(canonical_json(header).encode() + b"\n" + digests).hexdigest()


NASTY: list[Any] = [
    *(None, True, -1, 0, 10**20, 0.5, "", "x", "a\x00b", "\x1b[2J", "[red]x[/bold]", "\ud800"),
    *([], [[]], {}, {"a": 1}, ["x"], "sha256:" + "0" * 64, [1, 2], {"name": "x", "parameters": {}}),
]
PLACES = ("env", "env.id", "env.split", "env.options", "pool_digest", "sampler", "sampler.name", "sampler.parameters")
PLACES += ("seed", "variant", "server_overlap", "evaluation", "labels", "labels.tasks", "labels.solved", "roles")
PLACES += ("roles.public", "labels.source", "variants", "clients", "provenance", "digest", "schema")


def list_forgeries() -> Iterator[tuple[str, Any]]:
    for place in PLACES:
        yield from ((place, value) for value in NASTY)


def put(data: Plain, place: str, value: Any) -> None:
    *above, last = place.split(".")
    for name in above:
        data = data[name]
    data[last] = value


def is_harmless(original: Plain, forged: Plain) -> bool:
    """Return whether clients play the same, and the split claims the same origin: the rest decides nothing that is played."""
    return all(original[name] == forged.get(name) for name in ("clients", "variants", *set(_FIELDS) - {"labels"}))


def test_every_field_with_every_nasty_value_and_a_new_digest(
    client_split: ClientSplit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening refuses it, or `verify` does; 0 is for what plays the same."""
    path = client_split.save(tmp_path / "split.json")
    original = json.loads(path.read_text())
    opened = tried = 0
    for place, value in list_forgeries():
        forged = json.loads(path.read_text())
        put(forged, place, value)
        if place not in ("digest", "schema"):
            try:
                remake_digest(forged)
            except (TypeError, ValueError, AttributeError, KeyError, DataError):
                continue
        tried += 1
        (tmp_path / "forged.json").write_text(json.dumps(forged))
        code = main(["-q", "split", "verify", str(tmp_path / "forged.json")])
        error = capsys.readouterr().err
        if code == 0:
            opened += 1
            assert is_harmless(original, forged), (place, value)
        else:
            assert code in (2, 3) and error.count("\n") == 1, (place, value, error)
            assert (place, code) == (place, 2) or place == "sampler.name" or place == "sampler", (place, value, error)
    assert tried > 200 and opened < 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(server_overlap=-5), "'server_overlap' must lie between 0 and 1"),
        (lambda d: d["clients"][1].append(d["clients"][1][-1]), "client 1 out of order, or one of them twice"),
        (lambda d: d["clients"][2].reverse(), "client 2 out of order"),
        (lambda d: d["labels"].update(tasks=10**15), "bytes do not hold one bit for each of"),
        (lambda d: d["env"]["options"].update(data="/etc"), "has no option 'data'"),
        (lambda d: d["env"]["options"].update(split="val"), "has no option 'split'"),
        (lambda d: d["roles"].update(chief=[]), "names a role 'chief'"),
        (lambda d: d["roles"].update(public=[d["roles"]["public"][0]] * 2), "names a task twice"),
        (lambda d: d.update(note="x"), "'note' is not part of a split file"),
        (lambda d: d["sampler"]["parameters"].update({"x": "\x1b]0;title\x07"}), "cannot be printed"),
    ],
)
def test_the_place_of_a_forgery_is_named(
    client_split: ClientSplit, tmp_path: Path, change: Callable[[Plain], None], message: str
) -> None:
    path = client_split.save(tmp_path / "split.json")
    data = json.loads(path.read_text())
    change(data)
    remake_digest(data)
    path.write_text(json.dumps(data))
    with pytest.raises(Exception, match=message) as caught:
        load_client_split(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_sampler_is_not_verified(
    client_split: ClientSplit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every client emptied to one task, under a sampler that nobody knows, with its digest made anew."""
    path = client_split.save(tmp_path / "split.json")
    for name, detail in (("mine", "'mine' is not registered"), ("imported", "was imported, not sampled")):
        data = json.loads(path.read_text())
        data["clients"] = [row[:1] for row in data["clients"]]
        data["sampler"] = {"name": name, "parameters": {}}
        data["labels"], data["roles"] = None, {}
        remake_digest(data)
        path.write_text(json.dumps(data))
        capsys.readouterr()
        assert main(["split", "verify", str(path)]) == 3
        error = capsys.readouterr().err
        assert "cannot be verified" in error and detail in error and error.count("\n") == 1
        assert main(["split", "verify", str(path), "--json"]) == 3
        client_split.save(path)


def test_labels_that_their_source_does_not_give_are_found(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.json")
    data = json.loads(path.read_text())
    data["labels"]["solved"] = data["labels"]["solved"].replace("A", "B").replace("/", "A")
    remake_digest(data)
    path.write_text(json.dumps(data))
    failed = {check.name for check in load_client_split(path).verify() if check.ok is False}
    assert "labels" in failed


@pytest.mark.parametrize("value", ["$\\x{$", [1], {"a": 1}, "[red]x[/bold]", 10**30, -1, 1e300])
@pytest.mark.parametrize("sampler", ["preference", "$\\x{$", "[red]x[/bold]"])
def test_every_command_bears_any_parameter(client_split: ClientSplit, tmp_path: Path, sampler: str, value: Any) -> None:
    path = client_split.save(tmp_path / "split.json")
    data = json.loads(path.read_text())
    data["sampler"] = {"name": sampler, "parameters": {"omega": value, "tasks_per_client": 10}}
    remake_digest(data)
    path.write_text(json.dumps(data))
    codes = [
        main(["-q", "split", *arguments])
        for arguments in (
            ["show", str(path)],
            ["show", str(path), "--json"],
            ["plot", str(path), "--out", str(tmp_path / "x.svg")],
            ["diff", str(path), str(client_split.save(tmp_path / "other.json"))],
            ["verify", str(path)],
        )
    ]
    assert codes[-1] == (2 if sampler == "preference" else 3)
    assert set(codes) <= {0, 2, 3}


# ---- folders and zips ---------------------------------------------------------------------------------------------


def remake_folder(folder: Path, split: ClientSplit) -> None:
    """The digests of a folder, made anew from its items as far as they name tasks."""
    header = json.loads((folder / "header.json").read_text())
    ids = split.table.ids
    offsets, items = (np.fromfile(folder / f"{n}.bin", dtype=t) for n, t in (("offsets", "<i8"), ("items", "<i4")))
    digests = b""
    for client in range(len(offsets) - 1):
        held = items[offsets[client] : offsets[client + 1]].tolist()
        digests += compute_client_digest([ids[n] if 0 <= n < len(ids) else "" for n in held], None)
    (folder / "digests.bin").write_bytes(digests)
    fields = {"schema": SCHEMA, **{name: header[name] for name in _FIELDS}}
    header["digest"] = "sha256:" + hashlib.sha256(canonical_json(fields).encode() + b"\n" + digests).hexdigest()
    (folder / "header.json").write_text(json.dumps(header))


@pytest.mark.parametrize("value", [-1, -(2**31), 600, 2**31 - 1, 10**6])
@pytest.mark.parametrize("place", [0, 17, -1])
def test_items_outside_the_pool_are_refused_before_anything_counts_them(
    client_split: ClientSplit, tmp_path: Path, value: int, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = client_split.save(tmp_path / "split")
    items = np.fromfile(folder / "items.bin", dtype="<i4")
    items[place] = value
    items.tofile(folder / "items.bin")
    remake_folder(folder, client_split)
    client = {0: 0, 17: 1, -1: 5}[place]
    for command in (["show"], ["verify"], ["plot", "--out", str(tmp_path / "x.png")]):
        assert main(["split", command[0], str(folder), *command[1:]]) == 2
        assert f"client {client} of the split holds a task number" in capsys.readouterr().err
    assert main(["split", "diff", str(folder), str(folder)]) == 2


@pytest.mark.parametrize("command", ["show", "plot", "diff", "verify"])
def test_every_command_checks_the_digests(
    client_split: ClientSplit, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = client_split.save(tmp_path / "split")
    items = np.fromfile(folder / "items.bin", dtype="<i4")
    free = next(n for n in range(items[30], 600) if n not in items[30:40])
    items[30] = free
    items[30:40] = np.sort(items[30:40])
    items.tofile(folder / "items.bin")
    more = {"plot": ["--out", str(tmp_path / "x.png")], "diff": [str(folder)]}.get(command, [])
    assert main(["split", command, str(folder), *more]) == 2
    assert "client 3 of the split does not match its digest" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_items_out_of_order_are_refused_although_their_digest_fits(client_split: ClientSplit, tmp_path: Path) -> None:
    folder = client_split.save(tmp_path / "split")
    items = np.fromfile(folder / "items.bin", dtype="<i4")
    items[20:30] = items[20:30][::-1]
    items.tofile(folder / "items.bin")
    remake_folder(folder, client_split)
    with pytest.raises(DataError, match="client 2 of the split does not hold its tasks in order"):
        load_client_split(folder).statistics()


OFFSETS = [
    [0, 2**63 - 1, -(2**63) + 1, 30, 40, 50, 60],
    [0, 70, 20, 30, 40, 50, 60],
    [-10, 10, 20, 30, 40, 50, 60],
    [0, 10, 20, 30, 40, 50, 61],
    [0, 10, 20, 5, 40, 50, 60],
]


@pytest.mark.parametrize("offsets", OFFSETS)
def test_offsets_that_do_not_divide_are_refused(client_split: ClientSplit, tmp_path: Path, offsets: list[int]) -> None:
    folder = client_split.save(tmp_path / "split")
    np.array(offsets, dtype="<i8").tofile(folder / "offsets.bin")
    with pytest.raises(DataError, match=r"offsets\.bin is damaged"):
        load_client_split(folder)


@pytest.mark.parametrize("field", ["clients", "assignments", "variants"])
@pytest.mark.parametrize("value", [-1, 0, 10**20, 2**62, True, None, "6", 6.0, []])
def test_declared_sizes_take_no_memory(client_split: ClientSplit, tmp_path: Path, field: str, value: Any) -> None:
    folder = client_split.save(tmp_path / "split")
    header = json.loads((folder / "header.json").read_text())
    header[field] = value
    (folder / "header.json").write_text(json.dumps(header))
    with pytest.raises(DataError):
        load_client_split(folder)


def test_a_file_with_holes_does_not_fill_the_memory(client_split: ClientSplit, tmp_path: Path) -> None:
    folder = client_split.save(tmp_path / "split")
    os.truncate(folder / "header.json", 1 << 40)
    with pytest.raises(DataError, match="at most"):
        load_client_split(folder)


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"a":' * 5000, "9" * 10_000, '{"seed": 1, "seed": 2}', '{"x": NaN}', "1e999"]
)
def test_json_that_no_library_likes(client_split: ClientSplit, tmp_path: Path, text: str) -> None:
    folder = client_split.save(tmp_path / "split")
    (folder / "header.json").write_text(text)
    (tmp_path / "split.json").write_text(text)
    for path in (folder, tmp_path / "split.json"):
        with pytest.raises(DataError):
            load_client_split(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "split.json")
    for path in (tmp_path / "split.json", Path("/dev/zero"), Path("a\0b"), Path("x" * 5000), Path("\ud800")):
        with pytest.raises(DataError):
            load_client_split(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "header.json")
    with pytest.raises(DataError, match=r"no header\.json"):
        load_client_split(tmp_path / "folder")


def test_variants_that_are_no_variants(tmp_path: Path) -> None:
    options = {"env": {"size": "tiny"}, "variant": {"kind": "wording", "choices": 4}}
    made = federate("fedagentgym/Math-v0", clients=4, tasks_per_client=4, **options)
    for text in (b"[" * 40, b"7" * 40, b'"%s"' % (b"x" * 38)):
        folder = made.save(tmp_path / f"split{text[:1].hex()}")
        raw = (folder / "variants.bin").read_bytes()
        (folder / "variants.bin").write_bytes(text + raw[40:])
        with pytest.raises(DataError):
            load_client_split(folder).statistics()


def test_damaged_zips_are_refused_or_read_whole(client_split: ClientSplit, tmp_path: Path) -> None:
    """Single bytes of a zip changed at random: no error but ours, and no other content."""
    path = client_split.save(tmp_path / "split.zip")
    raw, draw = path.read_bytes(), random.Random(7)
    places = [*(draw.randrange(len(raw)) for _ in range(150)), *range(len(raw) - 400, len(raw), 3)]
    for place in places:
        changed = bytearray(raw)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(changed))
        try:
            opened = load_client_split(path)
            opened.statistics()
        except DataError:
            continue
        assert opened.digest == client_split.digest


def test_zips_with_a_member_twice_or_beyond_the_end(client_split: ClientSplit, tmp_path: Path) -> None:
    path = client_split.save(tmp_path / "split.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("below/items.bin", b"x")
    with pytest.raises(DataError, match=r"items\.bin is in this zip twice"):
        load_client_split(path)
