"""A whole policy step: playing, then learning from the episodes.

No reply ends early, and every episode is used for learning: advantages are set by the benchmark, since an untrained model earns
no reward. In environments with several turns a random walker's actions are played instead of the replies.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.engine import open_transformers
from fedagentgym.agents.agent import TokenAgent, TokenPlayers
from fedagentgym.agents.protocols import Decoding, Move
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.streams import stream
from fedagentgym.envs.scripted import random_action
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import Episode


LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Workload:
    """One policy step: tasks, copies of each, turns, and tokens in each reply."""

    tasks: int
    copies: int
    turns: int
    reply_tokens: int

    @property
    def episodes(self) -> int:
        return self.tasks * self.copies


class StepTiming(NamedTuple):
    """Processor seconds of a step, and the tokens of all its episodes, prompts and observations included."""

    play: float
    learn: float
    tokens: int

    @property
    def speed(self) -> float:
        return self.tokens / (self.play + self.learn)

    @property
    def play_share(self) -> float:
        """The share of play in the step in percent; 0 if play and learning are not measured separately."""
        return 100 * self.play / (self.play + self.learn) if self.learn else 0.0


class OwnStep:
    """Our side: a `LocalTraining` whose agent ends no reply early and, in environments with several turns, walks at random."""

    def __init__(self, policy: TorchPolicy, env: TextEnv, work: Workload) -> None:
        policy.tokenizer.stop_ids = frozenset()
        kind = TokenAgent if env.takes == "reply" else WalkingAgent
        decoding = Decoding(max_new_tokens=work.reply_tokens)
        self.agent = kind("speed", policy, Template("compact", think=False), decoding)
        settings = LearningSettings(
            tasks_per_step=work.tasks,
            group_size=work.copies,
            learning_rate=LEARNING_RATE,
            format_penalty=0.0,
        )
        self.env, self.work = env, work
        self.local = LocalTraining(self.agent, env, settings)

    def step(self) -> StepTiming:
        """Play and learn once."""
        ids = [self.env.pool.ids[number] for number in range(self.work.tasks)]
        began = time.process_time()
        groups = self.local.collect_groups(0, tasks=ids)
        played = time.process_time()
        self.local.update(groups, advantages=[[(-1.0) ** copy for copy in range(len(group))] for group in groups])
        return StepTiming(played - began, time.process_time() - played, count_tokens(groups))

    def list_prompts(self) -> list[str]:
        """The first observation of each of the step's tasks."""
        groups = self.local.collect_groups(0, tasks=[self.env.pool.ids[number] for number in range(self.work.tasks)])
        return [self.agent.tokenizer.decode(group[0].segments[0].prompt_ids.tolist()) for group in groups]


def count_tokens(groups: Sequence[Group]) -> int:
    """All tokens of all episodes."""
    return sum(
        len(segment.prompt_ids) + len(segment.token_ids)
        for group in groups
        for episode in group
        for segment in episode.segments
    )


class WalkingAgent(TokenAgent):
    """Generates the model's replies, and plays a random walker's actions."""

    def play(self, env: TextEnv) -> TokenPlayers:
        return _WalkingPlayers(self, env)


class _WalkingPlayers(TokenPlayers):
    def act(self, rows: Sequence[int], episodes: Sequence[Episode]) -> list[Move]:
        moves = super().act(rows, episodes)
        return [
            move._replace(action=choose_random_action(episode)) for move, episode in zip(moves, episodes, strict=True)
        ]


def choose_random_action(episode: Episode) -> str:
    """The walker's next action, which is the same for all copies of a task, for our step and for TRL's."""
    return random_action(episode, episode.view.observation, stream(0, "walk", episode.task.id, episode.turn))


# ---- beside TRL's GRPOTrainer --------------------------------------------------------------------------------------

_DIALOGUE = (
    "{% for message in messages %}"
    "{% for call in message.get('tool_calls', []) %}{{ call['function']['name'] }}{{ call['function']['arguments'] }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}{{ '\n' + message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
)
"""A chat template with observations between line ends, and replies unchanged."""


