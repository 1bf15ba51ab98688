"""Episodes for other eyes: JSON lines, readable text, and conversations for supervised fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_jsonl, write_atomic
from fedagentgym.learning.trajectory import Trajectory, from_plain, to_plain


def to_json_line(trajectory: Trajectory, about: Mapping[str, Any] | None = None) -> str:
    """One line: what was seen, said, done and paid, without token ids; `about` adds fields such as the policy's digest."""
    return json.dumps({**(about or {}), **to_plain(trajectory, segments=False)}, ensure_ascii=True)


def write_json_lines(
    path: str | Path, trajectories: Iterable[Trajectory], about: Mapping[str, Any] | None = None
) -> None:
    """All episodes of a file at once: it is whole or absent."""
    write_atomic(path, "".join(to_json_line(trajectory, about) + "\n" for trajectory in trajectories))


def read_json_lines(path: str | Path) -> Iterator[tuple[Trajectory, dict[str, Any]]]:
    """Each episode of a file, with the fields that are not the episode's own."""
    own = set(to_plain(Trajectory("", 0, (), labels={"any": 0})))
    for number, record in read_jsonl(path):
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: an episode is a JSON object, found {type(record).__name__}")
        try:
            trajectory = from_plain(record)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        yield trajectory, {name: value for name, value in record.items() if name not in own}


def format_episode(trajectory: Trajectory) -> str:
    """An episode as a person wants to read it."""
    end = "solved" if trajectory.success else "out of turns" if trajectory.truncated else "not solved"
    head = (
        f"{trajectory.task} ({trajectory.category or 'no category'}), seed {trajectory.seed}, copy {trajectory.sample}"
    )
    lines = [head, "=" * len(head)]
    for number, turn in enumerate(trajectory.turns, start=1):
        marks = [] if turn.valid else ["not understood by the environment"]
        marks += [] if turn.format else ["format broken"]
        marks += [f"paid {turn.reward:g}"] if turn.reward else []
        lines += [
            f"[{number}] {turn.observation}",
            f"    > {turn.action}" + (f"   ({', '.join(marks)})" if marks else ""),
        ]
        if turn.reply.strip() != turn.action.strip():
            lines.append(f"      said: {turn.reply}")
    lines.append(f"{end} after {len(trajectory.turns)} turns: score {trajectory.score:g}, reward {trajectory.reward:g}")
    return "\n".join(lines) + "\n"


def to_conversation(trajectory: Trajectory) -> dict[str, Any]:
    """The episode as chat messages, the common form of supervised data: `{"task": ..., "messages": [{role, content}, ...]}`."""
    messages = []
    for turn in trajectory.turns:
        messages.append({"role": "user", "content": turn.observation})
        messages.append({"role": "assistant", "content": turn.reply})
    return {"task": trajectory.task, "success": trajectory.success, "messages": messages}


def write_conversations(path: str | Path, trajectories: Iterable[Trajectory], *, solved_only: bool = True) -> int:
    """Write supervised data as JSON lines and return how many episodes were taken."""
    chosen = [trajectory for trajectory in trajectories if trajectory.success or not solved_only]
    write_atomic(path, "".join(json.dumps(to_conversation(trajectory)) + "\n" for trajectory in chosen))
    return len(chosen)
