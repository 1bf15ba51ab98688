"""What all tests share: where the provided test data lies, and a cache of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("FEDAGENTGYM_CACHE", str(ROOT / ".cache"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts its background jobs so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data and recorded answers of the originals, provided beside the checkout on development machines."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the test data folder ../shared/data is not beside this checkout")
    return folder


@pytest.fixture(autouse=True)
def usual_floating_point() -> Iterator[None]:
    """A token session makes the processor take denormal numbers for zero, which other tests would be surprised by."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
