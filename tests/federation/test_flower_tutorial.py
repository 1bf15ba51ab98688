"""The commands of the tutorial about a Flower deployment, run as they stand, but for the port."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from benchmarks.newcomers import run_script
from fedagentgym.experiment.run import train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "flower-deployment.md"


def find_free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody uses."""
    for first in range(18_000, 30_000, count):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for port, probe in enumerate((one, two, three), start=first):
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise OSError("no free ports")


@pytest.mark.slow
def test_the_tutorial_ends_where_one_process_ends(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    script = "".join(blocks).replace("PORT=8000", f"PORT={find_free_ports(3)}")
    run_script(script, tmp_path)
    deployed = json.loads((tmp_path / "deployed" / "result.json").read_text())
    alone = train(tmp_path / "run.yaml", [f"output.folder={tmp_path / 'alone'}"])
    assert deployed["state"] == alone.digest
