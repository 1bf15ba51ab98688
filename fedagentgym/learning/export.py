"""Episodes in other forms: JSON lines, readable text, and conversations for supervised fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError, unknown_name_error
from fedagentgym.base.files import write_atomic
from fedagentgym.base.rounding import count_things
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.learning.trajectory import Line, Trajectory


def format_episode(trajectory: Trajectory, *, actions: bool = False, longest: int | None = None) -> str:
    """Write an episode as text for people.

    Args:
        trajectory: The episode.
        actions: Whether the admissible actions of every turn are listed.
        longest: Longer texts are cut to this many characters; by default no text is cut.

    Returns:
        The text: the task, the turns with replies and rewards, and the outcome.
    """
    end = "solved" if trajectory.success else "out of turns" if trajectory.truncated else "not solved"
    head = (
        f"{trajectory.task} ({trajectory.category or 'no category'}), seed {trajectory.seed}, copy {trajectory.sample}"
    )
    lines = [head, "=" * len(head)]
    for number, turn in enumerate(trajectory.turns, start=1):
        marks = [] if turn.valid else ["not understood by the environment"]
        marks += [] if turn.format else ["format broken"]
        marks += [f"paid {turn.reward:g}"] if turn.reward else []
        lines.append(f"[{number}] {_cut(turn.observation, longest)}")
        if actions and turn.admissible:
            lines.append(f"      admissible: {' | '.join(turn.admissible)}")
        lines.append(f"    > {_cut(turn.action, longest)}" + (f"   ({', '.join(marks)})" if marks else ""))
        if turn.reply.strip() != turn.action.strip():
            lines.append(f"      reply: {_cut(turn.reply, longest)}")
    if trajectory.last:
        lines.append(f"[end] {_cut(trajectory.last, longest)}")
    played = count_things(len(trajectory.turns), "turn")
    lines.append(f"{end} after {played}: score {trajectory.score:g}, reward {trajectory.reward:g}")
    return "\n".join(lines) + "\n"


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters in all)"


def to_conversation(trajectory: Trajectory, system: str | None = None) -> dict[str, Any]:
    """The episode as chat messages, the common form of supervised data: `messages`, a list of {role, content}, beside `task`,
    `category`, `success` and `score`.

    The user's messages are the observations, and the assistant's are the complete replies. `system` is the first message.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.reply})
    outcome = {"category": trajectory.category, "success": trajectory.success, "score": trajectory.score}
    return {"task": trajectory.task, **outcome, "messages": messages}


def export_conversations(
    lines: Iterable[Line], path: str | Path, *, solved_only: bool = False, only: str | None = None
) -> int:
    """Write episodes as conversations; returns their number.

    `only` is the name of an evaluation set whose episodes alone are written. The system message is the instructions that the
    environment named in a line gives to its agents.
    """
    found, sets = [], set[str]()
    for line in lines:
        trajectory, about = line.trajectory, line.about
        sets.add(str(about.get("set", "")))
        if (solved_only and not trajectory.success) or (only is not None and about.get("set") != only):
            continue
        system, env_id = None, about.get("env")
        if isinstance(env_id, str) and env_id in ENVIRONMENTS:
            cls = ENVIRONMENTS.get(env_id)
            system = f"{cls.role}\n\n{cls.action_help}"
        conversation = to_conversation(trajectory, system)
        found.append(json.dumps({**about, **conversation}) + "\n")
    if not found and only is not None and only not in sets:
        raise unknown_name_error("evaluation set", only, sorted(filter(None, sets)))
    if not found:
        raise DataError("no episode meets the conditions, so nothing is written")
    write_atomic(path, "".join(found))
    return len(found)
