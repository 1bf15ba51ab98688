"""Models from elsewhere whose loading would not end, or take all memory: one sentence each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fedagentgym.agents.model.loading import check_folder, load_tokenizer
from fedagentgym.agents.text import tokens
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer, TextTokenizer
from fedagentgym.base.errors import DataError

from .models import make_policy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model") / "saved"
    make_policy("own").save(target)
    return target


@pytest.fixture
def folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "_TRIAL_SECONDS", 1)
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 10**9},
        {"hidden_size": 10**400},
        {"vocab_size": 10**12},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 20_000},
        {"intermediate_size": 10**11},
        {"head_dim": 10**12},
        {"num_experts": 10**9, "moe_intermediate_size": 10**6},
        {"n_positions": 10**6},
        {"text_config": {"hidden_size": 10**6, "vocab_size": 10**6}},
        {"max_position_embeddings": -(10**30)},
    ],
    ids=str,
)
def test_absurd_numbers_are_one_sentence(changes: dict[str, Any], folder: Path) -> None:
    check_folder(folder)
    edit(folder / "config.json", **changes)
    with pytest.raises(DataError, match=r"config\.json.*(do not belong together|a number that no model has)"):
        check_folder(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "other.safetensors", "pytorch_model.bin", "notes.txt"])
def test_a_pipe_in_a_model_is_one_sentence(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(DataError, match=rf"{name} is a pipe or a device: a model consists of plain files"):
        check_folder(folder)


def test_a_link_to_nothing_is_one_sentence(folder: Path) -> None:
    (folder / "extra.safetensors").symlink_to(folder / "nowhere")
    with pytest.raises(DataError, match=r"extra\.safetensors cannot be read: No such file"):
        check_folder(folder)


GROW = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 40}] * 12}


@pytest.mark.parametrize("load", [load_tokenizer, TextTokenizer.read])
def test_a_normalizer_that_multiplies_text_is_one_sentence(load: Callable[[Path], Any], folder: Path) -> None:
    edit(folder / "tokenizer.json", normalizer=GROW)
    with pytest.raises(DataError, match=r"takes more than (1 s|4 GiB) for a few lines of text"):
        load(folder)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (LOOPS, "takes more than 1 s for a few"),
        ("{{ 10 ** (10 ** 10) }}", "takes more than (1 s|4 GiB) for a few"),
        ("{{ 'a' * 10 ** 10 }}", "takes more than 4 GiB for a few"),
        ("{{ 'a' * 10 ** 7 }}", "makes more than 1,048,576 characters of a few"),
    ],
)
def test_a_chat_template_that_does_not_end_is_one_sentence(template: str, fault: str, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(DataError, match=rf"of {folder} {fault} lines of text: it is not used$"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import transformers_", "ModuleNotFoundError: No module named 'transformers_'"),
        ("raise ImportError('two\\nlines\\n')", "lines"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit status -11"),
        ("raise SystemExit('\\x1b[2J')", r"⟨U\+001B⟩\[2J"),
    ],
)
def test_a_tokenizer_that_cannot_be_tried_is_one_sentence(
    program: str, fault: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "trial.py").write_text(program)
    monkeypatch.setattr(tokens.trial, "__file__", str(tmp_path / "trial.py"))
    with pytest.raises(DataError, match=rf"of {folder} could not be tried \({fault}\): it is not used$"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "template", ["{% for a in range(10 ** 9) %}a{% endfor %}", "{{ raise_exception('no') }}", "{% if"]
)
def test_a_chat_template_that_fails_is_one_sentence(template: str, folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=template)
    loaded = HuggingFaceTokenizer(load_tokenizer(folder))
    with pytest.raises(DataError, match="the chat template of this tokenizer cannot be used"):
        loaded.encode_chat("Hello.")


def test_a_tokenizer_is_tried_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    load_tokenizer(folder)
    monkeypatch.setattr(tokens.subprocess, "run", lambda *arguments, **options: pytest.fail("tried again"))
    assert HuggingFaceTokenizer(load_tokenizer(folder)).encode_chat("go")
