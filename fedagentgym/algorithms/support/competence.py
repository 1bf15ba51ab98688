"""The auxiliary examples most similar to a question, which determine who is competent for it.

Texts are compared by embeddings of the frozen base model. Each is embedded once, and one at a time: an embedding must not depend
on the other texts of a batch, or a resumed run would choose other experts than an uninterrupted one. The base model's
parameters are loaded once for all new questions of a round, and not at all if there are none.
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
