"""Every command with every option, given nasty values: an exit code that it promises, one sentence, no trace, no hang."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.cli.application import load_application
from fedagentgym.cli.main import main
from fedagentgym.experiment.evaluation_run import run_evaluation
from tests.fuzz import nasty
from tests.network import blocked

PROMISED = (0, 2, 3)
CPU_SECONDS = 5
"""Of one case; time is measured in the process, so that a busy machine fails no test."""
HANG_SECONDS = 120
GOOD: dict[str, tuple[str, ...]] = {
    "envs": ("Guess",),
    "play": ("Guess",),
    "label": ("Guess", "--split", "val", "--out", "out.jsonl", "--attempts", "1", "--turns", "1"),
    "demo": (),
    "presets": ("good.yaml",),
    "plan": ("good.yaml",),
    "first-batch": ("good.yaml",),
    "train": ("good.yaml",),
    "resume": ("run",),
    "eval": ("--env", "Guess", "--agent", "random", "--tasks", "2", "--out", "played"),
    "settings": ("learning",),
    "report": ("run",),
    "export": ("run", "--out", "out"),
    "episodes": ("run",),
    "leaderboard build": ("folder", "--out", "site"),
    "leaderboard top": ("folder", "--suite", "smoke"),
    "chats": ("run", "--out", "out.jsonl"),
    "compare": ("run", "run"),
    "bench list": (),
    "bench show": ("smoke",),
    "bench plan": ("smoke",),
    "bench config": ("smoke", "fedagent", "uniform-seed0"),
    "bench replicates": ("smoke",),
    "bench run": ("nothing",),
    "bench tune": ("smoke",),
    "bench twin": ("smoke", "--out", "secret.json"),
    "bench status": ("folder",),
    "bench resume": ("folder",),
    "bench pack": ("folder",),
    "bench verify": ("folder",),
    "bench regrade": ("folder", "--out", "regraded.zip"),
    "bench export": ("folder", "--out", "runs.parquet"),
    "doctor": (),
    "gateway serve": ("--env", "Guess", "--agent", "untrained-tiny", "--episodes", "1"),
    "gateway check": ("--", "true"),
    "gateway init": ("program",),
    "split make": ("uniform", "--env", "Guess", "--clients", "3", "--tasks-per-client", "5", "--out", "made.json"),
    "split presets": (),
    "split show": ("split.json",),
    "split verify": ("split.json",),
    "split plot": ("split.json", "--out", "x.png"),
    "split diff": ("split.json", "split.json"),
    "split compare": ("split.json", "uniform,tasks_per_client=5", "--env", "Guess", "--clients", "3", "--out", "x.svg"),
    "split export": ("split.json", "--client", "1", "--out", "held"),
    "client init": ("client.yaml", "--client", "1", "--env", "Guess"),
    "client report": ("folder",),
    "client check": ("folder", "--run", "good.yaml"),
    "data add": ("webshop", "--from", "folder"),
    "data check": ("gsm8k", "--from", "rows.jsonl"),
    "data list": (),
    "model add": ("folder",),
    "model list": (),
    "model remove": ("nobodys",),
    "openenv init": ("guess", "--out", "package"),
    "hub push": ("split.json", "nobody"),
    "hub pull": ("nobody", "--out", "pulled"),
    "pretrain": ("tiny", "--env", "Guess", "--out", "tiny"),
    "flower init": ("app", "--config", "good.yaml"),
}
"""A line of each command that is good, or nearly; a case changes some of it."""


class CaseTooLongError(BaseException):
    """A case that took more time than any may."""


def list_commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, command in load_application().commands.items():
        below = command.commands if isinstance(command, click.Group) else None
        found.update({name: command} if below is None else {f"{name} {inner}": each for inner, each in below.items()})
    return found


FOUND = list_commands()


def choose_values(option: click.Parameter) -> st.SearchStrategy[str]:
    """Nasty values of the kind that an option or argument takes, now and then of another."""
    if option.name == "plugins":
        fitting = nasty.plugins
    elif option.multiple if isinstance(option, click.Option) else False:
        fitting = nasty.assignments(nasty.ENV_KEYS if option.name == "env_set" else nasty.KEYS)
    elif isinstance(option.type, click.Path):
        fitting = nasty.files
    elif isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        fitting = nasty.numbers
    else:
        fitting = nasty.values
    return st.one_of(fitting, fitting, fitting, nasty.values)


@st.composite
def command_lines(draw: st.DrawFn, name: str) -> list[str]:
    """A good line with a value replaced or an option added, now and then with both."""
    line = list(GOOD[name])
    options = [each for each in FOUND[name].params if isinstance(each, click.Option) and each.name != "help"]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        if options and draw(st.integers(0, 4)):
            option = draw(st.sampled_from(options))
            value = [] if option.is_flag else [draw(choose_values(option))]
            if value and not option.multiple and option.opts[0] in line[:-1]:  # given twice it would not be read
                line[line.index(option.opts[0]) + 1] = value[0]
            else:
                line += [option.opts[0], *value]
        elif line:
            line[draw(st.integers(0, len(line) - 1))] = draw(st.one_of(nasty.values, nasty.files))
        else:
            line.append(draw(nasty.values))
    return [*name.split(), *line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the nasty files, in which the commands run; what would take long is replaced by its refusal."""
    folder = tmp_path_factory.mktemp("fuzz")
    nasty.make_files(folder)
    before = Path.cwd()
    patch = pytest.MonkeyPatch()
    os.chdir(folder)
    patch.setenv("FEDAGENTGYM_CACHE", str(folder / "cache"))
    patch.setattr("sys.stdin", io.StringIO(""))
    patch.setattr("fedagentgym.learning.pretrain.pretrain_tiny", refuse)
    patch.setattr("fedagentgym.learning.pretrain.pretrain_model", refuse)
    patch.setattr("fedagentgym.agents.model.sources.fetch_wheel", refuse)
    patch.setattr("fedagentgym.cli.hub.push_folder", refuse)
    patch.setattr("fedagentgym.cli.hub.pull_folder", refuse)
    patch.setattr("fedagentgym.experiment.run.finish", refuse)
    patch.setattr("fedagentgym.cli.gateway._collect", refuse)
    patch.setattr("fedagentgym.experiment.evaluation.run_evaluation", evaluate_few)
    assert main(["split", "make", *GOOD["split make"][:-1], "split.json"]) == 0
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    with blocked() as tried:
        yield folder
    assert tried == []
    patch.undo()
    os.chdir(before)


