"""The pages of the environments and of their options agree with the classes."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from fedagentgym.cli.main import main
from fedagentgym.cli.options_reference import DOOR, write_options
from fedagentgym.envs import ENVIRONMENTS, EnvOptions, TextEnv, owner, play
from fedagentgym.envs.make import env_class, make
from fedagentgym.registration import make_env

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "options.md").read_text("utf-8")
OWN = [
    name
    for name in ENVIRONMENTS.names()
    if isinstance(target := ENVIRONMENTS.get_target(name), str) and target.startswith("fedagentgym.envs.")
]


def read_rows(page: str) -> dict[str, dict[str, list[str]]]:
    """Heading -> option -> its value, default, mark and meaning."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in page.split("\n## ")[1:]:
        rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
        found[section.partition("\n")[0]] = {row[0].strip("`"): row[1:] for row in rows}
    return found


def test_the_page_is_made_anew() -> None:
    """In a process of its own: what other tests register would be listed too."""
    command = [sys.executable, "-m", "fedagentgym", "envs", "--markdown"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert made == PAGE, "run: fedagentgym envs --markdown > docs/reference/options.md"


@pytest.mark.parametrize("env_id", OWN)
def test_every_option_is_on_it_once_with_its_mark(env_id: str) -> None:
    name, options = env_id.partition("/")[2].partition("-")[0], env_class(env_id).Options
    sections = {head: rows for head, rows in read_rows(PAGE).items() if name in head.split(", ")}
    listed = [(option, rows[option]) for rows in sections.values() for option in rows]
    assert {option for option, _ in listed} == set(options.model_fields) - set(EnvOptions.model_fields)
    assert len(listed) == len(dict(listed))
    for option, (_, default, mark, meaning) in listed:
        assert mark == options.get_marks()[option] and meaning == options.model_fields[option].description
        assert default.startswith("`"), f"{option} of {name} has no default"


def test_what_all_environments_have_is_said_first() -> None:
    head, rows = next(iter(read_rows(PAGE).items()))
    assert head == "Every environment" and set(rows) == {*EnvOptions.model_fields, *DOOR}
    parameters = [*inspect.signature(make).parameters.values(), *inspect.signature(make_env).parameters.values()]
    assert set(DOOR) == {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_every_option_says_what_it_is() -> None:
    for env_id in OWN:
        for name, field in env_class(env_id).Options.model_fields.items():
            assert field.description and field.description[-1] != ".", f"{env_id}: {name}"


class TunnelOptions(EnvOptions):
    """The tunnel and its light."""

    length: int = 3
    light: Literal["on", "off"] | None = play(None, description="a | b")
    key: str = owner("", description="the key of the gate")


class LongTunnelOptions(TunnelOptions):
    """A longer tunnel."""

    length: int = 30


class TunnelEnv(TextEnv[TunnelOptions]):
    id = "test/Tunnel-v0"


class LongTunnelEnv(TextEnv[LongTunnelOptions]):
    id = "test/LongTunnel-v0"


def test_inherited_options_of_a_plugin_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {one.id: one for one in (TunnelEnv, LongTunnelEnv)}
    monkeypatch.setattr("fedagentgym.cli.options_reference.env_class", known.__getitem__)
    page = write_options([TunnelEnv.id, LongTunnelEnv.id])
    assert page.endswith(
        """
## LongTunnel, Tunnel

The tunnel and its light.

| option | value | default | mark | meaning |
|---|---|---|---|---|
| `length` | whole number | `3` | task |  |
| `light` | on, off or null | `null` | play | a \\| b |
| `key` | text | `""` | owner | the key of the gate |

## LongTunnel

A longer tunnel. Also the options of [LongTunnel, Tunnel](#longtunnel-tunnel).

| option | value | default | mark | meaning |
|---|---|---|---|---|
| `length` | whole number | `30` | task |  |
"""
    )


def test_the_command_lists_those_of_one_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "guess", "--markdown"]) == 0
    assert list(read_rows(capsys.readouterr().out)) == ["Every environment", "Guess"]


ROWS = ("actions", "observations", "rewards", "episode end", "options", "versions")
TABLE = re.compile(r"^\|(.*`fedagentgym/.*)\|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def read_columns() -> dict[str, dict[str, str]]:
    """Environment id -> what the table on its page says of it, row by row; the id heads a column, or the whole table."""
    found: dict[str, dict[str, str]] = {}
    for page in sorted((ROOT / "docs" / "reference" / "environments").glob("*.md")):
        for head, body in TABLE.findall(page.read_text("utf-8")):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
            for number, cell in enumerate(head.split("|")):
                if env_id := cell.strip(" `"):
                    assert env_id not in found, f"{env_id} has two tables"
                    found[env_id] = {row[0]: row[number or 1] for row in rows}
    return found


@pytest.mark.parametrize("env_id", OWN)
def test_the_page_of_an_environment_says_what_one_needs_to_play_it(env_id: str) -> None:
    column, cls = read_columns()[env_id], env_class(env_id)
    assert [row for row in ROWS if not column.get(row)] == []
    assert f"{env_id.rpartition('-')[2]}:" in column["versions"], "every version has a line"
    if env_id not in ("fedagentgym/Own-v0", "fedagentgym/Mixture-v0"):  # others decide what they pay
        named = re.findall(r"`([\w/]+)`", column["rewards"])
        assert sorted(named) == sorted(cls.reward_names)
    if (turns := re.search(r"\b(\d+) turn", column["episode end"])) is not None:
        assert int(turns[1]) == cls.Options.read(env_id, {}).count_turns(cls.default_max_turns)


def test_every_page_of_an_environment_has_its_best_fixed_reply() -> None:
    pages = set((ROOT / "docs" / "reference" / "environments").glob("*.md"))
    assert len(pages) >= 6 and all("<!-- fixed-replies: begin -->" in page.read_text("utf-8") for page in pages)
