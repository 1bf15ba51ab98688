"""inspect_ai: an environment as an inspect task, with the scores of the environment.

    inspect eval fedagentgym/play -T env=math -T size=tiny -T split=test --model ... --limit 50

The package registers the task, so that the command finds it. Tested with inspect_ai 0.3.285. A sample is a task of the
environment, or of one of its clients. The environment takes the part of the user, turn by turn.
"""

from __future__ import annotations

from typing import Any

from fedagentgym.agents.players.conversation import Conversation
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.imports import require
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.registry import find_env_id
from fedagentgym.partitions.division import check_whole_number

inspect_ai: Any = require("inspect_ai", "inspect")
_dataset: Any = require("inspect_ai.dataset", "inspect")
_model: Any = require("inspect_ai.model", "inspect")
_scorer: Any = require("inspect_ai.scorer", "inspect")
_solver: Any = require("inspect_ai.solver", "inspect")

__all__ = ["play", "read_score"]


@inspect_ai.task  # type: ignore[untyped-decorator]
def play(
    env: str,
    split: str = "test",
    client_split: str | None = None,
    client: int | None = None,
    think: bool = False,
    episode_seed: int = 0,
    **options: Any,
) -> Any:
    """Make an inspect task of an environment.

    Args:
        env: Id of the environment, or its short name.
        split: The split whose tasks are played. Ignored with `client_split`, which names the split that it divides.
        client_split: File of a client split, to play the tasks of one client.
        client: Number of that client.
        think: Whether the prompt asks for a thought before an action.
        episode_seed: Seed of the episodes.
        options: Further options of the environment, such as `size="tiny"`.

    Returns:
        The task, for `inspect eval` or `inspect_ai.eval`.

    Raises:
        OptionError: If an option is unknown or has an invalid value.
        UnknownNameError: If no environment has this id.

    Examples:
        >>> inspect_ai.eval(play("math", split="val"), model="mockllm/model", limit=2)  # doctest: +SKIP
    """
    opened = _open(env, split, client_split, client, options)
    template, episode_seed = _make_template(think), check_whole_number(episode_seed, "episode_seed")
    samples = []
    for name in opened.pool.ids:
        chat = Conversation(opened, name, episode_seed, template)
        about = {"category": chat.episode.task.category}
        samples.append(_dataset.Sample(id=name, input=chat.messages[-1]["content"], metadata=about))
    return inspect_ai.Task(
        dataset=_dataset.MemoryDataset(samples, name=opened.id),
        solver=_play_episode(opened, template, episode_seed),
        scorer=read_score(),
        name=opened.id.replace("/", "-"),
    )


@_solver.solver  # type: ignore[untyped-decorator]
def _play_episode(env: TextEnv, template: Template, seed: int) -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        chat = Conversation(env, str(state.sample_id), seed, template)
        over = False
        while not over:
            state = await generate(state)
            over = chat.reply(state.output.completion)
            if not over:
                state.messages.append(_model.ChatMessageUser(content=chat.messages[-1]["content"]))
        view = chat.episode.view
        state.metadata |= {"score": float(view.score), "success": bool(view.success), "turns": chat.episode.turn}
        return state

    return solve


@_scorer.scorer(metrics={"success": [_scorer.mean(), _scorer.stderr()], "score": [_scorer.mean(), _scorer.stderr()]})  # type: ignore[untyped-decorator]
def read_score() -> Any:
    """Make the scorer that reads success and score from the sample's metadata, in which the solver of `play` writes them.

    Returns:
        The scorer.
    """

    async def score(state: Any, target: Any) -> Any:
        played = state.metadata
        value = {"success": float(played.get("success", False)), "score": float(played.get("score", 0.0))}
        return _scorer.Score(value=value, answer=state.output.completion, metadata={"turns": played.get("turns", 0)})

    return score


def _make_template(think: bool) -> Template:
    if not isinstance(think, bool):  # such as a text from `-T think=maybe`, which would count as true
        raise OptionError(f"think must be true or false, got {show_value(think)}")
    return Template(think=think)


def _open(env: str, split: str, client_split: str | None, client: int | None, options: dict[str, Any]) -> TextEnv:
    if (client_split is None) != (client is None):
        raise OptionError("client_split and client must be given together")
    where = {"split": split} if client_split is None else {"client_split": client_split, "client": client}
    return open_env(find_env_id(env), **options, **where)
