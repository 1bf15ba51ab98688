"""The tutorial with three hospitals: a server and three nodes, each a process of a user of its own where that is possible."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.cli.main import main
from tests.federation.test_flower_tutorial import find_free_ports

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "three-hospitals.md"
NAMES = ("north", "south", "east")
FIRST_USER = 52_000
LISTENS = "until (exec 3<> /dev/tcp/127.0.0.1/$PORT) 2> /dev/null; do sleep 1; done\n"


@pytest.fixture
def world() -> Iterator[Path]:
    """A folder in which every user may make folders of its own."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_user(number: int, change: bool) -> dict[str, Any]:
    return {"user": FIRST_USER + number, "group": FIRST_USER + number, "extra_groups": []} if change else {}


@pytest.mark.slow
@pytest.mark.parametrize("change", [False, True], ids=["one-user", "own-users"])
def test_the_tutorial_leaves_nothing_with_the_server(change: bool, world: Path) -> None:
    pytest.importorskip("flwr")
    if change and not can_change_users(world):
        pytest.skip("this test may not start processes of other users that can run this Python")
    hospital, server, check, node, run = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    port = str(find_free_ports(8))
    shells = []

    def start(number: int, script: str, **more: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PORT": port, **more}
        env |= {"HOME": str(world), "FEDAGENTGYM_CACHE": str(world / f"cache{number}"), "PYTHONPATH": str(ROOT)}
        with (world / f"shell{number}.log").open("wb") as log:
            shells.append(
                subprocess.Popen(
                    ["bash", "-e", "-c", script],
                    cwd=world,
                    env=env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **as_user(number, change),
                )
            )
        return shells[-1]

    try:
        main_shell = start(0, server + run)
        for number, name in enumerate(NAMES):
            script = f"{hospital}{LISTENS}{check}{node}wait\n"
            start(number + 1, script, NAME=name, NUMBER=str(number))
        logs = lambda: "".join(file.read_text(errors="replace")[-1500:] for file in sorted(world.glob("shell*.log")))  # noqa: E731
        assert main_shell.wait(timeout=900) == 0, logs()
    finally:
        for shell in shells:
            os.killpg(shell.pid, signal.SIGTERM)
    found = json.loads((world / "server" / "hospitals" / "result.json").read_text())["final"]["at_clients"]["held_out"]
    assert found["clients"] == 3 and {one["tasks"] for one in found["each"].values()} == {4}
    assert "3 hospitals evaluated" in (world / "shell0.log").read_text()
    secrets = list_secrets(world)
    files = [file for file in (world / "server").rglob("*") if file.is_file()]
    told = [file.read_bytes() for file in [*files, world / "shell0.log"]]
    assert [secret for secret in secrets if any(secret.encode() in text for text in told)] == []
    assert len(secrets) > 200 and any(file.name == "state.db" for file in files)
    assert list((world / "north" / "work" / "evaluation").rglob("0002.jsonl"))
    if os.geteuid() == 0:
        read = ["cat", str(world / "north" / "questions.jsonl")]
        assert subprocess.run(read, capture_output=True, check=False, **as_user(0, True)).returncode != 0


def list_secrets(world: Path) -> list[str]:
    """Texts, answers with their questions' words, ids, categories and paths of all three."""
    found = []
    for name in NAMES:
        rows = [json.loads(line) for line in (world / name / "questions.jsonl").read_text().splitlines()]
        found += [row["question"] for row in rows] + [row["question"].removesuffix("?") for row in rows]
        found += [f"of {name} treats case {number}" for number in range(24)]
        found += [*sorted({row["category"] for row in rows}), f"/{name}/", f"{name}/work", f"{name}/client.yaml"]
    return found


def can_change_users(world: Path) -> bool:
    """Return whether processes may be started as another user, and that one can read this Python and package."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import fedagentgym, torch, flwr"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(world)}
    try:
        done = subprocess.run(command, env=env, cwd=world, capture_output=True, check=False, **as_user(1, True))
    except PermissionError:  # this Python lies where other users may not look
        return False
    return done.returncode == 0


def test_an_owner_sees_what_a_run_would_send(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"question": f"q{n}?", "answer": "a"}) + "\n" for n in range(8))
    )
    file, run = tmp_path / "client.yaml", tmp_path / "run.yaml"
    made = ["client", "init", str(file), "--client", "1", "--env", "QA", "--env-set", f"data={tmp_path / 'q.jsonl'}"]
    assert main(made) == 0 and main(made) == 2
    assert "exists already" in capsys.readouterr().err
    common = "env: {id: QA, options: {size: tiny}}\nagent: tiny\npartition: {sampler: held, clients: 3, roles: {public: 8}}\n"
    for algorithm, code, says in [
        ("fedagent", 0, "parameters"),
        ("pubswap", 2, "does not allow answers"),
        ("{name: fedagent, aggregation: weighted}", 0, "parameters"),
        ("centralized", 2, "all tasks in one place"),
    ]:
        run.write_text(f"{common}algorithm: {algorithm}\n")
        assert main(["client", "check", str(file), "--run", str(run)]) == code
        shown = capsys.readouterr()
        assert says in shown.out + shown.err
    run.write_text(f"{common}evaluation: {{at_clients: [held_out]}}\n")
    assert main(["client", "check", str(file), "--run", str(run)]) == 2
    assert (
        main(
            [
                "client",
                "init",
                str(tmp_path / "no.yaml"),
                "--client",
                "1",
                "--env",
                "QA",
                "--env-set",
                "data=none.jsonl",
            ]
        )
        == 2
    )
    assert not (tmp_path / "no.yaml").exists()
