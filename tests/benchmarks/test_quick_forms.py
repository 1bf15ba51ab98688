"""Every speed benchmark's quick form ends and gives numbers that can be true; how fast the machine is does not matter."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.benchmarks import BENCHMARKS
from fedagentgym.cli.main import main

Values = Mapping[str, float]
MAY_BE_ZERO = ("memory of", "share of", "environment's share", "later reset", "open", "dispersion", "figure")


def run_quick(name: str, **options: int) -> dict[str, float]:
    """The figures of a quick form by name; each is finite and has its right sign."""
    figures = BENCHMARKS.get(name)(True, **options)
    assert figures
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert figure.name
        assert math.isfinite(figure.value), figure
        assert figure.value >= 0.0, figure
        assert figure.value > 0.0 or any(part in figure.name for part in MAY_BE_ZERO), figure
    return {figure.name: figure.value for figure in figures}


def pick(values: Values, *parts: str) -> list[float]:
    """The values whose names contain all of these parts; there is one at least."""
    found = [value for name, value in values.items() if all(part in name for part in parts)]
    assert found, (parts, list(values))
    return found


def check_core(values: Values) -> None:
    assert values["ratio"] > 1.0


def check_alfworld(values: Values) -> None:
    assert min(pick(values, "real / native")) > 10.0
    assert max(pick(values, "memory of")) < 500.0


def check_houses(values: Values) -> None:
    assert all(value <= 100.0 for value in pick(values, "expert's wins"))
    assert max(pick(values, "shortest plan")) <= max(pick(values, "expert's turns"))


def check_webshop(values: Values) -> None:
    (same,), (other,) = pick(values, "the same searches"), pick(values, "searches of their own")
    assert 0.9 < same < 8.0
    assert same <= other * 1.1 and other < 8.5
    assert max(pick(values, "one process after")) < min(pick(values, "peak memory"))


def check_verifiers(values: Values) -> None:
    assert min(values.values()) > 1.0


def check_partitions(values: Values) -> None:
    assert max(pick(values, "peak memory")) < 16.0
    assert min(pick(values, "divide, write, open")) > 0.0


def check_agents(values: Values) -> None:
    assert all(0.0 < value < 110.0 for value in pick(values, "share of the matrix product"))
    assert min(pick(values, "/ generate")) > 0.1
    assert all(0.0 < value < 100.0 for value in pick(values, "of it playing"))
    if find_spec("trl") is not None:
        assert all(abs(value - 1.0) < 0.05 for value in pick(values, "TRL's tokens / ours"))


def check_federation(values: Values) -> None:
    assert all(0.0 < value < 10.0 for value in pick(values, "over memcpy + sha256"))
    assert 1.0 < pick(values, "greatest memory of a round")[0] < 40.0
    assert pick(values, "idle clients")[0] < 1000.0
    if find_spec("flwr") is not None and find_spec("ray") is not None:
        assert len(pick(values, "Flower's FedAvg / ")) == 2


CHECKS: dict[str, Callable[[Values], None]] = {
    "alfworld": check_alfworld,
    "alfworld-houses": check_houses,
    "speed-agents": check_agents,
    "speed-core": check_core,
    "speed-federation": check_federation,
    "speed-partitions": check_partitions,
    "speed-verifiers": check_verifiers,
    "webshop": check_webshop,
}
SHORT = ("alfworld-houses", "speed-core", "speed-verifiers")


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS]
)
def test_a_quick_form_gives_numbers_that_can_be_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "alfworld" and find_spec("textworld") is None:
        pytest.skip("the real engine is not installed")
    if name == "speed-agents" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)  # figures are drawn where one stands
    CHECKS[name](run_quick(name))


def test_each_speed_benchmark_has_a_check() -> None:
    folder = "fedagentgym.benchmarks.speed."
    assert {name for name in BENCHMARKS.names() if BENCHMARKS.get(name).__module__.startswith(folder)} == set(CHECKS)


def test_rounds_grow_with_participants_and_models_and_hardly_with_clients_that_are_not_asked() -> None:
    values = run_quick("speed-federation", clients=20_000)
    rounds = [
        value for count in (10, 100, 1000) for value in pick(values, f"{count:,} of 20,000 clients, 0.1 MB: round")
    ]
    assert rounds == sorted(rounds)
    memory = [pick(values, f"{count:,} of 20,000 clients, 0.1 MB: greatest memory")[0] for count in (10, 1000)]
    assert memory[1] < 4 * memory[0]
    assert pick(values, "a client that is not asked")[0] < 2000.0


@pytest.mark.parametrize(
    "arguments", [["speed-core", "--clients", "10"], ["speed-core", "speed-federation", "--clients", "10"]]
)
def test_a_benchmark_without_clients_takes_no_number_of_them(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "run", *arguments]) == 2
    captured = capsys.readouterr()
    assert "'speed-core' takes no --clients" in captured.err and captured.out == ""


@pytest.mark.parametrize("clients", [0, -3])
def test_no_federation_has_fewer_than_one_client(clients: int) -> None:
    with pytest.raises(OptionError, match="number of clients from 1 on"):
        BENCHMARKS.get("speed-federation")(True, clients=clients)


def test_a_federation_of_one_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "speed-federation", "--quick", "--clients", "1", "--json"]) == 0
    names = [figure["name"] for figure in json.loads(capsys.readouterr().out)["measurements"]]
    assert any(name.startswith("1 of 1 clients") for name in names)
