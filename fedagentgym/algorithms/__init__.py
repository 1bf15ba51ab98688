"""Federated methods, registered by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import Registry, attach

if TYPE_CHECKING:
    from fedagentgym.algorithms.averaging import AveragingSettings as AveragingSettings
    from fedagentgym.algorithms.base import CONTROL_BYTES as CONTROL_BYTES
    from fedagentgym.algorithms.base import BaseAlgorithm as BaseAlgorithm
    from fedagentgym.algorithms.card import Card as Card
    from fedagentgym.algorithms.card import Scale as Scale
    from fedagentgym.algorithms.card import Sent as Sent
    from fedagentgym.algorithms.card import Work as Work
    from fedagentgym.algorithms.fedagent import Averaging as Averaging

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".averaging": ("AveragingSettings",),
        ".base": ("BaseAlgorithm", "CONTROL_BYTES"),
        ".card": ("Card", "Scale", "Sent", "Work"),
        ".fedagent": ("Averaging",),
    },
)

APPLICATION = "fedagentgym.algorithms.recipe:build_algorithm"
"""The target that workers and clients' machines build for a run: the algorithm with its operations."""
HELD_APPLICATION = "fedagentgym.algorithms.held:build_held"
"""The target that clients' machines build for a run whose tasks they hold themselves."""

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedagent": "fedagentgym.algorithms.fedagent:FedAgent",
        "fedavg-grpo": "fedagentgym.algorithms.fedagent:FedAvgGRPO",
        "fedprox": "fedagentgym.algorithms.fedagent:FedProx",
        "scaffold": "fedagentgym.algorithms.scaffold:Scaffold",
        "feddyn": "fedagentgym.algorithms.feddyn:FedDyn",
        "fedit": "fedagentgym.algorithms.fedit:FedIT",
        "ffa-lora": "fedagentgym.algorithms.fedit:FFALoRA",
        "fedsa-lora": "fedagentgym.algorithms.fedsa_lora:FedSALoRA",
        "flexlora": "fedagentgym.algorithms.flexlora:FlexLoRA",
        "fedex-lora": "fedagentgym.algorithms.fedex_lora:FedExLoRA",
        "flora": "fedagentgym.algorithms.flora:FLoRA",
        "ram": "fedagentgym.algorithms.ram:RAM",
        "fgrpo": "fedagentgym.algorithms.fgrpo:FGRPO",
        "es": "fedagentgym.algorithms.es:EvolutionStrategies",
        "centralized": "fedagentgym.algorithms.baselines:Centralized",
        "local": "fedagentgym.algorithms.baselines:Local",
        "local-all": "fedagentgym.algorithms.personal:LocalAll",
        "personal-head": "fedagentgym.algorithms.personal:PersonalHead",
        "personal-layers": "fedagentgym.algorithms.personal:PersonalLayers",
        "personal-adapter": "fedagentgym.algorithms.personal_adapter:PersonalAdapter",
        "fedavg-finetune": "fedagentgym.algorithms.finetune:FineTune",
        "clustered": "fedagentgym.algorithms.clustered:Clustered",
        "fedgrpo": "fedagentgym.algorithms.fedgrpo:FedGRPO",
        "pubswap": "fedagentgym.algorithms.pubswap:PubSwap",
        "hacpo": "fedagentgym.algorithms.hacpo:HACPO",
        "swarm": "fedagentgym.algorithms.swarm:Swarm",
        "fedmoa": "fedagentgym.algorithms.fedmoa:FedMOA",
        "fedpetuning": "fedagentgym.algorithms.fedpetuning:FedPETuning",
        "dpsda-fl": "fedagentgym.algorithms.dpsda_fl:DPSDA",
        "zero-shot": "fedagentgym.algorithms.baselines:ZeroShot",
    },
)
