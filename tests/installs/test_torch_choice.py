"""`make TORCH=...`: which torch is installed, with a pip, a curl and a nvidia-smi that only write down what is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = ("sed", "sh", "cat")
CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"


def choose(
    root: Path,
    folder: Path,
    wanted: str,
    *,
    installed: str = "",
    index: bool = True,
    gpu: str = "",
    system: str = "Linux",
) -> tuple[str, str]:
    """The script's output, and the requirement that it gives to pip."""
    shown = f"Version: {installed}" if installed else ""
    programs = {
        "pip": f'[ "$1" = show ] && {{ echo "{shown}"; exit 0; }}; echo "$@" >> {folder}/asked',
        "curl": f"exit {0 if index else 28}",
        "uname": f"echo {system}",
    }
    if gpu:
        programs["nvidia-smi"] = f"exit {0 if gpu == 'works' else 9}"
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for tool in TOOLS:
        if not (folder / tool).exists():
            (folder / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        ["/bin/sh", str(root / "tests" / "install-torch.sh"), "pip", wanted],
        cwd=root,
        env={"PATH": str(folder), "NVIDIA_DEVICES": str(folder / "no-device")},
        capture_output=True,
        text=True,
        check=True,
    )
    asked = folder / "asked"
    (said,) = done.stdout.splitlines()
    return said, asked.read_text().strip() if asked.exists() else ""


def test_without_a_gpu_it_is_the_cpu_build(root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, "auto")
    assert "no GPU is seen; TORCH=cuda" in said and asked.endswith(CPU_INDEX)


def test_where_only_the_package_index_is_reached_pip_decides(root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, "cpu", index=False)
    assert "as pip finds it" in said and asked == "install -q -c constraints.txt torch==2.13.0"


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_what_is_installed_stays(wanted: str, root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, wanted, installed="2.13.0+cpu")
    assert said == "fedagentgym: torch 2.13.0+cpu is installed already and stays" and not asked


def test_another_version_does_not_stay(root: Path, tmp_path: Path) -> None:
    assert choose(root, tmp_path, "cpu", installed="2.12.0+cpu")[1].endswith(CPU_INDEX)


def test_a_gpu_brings_cuda(root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, "auto", gpu="works")
    assert "a GPU is seen; TORCH=cpu" in said and asked == "install -q -c constraints.txt torch==2.13.0"


def test_a_driver_without_a_gpu_does_not(root: Path, tmp_path: Path) -> None:
    assert choose(root, tmp_path, "auto", gpu="broken")[1].endswith(CPU_INDEX)


def test_cuda_takes_the_place_of_a_cpu_build(root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, "cuda", installed="2.13.0+cpu")
    assert "as TORCH=cuda asks" in said and "--force-reinstall torch==2.13.0" in asked


def test_a_mac_has_one_build(root: Path, tmp_path: Path) -> None:
    assert choose(root, tmp_path, "auto", system="Darwin")[1] == "install -q -c constraints.txt torch==2.13.0"


def test_a_requirement_is_for_pip(root: Path, tmp_path: Path) -> None:
    said, asked = choose(root, tmp_path, "torch==2.11.*")
    assert said == "fedagentgym: torch==2.11.* (as TORCH=torch==2.11.* asks)" and asked == "install -q torch==2.11.*"


def test_the_pin_of_the_constraints_is_what_is_installed(root: Path) -> None:
    pins = [line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    assert pins == ["torch==2.13.0"], "the other tests of this page name the pin"
