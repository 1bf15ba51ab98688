"""Nothing gets out: every probe in every set-up, and what is outside stays as it was."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from fedagentgym.envs.verifiers.sandbox.confine import REMOVABLE


def _load(name: str) -> ModuleType:
    described = importlib.util.spec_from_file_location(f"escape_{name}", Path(__file__).with_name(f"{name}.py"))
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    return module


probes, set_ups, honest = _load("probes"), _load("set_ups"), _load("honest")

CONTAINER, ONE = (set_ups.CONTAINER,), [(name,) for name in REMOVABLE]
LEFT_OUT = {"root": [(), ONE[0], CONTAINER, *ONE[1:]], "plain": [(), CONTAINER, *ONE]}
"""What each user's set-ups lack; every second is tried by day, one in a container among them."""
SET_UPS = [
    pytest.param((who, left), id=f"{who}, without {', '.join(left) or 'nothing'}", marks=marks)
    for who, lacking in LEFT_OUT.items()
    for left in lacking
    for marks in ([pytest.mark.slow] if who == "plain" and left in ONE else [],)
    if not (who == "plain" and "other user" in left)
]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")


TRUTHS = {
    "process namespace": "print(os.getpid() == 1)",
    "network namespace": "print(os.uname().nodename == 'sandbox')",
    "private files": "print(os.getcwd() == '/run')",
    "system calls": "print(libc.syscall(25, 0, 0, 0, 0, 0) < 0 and libc.prctl(3, 0, 0, 0, 0) < 0)",
    "no new privileges": "print(True)",
}
"""Each protection as a program sees it."""


class Place(NamedTuple):
    """A set-up and what lies outside of it."""

    who: str
    left_out: tuple[str, ...]
    set_up: Any
    up: dict[str, bool]
    words: dict[str, str]
    victim: subprocess.Popen[bytes]
    file: Path


@pytest.fixture(scope="module", params=SET_UPS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    who, left_out = request.param
    if who == "root" and os.geteuid() != 0:
        pytest.skip("only root can be root")
    user = set_ups.PLAIN_USER if who == "plain" and os.geteuid() == 0 else None
    owner = os.geteuid() if user is None else user
    base = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    runs = base / "runs"
    (base / "secret").write_text("secret")
    (base / "file").write_text("content")
    (base / "file").chmod(0o666)
    runs.mkdir()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(base / "socket"))
    for path in (base, runs, *base.iterdir()):
        os.chown(path, owner, owner)
    base.chmod(0o777)
    (base / "socket").chmod(0o777)
    victim = subprocess.Popen(
        ["sleep", "600"], **({} if user is None else {"user": user, "group": user, "extra_groups": []})
    )
    set_up = set_ups.SetUp(user, list(left_out), runs)
    words = {
        "VICTIM": str(victim.pid),
        "FILE": str(base / "file"),
        "SECRET": str(base / "secret"),
        "SOCKET": str(base / "socket"),
        "FOLDER": str(base),
        "PORT": str(listener.getsockname()[1]),
        "HOSTNAME": platform.node(),
    }
    if set_ups.CONTAINER in left_out and platform.machine() != "x86_64":
        pytest.skip("the container of this test is for x86-64")
    up = {name: is_up for name, is_up, _ in set_up.ask(do="protections")}
    yield Place(who, left_out, set_up, up, words, victim, base / "file")
    set_up.close()
    victim.kill()
    victim.wait()
    listener.close()
    datagrams.close()
    subprocess.run(["rm", "-rf", str(base)], check=True)


def test_there_are_enough_probes() -> None:
    assert len(probes.PROBES) >= 60
    assert {probe.area for probe in probes.PROBES} == {
        *("process", "file", "network", "clock", "memory", "descriptor", "environment", "introspection"),
    }
    assert len({(probe.area, probe.name) for probe in probes.PROBES}) == len(probes.PROBES)


