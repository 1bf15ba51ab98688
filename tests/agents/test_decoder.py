"""The decoder against transformers: random small models of every architecture, rope and form, in both passes and from folders."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.agents.model.architectures import ARCHITECTURES, ROPE_TYPES, DecoderConfig, fits
from fedagentgym.agents.model.cache import Chunks
from fedagentgym.agents.model.cached import CachedDecoder
from fedagentgym.agents.model.decoder import Decoder, read_config
from fedagentgym.agents.model.loading import make_tiny_model, read_tiny_model
from fedagentgym.agents.model.packed import compute_hidden
from fedagentgym.base.errors import DataError

from .models import WORDS, sharpened

CPU = torch.device("cpu")
STRETCHED = {"factor": 4.0, "original_max_position_embeddings": 32}
ROPES: dict[str, list[dict[str, Any]]] = {
    "default": [{}],
    "dynamic": [{"factor": 2.0}],
    "linear": [{"factor": 2.5}],
    "llama3": [{**STRETCHED, "low_freq_factor": 1.0, "high_freq_factor": 4.0}],
    "yarn": [
        STRETCHED,
        {**STRETCHED, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        {**STRETCHED, "attention_factor": 0.8},
        {**STRETCHED, "mscale": 0.7, "mscale_all_dim": 1.0},
    ],
}


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """A config.json of any architecture, small."""
    kind, rope = draw(st.sampled_from(sorted(ARCHITECTURES))), draw(st.sampled_from(sorted(ROPES)))
    groups = draw(st.integers(1, 2))
    declared: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": 29,
        "hidden_size": 24,
        "intermediate_size": draw(st.integers(8, 40)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": groups * draw(st.sampled_from([1, 2])),
        "num_key_value_heads": groups,
        "head_dim": draw(st.sampled_from([6, 12])),
        "max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": rope,
            "rope_theta": draw(st.sampled_from([100.0, 10_000.0])),
            **draw(st.sampled_from(ROPES[rope])),
        },
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": draw(st.sampled_from([None, 0])),
        "eos_token_id": 1,
        "sliding_window": None,
    }
    if kind in ("llama", "qwen3"):
        declared["attention_bias"] = draw(st.booleans())
    if kind == "llama":
        declared["mlp_bias"] = draw(st.booleans())
    return declared


def make_pair(declared: dict[str, Any], seed: int) -> tuple[Any, Decoder]:
    """The model of transformers and the plain module, each drawn from the same seed, then both given uneven weights."""
    config = DecoderConfig.read(declared)
    assert config is not None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wanted = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**declared)).eval()
        torch.manual_seed(seed)
        found = Decoder(config).eval()
    assert fits(wanted.config) and fits(found.config)
    own, plain = wanted.state_dict(), found.state_dict()
    assert own.keys() == plain.keys()
    assert all(torch.equal(own[name], plain[name]) for name in own), "the initial weights are those of transformers"
    found.load_state_dict(sharpened(wanted, seed).state_dict())
    return wanted, found


def read_cached(model: Any, rows: list[np.ndarray[Any, Any]]) -> torch.Tensor:
    """Logits after each row's last token: the beginning of all rows in one chunk each, then the rest, and then the last token."""
    forward = CachedDecoder(model, CPU)
    forward.slots.reserve(len(rows), max(map(len, rows)), 128)
    slots, cuts = np.arange(len(rows)), np.array([len(row) // 2 for row in rows])
    ends = np.array([len(row) - 1 for row in rows])
    for first, last in ((np.zeros_like(cuts), cuts), (cuts, ends), (ends, ends + 1)):
        ids = np.concatenate([row[a:b] for row, a, b in zip(rows, first, last, strict=True)])
        logits = forward.compute_logits(Chunks(ids, slots, first, last - first))
    return logits


@given(configurations(), st.integers(0, 2**32 - 1), st.data())
def test_both_passes_agree_with_transformers(declared: dict[str, Any], seed: int, data: st.DataObject) -> None:
    wanted, found = make_pair(declared, seed)
    random = np.random.default_rng(seed)
    lengths = data.draw(st.lists(st.integers(4, 60), min_size=1, max_size=4))
    rows = [random.integers(29, size=length) for length in lengths]
    with torch.no_grad():
        full = [wanted(input_ids=torch.from_numpy(row)[None]).logits[0] for row in rows]
    scale = max(1.0, *(float(logits.abs().max()) for logits in full))
    for model in (wanted, found):
        with torch.no_grad():
            distinct, index = compute_hidden(model, rows, [np.arange(len(row)) for row in rows], CPU)
            states = distinct[index]
            own = [model(input_ids=torch.from_numpy(row)[None]).logits[0] for row in rows]
        assert_close(model.lm_head(states), torch.cat(full), scale)
        assert_close(torch.cat(own), torch.cat(full), scale)
        assert_close(read_cached(model, rows), torch.stack([logits[-1] for logits in full]), scale)


def assert_close(found: torch.Tensor, wanted: torch.Tensor, scale: float) -> None:
    torch.testing.assert_close(found.detach(), wanted, atol=1e-5 * scale, rtol=0)


@settings(max_examples=8)
@given(configurations(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_folders_pass_between_this_package_and_transformers(
    declared: dict[str, Any], seed: int, sharded: bool, dtype: torch.dtype
) -> None:
    wanted, found = make_pair(declared, seed)
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = Path(scratch, "ours"), Path(scratch, "theirs")
        ours.mkdir()
        wanted.to(dtype).save_pretrained(theirs, max_shard_size="4KB" if sharded else "1GB")
        config = read_config(theirs)
        assert config is not None
        whole = transformers.AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32)
        assert_equal(Decoder.read(theirs, config), whole)
        found.save(ours)
        assert_equal(transformers.AutoModelForCausalLM.from_pretrained(ours), found)
        again = read_config(ours)
        assert again == found.config
        assert_equal(Decoder.read(ours, again), found)
        assert_equal(found.to_transformers(), found)


def assert_equal(model: Any, other: Any) -> None:
    own, wanted = model.state_dict(), other.state_dict()
    assert own.keys() == wanted.keys()
    assert all(torch.equal(own[name], wanted[name]) for name in own)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, other(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


def test_every_rope_is_tested() -> None:
    assert set(ROPES) == ROPE_TYPES


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "gpt2"},
        {"hidden_act": "gelu"},
        {"attention_dropout": 0.1},
        {"sliding_window": 8},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0, "partial_rotary_factor": 0.5}},
    ],
)
def test_what_is_not_written_out_is_left_to_transformers(changed: dict[str, Any]) -> None:
    plain = make_tiny_model(WORDS)[0].config
    declared = {name: getattr(plain, name) for name in DecoderConfig.__dataclass_fields__}
    assert DecoderConfig.read(declared) == plain
    assert DecoderConfig.read({**declared, **changed}) is None


