"""How fast tiny language models play: sessions that keep their cache, beside `generate` that re-encodes the dialogue each turn.

All three ways play the same 64 episodes of the same houses for the same number of turns, in turn, on one thread, and say the same
number of tokens a turn. The model is untrained, so what it says is not executed: a random walker's action is, which makes the
observations those of real play.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedagentgym.base.measurement import Measurement

if TYPE_CHECKING:
    from fedagentgym.agents.engines.torch_policy import TorchPolicy
    from fedagentgym.envs.core import TextEnv

EPISODES = 64
REPLY_TOKENS = 6


class Bar(NamedTuple):
    """What a size is held to: least speed-ups, greatest share of environment time (%), and how much is played to see."""

    modules: float
    own: float
    share: float
    turns: int
    rounds: int


BARS = {"0.1m": Bar(2.0, 3.0, 20, 16, 2), "1m": Bar(2.0, 3.0, 5, 10, 1), "10m": Bar(2.0, 2.5, 5, 5, 1)}


class Played(NamedTuple):
    tokens: int
    agent_seconds: float
    env_seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / (self.agent_seconds + self.env_seconds)


class Speaker(Protocol):
    """Holds 64 dialogues; each call adds what the world said and lets every row reply."""

    def __call__(self, chunks: Sequence[tuple[int, ...]]) -> int: ...


def run(quick: bool = False) -> list[Measurement]:
    """Tokens per second at three sizes, environment included; the best round of each way counts."""
    import torch

    from fedagentgym.agents.engines.tiny import tiny_model
    from fedagentgym.agents.engines.torch_policy import TorchPolicy
    from fedagentgym.envs import ENVIRONMENTS

    env: TextEnv = ENVIRONMENTS.get("fedagentgym/ALFWorld-v0")(split="train", size="tiny")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: list[Measurement] = []
    try:
        for size, bar in BARS.items():
            if quick and size != "0.1m":
                continue
            model, tokenizer = tiny_model(env.vocabulary(), size)
            policies = {way: TorchPolicy(model, tokenizer, forward=way) for way in ("hf", "own")}
            found += _measure(size, env, policies, bar._replace(turns=6, rounds=1) if quick else bar)
    finally:
        torch.set_num_threads(threads)
    return found


def _measure(size: str, env: TextEnv, policies: dict[str, TorchPolicy], bar: Bar) -> list[Measurement]:
    best: dict[str, Played] = {}
    for _ in range(bar.rounds):
        for way, speaker in (("generate", _Reencoder), ("hf", _Caching), ("own", _Caching)):
            played = _play(env, policies["hf" if way == "generate" else way], speaker, bar.turns)
            if way not in best or played.speed > best[way].speed:
                best[way] = played
    base = best["generate"].speed
    found = [Measurement(f"{size}: {way}", best[way].speed, "tokens/s") for way in ("generate", "hf", "own")]
    found.append(
        Measurement(f"{size}: modules / generate", best["hf"].speed / base, "times", f"at least {bar.modules}")
    )
    found.append(Measurement(f"{size}: own / generate", best["own"].speed / base, "times", f"at least {bar.own}"))
    env_share = best["own"].env_seconds / (best["own"].agent_seconds + best["own"].env_seconds)
    found.append(Measurement(f"{size}: environment's share", 100 * env_share, "%", f"at most {bar.share:g}"))
    return found


def _play(env: TextEnv, policy: TorchPolicy, way: Callable[[TorchPolicy], Any], turns: int) -> Played:
    from fedagentgym.base.streams import stream
    from fedagentgym.envs.scripted import random_action

    tasks = [env.pool.ids[index % len(env.pool)] for index in range(EPISODES)]
    walkers = [stream(0, "walk", index) for index in range(EPISODES)]
    tokens, agent_seconds, env_seconds = 0, 0.0, 0.0
    speaker: Speaker = way(policy)
    clock = time.perf_counter()
    episodes = env.reset_many(tasks, range(EPISODES))
    env_seconds += time.perf_counter() - clock
    for _ in range(turns):
        clock = time.perf_counter()
        tokens += speaker([policy.tokenizer.encode(f"\n{episode.view.observation}\n") for episode in episodes])
        agent_seconds += time.perf_counter() - clock
        actions = [
            random_action(episode, episode.view.observation, walker)
            for episode, walker in zip(episodes, walkers, strict=True)
        ]
        clock = time.perf_counter()
        episodes = env.step_many(episodes, actions)
        env_seconds += time.perf_counter() - clock
    return Played(tokens, agent_seconds, env_seconds)


class _Caching:
    """Our sessions: every turn appends what the world said to a cache that lives on."""

    def __init__(self, policy: TorchPolicy) -> None:
        from fedagentgym.agents.protocols import Decoding
        from fedagentgym.base.streams import stream

        self.policy = policy
        self.session = policy.session()
        self.session.stop_at(())
        self.decoding = Decoding(max_new_tokens=REPLY_TOKENS)
        self.streams = [stream(1, "say", index) for index in range(EPISODES)]
        self.rows: list[int] = []

    def __call__(self, chunks: Sequence[tuple[int, ...]]) -> int:
        if self.rows:
            self.session.append(self.rows, chunks)
        else:
            self.rows = self.session.open(chunks)
        answers = self.session.generate(self.rows, self.streams, self.decoding)
        for answer in answers:
            self.policy.tokenizer.decode(answer.token_ids)
        return sum(len(answer.token_ids) for answer in answers)


class _Reencoder:
    """The usual way: the whole dialogue through `generate`, left-padded, at every turn."""

    def __init__(self, policy: TorchPolicy) -> None:
        self.policy = policy
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
            said = self.policy.model.generate(
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
