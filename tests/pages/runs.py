"""A run folder as a run writes it, made without one: rounds, evaluations, background, and episodes that are hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedagentgym.federation.message import KINDS
from fedagentgym.learning.trajectory import Trajectory, Turn, format_line

HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed=1'> \u202eevil \x1b[31m"
CATEGORIES = ("Pick", "Heat & Cool", "<b>Look</b>")
Names = tuple[str, str, str]
CLIENTS, ROUNDS, TASKS = 30, 6, 12


def write_run(folder: Path, text: str = HOSTILE, categories: Names = CATEGORIES) -> Path:
    """Six rounds of thirty clients; half of the tasks are solved before, most of them after. `text` stands everywhere."""
    (folder / "evaluation").mkdir(parents=True)
    (folder / "trajectories").mkdir()
    (folder / "config.yaml").write_text("env: {id: test/World-v0}\n")
    before = [make_episode(number, text, categories, solved=number % 2 == 0) for number in range(TASKS)]
    after = [make_episode(number, text, categories, solved=number % 4 != 3) for number in range(TASKS)]
    write_episodes(folder / "evaluation" / "0000.jsonl", before)
    write_episodes(folder / "evaluation" / f"{ROUNDS:04d}.jsonl", after)
    write_episodes(folder / "trajectories" / "0001.jsonl", after[:3], client=4)
    records = [make_record(number, text) for number in range(ROUNDS + 1)]
    records[0]["evaluation"] = make_evaluation(before, categories)
    records[-1]["evaluation"] = make_evaluation(after, categories)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    background = {
        "clients": CLIENTS,
        "categories": categories,
        "counts": [[1 + client % 5, client % 3, 2] for client in range(CLIENTS)],
        "expert": 0.95,
    }
    (folder / "background.json").write_text(json.dumps(background))
    return folder


def write_episodes(file: Path, episodes: list[Trajectory], **about: Any) -> None:
    file.write_text("".join(format_line(one, {"env": "test/World-v0", **about}) + "\n" for one in episodes))


def make_episode(number: int, text: str, categories: Names, *, solved: bool) -> Trajectory:
    listed = ("go north", "go south", "take <lamp>")
    turns = (
        Turn(
            f"You are in place {number}. {text}",
            f"<think>{text}</think>",
            (listed[0],),
            0.0,
            True,
            True,
            admissible=listed,
        ),
        Turn("x" * 5000, "break", (text,), float(solved), number % 3 > 0, True, admissible=listed),
    )
    category = categories[number % len(categories)]
    last = f"The last answer of world {number}."
    return Trajectory(f"task/{number:03d}", number, turns, (), category, 0, float(solved), solved, True, last=last)


def make_evaluation(episodes: list[Trajectory], names: Names) -> dict[str, Any]:
    overall = _estimate(episodes)
    categories = {name: _estimate([one for one in episodes if one.category == name]) for name in names}
    success = overall["success"]["mean"]
    return {
        "success": success,
        "tasks": len(episodes),
        "episodes": len(episodes),
        "overall": overall,
        "categories": categories,
        "seconds": 1.0,
    }


def _estimate(episodes: list[Trajectory]) -> dict[str, Any]:
    share = sum(one.success for one in episodes) / len(episodes)
    interval = {"mean": share, "low": max(0.0, share - 0.2), "high": min(1.0, share + 0.2)}
    return {name: dict(interval) for name in ("success", "score", "turns")}


def make_record(number: int, text: str) -> dict[str, Any]:
    drawn = [(7 * number + 3 * place) % CLIENTS for place in range(4)] if number else []
    told = {
        str(client): {"success": client / CLIENTS, "update_norm": 0.1 * number, "invalid": 0.0} for client in drawn[1:]
    }
    failure = {
        "round": number,
        "call": 1,
        "operation": "train",
        "client": drawn[0] if drawn else 0,
        "reason": "error",
        "message": text,
        "detail": "",
    }
    bytes_ = {
        way: {**dict.fromkeys((*KINDS, "framing", "report", "messages"), 1000 * number)} for way in ("down", "up")
    }
    return {
        "round": number,
        "participants": drawn,
        "metrics": {"success": 0.5, "episodes": 64.0, "env_steps": 900.0, "invalid": 0.0, "surprisal": 1 / (1 + number)}
        if number
        else {},
        "clients": told,
        "client_seconds": {},
        "failures": [failure] if number == 2 else [],
        "bytes": bytes_,
        "bytes_total": bytes_,
        "seconds": 1.0,
        "seconds_total": 1.0 * (number + 1),
        "digest": "sha256:" + "0" * 64,
    }
