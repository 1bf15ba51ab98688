"""Episodes in other forms: JSON lines, readable text, and conversations for supervised fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.learning.episodes import read_lines
from fedagentgym.learning.trajectory import Trajectory


def format_episode(trajectory: Trajectory, *, actions: bool = False, longest: int | None = None) -> str:
    """Write an episode as text for people.

    Args:
        trajectory: The episode.
        actions: Whether the admissible actions of every turn are listed.
        longest: Longer texts are cut to this many characters; by default none is.

    Returns:
        The text: task, turns with replies and rewards, and how it ended.
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
    lines.append(f"{end} after {len(trajectory.turns)} turns: score {trajectory.score:g}, reward {trajectory.reward:g}")
    return "\n".join(lines) + "\n"


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters in all)"


def to_conversation(trajectory: Trajectory, system: str | None = None) -> dict[str, Any]:
    """The episode as chat messages, the common form of supervised data: `{"task": ..., "messages": [{role, content}, ...]}`.

    The user's messages are the observations, the assistant's the whole replies; `system` begins the conversation.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.reply})
    outcome = {"category": trajectory.category, "success": trajectory.success, "score": trajectory.score}
    return {"task": trajectory.task, **outcome, "messages": messages}


def export_conversations(
    source: str | Path,
    path: str | Path,
    *,
    solved_only: bool = False,
    training: bool = False,
    only: str | None = None,
    env: str | None = None,
) -> int:
    """Write the episodes of a file, or of a run's folder, as conversations; returns how many there are.

    For a run these are the episodes of its last evaluation; with `training`, the sampled training episodes of all rounds.
    `only` names an evaluation set. The system message is the description of the episode's environment; `env` is the
    environment of lines that name none.
    """
    lines = []
    for file in _list_episode_files(Path(source), training):
        for line in read_lines(file):
            trajectory, about = line.trajectory, line.about
            if (solved_only and not trajectory.success) or (only is not None and about.get("set") != only):
                continue
            conversation = to_conversation(trajectory, _describe_environment(about.get("env", env)))
            lines.append(json.dumps({**about, **conversation}) + "\n")
    if not lines:
        raise DataError(f"{source} holds no such episode, so nothing is written")
    write_atomic(path, "".join(lines))
    return len(lines)


def _list_episode_files(source: Path, training: bool) -> list[Path]:
    """The file itself, or those of a run."""
    if not source.is_dir():
        return [source]
    if training:
        files = sorted((source / "trajectories").glob("*.jsonl"))
    else:
        found = (source / "evaluation").glob("*.jsonl")
        files = sorted(found, key=lambda file: (file.stem != "ranked", file.stem.isdecimal(), file.stem))
        files = files[:1] if files and files[0].stem == "ranked" else files[-1:]
    if not files:
        kind = "sampled training episodes" if training else "evaluated episodes"
        raise DataError(f"{source} is not a run with {kind}")
    return files


def _describe_environment(env_id: object) -> str | None:
    """An environment's instructions to its agents, if it is registered here."""
    if not isinstance(env_id, str) or env_id not in ENVIRONMENTS:
        return None
    cls = ENVIRONMENTS.get(env_id)
    return f"{cls.role}\n\n{cls.action_help}"