def choose_probes(left_out: tuple[str, ...], up: dict[str, bool]) -> list[Any]:
    """The probes that a protection which is up has to stop. Where one is left out, those that it would have stopped: what holds
    the others is as in the set-up that lacks nothing."""
    missing = set(left_out) & set(REMOVABLE)
    judged = [probe for probe in probes.PROBES if any(up[name] for name in probe.held_by)]
    return [probe for probe in judged if not missing or missing & set(probe.held_by)]


def choose_programs(left_out: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """All honest programs; a quarter of them where one protection is left out, each in two such set-ups at least."""
    missing = [REMOVABLE.index(name) for name in left_out if name in REMOVABLE]
    return dict(list(honest.PROGRAMS.items())[missing[0] % 4 :: 4]) if missing else honest.PROGRAMS


@pytest.mark.by_day(2)
def test_nothing_escapes(place: Place) -> None:
    before = (place.file.read_text(), place.file.stat())
    escaped, judged = [], choose_probes(place.left_out, place.up)
    for probe in judged:
        status, _, out, err = place.set_up.ask(
            do="run", program=probes.write_program(probe, place.words), limits={"seconds": 5.0, "memory": 256 << 20}
        )
        if "ESCAPED" in out or not ("held" in out or status != "ended" or "MemoryError" in err):
            escaped.append((probe.area, probe.name, status, out, err[-300:]))
        assert place.victim.poll() is None, probe
    assert escaped == []
    assert len(judged) >= 60 or set(place.left_out) & set(REMOVABLE)
    after = place.file.stat()
    assert place.file.read_text() == before[0]
    kept = ("st_mode", "st_uid", "st_mtime_ns", "st_size", "st_nlink", "st_ino")
    assert [getattr(after, name) for name in kept] == [getattr(before[1], name) for name in kept]
    assert sorted(path.name for path in place.file.parent.iterdir()) == ["file", "runs", "secret", "socket"]
    assert list(place.set_up.folder.iterdir()) == []


@pytest.mark.by_day(2)
def test_honest_programs_run(place: Place) -> None:
    wrong = []
    for name, (program, expected) in choose_programs(place.left_out).items():
        status, code, out, err = place.set_up.ask(do="run", program=program, limits={"seconds": 30.0})
        if (status, code) != ("ended", 0) or out.strip() != expected:
            wrong.append((name, status, code, out, err))
    assert wrong == []
    assert len(honest.PROGRAMS) >= 50


@pytest.mark.by_day(2)
def test_refusals_are_clear(place: Place) -> None:
    for name, (program, words) in honest.REFUSED.items():
        status, code, _, err = place.set_up.ask(do="run", program=program)
        assert (status, code) == ("ended", 1), name
        assert words in err, (name, err)


@pytest.mark.by_day(2)
def test_doctor_reports_what_holds(place: Place) -> None:
    told = place.set_up.ask(do="doctor")
    assert {one["name"]: one["up"] for one in told["protections"]} == place.up
    assert all(one["reason"] and one["purpose"] for one in told["protections"])
    for name, body in TRUTHS.items():
        status, _, out, err = place.set_up.ask(do="run", program=f"{probes.START}\n{body}")
        assert out.strip() == str(place.up[name]), (name, status, out, err)
    runs_as_root = place.who == "root" and not place.up["other user"]
    assert bool(told["refuses"]) == runs_as_root


@pytest.mark.slow
def test_humaneval_solutions_pass(place: Place, shared_data: Path) -> None:
    with gzip.open(shared_data / "humaneval" / "HumanEval.jsonl.gz") as file:
        rows = [json.loads(line) for line in file]
    wrong = []
    for row in rows:
        tests = {"entry": row["entry_point"], "code": row["test"], "setup": row["prompt"], "check": "check"}
        correct, _, _, reason = place.set_up.ask(
            do="test", program=row["prompt"] + row["canonical_solution"], tests=tests, limits={"seconds": 30.0}
        )
        if not correct:
            wrong.append((row["task_id"], reason))
    assert len(rows) == 164 and wrong == []
