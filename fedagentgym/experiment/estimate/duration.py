"""The time of a run on this machine: a block of the model's shapes is timed for two seconds, and the run's tokens are counted.

Episodes are assumed to have the tokens of the environment's expert: prompts, observations and replies, not the whole context.
Copies of a task share its first prompt, and half of their replies are assumed to be equal. A backward pass takes as long as a
forward pass under an adapter, and twice as long if all weights are trained. Other running programs are not taken into account.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from fedagentgym.agents.model.shapes import ModelShape
from fedagentgym.agents.presets import TINY_AGENTS, complete_settings
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.process import count_usable_cores
from fedagentgym.base.rounding import format_duration
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.estimate.plan import RunPlan

if TYPE_CHECKING:
    from fedagentgym.agents.text.prompts import Message, Template
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.tasks import Task

_SIZES = (1, 8, 64, 512)
"""Tokens of the passes that are timed."""
_SECONDS = 2.0
_SAMPLED = 12
"""Tasks that the expert plays."""
_DISTINCT = 0.5
"""Share of the copies of a task whose tokens no other copy has."""
_EPISODE = 6e-4
"""Seconds of an episode, played or imitated, besides the passes: the environment, tokens, rows of the loss. They matter only for
tiny models."""
_START = 5.0
"""Seconds until a process has imported torch and loaded a model."""


PARTS = ("starting", "imitating", "playing", "updating", "evaluating", "total")


@dataclass(frozen=True)
class EpisodeLengths:
    """Tokens of a mean episode: of its first prompt, of later observations, of its replies; and its turns."""

    prompt: float
    later: float
    replies: float
    turns: float


@dataclass(frozen=True)
class Durations:
    """Seconds of a run by part, on this machine."""

    imitating: float
    playing: float
    updating: float
    evaluating: float
    starting: float

    @property
    def total(self) -> float:
        return self.imitating + self.playing + self.updating + self.evaluating + self.starting


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a forward pass through the blocks and the head, by its tokens: measured at `_SIZES`, linear between them."""

    blocks: tuple[float, ...]
    head: tuple[float, ...]

    def run(self, tokens: float, chosen: float) -> float:
        """Seconds of a pass over this many tokens, with logits after `chosen` of them."""
        return _interpolate(self.blocks, tokens) + _interpolate(self.head, chosen)


def _interpolate(times: tuple[float, ...], tokens: float) -> float:
    if tokens <= 0:
        return 0.0
    for (low, before), (high, after) in pairwise(zip(_SIZES, times, strict=True)):
        if tokens <= high:
            return before + (after - before) * max(0.0, tokens - low) / (high - low)
    return times[-1] * tokens / _SIZES[-1]