def test_files_of_earlier_versions_of_transformers_are_read() -> None:
    """Rotary embeddings in two keys, and a window that Mistral has unless the file says otherwise."""
    plain = make_tiny_model(WORDS)[0].config
    declared = {name: getattr(plain, name) for name in DecoderConfig.__dataclass_fields__ if name != "rope_parameters"}
    read = DecoderConfig.read({**declared, "rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    assert read is not None and read.rope_parameters == {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}
    del declared["sliding_window"]
    assert DecoderConfig.read({**declared, "model_type": "qwen3"}) is not None
    assert DecoderConfig.read({**declared, "model_type": "mistral"}) is None


def test_a_folder_with_other_weights_is_one_sentence(tmp_path: Path) -> None:
    model, tokenizer = make_tiny_model(WORDS)
    model.save(tmp_path)
    tokenizer.save(tmp_path)
    assert read_tiny_model(tmp_path) is not None
    config = json.loads((tmp_path / "config.json").read_text())
    for changed in ({"vocab_size": 300}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(DataError, match="cannot load the model") as caught:
            read_tiny_model(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_tiny_agent_is_made_trained_and_saved_without_transformers(tmp_path: Path) -> None:
    code = f"""
import sys
from fedagentgym.agents.presets import make_agent
from fedagentgym.envs import open_env
from fedagentgym.learning.pretrain import pretrain_tiny
from fedagentgym.learning.settings import EvaluationSettings, WarmStartSettings
settings = WarmStartSettings(episodes=4, steps=1, context_length=256)
evaluation = EvaluationSettings(tasks=2)
made = pretrain_tiny("fedagentgym/Guess-v0", {{}}, settings, evaluation=evaluation, folder={str(tmp_path / "made")!r})
agent = make_agent({{"name": "tiny", "model": str(made.folder)}}, open_env("fedagentgym/Guess-v0"))
agent.policy.save({str(tmp_path / "saved")!r})
print(*sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"transformers", "peft", "accelerate"} & set(done.stdout.split())
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("made", "saved")]
    assert files[0].pop("pretrain.json") and files[0] == files[1]
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").num_parameters() > 100_000
