"""Which auxiliary examples are most like a question: what decides who is competent for it.

Texts are compared as the frozen base model sees them. Each is embedded once, and one at a time: what a text is embedded to must
not depend on the others of a batch, or a resumed run would ask other experts than one without a stop. The base model's parameters
are seated for all the new questions of a round together, and not at all where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedagentgym.algorithms.support.experts import find_nearest
from fedagentgym.algorithms.support.runtime import ResidentModel
from fedagentgym.envs.core import TextEnv
from fedagentgym.learning.local import get_trainable_policy


class Neighbourhoods:
    """The `count` nearest examples of every question that was asked for so far."""

    def __init__(self, model: ResidentModel, questions: TextEnv, examples: TextEnv, count: int) -> None:
        self._model, self._questions, self._examples, self._count = model, questions, examples, count
        self._found: dict[str, NDArray[np.int64]] = {}

    def find(self, questions: Sequence[str]) -> list[NDArray[np.int64]]:
        """The numbers of each question's examples. Where a question is new, the model is left with its initial parameters."""
        new = [question for question in dict.fromkeys(questions) if question not in self._found]
        if new:
            self._model.seat(self._model.initial_weights)
            for question, text in zip(new, read_openings(self._questions, new), strict=True):
                self._found[question] = find_nearest(self._embed([text]), self._examples_embedded, self._count)[0]
        return [self._found[question] for question in questions]

    @cached_property
    def _examples_embedded(self) -> NDArray[np.float64]:
        return self._embed(read_openings(self._examples, self._examples.pool.ids))

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        from fedagentgym.learning.embedding import embed

        return embed(get_trainable_policy(self._model.agent), texts)


def read_openings(env: TextEnv, tasks: Sequence[str]) -> list[str]:
    """What each task says at its start."""
    return [episode.view.observation for episode in env.reset_many(list(tasks), [0] * len(tasks))]