def measure_passes(shape: ModelShape) -> PassTimes:
    """Time one block of random weights and the head, in one thread as workers compute."""
    import torch
    from torch.nn import functional as F

    from fedagentgym.agents.model.loading import use_threads

    weights = [torch.randn(outputs, inputs) for _, inputs, outputs in shape.iter_linear()]
    norm, head = torch.ones(shape.hidden), torch.randn(min(shape.vocabulary, 32_768), shape.hidden)

    def run_block(hidden: torch.Tensor) -> None:
        for weight in weights:
            given = hidden if weight.shape[1] == shape.hidden else hidden.repeat(1, -(-weight.shape[1] // shape.hidden))
            F.silu(F.linear(given[:, : weight.shape[1]], weight))
        F.rms_norm(F.rms_norm(hidden, norm.shape, norm) + hidden, norm.shape, norm)

    scale = shape.vocabulary / len(head)
    each = _SECONDS / (2 * len(_SIZES))
    blocks, heads = [], []
    with use_threads(1), torch.inference_mode():
        for size in _SIZES:
            hidden = torch.randn(size, shape.hidden)
            blocks.append(shape.layers * _time(lambda given=hidden: run_block(given), each))  # type: ignore[misc]
            heads.append(scale * _time(lambda given=hidden: F.linear(given, head).logsumexp(dim=-1), each))  # type: ignore[misc]
    return PassTimes(tuple(blocks), tuple(heads))


def _time(call: Callable[[], object], seconds: float) -> float:
    """The median processor time of the calls that fit into these seconds, two at least."""
    call()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 2 or time.perf_counter() < end:
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return sorted(found)[len(found) // 2]


def measure_lengths(config: RunConfig) -> EpisodeLengths:
    """Let the expert play some tasks of the run, and count what the agent would read and write."""
    from fedagentgym.agents.text.prompts import Template
    from fedagentgym.envs import open_env

    agent = complete_settings(config.agent)
    options = {name: value for name, value in config.env.options.items() if name != "reward"}
    env = open_env(config.env.id, **{**options, "split": config.env.split})
    template = Template(agent.template or "standard", bool(agent.think), agent.system, agent.request)
    count, sums = _find_counter(agent), [0.0, 0.0, 0.0, 0.0]
    tasks = [env.pool[number * len(env.pool) // _SAMPLED] for number in range(_SAMPLED)]
    for turn, asked, reply in play_dialogues(env, agent, template, tasks):
        sums[1 if turn else 0] += count(asked[-1]["content"])
        sums[2] += count(reply) + 1
        sums[3] += 1
    return EpisodeLengths(*(number / len(tasks) for number in sums))


def play_dialogues(
    env: TextEnv, agent: AgentSettings, template: Template, tasks: Sequence[Task]
) -> Iterator[tuple[int, Sequence[Message], str]]:
    """Let the expert play tasks: of every turn its number, the messages that an agent would read, and the reply."""
    from fedagentgym.agents.text.prompts import Dialogue

    for task in tasks:
        expert = env.expert()
        (episode,) = env.reset_many([task], [0])
        dialogue = Dialogue(
            env, template, agent.context or "session", agent.history, episode.view.observation, agent.longest_prompt
        )
        for turn in range(1000):
            if episode.over:
                break
            asked = dialogue.build_messages(episode)
            action = expert.act(episode)
            reply = template.render_reply(env, action)
            yield turn, asked, reply
            dialogue.record_turn(episode, asked, reply, action)
            (episode,) = env.step_many([episode], [action])


def _find_counter(agent: AgentSettings) -> Callable[[str], float]:
    """A function that counts tokens: by words for a tiny model, else by the model's tokenizer if it is here, else by letters."""
    if agent.name in TINY_AGENTS:
        return lambda text: len(re.findall(r"\w+|[^\w\s]", text))
    try:
        from fedagentgym.agents.model.loading import load_tokenizer
        from fedagentgym.agents.model.store import find_model

        stored = find_model(agent.model or agent.name)
        if stored is not None:
            tokenizer = load_tokenizer(stored.folder)
            return lambda text: len(tokenizer(text)["input_ids"])
    except FedAgentGymError:
        pass
    return lambda text: len(text) / 4


def estimate_durations(plan: RunPlan, lengths: EpisodeLengths, passes: PassTimes) -> Durations:
    """Seconds of the run's parts; clients that train at the same time share the workers and the cores."""
    config, learning = plan.config, plan.config.learning
    backward = 1.0 if plan.agent.has_adapter else 2.0
    workers = max(1, min(config.federation.workers or 1, count_usable_cores(), plan.asked))
    steps = plan.total.episodes / max(1, learning.episodes_per_step) / workers
    episodes = steps * learning.episodes_per_step
    playing = (
        steps * _time_play(learning.tasks_per_step, learning.group_size, lengths, passes) + _EPISODE / 2 * episodes
    )
    copies = learning.group_size * _DISTINCT
    read = learning.tasks_per_step * (lengths.prompt + copies * (lengths.later + lengths.replies))
    said = learning.tasks_per_step * copies * lengths.replies
    updating = steps * learning.gradient_epochs * (1 + backward) * passes.run(read, said) + _EPISODE / 2 * episodes

    def imitate(supervised: float, batch: float) -> float:
        step = passes.run(batch * (lengths.prompt + lengths.later + lengths.replies), batch * lengths.replies)
        return supervised * ((1 + backward) * step + _EPISODE * batch)

    imitating, start = 0.0, config.warm_start
    if start is not None:
        if config.agent.name not in TINY_AGENTS:
            start = start.for_pretrained(plan.agent.has_adapter)
        imitating = imitate(start.steps, start.batch_size)
    # a method that imitates takes no other steps
    if (imitated := plan.total.imitated) and (supervised := plan.total.optimizer_steps):
        updating += imitate(supervised / workers, imitated / supervised)
    evaluating = 0.0
    if plan.evaluations:
        tasks = -(-(plan.evaluated or 100) // plan.evaluations)
        evaluating = plan.evaluations * (_time_play(tasks, 1, lengths, passes) + _EPISODE * tasks)
    starting = _START * (2 if config.federation.workers else 1)
    return Durations(imitating, playing, updating, evaluating, starting)


def _time_play(tasks: int, copies: int, lengths: EpisodeLengths, passes: PassTimes) -> float:
    """Seconds of episodes that are played in lockstep."""
    rows = tasks * max(1.0, copies * _DISTINCT)
    first = passes.run(tasks * lengths.prompt, tasks)
    later = passes.run(rows * lengths.later, 0)
    return first + later + lengths.replies * passes.run(rows, rows)


def measure_durations(plan: RunPlan) -> tuple[EpisodeLengths, Durations]:
    """Measure this machine and the run's episodes, and estimate the seconds of the run."""
    lengths = measure_lengths(plan.config)
    return lengths, estimate_durations(plan, lengths, measure_passes(plan.agent.shape))


def make_plain_durations(plan: RunPlan) -> dict[str, dict[str, float]]:
    """The tokens of an episode and the minutes of the run here as plain values; the machine is measured now."""
    lengths, found = measure_durations(plan)
    return {"episode_tokens": asdict(lengths), "minutes": {name: getattr(found, name) / 60 for name in PARTS}}


def format_durations(plan: RunPlan) -> Iterator[str]:
    """The time of the run here as text; the machine is measured now."""
    lengths, found = measure_durations(plan)
    yield (
        f"an episode as the expert plays it: {lengths.prompt:,.0f} tokens of prompt, {lengths.later:,.0f} of observations,"
        f" {lengths.replies:,.0f} of replies"
    )
    yield "on this processor, measured now, while nothing else runs:"
    for name in PARTS:
        note = " (once; kept in the cache)" if name == "imitating" else ""
        yield f"  {name + note:46s}{format_duration(getattr(found, name)):>20s}"
