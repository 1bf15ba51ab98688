"""Which clients FedGRPO asks, and what their scores are worth: competence, the choice of experts, and advantages.

The auxiliary examples most similar to a question determine who is competent for it. Texts are compared by embeddings of the
frozen base model. Each is embedded once, and one at a time: an embedding must not depend on the other texts of a batch, or a
resumed run would choose other experts than an uninterrupted one. The base model's parameters are loaded once for all new
questions of a round, and not at all if there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedagentgym.algorithms.support.runtime import ResidentModel
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.learning.advantages import Deviation
from fedagentgym.learning.local import get_trainable_policy

Floats = NDArray[np.float64]
EPSILON = 1e-6
HOLDER = 2.0
"""Added to the competence (at most 1) of clients that hold a question, so that they come first."""


def find_nearest(questions: Floats, examples: Floats, count: int) -> NDArray[np.int64]:
    """For each question the `count` examples of greatest cosine, the lower index first among equals."""
    if count > len(examples):
        raise OptionError(f"algorithm.neighbours asks for {count} examples, the auxiliary set holds {len(examples)}")
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


def standardise_pooled(scores: Floats, deviation: Deviation = "population") -> Floats | None:
    """`pool`: standardise over all scores of the question, then average each candidate's over the experts.

    `scores[expert, candidate]`, NaN for a missing answer. None if there is no score at all.
    """
    if not np.isfinite(scores).any():
        return None
    return _column_means(_standardise(scores, deviation))


def standardise_per_expert(scores: Floats, deviation: Deviation = "population") -> Floats | None:
    """`per_expert`: standardise each expert's row first, which removes differences of scale between experts."""
    if not np.isfinite(scores).any():
        return None
    return _column_means(np.stack([_standardise(row, deviation) for row in scores]))


def standardise_split(scores: Floats, deviation: Deviation = "population") -> Floats | None:
    """`split`: every expert scored candidates of its own; all of them are standardised together."""
    if not np.isfinite(scores).any():
        return None
    return np.nan_to_num(_standardise(scores, deviation).reshape(-1), nan=0.0)


ESTIMATORS = {"pool": standardise_pooled, "per_expert": standardise_per_expert, "split": standardise_split}


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


def _column_means(rows: Floats) -> Floats:
    """The mean of each column over the scores that exist; a candidate without scores has no advantage."""
    there = np.isfinite(rows)
    counts = there.sum(axis=0)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=0) / np.maximum(counts, 1), dtype=np.float64)


def pack_bits(bits: Sequence[bool]) -> NDArray[np.uint8]:
    """One bit per example."""
    return np.packbits(np.asarray(bits, dtype=np.bool_))


def unpack_bits(data: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    return np.unpackbits(data, count=count).astype(np.bool_)


def find_score_error(rows: NDArray[np.float64], questions: int) -> str:
    """Why an expert's scores cannot be used, or nothing. NaN means a missing score and is allowed."""
    if len(rows) != questions:
        return f"scored {len(rows)} of {questions} questions, and it is not known which"
    given = rows[~np.isnan(rows)]
    if not ((given >= 0.0) & (given <= 1.0)).all():
        return f"scores are numbers between 0 and 1 or NaN, got {given[(given < 0.0) | (given > 1.0)][0]:g}"
    return ""


def score_metrics(scores: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """The share of missing scores among those requested, and the mean of the others."""
    everything = np.concatenate([matrix.reshape(-1) for matrix in scores]) if scores else np.zeros(0)
    means = [float(np.nanmean(matrix)) for matrix in scores if np.isfinite(matrix).any()]
    return {
        "scores/missing": float(np.isnan(everything).mean()) if len(everything) else 0.0,
        "scores/mean": float(np.mean(means)) if means else 0.0,
    }


def expert_metrics(
    experts: Sequence[Sequence[int]], scores: Sequence[NDArray[np.float64]]
) -> dict[int, dict[str, float]]:
    """For each called client: its number of questions, the share of missing scores, the mean of the others."""
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
