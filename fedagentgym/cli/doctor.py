"""`fedagentgym doctor`: the state of this installation, and what to install for missing parts."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Collection, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import click
from rich.markup import escape

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import cache_folder, data_folder
from fedagentgym.base.imports import EXTRAS
from fedagentgym.base.process import check_bfloat16, count_usable_cores
from fedagentgym.base.progress import get_console
from fedagentgym.base.rounding import format_fixed
from fedagentgym.cli.options import JSON, command, option
from fedagentgym.version import __version__

_TORCH_PIN = re.compile(r"torch\s*(?:\(\s*)?==\s*([0-9.]+)")
"""A requirement that pins torch to one version."""
_VERDICTS = {True: ("passed", "green"), False: ("FAILED", "red"), None: ("left-out", "yellow")}
CORE = ("gymnasium", "numpy", "scipy", "pydantic", "rich", "click", "math-verify")


@command(epilog="Example: fedagentgym doctor --gpu --json", needs={"device": ("gpu",)})
@option("--gpu", is_flag=True, help="Also check a GPU: ten checks, some minutes each; exit code 1 if one fails.")
@option("--device", help="With --gpu: the device, by default cuda; cpu runs the checks without a GPU.")
@JSON
def doctor(gpu: bool, device: str | None, as_json: bool) -> None:
    """Report versions, extras, data, GPU and disk, and what to install for missing parts.

    `--gpu` checks a GPU. It compares products, log-probs and two policy steps with those of the CPU, repeats the steps, compares
    the memory of two rounds of a paper's size with the plan, and tries vLLM and a paper's first batch. Checks whose packages are
    not installed are left out. If you report an issue, attach the output of `--json`.
    """
    report = examine()
    if not as_json:
        print_report(report)
    if not gpu:
        if as_json:
            click.echo(json.dumps(report, indent=2))
        return
    from fedagentgym.experiment.gpu import check_gpu

    checks = []
    for check in check_gpu("cuda" if device is None else device):
        checks.append(check)
        if not as_json:
            word, colour = _VERDICTS[check.passed]
            _print_line(f"{word} {check.name}: {check.found} ({format_fixed(check.seconds)} s)", colour=colour)
    if as_json:
        click.echo(json.dumps({**report, "gpu_checks": [check.to_plain() for check in checks]}, indent=2))
    if any(check.passed is False for check in checks):
        raise click.exceptions.Exit(1)


def print_report(report: Mapping[str, Any]) -> None:
    """Print the report in lines, in colours that show missing parts."""
    _print_line(f"fedagentgym {report['version']}, Python {report['python']}, {report['cores']} cores", indent=0)
    _print_line(", ".join(f"{name} {version}" for name, version in report["packages"].items()))
    for extra, state in report["extras"].items():
        missing = ", ".join(state["missing"])
        hint = f"missing {missing}: pip install 'fedagentgym[{extra}]'" if missing else "installed"
        _print_line(f"[{extra}] {hint}", colour="yellow" if missing else "green")
    for one in report["misfits"]:
        _print_line(f"{one['name']} {one['reason']}: pip uninstall {one['name']}", colour="red")
    _print_line(f"GPU: {report['gpu'] or 'none found'}")
    stored = "bfloat16" if report["bfloat16"]["present"] else "float32"
    _print_line(f"under an adapter a CPU stores {stored}: {report['bfloat16']['reason']}")
    _print_line(f"data in {report['data_folder']}: {', '.join(report['data']) or 'none imported'}")
    _print_line(f"free disk: {format_fixed(report['free_disk_gb'])} GB")
    _print_line("protections around programs of fedagentgym/Code-v0:")
    for one in report["sandbox"]["protections"]:
        word = "up  " if one["up"] else "down"
        colour = "green" if one["up"] else "yellow"
        _print_line(f"{word} {one['name']}: {one['purpose']} ({one['reason']})", indent=4, colour=colour)
    if report["sandbox"]["refuses"]:
        _print_line(f"refused: {report['sandbox']['refuses']}", indent=4, colour="yellow")


def _print_line(text: str, *, indent: int = 2, colour: str | None = None) -> None:
    """Print a line whose first word may be coloured; continuation lines are indented."""
    screen = get_console()
    width = screen.width if screen.is_terminal else len(text) + indent
    begin, further = " " * indent, " " * (indent + 4)
    lines = textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=further, break_on_hyphens=False)
    for number, line in enumerate(lines):
        word, space, rest = line.strip().partition(" ")
        head = f"[{colour}]{escape(word)}[/]" if colour is not None and not number else escape(word)
        lead = line[: len(line) - len(line.lstrip())]
        screen.print(f"{lead}{head}{escape(space + rest)}", markup=True, highlight=False)


def examine() -> dict[str, Any]:
    """The report as plain data. Modules of extras are located and not imported."""
    folder, cache = data_folder(), cache_folder()
    while not cache.exists():
        cache = cache.parent
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cores": count_usable_cores(),
        "packages": {name: metadata.version(name) for name in CORE},
        "extras": {
            name: {"missing": [one for one in modules if not find_spec(one)]} for name, modules in EXTRAS.items()
        },
        "misfits": find_misfits(),
        "gpu": _gpu(),
        "bfloat16": check_bfloat16()._asdict(),
        "data_folder": str(folder),
        "data": sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else [],
        "free_disk_gb": shutil.disk_usage(cache).free / 1e9,
        "sandbox": examine_sandbox(),
    }


def examine_sandbox(left_out: Collection[str] = ()) -> dict[str, Any]:
    """The protections around programs, each active or not with the reason, and the reason if programs are refused.

    A sandbox server is started and activates the protections, so the report states which of them really work.
    """
    from fedagentgym.envs.verifiers.sandbox.confine import PURPOSES
    from fedagentgym.envs.verifiers.sandbox.pool import SandboxError, Slots, refuse_without

    slots = Slots(1, left_out)
    try:
        protections, refuses = slots.protections(), ""
        try:
            refuse_without(protections, ())
        except SandboxError as error:
            refuses = str(error)
    except FedAgentGymError as error:
        protections, refuses = (), str(error)
    finally:
        slots.close()
    return {
        "protections": [{**one._asdict(), "purpose": PURPOSES[one.name]} for one in protections],
        "refuses": refuses,
    }


def find_misfits() -> list[dict[str, str]]:
    """Installed packages, such as torchvision, that are made for another version or build of torch. This package does not use
    them, but transformers and vLLM import them, and the error of a failed import says little about its cause."""
    try:
        torch, _, build = metadata.version("torch").partition("+")
    except metadata.PackageNotFoundError:
        return []
    found = []
    for name in ("torchvision", "torchaudio", "torchcodec"):
        try:
            companion = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        _, _, own = companion.version.partition("+")
        pins = [_TORCH_PIN.match(line) for line in companion.requires or ()]
        wanted = next((pin.group(1) for pin in pins if pin is not None), torch)
        if wanted != torch:
            found.append(
                {"name": name, "reason": f"{companion.version} is for torch {wanted}, and this is torch {torch}"}
            )
        elif own != build and "cpu" in (own, build):
            kinds = {"cpu": "for the CPU", "": "of the index's default build"}
            about = f"{companion.version} is {kinds.get(own, own)}, torch {torch} is {kinds.get(build, build)}"
            found.append({"name": name, "reason": about})
    return found


def _gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(answer.stdout.split("\n")).strip("; ") or None