def time_steps(
    make_policy: Callable[[], TorchPolicy], env: TextEnv, work: Workload, steps: int
) -> dict[str, StepTiming]:
    """The best step of `ours`, and of `trl` if TRL is installed, of several timed steps of each after a warm-up."""
    own = OwnStep(make_policy(), env, work)
    if find_spec("trl") is None:
        return {"ours": _choose_best([own.step() for _ in range(steps + 1)])}
    ours: list[StepTiming] = []
    theirs = run_trl(make_policy(), env, work, own.list_prompts(), steps + 1, lambda: ours.append(own.step()))
    return {"ours": _choose_best(ours), "trl": _choose_best(theirs)}


def _choose_best(steps: Sequence[StepTiming]) -> StepTiming:
    """The fastest step, without the first one, which warms up."""
    return max(steps[1:], key=lambda step: step.speed)


def run_trl(
    policy: TorchPolicy, env: TextEnv, work: Workload, prompts: Sequence[str], steps: int, between: Callable[[], object]
) -> list[StepTiming]:
    """TRL's steps on a model; `between` is called after each step and is not timed."""
    import datasets
    import trl
    from transformers import PrinterCallback, TrainerCallback

    times: list[StepTiming] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            spent = time.process_time() - self.began
            times.append(StepTiming(spent, 0.0, seen.pop()))
            between()

    seen: list[int] = []

    def pay(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        """Every second copy gets a reward of 1."""
        return [float(number % 2) for number in range(len(completions))]

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: list[Any], *rest: Any) -> Any:
            found = super()._generate(prompts, *rest)
            seen.append(sum(map(len, found[0])) + sum(map(len, found[1])))
            return found

    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walk = {} if env.takes == "reply" else {"environment_factory": lambda: _ToolWorld(env)}
        trainer = Trainer(
            model=open_transformers(policy),
            reward_funcs=pay,
            args=_make_arguments(trl, Path(folder), work, steps, env),
            train_dataset=datasets.Dataset.from_list(_make_rows(prompts, env)),
            processing_class=_make_tokenizer(policy, env),
            callbacks=[Clock()],
            **walk,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times


def _make_rows(prompts: Sequence[str], env: TextEnv) -> list[dict[str, Any]]:
    if env.takes == "reply":
        return [{"prompt": prompt} for prompt in prompts]
    return [{"prompt": [{"role": "user", "content": ""}], "task": env.pool.ids[k]} for k in range(len(prompts))]


def _make_arguments(trl: Any, folder: Path, work: Workload, steps: int, env: TextEnv) -> Any:
    """GRPO with our default settings: one pass, one mini-batch, no KL term, mean over all tokens."""
    several = work.turns > 1
    return trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=work.episodes,
        num_generations=work.copies,
        max_completion_length=work.reply_tokens if not several else 128 * work.turns,
        max_tool_calling_iterations=work.turns - 1 if several else None,
        generation_kwargs={"min_new_tokens": work.reply_tokens, "max_new_tokens": work.reply_tokens},
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="dapo",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def _make_tokenizer(policy: TorchPolicy, env: TextEnv) -> Any:
    """The policy's tokenizer; for several turns it has a chat template, and parses every reply as a call of the only tool."""
    tokenizer = copy.deepcopy(policy.tokenizer.hf)
    if env.takes != "reply":
        tokenizer.chat_template = _DIALOGUE
        tokenizer.response_schema = {}
        call = {"type": "function", "function": {"name": "act", "arguments": {"reply": ""}}}
        tokenizer.parse_response = lambda ids, **_: {"role": "assistant", "content": "", "tool_calls": [call]}
    return tokenizer


class _ToolWorld:
    """An episode as TRL plays it: `act` is its only tool."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env

    def reset(self, task: str = "", **columns: Any) -> str:
        (self._episode,) = self._env.reset_many([task], [0])
        return self._episode.view.observation

    def act(self, reply: str) -> str:
        """Plays one action.

        Args:
            reply: The tokens that the model has generated.
        """
        if not self._episode.over:
            (self._episode,) = self._env.step_many([self._episode], [choose_random_action(self._episode)])
        return f"{self._episode.view.observation}\n{self._env.goal(self._episode.task)}"
