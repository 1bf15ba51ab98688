"""All subjects of generated mathematics, each at five levels."""

from __future__ import annotations

from fedagentgym.envs.reasoning.generators.math_algebra import ALGEBRA_WORDS, EQUATIONS, SYSTEMS
from fedagentgym.envs.reasoning.generators.math_discrete import COUNTING, DISCRETE_WORDS, GEOMETRY, NUMBER_THEORY
from fedagentgym.envs.reasoning.generators.math_numbers import ARITHMETIC, FRACTIONS, NUMBER_WORDS, SERIES
from fedagentgym.envs.reasoning.generators.problem import MathProblem
from fedagentgym.envs.reasoning.generators.space import Form

Levels = tuple[tuple[Form[MathProblem], ...], ...]
LEVEL_FORMS: dict[str, Levels] = {
    "arithmetic": ARITHMETIC,
    "fractions": FRACTIONS,
    "linear equations": EQUATIONS,
    "systems": SYSTEMS,
    "number theory": NUMBER_THEORY,
    "counting": COUNTING,
    "geometry": GEOMETRY,
    "series": SERIES,
}
LEVEL_WORDS = (*NUMBER_WORDS, *ALGEBRA_WORDS, *DISCRETE_WORDS)
