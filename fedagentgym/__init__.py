"""Environments, client splits and a trainer for federated reinforcement learning of LLM agents.

Importing this package registers the environment ids with gymnasium and imports nothing heavy; all other names are imported on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach
from fedagentgym.registration import register_all
from fedagentgym.registration import register_env as register_env
from fedagentgym.version import __version__ as __version__

if TYPE_CHECKING:
    from fedagentgym.agents.players.own import Agent as Agent
    from fedagentgym.base.settings import Settings as Settings
    from fedagentgym.base.streams import stream as stream
    from fedagentgym.bridges.rewards import make_reward as make_reward
    from fedagentgym.envs.variants import register_variant as register_variant
    from fedagentgym.experiment.agent_file import load_agent as load_agent
    from fedagentgym.experiment.config import RunConfig as RunConfig
    from fedagentgym.experiment.config import load_config as load_config
    from fedagentgym.experiment.result import RunResult as RunResult
    from fedagentgym.experiment.run import resume as resume
    from fedagentgym.experiment.run import sweep as sweep
    from fedagentgym.experiment.run import train as train
    from fedagentgym.learning.evaluation import evaluate as evaluate
    from fedagentgym.learning.rollouts import collect as collect
    from fedagentgym.partitions.client_split import federate as federate
    from fedagentgym.partitions.client_split import load_client_split as load_client_split
    from fedagentgym.registration import register_advantage as register_advantage
    from fedagentgym.registration import register_agent as register_agent
    from fedagentgym.registration import register_aggregation as register_aggregation
    from fedagentgym.registration import register_algorithm as register_algorithm
    from fedagentgym.registration import register_backend as register_backend
    from fedagentgym.registration import register_loss as register_loss
    from fedagentgym.registration import register_objective as register_objective
    from fedagentgym.registration import register_sampler as register_sampler
    from fedagentgym.registration import register_template as register_template
    from fedagentgym.registration import register_tracker as register_tracker

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".agents.players.own": ("Agent",),
        ".base.settings": ("Settings",),
        ".base.streams": ("stream",),
        ".bridges.rewards": ("make_reward",),
        ".envs.variants": ("register_variant",),
        ".experiment.agent_file": ("load_agent",),
        ".experiment.config": ("RunConfig", "load_config"),
        ".experiment.result": ("RunResult",),
        ".experiment.run": ("resume", "sweep", "train"),
        ".learning.evaluation": ("evaluate",),
        ".learning.rollouts": ("collect",),
        ".partitions.client_split": ("federate", "load_client_split"),
        ".registration": (
            "register_advantage",
            "register_agent",
            "register_aggregation",
            "register_algorithm",
            "register_backend",
            "register_loss",
            "register_objective",
            "register_sampler",
            "register_template",
            "register_tracker",
        ),
    },
)

__all__ += ["__version__", "register_env"]

register_all()
