"""Tokens per second of the engine's parts, and the share of the machine's own matrix product that they reach.

Rows of random tokens, no two alike, go through prefill and decode, and the same rows through `generate` of transformers. The
update is that of a policy step (`policy_step.py`). Only useful arithmetic is counted: two operations for each weight of a matrix
by which a token is multiplied (the head only where logits are needed), and the products of attention. A backward pass counts
twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from benchmarks.measurement import Measurement
from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.streams import generator, stream

if TYPE_CHECKING:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.envs.core import TextEnv


TRIALS = 3


@dataclass(frozen=True)
class Batch:
    """Rows, each of a prompt and of a reply that does not end early."""

    rows: int
    prompt: int
    reply: int


@dataclass(frozen=True)
class EngineSpeed:
    """Tokens per second of our session and of `generate`, for the same rows."""

    prefill: float
    decode: float
    together: float
    generate: float


@dataclass(frozen=True)
class ModelCost:
    """Operations for one token: in the layers, in the head, and in attention for each earlier token."""

    layers: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: Any) -> ModelCost:
        """The cost of a model, counted from its linear layers."""
        import torch

        sizes = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        head = sum(size for name, size in sizes.items() if name.endswith("lm_head"))
        config = model.config.get_text_config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        return cls(2.0 * (sum(sizes.values()) - head), 2.0 * head, 4.0 * config.num_hidden_layers * width)

    def count_prefill(self, batch: Batch) -> float:
        """Operations of the prompts, with logits for their last tokens."""
        return batch.rows * (batch.prompt * (self.layers + self.attention * batch.prompt / 2) + self.head)

    def count_decode(self, batch: Batch) -> float:
        """Operations of the replies; all their tokens need logits."""
        context = batch.prompt + batch.reply / 2
        return batch.rows * batch.reply * (self.layers + self.head + self.attention * context)

    def count_update(self, batch: Batch, copies: int) -> float:
        """Operations of forward and backward passes over replies, and over prompts, each shared by `copies` rows."""
        prompt = batch.prompt * (self.layers + self.attention * batch.prompt / 2)
        reply = batch.reply * (self.layers + self.head + self.attention * (batch.prompt + batch.reply / 2))
        return 3.0 * batch.rows * (prompt / copies + reply)


def measure_peak() -> float:
    """Operations per second of the best float32 product of two square matrices, in one thread like everything here."""
    import torch

    best = 0.0
    for size in (512, 1024):
        first, second = torch.randn(size, size), torch.randn(size, size)
        for _ in range(2 * TRIALS):
            seconds = _time_call(partial(torch.mm, first, second))
            best = max(best, 2.0 * size**3 / seconds)
    return best


def measure_engine(policy: TorchPolicy, batch: Batch) -> EngineSpeed:
    """The best of several trials of each part; our session and `generate` alternate."""
    policy.tokenizer.stop_ids = frozenset()
    draw = generator(0, "prompts")
    best = np.full(3, np.inf)
    for _ in range(TRIALS):
        prompts = draw.integers(8, policy.tokenizer.size - 8, (batch.rows, batch.prompt)).tolist()
        best = np.minimum(best, [*_time_session(policy, prompts, batch), _time_generate(policy, prompts, batch)])
    prefill, decode, generate = (float(seconds) for seconds in best)
    tokens = batch.rows * (batch.prompt + batch.reply)
    return EngineSpeed(
        batch.rows * batch.prompt / prefill,
        batch.rows * batch.reply / decode,
        tokens / (prefill + decode),
        tokens / generate,
    )


def _time_session(policy: TorchPolicy, prompts: list[list[int]], batch: Batch) -> tuple[float, float]:
    """Seconds of the prompts with one token after each, and seconds of the remaining tokens of the replies."""
    streams = [stream(1, "say", row) for row in range(batch.rows)]
    with policy.open_session() as session:
        rows: list[int] = []

        def prefill() -> None:
            rows.extend(session.open(prompts))
            session.generate(rows, streams, Decoding(max_new_tokens=1))

        return (
            _time_call(prefill),
            _time_call(lambda: session.generate(rows, streams, Decoding(max_new_tokens=batch.reply))),
        )


def _time_generate(policy: TorchPolicy, prompts: list[list[int]], batch: Batch) -> float:
    """Seconds of the same rows in `generate`, with its own cache."""
    import torch

    ids, model = torch.tensor(prompts), open_transformers(policy)

    def generate() -> None:
        with torch.no_grad():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=batch.reply + 1,
                eos_token_id=None,
                pad_token_id=policy.tokenizer.pad_id,
            )

    return _time_call(generate)


def open_transformers(policy: TorchPolicy) -> Any:
    """The model of a policy as a `transformers` model, which has `generate`."""
    model: Any = policy.model
    return model if hasattr(model, "generate") else model.to_transformers()


def _time_call(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Limit torch to one thread, as in a worker."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---- dialogues of many turns ---------------------------------------------------------------------------------------

EPISODES = 64
REPLY_TOKENS = 6
WARM_UP_TURNS = 2
"""The unmeasured turns at the start: first calls load libraries and allocate caches."""


class SpeedTargets(NamedTuple):
    """The targets of a size: least speed-ups, greatest share of environment time (%); then the turns and rounds to play."""

    modules: float
    own: float
    share: float
    turns: int
    rounds: int


TARGETS = {
    "0.1m": SpeedTargets(2.0, 3.0, 20, 10, 2),
    "1m": SpeedTargets(2.0, 3.0, 5, 6, 1),
    "10m": SpeedTargets(2.0, 2.5, 5, 3, 1),
}


class PlayTiming(NamedTuple):
    tokens: int
    agent_seconds: float
    env_seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / (self.agent_seconds + self.env_seconds)


class ReplyEngine(Protocol):
    """Holds 64 dialogues; each call adds the observations and generates a reply for every row."""

    def __call__(self, chunks: Sequence[tuple[int, ...]]) -> int: ...


def measure_dialogues(
    size: str, env: TextEnv, make_policy: Callable[[str], TorchPolicy], quick: bool
) -> list[Measurement]:
    """Tokens per second at one size, environment included; the best round of each way counts."""
    bar = TARGETS[size]._replace(turns=6, rounds=1) if quick else TARGETS[size]
    return _measure(size, env, {way: make_policy(way) for way in ("hf", "own")}, bar)


def _measure(size: str, env: TextEnv, policies: dict[str, TorchPolicy], bar: SpeedTargets) -> list[Measurement]:
    best: dict[str, PlayTiming] = {}
    ways = (("generate", _ReencodingEngine), ("hf", _CachingEngine), ("own", _CachingEngine))
    for way, write in ways:
        _play(env, policies["hf" if way == "generate" else way], write, WARM_UP_TURNS)
    for _ in range(bar.rounds):
        for way, write in ways:
            played = _play(env, policies["hf" if way == "generate" else way], write, bar.turns)
            if way not in best or played.speed > best[way].speed:
                best[way] = played
    base = best["generate"].speed
    found = [
        Measurement(f"{size}: dialogues, {name}", best[way].speed, "tokens/s")
        for way, name in (
            ("generate", "generate"),
            ("hf", "session through the modules"),
            ("own", "session, own forward"),
        )
    ]
    found.append(
        Measurement(
            f"{size}: dialogues, modules / generate", best["hf"].speed / base, "times", f"at least {bar.modules}"
        )
    )
    found.append(
        Measurement(f"{size}: dialogues, own / generate", best["own"].speed / base, "times", f"at least {bar.own}")
    )
    env_share = best["own"].env_seconds / (best["own"].agent_seconds + best["own"].env_seconds)
    found.append(Measurement(f"{size}: dialogues, environment's share", 100 * env_share, "%", f"at most {bar.share:g}"))
    return found


def _play(env: TextEnv, policy: TorchPolicy, way: Callable[[TorchPolicy], Any], turns: int) -> PlayTiming:
    from fedagentgym.base.streams import stream
    from fedagentgym.envs.scripted import random_action

    tasks = [env.pool.ids[index % len(env.pool)] for index in range(EPISODES)]
    walkers = [stream(0, "walk", index) for index in range(EPISODES)]
    tokens, agent_seconds, env_seconds = 0, 0.0, 0.0
    write: ReplyEngine = way(policy)
    clock = time.process_time()
    episodes = env.reset_many(tasks, range(EPISODES))
    env_seconds += time.process_time() - clock
    for _ in range(turns):
        clock = time.process_time()
        tokens += write([policy.tokenizer.encode(f"\n{episode.view.observation}\n") for episode in episodes])
        agent_seconds += time.process_time() - clock
        actions = [
            random_action(episode, episode.view.observation, walker)
            for episode, walker in zip(episodes, walkers, strict=True)
        ]
        clock = time.process_time()
        episodes = env.step_many(episodes, actions)
        env_seconds += time.process_time() - clock
    return PlayTiming(tokens, agent_seconds, env_seconds)


class _CachingEngine:
    """Our sessions, in which every turn appends the observation to a persistent cache."""

    def __init__(self, policy: TorchPolicy) -> None:
        from fedagentgym.agents.model.generate import TorchSession
        from fedagentgym.agents.protocols import Decoding
        from fedagentgym.base.streams import stream

        self.policy = policy
        self.open_session = policy.open_session()
        assert isinstance(self.open_session, TorchSession)
        self.open_session.stop_ids = frozenset()
        self.decoding = Decoding(max_new_tokens=REPLY_TOKENS)
        self.streams = [stream(1, "say", index) for index in range(EPISODES)]
        self.rows: list[int] = []

    def __call__(self, chunks: Sequence[tuple[int, ...]]) -> int:
        if self.rows:
            self.open_session.append(self.rows, chunks)
        else:
            self.rows = self.open_session.open(chunks)
        answers = self.open_session.generate(self.rows, self.streams, self.decoding)
        for answer in answers:
            self.policy.tokenizer.decode(answer.token_ids)
        return sum(len(answer.token_ids) for answer in answers)


class _ReencodingEngine:
    """The usual way, which passes the whole dialogue, left-padded, through `generate` at every turn."""

    def __init__(self, policy: TorchPolicy) -> None:
        self.policy, self.model = policy, open_transformers(policy)
        self.dialogues: list[list[int]] = [[] for _ in range(EPISODES)]

    def __call__(self, chunks: Sequence[tuple[int, ...]]) -> int:
        import torch

        for dialogue, chunk in zip(self.dialogues, chunks, strict=True):
            dialogue.extend(chunk)
        longest = max(map(len, self.dialogues))
        pad = self.policy.tokenizer.pad_id
        ids = torch.tensor([[pad] * (longest - len(dialogue)) + dialogue for dialogue in self.dialogues])
        mask = torch.tensor([[0] * (longest - len(d)) + [1] * len(d) for d in self.dialogues])
        with torch.no_grad():
            said = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=REPLY_TOKENS,
                eos_token_id=None,
                pad_token_id=pad,
            )[:, longest:].tolist()
        for dialogue, reply in zip(self.dialogues, said, strict=True):
            dialogue.extend(reply)
            self.policy.tokenizer.decode(reply)
        return sum(map(len, said))
