"""The experts of FedGRPO: which clients are asked, how they score, and the advantages from their scores.

The auxiliary examples most similar to a question determine who is competent for it. Texts are compared by embeddings of the
frozen base model. Each text is embedded once and by itself: if an embedding depended on the other texts of a batch, a resumed
run would choose other experts than an uninterrupted one. The base model's parameters are loaded once for all new
questions of a round, and not at all if there are none.

An expert scores candidates by checking them against its gold, or with a model of its own (`Scorer`). In environments
that take replies, the whole question is sent. In environments that take commands, its id is enough, since a WebShop goal or an
ALFWorld game exists at every site. An expert receives a candidate in one of three forms:

`actions`   the actions: enough to replay the candidate, or to compare its answer
`tokens`    the episode in the server's tokens, for an expert whose model is of the same kind
`replies`   the replies as text: an expert with another tokenizer or prompt converts them to its own tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedagentgym.agents.protocols import Move
from fedagentgym.algorithms.runtime import ResidentModel, Runtime, Site, Weights
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import ComparesAnswers
from fedagentgym.envs.tasks import Task, to_plain_payload
from fedagentgym.learning.advantages import EPSILON, Deviation
from fedagentgym.learning.rollouts import Rollouts, collect
from fedagentgym.learning.state import SiteState, get_trainable_policy
from fedagentgym.learning.trajectory import (
    Trajectory,
    Turn,
    from_plain,
    make_segments,
    number_segments,
    to_plain,
)

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.learning.learner import LocalTraining

Floats = NDArray[np.float64]
Detail = Literal["actions", "tokens", "replies"]
Aggregate = Literal["pool", "per_expert", "split"]
TASK_BYTES = 1 << 15
"""Maximum size of a question in a message."""
HOLDER = 2.0
"""Added to the competence (at most 1) of clients that hold a question, so that they come first."""


def find_nearest(questions: Floats, examples: Floats, count: int) -> NDArray[np.int64]:
    """For each question the `count` examples of greatest cosine, the lower index first among equals."""
    assert count <= len(examples)
    similarity = questions @ examples.T
    return np.asarray(np.argsort(-similarity, axis=1, kind="stable")[:, :count], dtype=np.int64)


def compute_competence(right: Mapping[int, NDArray[np.bool_]], neighbours: NDArray[np.int64]) -> dict[int, float]:
    """Share of the neighbouring examples that each client got right."""
    return {client: float(answers[neighbours].mean()) for client, answers in sorted(right.items())}


def choose_experts(skill: Mapping[int, float], count: int, draw: Stream) -> list[int]:
    """The `count` most competent clients; a shuffle breaks ties, so that no client is favoured by its number."""
    if count > len(skill):
        raise OptionError(f"algorithm.experts asks for {count} experts per question, there are {len(skill)} clients")
    shuffled = draw.shuffled(sorted(skill))
    return sorted(sorted(shuffled, key=lambda client: -skill[client])[:count])


def combine_scores(scores: Floats, aggregate: Aggregate, deviation: Deviation = "population") -> Floats | None:
    """The advantages of a question's candidates from `scores[expert, candidate]`, NaN for a missing one; None if all are missing.

    `pool`: standardise over all scores of the question, then average each candidate's scores over the experts. `per_expert`:
    standardise each expert's row first, which removes differences of scale between experts. `split`: every expert scored
    candidates of its own; all scores are standardised together. A candidate without scores has no advantage.
    """
    if not np.isfinite(scores).any():
        return None
    if aggregate == "per_expert":
        rows = np.stack([_standardise(row, deviation) for row in scores])
    else:
        rows = _standardise(scores, deviation)
    if aggregate == "split":
        return np.nan_to_num(rows.reshape(-1), nan=0.0)
    there = np.isfinite(rows)
    sums, counts = np.where(there, rows, 0.0).sum(axis=0), there.sum(axis=0)
    return np.asarray(sums / np.maximum(counts, 1), dtype=np.float64)


def _standardise(scores: Floats, deviation: Deviation) -> Floats:
    """(r - mean) / (deviation + eps) over the scores that exist, or r - mean; equal scores give exact zeros."""
    there = np.isfinite(scores)
    values = scores[there]
    if not len(values):
        return np.full_like(scores, np.nan)
    spread = values.max() - values.min()
    result = np.where(there, 0.0, np.nan)
    if spread > 0:
        scale = 1.0 if deviation == "none" else values.std(ddof=1 if deviation == "sample" else 0) + EPSILON
        result[there] = (values - values.mean()) / scale
    return result


def pack_bits(bits: Sequence[bool]) -> NDArray[np.uint8]:
    """One bit per example."""
    return np.packbits(np.asarray(bits, dtype=np.bool_))


def unpack_bits(data: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    return np.unpackbits(data, count=count).astype(np.bool_)


def find_score_error(rows: NDArray[np.float64], questions: int) -> str:
    """The reason why an expert's scores cannot be used; empty if they can. NaN means a missing score and is allowed."""
    if len(rows) != questions:
        return f"scored {len(rows)} of {questions} questions, and it is not known which"
    given = rows[~np.isnan(rows)]
    if not ((given >= 0.0) & (given <= 1.0)).all():
        return f"scores are numbers between 0 and 1 or NaN, got {given[(given < 0.0) | (given > 1.0)][0]:g}"
    return ""


