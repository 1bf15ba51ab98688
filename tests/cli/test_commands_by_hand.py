"""The commands as a person meets them."""

from __future__ import annotations

import doctest
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.cli import play as playing
from fedagentgym.cli.application import COMMANDS, load_application
from fedagentgym.cli.main import main
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.runs.folder import RANKED
from fedagentgym.version import __version__
from tests.fuzz.test_commands import FOUND


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS) and max(map(len, shown.splitlines())) <= 80


def test_the_table_says_what_the_commands_say() -> None:
    found = {
        name: " ".join((one.help or "").partition("\n\n")[0].split())
        for name, one in load_application().commands.items()
    }
    assert found == {name: about for name, (_, about) in COMMANDS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("name", FOUND)
def test_a_command_is_explained_in_ten_lines_and_an_example(name: str) -> None:
    command = FOUND[name]
    about, line = (command.help or "").splitlines(), (command.epilog or "").removeprefix("Example: fedagentgym ")
    assert 0 < len(about) <= 10 and len(command.epilog or "") <= 76 and f"{line} ".startswith(f"{name} ")
    command.make_context(name, shlex.split(line.removeprefix(name)))


def test_envs_lists_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "guess", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["id"] == "fedagentgym/Guess-v0" and entry["splits"] == {
        "train": 600,
        "val": 60,
        "test": 60,
        "warmup": 120,
    }
    assert main(["envs", "fedagentgym/Guess-v0"]) == 0
    assert "train 600" in capsys.readouterr().out


def test_every_suite_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--json"]) == 0
    suites = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    on_gpu = {name for name, one in suites.items() if one["minutes"] is None}
    assert on_gpu == {name for name in suites if name.startswith("paper-")} and len(on_gpu) == 5
    for name in on_gpu:
        like_the_expert, longest = suites[name]["gpu_hours"]
        assert 0 < like_the_expert < longest
    assert main(["bench", "list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(" hours of an H100)") == 5 and shown.count(" min)") + shown.count(" min;") == len(suites) - 5


def test_doctor_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["version"] == __version__ and set(report["extras"]) >= {"train", "alfworld", "flower", "vllm"}
    assert main(["doctor"]) == 0
    assert "free disk" in capsys.readouterr().out


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`play(*arguments, typed=...)`: what the player says to these lines, which end well."""

    def run(*arguments: str, typed: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert main(["play", *arguments]) == 0
        told = capsys.readouterr()
        assert not told.err
        return told.out

    return run


def test_play_has_undo_history_and_an_end(play: Callable[..., str]) -> None:
    shown = play(
        "guess",
        "--task",
        "guess/train/00003",
        typed=":actions\nguess 1\n:undo\nundo\n:history\n:what\nnonsense\nundo\nhelp\nquit\n",
    )
    assert "Nothing to undo" in shown and "not recognised" in shown
    assert "take a step back" in shown and "out of turns" not in shown


def test_play_takes_numbers_words_for_a_slot_and_bare_answers(play: Callable[..., str]) -> None:
    shop = play("WebShop", "--env-set", "size=tiny", typed="red shoes\n3\nbuy now\nquit\n")
    assert "search[red shoes]" in shop and "Thank you for shopping" in shop
    assert "[SEP]" not in shop and "not recognised" not in shop
    sums = play("math", "--task", "math/train/00000", typed="help\n12\nquit\n")
    assert "1 turn" in sums and "no answer in your reply" not in sums


def test_choices_and_lines_of_a_player() -> None:
    assert doctest.testmod(playing).failed == 0
    env = open_env("fedagentgym/Guess-v0")
    (episode,) = env.reset_many(["guess/train/00003"], [0])
    view = episode.view._replace(admissible=("look", "search[<query>]", "click[buy now]"))
    meant = {
        "1": "look",
        "2": "2",
        "9": "search[9]",
        "Buy Now": "click[buy now]",
        "red hat": "search[red hat]",
        "look": "look",
    }
    assert {line: playing.resolve_line(line, env, view) for line in meant} == meant
    assert playing.resolve_line("click[nowhere]", env, view) == "click[nowhere]"
    assert playing.needs_words("9" * 5000, view) is None and "9" * 5000 in playing.resolve_line("9" * 5000, env, view)
    assert playing.needs_words("2", view) == "search[<query>]" and playing.needs_words("1", view) is None
    lines = playing.format_choices([f"go to cabinet {number} in the far corner" for number in range(99)], 78)
    assert max(map(len, lines)) <= 78 and "39 more" in lines[-1]


def test_the_list_of_worlds_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 79 and sum("-v0 " in line for line in lines) == len(lines) - 2


def test_an_environment_that_cannot_be_opened_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's environment whose file is elsewhere is named with its reason, after the table and in JSON."""

    class Away(GuessEnv):
        """Guess, with a file that is not here."""

        id = "me/Away-v0"

        def load_pool(self, split: str) -> TaskPool:
            raise DataError("tickets.jsonl is missing")

    monkeypatch.setattr(ENVIRONMENTS, "_entries", {**ENVIRONMENTS._entries, "me/Away-v0": Away})
    assert main(["envs"]) == 0
    shown = capsys.readouterr().out
    assert "not listed: me/Away-v0: tickets.jsonl is missing" in shown and "Guess-v0 " in shown
    assert main(["envs", "--json"]) == 0
    *others, last = json.loads(capsys.readouterr().out)
    assert last == {"id": "me/Away-v0", "error": "tickets.jsonl is missing"} and all("splits" in one for one in others)
    assert main(["envs", "me/Away-v0"]) == 2


def test_an_agent_can_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "guess", "--agent", "expert"]) == 0
    shown = capsys.readouterr().out
    assert "> guess " in shown and "solved" in shown and "quit" not in shown


