"""Every reader of a file, given files that nobody means well with: a value or one sentence, never a hang."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedagentgym.base.encoding import decode
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.files import parse_json, parse_yaml, read_json, read_jsonl, read_text
from fedagentgym.base.imports import load_plugins
from fedagentgym.envs.alfworld.reader import read_json_object
from fedagentgym.envs.reasoning.sources.rows import list_data_files, read_records
from fedagentgym.experiment.config import load_config
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.partitions import split_files
from fedagentgym.partitions.labels import read_labels
from tests.fuzz import nasty

READERS: dict[str, Callable[[Path], Any]] = {
    "text": read_text,
    "JSON": read_json,
    "JSON lines": lambda path: list(read_jsonl(path)),
    "split": split_files.load,
    "labels": read_labels,
    "configuration": lambda path: load_config(str(path)),
    "configuration of a path": load_config,
    "episodes": lambda path: list(read_lines(path)),
    "rows": lambda path: list(read_records(path, list_data_files(path))),
    "game": read_json_object,
    "plugin": lambda path: load_plugins([str(path)]),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    nasty.make_files(folder)
    return folder


@pytest.mark.parametrize("name", READERS)
def test_no_file_is_more_than_a_reader_can_take(name: str, place: Path) -> None:
    for file in nasty.FILES:
        try:
            READERS[name](place / file)
        except FedAgentGymError as error:
            assert str(error).strip()


parts = st.recursive(
    st.one_of(nasty.texts, st.integers(), st.floats(), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(nasty.texts, inner, max_size=4)),
    max_leaves=8,
)


@settings(derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(value=parts, noise=st.binary(max_size=60))
def test_no_text_is_more_than_a_parser_can_take(value: Any, noise: bytes) -> None:
    said = json.dumps(value)
    attempts: Iterable[Callable[[], Any]] = (
        lambda: parse_yaml(said, "a text"),
        lambda: parse_json(said, "a text"),
        lambda: parse_json(said.encode()[:-1] + noise, "a text"),
        lambda: parse_yaml(noise.decode("latin-1"), "a text"),
        lambda: decode(b"FAG1" + len(said).to_bytes(8, "little") + said.encode() + noise),
        lambda: decode(noise),
    )
    for attempt in attempts:
        try:
            attempt()
        except FedAgentGymError:
            continue