def score_metrics(scores: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """The share of missing scores among those requested, and the mean over questions of the mean of the given scores."""
    everything = np.concatenate([matrix.reshape(-1) for matrix in scores]) if scores else np.zeros(0)
    means = [float(np.nanmean(matrix)) for matrix in scores if np.isfinite(matrix).any()]
    return {
        "scores/missing": float(np.isnan(everything).mean()) if len(everything) else 0.0,
        "scores/mean": float(np.mean(means)) if means else 0.0,
    }


def expert_metrics(
    experts: Sequence[Sequence[int]], scores: Sequence[NDArray[np.float64]]
) -> dict[int, dict[str, float]]:
    """For each called client: its number of questions, the share of missing scores, the mean of the given scores."""
    rows: dict[int, list[NDArray[np.float64]]] = {}
    for chosen, matrix in zip(experts, scores, strict=True):
        for client, row in zip(chosen, matrix, strict=False):
            rows.setdefault(client, []).append(row)
    return {
        client: {"questions": float(len(given)), **score_metrics([np.stack(given)])}
        for client, given in sorted(rows.items())
    }


class Neighbourhoods:
    """The `count` nearest examples of every question so far."""

    def __init__(self, model: ResidentModel, questions: TextEnv, examples: TextEnv, count: int) -> None:
        self._model, self._questions, self._examples, self._count = model, questions, examples, count
        self._found: dict[str, NDArray[np.int64]] = {}

    def find(self, questions: Sequence[str]) -> list[NDArray[np.int64]]:
        """The indices of each question's examples. If a question is new, the model is left with its initial parameters."""
        new = [question for question in dict.fromkeys(questions) if question not in self._found]
        if new:
            self._model.load(self._model.initial_weights)
            for question, text in zip(new, read_openings(self._questions, new), strict=True):
                self._found[question] = find_nearest(self._embed([text]), self._examples_embedded, self._count)[0]
        return [self._found[question] for question in questions]

    @cached_property
    def _examples_embedded(self) -> NDArray[np.float64]:
        return self._embed(read_openings(self._examples, self._examples.pool.ids))

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        from fedagentgym.learning.forward import embed

        return embed(get_trainable_policy(self._model.agent), texts)


def read_openings(env: TextEnv, tasks: Sequence[str]) -> list[str]:
    """The first observation of each task."""
    return [episode.view.observation for episode in env.reset_many(list(tasks), [0] * len(tasks))]


# ---- what experts are sent ---------------------------------------------------------------------------------------


def make_task_records(env: TextEnv, ids: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The tasks of an environment's pool as plain values: ids alone if it takes commands, else all of them, with any answers."""
    chosen = env.pool if ids is None else env.pool.subset(ids)
    if env.takes == "command":
        return [{"id": identifier} for identifier in chosen.ids]
    return [{"id": task.id, "category": task.category, "payload": to_plain_payload(task.payload)} for task in chosen]


def pool_from_records(records: Any, env: TextEnv) -> TaskPool:
    """A pool of the tasks in a message, which comes from another machine; invalid data is a `DataError`."""
    if not isinstance(records, list | tuple) or not all(isinstance(record, Mapping) for record in records):
        raise DataError("expected a list of task records")
    if env.takes == "command":
        return env.pool.subset([str(record.get("id")) for record in records])
    return TaskPool.from_records(records, env=env.id)


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
    """A candidate's episode in the prompts and tokens of `agent`; None if the episode does not fit into the agent's context."""
    actions, replies, ends = (candidate.get(name) for name in ("actions", "replies", "ended"))  # from another machine
    if not (isinstance(actions, list) and isinstance(replies, list) and isinstance(ends, list)):
        raise DataError("a candidate sent as replies needs the lists actions, replies and ended")
    if not len(actions) == len(replies) == len(ends):
        raise DataError(f"a candidate has {len(actions)} actions, {len(replies)} replies and {len(ends)} ends")
    renderer = agent.renderer(env)
    (episode,) = env.reset_many([task], [int(candidate["seed"])])
    row = renderer.start_row(episode, stream(0))  # nothing is drawn: the replies are given
    moves: list[Move] = []
    turns: list[Turn] = []
    for action, reply, ended in zip(map(str, actions), map(str, replies), map(bool, ends), strict=True):
        if episode.over:
            break
        context = renderer.render(row, episode)
        if context is None:
            return None
        ids = tuple(agent.tokenizer.encode(reply))
        if ended:
            ids = agent.tokenizer.end_reply(ids)
        if (0 if context.fresh else row.held) + len(context.ids) + len(ids) > agent.policy.context_length:
            return None
        moves.append(
            Move(reply, action, True, context.ids, ids, fresh=context.fresh, finish="stop" if ended else "length")
        )
        turns.append(
            Turn(episode.view.observation, reply, (action,), reward=0.0, valid=True, format=True, tokens=len(ids))
        )
        renderer.record_turn(row, episode, context, moves[-1])
        (episode,) = env.step_many([episode], [action])
    numbered = zip(turns, number_segments(moves), strict=True)
    whole = tuple(turn._replace(segment=number) for turn, number in numbered)
    return Trajectory(task.id, int(candidate["seed"]), whole, make_segments(moves))


# ---- how experts score ------------------------------------------------------------------------------------------

Answers = Literal["off", "own", "holders_first", "all"]
"""The clients that may check candidates against the gold: none, holders of the question (preferred or not), or every client."""
Judgement = Literal["self_answer", "reward_model"]


class Scorer:
    """One client with its own model, which is loaded when first needed."""

    def __init__(
        self,
        runtime: Runtime,
        site: Site,
        weights: Weights,
        *,
        answers: Answers = "own",
        judgement: Judgement = "self_answer",
        steps: int | None = None,
    ) -> None:
        self._runtime, self._site, self._weights = runtime, site, weights
        self._answers, self._judgement = answers, judgement
        self._steps = steps
        """The steps of one training, which is the length of its schedule."""
        self._believed: dict[str, Task | None] = {}
        self.costs = {"scored": 0.0, "env_steps": 0.0}
        """Episodes that were played only to be scored, and their steps."""

    @cached_property
    def _local(self) -> LocalTraining:
        return self._site.open_learner(SiteState(self._weights), run_steps=self._steps)

    def train(self, steps: int, seed: int, *, before: int = 0) -> tuple[dict[str, float], Weights]:
        """Take policy steps on the client's own tasks, after `before` earlier ones. The new weights stay with the client."""
        self._local.skipped = -before  # every training counts its steps from 0
        report = self._local.run(steps, seed=seed)
        return report.metrics, self._local.get_state(optimizer=False).weights

    def solve_tasks(self, records: Sequence[Mapping[str, Any]], seed: int) -> list[bool]:
        """Return whether the client's model solves each of these tasks."""
        return [group[0].success for group in self._play(self._open_env(records), seed).groups]

    def score_questions(self, questions: Sequence[Mapping[str, Any]], seed: int) -> list[list[float]]:
        """Score by the gold if allowed, else by the model: a row for each question, per candidate a number in 0..1 or NaN."""
        unchecked = [question for question in questions if not self.may_check(question)]
        if self._judgement == "self_answer":
            self.answer_questions(unchecked, seed)
        return [self.score_candidates(question) for question in questions]

    def answer_questions(self, questions: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Let the client's model answer the questions, in one batch and each of them once."""
        records = {_get_id(question): question["task"] for question in questions}
        if not records:
            return
        env = self._open_env(list(records.values()))
        for task, (own,) in zip(env.pool, self._play(env, seed).groups, strict=True):
            reply = own.turns[-1].reply if own.turns else ""
            self._believed[task.id] = env.with_belief(task, reply) if isinstance(env, ComparesAnswers) else None

    def may_check(self, question: Mapping[str, Any]) -> bool:
        """Return whether this client checks a question's candidates against the gold."""
        if self._answers in ("off", "all"):
            return self._answers == "all"
        return self._find_own(question) is not None

    def _find_own(self, question: Mapping[str, Any]) -> str | None:
        """The id of the client's own task that is this question, or None. If server and clients share no ids, tasks are compared
        by their first observations."""
        own = self._site.env
        if self._runtime.sites.common_ids:
            return _get_id(question) if _get_id(question) in own.pool else None
        env = self._open_env([question["task"]])
        return self._own_by_opening.get(read_openings(env, env.pool.ids)[0])

    @cached_property
    def _own_by_opening(self) -> dict[str, str]:
        ids = self._site.env.pool.ids
        return dict(zip(read_openings(self._site.env, ids), ids, strict=True))

    def score_candidates(self, question: Mapping[str, Any]) -> list[float]:
        """The scores of one question's candidates; with `self_answer`, call `answer_questions` first if gold is not allowed."""
        identifier, candidates = _get_id(question), question["candidates"]
        if self.may_check(question):
            if self._runtime.sites.common_ids:
                gold = self._runtime.client_split.pool[identifier]
            else:
                gold = self._site.env.pool[self._find_own(question) or ""]
            return [score_by_replay(self._runtime.env, gold, candidate) for candidate in candidates]
        if self._judgement == "reward_model":
            (task,) = pool_from_records([question["task"]], self._runtime.env)  # an unknown task is an error
            return [self.measure_likelihood(task, candidate) for candidate in candidates]
        believed = self._believed[identifier]
        if believed is None:
            return [0.0] * len(candidates)
        return [score_by_replay(self._runtime.env, believed, candidate) for candidate in candidates]

    def measure_likelihood(self, task: Task, candidate: Mapping[str, Any]) -> float:
        """The likelihood of a candidate under the client's model: the geometric mean of its tokens' probabilities; NaN if the
        model cannot read it."""
        if "trajectory" in candidate:
            trajectory: Trajectory | None = from_plain(candidate["trajectory"])
        else:
            trajectory = reread(self._site.agent, self._runtime.env, task, candidate)
        if trajectory is None:
            return float("nan")
        ((scored,),) = self._local.recompute_logprobs([(trajectory,)])
        own = [segment.logprobs[segment.mask].astype(np.float64) for segment in scored.segments]
        said = np.concatenate(own) if own else np.zeros(0)
        return float(np.exp(said.mean())) if len(said) else float("nan")

    def _play(self, env: TextEnv, seed: int) -> Rollouts:
        """One episode of each task of an environment."""
        rollouts = collect(self._local.agent, env, list(env.pool.ids), seed=seed)
        self.costs["scored"] += len(rollouts.groups)
        self.costs["env_steps"] += rollouts.stats.steps
        return rollouts

    def _open_env(self, records: Sequence[Mapping[str, Any]]) -> TextEnv:
        return self._runtime.open_env(pool=pool_from_records(records, self._runtime.env))


def _get_id(question: Mapping[str, Any]) -> str:
    return str(question["task"]["id"])


def score_by_replay(env: TextEnv, task: Task, candidate: Mapping[str, Any]) -> float:
    """The score of a candidate's actions in the unchanged environment."""
    (episode,) = env.reset_many([task], [int(candidate["seed"])])
    for action in candidate["actions"]:
        if episode.over:
            break
        (episode,) = env.step_many([episode], [str(action)])
    return float(episode.view.score)
