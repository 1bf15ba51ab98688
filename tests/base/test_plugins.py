"""Plugins: loaded once, by every command that opens an environment or reads a configuration; a bad one is one sentence."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.imports import load_plugins, module_name
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.experiment.config import load_config

ECHO = "import fedagentgym\nprint('here')\n"


@pytest.fixture
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file that says when it is loaded, with a module name of its own for every test."""
    file = tmp_path / f"echo_{abs(hash(request.node.name))}.py"
    file.write_text(ECHO)
    return str(file)


def test_a_plugin_is_loaded_once(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    load_plugins([plugin, plugin])
    load_plugins((plugin,))
    assert capsys.readouterr().out == "here\n"
    assert module_name(Path(plugin)) in sys.modules


def test_files_of_one_name_are_modules_of_their_own(tmp_path: Path) -> None:
    """A class of the first can still be pickled when the second is there, and a changed file is loaded again."""
    for folder, number in (("one", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.py").write_text(f"class Own:\n    number = {number}\n")
    files = [tmp_path / "one" / "twin.py", tmp_path / "other" / "twin.py"]
    load_plugins([*map(str, files)])
    classes = [sys.modules[module_name(file)].Own for file in files]
    assert [cls.number for cls in classes] == [1, 2]
    assert [pickle.loads(pickle.dumps(cls)) for cls in classes] == classes
    copied = tmp_path / "twin.py"
    copied.write_bytes(files[0].read_bytes())
    assert module_name(copied) == classes[0].__module__
    files[0].write_text("class Own:\n    number = 3\n")
    load_plugins([str(files[0])])
    assert sys.modules[module_name(files[0])].Own.number == 3


BROKEN = {
    "raise ValueError('two\\nlines')": "ValueError: two lines",
    "def (": "SyntaxError: ",
    "import sys\nsys.exit(0)": "it calls sys.exit",
    "import no_such_module_anywhere": "No module named 'no_such_module_anywhere'",
    "import fedagentgym\nfedagentgym.register_objective('length', len)": "objective 'length' is registered already",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_plugin_is_one_sentence_and_exit_code_2(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert main(["envs", "Guess", "--plugin", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedagentgym: cannot load the plugin {str(file)!r}: ") and BROKEN[text] in said
    assert said.count("\n") == 1
    assert module_name(file) not in sys.modules


@pytest.mark.parametrize(
    ("name", "told"), [("absent.py", "no such file"), ("no_such_module_anywhere", "No module named"), ("", "Empty")]
)
def test_a_plugin_that_is_not_there(name: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        load_plugins([name])


COMMANDS = (
    ("envs", "Guess"),
    ("play", "Nowhere"),
    ("eval", "--env", "Nowhere"),
    ("label", "Nowhere"),
    ("pretrain", "tiny", "--env", "Nowhere"),
    ("split", "make"),
    ("split", "show", "nowhere.json"),
    ("split", "verify", "nowhere.json"),
    ("split", "plot", "nowhere.json"),
    ("split", "diff", "nowhere.json", "nowhere.json"),
    ("train", "nowhere"),
    ("export", "nowhere", "--out", "out"),
    ("flower", "init", "out", "--config", "nowhere.yaml"),
    ("bench", "run", "nothing"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_loads_plugins_before_it_does_anything(
    command: tuple[str, ...],
    plugin: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--plugin", plugin]) == (0 if command[0] == "envs" else 2)
    assert capsys.readouterr().out.startswith("here\n")


def test_an_exit_in_a_plugin_does_not_end_the_process_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "leaves.py"
    file.write_text("raise SystemExit")
    assert main(["envs", "--plugin", str(file)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.count("\n") == 1


def test_the_flower_app_names_the_plugins(tmp_path: Path, plugin: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "env: {id: fedagentgym/Guess-v0}\npartition: {clients: 2}\nagent: random\n"
        f"output: {{folder: {tmp_path / 'run'}}}\n"
    )
    assert main(["flower", "init", str(tmp_path / "app"), "--config", str(config), "--plugin", plugin]) == 0
    assert f'plugins = "{plugin}"' in (tmp_path / "app" / "pyproject.toml").read_text()


# ---- files that a configuration names -----------------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in a folder with its plugin and its data; the current folder is another one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (folder / "corridor.py").write_text("# of the folder\n")
    (folder / "own.jsonl").write_text('{"question": "What is 1+1?", "answer": "2"}\n' * 30)
    (folder / "run.yaml").write_text(
        "{name: mine, env: {id: Math, options: {data: own.jsonl}}, agent: untrained-tiny,"
        " partition: {clients: 2, tasks_per_client: 2}, plugins: [corridor.py]}"
    )
    return folder


def test_files_are_looked_for_beside_the_configuration_that_names_them(configured: Path) -> None:
    config = load_config(configured / "run.yaml")
    assert config.plugins == (str(configured / "corridor.py"),)
    assert config.env.options["data"] == str(configured / "own.jsonl")
    assert module_name(configured / "corridor.py") in sys.modules
    Path("corridor.py").write_text("# of the current folder\n")
    Path("own.jsonl").write_text("")
    config = load_config(configured / "run.yaml")
    assert config.plugins == ("corridor.py",) and config.env.options["data"] == "own.jsonl"


def test_a_plugin_that_is_given_takes_the_place_of_the_listed_one_of_its_name(configured: Path) -> None:
    """As in `resume` and `eval --run`."""
    other = configured / "other" / "corridor.py"
    other.parent.mkdir()
    other.write_text("# another one\n")
    (configured / "corridor.py").unlink()
    assert load_config(configured / "run.yaml", plugins=[str(other)]).plugins == (str(other),)
    more = configured / "more.py"
    more.write_text("# more\n")
    assert load_config(configured / "run.yaml", plugins=[str(more), str(other)]).plugins == (str(other), str(more))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"plugins": "mine.py"}, r"plugins must be a list .*\['mine\.py'\]"),
        ({"plugins": [Path("mine.py")]}, r"a plugin must be given as a text.*mine\.py"),
        ({"plugins": ["my/tools"]}, "'my/tools' is a folder: name a file"),
        ({"changes": "seed=1"}, r"changes must be a list .*\['seed=1'\]"),
    ],
    ids=str,
)
def test_lists_are_asked_for(given: dict[str, Any], said: str, configured: Path) -> None:
    (Path("my") / "tools").mkdir(parents=True)
    with pytest.raises(OptionError, match=said):
        load_config(configured / "run.yaml", **given)


def test_what_lies_in_a_run_folder_is_no_code_of_the_user(configured: Path) -> None:
    (configured / "run.yaml").rename(configured / "config.yaml")
    with pytest.raises(DataError, match=r"cannot load the plugin 'corridor\.py': there is no such file"):
        load_config(configured / "config.yaml")


def test_an_environment_of_a_module_that_is_missing_or_broken_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENVIRONMENTS, "_entries", dict(ENVIRONMENTS._entries))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_world.py").write_text("import no_such_module_anywhere\n")
    (tmp_path / "typing_world.py").write_text("typo\n")
    for target, told in (
        ("nomodule:X", "Python finds no module 'nomodule'"),
        ("fedagentgym.nomodule:X", "Python finds no module 'fedagentgym.nomodule'"),
        ("broken_world:X", "cannot import the module 'broken_world': ModuleNotFoundError: No module named 'no_such"),
        ("typing_world:X", "cannot import the module 'typing_world': NameError"),
    ):
        fedagentgym.register_env("me/Away-v0", target, replace=True)
        for make in (gymnasium.make, open_env):
            with pytest.raises(FedAgentGymError, match=f"environment 'me/Away-v0': {told}"):
                make("me/Away-v0")