def refuse(*_: Any, **__: Any) -> None:
    raise OptionError("this would take long")


def evaluate_few(config: Any, folder: Path, agent: Any, sets: Any, *more: Any, **named: Any) -> Any:
    return (
        refuse()
        if any(one.settings.repeats > 100 for one in sets)
        else run_evaluation(config, folder, agent, sets, *more, **named)
    )


def stop(number: int, frame: FrameType | None) -> None:
    raise CaseTooLongError


def main_in_time(line: list[str]) -> int:
    """The exit code of a command, or 70 if it takes longer than a case may."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(HANG_SECONDS)
    try:
        return main(line)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


SETTINGS = settings(
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def find_fault(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The fault in the end of a command, if there is one."""
    code = main_in_time(line)
    said = capsys.readouterr().err
    fine = code in PROMISED and "Traceback" not in said and (code != 2 or said.strip())
    return "" if fine else str(([part[:80] for part in line], code, said[-600:]))


@pytest.mark.by_day(4)
@pytest.mark.parametrize("name", GOOD)
def test_no_command_line_ends_in_a_trace(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = []

    @SETTINGS
    @given(line=command_lines(name))
    def run_cases(line: list[str]) -> None:
        faults.append(find_fault(line, capsys))

    run_cases()
    assert not any(faults), "\n".join(filter(None, faults))


def test_no_configuration_ends_in_a_trace(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = []

    @SETTINGS
    @given(text=nasty.configurations())
    def run_cases(text: bytes) -> None:
        (place / "case.yaml").write_bytes(text)
        fault = find_fault(["train", "case.yaml"], capsys)
        faults.append(f"{text[:300]!r}: {fault}" if fault else "")

    run_cases()
    assert not any(faults), "\n".join(filter(None, faults))


def test_every_command_is_among_the_cases() -> None:
    assert set(GOOD) == set(FOUND)
