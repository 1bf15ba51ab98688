"""FedGRPO's arithmetic, free of models: who is competent for a question, and what the experts' scores make of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream

Floats = NDArray[np.float64]
EPSILON = 1e-6


def find_nearest(questions: Floats, examples: Floats, count: int) -> NDArray[np.int64]:
    """For each question the `count` examples of greatest cosine, the lower number first among equals."""
    if count > len(examples):
        raise OptionError(f"algorithm.neighbours asks for {count} examples, the auxiliary set holds {len(examples)}")
    similarity = questions @ examples.T
    return np.asarray(np.argsort(-similarity, axis=1, kind="stable")[:, :count], dtype=np.int64)


def compute_competence(right: Mapping[int, NDArray[np.bool_]], neighbours: NDArray[np.int64]) -> dict[int, float]:
    """Share of the neighbouring examples that each client got right."""
    return {client: float(answers[neighbours].mean()) for client, answers in sorted(right.items())}


def choose_experts(skill: Mapping[int, float], count: int, draw: Stream) -> list[int]:
    """The `count` most competent clients; a shuffle decides among equals, so that no client is favoured by its number."""
    if count > len(skill):
        raise OptionError(f"algorithm.experts asks for {count} experts per question, there are {len(skill)} clients")
    shuffled = draw.shuffled(sorted(skill))
    return sorted(sorted(shuffled, key=lambda client: -skill[client])[:count])


def standardise_pooled(scores: Floats) -> Floats | None:
    """`pool`: standardise over all scores of the question, then average each candidate's over the experts.

    `scores[expert, candidate]`, NaN where an answer is missing. None if there is no score at all.
    """
    if not np.isfinite(scores).any():
        return None
    return _column_means(_standardise(scores))


def standardise_per_expert(scores: Floats) -> Floats | None:
    """`standardise_per_expert`: standardise each expert's row first, which removes differences of scale between experts."""
    if not np.isfinite(scores).any():
        return None
    return _column_means(np.stack([_standardise(row) for row in scores]))


def standardise_split(scores: Floats) -> Floats | None:
    """`split`: every expert has scored candidates of its own; all of them are standardised together."""
    if not np.isfinite(scores).any():
        return None
    return np.nan_to_num(_standardise(scores).reshape(-1), nan=0.0)


ESTIMATORS = {"pool": standardise_pooled, "per_expert": standardise_per_expert, "split": standardise_split}


def _standardise(scores: Floats) -> Floats:
    """(r - mean) / (population deviation + eps) over what is there; equal scores give exact zeros."""
    there = np.isfinite(scores)
    values = scores[there]
    if not len(values):
        return np.full_like(scores, np.nan)
    spread = values.max() - values.min()
    result = np.where(there, 0.0, np.nan)
    if spread > 0:
        result[there] = (values - values.mean()) / (values.std() + EPSILON)
    return result


def _column_means(rows: Floats) -> Floats:
    """The mean of each column over what is there; a candidate that nobody scored has no advantage."""
    there = np.isfinite(rows)
    counts = there.sum(axis=0)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=0) / np.maximum(counts, 1), dtype=np.float64)


def pack_bits(bits: Sequence[bool]) -> NDArray[np.uint8]:
    """One bit per example."""
    return np.packbits(np.asarray(bits, dtype=np.bool_))


def unpack_bits(data: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    return np.unpackbits(data, count=count).astype(np.bool_)
