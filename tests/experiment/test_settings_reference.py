"""The reference of settings is what the types say, and the page in the documentation is that reference."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.base import kinds
from fedagentgym.base.errors import UnknownNameError
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.settings_reference import describe_names, find_settings, list_settings


def test_the_page_is_made_anew() -> None:
    """In a process of its own: what other tests register would be listed too."""
    command = [sys.executable, "-m", "fedagentgym", "settings", "--markdown"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    assert made == page.read_text(), "run: fedagentgym settings --markdown > docs/reference/settings.md"


def list_keys(plain: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for key, value in plain.items():
        yield f"{where}{key}"
        if isinstance(value, Mapping):
            yield from list_keys(value, f"{where}{key}.")


@pytest.mark.parametrize("preset", ["demo", "tiny-math:fedgrpo", "paper-webshop:lora"])
def test_every_key_that_a_preset_sets_is_in_it(preset: str) -> None:
    known = {entry.key for entry in list_settings()} | {"evaluation.clients"}  # how no at_clients are written
    open_mappings = ("env.options.", "partition.roles.", "partition.variant.", "partition.sizes.")
    named = (key for key in list_keys(load_config(preset).plain()) if not key.startswith(open_mappings))
    assert {key for key in named if not key.endswith(".name")} - known == set()


def test_every_key_says_what_it_means() -> None:
    silent = [
        entry.key for entry in list_settings() if not entry.meaning and not entry.key.startswith("federation.options")
    ]
    assert silent == []
    assert all(entry.kind for entry in list_settings())


def test_a_key_is_found_whole_by_its_section_and_by_its_last_part() -> None:
    assert [entry.key for entry in find_settings("learning.kl")] == [
        "learning.kl",
        "learning.kl.coefficient",
        "learning.kl.reference",
    ]
    (steps,) = {entry.key for entry in find_settings("local_steps")}
    assert steps == "algorithm.local_steps"
    (coefficient,) = find_settings("learning.kl.coefficient")
    assert (coefficient.kind, coefficient.default) == ("number, at least 0", "0.0")
    with pytest.raises(UnknownNameError, match=r"did you mean 'learning\.kl"):
        find_settings("learning.kll")


def test_types_are_said_in_words() -> None:
    assert doctest.testmod(kinds).failed == 0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "federation.rounds"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "federation.rounds = 20"
    assert main(["settings", "--json", "quorum"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["key"] == "federation.quorum"
    assert main(["settings", "fedration"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_show_prints_what_a_configuration_comes_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    changes = ["--set", "federation.rounds=2", "--set", "agent.decoding.top_p=0.5"]
    assert main(["presets", "demo", *changes]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Federated training")
    shown = yaml.safe_load(text)
    assert shown["federation"]["rounds"] == 2 and shown["learning"]["betas"] == [0.9, 0.99]
    assert shown["agent"]["context"] == "session" and shown["agent"]["decoding"]["top_p"] == 0.5
    (tmp_path / "run.yaml").write_text(text)
    again = load_config(tmp_path / "run.yaml")
    expected = load_config("demo", ["federation.rounds=2", "agent.decoding.top_p=0.5"])
    assert again.learning == expected.learning and again.partition == expected.partition


def test_the_names_of_a_key_are_short_and_lose_nothing() -> None:
    """What is said of a key, with what is said of the key above it, are the names to which it belongs."""
    from fedagentgym.algorithms import ALGORITHMS

    entries = list_settings()
    assert max(len(describe_names(entry, entries)) for entry in entries) <= 180
    for entry in entries:
        if not entry.key.startswith("algorithm.") or not entry.names:
            continue
        said = describe_names(entry, entries)
        inner, _, outer = said.rpartition("; ") if "; " in said else ("", "", said)
        own = {name.partition(": ")[0] for name in entry.names}
        assert set(filter(None, inner.split(", "))) == {name.partition(": ")[2] for name in entry.names} - {""}
        if outer.startswith("all but "):
            assert own == set(ALGORITHMS.names()) - set(outer.removeprefix("all but ").split(", "))
        elif outer:
            assert own == set(outer.split(", "))
        else:
            parent = entry.key.rpartition(".")[0].removesuffix("[]")
            assert own == {name.partition(": ")[0] for one in entries if one.key == parent for name in one.names}
