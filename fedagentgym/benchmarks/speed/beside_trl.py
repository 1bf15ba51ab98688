"""Policy steps of ours and of TRL's `GRPOTrainer`, alternating in one thread of one process.

Both sides start from the same weights and play the same tasks with the same numbers of copies and of reply tokens. In houses the
same random walker acts for both, and TRL's side goes through its own loop of tool calls. Processor time counts, the best step
of each side.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedagentgym.benchmarks.speed.policy_step import (
    LEARNING_RATE,
    OwnStep,
    StepTiming,
    Workload,
    choose_random_action,
)

if TYPE_CHECKING:
    from fedagentgym.agents.engines.torch_policy import TorchPolicy
    from fedagentgym.envs.core import TextEnv

_DIALOGUE = (
    "{% for message in messages %}"
    "{% for call in message.get('tool_calls', []) %}{{ call['function']['name'] }}{{ call['function']['arguments'] }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}{{ '\n' + message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
)
"""A chat template: observations between line ends, replies as they are."""


def time_steps(
    make_policy: Callable[[], TorchPolicy], env: TextEnv, work: Workload, steps: int
) -> dict[str, StepTiming]:
    """The best step of `ours`, and of `trl` where TRL is installed, from one warm-up and some timed steps of each."""
    own = OwnStep(make_policy(), env, work)
    if find_spec("trl") is None:
        return {"ours": _choose_best([own.step() for _ in range(steps + 1)])}
    ours: list[StepTiming] = []
    theirs = run_trl(make_policy(), env, work, own.list_prompts(), steps + 1, lambda: ours.append(own.step()))
    return {"ours": _choose_best(ours), "trl": _choose_best(theirs)}


def _choose_best(steps: Sequence[StepTiming]) -> StepTiming:
    """The fastest step but for the first, which warms up."""
    return max(steps[1:], key=lambda step: step.speed)


def run_trl(
    policy: TorchPolicy, env: TextEnv, work: Workload, prompts: Sequence[str], steps: int, between: Callable[[], object]
) -> list[StepTiming]:
    """TRL's steps on a model; `between` is called after each of them, off the clock."""
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
        """Every other copy is paid."""
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
            model=policy.model,
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
    """GRPO as our default settings say it: one pass, one mini-batch, no KL term, mean over all tokens."""
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
    """The policy's tokenizer; for several turns with a dialogue's form, and every reply a call of the one tool."""
    tokenizer = copy.deepcopy(policy.tokenizer.hf)
    if env.takes != "reply":
        tokenizer.chat_template = _DIALOGUE
        tokenizer.response_schema = {}
        call = {"type": "function", "function": {"name": "act", "arguments": {"said": ""}}}
        tokenizer.parse_response = lambda ids, **_: {"role": "assistant", "content": "", "tool_calls": [call]}
    return tokenizer


class _ToolWorld:
    """An episode as TRL plays it: `act` is its only tool."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env

    def reset(self, task: str = "", **columns: Any) -> str:
        (self._episode,) = self._env.reset_many([task], [0])
        return self._episode.view.observation

    def act(self, said: str) -> str:
        """Plays one action.

        Args:
            said: What the model has said.
        """
        if not self._episode.over:
            (self._episode,) = self._env.step_many([self._episode], [choose_random_action(self._episode)])
        return f"{self._episode.view.observation}\n{self._env.goal(self._episode.task)}"
