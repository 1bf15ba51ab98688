"""`fedagentgym doctor --gpu`: all checks on a GPU (`pytest -m gpu -s tests/gpu`), and rehearsed on a processor in small.

Weights and tokenizers are made here, nothing is downloaded; the shop is the generated one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.model.shapes import ModelShape
from fedagentgym.cli.main import main
from fedagentgym.experiment import gpu

SMALL = ModelShape("llama", 32, 2, 2, 1, 16, 64, 64, tied=True)
PAPER = ModelShape("qwen2", 32, 2, 2, 1, 16, 64, 64, tied=True)


@pytest.mark.gpu
def test_a_gpu_passes(capsys: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    checks = []
    for check in gpu.check_gpu():
        checks.append(check)
        with capsys.disabled():
            print(check)  # noqa: T201
    assert [check.name for check in checks] == list(gpu.CHECKS)
    assert not [check for check in checks if check.passed is False]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gpu.Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "find_model", lambda named: None)
        yield gpu.Bench("cpu", tmp_path_factory.mktemp("gpu"), SMALL, PAPER)


def test_all_checks_are_rehearsed_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_model", lambda named: None)
    checks = {check.name: check for check in gpu.check_gpu("cpu", small=SMALL, paper=PAPER)}
    assert list(checks) == list(gpu.CHECKS)
    compared = ("card", "kernels", "float32", "bfloat16", "step", "repeated")
    assert all(checks[name].passed for name in compared), checks
    assert checks["step"].numbers["cosine"] == pytest.approx(1.0)
    assert checks["memory"].passed is None and checks["memory"].numbers["planned"] > 0
    assert checks["first-batch"].passed is None and "model add" in checks["first-batch"].found


def spoil_products(bench: gpu.Bench, patch: pytest.MonkeyPatch) -> None:
    """As TF32 rounds: to ten bits."""
    product = torch.Tensor.__matmul__

    def rounded(left: Any, right: Any) -> Any:
        if left.dtype != torch.float32:
            return product(left, right)
        parts = [(one.view(torch.int32) & ~0x1FFF).view(torch.float32) for one in (left, right)]
        return product(*parts)

    patch.setattr(torch.Tensor, "__matmul__", rounded)


def spoil_scores(bench: gpu.Bench, patch: pytest.MonkeyPatch) -> None:
    """One log-prob of many is wrong."""
    true = bench.plain
    score = gpu.score_plainly
    patch.setitem(vars(bench), "plain", true)

    def wrong(policy: Any, rows: Any) -> Any:
        found = score(policy, rows)
        found[len(found) // 2] += 0.01
        return found

    patch.setattr(gpu, "score_plainly", wrong)


def spoil_play(bench: gpu.Bench, patch: pytest.MonkeyPatch) -> None:
    """The step has other log-probs than play recorded."""
    score = gpu.score_as_trained
    patch.setattr(gpu, "score_as_trained", lambda *given: score(*given) - 0.1)


def spoil_second_step(bench: gpu.Bench, patch: pytest.MonkeyPatch) -> None:
    """Every second call moves the weights otherwise, by little."""
    step, calls = gpu.Bench.step, []

    def moved(self: gpu.Bench, device: str, **options: Any) -> tuple[Mapping[str, float], Mapping[str, Any]]:
        metrics, change = step(self, device, **options)
        calls.append(device)
        return metrics, {name: value + np.float32(1e-7 * (len(calls) % 2)) for name, value in change.items()}

    patch.setattr(gpu.Bench, "step", moved)


def spoil_direction(bench: gpu.Bench, patch: pytest.MonkeyPatch) -> None:
    """The second step goes the other way."""
    step, calls = gpu.Bench.step, []

    def turned(self: gpu.Bench, device: str, **options: Any) -> tuple[Mapping[str, float], Mapping[str, Any]]:
        metrics, change = step(self, device, **options)
        calls.append(device)
        return metrics, {name: value * (-1) ** len(calls) for name, value in change.items()}

    patch.setattr(gpu.Bench, "step", turned)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("kernels", spoil_products),
        ("float32", spoil_scores),
        ("bfloat16", spoil_play),
        ("step", spoil_direction),
        ("repeated", spoil_second_step),
    ],
)
def test_a_card_that_computes_wrongly_fails(
    bench: gpu.Bench, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any
) -> None:
    _, check = gpu.CHECKS[name]
    assert check(bench).passed
    spoil(bench, monkeypatch)
    assert check(bench).passed is False


def test_a_check_that_raises_fails_and_the_others_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def explode(bench: gpu.Bench) -> gpu.Found:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    checks = {"card": gpu.CHECKS["card"], "broken": ("explodes", explode), "kernels": gpu.CHECKS["kernels"]}
    monkeypatch.setattr(gpu, "CHECKS", checks)
    assert [check.passed for check in gpu.check_gpu("cpu")] == [True, False, True]
    assert main(["doctor", "--gpu", "--device", "cpu"]) == 1
    assert "CUDA error: an illegal memory access" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "--gpu", "--device", "cpu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["gpu_checks"]
    assert [one["passed"] for one in found] == [True, False, True]


@pytest.mark.parametrize("device", ["cuda:99", "tpu", ""])
def test_a_device_that_is_not_here_is_one_sentence(device: str, capsys: Any) -> None:
    assert main(["doctor", "--gpu", "--device", device]) == 2
    said = capsys.readouterr().err
    assert "device" in said and len(said.strip().splitlines()) == 1


def test_a_device_without_the_checks_is_refused(capsys: Any) -> None:
    assert main(["doctor", "--device", "cpu"]) == 2
    assert "does nothing without --gpu" in capsys.readouterr().err


def test_a_random_model_has_the_stated_size(tmp_path: Path, bench: gpu.Bench) -> None:
    from transformers import AutoModelForCausalLM

    gpu.make_random_model(tmp_path, PAPER, bench.env)
    made = AutoModelForCausalLM.from_pretrained(tmp_path)
    rows = made.get_input_embeddings().num_embeddings  # the tokenizer's words, where they are more
    expected = PAPER.count_parameters() + (rows - PAPER.vocabulary) * PAPER.hidden
    assert made.num_parameters() == expected
