"""Loading: folders that work, folders that do not, weights in and out."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model import loading
from fedagentgym.agents.model import policy as policies
from fedagentgym.agents.model.loading import choose_device, make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy, save_adapter
from fedagentgym.agents.model.pretrained import get_tiny_folder
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Decoding, TrainablePolicy
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.process import Ability
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env

from .models import WORDS, full_logprobs, make_policy, sharpened, wake_adapter
from .worlds import ShopEnv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model") / "saved"
    make_policy("own").save(target)
    return target


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_a_saved_policy_loads_as_the_same(folder: Path) -> None:
    loaded, original = TorchPolicy.load(folder, device="cpu"), make_policy("own")
    for name, weight in original.get_weights().items():
        assert np.array_equal(loaded.get_weights()[name], weight)
    assert loaded.tokenizer.stop_ids == original.tokenizer.stop_ids
    assert isinstance(loaded, TrainablePolicy)


def test_bfloat16_and_what_it_rounds(folder: Path) -> None:
    policy = TorchPolicy.load(folder, dtype="bfloat16", device="cpu")
    with policy.open_session() as session:
        answer = session.generate(session.open([[40, 41, 42]]), [stream(0)], Decoding(max_new_tokens=6))[0]
    assert all(np.isfinite(answer.logprobs))
    for weight in policy.get_weights().values():
        assert weight.dtype == np.float32
        assert np.array_equal(torch.from_numpy(weight).bfloat16().float().numpy(), weight)
    before = policy.get_weights()
    policy.set_weights(before)
    assert all(np.array_equal(before[name], weight) for name, weight in policy.get_weights().items())


@pytest.mark.parametrize("fast", [True, False])
def test_the_base_under_an_adapter_is_stored_as_the_processor_computes(
    folder: Path, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "check_bfloat16", lambda: Ability(fast, "given by the test"))

    def load_types(**settings: Any) -> set[torch.dtype]:
        agent: Any = make_agent({"name": "transformers", "model": str(folder), "device": "cpu", **settings})
        return {weight.dtype for name, weight in agent.policy.model.named_parameters() if "lora_" not in name}

    assert load_types() == {torch.float32}, "what is trained"
    assert load_types(adapter={"rank": 2}) == {torch.bfloat16 if fast else torch.float32}
    assert load_types(adapter={"rank": 2}, dtype="bfloat16") == {torch.bfloat16}, "what was asked is done"
    assert load_types(adapter={"rank": 2}, dtype="float32") == {torch.float32}


def test_threads_are_as_many_as_an_agent_asks_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "count_usable_cores", lambda: 3)
    asked: dict[Any, int] = {2: 2, "auto": 3, 1: 1}
    with loading.use_threads(None):
        assert torch.get_num_threads() == 1
        make_agent({"name": "transformers", "model": str(folder), "device": "cpu"})
        assert torch.get_num_threads() == 1, "who says nothing changes nothing"
        for wanted, count in asked.items():
            make_agent({"name": "transformers", "model": str(folder), "device": "cpu", "threads": wanted})
            assert torch.get_num_threads() == count
    with pytest.raises(OptionError, match="threads"):
        make_agent({"name": "transformers", "model": str(folder), "threads": 0})


def test_weights_travel_and_versions_count() -> None:
    one, other = make_policy("own"), make_policy("own")
    with torch.no_grad():
        for weight in other.parameters().values():
            weight.add_(1.0)
    one.set_weights(other.get_weights())
    assert one.version == 1
    assert all(torch.equal(a, b) for a, b in zip(one.parameters().values(), other.parameters().values(), strict=True))
    one.bump_version()
    assert one.version == 2
    taken = one.get_weights()
    name = next(iter(taken))
    taken[name] += 1.0
    assert not np.array_equal(taken[name], one.get_weights()[name]), "what is handed out is a copy"


def test_foreign_weights_are_refused() -> None:
    policy = make_policy("own")
    weights = policy.get_weights()
    name = next(iter(weights))
    with pytest.raises(DataError, match="is on one side only"):
        policy.set_weights({**weights, "other": weights[name]})
    with pytest.raises(DataError, match="has shape"):
        policy.set_weights({**weights, name: weights[name][1:]})
    assert policy.version == 0


def test_an_adapter_is_all_that_trains_and_is_the_same_everywhere() -> None:
    torch.manual_seed(1)
    one = make_policy("own", adapter=False)
    settings = AdapterSettings(rank=4)
    first = TorchPolicy(one.model, one.tokenizer, adapter=settings, seed=3).get_weights()
    torch.manual_seed(2)
    second = TorchPolicy(make_policy("own").model, one.tokenizer, adapter=settings, seed=3).get_weights()
    assert first.keys() == second.keys() and all("lora_" in name for name in first)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(not weight.any() for name, weight in first.items() if "lora_B" in name)
    with pytest.raises(OptionError, match=r"adapter\.targets"):
        TorchPolicy(make_policy("own").model, one.tokenizer, adapter=AdapterSettings(targets=("nowhere",)))
    for target, told in {
        "lm_head": "are those of the embedding",
        "embed_tokens": "is of type Embedding, and only linear",
        "self_attn": "only linear layers",
    }.items():
        with pytest.raises(OptionError, match=rf"adapter\.targets: .*{told}"):
            TorchPolicy(make_policy("own").model, one.tokenizer, adapter=AdapterSettings(targets=("q_proj", target)))


def test_an_adapter_on_the_last_layers_alone() -> None:
    """Only these have weights and gradients; the setting is left out of dumps where it is the default."""
    plain = make_policy("hf")
    count = plain.model.config.num_hidden_layers
    policy = TorchPolicy(plain.model, plain.tokenizer, adapter=AdapterSettings(rank=2, layers="last-1"), forward="own")
    assert {re.findall(r"layers\.(\d+)\.", name)[0] for name in policy.get_weights()} == {str(count - 1)}
    assert len(policy.get_weights()) == 2 * 7
    hidden: list[bool] = []
    block = policy.model.get_base_model().model.layers[count - 1]
    block.register_forward_pre_hook(lambda _module, given: hidden.append(given[0].requires_grad))
    policy.model(input_ids=torch.tensor([[40, 41, 42]])).logits.sum().backward()
    assert hidden == [False]
    with pytest.raises(OptionError, match=rf"adapter.layers is last-99, but the model has {count} layers"):
        TorchPolicy(make_policy("hf").model, plain.tokenizer, adapter=AdapterSettings(layers="last-99"))
    for wrong in ("last-0", "first-2", "8", 8):
        with pytest.raises(OptionError, match="layers"):
            AdapterSettings.load({"layers": wrong})


def test_an_adapter_is_made_used_and_saved_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = make_policy("hf", adapter=True)
        policy.open_session().close()
        policy.save(tmp_path / "merged")
        policy.model.peft_config["default"].base_model_name_or_path = "someone/a-model"
        save_adapter(policy.model, tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(saved) == len(policy.parameters()) and all("lora_" in name for name in saved)


def test_a_policy_with_an_adapter_is_saved_merged(tmp_path: Path) -> None:
    policy = make_policy("own", adapter=True)
    policy.save(tmp_path / "merged")
    loaded = TorchPolicy.load(tmp_path / "merged", device="cpu")
    ids = [40, 41, 42, 43, 50]
    torch.testing.assert_close(full_logprobs(loaded, ids), full_logprobs(policy, ids), atol=1e-5, rtol=0)
    wake_adapter(policy)
    assert policy.model.get_base_model().state_dict().keys() != loaded.model.state_dict().keys()


def test_the_agent_of_a_folder(folder: Path) -> None:
    agent = make_agent({"name": "tiny", "model": str(folder), "device": "cpu", "decoding": {"temperature": 0.5}})
    assert isinstance(agent, TokenAgent)
    assert (agent.decoding.temperature, agent.decoding.max_new_tokens, agent.context) == (0.5, 16, "session")
    general = make_agent({"name": "transformers", "model": str(folder), "device": "cpu", "parser": "published"})
    assert isinstance(general, TokenAgent)
    assert (general.decoding.max_new_tokens, general.parser, general.chat) == (512, "published", False)
    paper = make_agent(
        {"name": "qwen2.5-1.5b-instruct", "model": str(folder), "device": "cpu", "decoding": {"max_new_tokens": 64}}
    )
    assert isinstance(paper, TokenAgent)
    assert (paper.context, paper.history, paper.parser, paper.template.think) == ("window", 2, "published", True)
    assert {weight.dtype for weight in parameters(paper, frozen=False)} == {torch.float32}
    chosen = {"model": str(folder), "device": "cpu", "adapter": {"rank": 2}, "dtype": "bfloat16"}
    adapted = make_agent({"name": "llama-3.2-3b-instruct", **chosen})
    assert {weight.dtype for weight in parameters(adapted, frozen=True)} == {torch.bfloat16}
    assert {weight.dtype for weight in parameters(adapted, frozen=False)} == {torch.float32}


def parameters(agent: Any, frozen: bool) -> list[torch.Tensor]:
    return [weight for weight in agent.policy.model.parameters() if weight.requires_grad is not frozen]


def test_a_tiny_agent_is_found_by_its_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path))
    env = open_env(ShopEnv)
    with pytest.raises(DataError, match="fedagentgym pretrain tiny --env tests/WebShop-v0"):
        make_agent("tiny", env)
    shutil.copytree(folder, get_tiny_folder(env))
    assert make_agent({"name": "tiny", "device": "cpu"}, env).name == "tiny"
    for note in ("[3]", '{"agent": null}', '{"agent": "x"}', "{"):
        (get_tiny_folder(env) / "pretrain.json").write_text(note)
        with pytest.raises(DataError, match=r"pretrain\.json"):
            make_agent("tiny", env)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "model.safetensors is missing"),
        ("tokenizer.json", "holds no tokenizer"),
    ],
)
def test_missing_files_are_named(folder: Path, tmp_path: Path, missing: str, message: str) -> None:
    broken = copied(folder, tmp_path)
    (broken / missing).unlink()
    with pytest.raises(DataError, match=message):
        TorchPolicy.load(broken, device="cpu")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "no-such-model"}'])
def test_a_broken_config_is_one_sentence(folder: Path, tmp_path: Path, content: str) -> None:
    broken = copied(folder, tmp_path)
    (broken / "config.json").write_text(content)
    with pytest.raises(DataError) as caught:
        TorchPolicy.load(broken, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_broken_files_are_one_sentence(folder: Path, tmp_path: Path, name: str) -> None:
    broken = copied(folder, tmp_path)
    (broken / name).write_bytes(b"garbage")
    with pytest.raises(DataError) as caught:
        TorchPolicy.load(broken, device="cpu")
    assert "cannot load" in str(caught.value) and "\n" not in str(caught.value)


def test_another_models_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = copied(folder, tmp_path)
    _, tokenizer = make_tiny_model([f"word{chr(97 + a)}{chr(97 + b)}" for a in range(20) for b in range(20)])
    tokenizer.hf.save_pretrained(broken)
    with pytest.raises(DataError, match="another model's tokenizer"):
        TorchPolicy.load(broken, device="cpu")


def test_a_wrong_vocabulary_size_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = copied(folder, tmp_path)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    with pytest.raises(FedAgentGymError) as caught:
        TorchPolicy.load(broken, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "~/nowhere"])
def test_folders_that_are_not_there(source: str) -> None:
    with pytest.raises(DataError, match="there is no model folder") as caught:
        TorchPolicy.load(source, device="cpu")
    assert "~" not in str(caught.value)


def test_a_hub_id_is_not_downloaded() -> None:
    with pytest.raises(DataError, match="get it with `fedagentgym model add no-such-owner/no-such-model`"):
        TorchPolicy.load("no-such-owner/no-such-model", device="cpu")


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file"):
        TorchPolicy.load(tmp_path / "file", device="cpu")


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "", "mps0", "meta"):
        with pytest.raises(OptionError, match="unknown device"):
            choose_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(folder: Path) -> None:
    with pytest.raises(OptionError, match="no CUDA GPU here"):
        make_agent({"name": "tiny", "model": str(folder), "device": "cuda"})


def test_more_context_than_the_model_has_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="more than the model's 512"):
        TorchPolicy.load(folder, device="cpu", context_length=4096)


def test_stop_tokens_come_from_the_model(folder: Path, tmp_path: Path) -> None:
    broken = copied(folder, tmp_path)
    for name in ("config.json", "generation_config.json"):
        data: dict[str, Any] = json.loads((broken / name).read_text())
        (broken / name).write_text(json.dumps({**data, "eos_token_id": 99_999}))
    with pytest.raises(DataError, match="stop token 99999 is not among"):
        TorchPolicy.load(broken, device="cpu")


def test_models_of_all_kinds_of_words() -> None:
    model, tokenizer = make_tiny_model([])
    assert TorchPolicy(sharpened(model), tokenizer).tokenizer.encode(WORDS[0])


def test_only_a_process_of_the_package_takes_denormal_numbers_for_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> float:
        return float(torch.tensor([1e-40]) * 1.0)

    make_policy("own").open_session().close()
    assert compute() > 0
    monkeypatch.setattr(policies, "is_own_process", lambda: True)
    try:
        make_policy("own")
        assert compute() == 0
    finally:
        torch.set_flush_denormal(False)
