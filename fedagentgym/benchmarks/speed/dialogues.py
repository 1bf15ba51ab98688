"""Dialogues of many turns: sessions that keep their cache, compared with `generate`, which re-encodes every turn.

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


class SpeedTargets(NamedTuple):
    """What a size is held to: least speed-ups, greatest share of environment time (%), and how much is played to see."""

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
    for _ in range(bar.rounds):
        for way, speaker in (("generate", _ReencodingEngine), ("hf", _CachingEngine), ("own", _CachingEngine)):
            played = _play(env, policies["hf" if way == "generate" else way], speaker, bar.turns)
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
    speaker: ReplyEngine = way(policy)
    clock = time.process_time()
    episodes = env.reset_many(tasks, range(EPISODES))
    env_seconds += time.process_time() - clock
    for _ in range(turns):
        clock = time.process_time()
        tokens += speaker([policy.tokenizer.encode(f"\n{episode.view.observation}\n") for episode in episodes])
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
    """Our sessions: every turn appends the observation to a persistent cache."""

    def __init__(self, policy: TorchPolicy) -> None:
        from fedagentgym.agents.protocols import Decoding
        from fedagentgym.base.streams import stream

        self.policy = policy
        self.open_session = policy.open_session()
        self.open_session.set_stop_ids(())
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
