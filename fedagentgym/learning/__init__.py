"""Rollouts, policy updates and evaluation of one client at a time; nothing here depends on the federation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach

if TYPE_CHECKING:
    from fedagentgym.learning.advantages import AdvantageEstimator as AdvantageEstimator
    from fedagentgym.learning.curve import learning_curve as learning_curve
    from fedagentgym.learning.evaluation import Evaluation as Evaluation
    from fedagentgym.learning.evaluation import evaluate as evaluate
    from fedagentgym.learning.export import format_episode as format_episode
    from fedagentgym.learning.learner import LocalTraining as LocalTraining
    from fedagentgym.learning.losses import PolicyLoss as PolicyLoss
    from fedagentgym.learning.losses import PolicyTerms as PolicyTerms
    from fedagentgym.learning.losses import Tokens as Tokens
    from fedagentgym.learning.misconceptions import draw_misconceptions as draw_misconceptions
    from fedagentgym.learning.misconceptions import make_misled_experts as make_misled_experts
    from fedagentgym.learning.misconceptions import measure_beliefs as measure_beliefs
    from fedagentgym.learning.penalties import KL as KL
    from fedagentgym.learning.penalties import Penalty as Penalty
    from fedagentgym.learning.penalties import Proximal as Proximal
    from fedagentgym.learning.penalties import add_gradient as add_gradient
    from fedagentgym.learning.recipe import load_recipe as load_recipe
    from fedagentgym.learning.rollouts import collect as collect
    from fedagentgym.learning.settings import EvaluationSettings as EvaluationSettings
    from fedagentgym.learning.settings import LearningSettings as LearningSettings
    from fedagentgym.learning.settings import MisconceptionSettings as MisconceptionSettings
    from fedagentgym.learning.state import SiteState as SiteState
    from fedagentgym.learning.trajectory import Trajectory as Trajectory

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".advantages": ("AdvantageEstimator",),
        ".curve": ("learning_curve",),
        ".evaluation": ("Evaluation", "evaluate"),
        ".export": ("format_episode",),
        ".learner": ("LocalTraining",),
        ".losses": ("PolicyLoss", "PolicyTerms", "Tokens"),
        ".misconceptions": ("draw_misconceptions", "make_misled_experts", "measure_beliefs"),
        ".penalties": ("KL", "Penalty", "Proximal", "add_gradient"),
        ".recipe": ("load_recipe",),
        ".rollouts": ("collect",),
        ".settings": ("EvaluationSettings", "LearningSettings", "MisconceptionSettings"),
        ".state": ("SiteState",),
        ".trajectory": ("Trajectory",),
    },
)