def test_a_clients_world_is_played_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = ["split", "make", "uniform", "--env", "Math", "--clients", "3"]
    assert main([*made, "--tasks-per-client", "5", "--variant", "wording", "--out", "split.json"]) == 0
    client = ["--client", "2", "--client-split", "split.json"]
    assert main(["play", *client, "--agent", "expert"]) == 0
    assert main(["-q", "eval", *client, "--agent", "expert", "--out", "own"]) == 0
    assert main(["-q", "eval", *client, "--agent", "expert", "--split", "val", "--tasks", "7", "--out", "val"]) == 0
    for name, count in (("own", 5), ("val", 7)):
        lines = [json.loads(line) for line in Path(name, RANKED).read_text().splitlines()]
        assert len(lines) == count and lines[0]["client"] == 2 and lines[0]["variant"]
        assert main(["-q", "eval", "--check", name]) == 0
    capsys.readouterr()
    assert main(["play", "Guess", *client]) == 2 and "divides" in capsys.readouterr().err
    assert main(["eval", "--client", "2"]) == 2 and "--client-split" in capsys.readouterr().err


def test_play_ends_with_a_verdict(play: Callable[..., str]) -> None:
    typed = "\n".join(f"guess {number}" for number in range(1, 11))
    assert play("guess", "--env-set", "max_turns=99", "--task", "guess/train/00003", typed=typed)


WRONG = {
    "unknown command": ["paly"],
    "unknown environment": ["play", "WebShup"],
    "unknown task": ["play", "guess", "--task", "guess/train/99999"],
    "unknown split": ["play", "guess", "--split", "trian"],
    "wrong option type": ["envs", "guess", "--env-set", "seed=abc"],
    "unknown environment option": ["envs", "guess", "--env-set", "sead=1"],
    "malformed option": ["envs", "guess", "--env-set", "seed"],
    "not YAML": ["envs", "guess", "--env-set", "seed=[1"],
    "unknown suite": ["bench", "run", "smok"],
    "unknown data": ["data", "add", "webshup", "--from", "."],
    "missing option": ["data", "add", "webshop"],
    "unknown data to check": ["data", "check", "gsm8"],
    "missing data file": ["data", "check", "gsm8k", "--from", "nowhere.jsonl"],
    "unknown flag": ["envs", "--jsn"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WRONG[name]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert captured.err.startswith("fedagentgym: ")


def test_the_console_script_exits_with_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedagentgym", "play", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 2 and "unknown environment" in done.stderr and os.listdir(tmp_path) == []


LISTS = (["presets"], ["presets", "demo"], ["bench"], ["envs", "Guess"], ["split", "presets"])
HELPS = [[command, "--help"] for command in COMMANDS]


def test_help_imports_no_command_and_lists_need_no_torch() -> None:
    calls = "; ".join(f"assert main({arguments}) == 0" for arguments in [*LISTS, *HELPS])
    first = "assert main(['--help']) == 0; assert not {'pydantic', 'rich', 'fedagentgym.cli.train'} & set(sys.modules)"
    code = f"import sys; sys.modules['torch'] = None; from fedagentgym.cli.main import main; {first}; {calls}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "paper-alfworld" in done.stdout


NEEDS_TORCH = (
    ["train", "demo"],
    ["eval", "--env", "Guess", "--agent", "some/model"],
    ["pretrain", "tiny", "--env", "Guess"],
)


def test_a_command_without_its_extra_names_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from fedagentgym.cli.main import main; "
        f"sys.exit(max(main(arguments) != 2 for arguments in {list(NEEDS_TORCH)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(NEEDS_TORCH) and all("pip install 'fedagentgym[train]'" in line for line in said)
    assert not list(tmp_path.iterdir())
