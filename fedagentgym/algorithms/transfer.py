"""Tasks and candidates in messages.

A question is sent whole, with its answer (environments that take replies). A WebShop goal or an ALFWorld game exists at every
site, so its id is enough (environments that take commands). An expert receives a candidate in one of three forms:

`actions`   the actions: enough to replay the candidate, or to compare its answer
`tokens`    the episode in the server's tokens, for an expert whose model is of the same kind
`replies`   the replies as text: an expert with another tokenizer or prompt converts them to its own tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedagentgym.agents.protocols import Move
from fedagentgym.base.errors import DataError
from fedagentgym.base.streams import stream
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import to_plain_payload
from fedagentgym.learning.trajectory import Trajectory, Turn, make_segments, number_segments, to_plain

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.tasks import Task

TASK_BYTES = 1 << 15


def make_task_records(env: TextEnv, ids: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The tasks of an env's pool as plain values; of a pool without answers, without them."""
    chosen = env.pool if ids is None else env.pool.subset(ids)
    if env.takes == "command":
        return [{"id": identifier} for identifier in chosen.ids]
    return [{"id": task.id, "category": task.category, "payload": to_plain_payload(task.payload)} for task in chosen]


def pool_from_records(records: Any, env: TextEnv) -> TaskPool:
    """A pool of the tasks in a message; invalid data is one clear error, since messages come from other machines."""
    if not isinstance(records, list | tuple) or not all(isinstance(record, Mapping) for record in records):
        raise DataError("expected a list of task records")
    if env.takes == "command":
        return env.pool.subset([str(record.get("id")) for record in records])
    return TaskPool.from_records(records, env=env.id)


Detail = Literal["actions", "tokens", "replies"]


def make_candidate(trajectory: Trajectory, detail: Detail, stop_ids: frozenset[int] = frozenset()) -> dict[str, Any]:
    """A candidate as plain values. `stop_ids` are the tokens that end a reply; a truncated reply lacks them."""
    plain: dict[str, Any] = {"actions": list(trajectory.actions), "seed": trajectory.seed}
    if detail == "tokens":
        return plain | {"trajectory": to_plain(trajectory)}
    if detail == "actions":
        return plain
    own = [segment.token_ids[segment.mask] for segment in trajectory.segments]
    said = np.split(np.concatenate(own), np.cumsum([turn.tokens for turn in trajectory.turns])[:-1]) if own else []
    ended = [bool(len(ids)) and int(ids[-1]) in stop_ids for ids in said]
    return plain | {"replies": [turn.reply for turn in trajectory.turns], "ended": ended}


def reread(agent: TokenAgent, env: TextEnv, task: Task, candidate: Mapping[str, Any]) -> Trajectory | None:
    """A candidate's episode in the prompts and tokens of `agent`; None if it does not fit its context."""
    renderer = agent.renderer(env)
    (episode,) = env.reset_many([task], [int(candidate["seed"])])
    row = renderer.start_row(episode, stream(0))  # nothing is drawn: the replies are given
    moves: list[Move] = []
    turns: list[Turn] = []
    for action, reply, ended in _iter_turns(candidate):
        if episode.over:
            break
        context = renderer.render(row, episode)
        if context is None:
            return None
        ids = _encode_reply(agent, reply, ended)
        if (0 if context.fresh else row.held) + len(context.ids) + len(ids) > renderer.context_length:
            return None
        moves.append(
            Move(reply, action, True, context.ids, ids, fresh=context.fresh, finish="stop" if ended else "length")
        )
        turns.append(Turn(episode.view.observation, reply, (action,), 0.0, True, True, tokens=len(ids)))
        renderer.record_turn(row, episode, context, moves[-1])
        (episode,) = env.step_many([episode], [action])
    numbered = zip(turns, number_segments(moves), strict=True)
    whole = tuple(turn._replace(segment=number) for turn, number in numbered)
    return Trajectory(task.id, int(candidate["seed"]), whole, make_segments(moves))


def _iter_turns(candidate: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(action, reply, whether the reply was ended) of each turn; validated, since it comes in a message."""
    actions, replies, ended = (candidate.get(name) for name in ("actions", "replies", "ended"))
    if not (isinstance(actions, list) and isinstance(replies, list) and isinstance(ended, list)):
        raise DataError("a candidate in replies has lists of actions, replies and ended")
    if not len(actions) == len(replies) == len(ended):
        raise DataError(f"a candidate has {len(actions)} actions, {len(replies)} replies and {len(ended)} ends")
    return [(str(action), str(reply), bool(end)) for action, reply, end in zip(actions, replies, ended, strict=True)]


def _encode_reply(agent: TokenAgent, reply: str, ended: bool) -> tuple[int, ...]:
    """The tokens of a reply, with the agent's own end token if it was ended."""
    ids = agent.tokenizer.encode(reply)
    return (*ids, min(agent.tokenizer.stop_ids)) if ended else ids
