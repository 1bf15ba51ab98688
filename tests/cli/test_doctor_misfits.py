"""`doctor` on companions of torch that do not fit it."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest

from fedagentgym.cli.doctor import find_misfits

Packages = dict[str, tuple[str, list[str]]]


def install(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> SimpleNamespace:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(version=packages[name][0], requires=packages[name][1])

    monkeypatch.setattr(metadata, "distribution", find)
    monkeypatch.setattr(metadata, "version", lambda name: find(name).version)


@pytest.mark.parametrize(
    ("packages", "reasons"),
    [
        ({}, {}),
        ({"torchvision": ("0.28.0", [])}, {}),
        ({"torch": ("2.13.0+cpu", []), "torchvision": ("0.28.0+cpu", ["numpy", "torch==2.13.0"])}, {}),
        ({"torch": ("2.13.0+cu130", []), "torchvision": ("0.28.0+cu130", ["torch==2.13.0"])}, {}),
        ({"torch": ("2.13.0", []), "torchaudio": ("2.13.0", ["torch (==2.13.0)"]), "torchcodec": ("0.17", None)}, {}),
        (
            {"torch": ("2.13.0+cpu", []), "torchvision": ("0.28.0", ["torch==2.13.0"]), "torchaudio": ("2.11.0", [])},
            {"torchvision": "default build", "torchaudio": "default build"},
        ),
        ({"torch": ("2.13.0", []), "torchvision": ("0.29.0", ["torch==2.14.0"])}, {"torchvision": "for torch 2.14.0"}),
        ({"torch": ("2.13.0", []), "torchvision": ("0.28.0+cpu", [])}, {"torchvision": "for the CPU"}),
    ],
)
def test_builds_that_exclude_each_other_are_told(
    packages: Packages, reasons: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, monkeypatch)
    found = {one["name"]: one["reason"] for one in find_misfits()}
    assert found.keys() == reasons.keys()
    assert all(reasons[name] in reason for name, reason in found.items())
